"""The folded form: a network reduced, over one box, to dense maps between its ambiguous neurons.

A ReLU that cannot change sign over the box is the identity or zero. Folding those away leaves, for the ambiguous
neurons of layer k,

    x̂_k = A_k [x₀; x_1; …; x_{k−1}] + b_k ± E_k

with the columns of A_k ranging over the inputs that vary and the ambiguous neurons of earlier layers. One backward pass
is then one matrix product per layer. E_k bounds, per neuron and over the whole box, everything that rounding did while
folding.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surebound.bounds.audit import auditor
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.form import Activate, Block, Pulled, Rows, consecutive
from surebound.bounds.kernel import Kernel
from surebound.bounds.minimum import BallMinimum, BoxMinimum, Minimum
from surebound.bounds.rounding import DECIMAL, SLACK, SLOPE, TINY, UNDERFLOW, gamma
from surebound.bounds.sparse import compressed, is_sparse
from surebound.domain.balls import Balls
from surebound.network.op import Affine
from surebound.network.patch import SMALL, Patch, pull_patches

if TYPE_CHECKING:
    from surebound.bounds.planes import Planes

PINNED = 1e-12  # an input whose interval is relatively narrower than this is fixed, and its width counted as error


@dataclass(frozen=True, eq=False)
class FoldedForm:
    """See the module's docstring. Built layer by layer: `empty`, then `append` with the rows of `fold`."""

    enclosure: Enclosure
    free: Tensor  # indices of the inputs that vary
    box_lower: Tensor
    box_upper: Tensor
    blocks: tuple[Block, ...]
    lower: Tensor
    upper: Tensor
    rigorous: bool = True
    transposed: tuple[Tensor | None, ...] = ()  # the blocks' transposes that `compressed` made sparse
    balls: Balls | None = None  # the ball within the box, over the inputs that vary

    @staticmethod
    def empty(enclosure: Enclosure) -> "FoldedForm":
        """The form before its first layer; `enclosure` holds one box."""
        lower, upper = enclosure.lower[0].flatten(), enclosure.upper[0].flatten()
        pinned = upper - lower <= PINNED * torch.maximum(lower.abs(), upper.abs())
        free = torch.nonzero(~pinned).flatten()
        none = lower.new_zeros(0)
        balls = None if enclosure.balls is None else enclosure.balls.map(lambda t: t[0]).over(free)
        return FoldedForm(enclosure, free, lower[free], upper[free], (), none, none, balls=balls)

    @property
    def inputs(self) -> int:
        return len(self.free)

    @property
    def neurons(self) -> int:
        return len(self.lower)

    @property
    def columns(self) -> int:
        return self.inputs + self.neurons

    @property
    def layers(self) -> tuple[slice, ...]:
        return consecutive(len(block.index) for block in self.blocks)

    @property
    def minimum(self) -> Minimum:
        return BoxMinimum(self.box_lower, self.box_upper) if self.balls is None else BallMinimum(self.balls)

    def magnitudes(self) -> Tensor:
        """X ≥ |column| over the box. # (columns,)"""
        return torch.cat([torch.maximum(self.box_lower.abs(), self.box_upper.abs()), self.upper.clamp_min(0.0)])

    def fold(self, start: dict[int, Tensor]) -> Rows:
        """Linear functions of nodes (float64 coefficients) as rows over this form's columns."""
        return self._fold({node: Patch.whole(c) for node, c in start.items()})

    def fold_neurons(self, node: int, index: Tensor, *, small: float = SMALL) -> Rows:
        """Elements of a node as rows over this form's columns. `small` as in `pull_patches`."""
        one = self.enclosure.lower[0].new_ones(())
        return self._fold({node: Patch.units(index, self.enclosure.network.nodes[node].shape, one)}, small)

    def _fold(self, start: dict[int, Patch], small: float = SMALL) -> Rows:
        network, enclosure = self.enclosure.network, self.enclosure
        some = next(iter(start.values())).values
        out = some.new_zeros(len(some), self.columns)
        offsets = [self.inputs + s.start for s in self.layers]
        constant, error = some.new_zeros(len(some)), some.new_zeros(len(some))
        for node, c in start.items():
            if node != max(start):  # to which nothing is added
                error += c.abs().dot(enclosure.own_error(node)[0])

        def pass_stable(k: int, lam: Patch) -> Patch:
            block = self.blocks[k]
            out[:, offsets[k] : offsets[k] + len(block.index)] = lam.at(block.index)
            passed = lam.times(block.active)
            error.add_(passed.abs().dot(enclosure.relu_error(k)))  # of adding up what passes active ReLUs
            return passed

        def pull(i: int, op: Affine, c: Patch) -> None:
            if op.bias is not None:
                constant.add_(c.dot(op.bias.expand(c.shape)))
            error.add_(c.abs().dot(enclosure.errors[i]))

        flat = pull_patches(network, start, pass_stable, pull, small=small).full().flatten(1)
        out[:, : self.inputs] = flat[:, self.free]
        fixed = torch.ones_like(flat[0], dtype=torch.bool)
        fixed[self.free] = False
        if bool(fixed.any()):
            point = enclosure.lower[0].flatten()[fixed]
            slack = enclosure.upper[0].flatten()[fixed] - point + TINY
            constant += flat[:, fixed] @ point
            error += flat[:, fixed].abs() @ (enclosure.constant_error(len(point)) * point.abs() + slack)
        audit = auditor()
        meaning = None if audit is None else audit.meaning(network, {node: c.full() for node, c in start.items()})
        return Rows(out, constant, error * SLACK + UNDERFLOW, meaning)

    def rows(self, on_output: Tensor, on_input: Tensor, constant: Tensor) -> Rows:
        network = self.enclosure.network
        start = {0: on_input.reshape(-1, *network.input_shape)}
        at_output = on_output.reshape(-1, *network.output_shape)
        start[network.output] = start[0] + at_output if network.output == 0 else at_output
        folded = self.fold(start)
        reach = [self.enclosure.magnitude(node).flatten() for node in (network.output, 0)]
        given = on_output.abs() @ reach[0] + on_input.abs() @ reach[1] + constant.abs()
        return Rows(
            folded.coefficients,
            folded.constant + constant,
            folded.error + gamma(DECIMAL + 1) * given,
            None if folded.meaning is None else folded.meaning.plus(constant),
        )

    def append(self, rows: Rows, index: Tensor, lower: Tensor, upper: Tensor) -> "FoldedForm":
        """The form with one more layer: `rows` are its ambiguous neurons `index`, with bounds lower and upper.

        To the error of folding it adds what evaluating a bound with this block in float64 may add.
        """
        assert self.enclosure.network.piecewise_linear  # neurons that keep their sign are lines
        error = (
            rows.error
            + gamma(len(index) + self._later) * (rows.coefficients.abs() @ self.magnitudes())
            + gamma(len(index) + self._blocks) * rows.constant.abs()
            + gamma(SLOPE) * torch.maximum(lower.abs(), upper.abs())
        )
        # As it stands now: a node that feeds another ReLU, too, may be bounded again, and a neuron that is ambiguous
        # here must not pass for active then.
        active = (self.enclosure.layer(len(self.blocks))[0][0] >= 0).to(lower.dtype)
        active[index] = 0.0
        block = Block(rows.coefficients, rows.constant, error * SLACK + TINY, index, active)
        return replace(
            self,
            blocks=(*self.blocks, block),
            lower=torch.cat([self.lower, lower]),
            upper=torch.cat([self.upper, upper]),
            transposed=(),
        )

    def with_planes(self, planes: "Sequence[Planes]") -> "FoldedForm":
        """The form for bounds with planes, one for each neuron: those of a layer are further rows of its block.

        A neuron whose plane a pass uses has μ̄ = 0, so that no sum has more terms than without planes.
        """
        blocks, reach = [], self.magnitudes()
        for block, plane in zip(self.blocks, planes, strict=True):
            count, size = len(block.index), plane.weight.abs() @ reach[: plane.weight.shape[1]]
            error = gamma(count + self._later) * size + gamma(count + self._blocks) * plane.height.abs()
            blocks.append(
                replace(
                    block,
                    weight=torch.cat([block.weight, plane.weight]),
                    bias=torch.cat([block.bias, plane.height]),
                    error=torch.cat([block.error, error * SLACK + TINY]),
                )
            )
        return replace(self, blocks=tuple(blocks), transposed=())

    @property
    def _blocks(self) -> int:
        """Additions of the blocks' constants: one for each layer of the network, and the row's own."""
        return len(self.enclosure.network.layers) + 1

    @property
    def _later(self) -> int:
        """Additions to a coefficient after its own: the products with every block before it may come on top singly."""
        return self.neurons + len(self.blocks) + 1

    def start_error(self, rows: Rows) -> Tensor:
        """Per row and unit of weight: its folding error and the rounding of mixing rows with weights. # (rows,)"""
        reach = rows.coefficients.abs() @ self.magnitudes()
        mixing = gamma(len(rows) + self._later) * reach + gamma(len(rows) + self._blocks) * rows.constant.abs()
        return (rows.error + mixing) * SLACK

    def backward(self, start: Tensor, activate: Activate, *, keep: bool = True) -> Pulled:
        lam = start.clone()
        constant, error = start.new_zeros(len(start)), start.new_zeros(len(start))
        for k in range(len(self.blocks) - 1, -1, -1):
            block = self.blocks[k]
            before = block.weight.shape[1]
            if not len(block.index):
                continue
            mu = activate(k, lam[:, before : before + len(block.index)])
            constant -= mu @ block.bias
            sparse = self.transposed[k] if self.transposed else None
            if sparse is None:
                lam[:, :before].addmm_(mu, block.weight)
            else:
                lam[:, :before] += torch.mm(sparse, mu.T).T
            if self.rigorous:
                error += mu.abs() @ block.error
        return Pulled(lam[:, : self.inputs], lam[:, self.inputs :], constant, error)

    def compressed(self, sparse: Callable[[Tensor], bool] = is_sparse) -> "FoldedForm":
        """The same form for many backward passes: blocks of mostly zeros are kept as sparse matrices, too."""
        weights = [block.weight for block in self.blocks]
        return replace(self, transposed=tuple(compressed(w.T) if sparse(w) else None for w in weights))

    def folded(self) -> "FoldedForm":
        return self

    def kernel(self) -> Kernel:
        return Kernel.of(self)

    @property
    def can_refine(self) -> bool:
        return len(self.layers) > 1

    def forward(self, x: Tensor, activate: Activate) -> tuple[Tensor, Tensor]:
        columns = x.new_empty(len(x), self.columns)
        columns[:, : self.inputs] = x
        xhat = x.new_empty(len(x), self.neurons)
        for k, (block, where) in enumerate(zip(self.blocks, self.layers, strict=True)):
            before = block.weight.shape[1]
            torch.addmm(block.bias, columns[:, :before], block.weight.T, out=xhat[:, where])
            columns[:, before : before + len(block.bias)] = activate(k, xhat[:, where])
        return xhat, columns

    def evaluation_error(self, lam_at_input: Tensor, intercepts: Tensor) -> Tensor:
        reach = torch.maximum(self.box_lower.abs(), self.box_upper.abs())
        intercept = gamma(self.neurons + self._blocks) * intercepts
        return (gamma(self.inputs) * (lam_at_input.abs() @ reach) + intercept) * SLACK + TINY

    def full_input(self, x: Tensor) -> Tensor:
        """Points over the varying inputs, completed with the fixed ones. # (rows, inputs) -> (rows, all inputs)"""
        full = self.enclosure.lower[0].flatten().to(x.dtype).repeat(len(x), 1)
        full[:, self.free] = x
        return full

    def to(self, dtype: torch.dtype) -> "FoldedForm":
        blocks = tuple(
            Block(b.weight.to(dtype), b.bias.to(dtype), b.error.to(dtype), b.index, b.active) for b in self.blocks
        )
        return replace(
            self,
            box_lower=self.box_lower.to(dtype),
            box_upper=self.box_upper.to(dtype),
            blocks=blocks,
            lower=self.lower.to(dtype),
            upper=self.upper.to(dtype),
            rigorous=dtype == torch.float64,
            balls=None if self.balls is None else self.balls.to(dtype),
            transposed=tuple(None if t is None else t.to(dtype) for t in self.transposed),
        )

    @property
    def numbers(self) -> int:
        """The size of its matrices, which is also the multiply-adds of a pass."""
        return sum(block.weight.numel() for block in self.blocks)

    @property
    def indices(self) -> tuple[Tensor, ...]:
        """Which neurons of each network layer are relaxed here."""
        return tuple(b.index for b in self.blocks)

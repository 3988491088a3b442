"""β-CROWN's ascent on a folded network, as near to the hardware as torch's operations allow.

The mathematics is that of `surebound.bounds.beta_crown`, whose `ascend` is the reference this is tested against. What
differs is where the numbers lie:

- Nodes are columns: a layer of λ̄ is one piece of memory, which every operation streams through.
- Inputs are measured from the centre of the box in half widths, z ∈ [−1, 1]: the minimum over the box is −‖λ̄₀‖₁ and its
  minimiser sign(λ̄₀), one pass each.
- A block that is mostly zeros, as those of a convolution's first layers are, is a sparse matrix.
- β exists for split neurons only, and all buffers are written in place.

Everything here is float32 and decides nothing: what it finds are duals, for `Subject.sound_bounds` to judge.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Bounded, Duals, Nodes, Specification
from surebound.bounds.folded import FoldedForm
from surebound.bounds.relaxation import Relaxation
from surebound.bounds.sparse import compressed

COMPACT_AT = 0.75  # the share of nodes still going at which the others leave the batch


@dataclass(frozen=True, eq=False)
class Block:
    """x̂ = W [z; x before] + b of one layer's ambiguous neurons."""

    neurons: slice  # among all neurons
    before: int  # columns it reads
    weight: Tensor  # (neurons of the layer, before)
    transposed: Tensor  # (before, neurons of the layer)
    bias: Tensor  # (neurons of the layer, 1)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A folded network ready for the ascent."""

    blocks: tuple[Block, ...]
    bias: Tensor  # (1, neurons)
    centre: Tensor  # (inputs,)
    radius: Tensor  # (inputs,)

    @staticmethod
    def of(form: FoldedForm) -> "Kernel":
        """`form` in float32 or float64."""
        centre, radius = (form.box_lower + form.box_upper) / 2, (form.box_upper - form.box_lower) / 2
        blocks = []
        for block, where in zip(form.blocks, form.layers, strict=True):
            if not len(block.bias):
                continue
            bias = (block.bias + block.weight[:, : form.inputs] @ centre).float()[:, None]
            weight = _scaled(block.weight, radius)
            blocks.append(Block(where, weight.shape[1], _stored(weight), _stored(weight.T.contiguous()), bias))
        bias = torch.cat([torch.zeros(0, 1), *(block.bias for block in blocks)]).T.contiguous()
        return Kernel(tuple(blocks), bias, centre.float(), radius.float())

    @property
    def inputs(self) -> int:
        return len(self.centre)

    @property
    def neurons(self) -> int:
        return self.bias.shape[1]

    def ascend(
        self,
        specification: Specification,
        relaxation: Relaxation,
        nodes: Nodes,
        duals: Duals,
        config: Ascent,
        *,
        stop_above: float = torch.inf,
    ) -> Bounded:
        """Maximise d over the duals of every node, as `beta_crown.ascend`.

        λ̄ and x are filled in for nodes that are not above `stop_above`: nobody asks for those of the others.
        """
        rows = KernelRows.of(self, specification)
        run = _Run(self, rows, relaxation, nodes, duals)
        best = _Best(run)
        for step in range(config.iterations):
            bound = run.evaluate()
            best.take(run, bound)
            going = best.bound[run.alive] <= stop_above
            count = int(going.sum())
            if not count:
                return best.finish(self, rows, relaxation, nodes, stop_above)
            if count <= COMPACT_AT * len(run.alive):
                run = run.only(torch.nonzero(going).flatten())
            run.step(config, step)
        best.take(run, run.evaluate())
        return best.finish(self, rows, relaxation, nodes, stop_above)


def _scaled(weight: Tensor, radius: Tensor) -> Tensor:
    scaled = weight.clone()
    scaled[:, : len(radius)] *= radius
    return scaled.float()


def _stored(weight: Tensor) -> Tensor:
    """Dense or sparse, whichever multiplies faster."""
    sparse = compressed(weight)
    return weight if sparse is None else sparse


@dataclass(frozen=True, eq=False)
class KernelRows:
    """The specification's rows over [z | neurons], with their signs turned as λ̄ has them."""

    start: Tensor  # (columns, rows)  −c
    constant: Tensor  # (rows,)
    starts: tuple[int, ...]

    @staticmethod
    def of(kernel: Kernel, specification: Specification) -> "KernelRows":
        rows, inputs = specification.rows, kernel.inputs
        constant = rows.constant + rows.coefficients[:, :inputs] @ kernel.centre
        return KernelRows(
            _scaled(rows.coefficients, kernel.radius).neg_().T.contiguous(), constant, specification.starts
        )

    def values(self, columns: Tensor) -> Tensor:
        """Every row at given columns. # (columns, nodes) -> (rows, nodes)"""
        return self.constant[:, None] - self.start.T @ columns

    def members(self, region: Tensor) -> Tensor:
        """Which rows belong to each node's region. # (rows, nodes) bool"""
        group = torch.repeat_interleave(torch.tensor([b - a for a, b in pairwise(self.starts)]))
        return group[:, None] == region

    def spread(self, region: Tensor, mix: Tensor) -> Tensor:
        """π over all rows, 0 for those of other regions. # (nodes, most rows) -> (rows, nodes)"""
        member = self.members(region)
        at = torch.arange(len(self.constant))[:, None] - torch.tensor(self.starts)[region]
        return torch.where(member, mix.T.gather(0, at.clamp(0, mix.shape[1] - 1)), 0.0)

    def gathered(self, region: Tensor, weights: Tensor, most: int) -> Tensor:
        """The inverse of `spread`. # (rows, nodes) -> (nodes, most rows)"""
        at = torch.arange(most)[:, None] + torch.tensor(self.starts)[region]
        inside = at < torch.tensor(self.starts)[region + 1]
        return torch.where(inside, weights.gather(0, at.clamp_max(len(weights) - 1)), 0.0).T.contiguous()


@dataclass(frozen=True, eq=False)
class _Splits:
    """The split neurons of each node; nodes with fewer than others are filled up with a neuron that does not exist."""

    at: Tensor  # (most splits, nodes) int64
    sign: Tensor  # (most splits, nodes), 0 where filled up

    @staticmethod
    def of(signs: Tensor) -> "_Splits":
        """# (nodes, neurons) int8"""
        node, neuron = torch.nonzero(signs, as_tuple=True)
        count = torch.bincount(node, minlength=len(signs))
        place = torch.arange(len(node)) - (count.cumsum(0) - count)[node]
        at = torch.full((int(count.max()), len(signs)), signs.shape[1])
        at[place, node] = neuron
        sign = torch.zeros(at.shape)
        sign[place, node] = signs[node, neuron].float()
        return _Splits(at, sign)


class _Run:
    """The state of an ascent: nodes that are still going, their duals, moments and buffers."""

    def __init__(self, kernel: Kernel, rows: KernelRows, relaxation: Relaxation, nodes: Nodes, duals: Duals) -> None:
        count, neurons = len(nodes), kernel.neurons
        self.kernel, self.rows = kernel, rows
        self.region = nodes.region
        self.alive = torch.arange(count)
        upper, intercept = relaxation.upper_slope[:, None], relaxation.intercept[:, None]
        alpha = duals.alpha.T.clamp(0.0, 1.0)
        ambiguous = relaxation.ambiguous[:, None]
        self.splits: _Splits | None = None
        if nodes.signs is not None and bool(nodes.signs.any()):
            self.splits = _Splits.of(nodes.signs)
            sign = nodes.signs.T
            active, split = (sign > 0).float(), sign != 0
            upper = torch.where(split, active, upper)
            intercept = torch.where(split, 0.0, intercept)
            ambiguous = ambiguous & ~split
        self.upper, self.intercept = upper, intercept  # (neurons, nodes | 1)
        self.fixed = None if bool(relaxation.ambiguous.all()) else ~relaxation.ambiguous
        self.alpha = torch.where(ambiguous, alpha, upper).contiguous()
        self.beta: Tensor | None = None  # (most splits, nodes)
        if self.splits is not None:
            given = torch.zeros(count, neurons) if duals.beta is None else duals.beta
            padded = torch.cat([given.T, torch.zeros(1, count)])
            self.beta = padded.gather(0, self.splits.at)
        self.mix: Tensor | None = None  # (rows, nodes)
        self.member: Tensor | None = None
        if duals.mix is None:
            where = torch.tensor(rows.starts)[self.region]
            self.start = rows.start if len(rows.constant) == 1 else rows.start[:, where]  # (columns, nodes | 1)
            self.constant = rows.constant[where]
        else:
            self.mix, self.member = rows.spread(self.region, duals.mix), rows.members(self.region)
        self.moments = [torch.zeros_like(t) for t in self._variables() for _ in range(2)]
        self._allocate()

    def _variables(self) -> Iterator[Tensor]:
        yield from (t for t in (self.alpha, self.beta, self.mix) if t is not None)

    def _allocate(self) -> None:
        kernel, count = self.kernel, len(self.alive)
        self.lam = torch.empty(kernel.inputs + kernel.neurons, count)
        self.points = torch.empty_like(self.lam)
        self.chosen, self.offset = (torch.empty(kernel.neurons, count) for _ in range(2))
        # one row more: the neuron that does not exist, which `_Splits` points to
        self.mu, self.xhat = (torch.zeros(kernel.neurons + 1, count) for _ in range(2))
        self.push = None if self.splits is None else torch.zeros(kernel.neurons + 1, count)

    def only(self, index: Tensor) -> "_Run":
        """Some of the nodes."""
        for name in ("alive", "region"):
            setattr(self, name, getattr(self, name)[index])
        for name in ("alpha", "upper", "intercept", "beta", "mix", "member", "start", "constant"):
            value = getattr(self, name, None)
            if value is not None and (value.ndim == 1 or value.shape[1] > 1):
                setattr(self, name, value[..., index].contiguous())
        if self.splits is not None:
            self.splits = _Splits(self.splits.at[:, index], self.splits.sign[:, index])
        self.moments = [t[:, index] for t in self.moments]
        # what a step needs of the evaluation before it
        lam, chosen, offset = self.lam, self.chosen, self.offset
        self._allocate()
        torch.index_select(lam, 1, index, out=self.lam)
        torch.index_select(chosen, 1, index, out=self.chosen)
        torch.index_select(offset, 1, index, out=self.offset)
        return self

    def evaluate(self) -> Tensor:
        """d at the present duals: one backward pass. # (nodes,)"""
        kernel, lam, mu = self.kernel, self.lam, self.mu
        if self.mix is None:
            lam.copy_(self.start)
            bound = self.constant
        else:
            torch.mm(self.rows.start, self.mix, out=lam)
            bound = self.rows.constant @ self.mix
        if self.splits is not None:
            assert self.beta is not None and self.push is not None
            self.push.scatter_(0, self.splits.at, self.splits.sign * self.beta)
        for block in reversed(kernel.blocks):
            at = block.neurons
            here = lam[kernel.inputs + at.start : kernel.inputs + at.stop]
            positive = torch.gt(here, 0.0, out=self.offset[at])
            torch.lerp(self.alpha[at], self.upper[at].expand_as(here), positive, out=self.chosen[at])
            torch.mul(self.chosen[at], here, out=mu[at])
            if self.push is not None:
                mu[at].add_(self.push[at])
            lam[: block.before].addmm_(block.transposed, mu[at])
        self.offset.mul_(self.intercept)  # b̄ where λ̄ > 0
        at_input, at_neurons = lam[: kernel.inputs], lam[kernel.inputs :]
        cost = (self.offset * at_neurons).sum(0) + at_input.abs().sum(0) + (kernel.bias @ mu[:-1])[0]
        bound = bound - cost
        return torch.where(torch.isfinite(bound), bound, -torch.inf)

    def step(self, config: Ascent, step: int) -> None:
        """One projected Adam step upwards from the last evaluation: the minimiser carried forward, then the moves."""
        kernel, points, xhat = self.kernel, self.points, self.xhat
        torch.sign(self.lam[: kernel.inputs], out=points[: kernel.inputs])
        for block in kernel.blocks:
            at = block.neurons
            torch.mm(block.weight, points[: block.before], out=xhat[at])
            xhat[at].add_(block.bias)
            after = points[kernel.inputs + at.start : kernel.inputs + at.stop]
            torch.addcmul(self.offset[at], self.chosen[at], xhat[at], out=after)
        # ∂d/∂α = −[λ̄]₋ x̂: its negative, in μ̄'s place, which is not needed any more
        descent = torch.clamp_max(self.lam[kernel.inputs :], 0.0, out=self.mu[:-1]).mul_(xhat[:-1])
        if self.fixed is not None:
            descent[self.fixed] = 0.0
        if self.splits is not None:
            self.mu.scatter_(0, self.splits.at, 0.0)
        moments = iter(self.moments)
        _adam(self.alpha, descent, next(moments), next(moments), config, step).clamp_(0.0, 1.0)
        if self.splits is not None:
            assert self.beta is not None
            slope = self.splits.sign * xhat.gather(0, self.splits.at)
            _adam(self.beta, slope, next(moments), next(moments), config, step).clamp_(min=0.0)
        if self.mix is not None:
            self._mix_step(next(moments), next(moments), config, step)

    def _mix_step(self, first: Tensor, second: Tensor, config: Ascent, step: int) -> None:
        """π moves along the rows' values, stays on the simplex."""
        assert self.mix is not None and self.member is not None
        member = self.member.float()
        value = self.rows.values(self.points) * member
        centred = (value - value.sum(0) / member.sum(0)) * member
        raw = _adam(self.mix.clone(), centred.neg_(), first, second, config, step).clamp_(min=0.0) * member
        total = raw.sum(0)
        self.mix = torch.where(total > 1e-6, raw / total.clamp_min(1e-6), self.mix)


def _adam(value: Tensor, descent: Tensor, first: Tensor, second: Tensor, config: Ascent, step: int) -> Tensor:
    """`value` moved in place against `descent`."""
    b1, b2 = config.betas
    rate = config.lr * config.decay**step / (1.0 - b1 ** (step + 1))
    first.lerp_(descent, 1.0 - b1)
    second.mul_(b2).addcmul_(descent, descent, value=1.0 - b2)
    scale = (1.0 - b2 ** (step + 1)) ** 0.5
    return value.addcdiv_(first, second.sqrt().add_(1e-8 * scale), value=-rate * scale)


class _Best:
    """The best duals of each node so far: the ascent is not monotone."""

    def __init__(self, run: _Run) -> None:
        self.bound = torch.full((len(run.alive),), -torch.inf)
        self.splits = run.splits
        self.duals = [t.clone() for t in run._variables()]
        self.has_beta, self.has_mix = run.beta is not None, run.mix is not None

    def take(self, run: _Run, bound: Tensor) -> None:
        """Keep what is better than before."""
        better = bound > self.bound[run.alive]
        if not bool(better.any()):
            return
        at = run.alive[better]
        self.bound[at] = bound[better]
        for mine, new in zip(self.duals, run._variables(), strict=True):
            if len(at) == mine.shape[1]:
                mine.copy_(new)
            else:
                mine[:, at] = new[:, better]

    def finish(
        self, kernel: Kernel, rows: KernelRows, relaxation: Relaxation, nodes: Nodes, stop_above: float
    ) -> Bounded:
        """The result in the order of the search: nodes are rows again."""
        count = len(self.bound)
        variables = iter(self.duals)
        duals = Duals(next(variables).T.contiguous(), None, None)
        if nodes.signs is not None:
            beta = torch.zeros(kernel.neurons + 1, count)
            if self.splits is not None:
                beta.scatter_(0, self.splits.at, next(variables))
            duals = replace(duals, beta=beta[:-1].T.contiguous())
        if self.has_mix:
            most = max(b - a for a, b in pairwise(rows.starts))
            duals = replace(duals, mix=rows.gathered(nodes.region, next(variables), most))
        lam, x = torch.zeros(count, kernel.neurons), torch.zeros(count, kernel.inputs)
        open_ = torch.nonzero(self.bound <= stop_above).flatten()
        if len(open_):
            last = _Run(kernel, rows, relaxation, nodes[open_], duals[open_])
            last.evaluate()
            lam[open_] = last.lam[kernel.inputs :].T
            x[open_] = kernel.centre + kernel.radius * last.lam[: kernel.inputs].T.sign()
        return Bounded(self.bound, duals, lam, x)

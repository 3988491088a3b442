"""β-CROWN's ascent on a folded network, as near to the hardware as torch's operations allow.

The mathematics is that of `surebound.bounds.beta_crown`, whose `ascend` is the reference this is tested against. What
differs is where the numbers lie:

- Splits are columns: a layer of λ̄ is one piece of memory, which every operation streams through.
- Inputs are measured from the centre of the box in half widths, z ∈ [−1, 1]: the minimum over the box is −‖λ̄₀‖₁ and its
  minimiser sign(λ̄₀), one pass each. Over a ball, they are measured from its centre as they are.
- A block that is mostly zeros, as those of a convolution's first layers are, is a sparse matrix.
- β exists for split neurons only, and all buffers are written in place.

Everything here is float32 and decides nothing: what it finds are duals, for `Subject.sound_bounds` to judge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from surebound.bounds.beta_crown import COMPACT_AT, Ascent, Bounded, Duals, Specification, Splits
from surebound.bounds.relaxation import Relaxation
from surebound.bounds.sparse import compressed, is_sparse, rank_in_group
from surebound.domain.balls import Balls

if TYPE_CHECKING:
    from surebound.bounds.folded import FoldedForm
    from surebound.bounds.planes import Planes


@dataclass(frozen=True, eq=False)
class Block:
    """x̂ = W [z; x before] + b of one layer's ambiguous neurons."""

    neurons: slice  # among all neurons
    before: int  # columns it reads
    weight: Tensor  # (neurons of the layer, before)
    transposed: Tensor  # (before, neurons of the layer)
    bias: Tensor  # (neurons of the layer, 1)
    plane: Tensor | None = None  # (neurons of the layer, before)  G of `surebound.bounds.planes`
    plane_transposed: Tensor | None = None  # (before, neurons of the layer)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A folded network ready for the ascent."""

    blocks: tuple[Block, ...]
    bias: Tensor  # (1, neurons)
    centre: Tensor  # (inputs,)
    radius: Tensor  # (inputs,)
    balls: Balls | None = None  # the ball, in these units
    height: Tensor | None = None  # (neurons, 1)  h of the planes, if there are any

    @staticmethod
    def of(form: "FoldedForm", sparse: Callable[[Tensor], bool] = is_sparse) -> "Kernel":
        """`form` in float32 or float64."""
        centre, radius = (form.box_lower + form.box_upper) / 2, (form.box_upper - form.box_lower) / 2
        balls = form.balls
        if balls is not None:
            centre, radius = balls.centre, torch.ones_like(balls.centre)
            ends = (balls.lower - centre).float(), (balls.upper - centre).float()
            balls = Balls(torch.zeros_like(ends[0]), balls.radius.float(), *ends, balls.norm)
        blocks = []
        for block, where in zip(form.blocks, form.layers, strict=True):
            if not len(block.bias):
                continue
            bias = (block.bias + block.weight[:, : form.inputs] @ centre).float()[:, None]
            blocks.append(Block(where, block.weight.shape[1], *_both_ways(block.weight, radius, sparse), bias))
        bias = torch.cat([centre.new_zeros(0, 1).float(), *(block.bias for block in blocks)]).T.contiguous()
        return Kernel(tuple(blocks), bias, centre.float(), radius.float(), balls)

    def with_planes(self, planes: "Sequence[Planes]", sparse: Callable[[Tensor], bool] = is_sparse) -> "Kernel":
        """The same with a plane above every open neuron in the place of its line."""
        some = [plane for plane in planes if len(plane.height)]
        blocks, heights = [], [self.bias.new_zeros(0, 1)]
        for block, plane in zip(self.blocks, some, strict=True):
            both = _both_ways(plane.weight, self.radius, sparse)
            blocks.append(replace(block, plane=both[0], plane_transposed=both[1]))
            heights.append((plane.height + plane.weight[:, : self.inputs] @ self.centre.double()).float()[:, None])
        return replace(self, blocks=tuple(blocks), height=torch.cat(heights))

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
        nodes: Splits,
        duals: Duals,
        config: Ascent,
        *,
        stop_above: float = torch.inf,
    ) -> Bounded:
        """Maximise d over the duals of every node, as `beta_crown.ascend`.

        λ̄ and x are filled in for nodes that are not above `stop_above`: the others are about to be proved.
        """
        run = self._begin(specification, relaxation, nodes, duals)
        rows, problem = run.rows, run.problem
        best, best_bound = run.duals.map(torch.clone), self.bias.new_full((len(nodes),), -torch.inf)
        alive = torch.arange(len(nodes), device=nodes.region.device)
        for step in range(config.iterations + 1):
            bound = run.evaluate()
            better = bound > best_bound[alive]
            best_bound[alive[better]] = bound[better]
            _put(best, alive[better], run.duals, better)
            going = best_bound[alive] <= stop_above
            if step == config.iterations or not bool(going.any()):
                break
            if int(going.sum()) <= COMPACT_AT * len(alive):
                run, alive = run.only(going), alive[going]
            run.step(config, step)
        found = problem.end(rows, nodes, best)
        lam, x = (self.bias.new_zeros(len(nodes), width) for width in (self.neurons, self.inputs))
        open_ = best_bound <= stop_above
        if bool(open_.any()):
            last = _Run(self, rows, problem[open_], best.map(lambda t: t[:, open_]))
            last.evaluate()
            lam[open_] = last.lam[self.inputs :].T
            x[open_] = self.centre + self.radius * last.minimiser().T
        return Bounded(best_bound, found, lam, x)

    def evaluate(
        self, specification: Specification, relaxation: Relaxation, nodes: Splits, duals: Duals
    ) -> tuple[Tensor, Tensor]:
        """d and λ̄ at given duals. # (nodes,), (nodes, neurons)"""
        run = self._begin(specification, relaxation, nodes, duals)
        return run.evaluate(), run.lam[self.inputs :].T

    def _begin(self, specification: Specification, relaxation: Relaxation, nodes: Splits, duals: Duals) -> "_Run":
        rows = KernelRows.of(self, specification)
        problem = _Problem.of(relaxation, nodes, self.height)
        return _Run(self, rows, problem, problem.begin(rows, relaxation, duals))


def _scaled(weight: Tensor, radius: Tensor) -> Tensor:
    scaled = weight.clone()
    scaled[:, : len(radius)] *= radius
    return scaled.float()


def _both_ways(weight: Tensor, radius: Tensor, sparse: Callable[[Tensor], bool]) -> tuple[Tensor, Tensor]:
    """A matrix over columns in half widths, and its transpose."""
    scaled = _scaled(weight, radius)
    transposed = scaled.T.contiguous()
    return (compressed(scaled), compressed(transposed)) if sparse(scaled) else (scaled, transposed)


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
        group = torch.repeat_interleave(self._numbers([b - a for a, b in pairwise(self.starts)]))
        return group[:, None] == region

    def first(self, region: Tensor) -> Tensor:
        """The first row of each node's region. # (nodes,)"""
        return self._numbers(self.starts)[region]

    def _numbers(self, values: Sequence[int]) -> Tensor:
        """To index by, where the rows are."""
        return torch.tensor(values, dtype=torch.int64, device=self.constant.device)

    def spread(self, region: Tensor, mix: Tensor) -> Tensor:
        """π over all rows, 0 for those of other regions. # (nodes, most rows) -> (rows, nodes)"""
        member = self.members(region)
        at = torch.arange(len(self.constant), device=region.device)[:, None] - self._numbers(self.starts)[region]
        return torch.where(member, mix.T.gather(0, at.clamp(0, mix.shape[1] - 1)), 0.0)

    def gathered(self, region: Tensor, weights: Tensor) -> Tensor:
        """The inverse of `spread`. # (rows, nodes) -> (nodes, most rows)"""
        most = max(b - a for a, b in pairwise(self.starts))
        starts = self._numbers(self.starts)
        at = torch.arange(most, device=region.device)[:, None] + starts[region]
        inside = at < starts[region + 1]
        return torch.where(inside, weights.gather(0, at.clamp_max(len(weights) - 1)), 0.0).T.contiguous()


@dataclass(frozen=True, eq=False)
class _Problem:
    """What stays the same over an ascent. Splits are columns; where there is one column only, all nodes share it."""

    region: Tensor  # (nodes,)
    upper: Tensor  # (neurons, nodes | 1)  ā, and the slope of split neurons
    intercept: Tensor  # (neurons, nodes | 1)  b̄, 0 on split neurons
    split: Tensor | None  # (most splits, nodes) int64: which neurons are split. A node with fewer splits than others
    sign: Tensor | None  # (most splits, nodes)  is filled up with a neuron that does not exist, and the sign 0
    planes: Tensor | None  # (neurons, nodes | 1) 1 where a plane is the upper line: then ā is 0 and b̄ its height

    @staticmethod
    def of(relaxation: Relaxation, nodes: Splits, height: Tensor | None = None) -> "_Problem":
        upper, intercept = relaxation.upper_slope[:, None], relaxation.intercept[:, None]
        free, split, sign = relaxation.ambiguous[:, None], None, None
        if nodes.signs is not None and bool(nodes.signs.any()):
            signs = nodes.signs.T
            upper = torch.where(signs != 0, (signs > 0).float(), upper)
            intercept = torch.where(signs != 0, 0.0, intercept)
            free = free & (signs == 0)
            split, sign = _listed(nodes.signs)
        if height is None:
            return _Problem(nodes.region, upper, intercept, split, sign, None)
        upper, intercept = torch.where(free, 0.0, upper), torch.where(free, height, intercept)
        return _Problem(nodes.region, upper, intercept, split, sign, free.float())

    def __getitem__(self, index: Tensor) -> "_Problem":
        """Some of the nodes."""
        split, sign = (None if t is None else t[:, index] for t in (self.split, self.sign))
        shared = self.upper.shape[1] == 1
        upper, intercept, planes = (
            t if t is None or shared else t[:, index] for t in (self.upper, self.intercept, self.planes)
        )
        assert upper is not None and intercept is not None
        return _Problem(self.region[index], upper, intercept, split, sign, planes)

    def begin(self, rows: KernelRows, relaxation: Relaxation, duals: Duals) -> Duals:
        """The duals to start from: β of split neurons only, π over all rows. # (…, nodes) each"""
        free = relaxation.ambiguous[:, None].expand(-1, len(self.region))
        beta = None
        if self.split is not None:
            absent = self.upper.new_zeros(1, len(self.region))
            free = torch.cat([free, absent.bool()]).scatter(0, self.split, False)[:-1]
            given = absent.expand(len(free), -1) if duals.beta is None else duals.beta.T
            beta = torch.cat([given, absent]).gather(0, self.split)
        alpha = torch.where(free, duals.alpha.T.clamp(0.0, 1.0), self.upper).contiguous()
        return Duals(alpha, beta, None if duals.mix is None else rows.spread(self.region, duals.mix))

    def end(self, rows: KernelRows, nodes: Splits, duals: Duals) -> Duals:
        """The duals as the search has them: nodes are rows, and every neuron has a β."""
        beta = None
        if nodes.signs is not None:
            every = duals.alpha.new_zeros(len(duals.alpha) + 1, len(nodes))
            if self.split is not None and duals.beta is not None:
                every.scatter_(0, self.split, duals.beta)
            beta = every[:-1].T.contiguous()
        mix = None if duals.mix is None else rows.gathered(self.region, duals.mix)
        return Duals(duals.alpha.T.contiguous(), beta, mix)


def _listed(signs: Tensor) -> tuple[Tensor, Tensor]:
    """Split neurons and their signs as `_Problem` has them. # (nodes, neurons) int8 -> (most splits, nodes) each"""
    node, neuron = torch.nonzero(signs, as_tuple=True)
    count = torch.bincount(node, minlength=len(signs))
    place = rank_in_group(node, count)
    split = node.new_full((int(count.max()), len(signs)), signs.shape[1])
    split[place, node] = neuron
    sign = torch.zeros_like(split, dtype=torch.float32)
    sign[place, node] = signs[node, neuron].float()
    return split, sign


def _put(mine: Duals, at: Tensor, others: Duals, which: Tensor) -> None:
    """Replace the duals of nodes `at` by some of others', in place. # (nodes,) int64, (others,) bool"""
    pairs = ((mine.alpha, others.alpha), (mine.beta, others.beta), (mine.mix, others.mix))
    for old, new in pairs:
        if old is None or new is None:
            continue
        if len(at) == old.shape[1]:
            old.copy_(new)
        else:
            old[:, at] = new[:, which]


class _Run:
    """Splits that are still going, their duals and moments, and buffers that every pass writes anew."""

    def __init__(self, kernel: Kernel, rows: KernelRows, problem: _Problem, duals: Duals) -> None:
        self.kernel, self.rows, self.problem, self.duals = kernel, rows, problem, duals
        self.first, self.second = duals.map(torch.zeros_like), duals.map(torch.zeros_like)
        count, neurons = len(problem.region), kernel.neurons
        self.lam, self.points = (kernel.bias.new_empty(kernel.inputs + neurons, count) for _ in range(2))
        # the slopes that the signs of λ̄ chose, and 1 where λ̄ > 0, then b̄ there
        self.chosen, self.offset = (kernel.bias.new_empty(neurons, count) for _ in range(2))
        self.raised = None if problem.planes is None else torch.empty_like(self.offset)  # λ̄ where a plane takes it up
        # one row more: the neuron that does not exist, which `_Problem.split` may point to
        self.mu, self.xhat, self.push = (kernel.bias.new_zeros(neurons + 1, count) for _ in range(3))
        self.corner: Tensor | None = None  # (inputs, nodes) where −λ̄₀·z is least, over a ball
        self.member: Tensor | None = None if duals.mix is None else rows.members(problem.region)
        if duals.mix is None:
            where = rows.first(problem.region)
            self.start = rows.start if len(rows.constant) == 1 else rows.start[:, where]  # (columns, nodes | 1)
            self.constant = rows.constant[where]

    def only(self, index: Tensor) -> "_Run":
        """Some of the nodes, with what a step needs of the last evaluation. # (nodes,) bool"""
        some = _Run(self.kernel, self.rows, self.problem[index], self.duals.map(lambda t: t[:, index]))
        some.first, some.second = (d.map(lambda t: t[:, index]) for d in (self.first, self.second))
        for mine, new in ((self.lam, some.lam), (self.chosen, some.chosen), (self.offset, some.offset)):
            new.copy_(mine[:, index])
        if self.raised is not None and some.raised is not None:
            some.raised.copy_(self.raised[:, index])
        some.corner = None if self.corner is None else self.corner[:, index]
        return some

    def minimiser(self) -> Tensor:
        """The z that minimises −λ̄₀·z, after an evaluation. # (inputs, nodes)"""
        return self.lam[: self.kernel.inputs].sign() if self.corner is None else self.corner

    def evaluate(self) -> Tensor:
        """d at the present duals: one backward pass. # (nodes,)"""
        kernel, problem, duals, lam, mu = self.kernel, self.problem, self.duals, self.lam, self.mu
        if duals.mix is None:
            lam.copy_(self.start)
            bound = self.constant
        else:
            torch.mm(self.rows.start, duals.mix, out=lam)
            bound = self.rows.constant @ duals.mix
        if problem.split is not None and problem.sign is not None and duals.beta is not None:
            self.push.scatter_(0, problem.split, problem.sign * duals.beta)
        for block in reversed(kernel.blocks):
            at = block.neurons
            here = lam[kernel.inputs + at.start : kernel.inputs + at.stop]
            positive = torch.gt(here, 0.0, out=self.offset[at])
            torch.lerp(duals.alpha[at], problem.upper[at].expand_as(here), positive, out=self.chosen[at])
            torch.mul(self.chosen[at], here, out=mu[at])
            if problem.split is not None:
                mu[at].add_(self.push[at])
            lam[: block.before].addmm_(block.transposed, mu[at])
            if self.raised is not None and problem.planes is not None and block.plane_transposed is not None:
                raised = torch.mul(positive, here, out=self.raised[at]).mul_(problem.planes[at])
                lam[: block.before].addmm_(block.plane_transposed, raised)
        self.offset.mul_(problem.intercept)  # b̄ where λ̄ > 0
        at_input, at_neurons = lam[: kernel.inputs], lam[kernel.inputs :]
        if kernel.balls is None:
            reach = at_input.abs().sum(0)
        else:
            self.corner = kernel.balls.parted(at_input.T).x.T
            reach = (at_input * self.corner).sum(0)
        bound = bound - (self.offset * at_neurons).sum(0) - reach - (kernel.bias @ mu[:-1])[0]
        return torch.where(torch.isfinite(bound), bound, -torch.inf)

    def step(self, config: Ascent, step: int) -> None:
        """One projected Adam step upwards from the last evaluation: the minimiser carried forward, then the moves."""
        self._forward()
        problem, duals, first, second = self.problem, self.duals, self.first, self.second
        # minus ∂d/∂α = [λ̄]₋ x̂, in μ̄'s place, which is not needed any more; 0 on split neurons
        descent = torch.clamp_max(self.lam[self.kernel.inputs :], 0.0, out=self.mu[:-1]).mul_(self.xhat[:-1])
        if problem.split is not None:
            self.mu.scatter_(0, problem.split, 0.0)
        _adam(duals.alpha, descent, first.alpha, second.alpha, config, step).clamp_(0.0, 1.0)
        if duals.beta is not None and first.beta is not None and second.beta is not None:
            assert problem.split is not None and problem.sign is not None
            descent = problem.sign * self.xhat.gather(0, problem.split)
            _adam(duals.beta, descent, first.beta, second.beta, config, step).clamp_(min=0.0)
        if duals.mix is not None and first.mix is not None and second.mix is not None:
            assert self.member is not None
            _mix_step(duals.mix, self.rows.values(self.points), self.member, first.mix, second.mix, config, step)

    def _forward(self) -> None:
        """x̂ and the columns at the minimiser, through the slopes that the backward pass chose."""
        kernel, points, xhat = self.kernel, self.points, self.xhat
        if self.corner is None:
            torch.sign(self.lam[: kernel.inputs], out=points[: kernel.inputs])
        else:
            points[: kernel.inputs] = self.corner
        for block in kernel.blocks:
            at = block.neurons
            torch.mm(block.weight, points[: block.before], out=xhat[at])
            xhat[at].add_(block.bias)
            after = points[kernel.inputs + at.start : kernel.inputs + at.stop]
            torch.addcmul(self.offset[at], self.chosen[at], xhat[at], out=after)
            if self.raised is not None and block.plane is not None:
                after.addcmul_(torch.mm(block.plane, points[: block.before]), (self.raised[at] > 0).float())


def _mix_step(
    mix: Tensor, value: Tensor, member: Tensor, first: Tensor, second: Tensor, config: Ascent, step: int
) -> None:
    """π moves, in place, along the rows' values, and stays on the simplex of its region. # (rows, nodes) each"""
    own = member.float()
    value = value * own
    centred = (value - value.sum(0) / own.sum(0)) * own
    raw = _adam(mix.clone(), centred.neg_(), first, second, config, step).clamp_(min=0.0) * own
    total = raw.sum(0)
    mix.copy_(torch.where(total > 1e-6, raw / total.clamp_min(1e-6), mix))


def _adam(value: Tensor, descent: Tensor, first: Tensor, second: Tensor, config: Ascent, step: int) -> Tensor:
    """`value` moved in place against `descent`."""
    b1, b2 = config.betas
    rate = config.lr * config.decay**step / (1.0 - b1 ** (step + 1))
    first.lerp_(descent, 1.0 - b1)
    second.mul_(b2).addcmul_(descent, descent, value=1.0 - b2)
    scale = (1.0 - b2 ** (step + 1)) ** 0.5
    return value.addcdiv_(first, second.sqrt().add_(1e-8 * scale), value=-rate * scale)

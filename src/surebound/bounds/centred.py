"""Rigorous bounds on many neurons from float32 backward passes, written in deviations from a reference point.

Convolutions are about ten times as fast in float32 as in float64. Its roundoff u = 2⁻²⁴ times the magnitudes of all
values would be too coarse to prove much in a deep network, but over a small box values hardly move. So each node v gets
a reference m_v in float64 (the box's centre, carried forward), and passes are made over Δv = v − m_v:

    y = A p + b          becomes   Δy = A Δp + κ,             |κ| ≤ K   (the float64 rounding of m_y = fl(A m_p + b))
    α x̂ ≤ x ≤ ā x̂ + b̄    becomes   α Δx̂ − g ≤ Δx ≤ ā Δx̂ + h,  g = m_x − α m_x̂,  h = ā m_x̂ + b̄ − m_x.

There are no biases left, and everything that rounding can do is proportional to R_v ≥ |Δv| instead of |v|.

**Error.** Let c be the coefficients, as computed, on Δy. Their pulled-back ĉ = fl(Aᵀc) is a sum of products, weights
rounded to float32 first and contributions of several readers added up, in any order: |ĉ − Aᵀc| ≤ γ_{n+1} |A|ᵀ|c|
with n from `Counts.adjoint`. Hence for every x of the box |ĉ·Δp − c·Δy| ≤ |c|·ρ with ρ = γ_{n+1} |A| R_p + K, as in
`surebound.bounds.enclosure`, and at a ReLU the same with the rounding of slope · c: ρ = γ_n max(α, ā) R_x̂ with n from
`Counts.relu`. The bound that a pass proves is

    c·v ≥ c·m_v − Σ_ops |c|·ρ − Σ_relus ([c]₊·(g + ρ) + [−c]₊·(h + ρ)) − |c₀|·R₀.

Over a ball, the reference is its centre, and in place of −|c₀|·R₀ comes the minimum of c₀·Δx over the ball, in float64
with an error of its own (`surebound.bounds.minimum`).

All vectors that coefficients are multiplied with are prepared in float64 and enlarged by what their own rounding to
float32 and that of the product may take off (γ_{2N+16} for a product of N terms: γ_N of the enlarged terms, and as much
again to spare, which also covers adding up the products in float64).

**Underflow.** A product or sum below 2⁻¹²⁶ may be flushed to zero. That changes an element of ĉ by at most 2n·2⁻¹²⁶,
which is Σ_ops 2(n + 2)·2⁻¹²⁶ ΣR_p for a whole pass, whatever c is. A weight that underflows changes ĉ by
2⁻¹²⁶ |c|, which goes into ρ as 2⁻¹²⁶ ΣR_p.

**Overflow.** Each coefficient that a pass computes is multiplied with a positive number and added to the error of its
row, so one that is not finite leaves a row's error not finite. Then nothing is known about the row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.audit import auditor, fixed_lines
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.minimum import BallMinimum
from surebound.bounds.relaxation import relax
from surebound.bounds.rounding import FLUSHED, SLACK, TINY, U, gamma, gamma32
from surebound.bounds.timed import Check
from surebound.domain.balls import Balls
from surebound.network.graph import Input, Neurons, Relu
from surebound.network.linear import size
from surebound.network.op import Affine, absolute
from surebound.network.patch import Patch, pull_patches

WEIGHT = 1  # rounding of a weight to float32


@dataclass(frozen=True, eq=False)
class Lines:
    """The lines around a layer's ReLUs, and their costs per unit of a coefficient. # (neurons,) float32 each"""

    below: Tensor  # α
    above: Tensor  # ā
    cost_below: Tensor  # g + ρ
    cost_above: Tensor  # h + ρ


@dataclass(frozen=True, eq=False)
class _Layer:
    """The two relaxations of one layer."""

    parallel: Lines  # FastLin: α = ā
    crossing: Lines  # CROWN: α ∈ {0, 1}


class Centred:
    """Float32 passes over one box. Grows with the enclosure whose intervals it uses: see `extend`.

    `check` is called before each operation of a pass; it raises when the time is up.
    """

    def __init__(self, enclosure: Enclosure, check: Check = lambda: None) -> None:
        assert enclosure.network.piecewise_linear
        self._enclosure, self._check = enclosure, check
        self._network = enclosure.network.to(torch.float32)  # whose biases deviations do not see
        self._minimum: BallMinimum | None = None
        self._centres: list[Tensor] = [(enclosure.lower[0] + enclosure.upper[0]) / 2]
        if enclosure.balls is not None:
            self._centres = [enclosure.balls.centre.reshape(enclosure.lower[0].shape)]
            self._minimum = BallMinimum(_moved_to_origin(enclosure.balls))
        self._costs: dict[int, Tensor] = {}
        self._layers: list[_Layer] = []
        self._underflow = 2 * FLUSHED * (enclosure.network.inputs + 1)

    def extend(self, node: int) -> None:
        """Prepare for passes from this node, given the enclosure of all nodes before it as it is now."""
        for i in range(len(self._centres), node + 1):
            if isinstance(self._enclosure.network.nodes[i].op, Relu):
                self._add_relu(i)
            else:
                self._add_affine(i)

    def parallel(self, node: int, index: Tensor) -> tuple[Tensor, Tensor]:
        """FastLin's bounds on elements of a node. Its two lines are parallel, so that one pass, linear in the
        coefficients, yields both sides. # (count,) -> (count,) float64 each"""

        def activate(k: int, c: Patch) -> tuple[Patch, Tensor]:
            lines = self._layers[k].parallel
            return c.times(lines.above), c.abs().dot(lines.cost_above)

        centre, (cost, at_input) = self._centres[node].flatten()[index], self._cost(node, index, 1.0, activate)
        below = cost + self._input_cost(at_input)
        above = below if self._minimum is None else cost + self._input_cost(at_input, -1.0)
        low, high = _less(centre, below), -_less(-centre, above)
        return self._audited(node, index, low, high, lambda k: self._layers[k].parallel)

    def crossing(self, node: int, index: Tensor) -> tuple[Tensor, Tensor]:
        """CROWN's bounds on elements of a node, in a pass for either side. # (count,) -> (count,) float64 each"""

        def activate(k: int, c: Patch) -> tuple[Patch, Tensor]:
            lines = self._layers[k].crossing
            positive, negative = replace(c, values=c.values.clamp_min(0.0)), replace(c, values=c.values.clamp_max(0.0))
            pulled = positive.times(lines.below).values + negative.times(lines.above).values
            return replace(c, values=pulled), positive.dot(lines.cost_below).double() - negative.dot(lines.cost_above)

        centre, ends = self._centres[node].flatten()[index], []
        for sign in (1.0, -1.0):
            cost, at_input = self._cost(node, index, sign, activate)
            ends.append(_less(sign * centre, cost + self._input_cost(at_input)))
        return self._audited(node, index, ends[0], -ends[1], lambda k: self._layers[k].crossing)

    def _audited(
        self, node: int, index: Tensor, low: Tensor, high: Tensor, lines: Callable[[int], Lines]
    ) -> tuple[Tensor, Tensor]:
        if (audit := auditor()) is not None:
            audit.neuron_bounds(
                self._enclosure,
                node,
                index,
                lambda k: fixed_lines(lines(k).below, lines(k).above, *self._enclosure.layer(k)),
                (low, high),
            )
        return low, high

    def _cost(
        self, node: int, index: Tensor, sign: float, activate: Callable[[int, Patch], tuple[Patch, Tensor]]
    ) -> tuple[Tensor, Patch]:
        """All that a pass from ± single elements takes off their values at the reference on its way, and what it
        arrives at on the input. # (count,) float64"""
        cost = self._centres[0].new_full((len(index),), self._underflow)

        def through_relu(k: int, c: Patch) -> Patch:
            pulled, price = activate(k, c)
            cost.add_(price)
            return pulled

        def visit(i: int, _: Affine, c: Patch) -> None:
            self._check()
            cost.add_(c.abs().dot(self._costs[i]))

        unit = torch.tensor(sign, dtype=torch.float32, device=index.device)
        start = {node: Patch.units(index, self._network.nodes[node].shape, unit)}
        return cost, pull_patches(self._network, start, through_relu, visit)

    def _input_cost(self, at_input: Patch, sign: float = 1.0) -> Tensor:
        """At least −min of ± c₀·Δx over the domain. # (count,)"""
        if self._minimum is None:
            return at_input.abs().dot(_enlarged(self._reach(0)))
        lam = -sign * at_input.full().flatten(1).double()
        least = self._minimum.minimise(lam)
        reach = self._reach(0).flatten()
        rounding = gamma(lam.shape[1]) * (lam.abs() @ reach)
        return -least.value + (least.error + rounding) * SLACK + TINY

    def _reach(self, node: int) -> Tensor:
        """R ≥ |Δv| over the box."""
        centre, enclosure = self._centres[node], self._enclosure
        return torch.maximum(enclosure.upper[node] - centre, centre - enclosure.lower[node]) * (1.0 + 4 * U)

    def _add_affine(self, i: int) -> None:
        node, roundings = self._enclosure.network.nodes[i], self._enclosure.counts.adjoint(i)
        op = node.op
        assert not isinstance(op, Neurons | Input)  # a network that has only ReLUs
        bold = absolute(op)
        centres, reaches = [self._centres[j] for j in node.inputs], [self._reach(j) for j in node.inputs]
        centre = op.apply(*centres)
        moved, held = bold.apply(*reaches), bold.apply(*(c.abs() for c in centres))
        if op.bias is not None:
            centre, held = centre + op.bias, held + op.bias.abs()
        total = sum(float(r.sum()) for r in reaches)
        cost = gamma32(roundings + WEIGHT) * moved + gamma(op.roundings + 2) * held
        self._centres.append(centre)
        self._costs[i] = _enlarged(cost * SLACK + FLUSHED * total + TINY)
        self._count_underflow(roundings, total, size(op.shape))

    def _add_relu(self, i: int) -> None:
        before, roundings = self._enclosure.network.nodes[i].inputs[0], self._enclosure.counts.relu(len(self._layers))
        lower, upper, centre = self._enclosure.lower[before], self._enclosure.upper[before], self._centres[before]
        ambiguous, active = (lower < 0) & (upper > 0), (lower >= 0).double()
        # ā is what float32 makes of it: b̄ is then computed for that very slope, which holds for every slope in [0, 1]
        line = relax(lower, upper, rounded=lambda slope: slope.float().double())
        above, intercept = line.upper_slope, line.intercept
        after = torch.where(ambiguous, above * centre + intercept / 2, active * centre)
        self._centres.append(after)
        reach = self._reach(before)
        slack = torch.where(ambiguous, 8 * U * (after.abs() + centre.abs() + intercept) + TINY, 0.0)
        rounding = torch.where(ambiguous | (active > 0), gamma32(roundings) * reach, 0.0) + slack

        def lines(below: Tensor) -> Lines:
            g = torch.where(ambiguous, after - below * centre, 0.0)
            h = torch.where(ambiguous, above * centre + intercept - after, 0.0)
            if below is above:
                g = h = torch.maximum(g, h)
            costs = (_enlarged(rounding + value, value) for value in (g, h))
            return Lines(below.flatten().float(), above.flatten().float(), *costs)

        self._layers.append(_Layer(lines(above), lines(line.lower_slope)))
        self._count_underflow(roundings, float(reach.sum()), reach.numel())

    def _count_underflow(self, roundings: int, reach: float, products: int) -> None:
        """In the coefficients that an operation pulls back, and in the product with its costs."""
        self._underflow += 2 * FLUSHED * ((roundings + 2) * reach + products + 1)


def _enlarged(cost: Tensor, signed: Tensor | None = None) -> Tensor:
    """A float32 vector for `cost`: products with it, computed in float32, are no less than exact ones with `cost`.

    # (1, *shape) -> (size,) float32
    """
    magnitude = cost.abs() if signed is None else cost + 2 * signed.abs()
    return ((cost + gamma32(2 * cost.numel() + 16) * magnitude).flatten() + FLUSHED * 4).float()


def _less(centre: Tensor, cost: Tensor) -> Tensor:
    """A lower bound on centre − cost, or −∞ if either is not a finite number."""
    bound = centre - cost
    bound = bound - (4 * U * (centre.abs() + cost.abs()) + TINY)
    return torch.where(torch.isfinite(bound), bound, -torch.inf)


def _moved_to_origin(balls: Balls) -> Balls:
    """The same ball with its centre at the origin, the ends of its box rounded outward."""
    infinity = balls.centre.new_tensor(torch.inf)
    lower = torch.nextafter(balls.lower - balls.centre, -infinity)
    upper = torch.nextafter(balls.upper - balls.centre, infinity)
    return Balls(torch.zeros_like(balls.centre), balls.radius, lower, upper, balls.norm).map(lambda t: t[0])

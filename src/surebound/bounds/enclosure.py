"""Rigorous intervals for every node of a network, and from them a bound on what rounding can do to a dual bound.

Everything here is float64 with unit roundoff u = 2⁻⁵³. For an affine op y = A x + b evaluated in floating point, any
order of summation, each computed number is off by at most γ_n (|A||x| + |b|), γ_n = n u / (1 − n u) (Higham 2002,
section 3.1).

Two uses:
- `Enclosure.lower/upper`: interval propagation widened by that error (sound IBP).
- `Enclosure.errors`: for a coefficient vector c on node v = A p + b, the pulled-back ĉ = fl(Aᵀ c) satisfies |ĉ − Aᵀ
  c|·|p| ≤ |c|·γ_n |A| X_p with X_p ≥ |p| over the box. So E_v = γ_n |A| X_p + γ_m |b| is computed once per box, and Σ_v
  |c_v|·E_v bounds the error of a whole backward pass: rigour at the price of one dot product per op. A tiny number is
  added to each E_v, which may underflow and c_v be large.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING

from surebound.bounds.audit import auditor
from surebound.bounds.rounding import HUGE, SLACK, TINY, Counts, U, gamma
from surebound.network.arrays import concat, down, flat, library, positive, retyped, up, zeros
from surebound.network.graph import Input, Network, Pointwise, Relu
from surebound.network.linear import size
from surebound.network.op import Affine, absolute

if TYPE_CHECKING:
    from torch import Tensor

    from surebound.bounds.around import Around
    from surebound.domain.balls import Balls


class Enclosure:
    """Sound lower and upper bounds on nodes over a batch of boxes, extended node by node as layers are tightened."""

    def __init__(self, network: Network, lower: Tensor, upper: Tensor, *, around: Around | None = None) -> None:
        """`network` in float64; lower, upper: (boxes, *input_shape) float64. With `around`, there is a ball in each."""
        self.network, self.around = network, around
        self.lower: list[Tensor] = []
        self.upper: list[Tensor] = []
        self._append(lower, upper)
        self.errors: dict[int, Tensor] = {}  # node -> E_v, (boxes, *shape)
        self.counts = Counts(network)

    @property
    def balls(self) -> Balls | None:
        """The domains, if they are less than the boxes."""
        return None if self.around is None else self.around.balls

    @property
    def boxes(self) -> int:
        return len(self.lower[0])

    def magnitude(self, node: int) -> Tensor:
        """X ≥ |v| over the box. # (boxes, *shape)"""
        return _maximum(abs(self.lower[node]), abs(self.upper[node]))

    def extend(self, node: int) -> None:
        """Propagate intervals up to and including a node."""
        for i in range(len(self.lower), node + 1):
            self._propagate(i)
            if self.around is not None and (found := self.around.bounds(i)) is not None:
                self.tighten(i, *found)

    def tighten(self, node: int, lower: Tensor, upper: Tensor) -> None:
        """Intersect a node's interval with sound bounds. # (boxes, *shape)"""
        low, high = _maximum(self.lower[node], lower), library(upper).minimum(self.upper[node], upper)
        self.lower[node], self.upper[node] = tame(low, high)

    def layer(self, k: int) -> tuple[Tensor, Tensor]:
        """l̂_k, û_k of a ReLU layer, flattened. # (boxes, neurons) each"""
        node = self.network.before(k)
        self.extend(node)
        return flat(self.lower[node]), flat(self.upper[node])

    def neurons(self) -> tuple[Tensor, Tensor]:
        """l̂, û of all neurons, layer after layer. # (boxes, neurons) each"""
        empty = zeros(self.lower[0], self.boxes, 0)
        layers = [self.layer(k) for k in range(len(self.network.layers))]
        low, high = (concat([empty, *(layer[end] for layer in layers)], 1) for end in (0, 1))
        return low, high

    def ambiguous(self) -> list[int]:
        """How many neurons of each layer may have either sign or, if they are no ReLUs, vary."""
        found = []
        for k, function in enumerate(self.network.functions):
            low, high = self.layer(k)
            found.append(int(((low < 0) & (high > 0) if function is None else low < high).sum()))
        return found

    def relu_error(self, k: int) -> Tensor:
        """Per unit of μ̄_k: the roundings of μ̄ = slope · λ̄ + s β and of adding it up at x̂_k. # (boxes, neurons)"""
        return gamma(self.counts.relu(k)) * flat(self.magnitude(self.network.before(k))) + TINY

    def own_error(self, node: int) -> Tensor:
        """Per unit of a row's own coefficient on a node: of adding to it what the node's readers contribute.

        # (boxes, *shape)
        """
        return gamma(self.counts.sums(node)) * self.magnitude(node) + TINY

    def constant_error(self, terms: int) -> float:
        """The relative error of a constant: a sum of `terms` products, added to all other constants of a pass."""
        return gamma(terms + self.counts.constants)

    def _propagate(self, i: int) -> None:
        node = self.network.nodes[i]
        op = node.op
        if isinstance(op, Relu):
            self.lower.append(positive(self.lower[node.inputs[0]]))
            self.upper.append(positive(self.upper[node.inputs[0]]))
            return
        if isinstance(op, Pointwise):
            lower, upper = op.function.interval(self.lower[node.inputs[0]], self.upper[node.inputs[0]])
            self._append(lower, upper)
            return
        assert not isinstance(op, Input)
        known = {j: self._centre(j) for j in set(node.inputs)}
        centres, radii, magnitudes = zip(*(known[j] for j in node.inputs), strict=True)
        bold = absolute(op)
        reach = bold.apply(*magnitudes)
        error = gamma(op.roundings) * reach
        centre, radius = op.apply(*centres), bold.apply(*radii)
        self.errors[i] = gamma(self.counts.adjoint(i)) * reach
        if op.bias is not None:
            bias = bold.bias
            assert bias is not None
            centre = centre + op.bias
            error = error + U * SLACK * (reach + bias)
            self.errors[i] = self.errors[i] + self.constant_error(size(op.shape)) * bias
        if op.roundings or op.bias is not None:
            underflow = TINY if any(_underflows(m) for m in (*magnitudes, *_weights(op))) else 0.0
            radius = radius * (1.0 + gamma(op.roundings + 4)) + error + U * SLACK * abs(centre) + underflow
        self.errors[i] = self.errors[i] * SLACK + TINY
        wide = ~(radius <= 0)
        where = library(centre).where
        lower, upper = where(wide, down(centre - radius), centre), where(wide, up(centre + radius), centre)
        self._append(lower, upper)
        if (audit := auditor()) is not None:
            audit.interval(self, i)

    def _append(self, lower: Tensor, upper: Tensor) -> None:
        """A node's interval."""
        lower, upper = tame(lower, upper)
        self.lower.append(lower)
        self.upper.append(upper)

    def _centre(self, j: int) -> tuple[Tensor, Tensor, Tensor]:
        lower, upper = self.lower[j], self.upper[j]
        centre = (lower + upper) / 2
        radius = _maximum(upper - centre, centre - lower) * (1.0 + 4 * U)
        return centre, radius, self.magnitude(j)


def tame(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor]:
    """An interval, or nothing known where numbers grow out of hand (or are none), wherever they come from: what a
    pass may lose by underflow is only paid for up to HUGE, and infinite bounds make every dual bound that needs them
    −∞."""
    tame, where = (lower > -HUGE) & (upper < HUGE), library(lower).where
    return where(tame, lower, -inf), where(tame, upper, inf)


def _underflows(magnitude: Tensor) -> bool:
    """Whether a product with these numbers might be rounded to zero: exact zeros stay exact, tiny ones may not."""
    return bool(((magnitude > 0) & (magnitude < 1e-150)).any())


def _weights(op: Affine) -> list[Tensor]:
    weight = getattr(op, "weight", None)
    return [] if weight is None else [abs(weight)]


def _maximum(a: Tensor, b: Tensor) -> Tensor:
    return library(a).maximum(a, b)


def enclose(
    network: Network,
    lower: Tensor,
    upper: Tensor,
    layers: Iterable[tuple[Tensor, Tensor]] = (),
    *,
    around: Around | None = None,
) -> Enclosure:
    """Intervals for all nodes, with known bounds (boxes, neurons) of the first layers taken into account."""
    ends = [retyped(end, library(end).float64) for end in (lower, upper)]
    enclosure = Enclosure(network, ends[0], ends[1], around=around)
    for k, (low, high) in enumerate(layers):
        node = network.before(k)
        enclosure.extend(node)
        shape = enclosure.lower[node].shape
        enclosure.tighten(node, low.reshape(shape), high.reshape(shape))
    enclosure.extend(len(network.nodes) - 1)
    return enclosure

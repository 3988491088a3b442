"""Zonotopes pushed forward through the network: linear functions of few symbols, many boxes at once.

A zonotope describes a node as v = c + Σ_i g_i ε_i + [−e, e] with symbols ε ∈ [−1, 1]^G that all nodes of a box share,
one for each input that varies and one for each ambiguous neuron. Affine ops map centre and generators; a ReLU on
[l̂, û] with l̂ < 0 < û becomes (DeepZ, Singh 2018)

    x = λ x̂ + μ + μ ε_new,   λ = û / (û − l̂),   μ = −û l̂ / (2 (û − l̂)),

and any other activation x = λ x̂ + m + μ ε_new, with f(x̂) − λ x̂ in m ± μ and λ the slope of the chord.

An operation costs one forward pass for each symbol, where a linear bound of every neuron by itself costs a backward
pass each: with few inputs this is the cheaper way to bound all layers of a network.

**Error.** Centres are float64. Generators are float64 or float32, with u the roundoff of theirs. The true v lies in
c + Σ_i g_i ε_i + [−e, e]; what rounding does goes into e, which operations carry as |A| e. With n `roundings`
of an operation, ρ = Σ_i |g_i|, and one rounding more for weights that the generators' type cannot hold,

    fl(A c + b)  is off by at most  γ_n |A| |c| + u₆₄ |A c + b|,
    fl(A g_i)    for all i together by at most  γ_{n+1} |A| ρ,     since |ε_i| ≤ 1,

(Higham 2002, section 3.1); hence e' = |A| (e + γ_n |c| + γ_{n+1} ρ) + …, one product with |A| in float64. The λ of an
activation is a number of the generators' type, μ is computed for that very λ, and fl(λ g_i), fl(μ) are off by
|λ| γ₁ ρ + γ₁ μ.

**Underflow.** In float32, each product and each sum may lose 2⁻¹²⁶, as may each weight.

**Overflow.** What is not a finite number bounds nothing.

Deviations from DeepZ: l̂, û are intersected with the intervals of `Enclosure`, which costs nothing and only tightens λ
and μ. There may be a limit on symbols: neurons with a smaller μ then have none, and their μ goes into e.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import inf
from typing import TYPE_CHECKING

from surebound.bounds.audit import ExactLines, auditor, exact, fixed_lines
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.form import consecutive
from surebound.bounds.relaxation import Relaxation, relax
from surebound.bounds.rounding import FLUSHED, SLACK, TINY, U, gamma, gamma32
from surebound.bounds.timed import Check
from surebound.network.activation import Activation, Ends
from surebound.network.arrays import (
    Precision,
    concat,
    counting,
    double,
    down,
    flat,
    joined,
    library,
    precision,
    retyped,
    up,
    zeros,
)
from surebound.network.graph import Input, Network, Neurons, Pointwise
from surebound.network.linear import size
from surebound.network.op import Affine, absolute, cast

if TYPE_CHECKING:
    from torch import Tensor

_NEGLIGIBLE = {"float64": 1e-150, "float32": 1e-30}
"""A smaller μ (0 − 0 in max pooling, ± TINY) goes to the error instead of a generator of its own."""
_GAMMA = {"float64": gamma, "float32": gamma32}
WEIGHT = 1  # rounding of a weight to the generators' type
_LOST = {"float64": TINY, "float32": FLUSHED}
"""What a product, a sum or a weight may lose by underflow."""


@dataclass(frozen=True, eq=False)
class Zonotope:
    """c + Σ_i g_i ε_i + [−e, e] for a batch of boxes. The ε are shared by all zonotopes of one box."""

    centre: Tensor  # (boxes, *shape) float64
    generators: Tensor  # (generators, boxes, *shape) in a type of their own
    error: Tensor  # (boxes, *shape) float64
    spread: Tensor  # (boxes, *shape) float64, ρ ≥ Σ_i |g_i|

    def padded(self, count: int) -> Tensor:
        """The generators, followed by zeros for those that came up elsewhere in the network."""
        if count == len(self.generators):
            return self.generators
        missing = zeros(self.generators, count - len(self.generators), *self.centre.shape)
        return concat([self.generators, missing], 0)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """c ∓ (ρ + e), rounded outward; infinite where numbers are not finite. # (boxes, *shape) each"""
        radius = (self.spread + self.error) * (1.0 + 4 * U)
        lower, upper, where = down(self.centre - radius), up(self.centre + radius), library(radius).where
        return where(lower > -inf, lower, -inf), where(upper < inf, upper, inf)


def spread_of(generators: Tensor) -> Tensor:
    """ρ ≥ Σ_i |g_i|. # (generators, boxes, *shape) -> (boxes, *shape) float64"""
    count, dtype = len(generators), precision(generators)
    return double(abs(generators).sum(0)) * (1.0 + _GAMMA[dtype](count + 4)) + count * _LOST[dtype]


def box_zonotope(lower: Tensor, upper: Tensor, dtype: Precision) -> tuple[Zonotope, Tensor]:
    """Boxes, with one generator for each element that varies in any of them, and which elements these are.

    # (boxes, *shape) each -> generators in `dtype`, (generators,) int64
    """
    centre = (lower + upper) / 2
    lib = library(centre)
    radius = lib.maximum(upper - centre, centre - lower) * (1.0 + 4 * U)
    varying = lib.argwhere(flat(lower < upper).any(0))[:, 0]
    generators = zeros(retyped(centre, dtype), len(varying), *flat(centre).shape)
    generators[counting(centre, len(varying)), :, varying] = retyped(flat(radius)[:, varying].T, dtype)
    generators = generators.reshape(len(varying), *centre.shape)
    error = lib.zeros_like(centre) if dtype == "float64" else _GAMMA[dtype](1) * radius + _LOST[dtype]
    return Zonotope(centre, generators, error, spread_of(generators)), varying


def affine(op: Affine, thin: Affine, operands: Sequence[Zonotope]) -> Zonotope:
    """A v + b for one zonotope v per input of the op; `thin` is the op in the generators' type."""
    count, bold, n = max(len(z.generators) for z in operands), absolute(op), op.roundings
    dtype = precision(operands[0].generators)
    centre = op.apply(*(z.centre for z in operands))
    moved = thin.apply(*(joined(z.padded(count)) for z in operands))
    generators = moved.reshape(count, *centre.shape)
    if n:
        own, theirs = gamma(n) * SLACK, _GAMMA[dtype](n + WEIGHT) * SLACK
        error = bold.apply(*(z.error + own * abs(z.centre) + theirs * z.spread for z in operands))
        total = concat([flat(z.spread) for z in operands], 1).sum(1)
        lost = _LOST[dtype] * (2 * (n + 2) * count + 2 * total)  # of products and sums; by weights
        error = error * (1.0 + gamma(n + 4)) + lost.reshape(-1, *(1 for _ in op.shape)) + TINY
    else:
        error = bold.apply(*(z.error for z in operands))
    if op.bias is not None:
        centre = centre + op.bias
        error = (error + U * SLACK * abs(centre)) * (1.0 + 4 * U) + TINY
    return Zonotope(centre, generators, error, spread_of(generators))


@dataclass(frozen=True, eq=False)
class _Band:
    """x = λ x̂ + m ± μ. # (boxes, *shape)"""

    slope: Tensor  # λ, in the generators' type
    middle: Tensor  # m
    half: Tensor  # μ
    inexact: Tensor  # bool; elsewhere λ is 0 or 1 and all else 0


def relu(z: Zonotope, lower: Tensor, upper: Tensor, count: int, most: int | None = None) -> Zonotope:
    """The module's transformer for x̂ in z and in [lower, upper]; new generators are numbered from `count` on, at most
    `most` in a box.

    Whatever λ was rounded to, max(x̂, 0) − λ x̂ is convex and so lies in [0, max(−λ l̂, (1 − λ) û)] = [0, 2 μ].
    # lower, upper: (boxes, *shape)
    """
    line = upper_line(lower, upper, precision(z.generators))
    slope, mu = retyped(line.upper_slope, z.generators.dtype), line.intercept / 2
    return _through(z, _Band(slope, mu, mu, line.ambiguous), count, most)


def upper_line(lower: Tensor, upper: Tensor, dtype: Precision) -> Relaxation:
    """The upper line of ReLUs, of a slope that there is in some type."""
    return relax(lower, upper, rounded=lambda slope: double(retyped(slope, dtype)))


def pointwise(
    z: Zonotope, function: Activation, lower: Tensor, upper: Tensor, count: int, most: int | None = None
) -> Zonotope:
    """The same for any other activation: f(x̂) − λ x̂ lies between its extremes, whatever λ is."""
    slope = retyped(function.chord(lower, upper), z.generators.dtype)
    least, greatest = function.extremes(double(slope), lower, upper)
    middle = least / 2 + greatest / 2
    half = library(middle).maximum(greatest - middle, middle - least) * (1.0 + 4 * U) + TINY
    return _through(z, _Band(slope, middle, half, zeros(half, *half.shape) == 0), count, most)


def _through(z: Zonotope, band: _Band, count: int, most: int | None) -> Zonotope:
    dtype, slope, lam, mu = precision(z.generators), band.slope, double(band.slope), band.half
    bold = abs(lam)
    fresh, slot, new = _slots(mu, mu > _NEGLIGIBLE[dtype], most)
    before, shape, lib = len(z.generators), flat(z.centre).shape, library(slope)
    generators = zeros(z.generators, count + new, *shape)
    lib.multiply(z.generators.reshape(before, *shape), flat(slope), out=generators[:before])
    box, element = lib.argwhere(flat(fresh)).T
    generators[count + slot[box, element], box, element] = retyped(flat(mu)[box, element], dtype)
    error, spread = bold * z.error, bold * z.spread + mu
    rounded = 4 * U * (error + SLACK * (bold * abs(z.centre) + abs(band.middle))) + lib.where(fresh, 0.0, mu)
    rounded = rounded + _GAMMA[dtype](1) * SLACK * spread + 2 * count * _LOST[dtype] + TINY
    return Zonotope(
        lam * z.centre + band.middle,
        generators.reshape(count + new, *z.centre.shape),
        lib.where(band.inexact, error + rounded, error),
        lib.where(band.inexact, spread * (1.0 + _GAMMA[dtype](4)) + count * _LOST[dtype], spread),
    )


def _slots(mu: Tensor, fresh: Tensor, most: int | None) -> tuple[Tensor, Tensor, int]:
    """Which neurons get a symbol (those with the largest μ), its number within the box, and how many symbols there are.

    # (boxes, *shape) twice -> (boxes, *shape) bool, (boxes, neurons)
    """
    wanted, lib = flat(fresh), library(fresh)
    count = int(wanted.sum(1).max())
    if most is not None and count > most:
        order = lib.argsort(lib.where(wanted, -flat(mu), 1.0), 1)[:, :most]
        chosen = lib.zeros_like(wanted)
        chosen[counting(wanted, len(wanted))[:, None], order] = True
        wanted, count = wanted & chosen, most
    return wanted.reshape(fresh.shape), wanted.cumsum(1) - 1, count


@dataclass(frozen=True, eq=False)
class Pushed:
    """What a pass forwards found on its way."""

    inputs: Tensor  # (varying,) int64, the inputs that vary
    moves: list[Tensor]  # (varying, boxes, neurons) for each layer: the generators of their symbols
    symbols: int  # that a box has, at most


@dataclass(frozen=True, eq=False)
class Forward:
    """Bounds all layers of a network, with generators of some type."""

    network: Network  # float64
    dtype: Precision = "float64"
    most: int | None = None  # symbols that a box may have
    check: Check = lambda: None  # called before each operation; raises when the time is up

    @cached_property
    def _thin(self) -> dict[int, Affine]:
        """The operations in the generators' type."""
        nodes = enumerate(self.network.nodes)
        return {i: cast(node.op, self.dtype) for i, node in nodes if not isinstance(node.op, Neurons | Input)}

    def tighten(self, enclosure: Enclosure, known: Ends | None = None, until: int | None = None) -> Pushed:
        """Bound every layer up to the node `until` (or the last layer), tightening the enclosure in place.

        `known` are sound bounds on all neurons, layer after layer, from a box around each. Memory is that of (inputs
        that vary + symbols) copies of the widest layer. # known: (boxes, neurons) each
        """
        network, places = self.network, consecutive(self.network.widths)
        layers = [network.before(k) for k in range(len(network.layers))]
        until = max(layers, default=0) if until is None else until
        start, varying = box_zonotope(enclosure.lower[0], enclosure.upper[0], self.dtype)
        values, count = {0: start}, len(varying)
        moved: dict[int, Tensor] = {}
        for i, node in enumerate(network.nodes[: until + 1]):
            self.check()
            enclosure.extend(i)
            if isinstance(node.op, Neurons):
                source, room = node.inputs[0], self._room(i, count)
                ends = enclosure.lower[source], enclosure.upper[source]
                if isinstance(node.op, Pointwise):
                    values[i] = pointwise(values[source], node.op.function, *ends, count, room)
                else:
                    values[i] = relu(values[source], *ends, count, room)
                count = len(values[i].generators)
            elif not isinstance(node.op, Input):
                values[i] = affine(node.op, self._thin[i], [values[j] for j in node.inputs])
            if known is not None:
                for k in (k for k, before in enumerate(layers) if before == i):
                    enclosure.tighten(i, *(t[:, places[k]].reshape(enclosure.lower[i].shape) for t in known))
            if i in layers or i == until:
                enclosure.tighten(i, *self._audited(enclosure, i, values[i]))
                moved[i] = values[i].generators[: len(varying)].reshape(len(varying), *flat(values[i].centre).shape)
            for j in {j for j in node.inputs if network.last_use[j] == i}:
                del values[j]
        return Pushed(varying, [moved[before] for before in layers], count)

    def _room(self, node: int, count: int) -> int | None:
        """How many of the symbols that are left may go to this layer."""
        if self.most is None:
            return None
        left = sum(layer >= node for layer in self.network.layers)
        return max(0, self.most - count) // left

    def _audited(self, enclosure: Enclosure, node: int, z: Zonotope) -> Ends:
        lower, upper = z.bounds()
        if (audit := auditor()) is not None:
            for box in {0, enclosure.boxes - 1}:
                audit.neuron_bounds(
                    enclosure,
                    node,
                    counting(lower, size(self.network.nodes[node].shape)),
                    partial(self._lines, enclosure, box),
                    (lower[box].flatten(), upper[box].flatten()),
                    box,
                )
        return lower, upper

    def _lines(self, enclosure: Enclosure, box: int, k: int) -> ExactLines:
        """The parallel lines of a layer: without rounding, a pass backwards over them is what a zonotope bounds."""
        lower, upper = (end[box] for end in enclosure.layer(k))
        function = self.network.functions[k]
        if function is not None:
            slope = double(retyped(function.chord(lower, upper), self.dtype))
            floor, ceiling = map(exact, function.extremes(slope, lower, upper))
            return ExactLines(exact(slope), exact(slope), ceiling, 0 * ceiling, floor)
        slope = upper_line(lower, upper, self.dtype).upper_slope
        return fixed_lines(slope, slope, lower[None], upper[None])

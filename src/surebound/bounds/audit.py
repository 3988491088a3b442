"""A debug mode that computes every claimed bound again in rational arithmetic and raises where a claim is too high.

    with auditing() as audit:
        surebound.verify(network, problem)
    print(audit.claims)

or `SUREBOUND_AUDIT=1` in the environment. For small networks: larger ones are not looked at (`Audit.limit`).

What is compared are bounds at the same duals: the float64 bound with its error taken off against the same dual bound
over the same layer bounds without any rounding. Relaxations do not hide an error term that is missing, as they do when
bounds are compared with samples. Layer bounds are claims themselves, each resting on those before it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surebound.domain.exact import least_over_ball
from surebound.errors import SureboundError
from surebound.network.arrays import counting, flat, library, retyped, spread, to_numpy
from surebound.network.graph import Input, Network, Neurons
from surebound.network.linear import Linear, Scale, Shift, Sum, size
from surebound.network.op import Affine
from surebound.network.shape import Concat, Pick, Reshape

if TYPE_CHECKING:
    from torch import Tensor

    from surebound.bounds.beta_crown import Duals, Slopes
    from surebound.bounds.enclosure import Enclosure
    from surebound.bounds.folded import FoldedForm
    from surebound.bounds.form import Block, Form, Rows

Exact = NDArray[np.object_]
"""Fractions."""
SAMPLED = 2  # elements of an interval that are looked at


class WrongBound(SureboundError):
    """A bound that rational arithmetic does not confirm."""


def exact(numbers: Tensor | NDArray[Any]) -> Exact:
    """The numbers as fractions, in the same shape."""
    array = numbers if isinstance(numbers, np.ndarray) else to_numpy(numbers.double())
    out = np.empty(array.shape, dtype=object)
    out.reshape(-1)[:] = [Fraction(v) for v in array.reshape(-1).tolist()]
    return out


@dataclass(frozen=True, eq=False)
class Meaning:
    """What rows stand for: coefficients on nodes of the network, and a constant."""

    on: dict[int, Exact]  # node -> (rows, elements)
    constant: Exact  # (rows,)

    def __getitem__(self, index: Tensor | slice) -> Meaning:
        at = index if isinstance(index, slice) else to_numpy(index)
        return Meaning({node: c[at] for node, c in self.on.items()}, self.constant[at])

    def plus(self, constant: Tensor) -> Meaning:
        return Meaning(self.on, self.constant + exact(constant))

    def plus_products(self, a: Tensor, b: Tensor) -> Meaning:
        """With Σ a·b added to each row's constant. # (rows, n) each"""
        return Meaning(self.on, self.constant + (exact(a) * exact(b)).sum(1))

    def both_signs(self) -> Meaning:
        both = {node: np.concatenate([c, -c]) for node, c in self.on.items()}
        return Meaning(both, np.concatenate([self.constant, -self.constant]))

    def mixed(self, first: Sequence[int], weights: Sequence[Tensor]) -> Meaning:
        """For each of the weights, that much of the rows from `first` on. # (mixes,), (rows,) each"""
        mixes = [(slice(a, a + len(w)), exact(w)) for a, w in zip(first, weights, strict=True)]
        return Meaning(
            {node: np.stack([w @ c[at] for at, w in mixes]) for node, c in self.on.items()},
            np.array([w @ self.constant[at] for at, w in mixes], dtype=object),
        )


@dataclass(frozen=True, eq=False)
class ExactLines:
    """α x̂ + b̲ ≤ x ≤ ā x̂ + b̄ for a layer's neurons, and s β; b̲ = 0 for ReLUs."""

    below: Exact
    above: Exact
    intercept: Exact
    push: Exact
    floor: Exact | None = None
    planes: ExactPlanes | None = None


@dataclass(frozen=True, eq=False)
class ExactPlanes:
    """x ≤ G c + h for some of a layer's neurons; others have zeros here."""

    on: dict[int, Exact]  # node -> (neurons, elements)
    height: Exact  # (neurons,)
    above: NDArray[np.bool_]  # (neurons,) which have one


@dataclass
class Audit:
    """Confirms bounds, and counts them."""

    limit: int = 300_000  # products in a pass up to which a network is looked at
    claims: int = 0
    least: float = float("inf")  # the smallest distance of a claim from the exact value
    _sizes: dict[int, tuple[Network, bool]] = field(default_factory=dict)

    def covers(self, network: Network) -> bool:
        """Whether the network is small enough."""
        if id(network) not in self._sizes:
            work = sum(size(n.shape) * max(getattr(n.op, "roundings", 0), 1) for n in network.nodes)
            self._sizes[id(network)] = network, work <= self.limit
        return self._sizes[id(network)][1]

    def meaning(self, network: Network, *starts: dict[int, Tensor]) -> Meaning | None:
        """Rows given by coefficients on nodes, added up over `starts`."""
        if not self.covers(network):
            return None
        on: dict[int, Exact] = {}
        for start in starts:
            for node, c in start.items():
                value = exact(flat(c))
                on[node] = on[node] + value if node in on else value
        rows = len(next(iter(on.values())))
        return Meaning(on, np.array([Fraction(0)] * rows, dtype=object))

    def dual_bound(self, form: Form, start: Rows, slopes: Slopes, duals: Duals, claimed: Tensor) -> None:
        """`beta_crown.evaluate` claims bounds of rows at these duals."""
        enclosure = form.enclosure
        network = enclosure.network
        meaning = start.meaning
        if meaning is None:
            return
        groups = max(len(slopes.upper), len(duals.alpha))
        for r in np.flatnonzero(np.isfinite(to_numpy(claimed))).tolist():
            g = r // (len(claimed) // groups)
            box = r * enclosure.boxes // len(claimed)

            def lines(k: int, g: int = g, box: int = box) -> ExactLines:
                return _lines(form, slopes, duals, k, g, box)

            value = pulled(network, meaning, r, lines, enclosure, box)
            self._confirm(float(claimed[r]), value, "a dual bound")

    def neuron_bounds(
        self,
        enclosure: Enclosure,
        node: int,
        index: Tensor,
        lines: Callable[[int], ExactLines],
        bounds: tuple[Tensor, Tensor],
        box: int = 0,
    ) -> None:
        """Fixed lines claim lower and upper bounds of elements of a node, over one box."""
        network = enclosure.network
        if not self.covers(network):
            return
        elements = size(network.nodes[node].shape)
        for sign, claimed in zip((1, -1), bounds, strict=True):
            for i, bound in zip(index.tolist(), (sign * claimed).tolist(), strict=True):
                if np.isfinite(bound):
                    meaning = Meaning({node: _unit(i, sign, elements)[None]}, np.array([Fraction(0)], dtype=object))
                    self._confirm(bound, pulled(network, meaning, 0, lines, enclosure, box), "a neuron's bound")

    def heights(
        self, form: FoldedForm, block: Block, ends: tuple[Tensor, Tensor], g: Tensor, kappa: Tensor, claimed: Tensor
    ) -> None:
        """`planes.sound_planes` claims that planes with these coefficients and heights are above a block's neurons."""
        if not self.covers(form.enclosure.network):
            return
        passed = exact(form.upper.clamp_min(0.0))
        low, high = np.append(exact(form.box_lower), 0 * passed), np.append(exact(form.box_upper), passed)
        weight, planes, size = exact(block.weight), exact(g), block.weight.shape[1]
        for j, height in enumerate(claimed.tolist()):
            terms = []
            for k, (at_end, end) in zip(exact(kappa[:, j]), ((1, ends[1]), (0, ends[0])), strict=True):
                gap = k * weight[j] - planes[j]
                most = np.maximum(gap * low[:size], gap * high[:size]).sum()
                offset = k * (Fraction(float(block.bias[j])) + Fraction(float(block.error[j])))
                terms.append((at_end - k) * Fraction(float(end[j])) + offset + most)
            if np.isfinite(height):
                self._confirm(-height, -max(terms), "the height of a plane, turned around,")

    def interval(self, enclosure: Enclosure, node: int) -> None:
        """An enclosure claims the interval of an affine node, given those of the nodes it reads."""
        network = enclosure.network
        op, reads = network.nodes[node].op, network.nodes[node].inputs
        if isinstance(op, Neurons | Input) or not self.covers(network):
            return
        count = size(op.shape)
        for i in sorted({0, count - 1, *(count * j // SAMPLED for j in range(SAMPLED))}):
            for sign, claimed in ((1, enclosure.lower[node]), (-1, -enclosure.upper[node])):
                bound = float(claimed[0].flatten()[i])
                if not np.isfinite(bound):
                    continue
                unit = _unit(i, sign, count)
                value = Fraction(0) if op.bias is None else Fraction(unit @ _bias(op))
                for j, c in zip(reads, adjoint(op, unit), strict=True):
                    value += _minimum(c, enclosure, j, 0)
                self._confirm(bound, value, "an interval")

    def _confirm(self, claimed: float, value: Fraction, what: str) -> None:
        self.claims += 1
        if Fraction(claimed) > value:
            by = float(Fraction(claimed) - value)
            raise WrongBound(f"{what} of {claimed!r} was claimed, which is {by:g} more than {float(value)!r}")
        self.least = min(self.least, float(value - Fraction(claimed)))


def pulled(
    network: Network,
    meaning: Meaning,
    row: int,
    lines: Callable[[int], ExactLines],
    enclosure: Enclosure,
    box: int,
) -> Fraction:
    """The exact dual bound of a row: eq. 15 of the paper, over the domain that the enclosure has for the input."""
    coefficients = {node: c[row] for node, c in meaning.on.items()}
    value: Fraction = meaning.constant[row]
    for i in range(max(coefficients), 0, -1):
        op, c = network.nodes[i].op, coefficients.pop(i, None)
        if isinstance(op, Neurons):  # also one that no row reads: it may be split
            line, c = lines(network.layer_of[i]), np.zeros(size(op.shape), dtype=object) if c is None else c
            value += (np.where(c < 0, c, 0) * line.intercept).sum()
            if line.floor is not None:
                value += (np.where(c < 0, 0, c) * line.floor).sum()
            contributions: tuple[Exact, ...] = (np.where(c < 0, line.above, line.below) * c - line.push,)
            if line.planes is not None:
                raised = np.where((c < 0) & line.planes.above, c, 0)
                value += raised @ line.planes.height
                for j, g in line.planes.on.items():
                    coefficients[j] = coefficients[j] + raised @ g if j in coefficients else raised @ g
        elif c is None or not c.any():
            continue
        else:
            assert not isinstance(op, Input)
            if op.bias is not None:
                value += c @ _bias(op)
            contributions = adjoint(op, c)
        for j, p in zip(network.nodes[i].inputs, contributions, strict=True):
            coefficients[j] = coefficients[j] + p if j in coefficients else p
    return value + _least(coefficients[0], enclosure, box) if 0 in coefficients else value


def adjoint(op: Affine, c: Exact) -> tuple[Exact, ...]:
    """Aᵀ c, one vector for each input. # (elements,) -> (elements of the input,) …"""
    if isinstance(op, Linear):
        return ((c.reshape(-1, op.weight.shape[0]) @ _weight(op)).reshape(-1),)
    if isinstance(op, Scale):
        return (c * _weight(op).reshape(-1),)
    if isinstance(op, Shift | Reshape):
        return (c,)
    if isinstance(op, Sum):
        return tuple(Fraction(s) * c for s in op.signs.tolist())
    if isinstance(op, Concat):
        parts = np.split(c.reshape(op.shape), np.cumsum([s[op.axis] for s in op.in_shapes])[:-1], axis=op.axis)
        return tuple(p.reshape(-1) for p in parts)
    if isinstance(op, Pick):
        index = to_numpy(op.index.reshape(-1))
        out = np.zeros(size(op.in_shape), dtype=object)
        np.add.at(out, index[index >= 0], c[index >= 0])
        return (out,)
    return (c @ _matrix(op),)


@lru_cache(maxsize=64)
def _weight(op: Linear | Scale) -> Exact:
    return exact(op.weight)


@lru_cache(maxsize=64)
def _matrix(op: Any) -> Exact:
    """The matrix of an operation with one input, from what it does to unit vectors, which is exact. # (out, in)"""
    shape = op.in_shape
    number = counting(op.weight, size(shape))
    units = retyped(number[:, None] == number, library(op.weight).float64).reshape(-1, *shape)
    return exact(flat(op.apply(units)).T)


@lru_cache(maxsize=64)
def _bias(op: Affine) -> Exact:
    assert op.bias is not None
    return exact(spread(op.bias, op.shape)).reshape(-1)


def _least(c: Exact, enclosure: Enclosure, box: int) -> Fraction:
    """min c·x over the domain that the enclosure has for the input."""
    balls = enclosure.balls
    if balls is None:
        return _minimum(c, enclosure, 0, box)
    centre, radius, lower, upper = (
        exact(t[box]).tolist() for t in (balls.centre, balls.radius, balls.lower, balls.upper)
    )
    return least_over_ball([Fraction(v) for v in c.tolist()], centre, radius[0], lower, upper, balls.norm)


def _minimum(c: Exact, enclosure: Enclosure, node: int, box: int) -> Fraction:
    """min c·v over a node's interval."""
    total = Fraction(0)
    ends = (t[node][box].flatten().tolist() for t in (enclosure.lower, enclosure.upper))
    for factor, low, high in zip(c.tolist(), *ends, strict=True):
        if factor:
            total += factor * Fraction(low if factor > 0 else high)
    return total


def _lines(form: Form, slopes: Slopes, duals: Duals, k: int, group: int, box: int) -> ExactLines:
    """The lines of a layer's neurons: those of the form where it relaxes them, else what their intervals say."""
    enclosure = form.enclosure
    low, high = (t[box].tolist() for t in enclosure.layer(k))
    below = [Fraction(int(a >= 0 or b > -a > 0)) for a, b in zip(low, high, strict=True)]
    above = [Fraction(int(b > 0)) for b in high]
    intercept = [Fraction(-a) if a < 0 < b else Fraction(0) for a, b in zip(low, high, strict=True)]
    push = [Fraction(0)] * len(low)
    at, alpha = form.layers[k], duals.alpha[group if len(duals.alpha) > 1 else 0].tolist()
    row = group if len(slopes.upper) > 1 else 0
    upper, offset = slopes.upper[row].tolist(), slopes.intercept[row].tolist()
    for p, i in zip(range(at.start, at.stop), form.indices[k].tolist(), strict=True):
        below[i], above[i], intercept[i] = Fraction(alpha[p]), Fraction(upper[p]), Fraction(offset[p])
        if slopes.sign is not None and duals.beta is not None:
            push[i] = Fraction(float(slopes.sign[group, p])) * Fraction(float(duals.beta[group, p]))
    parts: list[Exact] = [np.array(v, dtype=object) for v in (below, above, intercept, push)]
    lines = ExactLines(parts[0], parts[1], parts[2], parts[3])
    if slopes.planes is not None:
        folded = form.folded()
        assert folded is not None  # only such a form has planes
        lines = replace(lines, planes=_planes(folded, slopes.planes[row, at], k))
    return lines if slopes.floor is None else replace(lines, floor=exact(slopes.floor[row, at]))


def _planes(form: FoldedForm, above: Tensor, k: int) -> ExactPlanes:
    """The planes of a layer's neurons in a form that has them. # above: (neurons of the form in the layer,)"""
    network, block, count = form.enclosure.network, form.blocks[k], len(above)
    neurons = size(network.nodes[network.layers[k]].shape)
    index = to_numpy(form.indices[k])
    every, g = np.zeros(neurons, dtype=object), exact(block.weight[count:])
    every[index] = exact(block.bias[count:])
    # where the form's columns are in the network: the inputs that vary, then the neurons of earlier layers
    places = [(0, to_numpy(form.free))] + [(network.layers[i], to_numpy(form.indices[i])) for i in range(k)]
    on, first = {}, 0
    for node, where in places:
        part = np.zeros((neurons, size(network.nodes[node].shape)), dtype=object)
        part[np.ix_(index, where)] = g[:, first : first + len(where)]
        on[node], first = part, first + len(where)
    raised = np.zeros(neurons, dtype=bool)
    raised[index] = to_numpy(above) > 0
    return ExactPlanes(on, every, raised)


def _unit(index: int, sign: int, elements: int) -> Exact:
    unit = np.zeros(elements, dtype=object)
    unit[index] = Fraction(sign)
    return unit


def fixed_lines(below: Tensor, above: Tensor, lower: Tensor, upper: Tensor) -> ExactLines:
    """Lines with given slopes, the upper one as low as it can be. # (neurons,) twice, (1, neurons) twice"""
    slope, low, high = exact(above), exact(lower[0]), exact(upper[0])
    ambiguous = (low < 0) & (high > 0)
    return ExactLines(exact(below), slope, np.maximum(-slope * low, (1 - slope) * high) * ambiguous, 0 * slope)


_AUDITOR: ContextVar[Audit | None] = ContextVar(
    "auditor", default=Audit() if os.environ.get("SUREBOUND_AUDIT", "0") not in ("", "0") else None
)


def auditor() -> Audit | None:
    """The audit under way, if there is one."""
    return _AUDITOR.get()


@contextmanager
def auditing(limit: int = Audit.limit) -> Iterator[Audit]:
    """Every bound claimed inside is computed again; one that is not confirmed raises `WrongBound`."""
    audit = Audit(limit)
    token = _AUDITOR.set(audit)
    try:
        yield audit
    finally:
        _AUDITOR.reset(token)

"""Bounds over boxes: intervals forward, linear lower bounds backward, each with its rounding.

A backward pass starts from Σ c·v over some nodes v and replaces each z by A a + b, and each max(x̂, 0) by a line below
it where its coefficient is positive and a line above it where it is negative, until only the input is left. Computed
coefficients are taken as they are: what they differ by from exact ones is multiplied, at each replacement, with the
largest magnitude of the node over the box, and subtracted in the end.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from surebound.check.arithmetic import LIMIT, Arithmetic, Array, InvalidError
from surebound.check.network import Network
from surebound.check.ops import Relu


class Lines(NamedTuple):
    """α x̂ ≤ max(x̂, 0) ≤ s x̂ + t, for the neurons of a layer. # (1, boxes or rows, neurons)"""

    lower: Array
    slope: Array
    intercept: Array


class Splits(NamedTuple):
    """Neurons whose sign is fixed in some rows: x̂ ≥ 0 where it is 1, x̂ ≤ 0 where it is −1; multipliers β ≥ 0."""

    row: Array
    neuron: Array
    sign: Array
    beta: Array


class Way(NamedTuple):
    """How a pass takes the ReLUs of layers, and over which box each of its rows is bounded (None: the only one)."""

    lines: Callable[[int], Lines]
    splits: dict[int, Splits]
    which: Array | None


def relax(arithmetic: Arithmetic, low: Array, high: Array, kind: str) -> Lines:
    """The lines of a kind for neurons within [low, high]; those of "stored" have the lower slope 0."""
    free, active = (low < 0) & (high > 0), (low >= 0).astype(low.dtype)
    low, high = np.where(free, low, -1), np.where(free, high, 1)
    slope = arithmetic.zeros(low.shape) if kind == "flat" else arithmetic.divide(high, high - low)
    lower = {"crown": (high > -low).astype(low.dtype), "fastlin": slope}.get(kind, 0)
    intercept = arithmetic.intercept(slope, low, high)
    return Lines(np.where(free, lower, active), np.where(free, slope, active), np.where(free, intercept, 0))


class Enclosure:
    """Intervals of all nodes over one box, or over several at once. Arrays are (boxes, elements)."""

    def __init__(self, network: Network, arithmetic: Arithmetic, lower: Array, upper: Array) -> None:
        self.network, self.arithmetic = network, arithmetic
        self.low, self.high = list[Array](), list[Array]()  # of the nodes so far
        self.size = list[Array]()  # max |v|
        self.error = list[Array | None]()  # what a coefficient of 1 on each element loses by the node's adjoint
        self.layers = list[tuple[Array, Array]]()  # bounds on the x̂ of each layer so far
        sums = [op for op in network.ops if op.bias is not None or isinstance(op, Relu)]
        self.longest = max(network.sizes) + len(sums) + 8  # more terms than any part of the constant is added up from
        self._append(arithmetic.array(lower), arithmetic.array(upper), None)

    def _append(self, low: Array, high: Array, error: Array | None) -> None:
        self.low.append(low)
        self.high.append(high)
        self.size.append(np.maximum(abs(low), abs(high)))
        self.error.append(error)
        if not (self.size[-1] <= LIMIT).all():
            raise InvalidError(f"intervals reach beyond {LIMIT:g}")

    def extend(self, layer: int) -> None:
        """Bound all nodes before a layer's ReLU, and its x̂; all nodes if there is no such layer."""
        net = self.network
        for i in range(len(self.low), (*net.layers, len(net.ops))[layer]):
            if isinstance(net.ops[i], Relu):
                self._settle(net.layer_of[i])
                low, high = self.layers[net.layer_of[i]]
                self._append(np.maximum(low, 0), np.maximum(high, 0), None)
            else:
                self._affine(i)
        self._settle(layer)

    def _settle(self, layer: int) -> None:
        """Take the intervals of x̂ as a layer's bounds, together with those it has."""
        if layer < len(self.network.layers):
            before = self.network.reads[self.network.layers[layer]][0]
            ends = self.low[before], self.high[before]
            if layer == len(self.layers):
                self.layers.append(ends)
            else:
                self.layers[layer] = (
                    np.maximum(self.layers[layer][0], ends[0]),
                    np.minimum(self.layers[layer][1], ends[1]),
                )

    def learn(self, layer: int, low: Array, high: Array) -> None:
        """Take new bounds on a layer. Intervals of what comes after it are then computed anew."""
        self.layers[layer] = low, high
        for known in (self.low, self.high, self.size, self.error):
            del known[self.network.layers[layer] :]

    def _affine(self, i: int) -> None:
        op, reads, ar, boxes = self.network.ops[i], self.network.reads[i], self.arithmetic, len(self.low[0])

        def applied(ends: Any, absolute: bool = False) -> Array:
            shaped = [ends[j].reshape(boxes, *shape) for j, shape in zip(reads, op.sources, strict=True)]
            return op.apply(shaped, absolute).reshape(boxes, -1)

        total = applied(self.size, absolute=True)
        error = ar.gamma(op.back) * total + ar.tiny if op.back else None
        if op.moves:
            self._append(applied(self.low), applied(self.high), error)
            return
        # c ± r holds [low, high], and A c + b ± |A| r holds z. With M ≥ |c| and M ≥ r, computing either one is off by
        # less than γ (|A| M + |b|), and the last additions by as much again.
        centre = {j: (self.low[j] + self.high[j]) / 2 for j in reads}
        radius = {j: np.maximum(self.high[j] - centre[j], centre[j] - self.low[j]) for j in reads}
        middle, spread = applied(centre), applied(radius, absolute=True)
        if op.bias is not None:
            total, middle = total + abs(op.bias), middle + op.bias
            error = (0 * total if error is None else error) + ar.gamma(self.longest) * abs(op.bias) + ar.tiny
        spread = spread + ar.loss(3 * ar.gamma(op.terms + 4) * total)
        self._append(middle - spread, middle + spread, error)

    def neurons(self, layer: int, neuron: Array, side: Any, way: Way) -> Array:
        """Lower bounds of side · x̂ for neurons of a layer, one a row."""
        node = self.network.reads[self.network.layers[layer]][0]
        start, zero = self.arithmetic.zeros((len(neuron), self.network.sizes[node])), self.arithmetic.zeros(len(neuron))
        start[np.arange(len(neuron)), neuron] = side
        return self.backward({node: start}, zero, zero, way)

    def backward(self, held: dict[int, Array], constant: Array, error: Array, way: Way) -> Array:
        """Lower bounds of Σ held[v]·v + constant − error. # held[v] (rows, elements); constant, error (rows,)"""
        net, ar, gamma = self.network, self.arithmetic, self.arithmetic.gamma(self.longest)
        error = error + gamma * abs(constant)

        def dot(c: Array, v: Array) -> Array:
            return np.asarray(c @ v[0] if way.which is None else np.einsum("rn,rn->r", c, v[way.which]))

        for i in range(max([*held, *(net.layers[k] for k in way.splits)]), 0, -1):
            op, layer = net.ops[i], net.layer_of.get(i, -1)
            if i not in held and layer not in way.splits:
                continue
            lam = held.pop(i) if i in held else ar.zeros((len(constant), net.sizes[i]))
            if layer >= 0:
                lines = way.lines(layer) if way.which is None else Lines(*(a[way.which] for a in way.lines(layer)))
                mu, paid = _through(lam, lines, way.splits.get(layer))
                constant, error, pulled = constant - paid, error + gamma * paid, [mu]
            else:
                constant = constant if op.bias is None else constant + lam @ op.bias
                cost = self.error[i]
                error = error if cost is None else error + dot(abs(lam), cost)
                pulled = op.adjoint(lam.reshape(len(lam), *op.shape))
            for j, part in zip(net.reads[i], pulled, strict=True):
                p = part.reshape(len(part), -1)
                if j in held:
                    p = held[j] + p
                    error = error + ar.unit * dot(abs(p), self.size[j])
                held[j] = p
        if 0 in held:  # the least value over the box
            c = held[0]
            constant = constant + (dot(np.maximum(c, 0), self.low[0]) + dot(np.minimum(c, 0), self.high[0]))
            error = error + gamma * dot(abs(c), self.size[0])
        return ar.below(constant, error)


def _through(lam: Array, lines: Lines, splits: Splits | None) -> tuple[Array, Array]:
    """The coefficients μ on x̂ for λ on max(x̂, 0), and what the intercepts take away.

    λ α, rounded, is λ α' with another α' in [0, 1]; λ s likewise, for which the intercept has room. Where x̂ ≥ 0 is
    known, λ x = λ x̂ ≥ (λ − β) x̂, and where x̂ ≤ 0, λ x = 0 ≥ β x̂; λ − β, rounded, is λ − β' with another β' ≥ 0.
    """
    if splits is not None:
        fixed, lam = lam[splits.row, splits.neuron], lam.copy()
        lam[splits.row, splits.neuron] = 0
    negative = np.minimum(lam, 0)
    mu = np.maximum(lam, 0) * lines.lower + negative * lines.slope
    one = len(lines.intercept) == 1
    paid = -(negative @ lines.intercept[0] if one else np.einsum("rn,rn->r", negative, lines.intercept))
    if splits is not None:
        mu[splits.row, splits.neuron] = np.where(splits.sign > 0, fixed - splits.beta, splits.beta)
    return mu, np.asarray(paid)

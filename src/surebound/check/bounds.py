"""Bounds over boxes: intervals forward, linear lower bounds backward, each with its rounding.

A backward pass starts from Σ c·v over some nodes v and replaces each z by A a + b, and each max(x̂, 0) by a line below
it where its coefficient is positive and a line above it where it is negative, until only the input is left. Computed
coefficients are taken as they are: what they differ by from exact ones is multiplied, at each replacement, with the
largest magnitude of the node over the box, and subtracted in the end.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from surebound.check.arithmetic import LIMIT, Arithmetic, Array, expect
from surebound.check.network import Network

NONE: Mapping[int, Any] = MappingProxyType({})


class Planes(NamedTuple):
    """Above some neurons of a layer, each once: max(x̂, 0) ≤ Σ weight[v]·v + height over the whole box."""

    neuron: Array  # (planes,)
    weight: dict[int, Array]  # of the input and of ReLUs before the layer: (planes, elements)
    height: Array  # (planes,)
    error: Array  # (planes,) what a coefficient of 1 loses by the sums of weights


class Way(NamedTuple):
    """How a pass takes ReLUs. `alpha`, `sign` and `beta` are row by row and for all neurons of the network."""

    lines: str  # the kind
    alpha: Any = None  # slopes of "stored" lines
    sign: Any = None  # 1 where x̂ ≥ 0 and −1 where x̂ ≤ 0 is known, and 0 elsewhere
    beta: Any = None  # multipliers ≥ 0, 0 where no sign is known
    which: Any = slice(None)  # the box that each row is bounded over; all over the only one
    planes: Mapping[int, Planes] = NONE  # of layers, in the place of lines above


def relax(arithmetic: Arithmetic, low: Array, high: Array, kind: str, alpha: Any = 0) -> tuple[Array, Array, Array]:
    """α, s and t with α x̂ ≤ max(x̂, 0) ≤ s x̂ + t, for neurons within [low, high] and lines of a kind.

    t ≥ max(−s low, (1 − s) high). A slope s' with |s' − s| ≤ u s moves that by at most u max(−low, high), and four
    roundings on the way to t, which is below high − low, by at most 5 u (high − low).
    """
    free, active = (low < 0) & (high > 0), (low >= 0).astype(low.dtype)
    low, high = np.where(free, low, -1), np.where(free, high, 1)
    slope = 0 * low if kind == "flat" else high / (high - low)
    lower = {"crown": (high > -low).astype(low.dtype), "fastlin": slope, "stored": alpha}.get(kind, 0)
    intercept = np.maximum(-slope * low, (1 - slope) * high) + (8 * arithmetic.unit * (high - low) + arithmetic.tiny)
    return np.where(free, lower, active), np.where(free, slope, active), np.where(free, intercept, 0)


class Enclosure:
    """Intervals of all nodes over one box, or over several at once. Arrays are (boxes, elements)."""

    def __init__(self, network: Network, lower: Array, upper: Array) -> None:
        self.network, self.arithmetic = network, network.arithmetic
        self.low, self.high = list[Array](), list[Array]()  # of the nodes so far
        self.size = list[Array]()  # max |v|
        self.error = list[Any]()  # what a coefficient of 1 on each element loses by the node's adjoint and bias
        self.layers: list[tuple[Any, Any]] = [(-np.inf, np.inf) for _ in network.layers]  # bounds on x̂
        self.longest = max(network.sizes) + len(network.ops) + 8  # more than any part of a constant is rounded
        self._append(self.arithmetic.array(lower), self.arithmetic.array(upper))

    def _append(self, low: Array, high: Array, error: Array | None = None) -> None:
        self.low.append(low)
        self.high.append(high)
        self.size.append(np.maximum(abs(low), abs(high)))
        self.error.append(error)
        expect((self.size[-1] <= LIMIT).all(), f"intervals reach beyond {LIMIT:g}")

    def extend(self, layer: int) -> None:
        """Bound all nodes before a layer's ReLU, and its x̂; all nodes if there is no such layer."""
        net = self.network
        for i in range(len(self.low), (*net.layers, len(net.ops))[layer]):
            if i in net.layer_of:
                self._append(*(np.maximum(end, 0) for end in self._settled(net.layer_of[i])))
            else:
                self._affine(i)
        if layer < len(net.layers):
            self._settled(layer)

    def _settled(self, layer: int) -> tuple[Array, Array]:
        """A layer's bounds, to which the intervals of x̂ are added."""
        (low, high), before = self.layers[layer], self.network.reads[self.network.layers[layer]][0]
        self.layers[layer] = np.maximum(low, self.low[before]), np.minimum(high, self.high[before])
        return self.layers[layer]

    def learn(self, layer: int, low: Array, high: Array) -> None:
        """Take new bounds on a layer. Intervals of what comes after it are then computed anew."""
        self.layers[layer] = low, high
        for known in (self.low, self.high, self.size, self.error):
            del known[self.network.layers[layer] :]

    def _affine(self, i: int) -> None:
        op, ar = self.network.ops[i], self.arithmetic
        low, high, size = ([ends[j] for j in self.network.reads[i]] for ends in (self.low, self.high, self.size))
        total = op.apply(size, absolute=True)
        error = ar.gamma(op.back) * total + ar.gamma(self.longest) * abs(op.bias) + ar.tiny  # tiny: of any coefficient
        if op.moves and not op.bias.any():
            self._append(op.apply(low), op.apply(high), error)
            return
        # c ± r holds [low, high], and A c + b ± |A| r holds z. With M ≥ |c| and M ≥ r, computing either one is off by
        # less than γ (|A| M + |b|), and the last additions by as much again.
        centre = [(a + b) / 2 for a, b in zip(low, high, strict=True)]
        radius = [np.maximum(b - c, c - a) for a, b, c in zip(low, high, centre, strict=True)]
        middle, spread = op.apply(centre) + op.bias, op.apply(radius, absolute=True)
        spread = spread + ar.loss(3 * ar.gamma(op.terms + 4) * (total + abs(op.bias)))
        self._append(middle - spread, middle + spread, error)

    def neurons(self, layer: int, neuron: Array, side: Any, way: Way, weight: Any = NONE, constant: Any = 0) -> Array:
        """Lower bounds of side · x̂ + Σ weight[v]·v + constant, rounded twice, for neurons of a layer, one a row."""
        ar, at = self.arithmetic, self.network.reads[self.network.layers[layer]][0]
        start = ar.array(np.zeros((len(neuron), self.network.sizes[at])))
        start[np.arange(len(neuron)), neuron] = side
        start, constant = start + weight.get(at, 0), constant + ar.array(np.zeros(len(neuron)))  # x̂ may be a v
        error = ar.unit * np.vecdot(abs(start), self.size[at][way.which])
        return self.backward({**weight, at: start}, constant, error, way)

    def heights(self, layer: int, neuron: Array, weight: Mapping[int, Array], kappa: Array) -> Array:
        """h with max(x̂, 0) ≤ g·c + h, for neurons of a layer, weights g on what is before it, and any κ, κ' in [0, 1].

        Where x̂ ≥ 0, x̂ − g·c = (1 − κ) x̂ − (g·c − κ x̂), and x̂ ≤ û; where x̂ ≤ 0, −g·c = −κ' x̂ − (g·c − κ' x̂), x̂ ≥ l̂.
        """
        (low, high), (k, k_), flat = self.layers[layer], kappa, Way("flat")
        active = self.neurons(layer, neuron, -k, flat, weight, (k - 1) * high[0, neuron])
        return -np.minimum(active, self.neurons(layer, neuron, -k_, flat, weight, k_ * low[0, neuron]))

    def backward(self, held: dict[int, Array], constant: Array, error: Array, way: Way) -> Array:
        """Lower bounds of Σ held[v]·v + constant − error. # held[v] (rows, elements); constant, error (rows,)"""
        net, ar, gamma, at = self.network, self.arithmetic, self.arithmetic.gamma(self.longest), way.which
        error = error + gamma * abs(constant)
        for i in range(len(net.ops) - 1, 0, -1):
            op, layer = net.ops[i], net.layer_of.get(i, -1)
            of = slice(*net.first[layer : layer + 2]) if layer >= 0 else slice(0)
            alpha, sign, beta = (0 if part is None else part[:, of] for part in (way.alpha, way.sign, way.beta))
            if i not in held and not np.any(beta):
                continue
            lam = held.pop(i) if i in held else ar.array(np.zeros((len(constant), net.sizes[i])))
            if layer >= 0:
                lower, slope, b = (line[at] for line in relax(ar, *self.layers[layer], way.lines, alpha))
                negative, pulled = np.where(sign == 0, np.minimum(lam, 0), 0), list[tuple[int, Array]]()
                if layer in way.planes:
                    neuron, weight, height, cost = way.planes[layer]
                    slope[:, neuron], b[:, neuron] = 0, height
                    error = error + abs(negative[:, neuron]) @ cost
                    pulled = [(v, negative[:, neuron] @ part) for v, part in weight.items()]
                constant, error = constant + np.vecdot(negative, b), error - gamma * np.vecdot(negative, abs(b))
                # λ α, rounded, is λ α' with another α' in [0, 1]; λ s likewise, for which the intercept has room. Where
                # x̂ ≥ 0 is known, λ x = λ x̂ ≥ (λ − β) x̂, and where x̂ ≤ 0, λ x = 0 ≥ β x̂; λ − β, rounded, is λ − β'.
                mu = np.where(sign == 0, np.maximum(lam, 0) * lower + negative * slope, beta)
                pulled.append((net.reads[i][0], np.where(sign > 0, lam - beta, mu)))
            else:
                constant, error = constant + lam @ op.bias, error + np.vecdot(abs(lam), self.error[i][at])
                pulled = list(zip(net.reads[i], op.adjoint(lam), strict=True))
            for j, part in pulled:
                if j in held:
                    part = held[j] + part
                    error = error + ar.unit * np.vecdot(abs(part), self.size[j][at])
                held[j] = part
        c = held[0]  # all that is left: its least value over the box
        least = np.vecdot(np.maximum(c, 0), self.low[0][at]) + np.vecdot(np.minimum(c, 0), self.high[0][at])
        return ar.below(constant + least, error + gamma * np.vecdot(abs(c), self.size[0][at]))

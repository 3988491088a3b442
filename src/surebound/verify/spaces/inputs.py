"""Bisections of the input box, for networks with few inputs: layers bounded forwards, rows backwards.

Layers are bounded for each box by zonotopes (`surebound.bounds.zonotope`), from its parent's bounds on: they tighten
quickly as boxes shrink, which is why this beats splitting neurons in low dimensions. Rows are then bounded by CROWN, in
float64 with its rounding error taken off.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from surebound.bounds.beta_crown import Duals, Slopes, evaluate
from surebound.bounds.bounding import LayerBounding
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.fixed import graph_rows
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.relaxation import Relaxation, relax_form
from surebound.bounds.timed import timed
from surebound.bounds.zonotope import Forward, Pushed
from surebound.network.arrays import concat, counting, double, flat, library, positive, retyped, zeros
from surebound.network.cost import CHUNK_ELEMENTS, products
from surebound.network.graph import Network
from surebound.problem import Region, padded_rows
from surebound.proof import ROOM
from surebound.verify.clock import Budget, Clock
from surebound.verify.forwards import SYMBOL_PRODUCTS, Symbols, sharpest_forwards
from surebound.verify.node import Nodes
from surebound.verify.strategy import Strategy
from surebound.verify.tree import Bounded, Leaf

if TYPE_CHECKING:
    from torch import Tensor

_CHECKED = LayerBounding(slopes=("crown",), ascent=None)
"""How whoever checks a proof bounds the layers of a box."""
_MOST = 1e300  # that an input may be expected to gain


@dataclass(frozen=True, eq=False)
class _Best:
    """The best row of each box."""

    bound: Tensor  # (boxes,) sound
    row: Tensor  # (boxes,) which of its region's rows it is
    slope: Tensor  # (boxes, inputs) λ̄₀, minus its coefficients
    lam: Tensor  # (boxes, neurons) λ̄
    x: Tensor  # (boxes, inputs) its minimiser
    cost: Tensor | None  # (boxes, neurons) what the lines of activations other than ReLUs cost it


class InputSpace:
    """The boxes of regions. `network` in float64, over NumPy arrays or torch's tensors."""

    def __init__(
        self, network: Network, regions: Sequence[Region], strategy: Strategy, clock: Clock, *, recorded: bool = False
    ) -> None:
        """In a search that is `recorded`, a box counts as proved if whoever checks the proof can prove it, too."""
        self.network, self.regions, self.strategy, self.clock = network, regions, strategy, clock
        self.recorded, self.rows = recorded, [*map(network.array, padded_rows([[region] for region in regions]))]
        scale = library(self.rows[0]).amax(abs(concat([flat(part) for part in self.rows], 1)), 1)
        self.least = (ROOM if recorded else 0.0) * scale  # of a bound that proves
        self.counts = network.array(np.array([len(region.constant) for region in regions]))
        self.remembered = network.neurons if network.neurons <= strategy.remembered else 0
        self.products = max(products(network, network.output), 1)
        ends = (regions[0].box.lower, regions[0].box.upper)
        lower, upper = (network.array(end).reshape(1, *network.input_shape) for end in ends)
        self.forward = sharpest_forwards(network, lower, upper, clock.check, strategy.symbols)
        self.symbols_tried = Symbols(self.forward.most, strategy)
        self.forward = replace(self.forward, most=self.symbols_tried.now)
        self.symbols = min(network.inputs + network.neurons, self.symbols_tried.now)  # of a box, lately, at most
        self.gain = 0.0  # of a split, lately
        self.looks = Budget(strategy.looks)

    @property
    def batch(self) -> int:
        """As many boxes as stay in the cache, and in the time between two looks at the clock."""
        in_cache = self.strategy.box_elements // (self.network.widest * self.symbols)
        in_memory = CHUNK_ELEMENTS // (self.network.widest * self.symbols)
        in_time = SYMBOL_PRODUCTS // (self.products * self.symbols)
        return max(1, min(max(8, in_cache), in_memory, in_time))

    def roots(self) -> Nodes:
        array, count = self.network.array, len(self.regions)
        state = {
            "lower": array(np.stack([r.box.lower for r in self.regions])),
            "upper": array(np.stack([r.box.upper for r in self.regions])),
            "layers_lower": array(np.full((count, self.remembered), -inf)),  # valid also for parts of the box
            "layers_upper": array(np.full((count, self.remembered), inf)),
        }
        return Nodes.roots(array(np.arange(count)), state, "float64")

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        self.gain, halves = gain, parents.halved()
        lower, upper = halves.state["lower"], halves.state["upper"]
        n = counting(lower, len(parents))
        middle = _middle(parents)[n, parents.split]
        upper[2 * n, parents.split] = middle
        lower[2 * n + 1, parents.split] = middle
        return halves

    def bound(self, nodes: Nodes) -> Bounded:
        with self.clock.phase("bounding"):
            state, region = nodes.state, nodes.region
            enclosure, pushed, best = self._bounded(nodes, self.forward)
            self.symbols = max(1, pushed.symbols)
            self._try_symbols(nodes, best.bound)
            proved = best.bound > self.least[region]
            if self.recorded:
                proved, row = self._as_checked(nodes, proved)
                state = state | {"row": row}
            low, high = enclosure.neurons()
            if self.remembered:
                state = state | {"layers_lower": low, "layers_upper": high}
        with self.clock.phase("branching"):
            lib = library(best.slope)
            gain, open_ = lib.zeros_like(best.slope), lib.argwhere(~proved)[:, 0]
            none = zeros(retyped(best.lam, self.forward.dtype), len(pushed.inputs), len(nodes), 0)
            moves = concat([none, *pushed.moves], 2)
            gain[open_[:, None], pushed.inputs] = self._gains(moves, best, low, high, open_)
            gain += abs(best.slope) * (state["upper"] - state["lower"]) / 2
        nodes = replace(nodes, bound=lib.maximum(best.bound, nodes.bound), state=state)
        return Bounded(nodes, proved, {"bound": best.bound, "gain": gain, "x": best.x})

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        """The minimisers of the lowest boxes and their middles, for a share of the time."""
        if self.looks.allows(seconds + 1.0):
            with self.looks.spent():
                lowest = open_.hints["bound"].argsort()[: self.strategy.points]
                yield concat([open_.hints["x"][lowest], _middle(open_.nodes)[lowest]], 0)

    def choose(self, open_: Bounded) -> Nodes:
        """The input whose halving is expected to gain most; −1 where no input can be halved any more."""
        with self.clock.phase("branching"):
            lower, upper = open_.nodes.state["lower"], open_.nodes.state["upper"]
            middle = _middle(open_.nodes)
            divisible = (middle > lower) & (middle < upper)
            lib = library(middle)
            gain = lib.nan_to_num(open_.hints["gain"], nan=0.0, posinf=_MOST, neginf=-_MOST) + 1e-9 * (upper - lower)
            gain = lib.where(divisible, gain, -1.0)
        return replace(open_.nodes, split=lib.where(lib.amax(gain, 1) > 0, gain.argmax(1), -1))

    def decide(self, leaf: Nodes) -> Leaf:
        """A box that is too narrow to be halved stays open: its bound is within rounding of the threshold."""
        return Leaf(False)

    def _gains(self, moves: Tensor, best: _Best, low: Tensor, high: Tensor, open_: Tensor) -> Tensor:
        """What halving each input is expected to take off the activations' share of the bounds of open boxes."""
        lam = best.lam
        if best.cost is None:
            return _gains(moves[:, open_], lam[open_], low[open_], high[open_])
        layers = zip(self.network.widths, self.network.functions, strict=True)
        ordinary = self.network.array(np.concatenate([np.full(w, f is None) for w, f in layers]))
        by_relus = _gains(moves[:, open_], (lam * ordinary)[open_], low[open_], high[open_])
        return by_relus + _curved_gains(moves[:, open_], (best.cost * ~ordinary)[open_], (high - low)[open_])

    def _enclosure(self, nodes: Nodes) -> Enclosure:
        shape = (-1, *self.network.input_shape)
        return Enclosure(self.network, nodes.state["lower"].reshape(shape), nodes.state["upper"].reshape(shape))

    def _bounded(self, nodes: Nodes, forward: Forward) -> tuple[Enclosure, Pushed, _Best]:
        enclosure, state = self._enclosure(nodes), nodes.state
        pushed = forward.tighten(enclosure, (state["layers_lower"], state["layers_upper"]) if self.remembered else None)
        return enclosure, pushed, self._best_rows(enclosure, nodes.region)

    def _try_symbols(self, nodes: Nodes, bound: Tensor) -> None:
        """From time to time, see on the lowest box whether more or fewer symbols would make the search shorter."""
        others = self.symbols_tried.others(len(nodes), self.symbols) if self.gain > 0 else []
        if not others:
            return
        lowest = counting(bound, len(nodes))[bound.argmin()][None]
        tried = {self.symbols_tried.now: (self.symbols, float(bound[lowest][0]))}
        for most in others:
            _, pushed, best = self._bounded(nodes[lowest], replace(self.forward, most=most))
            tried[most] = pushed.symbols, float(best.bound[0])
        self.symbols_tried.choose(tried, self.gain)
        if self.symbols_tried.now != self.forward.most:
            self.forward = replace(self.forward, most=self.symbols_tried.now)

    def _as_checked(self, nodes: Nodes, proved: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the proved boxes are proved by CROWN on all layers and nothing that is known of a larger box, and by
        which row. # (boxes,) each"""
        from surebound.bounds.root import tighten_layers

        claimed, row, proved = library(proved).argwhere(proved)[:, 0], 0 * nodes.region, proved & True
        together = max(8, self.strategy.box_elements // (2 * self.network.widest**2))
        for first in range(0, len(claimed), together):
            part = claimed[first : first + together]
            enclosure = self._enclosure(nodes[part])
            tighten_layers(enclosure, _CHECKED, self.clock.check)
            best = self._best_rows(enclosure, nodes.region[part])
            row[part], proved[part] = best.row, best.bound > self.least[nodes.region[part]]
        return proved, row

    def _best_rows(self, enclosure: Enclosure, region: Tensor) -> _Best:
        on_output, on_input, constant = (part[region] for part in self.rows)
        boxes, count = constant.shape
        form, rows = graph_rows(enclosure, on_output, on_input, constant)
        rows = replace(rows, error=form.start_error(rows))
        relaxation = relax_form(form).map(lambda t: t.reshape(boxes, -1))
        slopes, duals = Slopes.of(relaxation, None), Duals(relaxation.lower_slope, None, None)
        result = evaluate(timed(form, self.clock.check), rows, slopes, duals)
        bounds, lib = result.bound.reshape(boxes, count), library(constant)
        row = bounds.argmax(1)
        at = counting(row, boxes) * count + row
        bound, row = result.bound[at], lib.minimum(row, self.counts[region] - 1)
        lam = result.pulled.lam[at]
        cost = None if relaxation.floor is None else abs(lam) * _line_gaps(form, relaxation, lam)
        return _Best(bound, row, result.pulled.at_input[at], lam, result.x[at], cost)


def _line_gaps(form: GraphForm, relaxation: Relaxation, lam: Tensor) -> Tensor:
    """How far the line that a bound uses is from the activation in the middle of its interval. # (boxes, neurons)"""
    middle = form.lower.reshape(lam.shape) / 2 + form.upper.reshape(lam.shape) / 2
    value = concat([form.network.activate(k, middle[:, at]) for k, at in enumerate(form.layers)], 1)
    above = relaxation.upper_slope * middle + relaxation.intercept - value
    assert relaxation.floor is not None
    gap = library(lam).where(lam > 0, above, value - relaxation.lower_slope * middle - relaxation.floor)
    return library(gap).nan_to_num(gap, nan=0.0, posinf=_MOST, neginf=-_MOST)


def _curved_gains(moves: Tensor, cost: Tensor, width: Tensor) -> Tensor:
    """The same as below for curves, whose distance from lines goes with the square of an interval's width.

    # (inputs, boxes, neurons), (boxes, neurons) twice -> (boxes, inputs)
    """
    left = positive(1.0 - abs(moves) / retyped(_at_least(width, 1e-30), moves.dtype))
    return double(library(left).einsum("ibn,bn->bi", 1.0 - left * left, 2.0 * retyped(cost, moves.dtype)))


def _gains(moves: Tensor, lam: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """What halving each input is expected to take off the ReLUs' share of a bound, both halves together.

    An input whose symbol moves x̂ by ±g leaves [l̂ + |g|, û] and [l̂, û − |g|] in place of [l̂, û], if layers move in the
    halves as they do in the whole, and a row pays [λ̄]₊ b̄ for a neuron's upper line.
    # (inputs, boxes, neurons), (boxes, neurons) … -> (boxes, inputs)
    """
    g, below, above = abs(moves), retyped(positive(-low), moves.dtype), retyped(positive(high), moves.dtype)
    left, price, einsum = _intercept(positive(below - g), above), retyped(positive(lam), g.dtype), library(g).einsum
    left += _intercept(below, positive(above - g))
    whole = einsum("bn,bn->b", _intercept(below, above), price)
    return double(2 * whole[:, None] - einsum("ibn,bn->bi", left, price))


def _intercept(below: Tensor, above: Tensor) -> Tensor:
    """b̄ on [−below, above]; 0 where a neuron is stable."""
    product, width = below * above, _at_least(below + above, 1e-30)
    # Of temporary arrays, NumPy would ask the loader whether they are, and wait for a library that is being loaded.
    return product / width


def _at_least(x: Tensor, least: float) -> Tensor:
    return library(x).clip(x, least, inf)


def _middle(nodes: Nodes) -> Tensor:
    return (nodes.state["lower"] + nodes.state["upper"]) / 2

"""How layers are bounded forwards: with how many symbols, and with numbers of which type."""

from __future__ import annotations

from dataclasses import replace
from math import inf, log2
from typing import TYPE_CHECKING

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.precision import float32_is_kept, numpy_keeps_float32
from surebound.bounds.timed import Check
from surebound.bounds.zonotope import Forward
from surebound.network.arrays import Precision
from surebound.network.cost import CHUNK_ELEMENTS, PASS_PRODUCTS, products
from surebound.network.graph import Network
from surebound.verify.strategy import Strategy

if TYPE_CHECKING:
    from torch import Tensor

WIDER = 1.02  # times the width in float64, up to which float32 will do
SYMBOL_PRODUCTS = 8 * PASS_PRODUCTS  # multiply-adds of a pass forwards, which looks at the clock at every operation


def forwards(network: Network, check: Check, dtype: Precision = "float32") -> Forward:
    """How layers are bounded forwards: with as many symbols as fit in memory, and in the time between two checks."""
    most = min(CHUNK_ELEMENTS // network.widest, SYMBOL_PRODUCTS // max(products(network, network.output), 1))
    kept = numpy_keeps_float32() if network.numpy else float32_is_kept(network.device)
    return Forward(network, dtype if kept else "float64", most, check)


def sharpest_forwards(network: Network, lower: Tensor, upper: Tensor, check: Check, symbols: int) -> Forward:
    """The same in float32, or in float64 if layers of few symbols are wider in float32 by more than `WIDER`.

    What operations round is carried on by |A|, which in deep networks grows with each of them, and in proportion to the
    box: where float32 is too coarse for one box, it is for all of its parts. # (1, *input_shape) each
    """
    thin, wide = forwards(network, check), forwards(network, check, "float64")
    widths = (_total_width(_limited(forward, symbols), lower, upper) for forward in (thin, wide))
    return thin if next(widths) <= WIDER * next(widths) else wide


def _limited(forward: Forward, symbols: int) -> Forward:
    most = symbols if forward.most is None else min(forward.most, symbols)
    return replace(forward, most=most)


class Symbols:
    """How many symbols boxes get in a search: as many as make it shortest, tried now and then on the lowest box."""

    def __init__(self, most: int | None, strategy: Strategy) -> None:
        begin = strategy.symbols * strategy.symbol_trial
        self.most = inf if most is None else most
        self.now = int(min(self.most, begin))
        self.strategy = strategy
        self.wait, self.boxes = strategy.symbol_wait, 0

    def others(self, boxes: int, used: int) -> list[int]:
        """Which limits to try, after so many boxes more, of which one used so many symbols."""
        self.boxes += boxes
        if self.boxes < self.wait:
            return []
        least, times = self.strategy.symbols, self.strategy.symbol_trial
        fewer = [max(least, used // times)] if used > least else []
        return fewer + ([int(min(self.most, times * self.now))] if self.now < min(self.most, 2 * used) else [])

    def choose(self, tried: dict[int, tuple[int, float]], gain: float) -> None:
        """Take the best of some limits, with how many symbols they led to, and to which bound of the same box."""
        scores = {limit: self._score(*found, gain) for limit, found in tried.items()}
        best = min(scores, key=lambda limit: scores[limit])
        self.wait = 2 * self.wait if best == self.now else self.strategy.symbol_wait
        self.boxes, self.now = 0, best

    def _score(self, used: int, bound: float, gain: float) -> float:
        """The logarithm of what a box costs and of how many are to come, if the lowest rises by `gain` with a split."""
        return log2(self.strategy.symbols_of_a_box + used) - bound / gain


def _total_width(forward: Forward, lower: Tensor, upper: Tensor) -> float:
    enclosure = Enclosure(forward.network, lower, upper)
    forward.tighten(enclosure)
    low, high = enclosure.neurons()
    return float((high - low).sum())

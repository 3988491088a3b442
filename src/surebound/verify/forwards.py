"""How layers are bounded forwards: with how many symbols, and with numbers of which type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.precision import float32_is_kept, numpy_keeps_float32
from surebound.bounds.timed import Check
from surebound.bounds.zonotope import Forward
from surebound.network.arrays import Precision
from surebound.network.cost import CHUNK_ELEMENTS, PASS_PRODUCTS, products
from surebound.network.graph import Network

if TYPE_CHECKING:
    from torch import Tensor

WIDER = 1.02  # times the width in float64, up to which float32 will do
SYMBOL_PRODUCTS = 8 * PASS_PRODUCTS  # multiply-adds of a pass forwards, which looks at the clock at every operation


def forwards(network: Network, check: Check, dtype: Precision = "float32") -> Forward:
    """How layers are bounded forwards: with as many symbols as fit in memory, and in the time between two checks."""
    most = min(CHUNK_ELEMENTS // network.widest, SYMBOL_PRODUCTS // max(products(network, network.output), 1))
    kept = numpy_keeps_float32() if network.numpy else float32_is_kept(network.device)
    return Forward(network, dtype if kept else "float64", most, check)


def sharpest_forwards(network: Network, lower: Tensor, upper: Tensor, check: Check) -> Forward:
    """The same in float32, or in float64 if layers are wider in float32 by more than `WIDER`.

    What operations round is carried on by |A|, which in deep networks grows with each of them, and in proportion to the
    box: where float32 is too coarse for one box, it is for all of its parts. # (1, *input_shape) each
    """
    thin, wide = forwards(network, check), forwards(network, check, "float64")
    return thin if _total_width(thin, lower, upper) <= WIDER * _total_width(wide, lower, upper) else wide


def _total_width(forward: Forward, lower: Tensor, upper: Tensor) -> float:
    enclosure = Enclosure(forward.network, lower, upper)
    forward.tighten(enclosure)
    low, high = enclosure.neurons()
    return float((high - low).sum())

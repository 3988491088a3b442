"""Rounding: its constants, and how many roundings each number of a backward pass goes through.

Every error term of a proof is γ_n times a sum of absolute values (Higham 2002, section 3.1). The n are counted here, on
the network's own graph, and nowhere else; `docs/soundness.md` has the same list in the same order.
"""

from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from surebound.network.graph import Network

U = 2.0**-53  # unit roundoff of float64
U32 = 2.0**-24  # and of float32
TINY = 1e-300  # absorbs the underflow of a product
UNDERFLOW = 1e-200  # absorbs that of all products of a backward pass, as long as no number exceeds HUGE
FLUSHED = 2.0**-126  # below this, float32 may have rounded to zero
HUGE = 1e100  # beyond this a number counts as overflown
SLACK = 1.01  # absorbs the roundings made while computing error bounds themselves


def gamma(n: int) -> float:
    """A bound on n accumulated roundings in float64, relative."""
    return n * U * SLACK


def gamma32(n: int) -> float:
    """The same in float32, infinite where it would be large."""
    return n * U32 / (1.0 - n * U32) * SLACK if n * U32 < 0.25 else inf


class Counts:
    """How many roundings a backward pass through a network makes, by where it makes them."""

    def __init__(self, network: "Network") -> None:
        self._network = network

    @cached_property
    def _reads(self) -> tuple[int, ...]:
        reads = [0] * len(self._network.nodes)
        for node in self._network.nodes:
            for j in node.inputs:
                reads[j] += 1
        return tuple(reads)

    def sums(self, node: int) -> int:
        """Additions at a node: what its readers contribute to its coefficient, on top of what a row has there itself.

        A node that reads another several times contributes as often.
        """
        return self._reads[node]

    def adjoint(self, node: int) -> int:
        """A product in the adjoint of an affine node, until it is part of the coefficient on what the node reads."""
        op, inputs = self._network.nodes[node].op, self._network.nodes[node].inputs
        return getattr(op, "roundings", 0) + max((self.sums(j) for j in inputs), default=0)

    def relu(self, layer: int) -> int:
        """A coefficient μ̄ = slope · λ̄ + s β of a layer: that product and sum, and the additions at x̂_k."""
        return SLOPE + self.sums(self._network.before(layer))

    @cached_property
    def constants(self) -> int:
        """Additions of constants: every node's c·b, what fixed inputs contribute, and the row's own."""
        return 2 + sum(getattr(node.op, "bias", None) is not None for node in self._network.nodes)


SLOPE = 2
"""Roundings of μ̄ = slope · λ̄ + s β, relative to μ̄. Where β is not 0 the slope is 0 or 1, and the product exact."""
DECIMAL = 2
"""Roundings of a property's coefficient: from the decimal in the file, and of adding those on an output and an input
that are the same node."""

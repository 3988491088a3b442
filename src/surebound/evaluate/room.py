"""Memory that certifying takes, and how much of it each part may have."""

from dataclasses import dataclass

from surebound.errors import UsageError
from surebound.memory import available
from surebound.network.cost import CHUNK_ELEMENTS, products
from surebound.network.graph import Network
from surebound.network.linear import size

LEAST = 2**28
"""Bytes below which nothing large could be bounded."""
PROCESS = 2**29
"""Bytes of Python and the libraries."""
_PARAMETER = 32  # bytes of a weight: in the file, in float64 and float32, and their absolute values
_TENSORS = 12  # of the largest size that a pass has at once
_ROWS = 50  # images whose rows are bounded together, at most
_QUEUE = 2**30  # bytes that open subproblems hardly exceed in the time that an image has
_BYTES = 8  # of a float64 number
_SCREENED = 2**40  # multiply-adds of screening some images together, if none is proved: half a minute


@dataclass(frozen=True)
class Room:
    """How much memory a certification may take; None: as much as is there."""

    memory: int | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and not (isinstance(self.memory, int) and self.memory >= LEAST):
            raise UsageError(f"memory is {self.memory!r}; expected at least {LEAST} bytes (256M), or None")

    @property
    def queue(self) -> int | None:
        """Bytes for the open subproblems of a search, and as many for the folded network."""
        return None if self.memory is None else self.memory // 4

    @property
    def elements(self) -> int:
        """Numbers in the largest tensor of a pass."""
        return CHUNK_ELEMENTS if self.memory is None else min(CHUNK_ELEMENTS, self.memory // (4 * _TENSORS * _BYTES))

    def expected(self, network: Network) -> int:
        """Bytes that a process is expected to take, about, at most."""
        parameters = sum(size(tuple(node.op.weight.shape)) for node in network.nodes if hasattr(node.op, "weight"))
        widest, rows = network.widest, _ROWS * network.outputs
        passes = _TENSORS * _BYTES * min(self.elements, rows * widest)
        queue = min(available() // 4, _QUEUE) if self.queue is None else self.queue
        return PROCESS + _PARAMETER * parameters + passes + queue


def images_together(network: Network, passes: int, most: int) -> int:
    """How many images are screened together, if each may take so many passes forwards and backwards: few enough that
    there is news of them now and then."""
    return max(1, min(most, _SCREENED // (3 * passes * max(products(network, network.output), 1))))

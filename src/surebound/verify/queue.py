"""The open subproblems, lowest bound first, within a memory budget.

Nodes of one region come together, so that a batch has few regions: each that has planes of its own
(`surebound.verify.bounder`) is bounded by itself, and small batches are slow.

A node is a record of fixed width, whatever its space keeps of it. Up to the budget the records live in memory, beyond
it in a temporary file.
"""

import heapq
import os
import tempfile
import zlib
from array import array
from collections import defaultdict
from typing import TYPE_CHECKING, final

import numpy as np
from numpy.typing import NDArray

from surebound.errors import ResourceError, reason
from surebound.network.arrays import alike, to_numpy
from surebound.verify.node import Nodes

if TYPE_CHECKING:
    from torch import Tensor


@final
class _Spill:
    """Records of one size in a file without a name, which the system frees however this process ends.

    It is written by calls that say so when the disk is full; a file that is mapped into memory ends the process then.
    What is read is compared with a checksum: a node that came back changed could leave part of the box unproved.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._sums = array("I")  # of the record in each slot
        self._file = tempfile.TemporaryFile(prefix="surebound-queue-", buffering=0)  # noqa: SIM115

    def write(self, slot: int, record: bytes) -> None:
        """Write a slot that was used before, or the one after the last."""
        if slot == len(self._sums):
            self._sums.append(0)
        self._sums[slot] = zlib.crc32(record)
        left, place = memoryview(record), slot * self._size
        while left:  # a disk that is almost full takes part of it
            done = os.pwrite(self._file.fileno(), left, place)
            left, place = left[done:], place + done

    def read(self, slot: int) -> bytes:
        record = os.pread(self._file.fileno(), self._size, slot * self._size)
        if len(record) != self._size or zlib.crc32(record) != self._sums[slot]:
            raise OSError("a subproblem came back other than it was written")
        return record

    def close(self) -> None:
        self._file.close()


class Queue:
    """A priority queue of nodes of one space; the last ones come first where it is `depth_first`."""

    def __init__(self, budget: int, *, depth_first: bool = False) -> None:
        """`budget` in bytes; what does not fit is kept on disk."""
        self._budget, self._depth_first = budget, depth_first
        self._record = np.dtype([])
        self._sample: Tensor | None = None  # shows whether nodes are NumPy's or torch's
        self._in_memory = 0
        self._memory: NDArray[np.void] = np.empty(0, self._record)
        self._disk: _Spill | None = None
        self._heaps = defaultdict[int, list[tuple[float, int]]](list)  # region -> bounds and slots; none is empty
        self._unused: list[int] = []
        self._top = self._pushed = 0

    def __len__(self) -> int:
        return sum(map(len, self._heaps.values()))

    @property
    def lowest(self) -> float:
        """The lowest bound of an open node; +inf when there is none, and −inf where bounds are not what orders."""
        if not self._heaps:
            return float("inf")
        return float("-inf") if self._depth_first else min(heap[0][0] for heap in self._heaps.values())

    @property
    def regions(self) -> list[int]:
        """Those that have nodes here, in order."""
        return sorted(self._heaps)

    @property
    def spilled(self) -> bool:
        """Whether some of it is on disk."""
        return self._disk is not None

    def push(self, nodes: Nodes) -> None:
        """Add nodes."""
        columns = nodes.columns()
        if not self._record.names:
            self._begin(np.dtype([(n, to_numpy(v[:0]).dtype, tuple(v.shape[1:])) for n, v in columns.items()]))
            self._sample = nodes.region[:0]
        records = np.empty(len(nodes), self._record)
        for name, value in columns.items():
            records[name] = to_numpy(value)
        slots = [self._slot() for _ in range(len(nodes))]
        for region, bound, slot in zip(nodes.region.tolist(), nodes.bound.tolist(), slots, strict=True):
            self._pushed += 1  # all of them first: `lowest` holds also if the disk is full
            heapq.heappush(self._heaps[region], (-self._pushed if self._depth_first else bound, slot))
        self._write(np.array(slots, dtype=np.int64), records)

    def _begin(self, record: "np.dtype[np.void]") -> None:
        self._record = record
        self._in_memory = max(64, self._budget // max(record.itemsize, 1))
        self._memory = np.empty(min(1024, self._in_memory), record)

    def pop(self, count: int) -> Nodes:
        """Take `count` nodes, or all if there are fewer: those of the region that has the lowest one, from the lowest
        on, then those of the region that has the lowest of the rest."""
        slots = list[int]()
        for _, region in sorted((heap[0], region) for region, heap in self._heaps.items()):
            heap = self._heaps[region]
            slots += [heapq.heappop(heap)[1] for _ in range(min(count - len(slots), len(heap)))]
            if not heap:
                del self._heaps[region]
        records = self._read(np.array(slots, dtype=np.int64))
        for slot in slots:
            heapq.heappush(self._unused, slot)
        assert self._sample is not None
        return Nodes.of({name: alike(records[name].copy(), self._sample) for name in self._record.names or ()})

    def close(self) -> None:
        """Free the temporary file, if there is one."""
        if self._disk is not None:
            self._disk.close()
            self._disk = None

    def _slot(self) -> int:
        if self._unused:
            return heapq.heappop(self._unused)  # the lowest first, which is in memory if any is
        self._top += 1
        return self._top - 1

    def _read(self, slots: NDArray[np.int64]) -> NDArray[np.void]:
        records, here = np.empty(len(slots), self._record), slots < self._in_memory
        records[here] = self._memory[slots[here]]
        for i in np.flatnonzero(~here):
            records[i] = self._read_from_disk(int(slots[i]) - self._in_memory)
        return records

    def _read_from_disk(self, slot: int) -> np.void:
        assert self._disk is not None
        try:
            stored = self._disk.read(slot)
        except OSError as error:
            raise ResourceError(f"{_OUTGREW} cannot be read back from '{_place()}' ({reason(error)})") from error
        return np.frombuffer(stored, self._record)[0]  # type: ignore[no-any-return]

    def _write(self, slots: NDArray[np.int64], records: NDArray[np.void]) -> None:
        here = slots < self._in_memory
        needed = int(slots[here].max(initial=-1)) + 1
        if needed > len(self._memory):
            grown = np.empty(min(max(2 * len(self._memory), needed), self._in_memory), self._record)
            grown[: len(self._memory)] = self._memory
            self._memory = grown
        self._memory[slots[here]] = records[here]
        for i in np.flatnonzero(~here):
            self._write_to_disk(int(slots[i]) - self._in_memory, records[i])

    def _write_to_disk(self, slot: int, record: np.void) -> None:
        try:
            if self._disk is None:
                self._disk = _Spill(self._record.itemsize)
            self._disk.write(slot, record.tobytes())
        except OSError as error:
            raise ResourceError(
                f"{_OUTGREW} cannot be kept in '{_place()}' ({reason(error)}); "
                "expected room there, $TMPDIR to name a folder with room, or a larger --memory"
            ) from error


_OUTGREW = "the search queue outgrew its memory and"


def _place() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "a temporary folder"

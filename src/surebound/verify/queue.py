"""The open subproblems, lowest bound first, within a memory budget.

A node is a few rows of fixed-width arrays: its splits, its duals in half precision (they are a starting point: every
bound is evaluated anew from them) and the neuron to split next. Up to the budget the arrays live in memory, beyond it
in a temporary file.
"""

import heapq
import os
import tempfile
import zlib
from array import array
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Nodes
from surebound.errors import ResourceError

_BETA_LIMIT = 6e4  # float16 ends at 65,504


@dataclass(frozen=True, eq=False)
class Batch:
    """Nodes on their way into or out of the queue."""

    nodes: Nodes
    duals: Duals
    bound: Tensor  # (nodes,)
    depth: Tensor  # (nodes,) int64
    split: Tensor  # (nodes,) int64 the neuron to split next

    def __len__(self) -> int:
        return len(self.nodes)


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
    """A priority queue of nodes over `neurons` relaxed neurons and regions of up to `rows` rows."""

    def __init__(self, neurons: int, rows: int, budget: int) -> None:
        """`budget` in bytes; what does not fit is kept on disk."""
        self._record = np.dtype(
            [
                ("signs", np.int8, neurons),
                ("alpha", np.float16, neurons),
                ("beta", np.float16, neurons),
                ("mix", np.float32, rows),
                ("region", np.int32),
                ("depth", np.int32),
                ("split", np.int32),
            ]
        )
        self._rows = rows
        self._in_memory = max(64, budget // max(self._record.itemsize, 1))
        self._memory = np.empty(min(1024, self._in_memory), self._record)
        self._disk: _Spill | None = None
        self._heap: list[tuple[float, int]] = []
        self._unused: list[int] = []
        self._top = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def lowest(self) -> float:
        """The lowest bound of an open node; +inf when there is none."""
        return self._heap[0][0] if self._heap else float("inf")

    @property
    def spilled(self) -> bool:
        """Whether some of it is on disk."""
        return self._disk is not None

    def push(self, batch: Batch) -> None:
        """Add nodes."""
        records = np.empty(len(batch), self._record)
        signs, beta, mix = batch.nodes.signs, batch.duals.beta, batch.duals.mix
        records["signs"] = 0 if signs is None else signs.numpy()
        records["alpha"] = batch.duals.alpha.numpy()
        records["beta"] = 0 if beta is None else beta.clamp_max(_BETA_LIMIT).numpy()
        records["mix"] = 1 if mix is None else mix.numpy()
        records["region"] = batch.nodes.region.numpy()
        records["depth"] = batch.depth.numpy()
        records["split"] = batch.split.numpy()
        slots = [self._slot() for _ in range(len(batch))]
        for bound, slot in zip(batch.bound.tolist(), slots, strict=True):
            heapq.heappush(self._heap, (bound, slot))  # all of them first: `lowest` holds also if the disk is full
        for slot, record in zip(slots, records, strict=True):
            self._write(slot, record)

    def pop(self, count: int) -> Batch:
        """Take the `count` nodes with the lowest bounds, or all if there are fewer."""
        taken = [heapq.heappop(self._heap) for _ in range(min(count, len(self._heap)))]
        slots = [slot for _, slot in taken]
        records = np.stack([self._read(slot) for slot in slots]) if slots else np.empty(0, self._record)
        for slot in slots:
            heapq.heappush(self._unused, slot)
        mix = torch.from_numpy(records["mix"].copy()) if self._rows > 1 else None
        duals = Duals(
            torch.from_numpy(records["alpha"].astype(np.float32)),
            torch.from_numpy(records["beta"].astype(np.float32)),
            mix,
        )
        nodes = Nodes(torch.from_numpy(records["region"].astype(np.int64)), torch.from_numpy(records["signs"].copy()))
        return Batch(
            nodes,
            duals,
            torch.tensor([bound for bound, _ in taken]),
            torch.from_numpy(records["depth"].astype(np.int64)),
            torch.from_numpy(records["split"].astype(np.int64)),
        )

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

    def _read(self, slot: int) -> np.void:
        if slot < self._in_memory:
            return self._memory[slot]  # type: ignore[no-any-return]
        assert self._disk is not None
        try:
            stored = self._disk.read(slot - self._in_memory)
        except OSError as error:
            raise ResourceError(f"{_OUTGREW} cannot be read back from '{_place()}' ({_reason(error)})") from error
        return np.frombuffer(stored, self._record)[0]  # type: ignore[no-any-return]

    def _write(self, slot: int, record: np.void) -> None:
        if slot >= self._in_memory:
            self._write_to_disk(slot - self._in_memory, record)
            return
        if slot >= len(self._memory):
            grown = np.empty(min(2 * len(self._memory), self._in_memory), self._record)
            grown[: len(self._memory)] = self._memory
            self._memory = grown
        self._memory[slot] = record

    def _write_to_disk(self, slot: int, record: np.void) -> None:
        try:
            if self._disk is None:
                self._disk = _Spill(self._record.itemsize)
            self._disk.write(slot, record.tobytes())
        except OSError as error:
            raise ResourceError(
                f"{_OUTGREW} cannot be kept in '{_place()}' ({_reason(error)}); "
                "expected room there, $TMPDIR to name a folder with room, or a larger --memory"
            ) from error


_OUTGREW = "the search queue outgrew its memory and"


def _place() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return "a temporary folder"


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()

"""The open subproblems, lowest bound first, within a memory budget.

A node is a few rows of fixed-width arrays: its splits, its duals in half precision (they are a starting point: every
bound is evaluated anew from them) and the neuron to split next. Up to the budget the arrays live in memory, beyond it
in a temporary file.
"""

import heapq
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
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
        self._disk: NDArray[np.void] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
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
        for record, bound in zip(records, batch.bound.tolist(), strict=True):
            slot = self._slot()
            self._write(slot, record)
            heapq.heappush(self._heap, (bound, slot))

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
        """Remove the temporary file, if there is one."""
        self._disk = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _slot(self) -> int:
        if self._unused:
            return heapq.heappop(self._unused)  # the lowest first, which is in memory if any is
        self._top += 1
        return self._top - 1

    def _read(self, slot: int) -> np.void:
        if slot < self._in_memory:
            return self._memory[slot]  # type: ignore[no-any-return]
        assert self._disk is not None
        return self._disk[slot - self._in_memory]  # type: ignore[no-any-return]

    def _write(self, slot: int, record: np.void) -> None:
        if slot >= self._in_memory:
            self._reserve_disk(slot - self._in_memory + 1)[slot - self._in_memory] = record
            return
        if slot >= len(self._memory):
            grown = np.empty(min(2 * len(self._memory), self._in_memory), self._record)
            grown[: len(self._memory)] = self._memory
            self._memory = grown
        self._memory[slot] = record

    def _reserve_disk(self, records: int) -> NDArray[np.void]:
        if self._disk is not None and records <= len(self._disk):
            return self._disk
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="surebound-queue-")
        capacity = max(1024, 2 * records)
        path = Path(self._folder.name) / "nodes"
        try:
            with path.open("r+b" if self._disk is not None else "w+b") as file:
                file.truncate(capacity * self._record.itemsize)
            self._disk = np.memmap(path, self._record, "r+", shape=(capacity,))
        except OSError as error:
            raise ResourceError(
                f"the search queue does not fit in memory and cannot be kept on disk: {error}"
            ) from error
        return self._disk

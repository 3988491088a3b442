"""Trees of splits as they grow, one for each row: what was split, and the duals that bound each part."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.bounds.witness import GRID
from surebound.proof.spool import Spool

Array = NDArray[Any]
CHUNK = 4096  # leaves written together


@dataclass(frozen=True, eq=False)
class Leaves:
    """Parts that are closed, and by what. β is 0 where a neuron is not split."""

    number: Array  # (leaves,)
    signs: Array  # (leaves, neurons) int8
    alpha: Array  # (leaves, neurons)
    beta: Array  # (leaves, neurons)
    pi: Array | None = None  # (leaves, rows); None: every tree is about one row
    planes: bool = False  # whether they were bounded with planes


@dataclass(frozen=True, eq=False)
class Branches:
    """What grew elsewhere on some nodes of a forest: those are numbered 0, 1, …, and children after their parents."""

    splits: Sequence[Array]
    cuts: Sequence[Array]
    merged: Sequence[int]
    leaves: Sequence[dict[str, Array]]  # each with its `number`


class Forest:
    """Nodes are numbered as they come: the roots 0, 1, …, and children after their parents."""

    def __init__(self, roots: int, neurons: Array) -> None:
        """`neurons` are the numbers, in the whole network, of those that may be split."""
        self.roots, self.neurons = roots, neurons
        self._splits: list[Array] = []  # (splits, 4): parent, neuron or input, first child, second child
        self._cuts: list[Array] = []  # (splits,) where inputs are cut
        self._merged: set[int] = set()
        self._closed: list[Array] = []  # the numbers of the leaves, chunk by chunk
        self._leaves = Spool()
        self._waiting: dict[tuple[str, ...], list[dict[str, Array]]] = {}  # by kind, until there is enough for a chunk

    def split(self, parent: Array, what: Array, first: Array, second: Array, at: Array | None = None) -> None:
        """The first child of a neuron is the active half. An input is cut `at` a number, the lower half first."""
        self._splits.append(np.stack([parent, what, first, second], axis=1).astype(np.int64))
        if at is not None:
            self._cuts.append(at.astype(np.float64))

    def merge(self, parent: Array) -> None:
        """Parts that were split and are to be closed after all, in place of both their halves."""
        self._merged.update(parent.tolist())

    def close(self, leaves: Leaves) -> None:
        """Parts that need not be split."""
        self._take({"number": leaves.number} | _packed(leaves))

    def close_boxes(self, number: Array, row: Array) -> None:
        """Parts of a box, each by one of its rows."""
        self._take({"number": number, "row": row.astype(np.int32)})

    def branches(self) -> Branches:
        """All of it, to be grafted onto another forest."""
        self._end_chunks()
        leaves = [{"number": number} | arrays for number, arrays in zip(self._closed, self._leaves, strict=True)]
        return Branches(self._splits, self._cuts, sorted(self._merged), leaves)

    def graft(self, branches: Branches, numbers: Array) -> None:
        """Let branches grow here, their nodes renamed to `numbers`: of which each child's is above its parent's."""
        for splits in branches.splits:
            parent, what, first, second = splits.T
            self._splits.append(np.stack([numbers[parent], what, numbers[first], numbers[second]], axis=1))
        self._cuts.extend(branches.cuts)
        self._merged.update(numbers[np.array(branches.merged, np.int64)].tolist())
        for leaves in branches.leaves:
            self._take(leaves | {"number": numbers[leaves["number"]]})

    def _end_chunks(self) -> None:
        for kind in list(self._waiting):
            self._chunk(kind)

    def _take(self, leaves: dict[str, Array]) -> None:
        if len(leaves["number"]):
            kind = tuple(f"{name} {array.dtype}" for name, array in leaves.items())
            waiting = self._waiting.setdefault(kind, [])
            waiting.append(leaves)
            if sum(len(part["number"]) for part in waiting) >= CHUNK:
                self._chunk(kind)

    def _chunk(self, kind: tuple[str, ...]) -> None:
        parts = self._waiting.pop(kind)
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self._closed.append(arrays.pop("number").astype(np.int64))
        self._leaves.add(arrays)

    def written(self, root: int | None = None) -> tuple[dict[str, Array], Iterator[dict[str, Array]]]:
        """All trees, or one, as they are written: members of the step, and those of each chunk of leaves.

        The members are `tree`, `roots` and, where inputs are cut, `at`; there are none where nothing is split.
        """
        self._end_chunks()
        splits = np.concatenate([np.zeros((0, 4), np.int64), *self._splits])
        cuts = np.concatenate(self._cuts) if self._cuts else None
        kept = ~np.isin(splits[:, 0], list(self._merged))
        splits, cuts = splits[kept], None if cuts is None else cuts[kept]
        order = np.argsort(splits[:, 0], kind="stable")
        splits, cuts = splits[order], None if cuts is None else cuts[order]
        paths = _Paths(splits, self.roots)
        roots = np.arange(self.roots)
        chosen = [np.ones(len(number), dtype=bool) for number in self._closed]
        if root is not None:
            mine = paths.root[splits[:, 0]] == root
            splits, cuts, roots = splits[mine], None if cuts is None else cuts[mine], np.array([root])
            chosen = [paths.root[number] == root for number in self._closed]
        closed = [number[some] for number, some in zip(self._closed, chosen, strict=True)]
        members = _members(splits, cuts, roots, np.concatenate([np.zeros(0, np.int64), *closed]))
        return members, self._chunks(chosen, paths)

    def _chunks(self, chosen: Sequence[Array], paths: "_Paths") -> Iterator[dict[str, Array]]:
        for chunk, number, some in zip(self._leaves, self._closed, chosen, strict=True):
            if not some.any():
                continue
            mine = {name: array[some] for name, array in chunk.items()}
            if "beta" in mine:
                mine["beta"] = _along_paths(mine["beta"], number[some], paths, self.neurons)
            yield mine


def _members(splits: Array, cuts: Array | None, roots: Array, closed: Array) -> dict[str, Array]:
    unknown = np.iinfo(np.int64).min
    total = max(part.max() + 1 for part in (roots, closed, splits) if part.size)
    where = np.full(total, unknown)
    where[closed] = -1 - np.arange(len(closed))
    where[splits[:, 0]] = np.arange(len(splits))
    if (where[roots] == unknown).any() or (where[splits[:, 2:]] == unknown).any():
        raise ValueError("a part of a tree was neither split nor closed")
    if not len(splits) and np.array_equal(where[roots], -1 - np.arange(len(roots))):
        return {}
    tree = np.concatenate([splits[:, 1:2], where[splits[:, 2:]]], axis=1).astype(np.int32)
    found = {"tree": tree, "roots": where[roots].astype(np.int32)}
    return found if cuts is None else found | {"at": cuts}


class _Paths:
    """From a node up to its root."""

    def __init__(self, splits: Array, roots: int) -> None:
        total = max([roots, *([splits.max() + 1] if splits.size else [])])
        self.parent, self.neuron = np.full(total, -1), np.full(total, -1)
        for column in (2, 3):
            self.parent[splits[:, column]] = splits[:, 0]
            self.neuron[splits[:, column]] = splits[:, 1]
        self.root = np.arange(total)
        while (self.parent[self.root] >= 0).any():
            self.root = np.where(self.parent[self.root] >= 0, self.parent[self.root], self.root)

    def to(self, leaf: Array) -> Array:
        """The neurons on the way to leaves, from the root on; −1 after the last. # (leaves, longest)"""
        steps, now = [], leaf
        while (self.parent[now] >= 0).any():
            steps.append(np.where(self.parent[now] >= 0, self.neuron[now], -1))
            now = np.where(self.parent[now] >= 0, self.parent[now], now)
        if not steps:
            return np.zeros((len(leaf), 0), np.int64)
        path = np.stack(steps[::-1], axis=1)  # aligned at the leaf: blanks come first
        return np.take_along_axis(path, np.argsort(path < 0, axis=1, kind="stable"), axis=1)


def _along_paths(beta: Array, number: Array, paths: _Paths, neurons: Array) -> Array:
    """β of the split neurons, leaf after leaf, each from its root on."""
    path = paths.to(number)
    column = np.searchsorted(neurons, np.maximum(path, neurons[0])) if path.size else path
    return np.take_along_axis(beta, column, axis=1)[path >= 0]


def _packed(leaves: Leaves) -> dict[str, Array]:
    """α as bytes where they are on the grid, and only where they matter."""
    alpha = np.where(leaves.signs != 0, 0, leaves.alpha)
    scaled = alpha * GRID
    if (scaled == np.round(scaled)).all() and ((scaled >= 0) & (scaled <= GRID)).all():
        alpha = scaled.astype(np.uint8)
    found = {"alpha": alpha, "beta": leaves.beta}
    if leaves.pi is not None:
        found["pi"] = leaves.pi
    if leaves.planes:
        found["planes"] = np.zeros((len(alpha), 0), np.uint8)  # that it is there says all
    return found

"""One batch of subproblems, whatever is split: the only thing that a queue holds and that a tree hands around."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from surebound.network.arrays import Precision, concat, counting, library, repeated, retyped, tensor

if TYPE_CHECKING:
    import torch
    from torch import Tensor


_COLUMNS = ("region", "bound", "depth", "split", "number")


@dataclass(frozen=True, eq=False)
class Nodes:
    """Subproblems, one to a row of every tensor, or of every NumPy array."""

    region: Tensor  # (nodes,) int64, the region (or the row) that each is a part of
    bound: Tensor  # (nodes,) what is known of it from below: it orders the queue and proves nothing
    depth: Tensor  # (nodes,) int64, the number of splits
    split: Tensor  # (nodes,) int64, the neuron or input to split next; −1 where nothing is left to split
    number: Tensor  # (nodes,) int64, its name in the tree
    state: dict[str, Tensor]  # (nodes, …) what its space keeps: splits and duals, or the ends of a box

    @staticmethod
    def roots(region: Tensor, state: dict[str, Tensor], dtype: Precision | torch.dtype = "float32") -> Nodes:
        """Unsplit subproblems, of which nothing is known."""
        zero = library(region).zeros_like(region)
        return Nodes(region, retyped(zero, dtype) - inf, zero, zero - 1, zero - 1, state)

    def __len__(self) -> int:
        return len(self.region)

    def __getitem__(self, index: Tensor) -> Nodes:
        return Nodes.of({name: value[index] for name, value in self.columns().items()})

    def columns(self) -> dict[str, Tensor]:
        """Everything that is known of the nodes, by name. # (nodes, …) each"""
        return {**{name: getattr(self, name) for name in _COLUMNS}, **self.state}

    @staticmethod
    def of(columns: Mapping[str, Tensor]) -> Nodes:
        """The nodes that have these columns."""
        state = dict(columns)
        region, bound, depth, split, number = (state.pop(name) for name in _COLUMNS)
        return Nodes(region, bound, depth, split, number, state)

    def halved(self) -> Nodes:
        """Each node twice in a row, one level deeper: its halves, once their splits are put in."""
        both = self[repeated(counting(self.region, len(self)), 2)]
        return replace(both, depth=both.depth + 1, split=0 * both.split - 1)

    def tensors(self, device: str = "cpu") -> Nodes:
        """The same over torch's tensors on a device, which share the numbers if they are there."""
        return Nodes.of({name: tensor(value, device) for name, value in self.columns().items()})


def joined(parts: Sequence[Nodes]) -> Nodes:
    """Batches of one space, one after the other."""
    columns = [part.columns() for part in parts]
    return Nodes.of({name: concat([part[name] for part in columns], 0) for name in columns[0]})


def halves_by_sign(parents: Nodes, first: Tensor | None = None) -> Nodes:
    """The halves of nodes whose state has `signs` of neurons: s x̂ ≥ 0 with s = `first` (or 1), then with −s.

    # first: (parents,) int8
    """
    halves = parents.halved()
    one = retyped(0 * parents.split + 1, "int8") if first is None else first
    signs, n = halves.state["signs"], counting(one, len(parents))
    signs[2 * n, parents.split], signs[2 * n + 1, parents.split] = one, -one
    return halves

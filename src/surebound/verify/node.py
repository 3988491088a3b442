"""One batch of subproblems, whatever is split: the only thing that a queue holds and that a tree hands around."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Nodes:
    """Subproblems, one to a row of every tensor."""

    region: Tensor  # (nodes,) int64, the region (or the row) that each is a part of
    bound: Tensor  # (nodes,) what is known of it from below: it orders the queue and proves nothing
    depth: Tensor  # (nodes,) int64, the number of splits
    split: Tensor  # (nodes,) int64, the neuron or input to split next; −1 where nothing is left to split
    number: Tensor  # (nodes,) int64, its name in the tree
    state: dict[str, Tensor]  # (nodes, …) what its space keeps: splits and duals, or the ends of a box

    @staticmethod
    def roots(region: Tensor, state: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> "Nodes":
        """Unsplit subproblems, of which nothing is known."""
        zero = torch.zeros_like(region)
        return Nodes(region, torch.full_like(region, -torch.inf, dtype=dtype), zero, zero - 1, zero - 1, state)

    def __len__(self) -> int:
        return len(self.region)

    def __getitem__(self, index: Tensor) -> "Nodes":
        state = {name: value[index] for name, value in self.state.items()}
        return Nodes(
            self.region[index], self.bound[index], self.depth[index], self.split[index], self.number[index], state
        )

    def halved(self) -> "Nodes":
        """Each node twice in a row, one level deeper: its halves, once their splits are put in."""
        both = self[torch.arange(len(self), device=self.region.device).repeat_interleave(2)]
        return replace(both, depth=both.depth + 1, split=both.split.new_full(both.split.shape, -1))


def joined(parts: Sequence[Nodes]) -> Nodes:
    """Batches of one space, one after the other."""
    own = ([getattr(p, name) for p in parts] for name in ("region", "bound", "depth", "split", "number"))
    region, bound, depth, split, number = map(torch.cat, own)
    state = {name: torch.cat([p.state[name] for p in parts]) for name in parts[0].state}
    return Nodes(region, bound, depth, split, number, state)


def halves_by_sign(parents: Nodes, first: Tensor | None = None) -> Nodes:
    """The halves of nodes whose state has `signs` of neurons: s x̂ ≥ 0 with s = `first` (or 1), then with −s.

    # first: (parents,) int8
    """
    halves = parents.halved()
    one = torch.ones_like(parents.split, dtype=torch.int8) if first is None else first
    place = torch.arange(len(halves), device=parents.split.device), parents.split.repeat_interleave(2)
    halves.state["signs"][place] = torch.stack([one, -one], dim=1).flatten()
    return halves

"""Sinks that write down a search's tree, with the duals that closed each leaf."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Duals, Splits
from surebound.bounds.witness import on_grid
from surebound.network.arrays import to_numpy
from surebound.proof import ROOM
from surebound.proof.forest import Forest, Leaves
from surebound.proof.record import BoxRecord
from surebound.verify.bounder import RegionPlanes
from surebound.verify.node import Nodes
from surebound.verify.spaces.neurons import state_of
from surebound.verify.subject import Subject
from surebound.verify.tree import How

_MERGE = Ascent(iterations=20)  # on a node whose halves are proved


class NeuronSink:
    """Sees splits of neurons. The state of a closed node has the duals that prove it: signs, alpha, beta and mix.

    Where both halves of a node are proved at once, more iterations on the node itself may spare both: that is tried on
    a share of the nodes.
    """

    def __init__(self, neurons: NDArray[np.int64], subject: Subject, *, share: float = 0.0) -> None:
        """`neurons` are the numbers, in the whole network, of those of the subject."""
        self._subject, self._share, self._seen, self._tried = subject, share, 0, 0
        self._open = torch.nonzero(subject.relaxation.ambiguous).flatten()
        self._neurons = neurons
        self._halves: dict[int, tuple[int, int]] = {}  # first of two halves -> the node, and what was split
        self.forest = Forest(subject.regions, self._neurons[to_numpy(self._open)])
        self.least = ROOM * float(subject.specification.row_scale().max())  # of a bound that proves

    def split(self, parents: Nodes, halves: Nodes) -> None:
        number, place = halves.number.reshape(-1, 2), parents.split[:, None]
        active = halves.state["signs"][::2].gather(1, place)[:, 0] > 0
        first, second = (torch.where(active, number[:, i], number[:, 1 - i]) for i in (0, 1))
        what = self._neurons[to_numpy(parents.split)]
        self.forest.split(to_numpy(parents.number), what, to_numpy(first), to_numpy(second))
        self._seen += len(halves)
        pairs = zip(parents.number.tolist(), parents.split.tolist(), strict=True)
        self._halves = dict(zip(number[:, 0].tolist(), pairs, strict=True))  # no others are bounded before the next

    def closed(self, nodes: Nodes, how: How) -> None:
        if how == "undecided" or not len(nodes):
            return
        if how == "bound" and self._tried < self._share * self._seen:
            nodes = self._merged(nodes)
        self._close(nodes)

    def _close(self, nodes: Nodes) -> None:
        planed = _planed(nodes)
        for some, planes in ((~planed, False), (planed, True)):
            if bool(some.any()):
                self._put(nodes[some], planes)

    def _put(self, nodes: Nodes, planes: bool) -> None:
        signs, alpha, beta = (to_numpy(nodes.state[name][:, self._open]) for name in ("signs", "alpha", "beta"))
        mix = nodes.state.get("mix")
        number = to_numpy(nodes.number)
        self.forest.close(Leaves(number, signs, alpha, beta, None if mix is None else to_numpy(mix), planes))

    def _merged(self, nodes: Nodes) -> Nodes:
        """Close a parent in the place of two halves, both bounded by lines, where its own bound proves it. Return the
        nodes that are left."""
        number, planed = nodes.number.tolist(), _planed(nodes).tolist()
        pairs = [i for i, n in enumerate(number[:-1]) if n in self._halves and number[i + 1] == n + 1 and not planed[i]]
        if not pairs:
            return nodes
        self._tried += len(pairs)
        device = nodes.number.device
        first, row = torch.tensor(pairs, device=device), torch.arange(len(pairs), device=device)
        parent, neuron = torch.tensor([self._halves[number[i]] for i in pairs], device=device).T
        state = {
            name: (value[first] + value[first + 1]) / 2
            for name, value in nodes.state.items()
            if name not in ("signs", "planes")
        }
        signs = nodes.state["signs"][first]
        signs[row, neuron], state["beta"][row, neuron] = 0, 0.0
        state["alpha"][row, neuron] = self._subject.fast_relaxation.lower_slope[neuron]
        splits = Splits(nodes.region[first], signs)
        found = self._subject.bound(splits, Duals(state["alpha"], state["beta"], state.get("mix")), _MERGE).duals
        found = replace(found, alpha=on_grid(found.alpha))
        proved = self._subject.sound_bounds(splits, found) > self.least
        whole = replace(nodes[first], number=parent, state=state_of(splits, found))[proved]
        self.forest.merge(to_numpy(whole.number))
        self._close(whole)
        left = torch.ones_like(nodes.number, dtype=torch.bool)
        left[first[proved]] = left[first[proved] + 1] = False
        return nodes[left]


def _planed(nodes: Nodes) -> Tensor:
    """Which nodes were bounded with planes; by whatever has none, none were. # (nodes,) bool"""
    return nodes.state.get("planes", torch.zeros_like(nodes.region, dtype=torch.bool))


class InputSink:
    """Sees bisections. The state of a closed node has the row that proves it."""

    def __init__(self, regions: int, neurons: int) -> None:
        self.neurons = neurons
        self.forest = Forest(regions, np.zeros(0, np.int64))

    def split(self, parents: Nodes, halves: Nodes) -> None:
        cut = halves.state["upper"][::2].gather(1, parents.split[:, None])[:, 0]
        first, second = halves.number.reshape(-1, 2).T
        what = parents.split + self.neurons
        self.forest.split(*map(to_numpy, (parents.number, what, first, second, cut)))

    def closed(self, nodes: Nodes, how: How) -> None:
        if how != "undecided":
            self.forest.close_boxes(to_numpy(nodes.number), to_numpy(nodes.state["row"]))


@dataclass(frozen=True, eq=False)
class Recording:
    """Where the trees of a search go: regions of a box, by their numbers in the property."""

    record: BoxRecord
    regions: Sequence[int]

    def neurons(self, subject: Subject, forest: Forest, planes: RegionPlanes) -> None:
        """Trees over neurons proved all regions, some of them with planes."""
        for root, region in enumerate(self.regions):
            some = self.record.planes(subject.form, planes[root]) if root in planes else {}
            self.record.by_tree(region, subject.specification.count(root), forest, root, some)

    def inputs(self, forest: Forest) -> None:
        """Trees over parts of the box did."""
        for root, region in enumerate(self.regions):
            self.record.by_boxes(region, forest, root)

    def roots(self, subject: Subject, duals: Duals, bounds: Tensor) -> Tensor:
        """Bounds without splits, less what they have to be above 0 by; those that are need no tree."""
        sink = NeuronSink(self.record.neurons(subject.form), subject)
        proved = torch.nonzero(bounds > sink.least).flatten()
        state = state_of(Splits(proved, None), duals[proved])
        sink.closed(replace(Nodes.roots(proved, state), number=proved), "bound")
        for root in proved.tolist():
            self.record.by_tree(self.regions[root], subject.specification.count(root), sink.forest, root)
        return bounds - sink.least

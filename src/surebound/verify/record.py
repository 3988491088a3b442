"""Sinks that write down a search's tree, with the duals that closed each leaf."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Duals
from surebound.proof.forest import Forest, Leaves
from surebound.proof.record import ROOM, BoxRecord
from surebound.verify.node import Nodes
from surebound.verify.subject import Subject
from surebound.verify.tree import How


class NeuronSink:
    """Sees splits of neurons. The state of a closed node has the duals that prove it: signs, alpha, beta and mix."""

    def __init__(self, record: BoxRecord, subject: Subject) -> None:
        self._open = torch.nonzero(subject.relaxation.ambiguous).flatten()
        self._neurons = record.neurons(subject.form)
        self.forest = Forest(subject.regions, self._neurons[self._open.numpy()])
        self.least = ROOM * float(subject.specification.row_scale().max())  # of a bound that proves

    def split(self, parents: Nodes, halves: Nodes) -> None:
        number, place = halves.number.reshape(-1, 2), parents.split[:, None]
        active = halves.state["signs"][::2].gather(1, place)[:, 0] > 0
        first, second = (torch.where(active, number[:, i], number[:, 1 - i]) for i in (0, 1))
        what = self._neurons[parents.split.numpy()]
        self.forest.split(parents.number.numpy(), what, first.numpy(), second.numpy())

    def closed(self, nodes: Nodes, how: How) -> None:
        if how == "undecided" or not len(nodes):
            return
        signs, alpha, beta = (nodes.state[name][:, self._open].numpy() for name in ("signs", "alpha", "beta"))
        mix = nodes.state.get("mix")
        self.forest.close(Leaves(nodes.number.numpy(), signs, alpha, beta, None if mix is None else mix.numpy()))


class InputSink:
    """Sees bisections. The state of a closed node has the row that proves it."""

    def __init__(self, regions: int, neurons: int) -> None:
        self.neurons = neurons
        self.forest = Forest(regions, torch.zeros(0, dtype=torch.int64).numpy())

    def split(self, parents: Nodes, halves: Nodes) -> None:
        cut = halves.state["upper"][::2].gather(1, parents.split[:, None])[:, 0]
        first, second = halves.number.reshape(-1, 2).T
        what = parents.split + self.neurons
        self.forest.split(parents.number.numpy(), what.numpy(), first.numpy(), second.numpy(), cut.numpy())

    def closed(self, nodes: Nodes, how: How) -> None:
        if how != "undecided":
            self.forest.close_boxes(nodes.number.numpy(), nodes.state["row"].numpy())


@dataclass(frozen=True, eq=False)
class Recording:
    """Where the trees of a search go: regions of a box, by their numbers in the property."""

    record: BoxRecord
    regions: Sequence[int]

    def neurons(self, subject: Subject, forest: Forest) -> None:
        """Trees over neurons proved all regions."""
        for root, region in enumerate(self.regions):
            self.record.by_tree(region, subject.specification.count(root), forest, root)

    def inputs(self, forest: Forest) -> None:
        """Trees over parts of the box did."""
        for root, region in enumerate(self.regions):
            self.record.by_boxes(region, forest, root)

    def roots(self, subject: Subject, duals: Duals, bounds: Tensor) -> Tensor:
        """Bounds without splits, less what they have to be above 0 by; those that are need no tree."""
        sink = NeuronSink(self.record, subject)
        proved = torch.nonzero(bounds > sink.least).flatten()
        alpha, zero = duals.alpha[proved], torch.zeros_like(duals.alpha[proved])
        state = {"signs": zero.to(torch.int8), "alpha": alpha, "beta": zero}
        state |= {} if duals.mix is None else {"mix": duals.mix[proved]}
        sink.closed(replace(Nodes.roots(proved, state), number=proved), "bound")
        for root in proved.tolist():
            self.record.by_tree(self.regions[root], subject.specification.count(root), sink.forest, root)
        return bounds - sink.least

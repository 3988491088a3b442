"""A search whose truth is known: [0, 1] is halved until parts are so narrow, and then proved, or left undecided.

Workers can import it. Of a piece that they are told to die of, they die once.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from surebound.verify.clock import Clock
from surebound.verify.early_stop import Pace
from surebound.verify.node import Nodes
from surebound.verify.pieces import Answer, Piece
from surebound.verify.queue import Queue
from surebound.verify.record import InputSink
from surebound.verify.tree import Bounded, Leaf, Tree
from surebound.work import Call, Do


@dataclass
class Intervals:
    """The space. What is proved has a depth, and holds no point of `open`."""

    depth: int = 5
    open: float | None = None
    batch: int = 4
    looked_at: list[tuple[float, float]] = field(default_factory=list)

    def roots(self) -> Nodes:
        return Nodes.roots(torch.tensor([0]), {"lower": torch.zeros(1, 1), "upper": torch.ones(1, 1)})

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        halves = parents.halved()
        middle = (parents.state["lower"] + parents.state["upper"]) / 2
        halves.state["upper"][::2] = middle
        halves.state["lower"][1::2] = middle
        return halves

    def bound(self, nodes: Nodes) -> Bounded:
        lower, upper = nodes.state["lower"][:, 0], nodes.state["upper"][:, 0]
        self.looked_at += zip(lower.tolist(), upper.tolist(), strict=True)
        proved = nodes.depth == self.depth
        if self.open is not None:
            proved &= ~((lower <= self.open) & (self.open < upper))
        bound = (nodes.depth - self.depth).float()
        row = torch.zeros(len(nodes), dtype=torch.int32)
        return Bounded(replace(nodes, bound=bound, state=nodes.state | {"row": row}), proved, {"x": lower[:, None]})

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        yield open_.hints["x"]

    def choose(self, open_: Bounded) -> Nodes:
        nodes = open_.nodes
        state = {name: nodes.state[name] for name in ("lower", "upper")}
        return replace(nodes, split=torch.where(nodes.depth < self.depth, 0, -1), state=state)

    def decide(self, leaf: Nodes) -> Leaf:
        return Leaf(False)


def begun(space: Intervals, sink: InputSink | None = None) -> Tree:
    """A tree whose root is bounded."""
    tree = Tree(space, Queue(2**20), Clock(60.0), lambda points: None, sink)
    tree.grow(lambda tree: "begun")
    return tree


@dataclass(frozen=True)
class Halving:
    """The setup of a worker."""

    space: Intervals
    dies: Path | None = None  # a file that is not there until a worker has died

    def __call__(self) -> Do[Piece, Answer]:
        return self.search

    def search(self, piece: Piece, call: Call | None = None) -> Answer:
        """A piece, for one batch."""
        if self.dies is not None and not self.dies.exists():
            self.dies.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        sink = InputSink(1, 0)
        tree = Tree(self.space, Queue(2**20), Clock(60.0), lambda points: None, sink)
        tree.resume(piece.nodes)
        tree.grow(lambda tree: "enough")
        return answer(piece, tree, sink)


def answer(piece: Piece, tree: Tree, sink: InputSink) -> Answer:
    """What a worker's tree has come to."""
    return Answer(
        number=piece.number,
        open=tree.queue.pop(len(tree.queue)),
        subproblems=tree.subproblems,
        split=tree.split,
        closed=tree.closed,
        undecided=tree.undecided,
        numbers=tree.numbers,
        pace=Pace(),
        late=False,
        branches=sink.forest.branches(),
    )

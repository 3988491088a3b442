"""The one branch-and-bound loop: pick the lowest, split, bound, prune, look for counterexamples, requeue.

What is split, and how a batch is bounded, soundly evaluated and closed at a leaf, is a *space*
(`surebound.verify.spaces`). A subproblem leaves the tree only if its space proved it, or if its halves take its place,
or as a leaf that is decided.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from surebound.network.arrays import counting, library
from surebound.problem import Counterexample
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.early_stop import Pace
from surebound.verify.look import TryPoints
from surebound.verify.node import Nodes

if TYPE_CHECKING:
    from torch import Tensor

How = Literal["bound", "leaf", "undecided"]


@dataclass(frozen=True, eq=False)
class Bounded:
    """A batch that was bounded. `hints` is what choosing a split needs, and no longer."""

    nodes: Nodes
    proved: Tensor  # (nodes,) bool: soundly, no counterexample is in it
    hints: dict[str, Tensor]  # (nodes, …)

    def __getitem__(self, index: Tensor) -> Bounded:
        hints = {name: value[index] for name, value in self.hints.items()}
        return Bounded(self.nodes[index], self.proved[index], hints)


@dataclass(frozen=True, eq=False)
class Leaf:
    """What was decided about a subproblem that cannot be split: proved, or perhaps violated at a point."""

    proved: bool
    point: Tensor | None = None  # (network inputs,)
    duals: dict[str, Tensor] = field(default_factory=dict)  # what proves it, for the node's state: (1, …)


class Space(Protocol):
    """What is split.

    Nodes wait in the queue as records of one kind: after `choose`, all have the same keys, types and shapes in their
    state. `bound` may add state for the sink, and `choose` may drop it.
    """

    @property
    def batch(self) -> int:
        """How many nodes are bounded at once."""
        ...

    def roots(self) -> Nodes:
        """The subproblems that everything is a part of, made by `Nodes.roots`; the tree numbers them."""
        ...

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        """Both halves of every parent, one after the other (see `Nodes.halved`); together they cover it. `gain` is what
        a split gained lately."""
        ...

    def bound(self, nodes: Nodes) -> Bounded:
        """Bound nodes, and prove those that can be proved. `proved` is believed: it must be sound.

        What is found goes into the nodes' `bound`, which decides what is split first and proves nothing.
        """
        ...

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        """Where counterexamples may lie, a batch after the other; the tree has grown for some seconds."""
        ...

    def choose(self, open_: Bounded) -> Nodes:
        """The nodes with what to split next, or −1."""
        ...

    def decide(self, leaf: Nodes) -> Leaf:
        """One node for which `choose` found nothing to split; if it is not proved, the search cannot end in a proof."""
        ...


class Open(Protocol):
    """Where nodes wait until they are split: `surebound.verify.queue` has the usual one."""

    def __len__(self) -> int: ...

    @property
    def lowest(self) -> float:
        """A lower bound of all of them."""
        ...

    def push(self, nodes: Nodes) -> None: ...

    def pop(self, count: int) -> Nodes:
        """Those to split next, `count` of them or as many as it likes."""
        ...


class Sink(Protocol):
    """Sees all that happens to subproblems."""

    def split(self, parents: Nodes, halves: Nodes) -> None:
        """Two halves, one after the other, take the place of every parent."""
        ...

    def closed(self, nodes: Nodes, how: How) -> None:
        """Nodes are done with: proved by a bound, decided as a leaf, or left undecided."""
        ...


class Tree:
    """A search that can be interrupted: what is open is in its queue."""

    def __init__(
        self, space: Space, queue: Open, clock: Clock, try_points: TryPoints, sink: Sink | None = None
    ) -> None:
        self.space, self.queue, self.clock, self.try_points, self.sink = space, queue, clock, try_points, sink
        self.found: Counterexample | None = None
        self.subproblems = self.split = self.closed = self.undecided = self.numbers = 0
        self.dealt, self.lowest_dealt = 0, float("inf")  # nodes that others look at, and the lowest of their bounds
        self.seconds = 0.0  # that it has grown for
        self.pace = Pace()
        self.in_hand = float("-inf")  # the lowest bound among the nodes that are out of the queue
        self.begun = False

    def grow(self, pause: Pause | None = None) -> str | None:
        """Until nothing is open, or a counterexample is found, or `pause` gives a reason, which is returned."""
        begin, before = time.monotonic(), self.seconds
        try:
            if not self.begun:
                self.begun = True
                self._take(self._numbered(self.space.roots()))
            while len(self.queue) and self.found is None:
                parents = self._pick()
                started = time.monotonic()
                halves = self._numbered(self.space.halves(parents, self.pace.gain or 0.0))
                self.split += len(parents)
                if self.sink is not None:
                    self.sink.split(parents, halves)
                worst = self._take(halves)
                gain, seconds = worst - float(parents.bound[0]), time.monotonic() - started
                self.pace = self.pace.observed(gain, len(parents), seconds)
                self.clock.report(
                    "search", subproblems=self.subproblems, open_=len(self.queue), lowest=self.queue.lowest
                )
                self.seconds = before + time.monotonic() - begin
                if pause is not None and len(self.queue) and self.found is None:
                    reason = pause(self)
                    if reason is not None:
                        return reason
            return None
        finally:
            self.seconds = before + time.monotonic() - begin

    @property
    def proved(self) -> bool:
        """Whether every subproblem was."""
        return self.begun and not self.open and not self.undecided and self.found is None

    @property
    def open(self) -> int:
        """How many nodes wait to be split, here or with others."""
        return len(self.queue) + self.dealt

    @property
    def frontier(self) -> float:
        """A lower bound of what is open."""
        return min(self.queue.lowest, self.in_hand, self.lowest_dealt)

    @property
    def lowest(self) -> float:
        """A lower bound of all that is not proved; of no use once a counterexample is found."""
        return min(self.frontier, 0.0 if self.undecided else float("inf"))

    def resume(self, nodes: Nodes, subproblems: int = 0) -> None:
        """Begin with nodes that another tree has queued, numbered from 0, after so many subproblems."""
        self.begun, self.in_hand, self.subproblems = True, float("inf"), subproblems
        self.queue.push(self._numbered(nodes))

    def _pick(self) -> Nodes:
        """The lowest nodes, as many as can be split in the time that is left."""
        self.clock.check()
        most, each = min(len(self.queue), max(1, self.space.batch // 2)), self.pace.each
        in_time = self.clock.remaining / (1.1 * each) if each else most
        if in_time < 1:
            raise OutOfTime
        parents = self.queue.pop(int(min(most, in_time)))
        self.in_hand = float(parents.bound.min())
        return parents

    def _take(self, fresh: Nodes) -> float:
        """Bound nodes, drop the proved ones, look for counterexamples, decide leaves and queue the rest.

        Returns the lower bound of the first two.
        """
        worst = float("inf")
        step, every = max(2, self.space.batch), counting(fresh.region, len(fresh))
        for first in range(0, len(fresh), step):
            self.clock.check()
            bounded = self.space.bound(fresh[every[first : first + step]])
            self.subproblems += len(bounded.nodes)
            self.closed += int(bounded.proved.sum())
            if first == 0:
                worst = float(bounded.nodes.bound[:2].min())
            if self.sink is not None:
                self.sink.closed(bounded.nodes[bounded.proved], "bound")
            open_ = bounded[~bounded.proved]
            if len(open_.nodes) and not self._violated(open_):
                self._requeue(self.space.choose(open_))
            if self.found is not None:
                break
        self.in_hand = float("inf")
        return worst

    def _violated(self, open_: Bounded) -> bool:
        with self.clock.phase("attack"):
            for points in self.space.points(open_, self.seconds):
                self.found = self.try_points(points)
                if self.found is not None:
                    return True
        return False

    def _requeue(self, nodes: Nodes) -> None:
        for leaf in library(nodes.split).argwhere(nodes.split < 0):
            if self.found is None:
                self._decide(nodes[leaf])
        rest = nodes[nodes.split >= 0]
        if len(rest) and self.found is None:
            with self.clock.phase("queue"):
                self.queue.push(rest)

    def _decide(self, leaf: Nodes) -> None:
        self.clock.check()
        with self.clock.phase("leaves"):
            decided = self.space.decide(leaf)
            if not decided.proved and decided.point is not None:
                self.found = self.try_points(decided.point[None])
            undecided = not decided.proved and self.found is None
            self.undecided += undecided
            self.closed += decided.proved
            if self.sink is not None:
                known = replace(leaf, state=leaf.state | decided.duals)
                self.sink.closed(known, "undecided" if undecided or not decided.proved else "leaf")

    def _numbered(self, nodes: Nodes) -> Nodes:
        first, self.numbers = self.numbers, self.numbers + len(nodes)
        return replace(nodes, number=first + counting(nodes.region, len(nodes)))


Pause = Callable[[Tree], str | None]
"""Asked after every batch: a reason to interrupt the search, or None."""


def first_of(*pauses: Pause) -> Pause:
    """The first reason that any of them gives."""

    def pause(tree: Tree) -> str | None:
        return next((reason for p in pauses if (reason := p(tree)) is not None), None)

    return pause

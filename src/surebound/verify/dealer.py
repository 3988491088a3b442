"""One tree on many workers: open nodes go out in pieces, and what is left of a piece comes back into the queue.

Until the first worker is ready, which takes a second or more, the tree grows here. Pieces are short at first, so that
all workers soon have some, and longer later. The queue keeps a share of the nodes for whoever is done next; when it is
empty and a worker idle, a piece under way is asked to end, and its nodes are dealt anew. A piece whose worker died is
dealt again. The tree is proved when nothing is in the queue, nothing on the books, and nothing undecided.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from surebound.problem import Counterexample
from surebound.verify.clock import OutOfTime
from surebound.verify.node import joined
from surebound.verify.pieces import Answer, Ledger, Piece, Recorder, Seen, Step
from surebound.verify.tree import Pause, Tree
from surebound.work import Desk, Done, Event, Failed, Pool, Said

_SHORTEST, _LONGEST = 0.5, 8.0  # seconds for a piece: what is lost with a worker
_BYTES = 2**26  # of the nodes that a piece begins with, or makes
_TICK = 0.05  # seconds between looks at the clock


class Dealer:
    """Deals out the nodes of a tree that has begun. No one else may let it grow meanwhile."""

    def __init__(
        self,
        tree: Tree,
        pool: Pool[Piece, Answer],
        confirm: Callable[[Seen], Counterexample | None],
        sink: Recorder | None = None,
    ) -> None:
        """`sink` is where the tree's proof is kept."""
        self._tree, self._pool, self._confirm, self._sink = tree, pool, confirm, sink
        self._desk = Desk(pool)
        self._ledger = Ledger()
        self._steps: dict[int, Step] = {}  # how far pieces are
        self._asked: set[int] = set()  # pieces that are to end
        self._answers = 0
        self._events: Iterator[Event[Piece, Answer] | None] = iter(())
        self._begun, self._ready = time.monotonic(), False  # whether any of the workers is

    def grow(self, pause: Pause | None = None) -> str | None:
        """As `Tree.grow` does: until nothing is open, or a counterexample is found, or `pause` gives a reason."""
        tree, begin, before = self._tree, time.monotonic(), self._tree.seconds
        with tree.clock.phase("workers"), self._counted():
            while tree.open and tree.found is None:
                self._deal()
                tree.clock.check()
                if not self._ready and len(tree.queue):
                    tree.grow(lambda _: "batch")
                self._wait()
                tree.seconds = before + time.monotonic() - begin
                self._report()
                if pause is not None and tree.open and tree.found is None and (reason := pause(tree)) is not None:
                    return reason
        return None

    @contextmanager
    def _counted(self) -> Iterator[None]:
        """Count what was bounded of pieces whose end nobody waits for, since the search has ended."""
        try:
            yield
        except OutOfTime:
            self._tree.subproblems = self.subproblems
            raise
        if self._tree.found is not None:
            self._tree.subproblems = self.subproblems

    def recall(self) -> None:
        """Have all pieces end, and take what is left of them into the tree."""
        with self._tree.clock.phase("workers"):
            while self._ledger.nodes and self._tree.found is None:
                self._tree.clock.check()
                for under in self._desk.running:
                    self._desk.stop(under.task)
                self._wait()

    def _wait(self) -> None:
        """For the next event, but not for long."""
        event = next(self._events, None)
        if event is not None:
            self.hear(event)
        elif not self._desk.running:  # it ended with the last task
            self._events = self._desk.events(_TICK)

    def hear(self, event: Event[Piece, Answer]) -> None:
        """Take note of what happened to a piece."""
        match event:
            case Said(task, Step() as step):
                self._steps[task.number], self._ready = step, True
            case Said(_, Seen() as seen):
                self._tree.found = self._tree.found or self._confirm(seen)
            case Done(_, answer):
                self._settle(answer)
            case Failed():
                raise event.error

    def _settle(self, answer: Answer) -> None:
        """Take what is left of a piece into the tree."""
        tree, self._ready, self._answers = self._tree, True, self._answers + 1
        self._steps.pop(answer.number, None)
        self._asked.discard(answer.number)
        if answer.late:
            tree.subproblems += answer.subproblems
            raise OutOfTime
        nodes = self._ledger.back(answer)
        if nodes is None:
            return
        fresh = np.arange(tree.numbers, tree.numbers + answer.numbers - len(nodes))
        numbers = np.concatenate([nodes.number.cpu().numpy(), fresh])
        tree.numbers += len(fresh)
        tree.subproblems += answer.subproblems
        tree.split += answer.split
        tree.closed += answer.closed
        tree.undecided += answer.undecided
        tree.pace = replace(answer.pace, nodes=answer.pace.nodes * self._pool.slots)
        if self._sink is not None:
            assert answer.branches is not None
            self._sink.forest.graft(answer.branches, numbers)
        if len(answer.open):
            number = torch.from_numpy(numbers).to(answer.open.number.device)[answer.open.number]
            tree.queue.push(replace(answer.open, number=number))
        self._book()

    def _book(self) -> None:
        self._tree.dealt, self._tree.lowest_dealt = self._ledger.nodes, self._ledger.lowest

    def _deal(self) -> None:
        """Give idle workers something to do."""
        tree, desk = self._tree, self._desk
        idle = self._pool.slots - len(desk.running) - len(desk.ready)
        most = math.ceil(len(tree.queue) / max(idle, 1))
        share = max(math.ceil(len(tree.queue) / (self._pool.slots + 1)), min(tree.space.batch // 2, most))
        for _ in range(idle):
            if not len(tree.queue):
                break
            desk.add(self._piece(share))
        else:
            return
        if not self._asked:
            self._ask()

    def _piece(self, share: int) -> Piece:
        tree = self._tree
        nodes = tree.queue.pop(1)
        size = sum(value[0].nbytes for value in nodes.state.values())
        most = max(64, _BYTES // max(size, 1))
        count = min(share, most // 4)  # all of which are split, and some of their halves
        if count > 1 and len(tree.queue):
            nodes = joined([nodes, tree.queue.pop(count - 1)])
        number = self._ledger.deal(nodes)
        self._book()
        seconds = min(max(time.monotonic() - self._begun, _SHORTEST), _LONGEST)
        return Piece(number, nodes, seconds, most, tree.clock.remaining)

    def _ask(self) -> None:
        """Have the piece with the most open nodes end, so that they can be shared."""
        begun = [under.task for under in self._desk.running if under.began is not None]
        known = [task for task in begun if task.number in self._steps and self._steps[task.number].open > 1]
        if known:
            task = max(known, key=lambda task: self._steps[task.number].open)
            self._asked.add(task.number)
            self._desk.stop(task)

    @property
    def subproblems(self) -> int:
        """How many were bounded, also by those who are still at it."""
        return self._tree.subproblems + sum(step.subproblems for step in self._steps.values())

    @property
    def warm(self) -> bool:
        """Whether there were as many answers as there are workers."""
        return self._answers >= self._pool.slots

    def _report(self) -> None:
        tree = self._tree
        tree.clock.report("search", subproblems=self.subproblems, open_=tree.open, lowest=tree.lowest)

"""Pieces of a search of which the truth is known: whatever becomes of them, no part is lost, and none counts twice."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from intervals import Halving, Intervals, begun

from surebound.errors import WorkerLostError
from surebound.problem import Counterexample
from surebound.verify.clock import OutOfTime
from surebound.verify.crew import Crew
from surebound.verify.dealer import Dealer
from surebound.verify.pieces import Answer, Ledger, Piece, Seen, Sharing, Step
from surebound.verify.record import InputSink
from surebound.verify.strategy import Strategy
from surebound.verify.tree import Tree
from surebound.work import Done, Said
from surebound.work.processes import Processes
from surebound.work.task import Ended, Lost, News, Word

DEPTH = 5
NONE = torch.zeros(0, dtype=torch.int64)


class Scripted:
    """A pool that answers what it is told to: the last piece first, or not at all."""

    slots = 2

    def __init__(self, space: Intervals, *, loses: int = 0, says: Seen | None = None) -> None:
        self.search, self.loses, self.says = Halving(space).search, loses, says
        self.tasks: deque[tuple[int, Piece]] = deque()

    def begin(self, number: int, task: Piece, grace: float) -> None:
        self.tasks.append((number, task))

    def stop(self, number: int) -> None:
        """Pieces are short."""

    def wait(self, seconds: float | None) -> Sequence[News[Answer]]:
        number, piece = self.tasks.pop()
        if self.says is not None:
            self.tasks.append((number, piece))
            return [Word(number, self.says)]
        if self.loses:
            self.loses -= 1
            return [Lost(number, "it died")]
        return [Ended(number, self.search(piece), 0.0)]

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        self.tasks.clear()


def nobody(seen: Seen) -> Counterexample | None:
    return None


def complete(tree: Tree, sink: InputSink) -> bool:
    """Whether the proof covers [0, 1] once, by parts of one width, and all was counted."""
    members, chunks = sink.forest.written()
    leaves = sum(len(chunk["row"]) for chunk in chunks)
    return (len(members["tree"]), leaves, tree.closed, tree.subproblems) == (
        2**DEPTH - 1,
        2**DEPTH,
        2**DEPTH,
        2 ** (DEPTH + 1) - 1,
    )


@pytest.mark.parametrize("losses", [0, 2])
def test_every_part_is_closed_once_also_where_workers_die(losses: int) -> None:
    space, sink = Intervals(DEPTH), InputSink(1, 0)
    tree = begun(space, sink)
    assert Dealer(tree, Scripted(space, loses=losses), nobody, sink).grow() is None
    assert tree.proved and complete(tree, sink)
    assert len(space.looked_at) == len(set(space.looked_at)) == tree.subproblems
    at = sink.forest.written()[0]["at"]
    assert sorted(at.tolist()) == [i / 2**DEPTH for i in range(1, 2**DEPTH)]


def test_a_worker_that_is_killed_takes_nothing_with_it(tmp_path: Path) -> None:
    space, sink = Intervals(DEPTH), InputSink(1, 0)
    tree, died = begun(space, sink), tmp_path / "died"
    with Processes(2).open(Halving(space, died)) as pool:
        Dealer(tree, pool, nobody, sink).grow()
    assert died.exists() and tree.proved and complete(tree, sink)


def test_a_piece_that_is_never_answered_is_not_proved() -> None:
    space = Intervals(DEPTH)
    tree = begun(space)
    with pytest.raises(WorkerLostError, match="it died \\(3 times\\)"):
        Dealer(tree, Scripted(space, loses=100), nobody).grow()
    assert not tree.proved and tree.lowest == -DEPTH + 1


def test_a_piece_under_way_is_open() -> None:
    """Its nodes are in no queue, and yet the search is not over."""
    space = Intervals(DEPTH)
    tree = begun(space)
    before = tree.open
    dealer = Dealer(tree, Scripted(space), nobody)
    assert dealer.grow(lambda tree: "pause") == "pause"
    assert not tree.proved and tree.open == before and tree.lowest == -DEPTH + 1
    assert dealer.grow() is None and tree.proved


def test_an_undecided_leaf_of_a_piece_is_no_proof() -> None:
    space = Intervals(DEPTH, open=0.4)
    tree = begun(space)
    Dealer(tree, Scripted(space), nobody).grow()
    assert (tree.open, tree.undecided, tree.closed) == (0, 1, 2**DEPTH - 1)
    assert not tree.proved and tree.lowest == 0.0


def test_a_counterexample_ends_the_search_at_once() -> None:
    space, found = Intervals(DEPTH), Counterexample(np.zeros(1), np.zeros(1))
    tree = begun(space)
    seen = Seen(np.array([0.5]), 0)
    Dealer(tree, Scripted(space, says=seen), lambda told: found if told is seen else None).grow()
    assert tree.found is found and not tree.proved and tree.open > 0


@pytest.mark.parametrize("end", ["time", "counterexample"])
def test_what_was_bounded_of_pieces_counts_where_the_search_ends(end: str) -> None:
    """Nobody waits for the end of a piece then, but it has said how far it was."""
    space, found = Intervals(DEPTH), Counterexample(np.zeros(1), np.zeros(1))
    tree = begun(space)
    dealer, piece = dealt(tree, space)
    before = tree.subproblems
    dealer.hear(Said(piece, Step(7, 3)))
    if end == "time":
        tree.clock.deadline = 0.0
        with pytest.raises(OutOfTime):
            dealer.grow()
    else:
        tree.found = found
        dealer.grow()
    assert tree.subproblems == before + 7 and not tree.proved


def dealt(tree: Tree, space: Intervals) -> tuple[Dealer, Piece]:
    """A dealer who has dealt one piece."""
    pool = Scripted(space)
    dealer = Dealer(tree, pool, nobody)
    dealer.grow(lambda tree: "pause")
    dealer.grow(lambda tree: "pause")
    return dealer, pool.tasks[0][1]


def test_pieces_are_taken_back() -> None:
    space, sink = Intervals(DEPTH), InputSink(1, 0)
    tree = begun(space, sink)
    dealer = Dealer(tree, Scripted(space, loses=1), nobody, sink)
    dealer.grow(lambda tree: "pause")
    assert not dealer.warm
    dealer.recall()
    assert (tree.dealt, tree.lowest_dealt) == (0, float("inf"))
    tree.grow()
    assert tree.proved and complete(tree, sink)


def test_a_crew_that_is_slower_leaves_the_search_to_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the workers have done counts, and what they have not is done."""
    space, sink = Intervals(DEPTH), InputSink(1, 0)
    tree = begun(space, sink)
    sharing = Sharing(open=lambda ground: Scripted(space), confirm=nobody, names="2 workers", count=2, compare=1)
    crew = Crew(sharing, Strategy(), lambda: NotImplemented, sink, lambda: True)
    asked: list[int] = []
    monkeypatch.setattr(crew._trial, "slower", lambda tree, subproblems: asked.append(subproblems) is None)
    crew.join(tree)
    assert crew.told == "2 workers"
    assert crew.grow() is None
    assert len(asked) == 1 and 3 < asked[0] < 2 ** (DEPTH + 1) - 1
    assert crew.told != "2 workers" and tree.proved and complete(tree, sink)
    crew.leave()


def test_a_piece_answered_twice_counts_once() -> None:
    space = Intervals(DEPTH)
    tree = begun(space)
    dealer, piece = dealt(tree, space)
    told = Halving(Intervals(DEPTH)).search(piece)
    before = tree.closed, tree.subproblems, tree.open
    dealer.hear(Done(piece, told, 0.0))
    once = tree.closed, tree.subproblems, tree.open, tree.numbers
    assert once[:3] != before
    dealer.hear(Done(piece, told, 0.0))
    dealer.hear(Done(piece, replace(told, closed=0), 0.0))
    assert (tree.closed, tree.subproblems, tree.open, tree.numbers) == once


@pytest.mark.parametrize("count", ["split", "closed", "undecided"])
def test_an_answer_that_leaves_something_out_is_refused(count: str) -> None:
    space = Intervals(DEPTH)
    tree = begun(space)
    dealer, piece = dealt(tree, space)
    told = Halving(Intervals(DEPTH)).search(piece)
    dealt_, waiting = tree.dealt, len(tree.queue)
    for wrong in (replace(told, **{count: getattr(told, count) + 1}), replace(told, open=told.open[NONE])):
        with pytest.raises(ValueError, match="leaves out a part"):
            dealer.hear(Done(piece, wrong, 0.0))
        assert (tree.dealt, len(tree.queue)) == (dealt_, waiting) and not tree.proved


def test_an_answer_that_comes_after_the_time_proves_nothing() -> None:
    space = Intervals(DEPTH)
    tree = begun(space)
    dealer, piece = dealt(tree, space)
    told = Halving(Intervals(DEPTH)).search(piece)
    before = tree.dealt, tree.closed
    with pytest.raises(OutOfTime):
        dealer.hear(Done(piece, replace(told, late=True, open=told.open[NONE]), 0.0))
    assert (tree.dealt, tree.closed) == before and not tree.proved


def test_books() -> None:
    space, books = Intervals(DEPTH), Ledger()
    root = begun(space).queue.pop(2)
    number = books.deal(root)
    assert (books.nodes, books.lowest) == (2, -DEPTH + 1)
    told = Halving(space).search(Piece(number, root, 1.0, 100, 60.0))
    assert books.back(replace(told, number=number + 1)) is None and books.nodes == 2
    assert books.back(told) is root
    assert (books.nodes, books.lowest) == (0, float("inf"))
    assert books.back(told) is None

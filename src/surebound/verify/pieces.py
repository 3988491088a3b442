"""Pieces of a search, which others look at: data there, data back, and the books that say what is out.

A piece is some nodes of a tree. Whoever has it searches below them, for some time, and answers with what is left. The
answer may be lost, or come twice: a node counts as open until an answer has taken it off the books, which only one can.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from surebound.problem import Counterexample, Vector
from surebound.proof.forest import Branches, Forest
from surebound.verify.clock import Clock
from surebound.verify.early_stop import Pace
from surebound.verify.node import Nodes
from surebound.verify.tree import Sink, Space
from surebound.work import Pool


class Recorder(Sink, Protocol):
    """A sink that keeps the tree for a proof."""

    @property
    def forest(self) -> Forest: ...


class Ground(Protocol):
    """What a search is over. It travels to whoever takes part, once."""

    def at(self, clock: Clock) -> "Ground":
        """The same in another process."""
        ...

    def space(self, clock: Clock) -> Space:
        """What is split there."""
        ...

    def sink(self) -> Recorder | None:
        """Where the proof of a piece is written down, if there is to be one."""
        ...


@dataclass(frozen=True, eq=False)
class Piece:
    """Nodes to search below: for some seconds, or until so many subproblems were bounded."""

    number: int
    nodes: Nodes
    seconds: float
    subproblems: int
    remaining: float  # seconds until the time of the whole search is up


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What became of a piece. Its nodes are numbered from 0 on, and children after their parents."""

    number: int  # of the piece
    open: Nodes
    subproblems: int
    split: int
    closed: int
    undecided: int
    numbers: int  # that were given to nodes
    pace: Pace
    late: bool  # the time ran out, and nodes may be missing
    branches: Branches | None = None  # for a proof

    def complete(self, nodes: int) -> bool:
        """Whether all parts of so many nodes are accounted for: a split makes two of one."""
        return nodes + self.split == self.closed + self.undecided + len(self.open)


@dataclass(frozen=True)
class Step:
    """How far a piece is."""

    subproblems: int
    open: int


@dataclass(frozen=True, eq=False)
class Seen:
    """A point that seems to be a counterexample to a region; the search goes on without waiting for the replay."""

    point: Vector
    region: int


@dataclass(frozen=True, eq=False)
class Sharing:
    """Others who may take part in a search."""

    open: Callable[[Ground], Pool[Piece, Answer]]
    confirm: Callable[[Seen], Counterexample | None]
    names: str  # such as "2 workers"
    count: int = 0  # of them, if they are to be
    compare: int = 0  # with one process of so many threads, which may be faster; 0: do not


class Ledger:
    """The pieces that are out."""

    def __init__(self) -> None:
        self._out: dict[int, Nodes] = {}
        self._dealt = 0

    def deal(self, nodes: Nodes) -> int:
        """Nodes go out as a piece of this number."""
        self._dealt += 1
        self._out[self._dealt] = nodes
        return self._dealt

    def back(self, answer: Answer) -> Nodes | None:
        """The nodes of an answer's piece, no longer out; None if an earlier answer took them off."""
        nodes = self._out.get(answer.number)
        if nodes is None:
            return None
        if not answer.complete(len(nodes)):
            raise ValueError("an answer leaves out a part of its piece")
        return self._out.pop(answer.number)

    @property
    def nodes(self) -> int:
        """How many are out."""
        return sum(map(len, self._out.values()))

    @property
    def lowest(self) -> float:
        """A lower bound of them."""
        return min((float(nodes.bound.min()) for nodes in self._out.values()), default=float("inf"))

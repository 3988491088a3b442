"""The cascade: stages, one after the other, each of which takes what is open and settles what it can.

A *question* is a box and the regions over it. `verify` asks one for each box of a property and `certify` one for each
image; the stages are the same (`surebound.verify.stages`). A region leaves a question in one place, `Question.learn`.

A *subproblem* is a region with some splits, of ReLUs or of its box, that was bounded. It counts once, however often it
is bounded again: by several stages, with more iterations, or to choose a split. A search that begins anew over tighter
layers counts its own.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from surebound.memory import is_out_of_memory
from surebound.problem import Counterexample, Region
from surebound.proof.record import BoxRecord
from surebound.verify.begun import Begun
from surebound.verify.clock import OutOfTime
from surebound.verify.record import Recording
from surebound.verify.subject import Subject

End = Literal["proved", "violated", "time", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Settled:
    """How a question ended, and at which stage."""

    stage: str
    end: End
    counterexample: Counterexample | None = None
    subproblems: int = 0
    seconds: float = 0.0
    lower_bound: float = float("inf")
    reason: str = ""


class Question:
    """One box on its way through the stages."""

    def __init__(self, regions: Callable[[], Sequence[Region]]) -> None:
        """The regions over the box, asked for when they are needed."""
        self._regions, self._bounded = regions, False
        self.subproblems = 0
        self.seconds: dict[str, float] = {}  # by stage
        self.settled: Settled | None = None
        self.subject: Subject | None = None  # the network over the box, for the open regions
        self.branching: str | None = None  # how it was split
        self.searched_by = ""  # workers or threads, where there was a choice
        self.record: BoxRecord | None = None  # where a proof is written down
        self.begun: Begun | None = None  # a bisection of its box, perhaps, to go on with
        self.refinable = True  # whether its layers may yet be bounded more tightly

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        return tuple(self._regions())

    @cached_property
    def bounds(self) -> Tensor:
        """The best sound bound of each region. # (regions,) float64"""
        return torch.full((len(self.regions),), -torch.inf, dtype=torch.float64, device="cpu")

    @property
    def open(self) -> list[Region]:
        """The regions that are not proved."""
        return [self.regions[i] for i in self._open()]

    @property
    def recording(self) -> Recording | None:
        """Where the proofs of the open regions are written down."""
        record = self.record
        return None if record is None else Recording(record, [record.regions[i] for i in self._open()])

    def _open(self) -> list[int]:
        return np.flatnonzero(~(self.bounds.numpy() > 0)).tolist()  # of many questions, each with few

    def learn(self, bounds: Tensor) -> Tensor:
        """Take sound bounds of the open regions. A region whose bound is above 0 is proved. Returns which stay open.

        # (open,) float64 -> (open,) bool
        """
        where = self._open()
        self.bounds[where] = torch.fmax(self.bounds[where], bounds.cpu())  # NaN proves nothing
        if not self._bounded:
            self._bounded, self.subproblems = True, self.subproblems + len(self.regions)
        return ~(self.bounds[where] > 0)

    def proved(self, stage: str) -> Settled | None:
        """How the question ended, if no region is open any more."""
        return None if self._open() else Settled(stage=stage, end="proved", lower_bound=float(self.bounds.min()))


Asked = TypeVar("Asked", bound=Question)
Taken = TypeVar("Taken", bound=Question, contravariant=True)


class Stage(Protocol[Taken]):
    """Something that may settle questions."""

    @property
    def name(self) -> str: ...

    def run(self, open_: Sequence[Taken]) -> Sequence[Settled | None]:
        """Settle what can be settled of these open questions: how each ended, or None if it is still open."""
        ...


def run(stages: Sequence[Stage[Asked]], questions: Sequence[Asked]) -> None:
    """Take questions through stages. The time of a stage is shared among those that are in it.

    Where the time or the memory runs out, whatever is open stays so.
    """
    for stage in stages:
        open_ = [question for question in questions if question.settled is None]
        if not open_:
            return
        begin = time.monotonic()
        try:
            settled = stage.run(open_)
        except OutOfTime:
            settled = [_unsettled(stage, "time", "the time ran out")] * len(open_)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            settled = [_unsettled(stage, "undecided", "the memory ran out")] * len(open_)
        share = (time.monotonic() - begin) / len(open_)
        for question, end in zip(open_, settled, strict=True):
            question.seconds[stage.name] = question.seconds.get(stage.name, 0.0) + share
            if end is not None:
                seconds = sum(question.seconds.values())
                question.settled = replace(end, subproblems=question.subproblems, seconds=seconds)


def _unsettled(stage: Stage[Asked], end: End, reason: str) -> Settled:
    return Settled(stage=stage.name, end=end, lower_bound=float("-inf"), reason=reason)

"""Depth-first branch and bound with an LP for every subproblem, for a search that has come to a standstill.

Where the rows of a region can each just be met, the dual bound of almost every subproblem is 0, until its splits leave
no point that meets all of them: bounds tie, and neither an ascent nor a score made from duals has a direction. An LP
tells which subproblems have no solution, with the multipliers that prove it.

Every subproblem is dropped by the sound bound at those multipliers, or as a leaf, or by splitting it; as in
`surebound.verify.search`.
"""

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from surebound.bounds.folded import FoldedForm
from surebound.bounds.planet_lp import solvable
from surebound.branching.alignment import alignment
from surebound.problem import Counterexample
from surebound.verify.clock import Clock
from surebound.verify.leaf import decide_leaf
from surebound.verify.node_lp import NodeLP, Relaxed, Signs
from surebound.verify.points import TryPoints
from surebound.verify.subject import Subject

ENTRIES = 2**16  # in the matrices of a folded form, up to which its LPs take milliseconds
_VIOLATED = 1e-7


@dataclass(frozen=True, kw_only=True)
class Standstill:
    """Notices when the lowest bound has not risen since the first, or while the number of subproblems doubled."""

    patience: int = 500  # subproblems
    subproblems: int = 0  # the next time to look
    lowest: float = float("-inf")  # the last time
    share: float = 0.01  # of the distance to 0, a smaller rise than which is none

    def due(self, subproblems: int) -> bool:
        return subproblems >= self.subproblems

    def observed(self, subproblems: int, lowest: float) -> "Standstill":
        return replace(self, subproblems=max(self.patience, 2 * subproblems), lowest=lowest)

    def reached(self, lowest: float, margin: float) -> bool:
        """`margin` is what counts as 0."""
        return lowest - self.lowest <= self.share * max(-lowest, margin)


class LPSearch:
    """Decides all regions of a subject, a slice of time after the other."""

    def __init__(self, subject: Subject, clock: Clock, try_points: TryPoints) -> None:
        self.subject, self.clock, self.try_points = subject, clock, try_points
        neurons = subject.form.neurons
        self.stack: list[tuple[int, Signs]] = [(g, np.zeros(neurons, dtype=np.int8)) for g in range(subject.regions)]
        self.violated = np.zeros(neurons, dtype=bool)  # by the optimum of some LP so far
        self.lp: NodeLP | None = None
        self.subproblems = 0
        self.undecided = 0
        self.found: Counterexample | None = None

    def suits(self) -> bool:
        """Whether the LPs are small, and so are the numbers in them."""
        form, rows = self.subject.form, self.subject.specification.rows
        if not isinstance(form, FoldedForm) or sum(int(b.weight.count_nonzero()) for b in form.blocks) > ENTRIES:
            return False
        numbers = [form.box_lower, form.box_upper, form.lower, form.upper, rows.coefficients, rows.constant]
        numbers += [part for block in form.blocks for part in (block.weight, block.bias)]
        return solvable(*(t.numpy() for t in numbers))

    @property
    def proved(self) -> bool:
        return not self.stack and not self.undecided and self.found is None

    def run(self, seconds: float) -> None:
        """Go on for some time, or until everything is decided or something cannot be."""
        end = time.monotonic() + seconds
        while self.stack and not self.undecided and self.found is None and time.monotonic() < end:
            self.clock.check()
            with self.clock.phase("linear programs"):
                self._step(*self.stack.pop())

    def _step(self, region: int, signs: Signs) -> None:
        self.subproblems += 1
        if self.lp is None or self.lp.region != region:
            assert isinstance(self.subject.form, FoldedForm)
            self.lp = NodeLP(self.subject, self.subject.form, region)
        answer = self.lp.solve(signs, self.clock.remaining)
        if self.lp.proves(signs, answer):
            return
        relaxed = answer.relaxed
        if relaxed is not None:
            self.found = self.try_points(self.subject.form.full_input(relaxed.x[None]))
            self.violated |= relaxed.violation > _VIOLATED
        open_ = self.subject.relaxation.ambiguous.numpy() & (signs == 0)
        if self.found is None and not open_.any():
            self._decide_leaf(region, signs)
        elif self.found is None:
            self._split(region, signs, open_, relaxed)

    def _decide_leaf(self, region: int, signs: Signs) -> None:
        decision = decide_leaf(self.subject, region, torch.from_numpy(signs), self.clock.remaining)
        if not decision.proved and decision.point is not None:
            self.found = self.try_points(decision.point[None])
        self.undecided += not decision.proved and self.found is None

    def _split(self, region: int, signs: Signs, open_: np.ndarray, relaxed: Relaxed | None) -> None:
        """Both halves onto the stack, the one that holds the LP's optimum on top.

        The neuron is one that some LP has violated: others the rows keep from mattering.
        """
        subject = self.subject
        with self.clock.phase("branching"):
            score = alignment(
                subject.form, subject.specification, subject.relaxation, region, torch.from_numpy(signs)
            ).numpy()
            for candidates in (open_ & self.violated & (score > 0), open_ & self.violated, open_):
                if candidates.any():
                    break
            neuron = int(np.where(candidates, score, -1.0).argmax())
        first = 1 if relaxed is None or relaxed.xhat[neuron] > 0 else -1
        for sign in (-first, first):
            child = signs.copy()
            child[neuron] = sign
            self.stack.append((region, child))

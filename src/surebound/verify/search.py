"""Searches, each a tree over one of the spaces, with what interrupts it: time, patience, a standstill."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from surebound.bounds.enclosure import Enclosure
from surebound.errors import ResourceError
from surebound.network.graph import Network
from surebound.problem import Counterexample, Region
from surebound.verify.begun import Begun
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.crew import Crew
from surebound.verify.grounds import InputGround, NeuronGround
from surebound.verify.look import TryPoints
from surebound.verify.pieces import Sharing
from surebound.verify.queue import Queue
from surebound.verify.record import Recording
from surebound.verify.spaces.points import PointSpace
from surebound.verify.spaces.programs import ProgramSpace, Standstill, suits
from surebound.verify.strategy import Strategy
from surebound.verify.subject import Subject
from surebound.verify.tree import Pause, Sink, Space, Tree, first_of

End = Literal["proved", "violated", "time", "slow", "undecided"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a search ended, and why."""

    end: End
    counterexample: Counterexample | None = None
    subproblems: int = 0
    lower_bound: float = float("-inf")
    reason: str = ""
    by: str = ""  # workers or threads, where there was a choice


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a caller allows a search."""

    memory: int = 2**31  # bytes for its queue; what does not fit is on disk
    early_stop: bool = False  # give up when it is not expected to end in time
    patience: float = float("inf")  # seconds: one that is expected to take longer ends as "slow"
    seed: int = 0
    record: Recording | None = None  # where a proof is written down
    sharing: Sharing | None = None  # who else may take part
    begun: Begun | None = None  # where to go on, if not at the roots


def search_neurons(
    subject: Subject, rule: str, strategy: Strategy, clock: Clock, try_points: TryPoints, limits: Limits
) -> Outcome:
    """Decide whether any open region of the subject holds a counterexample, by splitting neurons."""
    record = limits.record
    numbers = None if record is None else record.record.neurons(subject.form)
    unsayable = record is not None and not record.record.sayable(subject.form)
    ground = NeuronGround(
        subject=subject,
        rule=rule,
        strategy=strategy,
        memory=limits.memory,
        seed=limits.seed,
        numbers=numbers,
        planes={} if unsayable else None,
    )
    sink, other = ground.sink(), ground.sink(merging=False)
    space = ground.space(clock)
    stands = Standstill(strategy.standstill, strategy.standstill_share, subject.margin)
    programs = Programs(subject, strategy, clock, try_points, stands, other)

    def shared() -> NeuronGround:
        """What workers get: they do not look for planes themselves."""
        return replace(ground, iteration=space.iteration, planes=space.bounder.found)

    crew = None
    if limits.sharing is not None:
        crew = Crew(limits.sharing, strategy, shared, sink, lambda: space.bounder.settled(search.queue.regions))
    search = _Search(space, clock, try_points, limits, sink, crew, programs)
    outcome = search.run()
    if record is not None and outcome.end == "proved":
        proof, planes = (sink, space.bounder.found) if search.tree.proved else (other, {})
        assert proof is not None
        record.neurons(subject, proof.forest, planes)
    return outcome


def search_inputs(
    network: Network,
    regions: Sequence[Region],
    strategy: Strategy,
    clock: Clock,
    try_points: TryPoints,
    limits: Limits,
) -> Outcome:
    """Decide all regions by bisecting their boxes. `network` in float64."""
    record = limits.record
    ground = InputGround(network=network, regions=regions, strategy=strategy, recorded=record is not None)
    sink, space = ground.sink(), ground.space(clock)
    crew = None if limits.sharing is None else Crew(limits.sharing, strategy, lambda: ground, sink)
    outcome = _Search(space, clock, try_points, limits, sink, crew).run()
    if record is not None and sink is not None and outcome.end == "proved":
        record.inputs(sink.forest)
    return outcome


def search_points(
    enclosure: Enclosure,
    regions: Sequence[Region],
    strategy: Strategy,
    clock: Clock,
    try_points: TryPoints,
    limits: Limits,
) -> Outcome:
    """Decide regions over the box of an enclosure, whose layers are bounded, by splitting neurons at points."""
    space = PointSpace(enclosure, regions, strategy, clock)
    return _Search(space, clock, try_points, limits, None, None).run()


class Programs:
    """A second tree over the same regions, whose every node is a linear program; it takes turns with the first.

    It begins at the root, so that its proof does not need what the first has proved or left undecided.
    """

    def __init__(
        self,
        subject: Subject,
        strategy: Strategy,
        clock: Clock,
        try_points: TryPoints,
        stands: Standstill,
        sink: Sink | None = None,
    ) -> None:
        self.subject, self.strategy, self.stands = subject, strategy, stands
        self.tree = Tree(ProgramSpace(subject, clock), Queue(2**28, depth_first=True), clock, try_points, sink)

    def due(self, tree: Tree) -> str | None:
        reached = self.strategy.programs and self.stands.reached(tree.subproblems, tree.frontier)
        return "standstill" if reached and suits(self.subject, self.strategy) else None

    def run(self, seconds: float) -> None:
        """Go on for some time, or until everything is decided or something cannot be."""
        end = self.tree.seconds + seconds
        self.tree.grow(lambda tree: "turn" if tree.undecided or tree.seconds >= end else None)


class _Search:
    """One tree until it ends."""

    def __init__(
        self,
        space: Space,
        clock: Clock,
        try_points: TryPoints,
        limits: Limits,
        sink: Sink | None,
        crew: Crew | None,
        programs: Programs | None = None,
    ) -> None:
        self.clock, self.limits, self.crew, self.programs = clock, limits, crew, programs
        self.queue = Queue(limits.memory)
        self.tree = Tree(space, self.queue, clock, try_points, sink)
        self.trees = [self.tree] if programs is None else [self.tree, programs.tree]  # either may decide
        if limits.begun is not None:
            self.tree.resume(limits.begun.nodes, limits.begun.subproblems)

    def run(self) -> Outcome:
        try:
            return self._outcome(*self._ended(self._grow()))
        except OutOfTime:
            return self._outcome("time", "the time ran out")
        except ResourceError as error:
            return self._outcome("undecided", str(error))
        finally:
            self.queue.close()
            if self.crew is not None:
                self.crew.leave()

    def _grow(self) -> str | None:
        """Grow the tree until it ends. Linear programs take turns with it; workers take over when they are due."""
        pauses: list[Pause] = [] if self.programs is None else [self.programs.due]
        pauses += [self._slow, self._hopeless]
        grow = self.tree.grow
        if self.crew is not None:
            pauses.append(self.crew.due)
        while (reason := grow(first_of(*pauses))) in ("standstill", "crew"):
            if self.crew is not None and reason == "crew":
                self.crew.join(self.tree)
                grow = self.crew.grow
            elif self.programs is not None:
                self.programs.run(max(1.0, self.tree.seconds))
                if self.programs.tree.proved or self.programs.tree.found is not None:
                    return "programs"
        return reason

    def _slow(self, tree: Tree) -> str | None:
        return "slow" if self._takes_longer(self.limits.patience) else None

    def _hopeless(self, tree: Tree) -> str | None:
        return "hopeless" if self.limits.early_stop and self._takes_longer(self.clock.remaining) else None

    def _takes_longer(self, seconds: float) -> bool:
        tree = self.tree
        return tree.pace.takes_longer(seconds, lowest=tree.frontier, queue=tree.open)

    def _ended(self, reason: str | None) -> tuple[End, str]:
        """How the search ended, and why, given the reason for which it grows no more."""
        if reason == "slow":
            return "slow", ""
        if reason == "hopeless":
            return "time", "stopped early: not expected to end in time"
        if any(tree.proved for tree in self.trees):
            return "proved", ""
        left = f"{self.tree.undecided} subproblems cannot be split and are within rounding of the threshold"
        return "undecided", left

    def _outcome(self, end: End, reason: str = "") -> Outcome:
        found = next((tree.found for tree in self.trees if tree.found is not None), None)
        return Outcome(
            end=end if found is None else "violated",
            counterexample=found,
            subproblems=sum(tree.subproblems for tree in self.trees),
            lower_bound=float("inf") if end == "proved" else self.tree.lowest,
            reason=reason if found is None else "",
            by="" if self.crew is None else self.crew.told,
        )

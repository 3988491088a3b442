"""Verification from start to end: attack → root bounds → branch and bound, with a longer attack on the way.

Regions over one box share their root bounds. Each stage hands on only the regions it could not settle.

A *subproblem* is a region with some splits, of ReLUs or of its box, that was bounded. It counts once, however often it
is bounded again: at the root and as the root of a search, with more iterations, or to choose a split. A search that
begins anew over tighter layers counts its own.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surebound.attacks.mi_fgsm import MIFGSM, PUBLISHED
from surebound.attacks.objective import Objective
from surebound.attacks.pgd import PGD
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import PASS_PRODUCTS, fold_network, products, settle_layers
from surebound.bounds.rounding import HUGE
from surebound.branching import CHOICES
from surebound.errors import UsageError
from surebound.memory import is_out_of_memory
from surebound.network.model import Model
from surebound.problem import Box, Counterexample, Property, Region, Robustness, Status, Verdict
from surebound.verify.clock import Budget, Clock, OutOfTime
from surebound.verify.confirm import Confirm
from surebound.verify.forms import cheapest
from surebound.verify.points import TryPoints
from surebound.verify.progress import OnProgress
from surebound.verify.search import Limits, Outcome, search_inputs, search_neurons
from surebound.verify.spaces.layers import refine
from surebound.verify.strategy import Refinement, Strategy, default, profile
from surebound.verify.subject import Subject, specify


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller of `verify` may choose."""

    timeout: float | None = None
    branching: str = "auto"
    seed: int = 0
    memory: int | None = None  # bytes; None: a quarter of what is available
    early_stop: bool = False
    quick_attack: PGD | MIFGSM | None = field(
        default_factory=lambda: PGD(steps=20, restarts=2)
    )  # None: attacked already
    search_attack: MIFGSM = field(default_factory=lambda: MIFGSM(steps=100, restarts=4))  # again and again
    strategy: Strategy = field(default_factory=default)

    @staticmethod
    def of(search: str, *, branching: str = "auto", **more: Any) -> "Options":
        """With the strategy and the attacks of a profile."""
        strategy = profile(search, branching)
        if search == "paper":
            attack = MIFGSM(steps=100, restarts=10, **PUBLISHED)
            more = {"quick_attack": attack, "search_attack": attack, **more}
        return Options(branching=branching, strategy=strategy, **more)

    def __post_init__(self) -> None:
        if self.branching not in CHOICES:
            raise UsageError(f"unknown branching '{self.branching}'; expected one of: {', '.join(CHOICES)}")
        if self.timeout is not None and not (isinstance(self.timeout, int | float) and self.timeout > 0):
            raise UsageError(f"timeout must be a positive number of seconds or None, got {self.timeout!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}")
        if self.memory is not None and not (isinstance(self.memory, int) and self.memory > 0):
            raise UsageError(f"memory must be a positive number of bytes or None, got {self.memory!r}")


def verify(
    model: Model,
    problem: Property | Robustness,
    options: Options,
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
) -> Verdict:
    """Decide a property. See `surebound.verify` for the public form.

    A `clock` that started earlier counts what came before, towards the timeout as well.
    """
    clock = Clock(options.timeout, on_progress) if clock is None else clock
    network = model.network
    prop = problem.to_property(network.outputs) if isinstance(problem, Robustness) else problem
    prop.check_fits(inputs=network.inputs, outputs=network.outputs)
    run = _Verification(model, options, clock)
    regions = [region for region in prop.regions if not region.box.empty]
    try:
        outcome = run.decide(regions)
    except OutOfTime:
        outcome = Outcome(end="time", reason="the time ran out")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        outcome = Outcome(end="undecided", reason="the memory ran out")
    return Verdict(
        status=_STATUS[outcome.end],
        counterexample=outcome.counterexample,
        seconds=clock.elapsed,
        seconds_by_phase=clock.phases,
        subproblems=run.subproblems,
        lower_bound=outcome.lower_bound if np.isfinite(outcome.lower_bound) else None,
        branching=run.branching,
        seed=options.seed,
        reason=outcome.reason,
    )


_STATUS: dict[str, Status] = {"proved": "unsat", "violated": "sat", "time": "timeout", "undecided": "unknown"}


class _Verification:
    """The state of one verification."""

    def __init__(self, model: Model, options: Options, clock: Clock) -> None:
        self.model, self.options, self.clock, self.strategy = model, options, clock, options.strategy
        self.network = model.network
        self.fast_network = model.network.to(torch.float32)
        self.confirm = Confirm(model.network, model.replay)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.branching: str | None = None
        self.subproblems = 0

    def decide(self, regions: Sequence[Region]) -> Outcome:
        """All regions, box by box."""
        if not regions:
            return Outcome(end="proved", reason="the property has no reachable region")
        if self.options.quick_attack is not None:
            found = self._attack(self.options.quick_attack, regions)
            if found is not None:
                return Outcome(end="violated", counterexample=found)
        if not all(len(region.constant) for region in regions):
            return Outcome(
                end="undecided",
                reason="a region without rows is violated everywhere, but no point of it could be replayed",
            )
        if any(max(np.abs(r.box.lower).max(), np.abs(r.box.upper).max()) >= HUGE for r in regions if r.box.lower.size):
            return Outcome(
                end="undecided", reason=f"an input may be as large as {HUGE:g}, beyond which nothing is proved"
            )
        if self.options.branching == "input":
            return self._bisect(regions, counted=False)
        total = Outcome(end="proved", lower_bound=float("inf"))
        for group in _by_box(regions):
            total = _merge(total, self._decide_box(group))
            if total.end in ("violated", "time"):
                break
        return total

    def _bisect(self, regions: Sequence[Region], *, counted: bool) -> Outcome:
        """Bisect boxes; `counted` says whether the regions are among the subproblems already."""
        self.branching = "input"
        limits, try_points = self._limits, self._try_points(regions)
        outcome = search_inputs(self.network, regions, self.strategy, self.clock, try_points, limits)
        self._count(outcome, len(regions) if counted else 0)
        return outcome

    def _count(self, outcome: Outcome, roots: int) -> None:
        """Add the subproblems of a search, of which so many, its roots, are counted already."""
        self.subproblems += max(outcome.subproblems - roots, 0)

    @property
    def _limits(self) -> Limits:
        return Limits(memory=self._memory(), early_stop=self.options.early_stop, seed=self.options.seed)

    def _memory(self) -> int:
        return self.options.memory or _available_memory() // 4

    def _decide_box(self, regions: Sequence[Region]) -> Outcome:
        auto = "mixture" if self.strategy.mixture else "upb"
        self.branching = auto if self.options.branching == "auto" else self.options.branching
        with self.clock.phase("root"):
            subject, regions = self._root(regions)
        if not regions:
            return Outcome(end="proved", lower_bound=float("inf"))
        if not bool(torch.isfinite(subject.form.lower).all() & torch.isfinite(subject.form.upper).all()):
            reason = "numbers in the network overflow or are not finite, so nothing can be proved"
            return Outcome(end="undecided", reason=reason)
        if self.options.branching == "auto" and self._prefers_inputs(subject, regions[0].box):
            return self._bisect(regions, counted=True)
        return self._search(subject, regions, self.branching)

    def _search(self, subject: Subject, regions: Sequence[Region], rule: str) -> Outcome:
        """The search; as long as it is slow and tighter layers help, they are refined and it begins anew."""
        limits, strategy = self._limits, self.strategy
        for refinement in strategy.refinements if self._may_refine(subject.form) else ():
            outcome = self._search_once(subject, regions, rule, replace(limits, patience=strategy.patience))
            if outcome.end != "slow":
                return outcome
            with self.clock.phase("root"):
                before = self._root_bounds(subject)
                subject = self._refined(subject, regions, refinement)
                after = self._root_bounds(subject)
                self.subproblems += subject.regions
                open_ = ~(after > 0)
                subject, regions = subject.only(open_), _those(regions, open_)
            if not regions:
                return Outcome(end="proved", lower_bound=float("inf"))
            if float(after.min()) < (1 - strategy.refine_gain) * float(before.min()):
                break
        return self._search_once(subject, regions, rule, limits)

    def _search_once(self, subject: Subject, regions: Sequence[Region], rule: str, limits: Limits) -> Outcome:
        outcome = search_neurons(subject, rule, self.strategy, self.clock, self._try_points(regions), limits)
        self._count(outcome, len(regions))
        return outcome

    def _may_refine(self, form: Form) -> bool:
        """Not with a branching rule of the user's choice: who names a rule wants the tree that it grows."""
        return self.options.branching == "auto" and form.can_refine

    def _refined(self, subject: Subject, regions: Sequence[Region], refinement: Refinement) -> Subject:
        """The subject over tighter layers."""
        enclosure, seconds = self._enclosure(regions[0].box), self.strategy.refine_share * self.clock.remaining
        form = refine(enclosure, subject.form.enclosure, refinement, self.clock, seconds)
        return Subject(self.network, form, specify(form, regions), self.clock.check)

    def _prefers_inputs(self, subject: Subject, box: Box) -> bool:
        """Few inputs and many ambiguous neurons: bisecting the box tightens all of them at once."""
        varying = int((box.upper > box.lower).sum())
        return (
            varying <= self.strategy.input_limit
            and int(subject.relaxation.ambiguous.sum()) > self.strategy.neuron_limit
        )

    def _root(self, regions: Sequence[Region]) -> tuple[Subject, Sequence[Region]]:
        """The network over the regions' box, its layers bounded as tightly as it takes, and the regions left open.

        A first pass bounds layers with fixed slopes only; only what that leaves open is folded and α-CROWNed.
        """
        box = regions[0].box
        first = self._enclosure(box)
        settle_layers(first, self.clock.check)
        form: Form = GraphForm.at(first, self.network.output)
        subject = Subject(self.network, form, specify(form, regions), self.clock.check)
        open_ = self._open(subject)
        regions = _those(regions, open_)
        if regions:
            limit = min(self.strategy.folded_limit, _available_memory() // 48)  # a sixth of the memory, in float64
            second = self._enclosure(box)
            folded = fold_network(second, self.strategy.layers, self.clock.check, known=first, limit=limit)
            if folded is not None:
                form = cheapest(folded, second)
                return Subject(self.network, form, specify(form, regions), self.clock.check), regions
        return subject.only(open_), regions

    def _open(self, subject: Subject) -> Tensor:
        """Which regions the root bound does not settle. # (regions,) bool"""
        bounds = self._root_bounds(subject)
        self.subproblems += subject.regions
        return ~(bounds > 0)

    def _root_bounds(self, subject: Subject) -> Tensor:
        """A sound bound of each region, without splits. # (regions,) float64"""
        nodes, duals = subject.roots()
        return subject.sound_bounds(nodes, subject.bound(nodes, duals, self.strategy.root).duals)

    def _enclosure(self, box: Box) -> Enclosure:
        shape = (1, *self.network.input_shape)
        return Enclosure(self.network, *(torch.from_numpy(end).reshape(shape) for end in (box.lower, box.upper)))

    def _attack(
        self, attack: PGD | MIFGSM, regions: Sequence[Region], start: Tensor | None = None
    ) -> Counterexample | None:
        with self.clock.phase("attack"):
            objective = Objective(self.fast_network, regions, thin="nearest")
            least, most = self.strategy.first_attack_seconds
            seconds = min(max(self.strategy.first_attack * self.clock.remaining, least), most)
            deadline = min(self.clock.deadline, time.monotonic() + seconds)
            result = attack.run(objective, generator=self.generator, start=start, deadline=deadline)
            for i in torch.nonzero(result.found).flatten().tolist():
                found = self.confirm(result.points[i].double().numpy(), [regions[i]])
                if found is not None:
                    return found
        return None

    def _try_points(self, regions: Sequence[Region]) -> TryPoints:
        """Looks at points for counterexamples, and attacks from new ones for a share of the time that passes."""
        begin, attacks = self.clock.elapsed + self.strategy.later_attacks_after, Budget(self.strategy.later_attacks)
        objective = Objective(self.fast_network, regions, thin="nearest")
        together = max(1, PASS_PRODUCTS // (len(regions) * max(products(self.network, self.network.output), 1)))

        def try_points(points: Tensor) -> Counterexample | None:
            x = objective.clip(points.float()[None].expand(len(regions), -1, -1))
            value = torch.cat([self._values(objective, part) for part in x.split(together, dim=1)], dim=1)
            for g, i in torch.nonzero(value <= 0).tolist()[:16]:
                found = self.confirm(x[g, i].double().numpy(), [regions[g]])
                if found is not None:
                    return found
            if not attacks.allows(self.clock.elapsed - begin):
                return None
            with attacks.spent():
                attack = self.options.search_attack
                start = x[:, : attack.restarts] if self.strategy.from_minimisers else None
                return self._attack(attack, regions, start)

        return try_points

    def _values(self, objective: Objective, x: Tensor) -> Tensor:
        self.clock.check()
        return objective.value(x)


def _those(regions: Sequence[Region], which: Tensor) -> list[Region]:
    return [region for region, wanted in zip(regions, which.tolist(), strict=True) if wanted]


def _by_box(regions: Sequence[Region]) -> list[list[Region]]:
    """The regions over each box, which is then bounded once, whether or not they share the object."""
    groups: dict[tuple[bytes, bytes], list[Region]] = {}
    for region in regions:
        groups.setdefault(region.box.key, []).append(region)
    return list(groups.values())


_WORST = ("proved", "undecided", "time", "violated")


def _merge(total: Outcome, new: Outcome) -> Outcome:
    """Of two parts of a property: it holds if both do, and is violated if either is."""
    return Outcome(
        end=max(total.end, new.end, key=_WORST.index),
        counterexample=new.counterexample or total.counterexample,
        lower_bound=min(total.lower_bound, new.lower_bound),
        reason=new.reason or total.reason,
    )


def _available_memory() -> int:
    """Bytes of free memory, or 4 GiB where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 4 * 2**30

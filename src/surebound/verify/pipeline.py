"""Verification from start to end: attack → root bounds → branch and bound, with a longer attack on the way.

Regions over one box share their root bounds. Each stage hands on only the regions it could not settle.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from surebound.attacks.mi_fgsm import MIFGSM
from surebound.attacks.objective import Objective
from surebound.attacks.pgd import PGD
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import LayerBounding, fold_network, settle_layers
from surebound.bounds.rounding import HUGE
from surebound.branching import CHOICES
from surebound.errors import UsageError
from surebound.memory import is_out_of_memory
from surebound.network.model import Model
from surebound.problem import Box, Counterexample, Property, Region, Robustness, Status, Verdict
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.confirm import Confirm
from surebound.verify.forms import cheapest
from surebound.verify.input_search import BoxLimits, input_search
from surebound.verify.points import TryPoints
from surebound.verify.progress import OnProgress
from surebound.verify.refine import Refinement, refine
from surebound.verify.search import Outcome, SearchConfig, search
from surebound.verify.subject import Subject, specify

INPUT_SPLIT_LIMIT = 20  # varying inputs up to which `auto` bisects the input box
NEURON_SPLIT_LIMIT = 64  # ambiguous neurons up to which `auto` splits them in any case
ATTACK_SHARE = 0.05  # of the remaining time, for one attack
ATTACK_AFTER = 5.0  # seconds of search before attacks on the whole network begin
SEARCH_ATTACK_SHARE = 0.05  # of the time after that, for those
PATIENCE = 10.0  # seconds that a search may be expected to take before layers are bounded more tightly
REFINEMENTS = (Refinement(rounds=2), Refinement(rounds=6), Refinement(rounds=10))  # one after the other
REFINE_SHARE = 0.4  # of the remaining time, for one of them
REFINE_GAIN = 0.2  # of the lowest root bound's distance to 0, below which there is no further refinement
FOLDED_LIMIT = 2**27  # numbers in a folded form's matrices: 1 GiB in float64; beyond it, the graph form is used


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a caller of `verify` may choose."""

    timeout: float | None = None
    branching: str = "auto"
    seed: int = 0
    memory: int | None = None  # bytes; None: a quarter of what is available
    early_stop: bool = False
    quick_attack: PGD | None = field(default_factory=lambda: PGD(steps=20, restarts=2))  # None: attacked already
    search_attack: MIFGSM = field(default_factory=lambda: MIFGSM(steps=100, restarts=4))  # again and again
    layers: LayerBounding = field(default_factory=LayerBounding)
    search: SearchConfig = field(default_factory=SearchConfig)

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
    model: Model, problem: Property | Robustness, options: Options, on_progress: OnProgress | None = None
) -> Verdict:
    """Decide a property. See `surebound.verify` for the public form."""
    clock = Clock(options.timeout, on_progress)
    network = model.network
    prop = problem.to_property(network.outputs) if isinstance(problem, Robustness) else problem
    prop.check_fits(inputs=network.inputs, outputs=network.outputs)
    run = _Verification(model, options, clock)
    regions = [region for region in prop.regions if not region.box.empty]
    try:
        outcome = run.decide(regions)
    except OutOfTime:
        outcome = Outcome(timed_out=True, reason="the time ran out", subproblems=run.subproblems)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        outcome = Outcome(reason="the memory ran out", subproblems=run.subproblems)
    return Verdict(
        status=_status(outcome),
        counterexample=outcome.counterexample,
        seconds=clock.elapsed,
        seconds_by_phase={name: round(seconds, 6) for name, seconds in clock.phases.items()},
        subproblems=outcome.subproblems,
        lower_bound=outcome.lower_bound if np.isfinite(outcome.lower_bound) else None,
        branching=run.branching,
        seed=options.seed,
        reason=outcome.reason,
    )


def _status(outcome: Outcome) -> Status:
    if outcome.counterexample is not None:
        return "sat"
    if outcome.proved:
        return "unsat"
    return "timeout" if outcome.timed_out else "unknown"


class _Verification:
    """The state of one verification."""

    def __init__(self, model: Model, options: Options, clock: Clock) -> None:
        self.model, self.options, self.clock = model, options, clock
        self.network = model.network
        self.fast_network = model.network.to(torch.float32)
        self.confirm = Confirm(model.network, model.replay)
        self.generator = torch.Generator().manual_seed(options.seed)
        self.branching: str | None = None
        self.subproblems = 0

    def decide(self, regions: Sequence[Region]) -> Outcome:
        """All regions, box by box."""
        if not regions:
            return Outcome(proved=True, reason="the property has no reachable region")
        if self.options.quick_attack is not None:
            found = self._attack(self.options.quick_attack, regions)
            if found is not None:
                return Outcome(counterexample=found)
        if not all(len(region.constant) for region in regions):
            return Outcome(reason="a region without rows is violated everywhere, but no point of it could be replayed")
        if any(max(np.abs(r.box.lower).max(), np.abs(r.box.upper).max()) >= HUGE for r in regions if r.box.lower.size):
            return Outcome(reason=f"an input may be as large as {HUGE:g}, beyond which nothing is proved")
        if self.options.branching == "input":
            return self._bisect(regions)
        total = Outcome(proved=True, lower_bound=float("inf"))
        for group in _by_box(regions):
            outcome = self._decide_box(group)
            self.subproblems += outcome.subproblems
            total = _merge(total, outcome, self.subproblems)
            if outcome.counterexample is not None or outcome.timed_out:
                break
        return total

    def _bisect(self, regions: Sequence[Region]) -> Outcome:
        self.branching = "input"
        limits = BoxLimits(memory=self._memory(), early_stop=self.options.early_stop)
        return input_search(self.network, regions, self.clock, self._try_points(regions), limits)

    def _memory(self) -> int:
        return self.options.memory or _available_memory() // 4

    def _decide_box(self, regions: Sequence[Region]) -> Outcome:
        self.branching = "mixture" if self.options.branching == "auto" else self.options.branching
        with self.clock.phase("root"):
            subject, regions = self._root(regions)
        if not regions:
            return Outcome(proved=True, lower_bound=float("inf"))
        if not bool(torch.isfinite(subject.form.lower).all() & torch.isfinite(subject.form.upper).all()):
            return Outcome(reason="numbers in the network overflow or are not finite, so nothing can be proved")
        if self.options.branching == "auto" and self._prefers_inputs(subject, regions[0].box):
            return self._bisect(regions)
        config = replace(
            self.options.search,
            branching=self.branching,
            early_stop=self.options.early_stop,
            memory=self._memory(),
            seed=self.options.seed,
        )
        return self._search(subject, regions, config)

    def _search(self, subject: Subject, regions: Sequence[Region], config: SearchConfig) -> Outcome:
        """The search; as long as it is slow and tighter layers help, they are refined and it begins anew."""
        subproblems = 0
        for refinement in REFINEMENTS if self._may_refine(subject.form) else ():
            patient = replace(config, patience=PATIENCE)
            outcome = search(subject, patient, self.clock, self._try_points(regions))
            subproblems += outcome.subproblems
            if not outcome.slow or outcome.counterexample is not None:
                return replace(outcome, subproblems=subproblems)
            with self.clock.phase("root"):
                before = self._root_bounds(subject)
                subject = self._refined(subject, regions, refinement)
                after = self._root_bounds(subject)
                open_ = ~(after > 0)
                subject, regions = subject.only(open_), _those(regions, open_)
            subproblems += int((~open_).sum())
            if not regions:
                return Outcome(proved=True, subproblems=subproblems, lower_bound=float("inf"))
            if float(after.min()) < (1 - REFINE_GAIN) * float(before.min()):
                break
        outcome = search(subject, config, self.clock, self._try_points(regions))
        return replace(outcome, subproblems=subproblems + outcome.subproblems)

    def _may_refine(self, form: Form) -> bool:
        """With a branching rule of the user's choice, the search stays the one of the paper."""
        return self.options.branching == "auto" and isinstance(form, FoldedForm) and len(form.layers) > 1

    def _refined(self, subject: Subject, regions: Sequence[Region], refinement: Refinement) -> Subject:
        """The subject over tighter layers."""
        assert isinstance(subject.form, FoldedForm)
        enclosure, seconds = self._enclosure(regions[0].box), REFINE_SHARE * self.clock.remaining
        form = refine(enclosure, subject.form.enclosure, refinement, self.clock.check, seconds)
        return Subject(self.network, form, specify(form, regions))

    def _prefers_inputs(self, subject: Subject, box: Box) -> bool:
        """Few inputs and many ambiguous neurons: bisecting the box tightens all of them at once."""
        varying = int((box.upper > box.lower).sum())
        return varying <= INPUT_SPLIT_LIMIT and int(subject.relaxation.ambiguous.sum()) > NEURON_SPLIT_LIMIT

    def _root(self, regions: Sequence[Region]) -> tuple[Subject, Sequence[Region]]:
        """The network over the regions' box, its layers bounded as tightly as it takes, and the regions left open.

        A first pass bounds layers with fixed slopes only; only what that leaves open is folded and α-CROWNed.
        """
        box = regions[0].box
        first = self._enclosure(box)
        settle_layers(first, self.clock.check)
        form: Form = GraphForm.at(first, self.network.output)
        subject = Subject(self.network, form, specify(form, regions))
        open_ = self._open(subject)
        regions = _those(regions, open_)
        if regions:
            limit = min(FOLDED_LIMIT, _available_memory() // 48)  # a sixth of the memory, in float64
            second = self._enclosure(box)
            folded = fold_network(second, self.options.layers, self.clock.check, known=first, limit=limit)
            if folded is not None:
                form = cheapest(folded, second)
                return Subject(self.network, form, specify(form, regions)), regions
        return subject.only(open_), regions

    def _open(self, subject: Subject) -> Tensor:
        """Which regions the root bound does not settle. # (regions,) bool"""
        settled = self._root_bounds(subject) > 0
        self.subproblems += int(settled.sum())  # the search counts the others
        return ~settled

    def _root_bounds(self, subject: Subject) -> Tensor:
        """A sound bound of each region, without splits. # (regions,) float64"""
        nodes, duals = subject.roots()
        return subject.sound_bounds(nodes, subject.bound(nodes, duals, self.options.search.root).duals)

    def _enclosure(self, box: Box) -> Enclosure:
        shape = (1, *self.network.input_shape)
        return Enclosure(self.network, *(torch.from_numpy(end).reshape(shape) for end in (box.lower, box.upper)))

    def _attack(self, attack: PGD | MIFGSM, regions: Sequence[Region]) -> Counterexample | None:
        with self.clock.phase("attack"):
            objective = Objective(self.fast_network, regions, thin="nearest")
            seconds = min(max(ATTACK_SHARE * self.clock.remaining, 1.0), 10.0)
            deadline = min(self.clock.deadline, time.monotonic() + seconds)
            result = attack.run(objective, generator=self.generator, deadline=deadline)
            for i in torch.nonzero(result.found).flatten().tolist():
                found = self.confirm(result.points[i].double().numpy(), [regions[i]])
                if found is not None:
                    return found
        return None

    def _try_points(self, regions: Sequence[Region]) -> TryPoints:
        """Looks at points for counterexamples, and attacks from new ones for a share of the time that passes."""
        begin, attacking = time.monotonic(), 0.0
        objective = Objective(self.fast_network, regions, thin="nearest")

        def try_points(points: Tensor) -> Counterexample | None:
            nonlocal attacking
            x = objective.clip(points.float()[None].expand(len(regions), -1, -1))
            value = objective.value(x)
            for g, i in torch.nonzero(value <= 0).tolist()[:16]:
                found = self.confirm(x[g, i].double().numpy(), [regions[g]])
                if found is not None:
                    return found
            before = time.monotonic()
            if attacking >= SEARCH_ATTACK_SHARE * (before - begin - ATTACK_AFTER):
                return None
            counterexample = self._attack(self.options.search_attack, regions)
            attacking += time.monotonic() - before
            return counterexample

        return try_points


def _those(regions: Sequence[Region], which: Tensor) -> list[Region]:
    return [region for region, wanted in zip(regions, which.tolist(), strict=True) if wanted]


def _by_box(regions: Sequence[Region]) -> list[list[Region]]:
    """The regions over each box, which is then bounded once, whether or not they share the object."""
    groups: dict[tuple[bytes, bytes], list[Region]] = {}
    for region in regions:
        groups.setdefault(region.box.key, []).append(region)
    return list(groups.values())


def _merge(total: Outcome, new: Outcome, subproblems: int) -> Outcome:
    return Outcome(
        proved=total.proved and new.proved,
        counterexample=new.counterexample,
        subproblems=subproblems,
        lower_bound=min(total.lower_bound, new.lower_bound),
        timed_out=total.timed_out or new.timed_out,
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

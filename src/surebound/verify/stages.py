"""The stages of a verification, cheapest first. Each is a class; `screening` and `closing` say which there are.

Those of `screening` take many questions together. Those of `closing` take one at a time, since from there on every box
has a network of its own: its layers bounded, its stable neurons folded away.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from surebound.attacks.mi_fgsm import MIFGSM
from surebound.attacks.pgd import PGD
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import fold_network, settle_layers
from surebound.bounds.rounding import HUGE
from surebound.bounds.witness import NOBODY
from surebound.memory import available
from surebound.problem import Region
from surebound.verify.cascade import Question, Settled, Stage
from surebound.verify.engine import Engine
from surebound.verify.forms import PRODUCTS_PER_SECOND, Costs, cheapest, forwards
from surebound.verify.roots import affordable, folding, root_bounds, settle_the_rest, settle_where_it_matters
from surebound.verify.rows import Rows
from surebound.verify.search import Outcome, search_inputs, search_neurons, search_points
from surebound.verify.spaces.layers import refine
from surebound.verify.strategy import Refinement
from surebound.verify.subject import Subject, specify
from surebound.verify.worker import sharing


def screening(engine: Engine) -> list[Stage[Question]]:
    """For many questions together: an attack, and what can be proved without bounding every layer."""
    attack = engine.options.quick_attack
    first: list[Stage[Question]] = [] if attack is None else [Attack(engine, attack)]
    network, check = engine.network, engine.clock.check
    return [*first, Provable(), Rows("ibp", network, check), Rows("crown", network, check)]


def closing(engine: Engine) -> list[Stage[Question]]:
    """For one question at a time: tight bounds, then a search; a slow one begins anew, its layers refined."""
    options = engine.options
    if options.branching == "input":
        return [Bisection(engine)]
    if not engine.network.piecewise_linear:
        return [Bisection(engine), Points(engine)]
    stages: list[Stage[Question]] = [Bisection(engine, early=True), Layers(engine), Bisection(engine)]
    for refinement in options.strategy.refinements:
        stages += [Search(engine), Refine(engine, refinement)]
    return [*stages, Search(engine, last=True)]


@dataclass(frozen=True)
class Attack:
    """Looks for counterexamples to all questions at once, and ends with the first: the property is violated."""

    engine: Engine
    attack: PGD | MIFGSM
    name: str = "attack"

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        found = self.engine.attack(self.attack, [region for question in open_ for region in question.open])
        violated = Settled(stage=self.name, end="violated", counterexample=found)
        return [None if found is None else violated] * len(open_)


@dataclass(frozen=True)
class Provable:
    """Settles what no bound could prove."""

    name: str = "provable"

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        reasons = [self._reason(question.open) for question in open_]
        return [
            Settled(stage=self.name, end="undecided", lower_bound=-np.inf, reason=r) if r else None for r in reasons
        ]

    def _reason(self, regions: Sequence[Region]) -> str:
        if not all(len(region.constant) for region in regions):
            return "a region without rows is violated everywhere, but no point of it could be replayed"
        box = regions[0].box
        if box.lower.size and max(np.abs(box.lower).max(), np.abs(box.upper).max()) >= HUGE:
            return f"an input may be as large as {HUGE:g}, beyond which nothing is proved"
        return ""


@dataclass(frozen=True)
class Layers:
    """Bounds every layer, as tightly as it takes.

    A first pass has fixed slopes; only what that leaves open is folded and α-CROWNed. In large networks, the layers are
    bounded only where it matters, at first, and left at that where there is no time for more.
    """

    engine: Engine
    name: str = "alpha-crown"

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        return [self._settle(question) for question in open_]

    def _settle(self, question: Question) -> Settled | None:
        engine, options = self.engine, self.engine.options
        auto = "mixture" if options.strategy.mixture else "upb"
        question.branching = auto if options.branching == "auto" else options.branching
        with engine.clock.phase("root"):
            self._bound(question)
        if (proved := question.proved(self.name)) is not None:
            return proved
        assert question.subject is not None
        form = question.subject.form
        # Who names a rule wants the tree that it grows.
        question.refinable = options.branching == "auto" and form.can_refine
        if not bool(torch.isfinite(form.lower).all() & torch.isfinite(form.upper).all()):
            reason = "numbers in the network overflow or are not finite, so nothing can be proved"
            return Settled(stage=self.name, end="undecided", lower_bound=-np.inf, reason=reason)
        return None

    def _bound(self, question: Question) -> None:
        engine, strategy, check = self.engine, self.engine.options.strategy, self.engine.clock.check
        network, box = engine.network, question.open[0].box
        first, witness, soon = engine.enclosure(box), question.record or NOBODY, torch.inf
        if question.record is None:
            soon = strategy.patience * PRODUCTS_PER_SECOND
        small = whole = settle_layers(first, check, witness, budget=soon)
        if not small:
            known = settle_where_it_matters(engine, question, first)
            if question.proved(self.name) is not None:
                return
            first = settle_the_rest(engine, box, known)
            whole = first is not known
        form: Form = GraphForm.at(first, network.output)
        subject = Subject(network, form, specify(form, question.open), check)
        stays = question.learn(root_bounds(engine, subject, question.recording))
        if not bool(stays.any()):
            return
        if not small and (not whole or folding(first) > affordable(engine)):
            question.subject = subject.only(stays)
            return
        memory = engine.options.memory or available() // 6
        limit = min(strategy.folded_limit, memory // 8)  # numbers in float64
        second = engine.enclosure(box)
        folded = fold_network(second, strategy.layers, check, known=first, limit=limit, witness=witness)
        if folded is None:
            question.subject = subject.only(stays)
        else:
            form = cheapest(folded, second)
            question.subject = Subject(network, form, specify(form, question.open), check)


@dataclass(frozen=True)
class Bisection:
    """A search that bisects the box: where users say so, or few inputs vary and many neurons are ambiguous, so that a
    smaller box tightens all of them at once.

    An `early` one comes before the layers are bounded backwards, where that would cost more than bounding parts of the
    box forwards. One that is slow ends, unless so few inputs vary that nothing else is expected to be quicker.
    """

    engine: Engine
    early: bool = False
    name: str = "search"

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        return [self._search(question) for question in open_]

    def _search(self, question: Question) -> Settled | None:
        if question.open[0].box.norm != "inf":  # parts of a ball are not boxes
            return None
        patience = self._patience_early(question) if self.early else self._patience(question)
        if patience is None:
            return None
        engine, regions = self.engine, question.open
        question.branching = "input"
        points = engine.try_points(regions)
        strategy, workers = engine.options.strategy, sharing(engine, regions)
        limits = replace(engine.limits, record=question.recording, patience=patience, sharing=workers)
        return _ended(
            question, search_inputs(engine.network, regions, strategy, engine.clock, points, limits), self.name
        )

    def _patience(self, question: Question) -> float | None:
        """Seconds that the search may be expected to take; None if there should be none."""
        options = self.engine.options
        if options.branching == "auto" and not self.engine.network.piecewise_linear:
            jumps = any(function is not None and function.jumps for function in self.engine.network.functions)
            suits = self._varying(question) <= options.strategy.input_limit and not jumps
            return np.inf if suits else None
        if options.branching == "auto":
            assert question.subject is not None
            ambiguous = int(question.subject.relaxation.ambiguous.sum())
            suits = self._varying(question) <= options.strategy.input_limit
            return np.inf if suits and ambiguous > options.strategy.neuron_limit else None
        return np.inf if options.branching == "input" else None

    def _patience_early(self, question: Question) -> float | None:
        engine, strategy, varying = self.engine, self.engine.options.strategy, self._varying(question)
        by_default = engine.options.branching == "auto" and question.record is None
        if not by_default or not 0 < varying <= strategy.input_limit:
            return None
        network, costs = engine.network, Costs()
        with engine.clock.phase("root"):
            enclosure = engine.enclosure(question.open[0].box)
            forwards(network, engine.clock.check).tighten(enclosure)
            layers = [enclosure.layer(k) for k in range(len(network.layers))]
        ambiguous = [int(((low < 0) & (high > 0)).sum()) for low, high in layers]
        backwards = costs.backwards(network, ambiguous)
        if sum(ambiguous) <= strategy.neuron_limit or backwards < costs.forwards(network, varying, ambiguous):
            return None
        return np.inf if 2.0**varying <= costs.parts else max(strategy.patience, backwards / PRODUCTS_PER_SECOND)

    @staticmethod
    def _varying(question: Question) -> int:
        box = question.open[0].box
        return int((box.upper > box.lower).sum())


@dataclass(frozen=True)
class Search:
    """A search that splits neurons. One that is slow ends, unless it is the last, and what is open stays so."""

    engine: Engine
    last: bool = False
    name: str = "search"

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        return [self._search(question) for question in open_]

    def _search(self, question: Question) -> Settled | None:
        engine, regions, strategy = self.engine, question.open, self.engine.options.strategy
        assert question.subject is not None and question.branching is not None
        limits = replace(engine.limits, record=question.recording, sharing=sharing(engine, regions))
        if question.refinable and not self.last:
            limits = replace(limits, patience=strategy.patience)
        points = engine.try_points(regions)
        return _ended(
            question,
            search_neurons(question.subject, question.branching, strategy, engine.clock, points, limits),
            self.name,
        )


@dataclass(frozen=True)
class Points:
    """Bounds every layer, then a search that splits neurons at points: for networks that have other activations than
    ReLUs."""

    engine: Engine
    name: str = "search"

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        return [self._search(question) for question in open_]

    def _search(self, question: Question) -> Settled | None:
        engine, regions = self.engine, question.open
        question.branching = "upb"
        with engine.clock.phase("root"):
            enclosure = engine.enclosure(regions[0].box)
            settle_layers(enclosure, engine.clock.check)
        points = engine.try_points(regions)
        outcome = search_points(enclosure, regions, engine.options.strategy, engine.clock, points, engine.limits)
        return _ended(question, outcome, self.name)


def _ended(question: Question, outcome: Outcome, stage: str) -> Settled | None:
    """A search's outcome, its subproblems counted; its roots, the open regions, are counted already."""
    question.subproblems += max(outcome.subproblems - len(question.open), 0)
    question.searched_by = outcome.by or question.searched_by
    if outcome.end == "slow":
        return None
    return Settled(
        stage=stage,
        end=outcome.end,
        counterexample=outcome.counterexample,
        lower_bound=outcome.lower_bound,
        reason=outcome.reason,
    )


@dataclass(frozen=True)
class Refine:
    """Bounds the layers more tightly, by splits, before a search begins anew."""

    engine: Engine
    refinement: Refinement
    name: str = "search"

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        return [self._refine(question) if question.refinable else None for question in open_]

    def _refine(self, question: Question) -> Settled | None:
        engine, clock, strategy, regions = self.engine, self.engine.clock, self.engine.options.strategy, question.open
        assert question.subject is not None
        with clock.phase("root"):
            before = root_bounds(engine, question.subject)
            seconds = strategy.refine_share * clock.remaining
            known = question.subject.form.enclosure
            form = refine(engine.enclosure(regions[0].box), known, self.refinement, clock, seconds, question.record)
            subject = Subject(engine.network, form, specify(form, regions), clock.check)
            after = root_bounds(engine, subject, question.recording)
            question.subproblems += len(regions)
            question.subject = subject.only(question.learn(after))
        question.refinable = float(after.min()) >= (1 - strategy.refine_gain) * float(before.min())
        return question.proved(self.name)

"""The stages that search: parts of the box, signs of ReLUs, or points of other activations; and the one that bounds the
layers anew between two searches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from surebound.bounds.root import settle_layers
from surebound.verify.cascade import Question, Settled
from surebound.verify.costs import PRODUCTS_PER_SECOND, Costs
from surebound.verify.engine import Engine
from surebound.verify.forwards import forwards
from surebound.verify.roots import root_bounds
from surebound.verify.search import Outcome, search_inputs, search_neurons, search_points
from surebound.verify.spaces.layers import refine
from surebound.verify.strategy import Refinement
from surebound.verify.subject import Subject, specify
from surebound.verify.worker import sharing


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
        begun = None if question.begun is None else question.begun.among(regions)
        limits = replace(engine.limits, record=question.recording, patience=patience, sharing=workers, begun=begun)
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
            ambiguous = enclosure.ambiguous()
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

"""The stages of a verification, cheapest first. Each is a class; `screening` and `closing` say which there are.

Those of `screening` take many questions together. Those of `closing` take one at a time, since from there on every box
has a network of its own: its layers bounded, its stable neurons folded away. Those that search are in `searches`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

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
from surebound.verify.costs import PRODUCTS_PER_SECOND, cheapest
from surebound.verify.engine import Engine
from surebound.verify.roots import (
    affordable,
    folding,
    learning_pays,
    root_bounds,
    settle_in_order,
    settle_the_rest,
    settle_where_it_matters,
)
from surebound.verify.rows import Rows
from surebound.verify.search_stages import Bisection, Points, Refine, Search
from surebound.verify.subject import Subject, specify


def screening(engine: Engine) -> list[Stage[Question]]:
    """For many questions together: an attack, and what can be proved without bounding every layer."""
    attack = engine.options.quick_attack
    first: list[Stage[Question]] = [] if attack is None else [Attack(engine, attack)]
    network, check = engine.network, engine.clock.check
    phase = partial(engine.clock.phase, "root")
    return [*first, Provable(), *(Rows(name, network, check, phase=phase) for name in ("ibp", "crown"))]


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
        if not small and not learning_pays(engine, question, first):
            first, whole = settle_in_order(engine, box, first)
        elif not small:
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

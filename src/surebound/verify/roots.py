"""Bounds before any split: of the property, and of layers only where it gains by them.

Bounding every neuron whose sign is open takes minutes on a network of a hundred thousand ReLUs, and hardly any of them
matters: on one that was trained with interval bounds, some two hundred neurons of the last layer cost a property four
fifths of its bound. So large networks begin with intervals for most layers. Over these, α-CROWN has the dual of the
property and with it the cost of every relaxation, b̄ ⊙ [λ̄]₊ (eq. 7), in a second. The few neurons that cost most
are then bounded backwards, and the property again.
"""

from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Bounded
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import PASSES, settle_layers
from surebound.bounds.witness import on_grid
from surebound.branching.rule import upper_cost
from surebound.problem import Domain
from surebound.verify.cascade import Question
from surebound.verify.costs import PRODUCTS_PER_SECOND, Costs
from surebound.verify.engine import Engine
from surebound.verify.record import Recording
from surebound.verify.subject import Subject, specify

_COSTS = Costs()


def root_bounds(engine: Engine, subject: Subject, recording: Recording | None = None) -> Tensor:
    """A sound bound of each region, without splits. # (regions,) float64"""
    return _bounded(engine, subject, recording)[0]


def _bounded(engine: Engine, subject: Subject, recording: Recording | None = None) -> tuple[Tensor, Bounded]:
    nodes, duals = subject.roots()
    bounded = subject.bound(nodes, duals, engine.options.strategy.root)
    if recording is None:
        return subject.sound_bounds(nodes, bounded.duals), bounded
    found = replace(bounded.duals, alpha=on_grid(bounded.duals.alpha))
    return recording.roots(subject, found, subject.sound_bounds(nodes, found)), bounded


def settle_where_it_matters(engine: Engine, question: Question, enclosure: Enclosure) -> Enclosure:
    """Bound the regions over the layers of an enclosure as they are, then over some that are tighter where it matters.

    It ends when all regions are proved, or when the next round would take too much of the time. The last enclosure.
    """
    strategy, check = engine.options.strategy, engine.clock.check
    cost = _learn(engine, question, enclosure)
    for share in strategy.matter_shares:
        if question.proved("") is not None:
            break
        tighter = engine.enclosure(question.open[0].box)
        whole = settle_layers(tighter, check, known=enclosure, only=matter(cost, share), budget=affordable(engine))
        enclosure = tighter
        if not whole:
            break
        cost = _learn(engine, question, enclosure)
    return enclosure


def _learn(engine: Engine, question: Question, enclosure: Enclosure) -> Tensor:
    """Bound the open regions over an enclosure. What each neuron costs those that stay open. # (open, neurons)"""
    form = GraphForm.at(enclosure, engine.network.output)
    subject = Subject(engine.network, form, specify(form, question.open), engine.clock.check)
    sound, bounded = _bounded(engine, subject)
    return upper_cost(subject.fast_relaxation, bounded.lam[question.learn(sound)])


def settle_the_rest(engine: Engine, box: Domain, known: Enclosure) -> Enclosure:
    """Bound all layers, given what is known of them, or leave them as they are if that would take too long.

    Intervals leave more signs open than there will be once the layers before are bounded.
    """
    if PASSES * _passes(known) > _COSTS.too_many * affordable(engine):
        return known
    enclosure = engine.enclosure(box)
    settle_layers(enclosure, engine.clock.check, known=known, budget=affordable(engine))
    return enclosure


def folding(enclosure: Enclosure) -> float:
    """Multiply-adds that folding a network is expected to take, with α-CROWN for the neurons whose sign is open."""
    return _COSTS.folding * _passes(enclosure)


def _passes(enclosure: Enclosure) -> float:
    return _COSTS.passes(enclosure.network, enclosure.ambiguous())


def matter(cost: Tensor, share: float) -> Tensor:
    """The neurons that cost each region most: the fewest that together make up a share of the whole cost.

    >>> matter(torch.tensor([[5.0, 0.0, 4.0, 1.0]]), 0.8).tolist()
    [True, False, True, False]

    # (regions, neurons) -> (neurons,) bool
    """
    sorted_, order = cost.sort(dim=1, descending=True)
    before = sorted_.cumsum(1) - sorted_
    needed = (before < share * cost.sum(1, keepdim=True)) & (sorted_ > 0)
    return torch.zeros_like(cost, dtype=torch.bool).scatter_(1, order, needed).any(0)


def affordable(engine: Engine) -> float:
    """Multiply-adds that bounding layers may take of the remaining time."""
    return engine.options.strategy.matter_time * engine.clock.remaining * PRODUCTS_PER_SECOND

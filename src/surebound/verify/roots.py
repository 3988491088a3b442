"""Bounds before any split: of the property, and of layers only where it gains by them.

Bounding every neuron whose sign is open takes minutes on a network of a hundred thousand ReLUs, and hardly any of them
matters: on one that was trained with interval bounds, some two hundred neurons of the last layer cost a property four
fifths of its bound. So large networks begin with intervals for most layers. Over these, α-CROWN has the dual of the
property and with it the cost of every relaxation, b̄ ⊙ [λ̄]₊ (eq. 7), in a second. The few neurons that cost most
are then bounded backwards, and the property again.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Bounded, Splits
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import settle_layers
from surebound.bounds.witness import on_grid
from surebound.branching.rule import upper_cost
from surebound.problem import Domain
from surebound.verify.cascade import Question
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.costs import PRODUCTS_PER_SECOND, Costs
from surebound.verify.engine import Engine
from surebound.verify.record import Recording
from surebound.verify.spaces.neurons import batch_size
from surebound.verify.subject import Subject, specify

_COSTS = Costs()


def root_bounds(engine: Engine, subject: Subject, recording: Recording | None = None) -> Tensor:
    """A sound bound of each region, without splits. # (regions,) float64"""
    _, duals = subject.roots()
    bounds = []
    for at, nodes, bounded in _bounded(engine, subject):
        found = bounded.duals
        if recording is not None:
            found = replace(found, alpha=on_grid(found.alpha))
            duals.put(at, found)
        bounds.append(subject.sound_bounds(nodes, found))
    return torch.cat(bounds) if recording is None else recording.roots(subject, duals, torch.cat(bounds))


def _bounded(engine: Engine, subject: Subject) -> Iterator[tuple[Tensor, Splits, Bounded]]:
    """The roots in batches as small as those of a search: where they are, they, and what bounding them yields."""
    nodes, duals = subject.roots()
    together = batch_size(subject, engine.limits.memory)
    for at in torch.arange(len(nodes), device=nodes.region.device).split(together):
        yield at, nodes[at], subject.bound(nodes[at], duals[at], engine.options.strategy.root)


def learning_pays(engine: Engine, question: Question, known: Enclosure) -> bool:
    """Whether learning what matters to the open regions, in two passes for each iteration of α-CROWN, is expected to
    take less time than bounding all layers, and no more than is affordable."""
    passes = 2 * (1 + engine.options.strategy.root.iterations) * len(question.open)
    return passes * _COSTS.graph(engine.network) <= min(affordable(engine), _COSTS.bounding(known))


def settle_in_order(engine: Engine, box: Domain, known: Enclosure) -> tuple[Enclosure, bool]:
    """Bound the layers, first to last, given what is known of them, for as long as there is time; whether all were.

    How long that takes is not known before: most signs that intervals leave open are none once the layers before are
    bounded, and are settled by a pass through small windows.
    """
    enclosure, seconds = engine.enclosure(box), engine.options.strategy.order_time * engine.clock.remaining
    try:
        settle_layers(enclosure, Clock(seconds).check, known=known)
    except OutOfTime:
        for node in range(len(engine.network.nodes)):  # what is bounded stays so
            engine.clock.check()
            enclosure.extend(node)
        return enclosure, False
    return enclosure, True


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
    bounds, costs = [], []
    for _, nodes, bounded in _bounded(engine, subject):
        bounds.append(subject.sound_bounds(nodes, bounded.duals))
        costs.append(upper_cost(subject.fast_relaxation, bounded.lam))
    return torch.cat(costs)[question.learn(torch.cat(bounds))]


def settle_the_rest(engine: Engine, box: Domain, known: Enclosure) -> Enclosure:
    """Bound all layers, given what is known of them, or leave them as they are if that would take too long.

    Intervals leave more signs open than there will be once the layers before are bounded.
    """
    if _COSTS.bounding(known) > affordable(engine):
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

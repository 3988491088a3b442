"""Bounds before any split: of the property, and of layers only where it gains by them.

Bounding every neuron whose sign is open takes minutes on a network of a hundred thousand ReLUs, and hardly any of them
matters: on one that was trained with interval bounds, some two hundred neurons of the last layer cost a property four
fifths of its bound. So large networks begin with intervals for all layers. Of these, α-CROWN has the dual of the
property and with it the cost of every relaxation, b̄ ⊙ [λ̄]₊ (eq. 7), in a second. The few neurons that cost most
are then bounded backwards, and the property again.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Bounded
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import settle_layers
from surebound.bounds.witness import on_grid
from surebound.verify.cascade import Question
from surebound.verify.engine import Engine
from surebound.verify.forms import PRODUCTS_PER_SECOND, Costs
from surebound.verify.record import Recording
from surebound.verify.subject import Subject, specify


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


def is_large(engine: Engine, enclosure: Enclosure, costs: Costs = Costs()) -> bool:
    """Whether bounding all of a network's layers backwards is expected to take longer than a search may."""
    return seconds_backwards(enclosure, costs) > engine.options.strategy.patience


def seconds_backwards(enclosure: Enclosure, costs: Costs = Costs()) -> float:
    """What bounding all layers backwards, and folding the network, is expected to take."""
    return costs.backwards(enclosure.network, _open(enclosure)) / PRODUCTS_PER_SECOND


def settle_where_it_matters(engine: Engine, question: Question, enclosure: Enclosure) -> tuple[Enclosure, Subject]:
    """Bound the regions over intervals for the layers, `enclosure`, then over layers that are tighter where it matters.

    It ends when all regions are proved, or when the next round would take too much of the time. The last enclosure, and
    what is open over it.
    """
    strategy, check = engine.options.strategy, engine.clock.check
    subject, cost = _learn(engine, question, enclosure)
    for share in strategy.matter_shares:
        if question.proved("") is not None:
            break
        only = matter(cost, share)
        if _seconds(enclosure, only) > strategy.matter_time * engine.clock.remaining:
            break
        tighter = engine.enclosure(question.open[0].box)
        settle_layers(tighter, check, known=enclosure, only=only)
        enclosure = tighter
        subject, cost = _learn(engine, question, enclosure)
    return enclosure, subject


def _learn(engine: Engine, question: Question, enclosure: Enclosure) -> tuple[Subject, Tensor]:
    """Bound the open regions over an enclosure: those that stay open, and what each neuron costs them."""
    form = GraphForm.at(enclosure, engine.network.output)
    subject = Subject(engine.network, form, specify(form, question.open), engine.clock.check)
    sound, bounded = _bounded(engine, subject)
    stays = question.learn(sound)
    return subject.only(stays), subject.fast_relaxation.intercept * bounded.lam[stays].clamp_min(0.0)


def matter(cost: Tensor, share: float) -> Tensor:
    """The neurons that cost each region most: as few as have together a share of what all cost.

    >>> matter(torch.tensor([[5.0, 0.0, 4.0, 1.0]]), 0.8).tolist()
    [True, False, True, False]

    # (regions, neurons) -> (neurons,) bool
    """
    sorted_, order = cost.sort(dim=1, descending=True)
    before = sorted_.cumsum(1) - sorted_
    needed = (before < share * cost.sum(1, keepdim=True)) & (sorted_ > 0)
    return torch.zeros_like(cost, dtype=torch.bool).scatter_(1, order, needed).any(0)


def _seconds(enclosure: Enclosure, only: Tensor, costs: Costs = Costs()) -> float:
    """Of bounding some neurons: a pass of FastLin, two of CROWN."""
    network = enclosure.network
    counts = [int(part.sum()) for part in only.split(list(network.widths))]
    return 3 * costs.passes(network, counts) / PRODUCTS_PER_SECOND


def _open(enclosure: Enclosure) -> Sequence[int]:
    layers = [enclosure.layer(k) for k in range(len(enclosure.network.layers))]
    return [int(((low < 0) & (high > 0)).sum()) for low, high in layers]

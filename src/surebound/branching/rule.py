"""What a branching rule sees, and what it answers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Bounded, Duals, Splits
from surebound.bounds.relaxation import Relaxation

Bound = Callable[[Splits, Duals, Ascent], Bounded]
"""β-CROWN on a batch of nodes, from given duals."""


Evaluate = Callable[[Splits, Duals], tuple[Tensor, Tensor]]
"""The bound and λ̄ of nodes at given duals."""


@dataclass(frozen=True, eq=False)
class Context:
    """What stays the same over a search."""

    layers: tuple[slice, ...]  # where each layer's neurons sit among all
    relaxation: Relaxation  # float32, CROWN slopes
    bias: Tensor  # (neurons,) b of `surebound.branching.bias`, of each relaxed neuron
    bound: Bound
    evaluate: Evaluate


@dataclass(frozen=True, eq=False)
class Bounding:
    """A batch of bounded nodes."""

    nodes: Splits
    duals: Duals
    lam: Tensor  # (nodes, neurons) λ̄
    bound: Tensor  # (nodes,)


def take(batch: Bounding, index: Tensor) -> Bounding:
    """Some of the nodes."""
    return Bounding(batch.nodes[index], batch.duals[index], batch.lam[index], batch.bound[index])


class Rule(Protocol):
    """A branching rule."""

    def __init__(self, context: Context) -> None: ...

    def scores(self, batch: Bounding) -> Tensor:
        """How much splitting each neuron promises; only ambiguous, unsplit neurons count. # (nodes, neurons)"""
        ...

    def choose(self, batch: Bounding) -> Tensor:
        """The neuron to split next, for each node. # (nodes,)"""
        ...


def open_neurons(context: Context, nodes: Splits) -> Tensor:
    """Ambiguous and not yet split. # (nodes, neurons) bool"""
    ambiguous = context.relaxation.ambiguous.expand(len(nodes), -1)
    return ambiguous if nodes.signs is None else ambiguous & (nodes.signs == 0)


def fixed_slope_dual(context: Context, batch: Bounding, lower_slope: Tensor) -> tuple[Tensor, Tensor]:
    """The bound and λ̄ with given lower slopes and β = 0, splits applied. # (nodes,), (nodes, neurons)"""
    alpha = lower_slope.expand(len(batch.nodes), -1)
    return context.evaluate(batch.nodes, Duals(alpha, None, batch.duals.mix))


def upper_cost(relaxation: Relaxation, lam: Tensor) -> Tensor:
    """What each neuron's upper line costs the bound, b̄ ⊙ [λ̄]₊ (the paper's eq. 7). # (nodes, neurons)"""
    return relaxation.intercept * lam.clamp_min(0.0)


def deepest_intercept(context: Context, lam: Tensor, open_: Tensor) -> Tensor:
    """The fallback of SR: the largest intercept term b̄⊙[λ̄]₊ in the deepest layer that has one, else the first
    open neuron of the deepest layer with any. # (nodes,)"""
    term = torch.where(open_, upper_cost(context.relaxation, lam), 0.0)
    choice, settled = (lam.new_zeros(len(lam), dtype=dtype) for dtype in (torch.int64, torch.bool))
    for score in (term, open_.to(lam.dtype)):
        for where in reversed(context.layers):
            if where.start == where.stop:
                continue
            best, index = score[:, where].max(1)
            take = ~settled & (best > 0)
            choice[take] = index[take] + where.start
            settled |= take
    return choice

"""Enclosures over domains, and what a ball says of nodes that no activation comes before.

Intervals see of a ball only the box around it, in which every input moves by the radius at once: in ℓ2 and many inputs,
that says next to nothing. But a node v that is affine in the input is bounded by the ball directly,

    v(m + δ) = v(m) + A δ,        |A_i·δ| ≤ r ‖A_i‖_*,

with the dual norm of each row of A, which is the network's own and computed once. v(m) is an interval at the centre.
A_i is the row of a folded form over [−1, 1]ⁿ, whose error, at most E over that box for A x + b and as much for b alone,
makes it r (‖Â_i‖_* + 2 E_i).
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.audit import Audit, ExactLines, auditor
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.minimum import EXTRA, ROOTED
from surebound.bounds.rounding import U, gamma
from surebound.domain.balls import Balls
from surebound.domain.sets import Ball, Domain, Norm
from surebound.network.graph import Network, Neurons
from surebound.network.linear import size

_ROWS = 512  # of a node, folded at once
_FAR = Fraction(10) ** 400  # beyond float64


def enclosure_over(network: Network, domains: Sequence[Domain]) -> Enclosure:
    """Intervals over domains of one norm."""
    ends = (np.stack([d.lower for d in domains]), np.stack([d.upper for d in domains]))
    lower, upper = (network.array(end).reshape(-1, *network.input_shape) for end in ends)
    balls = [d for d in domains if isinstance(d, Ball)]
    return Enclosure(network, lower, upper, around=Around(network, Balls.of(balls, network.device)) if balls else None)


class Around:
    """Balls, and what they say of nodes. `network` in float64."""

    def __init__(self, network: Network, balls: Balls) -> None:
        self.network, self.balls = network, balls

    def repeated(self, count: int) -> "Around":
        """The only ball, so many times."""
        return Around(self.network, self.balls.map(lambda t: t.expand(count, -1)))

    @cached_property
    def _centre(self) -> Enclosure:
        """Intervals at the centres."""
        point = self.balls.centre.reshape(-1, *self.network.input_shape)
        return Enclosure(self.network, point, point)

    def bounds(self, node: int) -> tuple[Tensor, Tensor] | None:
        """Bounds on a node over the balls; None unless it is one of `affine_nodes`. # (balls, *shape) each"""
        if node not in affine_nodes(self.network):
            return None
        self._centre.extend(node)
        lower, upper = self._centre.lower[node], self._centre.upper[node]
        radius = self.balls.radius.reshape(-1, *(1 for _ in lower.shape[1:]))
        way = radius * row_norms(self.network, node, self.balls.norm) * (1.0 + 4 * U)
        infinity = way.new_tensor(torch.inf)
        lower, upper = torch.nextafter(lower - way, -infinity), torch.nextafter(upper + way, infinity)
        found = torch.where(lower > -infinity, lower, -infinity), torch.where(upper < infinity, upper, infinity)
        if (audit := auditor()) is not None:
            self._audit(audit, node, found)
        return found

    def _audit(self, audit: Audit, node: int, found: tuple[Tensor, Tensor]) -> None:
        ends = (self.balls.lower, self.balls.upper)
        lower, upper = (end.reshape(-1, *self.network.input_shape) for end in ends)
        enclosure = Enclosure(self.network, lower, upper, around=self)
        index = torch.tensor(sorted({0, size(self.network.nodes[node].shape) - 1}), device=self.network.device)
        for ball in {0, enclosure.boxes - 1}:
            claimed = (found[0][ball].flatten()[index], found[1][ball].flatten()[index])
            audit.neuron_bounds(enclosure, node, index, self._no_lines, claimed, ball)

    def _no_lines(self, layer: int) -> ExactLines:
        """Lines that say nothing, around a layer that nodes here do not read: with them, no claim would hold."""
        zero = np.full(self.network.width(layer), Fraction(0))
        return ExactLines(zero, zero, zero + _FAR, zero, zero - _FAR)


@lru_cache(maxsize=32)
def affine_nodes(network: Network) -> frozenset[int]:
    """The pre-activations and the output, where no activation comes before them: they are affine in the input."""
    after: set[int] = set()
    for i, node in enumerate(network.nodes):
        if isinstance(node.op, Neurons) or after.intersection(node.inputs):
            after.add(i)
    return frozenset({*(network.before(k) for k in range(len(network.layers))), network.output} - after)


@lru_cache(maxsize=64)
def row_norms(network: Network, node: int, norm: Norm) -> Tensor:
    """‖A_i‖_* of a node's rows, or more. # (*shape) float64"""
    ones = torch.ones(1, *network.input_shape, dtype=torch.float64, device=network.device)
    enclosure = Enclosure(network, -ones, ones)
    enclosure.extend(node)
    form, shape = FoldedForm.empty(enclosure), network.nodes[node].shape
    balls = Balls(ones[0], ones[0], ones[0], ones[0], norm)
    found = [ones.new_zeros(0)]
    for index in torch.arange(size(shape), device=network.device).split(_ROWS):
        rows = form.fold_neurons(node, index)
        found.append(dual_norms(balls, rows.coefficients) + 2 * rows.error)
    return (torch.cat(found) * (1.0 + 4 * U)).reshape(shape)


def dual_norms(balls: Balls, rows: Tensor) -> Tensor:
    """‖a‖_* of rows, or more. # (rows, inputs) -> (rows,) float64"""
    return balls.dual_norm(rows) * (1.0 + gamma(rows.shape[1] + EXTRA)) + ROOTED

"""DeepZ: bounds from zonotopes pushed forward through the network.

A zonotope describes a node as v = c + Σ_i g_i ε_i with shared ε ∈ [−1, 1]^G. Affine ops map centre and generators
exactly; a ReLU on [l̂, û] with l̂ < 0 < û becomes (Singh 2018)

    x = λ x̂ + μ + μ ε_new,   λ = û / (û − l̂),   μ = −û l̂ / (2 (û − l̂))

with one new generator per ambiguous neuron. Here every zonotope also carries an error e ≥ 0 per element, a bound on all
rounding so far: v ∈ c + Σ_i g_i ε_i + [−e, e] holds for the true v. Affine ops add γ_n |A| (|c| + Σ_i |g_i|) to |A| e
(Higham 2002, section 3.1), ReLUs the rounding of their products.

Deviations: l̂, û are intersected with the intervals of `Enclosure`, which costs nothing and only tightens λ and μ.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.relaxation import relax
from surebound.bounds.result import LayerBounds
from surebound.bounds.rounding import SLACK, TINY, U, gamma
from surebound.network.graph import Input, Network, Relu
from surebound.network.op import Affine, absolute

_NEGLIGIBLE = 1e-150  # a smaller μ (0 − 0 in max pooling, ± TINY) goes to the error instead of a generator of its own


@dataclass(frozen=True, eq=False)
class Zonotope:
    """c + Σ_i g_i ε_i + [−e, e] for a batch of boxes. The ε are shared by all zonotopes of one box."""

    centre: Tensor  # (boxes, *shape)
    generators: Tensor  # (generators, boxes, *shape)
    error: Tensor  # (boxes, *shape)

    def padded(self, count: int) -> Tensor:
        """The generators, followed by zeros for those that came up elsewhere in the network."""
        missing = self.generators.new_zeros(count - len(self.generators), *self.centre.shape)
        return torch.cat([self.generators, missing])

    def reach(self) -> Tensor:
        """|c| + Σ_i |g_i|, up to rounding."""
        return self.centre.abs() + self.generators.abs().sum(0)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """c ∓ (Σ_i |g_i| + e), rounded outward."""
        spread = self.generators.abs().sum(0) * (1.0 + gamma(len(self.generators) + 4))
        radius = (spread + self.error) * (1.0 + 4 * U)
        infinity = radius.new_tensor(torch.inf)
        return torch.nextafter(self.centre - radius, -infinity), torch.nextafter(self.centre + radius, infinity)


def _scattered(values: Tensor, chosen: Tensor) -> Tensor:
    """One generator per chosen element of each box, as few as the fullest box needs.
    # (boxes, *shape) twice -> (generators, boxes, *shape)"""
    flat = chosen.flatten(1)
    slot = flat.cumsum(1) - 1
    generators = values.new_zeros(int(flat.sum(1).max()), *flat.shape)
    box, element = torch.nonzero(flat, as_tuple=True)
    generators[slot[box, element], box, element] = values.flatten(1)[box, element]
    return generators.reshape(len(generators), *values.shape)


def box_zonotope(lower: Tensor, upper: Tensor) -> Zonotope:
    """A box, with one generator per element that varies. # (boxes, *shape) each"""
    centre = (lower + upper) / 2
    radius = torch.maximum(upper - centre, centre - lower) * (1.0 + 4 * U)
    return Zonotope(centre, _scattered(radius, lower < upper), torch.zeros_like(centre))


def affine(op: Affine, operands: Sequence[Zonotope]) -> Zonotope:
    """A v + b for one zonotope v per input of the op."""
    count, bold = max(len(z.generators) for z in operands), absolute(op)
    centre = op.apply(*(z.centre for z in operands))
    moved = op.apply(*(z.padded(count).flatten(0, 1) for z in operands))
    generators = moved.unflatten(0, (count, len(centre)))
    error = bold.apply(*(z.error for z in operands))
    if op.roundings:
        reach = bold.apply(*(z.reach() for z in operands)) * (1.0 + gamma(op.roundings + count + 4))
        error = error * (1.0 + gamma(op.roundings + 4)) + gamma(op.roundings) * SLACK * reach + TINY
    if op.bias is not None:
        centre = centre + op.bias
        error = (error + U * SLACK * centre.abs()) * (1.0 + 4 * U) + TINY
    return Zonotope(centre, generators, error)


def relu(z: Zonotope, lower: Tensor, upper: Tensor, count: int) -> Zonotope:
    """The module's transformer for x̂ in z and in [lower, upper]; new generators are numbered from `count` on.

    Whatever λ was rounded to, max(x̂, 0) − λ x̂ is convex and so lies in [0, max(−λ l̂, (1 − λ) û)] = [0, 2 μ].
    # lower, upper: (boxes, *shape)
    """
    line = relax(lower, upper)
    lam, mu = line.upper_slope, line.intercept / 2
    fresh = line.ambiguous & (mu > _NEGLIGIBLE)
    error = lam * z.error
    rounded = 4 * U * (error + SLACK * (lam * z.reach() * (1.0 + gamma(count + 4)) + mu)) + torch.where(fresh, 0.0, mu)
    return Zonotope(
        lam * z.centre + mu,
        torch.cat([lam * z.padded(count), _scattered(mu, fresh)]),
        torch.where(line.ambiguous, error + rounded + TINY, error),
    )


def deepz(network: Network, lower: Tensor, upper: Tensor) -> LayerBounds:
    """Zonotope bounds intersected with interval bounds on every layer, sound in float64.

    Memory is that of (inputs + ambiguous neurons) copies of the widest layer. # lower, upper: (boxes, *input_shape)
    """
    network, lower, upper = network.to(torch.float64), lower.double(), upper.double()
    enclosure = Enclosure(network, lower, upper)
    values = {0: box_zonotope(lower, upper)}
    count = len(values[0].generators)
    targets = [*(network.before(k) for k in range(len(network.layers))), network.output]
    last_use = {j: i for i, node in enumerate(network.nodes) for j in node.inputs}
    for i, node in enumerate(network.nodes):
        if isinstance(node.op, Relu):
            source = node.inputs[0]
            values[i] = relu(values[source], enclosure.lower[source], enclosure.upper[source], count)
            count = len(values[i].generators)
        elif not isinstance(node.op, Input):
            values[i] = affine(node.op, [values[j] for j in node.inputs])
        enclosure.extend(i)
        if i in targets:
            enclosure.tighten(i, *values[i].bounds())
        for j in {j for j in node.inputs if last_use[j] == i}:
            del values[j]
    return LayerBounds(
        tuple(enclosure.lower[node].flatten(1) for node in targets),
        tuple(enclosure.upper[node].flatten(1) for node in targets),
    )

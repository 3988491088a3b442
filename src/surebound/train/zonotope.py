"""Zonotopes around latent spaces, for training: never as matrices of generators, only as maps of their error terms.

The first layers A_1 … A_j of a network are replaced by (Singh 2018; Balunović & Vechev 2020)

    x_0 = c + r ⊙ e_0,    x̂_k = A_k x_{k−1},    x_k = λ_k ⊙ x̂_k + μ_k ⊙ (1 + e_k),    e_k ∈ [−1, 1],

with λ = û / (û − l̂), μ = −û l̂ / (2 (û − l̂)) for ambiguous neurons, the identity or zero for the others. This is affine
in the error terms e = (e_0, …, e_j): a point costs a forward pass and the gradient of e an adjoint one, whatever their
number.

l̂ and û of x̂_k are its centre ∓ the ℓ1 norm of what the terms do to it. That is |A_1| r at the first layer, and for
terms that came up just before a layer |A_k| μ_{k−1}. For older terms it is estimated: a vector R of independent Cauchy
variables in place of e (and no centre) arrives as Cauchy variables whose scales are these norms (Li 2007). Estimates,
not bounds: for training only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, cast, final

import torch
from torch import Tensor

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch
from surebound.train.cauchy import Projections
from surebound.train.chain import Layer, Layers, absolute, image_layout, linear

_CHUNK = {"cpu": 1 << 22}  # elements of a layer's projections at once: on a CPU they stay in its cache
_DEFAULT_CHUNK = 1 << 28


@final
@dataclass(frozen=True, eq=False)
class Relu:
    """x = λ ⊙ x̂ + μ ⊙ (1 + e)."""

    lam: Tensor  # (batch, *shape)
    mu: Tensor  # (batch, *shape)


def relax(lower: Tensor, upper: Tensor) -> Relu:
    """The zonotope relaxation of ReLUs with x̂ in [l̂, û]. # (batch, *shape) each"""
    width = (upper - lower).clamp_min(torch.finfo(upper.dtype).tiny)
    lam = (upper / width).clamp_(0, 1)
    return Relu(lam, lam * (-lower).relu() / 2)


class _Point(torch.autograd.Function):
    """`Zonotope.point` with its adjoint as the gradient."""

    @staticmethod
    def forward(ctx: Any, e: Tensor, zonotope: "Zonotope", depth: int) -> Tensor:
        ctx.zonotope, ctx.depth = zonotope, depth
        return zonotope._push(e, depth)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.zonotope._pull(gradients[0], ctx.depth), None, None


@final
@dataclass(frozen=True, eq=False)
class Zonotope:
    """The zonotopes around the latent spaces of the first layers, which share their error terms.

    A sample's error terms are a row of numbers: e_0, e_1, … one after the other, images in channels-last order.
    """

    layers: Layers  # without gradients to the parameters
    centre: Tensor  # (batch, *in_shape) pixels
    radius: Tensor  # (batch, *in_shape)
    relus: tuple[Relu, ...]  # of the first layers

    def sizes(self, depth: int) -> list[int]:
        """How many error terms each group has, for the latent space after `depth` layers."""
        return [v[0].numel() for v in (self.radius, *(relu.mu for relu in self.relus[:depth]))]

    def point(self, e: Tensor, depth: int) -> Tensor:
        """x_depth for error terms e; pixels at depth 0. # (batch, terms) -> (batch, *shape)"""
        return cast(Tensor, _Point.apply(e, self, depth))  # type: ignore[no-untyped-call]

    def attack(self, attack: TrainAttack, batch: Batch, depth: int) -> Tensor:
        """The point of latent space `depth` that an attack over its error terms finds. # (batch, *shape)"""
        one = self.centre.new_ones(())
        ends = one.expand(len(self.centre), sum(self.sizes(depth)))
        e = attack.search(
            lambda e: self.layers.logits(self.point(e, depth), start=depth), -ends, ends, batch=batch, unit=one
        )
        return self._push(e, depth)

    def _push(self, e: Tensor, depth: int) -> Tensor:
        terms = e.split(self.sizes(depth), dim=1)
        x = torch.addcmul(self.centre, self.radius, _as_image(terms[0], self.radius.shape))
        if depth > 0:
            x = self.layers.normalise(x)
        for layer, relu, term in zip(self.layers.affine[:depth], self.relus, terms[1:], strict=False):
            x = layer(x).mul_(relu.lam).add_(relu.mu).addcmul_(relu.mu, _as_image(term, relu.mu.shape))
        return x

    def _pull(self, g: Tensor, depth: int) -> Tensor:
        sizes = self.sizes(depth)
        gradient = g.new_empty(len(g), sum(sizes))
        terms = gradient.split(sizes, dim=1)
        for k in reversed(range(depth)):
            relu = self.relus[k]
            torch.mul(g, relu.mu, out=_as_image(terms[k + 1], relu.mu.shape))
            g = self.layers.affine[k].adjoint(g * relu.lam)
        if depth > 0:
            g = g / self.layers.std
        torch.mul(g, self.radius, out=_as_image(terms[0], self.radius.shape))
        return gradient


def _as_image(terms: Tensor, shape: Sequence[int]) -> Tensor:
    """A view of rows of numbers as images. # (batch, elements) -> (batch, *shape)"""
    if len(shape) == 2:
        return terms
    channels, height, width = shape[1:]
    return terms.view(-1, height, width, channels).permute(0, 3, 1, 2)


@final
@dataclass(frozen=True, eq=False)
class _Walk:
    """Some samples' zonotopes on the way through the layers: centre, error terms that came up last, older ones.

    The former are a diagonal of generators, the latter known by what Cauchy vectors in their place arrive as.
    """

    centre: Tensor  # (samples, *shape)
    radius: Tensor  # (samples, *shape)
    older: tuple[Tensor, ...]  # per group (count, samples, *shape)

    def affine(self, layer: Layer, vectors: Tensor | None, projections: Projections) -> "_Walk":
        """A_k: the walk's centre, the estimated radius of x̂_k and, unless it ends there (without vectors), where
        all the Cauchy vectors are. # vectors: (count, *shape) for the newest terms"""
        older = self.older
        exact = vectors is None or not older or projections.groups == "separate"
        if not exact:
            older = (torch.addcmul(older[0], self.radius, cast(Tensor, vectors)[:, None]),)
        moved = [_push(layer, v) for v in older]
        norms = [projections.estimate(v) for v in moved] + ([absolute(layer)(self.radius)] if exact else [])
        if vectors is None:
            moved = []
        elif exact:
            moved.append(_push(layer, self.radius * vectors[:, None]))
        return _Walk(layer(self.centre), torch.stack(norms).sum(0), tuple(moved))

    def relu(self) -> tuple[Relu, "_Walk"]:
        """x_k and its relaxation, for x̂_k within centre ∓ radius."""
        relu = relax(self.centre - self.radius, self.centre + self.radius)
        older = tuple(v.mul_(relu.lam) for v in self.older)
        return relu, _Walk(self.centre * relu.lam + relu.mu, relu.mu, older)


def _push(layer: Layer, vectors: Tensor) -> Tensor:
    """A v. # (count, samples, *in_shape) -> (count, samples, *shape)"""
    return linear(layer)(vectors.flatten(0, 1)).view(*vectors.shape[:2], *layer.shape)


@final
@dataclass(frozen=True, eq=False)
class Enclosure:
    """Zonotopes around the latent spaces of the first layers and the regulariser of the layer after them."""

    zonotope: Zonotope
    area: Tensor | None  # () the mean over samples of [−l̂]₊ᵀ [û]₊, with gradients to that layer's parameters alone


def enclose(
    layers: Layers,
    batch: Batch,
    *,
    depth: int,
    projections: Projections,
    regularise: bool,
    chunk: int | None = None,
) -> Enclosure:
    """Zonotopes for the boxes of a batch after the first `depth` layers, which get no gradients.

    A few samples at a time go through all layers and, for the regulariser, back through the last one, so that their
    projections never leave the cache and are never all in memory. `chunk` is how many numbers those of a layer may be.
    """
    frozen = layers.detach()
    lower, upper = batch.box
    centre, radius = image_layout((lower + upper) / 2), image_layout((upper - lower) / 2)
    passed = layers.affine[: depth + regularise]
    if not passed:
        return Enclosure(Zonotope(frozen, centre, radius, ()), None)
    start, reach = frozen.normalise(centre), image_layout(radius / frozen.std)
    vectors = [projections.draw(batch.draws, layer.in_shape, start) for layer in passed[:-1]]
    size = len(start)
    if vectors:
        per_sample = projections.count * max(prod(layer.shape) for layer in passed)
        size = max(1, (chunk or _CHUNK.get(start.device.type, _DEFAULT_CHUNK)) // per_sample)
    last = layers.affine[depth]
    parameters = [p for p in (last.weight, last.bias) if p is not None]
    leaves = [p.detach().requires_grad_(regularise) for p in parameters]
    trained = replace(last, weight=leaves[0], bias=None if last.bias is None else leaves[1])
    relus: list[list[Relu]] = []
    area, gradients = start.new_zeros(()), [torch.zeros_like(p) for p in leaves]
    for c, r in zip(start.split(size), reach.split(size), strict=True):
        walk, found = _Walk(c, r, ()), []
        with torch.no_grad():
            for k in range(depth):
                relu, walk = walk.affine(frozen.affine[k], vectors[k] if k < len(vectors) else None, projections).relu()
                found.append(relu)
        relus.append(found)
        if regularise:
            with torch.enable_grad():
                end = walk.affine(trained, None, projections)
                part = ((end.radius - end.centre).relu() * (end.radius + end.centre).relu()).sum() / len(start)
            area += part.detach()
            for total, gradient in zip(gradients, torch.autograd.grad(part, leaves), strict=True):
                total += gradient
    joined = (Relu(torch.cat([r.lam for r in k]), torch.cat([r.mu for r in k])) for k in zip(*relus, strict=True))
    zonotope = Zonotope(frozen, centre, radius, tuple(joined))
    if not regularise:
        return Enclosure(zonotope, None)
    # The chunks' gradients are known by now: zeros that have them stand in for the graphs, which are gone.
    for p, gradient in zip(parameters, gradients, strict=True):
        area = area + (gradient * (p - p.detach())).sum()
    return Enclosure(zonotope, area)

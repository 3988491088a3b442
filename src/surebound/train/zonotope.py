"""Zonotopes around latent spaces, for training: never as matrices of generators, only as maps of their error terms.

Up to the tensor that a block begins with, every activation of a network is replaced by (Singh 2018; Balunović & Vechev
2020)

    x_0 = c + r ⊙ e_0,    x_k = λ_k ⊙ x̂_k + m_k + μ_k ⊙ e_k,    e_k ∈ [−1, 1],

with λ = û / (û − l̂), m = μ = −û l̂ / (2 (û − l̂)) for ambiguous ReLUs, the identity or zero for the others, and what lies
between two parallel lines for other activations. This is affine in the error terms e = (e_0, e_1, …): a point costs a
forward pass and the gradient of e an adjoint one, whatever their number.

l̂ and û of x̂_k are its centre ∓ the ℓ1 norm of what the terms do to it. Terms that reach x̂_k by one affine operation A
alone have the norm |A| μ there. For all others it is estimated: a vector R of independent Cauchy variables in place of
e (and no centre) arrives as Cauchy variables whose scales are these norms (Li 2007). Estimates, not bounds: for
training only.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any, cast, final

import torch
from torch import Tensor

from surebound.network.conv import Conv
from surebound.network.graph import Input, Network, Neurons, value
from surebound.network.linear import Linear, Scale
from surebound.network.op import Affine, Shape, absolute, held
from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch
from surebound.train.cauchy import Projections
from surebound.train.learner import Layers, image_layout
from surebound.train.linear_bounds import band

_CHUNK = {"cpu": 1 << 22}  # elements of a layer's projections at once: on a CPU they stay in its cache
_DEFAULT_CHUNK = 1 << 28


@final
@dataclass(frozen=True, eq=False)
class Band:
    """x = λ ⊙ x̂ + m + μ ⊙ e."""

    lam: Tensor  # (batch, *shape)
    shift: Tensor  # (batch, *shape) m
    mu: Tensor  # (batch, *shape)


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
    """The zonotopes around the tensors that the first blocks begin with, which share their error terms.

    A sample's error terms are a row of numbers: e_0, e_1, … one after the other, images in channels-last order.
    """

    layers: Layers  # without gradients to the parameters
    centre: Tensor  # (batch, *in_shape) pixels
    radius: Tensor  # (batch, *in_shape)
    bands: tuple[Band, ...]  # of the first layers

    def sizes(self, depth: int) -> list[int]:
        """How many error terms each group has, for the latent space that block `depth` begins with."""
        count = sum(node <= self.layers.cuts[depth] for node in self.layers.network.layers)
        return [v[0].numel() for v in (self.radius, *(b.mu for b in self.bands[:count]))]

    def point(self, e: Tensor, depth: int) -> Tensor:
        """The latent point for error terms e; pixels at depth 0. # (batch, terms) -> (batch, *shape)"""
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
        if depth == 0:
            return x

        def activate(k: int, xhat: Tensor) -> Tensor:
            b = self.bands[k]
            moved = xhat.mul_(b.lam) if self.layers.owns(k) else xhat * b.lam
            return moved.add_(b.shift).addcmul_(b.mu, _as_image(terms[k + 1], b.mu.shape))

        network, end = self.layers.network, self.layers.cuts[depth]
        return replace(network, nodes=network.nodes[: end + 1], output=end).trace(self.layers.normalise(x), activate)

    def _pull(self, g: Tensor, depth: int) -> Tensor:
        sizes = self.sizes(depth)
        gradient = g.new_empty(len(g), sum(sizes))
        terms = gradient.split(sizes, dim=1)

        def activate(k: int, on_x: Tensor) -> Tensor:
            b = self.bands[k]
            torch.mul(on_x, b.mu, out=_as_image(terms[k + 1], b.mu.shape))
            return on_x * b.lam

        if depth > 0:
            g = self._linear.pull({self.layers.cuts[depth]: g}, activate)[0] / self.layers.std
        torch.mul(g, self.radius, out=_as_image(terms[0], self.radius.shape))
        return gradient

    @cached_property
    def _linear(self) -> Network:
        """The network without biases, which gradients do not see."""
        return self.layers.network.map(
            lambda op: replace(op, bias=None) if isinstance(op, Conv | Linear | Scale) else op
        )


def _as_image(terms: Tensor, shape: Sequence[int]) -> Tensor:
    """A view of rows of numbers as images. # (batch, elements) -> (batch, *shape)"""
    if len(shape) != 4:
        return terms.view(-1, *shape[1:])
    channels, height, width = shape[1:]
    return terms.view(-1, height, width, channels).permute(0, 3, 1, 2)


_MERGED = 0  # the group of all, where vectors of different groups are added up
_NONE = -1


@final
@dataclass(frozen=True, eq=False)
class _State:
    """Some samples' zonotopes at a node: the centre, error terms that came up here, and others.

    The former are a diagonal of generators, the latter known by what Cauchy vectors in their place arrive as. Groups of
    terms are named by the node that they came up at.
    """

    centre: Tensor  # (samples, *shape)
    vectors: dict[int, Tensor]  # per group (count, samples, *shape)
    fresh: tuple[int, Tensor] | None = None  # the group that came up here, and its radius (samples, *shape)
    known: tuple[int, Tensor] | None = None  # a group whose norm (samples, *shape) need not be estimated

    def radius(self, projections: Projections) -> Tensor:
        """The norm over all terms, some of it estimated. # (samples, *shape)"""
        known = self.known or self.fresh
        norms = [projections.estimate(v) for group, v in self.vectors.items() if known is None or group != known[0]]
        return torch.stack(norms + ([] if known is None else [known[1]])).sum(0)


@final
@dataclass(frozen=True, eq=False)
class _Walk:
    """How samples go through the network, with Cauchy vectors for the nodes that error terms come up at."""

    layers: Layers
    vectors: dict[int, Tensor]  # node -> (count, *shape), where some norm has to be estimated
    projections: Projections

    @property
    def _merges(self) -> bool:
        return self.projections.groups == "merged"

    def affine(self, op: Affine, inputs: Sequence[_State], shapes: Sequence[Shape]) -> _State:
        """Through an affine operation with inputs of `shapes`."""
        centre, only = value(op, *(x.centre for x in inputs)), inputs[0]
        if len(inputs) == 1 and only.fresh is not None:
            group, radius = only.fresh
            has = group in self.vectors
            if not (self._merges and has and only.vectors):
                moved = {g: _push(op, [v], shapes) for g, v in only.vectors.items()}
                name = _NONE if not has else _MERGED if self._merges else group
                if has:
                    moved[name] = _push(op, [radius * self.vectors[group][:, None]], shapes)
                return _State(centre, moved, known=(name, absolute(op).apply(radius)))
        mixed = [self._with_fresh(x) for x in inputs]
        groups = dict.fromkeys(g for vectors in mixed for g in vectors)
        return _State(centre, {g: _push(op, [vectors.get(g) for vectors in mixed], shapes) for g in groups})

    def _with_fresh(self, x: _State) -> dict[int, Tensor]:
        """A state's vectors, those of the terms that came up there among them."""
        if x.fresh is None:
            return x.vectors
        group, radius = x.fresh
        vectors = self.vectors[group][:, None]
        if self._merges and x.vectors:
            return {_MERGED: torch.addcmul(x.vectors[_MERGED], radius, vectors)}
        return x.vectors | {_MERGED if self._merges else group: radius * vectors}

    def activation(self, i: int, x: _State, *, last: bool) -> tuple[Band, _State]:
        """Through the relaxed activation at node i. After the `last`, vectors are of no use."""
        k, radius = self.layers.network.layer_of[i], x.radius(self.projections)
        b = Band(*band(self.layers.network.functions[k], x.centre - radius, x.centre + radius))
        overwrites = self.layers.owns(k) and not torch.is_grad_enabled()
        moved = {} if last else {g: v.mul_(b.lam) if overwrites else v * b.lam for g, v in x.vectors.items()}
        return b, _State(x.centre * b.lam + b.shift, moved, fresh=(i, b.mu))


def _push(op: Affine, vectors: Sequence[Tensor | None], shapes: Sequence[Shape]) -> Tensor:
    """A v, where vectors that are missing are zero. # (count, samples, *in) … -> (count, samples, *shape)"""
    like = next(v for v in vectors if v is not None)
    count = like.shape[:2]
    inputs = [
        like.new_zeros(prod(count), *shape) if v is None else v.flatten(0, 1)
        for v, shape in zip(vectors, shapes, strict=True)
    ]
    return cast(Tensor, op.apply(*inputs).unflatten(0, count))


@final
@dataclass(frozen=True, eq=False)
class _Route:
    """The way through a network to the tensor that a block begins with and, for its regulariser, into the block."""

    cut: int  # the node that the block begins with
    measured: tuple[int, ...]  # the nodes whose bounds the regulariser looks at
    estimated: tuple[int, ...]  # the nodes whose terms' norms have to be estimated somewhere
    last: int  # the last node at which bounds are needed

    @staticmethod
    def of(layers: Layers, depth: int, regularise: bool) -> "_Route":
        network, cut = layers.network, layers.cuts[depth]
        behind = layers.cuts[depth + 1] if depth + 1 < len(layers.cuts) else network.output
        measured: tuple[int, ...] = ()
        if regularise:
            inside = tuple(network.before(k) for k, node in enumerate(network.layers) if cut < node <= behind)
            measured = inside or (network.output,)
        needed = {network.before(k) for k, node in enumerate(network.layers) if node <= cut} | {*measured}
        reaching: list[set[int]] = [{0}]
        for i, node in enumerate(network.nodes[1 : max(needed) + 1], start=1):
            reaching.append({i} if isinstance(node.op, Neurons) else set())
            reaching[i].update(*(reaching[j] for j in node.inputs))
        estimated: set[int] = set()
        for p in needed:
            estimated |= reaching[p] - {p, *(network.nodes[p].inputs if len(network.nodes[p].inputs) == 1 else ())}
        return _Route(cut, measured, tuple(sorted(estimated)), max(needed))

    @property
    def end(self) -> int:
        """The last node on the way."""
        return max(self.cut, self.last)

    def run(self, walk: _Walk, states: dict[int, _State], *, stop: int) -> list[Band]:
        """Go on from the last of the given states to a node; the activations' relaxations on the way."""
        network, bands = walk.layers.network, []
        for i in range(max(states) + 1, stop + 1):
            op, inputs = network.nodes[i].op, network.nodes[i].inputs
            if isinstance(op, Neurons):
                found, states[i] = walk.activation(i, states[inputs[0]], last=i > self.last)
                bands.append(found)
            elif not isinstance(op, Input):
                states[i] = walk.affine(op, [states[j] for j in inputs], [network.nodes[j].shape for j in inputs])
            for j in inputs:
                if network.last_use[j] <= i and j not in self.measured:
                    states.pop(j, None)
        return bands


def _leaves(layers: Layers, route: _Route) -> tuple[Layers, list[Tensor], list[Tensor]]:
    """The layers with parameters of their own in the block, those parameters as they are, and the new ones."""
    nodes, parameters, leaves = [], list[Tensor](), list[Tensor]()
    for i, node in enumerate(layers.network.nodes):
        op = node.op
        if not isinstance(op, Neurons | Input) and route.cut < i <= route.end:
            own = {name: t for name, t in held(op).items() if t.requires_grad}
            copies = {name: t.detach().requires_grad_() for name, t in own.items()}
            parameters += own.values()
            leaves += copies.values()
            op = replace(op, **copies)
        nodes.append(replace(node, op=op))
    return replace(layers, network=replace(layers.network, nodes=tuple(nodes))), parameters, leaves


@final
@dataclass(frozen=True, eq=False)
class Enclosure:
    """Zonotopes around the tensors that the first blocks begin with, and the regulariser of the block after them."""

    zonotope: Zonotope
    area: Tensor | None  # () the mean over samples of [−l̂]₊ᵀ [û]₊, with gradients to that block's parameters alone


def enclose(
    layers: Layers,
    batch: Batch,
    *,
    depth: int,
    projections: Projections,
    regularise: bool,
    chunk: int | None = None,
) -> Enclosure:
    """Zonotopes for the boxes of a batch after the first `depth` blocks, which get no gradients.

    A few samples at a time go through all layers and, for the regulariser, back through the last block, so that their
    projections never leave the cache and are never all in memory. `chunk` is how many numbers those of a layer may be.
    """
    frozen = layers.detach()
    lower, upper = batch.box
    centre, radius = image_layout((lower + upper) / 2), image_layout((upper - lower) / 2)
    if depth == 0 and not regularise:
        return Enclosure(Zonotope(frozen, centre, radius, ()), None)
    start, reach = frozen.normalise(centre), image_layout(radius / frozen.std)
    route = _Route.of(frozen, depth, regularise)
    network = frozen.network
    vectors = {i: projections.draw(batch.draws, network.nodes[i].shape, start) for i in route.estimated}
    size = len(start)
    if vectors:
        per_sample = projections.count * max(prod(node.shape) for node in network.nodes[1 : route.end + 1])
        size = max(1, (chunk or _CHUNK.get(start.device.type, _DEFAULT_CHUNK)) // per_sample)
    trained, parameters, leaves = _leaves(layers, route) if regularise else (frozen, [], [])
    bands: list[list[Band]] = []
    area, gradients = start.new_zeros(()), [torch.zeros_like(p) for p in leaves]
    for c, r in zip(start.split(size), reach.split(size), strict=True):
        states = {0: _State(c, {}, fresh=(0, r))}
        with torch.no_grad():
            bands.append(route.run(_Walk(frozen, vectors, projections), states, stop=route.cut))
        if regularise:
            with torch.enable_grad():
                route.run(_Walk(trained, vectors, projections), states, stop=route.end)
                part = sum((_area(states[p], projections) for p in route.measured), c.new_zeros(())) / len(start)
            area += part.detach()
            for total, gradient in zip(gradients, torch.autograd.grad(part, leaves, allow_unused=True), strict=True):
                total += 0.0 if gradient is None else gradient
    joined = (
        Band(*(torch.cat([getattr(b, name) for b in k]) for name in ("lam", "shift", "mu")))
        for k in zip(*bands, strict=True)
    )
    zonotope = Zonotope(frozen, centre, radius, tuple(joined))
    if not regularise:
        return Enclosure(zonotope, None)
    # The chunks' gradients are known by now: zeros that have them stand in for the graphs, which are gone.
    for p, gradient in zip(parameters, gradients, strict=True):
        area = area + (gradient * (p - p.detach())).sum()
    return Enclosure(zonotope, area)


def _area(x: _State, projections: Projections) -> Tensor:
    radius = x.radius(projections)
    return ((radius - x.centre).relu() * (radius + x.centre).relu()).sum()

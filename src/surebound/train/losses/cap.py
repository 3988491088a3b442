"""CAP: the convex outer adversarial polytope, training on the FastLin dual bound."""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.network.graph import Input, Neurons, value
from surebound.network.op import Affine, Shape
from surebound.train.batch import Batch, Draws, Terms
from surebound.train.cauchy import Projections
from surebound.train.interval import Interval, propagate
from surebound.train.learner import Layers, Learner, image_layout
from surebound.train.linear_bounds import (
    apply_rows,
    as_logits,
    band,
    blocks,
    fastlin_bounds,
    fastlin_layers,
    first_layers,
    from_memory_order,
    memory_order,
    rival_rows,
)
from surebound.train.mixture import expect_within, natural_part

NORM_ELEMENTS = 2**21  # numbers whose norms are estimated at once, so that they stay in a CPU's cache


@dataclass(frozen=True, kw_only=True)
class CAP:
    """κ CE(−J, y) + (1 − κ) CE(f(x), y) + λ ‖θ‖₁ with J_j the FastLin dual bound on z_y − z_j over the box

        J = −Σ_k ν_kᵀ b_k − max_{x ∈ box} ν₀ᵀ x + Σ_k Σ_{i ambiguous} l̂_{k,i} [ν_{k,i}]₊

    (Wong & Kolter 2018, theorems 1 and 2), where ν goes back from the margin through every affine layer's adjoint and
    every ReLU's slope û/(û − l̂). `bounds` says where l̂ and û come from:

    ``fastlin`` is the same bound for every neuron (their algorithm 1), exactly: a backward pass per neuron and sample,
    for networks of up to a few thousand neurons. As published, it is not intersected with intervals.

    ``projections``, the default, estimates just these bounds (Wong et al. 2018). With the slopes fixed, x̂_k is a centre
    plus generators, one for every input and, of size b̄/2, for every ambiguous neuron; a radius is the ℓ1 norm of what
    they arrive as. `projections` Cauchy vectors go forward in their place, and the norm is the median of what these
    arrive as or, with `estimator` ``geometric-mean``, another estimate (Li 2007). The first layer's bounds are exact.
    Estimates are too low as often as too high: this loss is not an upper bound of anything.

    ``interval`` takes l̂ and û from intervals: cheap, and much looser.

    Deviations: the published code estimates the norms over inputs and over each layer's neurons apart and adds them up,
    which is `groups` ``separate``; ``merged``, the default, estimates their sum from one set of vectors, in less than
    half the time and with somewhat more variance. Samples share the vectors, of which the published code draws some
    afresh for each; and it takes the lower of two medians.
    """

    bounds: Literal["interval", "fastlin", "projections"] = "projections"
    projections: int = 50
    groups: Literal["merged", "separate"] = "merged"
    estimator: Literal["median", "geometric-mean"] = "median"
    l1: float = 0.0  # λ

    def __post_init__(self) -> None:
        expect_within("cap", l1=self.l1)
        self._projections()

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        total, parts = natural_part(learner, layers, batch, self.l1)
        if batch.kappa > 0:
            rows, constant, rivals = rival_rows(layers, batch.y)
            margins, _ = fastlin_bounds(layers, self._hidden(layers, batch), batch.box, rows, constant)
            robust = F.cross_entropy(as_logits(margins, rivals), batch.y)
            parts["robust"] = robust.detach()
            total = total + batch.kappa * robust
        return Terms(total, parts)

    def _hidden(self, layers: Layers, batch: Batch) -> list[Interval]:
        """l̂ and û of every layer."""
        if self.bounds == "interval":
            return propagate(layers, *batch.box).before
        if self.bounds == "fastlin":
            return fastlin_layers(layers, batch.box)
        return projected_layers(layers, batch.box, batch.draws, self._projections())

    def _projections(self) -> Projections:
        return Projections(count=self.projections, estimator=self.estimator, groups=self.groups)


class _Relaxed(torch.autograd.Function):
    """ā g + h R for every projection: what a relaxed ReLU makes of projections g, with generators h of its own.

    These are the largest tensors here by far. Written out, a few samples at a time, what happens to them stays in the
    processor's cache. # (batch, count, n), (batch, n) twice, (count, n) -> (batch, count, n)
    """

    @staticmethod
    def forward(ctx: Any, g: Tensor, slope: Tensor, half: Tensor, cauchy: Tensor) -> Tensor:
        ctx.save_for_backward(g, slope, half, cauchy)
        out = torch.empty_like(g)
        for s in blocks(g):
            torch.mul(g[s], slope[s].unsqueeze(1), out=out[s])
            out[s].addcmul_(cauchy, half[s].unsqueeze(1))
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        g, slope, half, cauchy = ctx.saved_tensors
        to_g, to_slope, to_half = torch.empty_like(g), torch.empty_like(slope), torch.empty_like(half)
        for s in blocks(g):
            gradient = gradients[0][s]
            torch.mul(gradient, slope[s].unsqueeze(1), out=to_g[s])
            to_slope[s] = (g[s] * gradient).sum(1)
            to_half[s] = (cauchy * gradient).sum(1)
        return to_g, to_slope, to_half, None


@dataclass(frozen=True, eq=False)
class _Projected:
    """A node on the way: its centre, and where the Cauchy vectors of each group of generators arrive.

    Groups are named by the node that they come up at; if all are merged, they are one.
    """

    centre: Tensor  # (batch, *shape)
    vectors: dict[int, Tensor]  # (batch, count, n), in memory order


def projected_layers(layers: Layers, box: Interval, draws: Draws, projections: Projections) -> list[Interval]:
    """Estimates of the FastLin bounds on x̂_k for every layer, with gradients; exact for those that no other comes
    before."""
    network, found = layers.network, first_layers(layers, box)
    if len(found) == len(network.layers):
        return list(found.values())
    lower, upper = map(layers.normalise, box)
    radius = memory_order((upper - lower) / 2, 1)
    cauchy = memory_order(projections.draw(draws, network.input_shape, lower), 1)  # (count, inputs)
    nodes = {0: _Projected(image_layout((lower + upper) / 2), {0: cauchy * radius.unsqueeze(1)})}
    for i in range(1, network.before(len(network.layers) - 1) + 1):
        op, inputs = network.nodes[i].op, network.nodes[i].inputs
        if isinstance(op, Neurons):
            k, x = network.layer_of[i], nodes[inputs[0]]
            if k not in found:
                found[k] = _ends(x, op.shape, projections)
            slope, shift, half = band(network.functions[k], *found[k])
            cauchy = memory_order(projections.draw(draws, op.shape, half), 1)
            a, h = memory_order(slope, 1), memory_order(half, 1)
            nodes[i] = _Projected(slope * x.centre + shift, _relaxed(x.vectors, a, h, cauchy, i, projections))
        elif not isinstance(op, Input):
            nodes[i] = _pushed(op, [nodes[j] for j in inputs], [network.nodes[j].shape for j in inputs])
        for j in inputs:
            if network.last_use[j] <= i:
                nodes.pop(j, None)
    last = len(network.layers) - 1
    if last not in found:
        found[last] = _ends(nodes[network.before(last)], network.nodes[network.before(last)].shape, projections)
    return [found[k] for k in range(len(network.layers))]


def _pushed(op: Affine, inputs: list[_Projected], shapes: list[Shape]) -> _Projected:
    """Through an affine operation; a group that an input does not have is zero there."""
    groups = sorted({group for x in inputs for group in x.vectors})
    sizes = [prod(shape) for shape in shapes]
    vectors = {}
    for group in groups:
        like = next(x.vectors[group] for x in inputs if group in x.vectors)
        rows = [
            x.vectors[group] if group in x.vectors else like.new_zeros(*like.shape[:2], n)
            for x, n in zip(inputs, sizes, strict=True)
        ]
        vectors[group] = apply_rows(op, rows, shapes)
    return _Projected(value(op, *(x.centre for x in inputs)), vectors)


def _relaxed(
    vectors: dict[int, Tensor], slope: Tensor, half: Tensor, cauchy: Tensor, node: int, projections: Projections
) -> dict[int, Tensor]:
    """Through a relaxed activation, which brings up generators of its own."""
    if projections.groups == "merged":
        return {0: cast(Tensor, _Relaxed.apply(vectors[0], slope, half, cauchy))}  # type: ignore[no-untyped-call]
    return {g: v * slope.unsqueeze(1) for g, v in vectors.items()} | {node: cauchy * half.unsqueeze(1)}


def _ends(x: _Projected, shape: Shape, projections: Projections) -> Interval:
    norms = [_norms(vectors, projections) for vectors in x.vectors.values()]
    radius = from_memory_order(torch.stack(norms).sum(0) if len(norms) > 1 else norms[0], shape)
    return x.centre - radius, x.centre + radius


def _norms(projected: Tensor, projections: Projections, elements: int = NORM_ELEMENTS) -> Tensor:
    """ℓ1 norms, estimated from a group's vectors. # (batch, count, n) -> (batch, n)"""
    size = max(1, elements // projected[0].numel())
    return torch.cat([projections.estimate(part.transpose(0, 1)) for part in projected.split(size)])

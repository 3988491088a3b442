"""CAP: the convex outer adversarial polytope, training on the FastLin dual bound."""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.train.batch import Batch, Draws, Terms
from surebound.train.cauchy import Projections
from surebound.train.chain import Chain, Layers, linear
from surebound.train.interval import Interval, affine_interval, propagate
from surebound.train.linear_bounds import (
    apply_rows,
    as_logits,
    blocks,
    fastlin_bounds,
    fastlin_layers,
    from_memory_order,
    memory_order,
    rival_rows,
    triangle,
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

    def __call__(self, chain: Chain, batch: Batch) -> Terms:
        layers = chain.layers(batch.x)
        total, parts = natural_part(chain, layers, batch, self.l1)
        if batch.kappa > 0:
            rows, constant, rivals = rival_rows(layers, batch.y)
            margins, _ = fastlin_bounds(layers, self._hidden(layers, batch), batch.box, rows, constant)
            robust = F.cross_entropy(as_logits(margins, rivals), batch.y)
            parts["robust"] = robust.detach()
            total = total + batch.kappa * robust
        return Terms(total, parts)

    def _hidden(self, layers: Layers, batch: Batch) -> list[Interval]:
        """l̂ and û of every layer but the last."""
        if self.bounds == "interval":
            return propagate(layers, *batch.box, stop=len(layers.affine) - 1)
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


def projected_layers(layers: Layers, box: Interval, draws: Draws, projections: Projections) -> list[Interval]:
    """Estimates of the FastLin bounds on x̂_k for every layer but the last, with gradients."""
    if len(layers.affine) == 1:
        return []
    first = layers.affine[0]
    lower, upper = layers.normalise(box[0]), layers.normalise(box[1])
    found = [affine_interval(first, lower, upper)]
    if len(layers.affine) == 2:
        return found
    centre, radius = first((lower + upper) / 2), memory_order((upper - lower) / 2, 1)
    cauchy = memory_order(projections.draw(draws, first.in_shape, lower), 1)  # (count, inputs)
    projected = apply_rows(linear(first), cauchy * radius.unsqueeze(1))  # (batch, count, neurons)
    for layer in layers.affine[1:-1]:
        t = triangle(*found[-1], "parallel")
        half = t.intercept / 2
        cauchy = memory_order(projections.draw(draws, layer.in_shape, half), 1)
        a, h = memory_order(t.upper_slope, 1), memory_order(half, 1)
        if projections.groups == "merged":
            projected = cast(Tensor, _Relaxed.apply(projected, a, h, cauchy))  # type: ignore[no-untyped-call]
        else:
            projected = torch.cat([projected * a.unsqueeze(1), cauchy * h.unsqueeze(1)], 1)
        projected = apply_rows(linear(layer), projected)
        centre = layer(t.upper_slope * centre + half)
        radius = from_memory_order(_norms(projected, projections), layer.shape)
        found.append((centre - radius, centre + radius))
    return found


def _norms(projected: Tensor, projections: Projections, elements: int = NORM_ELEMENTS) -> Tensor:
    """ℓ1 norms, estimated for each group of vectors and added up. # (batch, groups · count, n) -> (batch, n)"""
    size = max(1, elements // projected[0].numel())
    norms = [
        torch.stack([projections.estimate(g.transpose(0, 1)) for g in part.split(projections.count, 1)]).sum(0)
        for part in projected.split(size)
    ]
    return torch.cat(norms)

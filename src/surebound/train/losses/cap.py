"""CAP: the convex outer adversarial polytope, training on the FastLin dual bound."""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.bounds.zonotope import cauchy_geometric_mean
from surebound.errors import UsageError
from surebound.train.batch import Batch, Draws, Terms
from surebound.train.chain import Chain, Layers, l1_norm, linear
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

Estimator = Callable[[Tensor], Tensor]
"""‖g‖₁ from its Cauchy projections. # (projections, *shape) -> (*shape)"""


@dataclass(frozen=True, kw_only=True)
class CAP:
    """κ CE(−J, y) + (1 − κ) CE(f(x), y) + λ ‖θ‖₁ with J_j the FastLin dual bound on z_y − z_j over the box

        J = −Σ_k ν_kᵀ b_k − max_{x ∈ box} ν₀ᵀ x + Σ_k Σ_{i ambiguous} l̂_{k,i} [ν_{k,i}]₊

    (Wong & Kolter 2018, eq. 5 and theorem 2; ν as there, D̄ with the slopes û/(û − l̂)). `bounds` says where l̂ and û come
    from:

    ``fastlin`` is the same bound for every neuron (algorithm 1 there), exactly: a backward pass per neuron and sample,
    for networks of up to a few thousand neurons. As published, it is not intersected with intervals.

    ``projections`` (the default) estimates just these bounds (Wong et al. 2018, section 3.2). With slopes fixed, x̂_k is a
    centre plus generators: inputs, and b̄/2 for every ambiguous neuron. R, `projections` vectors of Cauchy numbers over
    them, goes forward instead of the generators, and each radius is the median of |·|, or with `estimator`
    ``geometric-mean`` Li's unbiased one (2007). The first layer's bounds are exact. These are estimates, too low as often
    as too high, so the loss is none of an upper bound either.

    ``interval`` takes l̂ and û from intervals: looser, cheap.

    Deviations: the published code projects the inputs and every layer's neurons apart and adds up the estimates; that is
    `groups` ``layer``. Cauchy numbers being stable, one projection of ``all`` estimates the same sum at a fraction of the
    cost: the estimates vary somewhat more. R is shared by all samples of a batch, the published one by none.
    """

    bounds: Literal["interval", "fastlin", "projections"] = "projections"
    projections: int = 50
    groups: Literal["all", "layer"] = "all"
    estimator: Literal["median", "geometric-mean"] = "median"
    l1: float = 0.0  # λ

    def __post_init__(self) -> None:
        if self.projections < 2:
            raise UsageError(f"cap: projections must be at least 2, got {self.projections}")

    def __call__(self, chain: Chain, batch: Batch) -> Terms:
        layers = chain.layers(batch.x)
        parts: dict[str, Tensor] = {}
        total = self.l1 * l1_norm(chain.weights())
        parts["l1"] = total.detach()
        if batch.kappa < 1:
            natural = F.cross_entropy(layers.clean_logits(batch.x), batch.y)
            parts["natural"] = natural.detach()
            total = total + (1 - batch.kappa) * natural
        if batch.kappa > 0:
            rows, constant, rivals = rival_rows(layers, batch.y)
            margins, _ = fastlin_bounds(layers, self._hidden(layers, batch), batch.box, rows, constant)
            robust = F.cross_entropy(as_logits(margins, rivals), batch.y)
            parts["robust"] = robust.detach()
            total = total + batch.kappa * robust
        return Terms(total, parts)

    def _hidden(self, layers: Layers, batch: Batch) -> list[Interval]:
        if len(layers.affine) == 1:
            return []
        if self.bounds == "interval":
            return propagate(layers, *batch.box, stop=len(layers.affine) - 1)
        if self.bounds == "fastlin":
            return fastlin_layers(layers, batch.box)
        estimate = lower_median if self.estimator == "median" else cauchy_geometric_mean
        return projected_layers(
            layers, batch.box, batch.draws, self.projections, estimate=estimate, merge=self.groups == "all"
        )


def lower_median(projections: Tensor) -> Tensor:
    """The median of |p_j|, for an even number the smaller of the two in the middle, as in the published code (and three
    times as fast as sorting)."""
    return projections.abs().median(0).values


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


def projected_layers(
    layers: Layers, box: Interval, draws: Draws, count: int, *, estimate: Estimator, merge: bool
) -> list[Interval]:
    """Estimates of the FastLin bounds on x̂_k for every layer but the last, from `count` Cauchy projections of all
    generators or, without `merge`, of each layer's."""
    lower, upper = layers.normalise(box[0]), layers.normalise(box[1])
    found = [affine_interval(layers.affine[0], lower, upper)]
    if len(layers.affine) == 2:
        return found
    centre, radius = layers.affine[0]((lower + upper) / 2), (upper - lower) / 2
    cauchy = _cauchy(draws, count, radius)
    projected = apply_rows(linear(layers.affine[0]), cauchy * memory_order(radius, 1).unsqueeze(1))
    for layer in layers.affine[1:-1]:
        t = triangle(*found[-1], "parallel")
        slope, half = t.upper_slope, t.intercept / 2
        cauchy, a, h = _cauchy(draws, count, half), memory_order(slope, 1), memory_order(half, 1)
        if merge:
            projected = cast(Tensor, _Relaxed.apply(projected, a, h, cauchy))  # type: ignore[no-untyped-call]
        else:
            projected = torch.cat([projected * a.unsqueeze(1), cauchy * h.unsqueeze(1)], 1)
        projected = apply_rows(linear(layer), projected)
        radius = sum_estimates(projected, count, estimate)
        centre = layer(slope * centre + half)
        radius = from_memory_order(radius, layer.shape)
        found.append((centre - radius, centre + radius))
    return found


def _cauchy(draws: Draws, count: int, like: Tensor) -> Tensor:
    """Standard Cauchy numbers for the elements of a sample. # like: (batch, *shape) -> (count, elements)"""
    # Clamped, because a uniform number is exactly 0 once in 2^24 draws.
    numbers = torch.tan(pi * (draws.shared(count, *like.shape[1:]).to(like) - 0.5)).clamp(-1e7, 1e7)
    return memory_order(numbers, 1)


def sum_estimates(projected: Tensor, count: int, estimate: Estimator) -> Tensor:
    """Σ over groups of `count` projections of the estimated ‖·‖₁. # (batch, groups · count, n) -> (batch, n)"""
    return torch.stack([estimate(group.transpose(0, 1)) for group in projected.split(count, 1)]).sum(0)

"""The regularisers of Shi et al. 2021 for the epochs in which ε rises.

They keep interval bounds from growing through the layers, and ReLUs from falling inactive in bulk. Almost every later
interval method trains with them.
"""

from dataclasses import replace

import torch
from torch import Tensor

from surebound.train.batch import Batch
from surebound.train.interval import Boxes, Interval
from surebound.train.learner import Layers
from surebound.train.parallel import mean_over_processes

MIN_RADIUS = 1e-6
"""Of the boxes that the regularisers look at before ε starts to rise: ratios of widths need boxes with a width."""

_TINY = 1e-12


def strength(weight: float, batch: Batch) -> float:
    """λ = λ₀ (1 − ε/ε_max), ε_max the radius that ε rises to."""
    return weight * (1.0 - batch.risen)


def with_radius(batch: Batch) -> Batch:
    """The batch with a radius of at least `MIN_RADIUS`."""
    return replace(batch, eps=max(batch.eps, MIN_RADIUS))


def warmup_penalties(
    layers: Layers, box: Interval, boxes: Boxes, weight: float, *, tolerance: float = 0.5
) -> dict[str, Tensor]:
    """λ L_tightness and λ L_relu for `weight` = λ; nothing at λ = 0."""
    if weight <= 0:
        return {}
    tightness, balance = shi_regularisers(layers, box, boxes, tolerance)
    return {"tightness": weight * tightness, "balance": weight * balance}


def shi_regularisers(layers: Layers, box: Interval, boxes: Boxes, tolerance: float = 0.5) -> tuple[Tensor, Tensor]:
    """L_tightness and L_relu of Shi et al. 2021 over the m layers, from the bounds l̂_i, û_i before each:

        L_tightness = 1/(τ m) Σ_i [τ − E(Δ_0) / E(Δ_i)]₊,
        L_relu      = 1/(τ m) Σ_i [τ − min(α_i, 1/α_i)]₊ + [τ − min(β_i, 1/β_i)]₊

    with τ = `tolerance`, Δ_i = (û_i − l̂_i)/2 and c_i = (û_i + l̂_i)/2, Δ_0 that of the normalised pixels, E and c̄_i
    means over neurons and batch, and, in sums over the neurons that are active (l̂ > 0) or inactive (û < 0) on the
    whole box,

        α_i = Σ_active c_i / −Σ_inactive c_i,    β_i = Σ_active (c_i − c̄_i)² / Σ_inactive (c_i − c̄_i)².

    A layer with neither kind counts as balanced, as does one of other activations than ReLUs. # box: pixels
    """
    bounds, functions = boxes.before, boxes.functions(layers)
    centres = [(lower + upper) / 2 for lower, upper in bounds]
    averages = mean_over_processes(torch.stack([c.mean() for c in centres]))
    rows = []
    for (lower, upper), function, centre, average in zip(bounds, functions, centres, averages, strict=True):
        active, inactive = (lower > 0).to(centre), (upper < 0).to(centre)
        if function is not None:
            active = inactive = torch.zeros_like(centre)
        spread = (centre - average).square()
        kinds = [centre * active, -centre * inactive, spread * active, spread * inactive]
        rows.append(torch.stack([(upper - lower).mean() / 2, *(kind.mean() for kind in kinds)]))
    width_0 = ((box[1] - box[0]) / layers.std).mean() / 2
    rows.append(torch.cat([width_0.reshape(1), width_0.new_zeros(4)]))
    statistics = mean_over_processes(torch.stack(rows))  # (m + 1, 5)
    widths, sums = statistics[:-1, 0], statistics[:-1, 1:]
    tightness = (tolerance - statistics[-1, 0] / widths.clamp_min(_TINY)).relu()
    balance = (tolerance - _likeness(sums[:, 0], sums[:, 1])).relu()
    balance = balance + (tolerance - _likeness(sums[:, 2], sums[:, 3])).relu()
    return tightness.mean() / tolerance, balance.mean() / tolerance


def _likeness(a: Tensor, b: Tensor) -> Tensor:
    """min(a/b, b/a) for a, b ≥ 0; 1 where both are 0."""
    small, large = torch.minimum(a, b), torch.maximum(a, b)
    return torch.where(large > _TINY, small / large.clamp_min(_TINY), 1.0)

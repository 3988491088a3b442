"""Interval bound propagation with gradients (Gowal 2018; appendix D of the IBP-R paper).

With c and r the centre and radius of a layer's input box, x̂ = A x + b lies in A c + b ± |A| r; a ReLU clips both ends.
These are the bounds that training differentiates: float32, not rounded outward, and never used to claim anything.
"""

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.train.chain import Layer, Layers, absolute, flatten

Interval = tuple[Tensor, Tensor]
"""Lower and upper ends. # (batch, *shape) each"""


class _Ends(torch.autograd.Function):
    """c − r and c + r. Written out, as `_Middle` is, because the passes over memory are what these steps cost."""

    @staticmethod
    def forward(ctx: Any, centre: Tensor, radius: Tensor) -> Interval:
        return centre - radius, centre + radius

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Interval:
        lower, upper = gradients
        return lower + upper, upper - lower


class _Middle(torch.autograd.Function):
    """Centre and radius of the box between two ends, after a ReLU if there is one."""

    @staticmethod
    def forward(ctx: Any, lower: Tensor, upper: Tensor, rectify: bool) -> Interval:
        ctx.rectify = rectify
        if rectify:
            ctx.save_for_backward(lower, upper)
            lower, upper = lower.relu(), upper.relu()
        centre = torch.lerp(lower, upper, 0.5)
        return centre, upper.sub_(centre) if rectify else upper - centre

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        to_upper = (gradients[0] + gradients[1]).mul_(0.5)
        to_lower = gradients[0] - to_upper
        if ctx.rectify:
            lower, upper = ctx.saved_tensors
            to_lower = torch.ops.aten.threshold_backward(to_lower, lower, 0)
            to_upper = torch.ops.aten.threshold_backward(to_upper, upper, 0)
        return to_lower, to_upper, None


def affine_interval(layer: Layer, lower: Tensor, upper: Tensor, *, rectify: bool = False) -> Interval:
    """[A c + b − |A| r, A c + b + |A| r], of the box or, with `rectify`, of its image under a ReLU."""
    centre, radius = _Middle.apply(lower, upper, rectify)  # type: ignore[no-untyped-call]
    ends = _Ends.apply(layer(centre), absolute(layer)(radius))  # type: ignore[no-untyped-call]
    return cast(Interval, ends)


def propagate(
    layers: Layers, lower: Tensor, upper: Tensor, *, start: int = 0, stop: int | None = None
) -> list[Interval]:
    """Bounds on x̂_k for the affine layers start ≤ k < stop (all, without a stop), from a box of pixels or, with
    `start` > 0, a box around that layer's input."""
    if start == 0:
        lower, upper = layers.normalise(lower), layers.normalise(upper)
    found: list[Interval] = []
    for layer in layers.affine[start:stop]:
        lower, upper = affine_interval(layer, lower, upper, rectify=bool(found))
        found.append((lower, upper))
    return found


def rectified(bounds: Interval, shrinking: float = 1.0) -> Interval:
    """Bounds after a ReLU, with the box then scaled by `shrinking` about its centre."""
    lower, upper = bounds[0].relu(), bounds[1].relu()
    if shrinking == 1:
        return lower, upper
    margin = (1 - shrinking) / 2 * (upper - lower)
    return lower + margin, upper - margin


def margin_weights(last: Layer, y: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of z_y − z_j for all classes j, in the last layer's terms. # (batch, classes, in), (batch, classes)"""
    weight, bias = last.weight, last.bias
    rows = weight[y][:, None] - weight
    constant = rows.new_zeros(rows.shape[:2]) if bias is None else bias[y][:, None] - bias
    return rows, constant


def worst_logits(layers: Layers, hidden: Interval, y: Tensor) -> Tensor:
    """−(lower bounds on z_y − z_j) for all j, 0 at y: their cross-entropy bounds the worst one from above.

    The last layer is fused with the margins, so that what z_y and z_j share cancels (Gowal 2018, section 3).
    # hidden: bounds on the last layer's input, after its ReLU -> (batch, classes)
    """
    rows, constant = margin_weights(layers.affine[-1], y)
    lower, upper = flatten(hidden[0]), flatten(hidden[1])
    centre, radius = (lower + upper) / 2, (upper - lower) / 2
    margin = torch.einsum("bci,bi->bc", rows, centre) + constant - torch.einsum("bci,bi->bc", rows.abs(), radius)
    return -margin


def robust_loss(layers: Layers, lower: Tensor, upper: Tensor, y: Tensor) -> tuple[Tensor, list[Interval]]:
    """The mean cross-entropy of the worst logits over boxes of pixels, and the bounds on the layers before the last."""
    bounds = propagate(layers, lower, upper, stop=len(layers.affine) - 1)
    return F.cross_entropy(worst_logits(layers, rectified(bounds[-1]), y), y), bounds

"""Interval bound propagation with gradients (Gowal 2018; appendix D of the IBP-R paper).

With c and r the centre and radius of an affine operation's input box, A x + b lies in A c + b ± |A| r; a ReLU clips
both ends. These are the bounds that training differentiates: float32, not rounded outward, and never used to claim
anything.
"""

from dataclasses import dataclass
from typing import Any, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.network.activation import Activation
from surebound.network.graph import Input, Neurons, value
from surebound.network.linear import Linear
from surebound.network.op import Affine, absolute
from surebound.train.learner import Layers, flatten, image_layout

Interval = tuple[Tensor, Tensor]
"""Lower and upper ends. # (batch, *shape) each"""
Middle = tuple[Tensor, Tensor]
"""The same box as its centre and radius. # (batch, *shape) each"""


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
    def forward(ctx: Any, lower: Tensor, upper: Tensor, rectify: bool) -> Middle:
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


def middle(lower: Tensor, upper: Tensor, *, rectify: bool = False) -> Middle:
    """Centre and radius of a box or, with `rectify`, of its image under a ReLU."""
    return cast(Middle, _Middle.apply(lower, upper, rectify))  # type: ignore[no-untyped-call]


def ends(centre: Tensor, radius: Tensor) -> Interval:
    """Lower and upper ends of a box."""
    return cast(Interval, _Ends.apply(centre, radius))  # type: ignore[no-untyped-call]


def affine_middle(op: Affine, *boxes: Middle) -> Middle:
    """A c + b and |A| r."""
    centres, radii = zip(*boxes, strict=True)
    return value(op, *centres), absolute(op).apply(*radii)


def activated(function: Activation | None, lower: Tensor, upper: Tensor, shrinking: float = 1.0) -> Middle:
    """The box after an activation (None: a ReLU), then scaled by `shrinking` about its centre."""
    if function is None:
        centre, radius = middle(lower, upper, rectify=True)
    else:
        flat = torch.zeros_like(lower)
        centre, radius = middle(*(function.value(p) for p in extreme_points(function, flat, lower, upper)))
    return centre, radius if shrinking == 1 else shrinking * radius


def extreme_points(function: Activation, slope: Tensor, lower: Tensor, upper: Tensor) -> Interval:
    """Where f(x) − a x is least and where it is greatest over [l, u], for slopes a, with the gradients that the values
    there have: as points that move with an end they lie on, or stay where they are."""
    with torch.no_grad():
        places = (function.least(slope, lower, upper)[1], function.greatest(slope, lower, upper)[1])
    low, high = (torch.where(at <= lower, lower, torch.where(at >= upper, upper, at)) for at in places)
    return low, high


@final
@dataclass(frozen=True, eq=False)
class Boxes:
    """Bounds on a network by intervals."""

    before: list[Interval]  # x̂_k of every layer after the start
    at: dict[int, Middle]  # of the nodes that blocks begin with, and the one that the last operation reads

    def output(self, layers: Layers) -> Interval:
        """Of the logits."""
        return ends(*affine_middle(layers.last, self.at[layers.before_last]))

    def functions(self, layers: Layers) -> tuple[Activation | None, ...]:
        """The activations that come after `before`."""
        return layers.network.functions[len(layers.network.functions) - len(self.before) :]

    def relus(self, layers: Layers) -> list[Interval]:
        """Of the layers with ReLUs alone."""
        return [box for box, function in zip(self.before, self.functions(layers), strict=True) if function is None]


def propagate(layers: Layers, lower: Tensor, upper: Tensor, *, start: int = 0, shrinking: float = 1.0) -> Boxes:
    """Bounds on all that comes before the last operation, from a box of pixels or, with `start` = k > 0, around the
    tensor that block k begins with. After every activation, boxes are scaled by `shrinking`."""
    if start == 0:
        lower, upper = layers.normalise(lower), layers.normalise(upper)
    network, first = layers.network, layers.cuts[start]
    centre, radius = map(image_layout, middle(lower, upper))
    boxes, before, kept = {first: (centre, radius)}, list[Interval](), {*layers.cuts, layers.before_last}
    for i in range(first + 1, network.output):
        op, inputs = network.nodes[i].op, network.nodes[i].inputs
        if isinstance(op, Neurons):
            before.append(ends(*boxes[inputs[0]]))
            boxes[i] = activated(network.functions[network.layer_of[i]], *before[-1], shrinking)
        elif not isinstance(op, Input):
            boxes[i] = affine_middle(op, *(boxes[j] for j in inputs))
        for j in inputs:
            if network.last_use[j] <= i and j not in kept:
                boxes.pop(j, None)
    return Boxes(before, {i: box for i, box in boxes.items() if i in kept})


def margin_weights(last: Linear, y: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of z_y − z_j for all classes j, in the last layer's terms. # (batch, classes, in), (batch, classes)"""
    weight, bias = last.weight, last.bias
    rows = weight[y][:, None] - weight
    constant = rows.new_zeros(rows.shape[:2]) if bias is None else bias[y][:, None] - bias
    return rows, constant


def worst_logits(layers: Layers, boxes: Boxes, y: Tensor) -> Tensor:
    """−(lower bounds on z_y − z_j) for all j, 0 at y: their cross-entropy bounds the worst one from above.

    The last layer is fused with the margins, so that what z_y and z_j share cancels (Gowal 2018, section 3).
    # -> (batch, classes)
    """
    rows, constant = margin_weights(layers.last, y)
    centre, radius = map(flatten, boxes.at[layers.before_last])
    margin = torch.einsum("bci,bi->bc", rows, centre) + constant - torch.einsum("bci,bi->bc", rows.abs(), radius)
    return -margin


def robust_loss(layers: Layers, lower: Tensor, upper: Tensor, y: Tensor) -> tuple[Tensor, Boxes]:
    """The mean cross-entropy of the worst logits over boxes of pixels, and the bounds."""
    boxes = propagate(layers, lower, upper)
    return F.cross_entropy(worst_logits(layers, boxes, y), y), boxes

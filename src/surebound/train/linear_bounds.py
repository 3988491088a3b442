"""Linear bounds pulled back from the logits, or any layer, to the input box, with gradients: CROWN and FastLin.

Every ReLU on [l̂, û] lies in α x̂ ≤ x ≤ ā x̂ + b̄ with ā = û/(û − l̂) and b̄ = −ā l̂ (eq. 13 of the IBP-R paper). A row
a·x over a layer's outputs is bounded from below by (a₊ α + a₋ ā)·x̂ + a₋·b̄, the next affine layer turns that into a row
over its inputs, and so on to the box, where the minimum is known (Zhang 2018; Wong & Kolter 2018 in dual form). FastLin
takes α = ā: then one pass gives both sides, a centre ± a radius.

As in `surebound.train.interval`, these are numbers to differentiate, not rounded outward: they never claim anything.

Rows are kept as matrices (batch, rows, elements) whose elements are in memory order, channels last for images, so that
all of this is matrix products and convolutions on plain memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from surebound.network.op import Shape
from surebound.train.chain import Conv, Layer, Layers
from surebound.train.interval import Interval, affine_interval, margin_weights

Slopes = Literal["adaptive", "zero", "one", "parallel"]
"""α of an ambiguous ReLU: 0 or 1, whichever leaves the smaller area (CROWN); always 0; always 1; or ā (FastLin)."""

CHUNK_ELEMENTS = 2**24  # numbers in the largest tensor of a chunk of rows: 64 MiB in float32
BLOCK_ELEMENTS = 2**18  # numbers in a block of rows that goes through a ReLU at once: 1 MiB in float32


@dataclass(frozen=True, eq=False)
class Triangle:
    """α x̂ ≤ relu(x̂) ≤ ā x̂ + b̄. # (batch, *shape) each"""

    lower_slope: Tensor  # α
    upper_slope: Tensor  # ā
    intercept: Tensor  # b̄


def triangle(lower: Tensor, upper: Tensor, slopes: Slopes) -> Triangle:
    """The relaxation of ReLUs on [l̂, û]; stable ones get α = ā ∈ {0, 1} and b̄ = 0."""
    low, high = lower.clamp_max(0.0), upper.clamp_min(0.0)
    # The guard is for 0/0 alone: below it, the upper line misses the ReLU by less than the guard.
    slope = high / (high - low).clamp_min(1e-12)
    if slopes == "parallel":
        alpha = slope
    elif slopes == "adaptive":
        alpha = (upper > -lower).to(lower.dtype)
    else:
        alpha = (lower >= 0 if slopes == "zero" else upper > 0).to(lower.dtype)
    return Triangle(alpha, slope, -slope * low)


def memory_order(x: Tensor, batch_dims: int) -> Tensor:
    """Elements in one dimension, images channels last. # (*batch, *shape) -> (*batch, elements)"""
    if x.ndim - batch_dims == 3:
        x = x.movedim(batch_dims, -1)
    return x.flatten(batch_dims) if x.ndim > batch_dims + 1 else x


def from_memory_order(x: Tensor, shape: Shape) -> Tensor:
    """The reverse, for one batch dimension. # (batch, elements) -> (batch, *shape)"""
    if len(shape) != 3:
        return x
    channels, height, width = shape
    return x.reshape(-1, height, width, channels).permute(0, 3, 1, 2)


def _bias(layer: Layer) -> Tensor | None:
    """b for every element of a layer's output, in memory order."""
    if layer.bias is None or not isinstance(layer, Conv):
        return layer.bias
    return layer.bias.repeat(prod(layer.shape[1:]))


def _adjoint(layer: Layer, rows: Tensor) -> Tensor:
    """Aᵀ on every row. # (batch, rows, elements out) -> (batch, rows, elements in)"""
    pulled = layer.adjoint(from_memory_order(rows.flatten(0, 1), layer.shape))
    return memory_order(pulled, 1).reshape(*rows.shape[:2], -1)


def apply_rows(layer: Layer, rows: Tensor) -> Tensor:
    """A on every row, for what goes forward. # (batch, rows, elements in) -> (batch, rows, elements out)"""
    pushed = layer(from_memory_order(rows.flatten(0, 1), layer.in_shape))
    return memory_order(pushed, 1).reshape(*rows.shape[:2], -1)


def _dot(rows: Tensor, x: Tensor) -> Tensor:
    """Every row with its sample's vector. # (batch, rows, n), (batch, n) -> (batch, rows)"""
    return torch.bmm(rows, x.unsqueeze(2)).squeeze(2)


class _ThroughReLU(torch.autograd.Function):
    """(a, α, ā, b̄, b) -> a' = a₊ α + a₋ ā and the constant a₋·b̄ + a'·b, b being the bias below the ReLU.

    Rows are the largest tensors here by far. Written out, a few samples at a time, what happens to them stays in the
    processor's cache. # (batch, rows, n), (batch, n) three times, (n,) -> (batch, rows, n), (batch, rows)
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        alpha: Tensor,
        slope: Tensor,
        intercept: Tensor,
        bias: Tensor | None,
        block: int = BLOCK_ELEMENTS,
    ) -> tuple[Tensor, Tensor]:
        ctx.block = block
        pulled, constant = torch.empty_like(rows), rows.new_empty(rows.shape[:2])
        for s in blocks(rows, block):
            below, out = rows[s].clamp_max(0.0), pulled[s]
            torch.mul(rows[s], alpha[s].unsqueeze(1), out=out)
            out.addcmul_(below, (slope[s] - alpha[s]).unsqueeze(1))
            constant[s] = _dot(below, intercept[s])
            if bias is not None:
                constant[s] += out @ bias
        ctx.save_for_backward(rows, alpha, slope, intercept, bias, pulled)
        return pulled, constant

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, alpha, slope, intercept, bias, pulled = ctx.saved_tensors
        to_rows = torch.empty_like(rows)
        to_alpha, to_slope, to_intercept = (torch.empty_like(alpha) for _ in range(3))
        to_bias = None if bias is None else torch.zeros_like(bias)
        for s in blocks(rows, ctx.block):
            a, g, on_constant = rows[s], gradients[0][s], gradients[1][s]
            if bias is not None and to_bias is not None:
                g = torch.addcmul(g, on_constant.unsqueeze(2), bias)
                to_bias += on_constant.flatten() @ pulled[s].flatten(0, 1)
            below = a.clamp_max(0.0)
            to_intercept[s] = torch.bmm(on_constant.unsqueeze(1), below).squeeze(1)
            to_slope[s] = below.mul_(g).sum(1)
            if ctx.needs_input_grad[1]:
                to_alpha[s] = (a * g).sum(1) - to_slope[s]
            at_below = (g * (slope[s] - alpha[s]).unsqueeze(1)).addcmul_(
                on_constant.unsqueeze(2), intercept[s].unsqueeze(1)
            )
            torch.mul(g, alpha[s].unsqueeze(1), out=to_rows[s])
            to_rows[s].addcmul_(at_below, (a < 0).to(a.dtype))
        return to_rows, to_alpha if ctx.needs_input_grad[1] else None, to_slope, to_intercept, to_bias, None


def blocks(rows: Tensor, elements: int = BLOCK_ELEMENTS) -> Iterator[slice]:
    """Samples in groups whose rows fit into a cache."""
    count = max(1, elements // max(1, rows[0].numel()))
    return (slice(i, i + count) for i in range(0, len(rows), count))


def lower_bounds(
    layers: Layers, bounds: Sequence[Interval], box: Interval, rows: Tensor, constant: Tensor, *, slopes: Slopes
) -> Tensor:
    """Lower bounds of rows·x + constant for x the input of affine layer k = len(bounds), after its ReLU, over boxes of
    pixels; `bounds` are those on the layers before.

    # rows: (batch, rows, *shape of x), constant: (batch, rows) -> (batch, rows)
    """
    a = memory_order(rows, 2)
    for layer, (low, high) in zip(reversed(layers.affine[: len(bounds)]), reversed(bounds), strict=True):
        t = triangle(memory_order(low, 1), memory_order(high, 1), slopes)
        a, extra = cast(
            tuple[Tensor, Tensor],
            _ThroughReLU.apply(a, t.lower_slope, t.upper_slope, t.intercept, _bias(layer)),  # type: ignore[no-untyped-call]
        )
        constant = constant + extra
        a = _adjoint(layer, a)
    centre, radius = _input_box(layers, box)
    return constant + _dot(a, centre) - _dot(a.abs(), radius)


def fastlin_bounds(
    layers: Layers, bounds: Sequence[Interval], box: Interval, rows: Tensor, constant: Tensor
) -> Interval:
    """Both bounds of the same rows with parallel slopes, where relu(x̂) = ā x̂ + b̄ t for some t ∈ [0, 1]."""
    a, centre, radius = memory_order(rows, 2), constant, torch.zeros_like(constant)
    for layer, (low, high) in zip(reversed(layers.affine[: len(bounds)]), reversed(bounds), strict=True):
        t = triangle(memory_order(low, 1), memory_order(high, 1), "parallel")
        half = t.intercept / 2
        centre, radius = centre + _dot(a, half), radius + _dot(a.abs(), half)
        a = a * t.upper_slope.unsqueeze(1)
        bias = _bias(layer)
        centre = centre if bias is None else centre + a @ bias
        a = _adjoint(layer, a)
    middle, reach = _input_box(layers, box)
    centre, radius = centre + _dot(a, middle), radius + _dot(a.abs(), reach)
    return centre - radius, centre + radius


def _input_box(layers: Layers, box: Interval) -> Interval:
    """Centre and radius of the first affine layer's input. # (batch, n) each"""
    low, high = (memory_order(layers.normalise(end), 1) for end in box)
    return (low + high) / 2, (high - low) / 2


def fastlin_layers(layers: Layers, box: Interval, *, chunk: int = CHUNK_ELEMENTS) -> list[Interval]:
    """FastLin bounds on x̂_k for every layer but the last, each from one row per neuron back to the box through the
    bounds of the layers before it, as Wong & Kolter 2018 (algorithm 1) have them: not intersected with intervals.

    Time is that of (samples × neurons) backward passes. Rows go in chunks whose tensors hold at most `chunk` numbers
    and are computed again for their gradients, so that memory does not grow with the network.
    """
    if len(layers.affine) == 1:
        return []
    found = [affine_interval(layers.affine[0], layers.normalise(box[0]), layers.normalise(box[1]))]
    batch = len(box[0])
    for k, layer in enumerate(layers.affine[1:-1], 1):
        width = prod(layer.shape)
        widest = max(prod(before.shape) for before in layers.affine[:k])
        count = max(1, chunk // (batch * max(widest, prod(layers.affine[0].in_shape))))
        parts = [
            _neuron_bounds(layers, tuple(found), box, k, i, min(i + count, width), again=count < width)
            for i in range(0, width, count)
        ]
        lower, upper = (torch.cat(side, 1).reshape(batch, *layer.shape) for side in zip(*parts, strict=True))
        found.append((lower, upper))
    return found


def _neuron_bounds(
    layers: Layers, bounds: tuple[Interval, ...], box: Interval, k: int, start: int, stop: int, *, again: bool
) -> Interval:
    """FastLin bounds on neurons start ≤ i < stop of affine layer k."""
    layer, batch = layers.affine[k], len(box[0])

    def run(*_: Tensor) -> Interval:
        pick = torch.zeros(stop - start, prod(layer.shape), dtype=layer.weight.dtype, device=layer.weight.device)
        pick.diagonal(start).fill_(1.0)
        rows = layer.adjoint(pick.reshape(-1, *layer.shape))
        bias = 0.0 if layer.bias is None else layer.bias.repeat_interleave(prod(layer.shape[1:]))[start:stop]
        constant = layer.weight.new_zeros(batch, stop - start) + bias
        return fastlin_bounds(layers, bounds, box, rows.expand(batch, *rows.shape), constant)

    return cast(Interval, checkpoint(run, use_reentrant=False, preserve_rng_state=False)) if again else run()


def rival_rows(layers: Layers, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of z_y − z_j for all j ≠ y over the last layer's input, their constants, and the classes j.

    # (batch, classes − 1, *shape), (batch, classes − 1), (batch, classes − 1) int64
    """
    last = layers.affine[-1]
    rows, constant = margin_weights(last, y)
    classes = torch.arange(rows.shape[1] - 1, device=y.device)
    rivals = classes + (classes >= y[:, None])  # leaves out y, whose row would be zero
    rows = rows.gather(1, rivals[..., None].expand(-1, -1, rows.shape[2]))
    return rows.unflatten(2, last.in_shape), constant.gather(1, rivals), rivals


def as_logits(margins: Tensor, rivals: Tensor) -> Tensor:
    """−(bounds on z_y − z_j), 0 at y: the logits whose cross-entropy is the robust loss.

    # (batch, classes − 1) twice -> (batch, classes)
    """
    return margins.new_zeros(len(margins), margins.shape[1] + 1).scatter(1, rivals, -margins)

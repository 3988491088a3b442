"""Linear bounds pulled back from the logits, or any layer, to the input box, with gradients: CROWN and FastLin.

Every ReLU on [l̂, û] lies in α x̂ ≤ x ≤ ā x̂ + b̄ with ā = û/(û − l̂) and b̄ = −ā l̂ (eq. 13 of the IBP-R paper), every
other activation between the two lines of its row of the table. A row a·x over a layer's outputs is bounded from below
by (a₊ α + a₋ ā)·x̂ + a₊·b̲ + a₋·b̄, the affine operations before it turn that into a row over their inputs, and so on to
the box, where the minimum is known (Zhang 2018; Wong & Kolter 2018 in dual form). FastLin takes α = ā: then one pass
gives both sides, a centre ± a radius.

As in `surebound.train.interval`, these are numbers to differentiate, not rounded outward: they never claim anything.

Rows are kept as matrices (batch, rows, elements) whose elements are in memory order, channels last for images, so that
all of this is matrix products and convolutions on plain memory.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Literal, cast

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from surebound.network.activation import Activation
from surebound.network.graph import Input, Neurons, carry_back
from surebound.network.op import Affine, Shape
from surebound.train.interval import Interval, Middle, affine_middle, ends, extreme_points, margin_weights, middle
from surebound.train.learner import Layers, image_layout

Slopes = Literal["adaptive", "zero", "one", "parallel"]
"""α of an ambiguous ReLU: 0 or 1, whichever leaves the smaller area (CROWN); always 0; always 1; or ā (FastLin)."""

CHUNK_ELEMENTS = 2**24  # numbers in the largest tensor of a chunk of rows: 64 MiB in float32
BLOCK_ELEMENTS = 2**18  # numbers in a block of rows that goes through a ReLU at once: 1 MiB in float32


@dataclass(frozen=True, eq=False)
class Lines:
    """a̲ x̂ + b̲ ≤ x ≤ ā x̂ + b̄. # (batch, *shape) each"""

    lower_slope: Tensor  # a̲, which is α for a ReLU
    upper_slope: Tensor  # ā
    intercept: Tensor  # b̄
    floor: Tensor | None = None  # b̲; None for ReLUs, where it is 0


def triangle(lower: Tensor, upper: Tensor, slopes: Slopes) -> Lines:
    """The relaxation of ReLUs on [l̂, û]; stable ones get α = ā ∈ {0, 1} and b̄ = 0.

    These are the lines of `surebound.bounds.relaxation.relax`, which rounds them outward in more passes over memory.
    """
    low, high = lower.clamp_max(0.0), upper.clamp_min(0.0)
    # The guard is for 0/0 alone: below it, the upper line misses the ReLU by less than the guard.
    slope = high / (high - low).clamp_min(1e-12)
    if slopes == "parallel":
        alpha = slope
    elif slopes == "adaptive":
        alpha = (upper > -lower).to(lower.dtype)
    else:
        alpha = (lower >= 0 if slopes == "zero" else upper > 0).to(lower.dtype)
    return Lines(alpha, slope, -slope * low)


def lines(function: Activation | None, lower: Tensor, upper: Tensor, slopes: Slopes) -> Lines:
    """The relaxation of an activation (None: a ReLU) on [l̂, û]. For others than ReLUs, `slopes` that are not parallel
    are those that leave the least area."""
    if function is None:
        return triangle(lower, upper, slopes)
    below, above = function.slopes(lower, upper, "fastlin" if slopes == "parallel" else "crown")
    low, high = extreme_points(function, below, lower, upper)[0], extreme_points(function, above, lower, upper)[1]
    return Lines(below, above, function.value(high) - above * high, function.value(low) - below * low)


def band(function: Activation | None, lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """λ, m and μ with x = λ x̂ + m + μ e for some e ∈ [−1, 1]: what lies between two parallel lines."""
    t = lines(function, lower, upper, "parallel")
    if t.floor is None:
        half = t.intercept / 2
        return t.upper_slope, half, half
    return t.upper_slope, (t.intercept + t.floor) / 2, (t.intercept - t.floor) / 2


def memory_order(x: Tensor, batch_dims: int) -> Tensor:
    """Elements in one dimension, images channels last. # (*batch, *shape) -> (*batch, elements)"""
    if x.ndim - batch_dims == 3:
        x = x.movedim(batch_dims, -1)
    return x.flatten(batch_dims) if x.ndim > batch_dims + 1 else x


def from_memory_order(x: Tensor, shape: Shape) -> Tensor:
    """The reverse, for one batch dimension. # (batch, elements) -> (batch, *shape)"""
    if len(shape) != 3:
        return x.reshape(-1, *shape)
    channels, height, width = shape
    return x.reshape(-1, height, width, channels).permute(0, 3, 1, 2)


def _bias(op: Affine) -> Tensor | None:
    """b for every element of an operation's output, in memory order."""
    if op.bias is None:
        return None
    axes = len(op.shape)
    if axes == 3 and op.bias.shape == (op.shape[0], 1, 1):
        return op.bias.reshape(-1).repeat(prod(op.shape[1:]))
    return memory_order(op.bias.expand(op.shape), 0)


def _adjoint(op: Affine, rows: Tensor) -> tuple[Tensor, ...]:
    """Aᵀ on every row, for each input. # (batch, rows, elements out) -> (batch, rows, elements in) …"""
    pulled = op.adjoint(from_memory_order(rows.flatten(0, 1), op.shape))
    return tuple(memory_order(p, 1).reshape(*rows.shape[:2], -1) for p in pulled)


def apply_rows(op: Affine, rows: Sequence[Tensor], shapes: Sequence[Shape]) -> Tensor:
    """A on every row, for what goes forward; inputs of `shapes`. # (batch, rows, elements in) … -> (…, elements out)"""
    pushed = op.apply(*(from_memory_order(r.flatten(0, 1), shape) for r, shape in zip(rows, shapes, strict=True)))
    return memory_order(pushed, 1).reshape(*rows[0].shape[:2], -1)


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


Activate = Callable[[int, Tensor, Tensor | None], Tensor]
"""(layer, rows on its outputs, the bias below it) -> rows on x̂, with constants, that of the bias too, taken note of."""


def _pull(layers: Layers, node: int, rows: Tensor, activate: Activate, constant: Callable[[Tensor], None]) -> Tensor:
    """Carry rows on a node back to the normalised pixels, as `Network.pull` does: what remains of them there.

    A bias just below an activation is its business, so that rows are read once for both; `constant` is told of others.
    """
    network, taken = layers.network, set[int]()

    def through_neurons(k: int, a: Tensor) -> Tensor:
        before = network.before(k)
        below = network.nodes[before].op
        if layers.readers[before] != 1 or isinstance(below, Neurons | Input):
            return activate(k, a, None)
        taken.add(before)
        return activate(k, a, _bias(below))

    def through(i: int, op: Affine, a: Tensor) -> tuple[Tensor, ...]:
        bias = None if i in taken else _bias(op)
        if bias is not None:
            constant(a @ bias)
        return _adjoint(op, a)

    at_input = carry_back(network, {node: rows}, through_neurons, through)
    return rows.new_zeros(*rows.shape[:2], prod(network.input_shape)) if at_input is None else at_input


def lower_bounds(
    layers: Layers, bounds: Sequence[Interval], box: Interval, rows: Tensor, constant: Tensor, *, slopes: Slopes
) -> Tensor:
    """Lower bounds of rows·x + constant for x the input of the last operation, over boxes of pixels; `bounds` are those
    on the layers.

    # rows: (batch, rows, *shape of x), constant: (batch, rows) -> (batch, rows)
    """

    def note(extra: Tensor) -> None:
        nonlocal constant
        constant = constant + extra

    def activate(k: int, a: Tensor, bias: Tensor | None) -> Tensor:
        low, high = (memory_order(end, 1) for end in bounds[k])
        t = lines(layers.network.functions[k], low, high, slopes)
        if t.floor is not None:
            note(_dot(a.clamp_min(0.0), t.floor))
        a, extra = cast(
            tuple[Tensor, Tensor],
            _ThroughReLU.apply(a, t.lower_slope, t.upper_slope, t.intercept, bias),  # type: ignore[no-untyped-call]
        )
        note(extra)
        return a

    a = _pull(layers, layers.before_last, memory_order(rows, 2), activate, note)
    centre, radius = _input_box(layers, box)
    return constant + _dot(a, centre) - _dot(a.abs(), radius)


def fastlin_bounds(
    layers: Layers,
    bounds: Sequence[Interval],
    box: Interval,
    rows: Tensor,
    constant: Tensor,
    *,
    node: int | None = None,
) -> Interval:
    """Both bounds of the same rows, over the last operation's input or another node, with parallel slopes. Rows that
    all samples share may come with a batch of one."""
    centre, radius = constant, torch.zeros_like(constant)

    def note(extra: Tensor) -> None:
        nonlocal centre
        centre = centre + extra

    def activate(k: int, a: Tensor, bias: Tensor | None) -> Tensor:
        nonlocal centre, radius
        low, high = (memory_order(end, 1) for end in bounds[k])
        slope, shift, half = band(layers.network.functions[k], low, high)
        a = a.expand(len(slope), -1, -1)
        centre, radius = centre + _dot(a, shift), radius + _dot(a.abs(), half)
        a = a * slope.unsqueeze(1)
        if bias is not None:
            note(a @ bias)
        return a

    a = _pull(layers, layers.before_last if node is None else node, memory_order(rows, 2), activate, note)
    middle, reach = _input_box(layers, box)
    a = a.expand(len(middle), -1, -1)
    centre, radius = centre + _dot(a, middle), radius + _dot(a.abs(), reach)
    return centre - radius, centre + radius


def _input_box(layers: Layers, box: Interval) -> Middle:
    """Centre and radius of the normalised pixels. # (batch, n) each"""
    low, high = (memory_order(layers.normalise(end), 1) for end in box)
    return (low + high) / 2, (high - low) / 2


def first_layers(layers: Layers, box: Interval) -> dict[int, Interval]:
    """Intervals on the layers that no activation comes before, where they are as good as any bound can be (if there is
    one affine operation): layer -> x̂."""
    network, found = layers.network, dict[int, Interval]()
    centre, radius = map(image_layout, middle(*map(layers.normalise, box)))
    known = {0: (centre, radius)}
    for i in range(1, network.output):
        op, inputs = network.nodes[i].op, network.nodes[i].inputs
        if not all(j in known for j in inputs):
            continue
        if isinstance(op, Neurons):
            found[network.layer_of[i]] = ends(*known[inputs[0]])
        elif not isinstance(op, Input):
            known[i] = affine_middle(op, *(known[j] for j in inputs))
    return found


def fastlin_layers(layers: Layers, box: Interval, *, chunk: int = CHUNK_ELEMENTS) -> list[Interval]:
    """FastLin bounds on x̂_k for every layer, each from one row per neuron back to the box through the bounds of the
    layers before it, as Wong & Kolter 2018 (algorithm 1) have them: not intersected with intervals.

    Time is that of (samples × neurons) backward passes. Rows go in chunks whose tensors hold at most `chunk` numbers
    and are computed again for their gradients, so that memory does not grow with the network.
    """
    network, first, found = layers.network, first_layers(layers, box), list[Interval]()
    batch = len(box[0])
    for k, layer in enumerate(network.layers):
        if k in first:
            found.append(first[k])
            continue
        shape = network.nodes[layer].shape
        width, node = prod(shape), network.before(k)
        widest = max(prod(before.shape) for before in network.nodes[:node])
        count = max(1, chunk // (batch * widest))
        parts = [
            _neuron_bounds(layers, tuple(found), box, node, i, min(i + count, width), again=count < width)
            for i in range(0, width, count)
        ]
        lower, upper = (torch.cat(side, 1).reshape(batch, *shape) for side in zip(*parts, strict=True))
        found.append((lower, upper))
    return found


def _neuron_bounds(
    layers: Layers, bounds: tuple[Interval, ...], box: Interval, node: int, start: int, stop: int, *, again: bool
) -> Interval:
    """FastLin bounds on neurons start ≤ i < stop of a node."""
    shape, like = layers.network.nodes[node].shape, layers.last.weight

    def run(*_: Tensor) -> Interval:
        pick = like.new_zeros(stop - start, prod(shape))
        pick.diagonal(start).fill_(1.0)
        rows, constant = pick.reshape(1, -1, *shape), like.new_zeros(len(box[0]), stop - start)
        return fastlin_bounds(layers, bounds, box, rows, constant, node=node)

    return cast(Interval, checkpoint(run, use_reentrant=False, preserve_rng_state=False)) if again else run()


def rival_rows(layers: Layers, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The rows of z_y − z_j for all j ≠ y over the last layer's input, their constants, and the classes j.

    # (batch, classes − 1, *shape), (batch, classes − 1), (batch, classes − 1) int64
    """
    rows, constant = margin_weights(layers.last, y)
    classes = torch.arange(rows.shape[1] - 1, device=y.device)
    rivals = classes + (classes >= y[:, None])  # leaves out y, whose row would be zero
    rows = rows.gather(1, rivals[..., None].expand(-1, -1, rows.shape[2]))
    return rows.unflatten(2, layers.network.nodes[layers.before_last].shape), constant.gather(1, rivals), rivals


def as_logits(margins: Tensor, rivals: Tensor) -> Tensor:
    """−(bounds on z_y − z_j), 0 at y: the logits whose cross-entropy is the robust loss.

    # (batch, classes − 1) twice -> (batch, classes)
    """
    return margins.new_zeros(len(margins), margins.shape[1] + 1).scatter(1, rivals, -margins)

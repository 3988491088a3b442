"""ReLU stability: adversarial training with a reward for neurons that keep their sign over the box."""

from dataclasses import dataclass, replace
from math import prod
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from surebound.errors import UsageError
from surebound.network.conv import Conv
from surebound.network.graph import Relu, value
from surebound.network.linear import Linear
from surebound.network.op import absolute
from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.interval import Boxes, Interval, affine_middle, ends, middle, propagate
from surebound.train.learner import Layers, Learner
from surebound.train.mixture import natural_part

Layer = Conv | Linear

BLOCK_ELEMENTS = 2**22  # numbers in a block of composed weights: 16 MiB in float32


@dataclass(frozen=True, kw_only=True)
class ReLUStability:
    """Eq. 4 of the IBP-R paper (Xiao et al. 2019), with x̃ the attack's point and κ as in the other losses:

        κ (CE(f(x̃), y) + ρ Σ_k Σ_i tanh(1 − l̂_{k,i} û_{k,i})) + (1 − κ) CE(f(x), y) + λ ‖θ‖₁,

    means over the batch, the sum over the neurons of all ReLU layers. An ambiguous neuron has l̂ û < 0. The form that
    Xiao et al. published, −tanh(1 + l̂ û), is `form` ``published``: it pushes the same way, hardest where l̂ û = −1
    instead of 1.

    `bounds` ``improved`` ("improved interval arithmetic" there) bounds the first two affine layers jointly: with a the
    neurons of the first that are active on the whole box, x̂_2 = A_2 D_a (A_1 x + b_1) + A_2 (I − D_a) σ(x̂_1) + b_2 has
    the radius |A_2 D_a A_1| r + |A_2 (I − D_a)| r_1. Later layers, or with ``interval`` all, go by intervals, as do all
    of a network that does not begin with two affine layers and a ReLU after each.
    D_a differs between samples, so that A_2 D_a A_1 has to be made for each: where that would take more than
    `joint_limit` multiply-adds per sample, intervals are used instead. conv-2-255 takes 0.45e9, conv-8-255 1.5e9, cnn7
    2.8e9.

    Deviations: the published code, on MNIST, composes three layers, not two; it leaves the last layer out of ‖θ‖₁ and
    counts a convolution's weights once for every position they act at.
    """

    rho: float = 1e-4  # ρ
    l1: float = 2e-5  # λ
    form: Literal["paper", "published"] = "paper"
    bounds: Literal["improved", "interval"] = "improved"
    joint_limit: float = 2e9
    attack: TrainAttack = TrainAttack()

    def __post_init__(self) -> None:
        if not self.rho >= 0 or not self.l1 >= 0 or not self.joint_limit >= 0:
            raise UsageError(
                "relu-stability: rho, l1 and joint_limit must not be negative, "
                f"got {self.rho}, {self.l1} and {self.joint_limit}"
            )

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        total, parts = natural_part(learner, layers, batch, self.l1)
        if batch.kappa > 0:
            adversarial = F.cross_entropy(layers.logits(self.attack.run(layers, batch)), batch.y)
            bounds = self._hidden(layers, batch.box)
            stability = self.rho * self._instability(bounds).mean() if bounds else adversarial.new_zeros(())
            parts |= {"adversarial": adversarial.detach(), "stability": stability.detach()}
            total = total + batch.kappa * (adversarial + stability)
        return Terms(total, parts)

    def _hidden(self, layers: Layers, box: Interval) -> list[Interval]:
        boxes = improved_bounds(layers, box, self.joint_limit) if self.bounds == "improved" else propagate(layers, *box)
        return boxes.relus(layers)

    def _instability(self, bounds: list[Interval]) -> Tensor:
        """# (batch,)"""
        products = ((low * high).flatten(1) for low, high in bounds)
        terms = [torch.tanh(1 - p) if self.form == "paper" else -torch.tanh(1 + p) for p in products]
        return torch.cat(terms, 1).sum(1)


def improved_bounds(layers: Layers, box: Interval, joint_limit: float) -> Boxes:
    """Interval bounds, the first two affine layers bounded jointly where they follow each other with nothing but a ReLU
    between, and within the limit."""
    pair = _first_two(layers)
    if pair is None or joint_cost(*pair) > joint_limit:
        return propagate(layers, *box)
    first, second = pair
    lower, upper = (layers.normalise(side) for side in box)
    found = [ends(*affine_middle(first, middle(lower, upper)))]
    centre, radius = middle(*found[0], rectify=True)
    active = (found[0][0] > 0).to(centre.dtype)
    reach = (upper - lower) / 2
    spread = absolute(second).apply(radius * (1 - active)) + joint_radius(first, second, active, reach)
    found.append(ends(value(second, centre), spread))
    rest = propagate(layers, *ends(*middle(*found[1], rectify=True)), start=2)
    return replace(rest, before=[*found, *rest.before])


def _first_two(layers: Layers) -> tuple[Layer, Layer] | None:
    """The first two affine layers, if the network begins with them and a ReLU after each."""
    nodes = layers.network.nodes[1:5]
    chained = len(layers.network.nodes) > 5 and all(node.inputs == (i,) for i, node in enumerate(nodes))
    ops = [node.op for node in nodes]
    if not chained or layers.cuts[1:3] != (2, 4) or not isinstance(ops[1], Relu) or not isinstance(ops[3], Relu):
        return None
    first, second = ops[0], ops[2]
    if not isinstance(first, Layer) or not isinstance(second, Layer) or 3 in (first.weight.ndim, second.weight.ndim):
        return None
    return first, second


def joint_cost(first: Layer, second: Layer) -> int:
    """The multiply-adds that `joint_radius` takes for a sample."""
    if isinstance(second, Linear) or isinstance(first, Linear):
        return second.weight.shape[0] * prod(first.shape) * first.weight[0].numel()
    channels, out = first.weight.shape[0], second.shape
    return prod(out) * channels * prod(second.weight.shape[2:]) * first.in_shape[0] * prod(_windows(first, second)[0])


def joint_radius(first: Layer, second: Layer, active: Tensor, radius: Tensor, *, block: int = BLOCK_ELEMENTS) -> Tensor:
    """|A_2 D_a A_1| r for each sample, with gradients to A_1 and A_2; composed weights are made again for these.

    # active: (batch, *first.shape) of 0 and 1, radius: (batch, *first.in_shape) -> (batch, *second.shape)
    """
    if isinstance(first, Conv) and isinstance(second, Conv):
        return _joint_convolutions(first, second, active, radius, block)
    count = max(1, block // (second.weight.shape[0] * prod(first.shape)))

    def run(a: Tensor, r: Tensor) -> Tensor:
        rows = second.weight * a.flatten(1).unsqueeze(1)  # (samples, out, neurons between)
        composed = first.adjoint(rows.reshape(-1, *first.shape))[0].flatten(1).unflatten(0, rows.shape[:2])
        return torch.bmm(composed.abs(), r.flatten(1).unsqueeze(2)).squeeze(2)

    return torch.cat([_again(run, a, r) for a, r in zip(active.split(count), radius.split(count), strict=True)])


def _joint_convolutions(first: Conv, second: Conv, active: Tensor, radius: Tensor, block: int) -> Tensor:
    """The same for two convolutions, where each output sees a window of inputs through a window of neurons.

    With m the activity in the window of neurons below an output position, the composed weights over the window of
    inputs are linear in m, Σ_i m_i A_2[o, i] A_1[i, q]: one matrix for all positions and samples.
    """
    window, start, step = _windows(first, second)
    ends = [
        (o - 1) * s + w - n - p
        for o, s, w, n, p in zip(second.shape[1:], step, window, first.in_shape[1:], start, strict=True)
    ]
    padded = F.pad(radius, (start[1], ends[1], start[0], ends[0]))
    inputs = padded.unfold(2, window[0], step[0]).unfold(3, window[1], step[1]).permute(0, 2, 3, 1, 4, 5)
    kernel = _composed(first, second, window)  # (neurons in a window, out · inputs in a window)
    out, height, width = second.shape
    q = first.in_shape[0] * prod(window)
    count = max(1, block // (out * height * width * q))

    def run(a: Tensor, r: Tensor) -> Tensor:
        seen = F.unfold(a, second.weight.shape[2:], second.dilation, second.padding, second.stride)
        composed = (seen.transpose(1, 2).flatten(0, 1) @ kernel).unflatten(1, (out, q))
        return torch.bmm(composed.abs(), r.reshape(-1, q, 1)).reshape(len(a), height, width, out)

    parts = [_again(run, a, r) for a, r in zip(active.split(count), inputs.split(count), strict=True)]
    return torch.cat(parts).permute(0, 3, 1, 2)


def _again(run: object, *arguments: Tensor) -> Tensor:
    return cast(Tensor, checkpoint(run, *arguments, use_reentrant=False, preserve_rng_state=False))


def _windows(first: Conv, second: Conv) -> tuple[list[int], list[int], list[int]]:
    """The window of inputs that one output sees: its size, where the first begins (minus that) and by how much the next
    is shifted, along height and width."""
    axes = range(2)
    reach = [first.dilation[i] * (first.weight.shape[2 + i] - 1) + 1 for i in axes]
    size = [(second.weight.shape[2 + i] - 1) * second.dilation[i] * first.stride[i] + reach[i] for i in axes]
    start = [second.padding[i] * first.stride[i] + first.padding[i] for i in axes]
    return size, start, [first.stride[i] * second.stride[i] for i in axes]


def _composed(first: Conv, second: Conv, window: list[int]) -> Tensor:
    """A_2[o, i] A_1[i, q] for the neurons i = (channel, dy, dx) that an output o sees and the inputs q that they see.

    # (neurons, out · inputs)
    """
    one, two = _ungrouped(first), _ungrouped(second)
    (between, channels), (out, _, height, width) = one.shape[:2], two.shape
    reach = [first.dilation[i] * (one.shape[2 + i] - 1) + 1 for i in range(2)]
    kernel = one.new_zeros(between, height, width, out, channels, *window)
    for dy in range(height):
        for dx in range(width):
            y, x = dy * second.dilation[0] * first.stride[0], dx * second.dilation[1] * first.stride[1]
            rows, columns = slice(y, y + reach[0], first.dilation[0]), slice(x, x + reach[1], first.dilation[1])
            kernel[:, dy, dx, :, :, rows, columns] = torch.einsum("oi,icyx->iocyx", two[:, :, dy, dx], one)
    return kernel.flatten(3).flatten(0, 2)


def _ungrouped(layer: Conv) -> Tensor:
    """The weight with zeros between channels of different groups. # (out, in, height, width)"""
    if layer.groups == 1:
        return layer.weight
    out, each = layer.weight.shape[0] // layer.groups, layer.weight.shape[1]
    full = layer.weight.new_zeros(layer.weight.shape[0], layer.in_shape[0], *layer.weight.shape[2:])
    for g in range(layer.groups):
        rows = slice(g * out, (g + 1) * out)
        full[rows, g * each : (g + 1) * each] = layer.weight[rows]
    return full

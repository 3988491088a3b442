"""The network as training sees it: affine layers with ReLUs between, f(x) = A_n σ(A_{n−1} σ(… A_1 x)).

A `Chain` reads a `Sequential` once. At each step it hands out `Layers`: the affine maps A_k of that step with every
batch norm folded into the layer before it, so that a loss, a bound or an attack only ever meets matrices and
convolutions. Gradients flow through the folding to the module's own parameters.

Images are kept in torch's channels-last layout throughout, forwards and backwards, which is what convolutions are
fastest in on a CPU (`benchmarks/train_step.py` measures it).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast, final

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from surebound.errors import UnsupportedOpError, UsageError
from surebound.network.architectures import Normalise
from surebound.network.conv import unseen, windows
from surebound.network.op import Shape
from surebound.train.parallel import mean_over_processes

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


class _Flatten(torch.autograd.Function):
    """Flattens in (channel, height, width) order and gives gradients back in the layout of images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.contiguous().flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return image_layout(gradients[0].reshape(ctx.shape))


def image_layout(x: Tensor) -> Tensor:
    """The same numbers in channels-last order. # (batch, channels, height, width)"""
    if x.ndim != 4:
        return x
    if x.shape[1] == 1:  # torch takes one channel for channels-last in any layout, and passes on the wrong strides
        return x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


def flatten(x: Tensor) -> Tensor:
    """# (batch, *shape) -> (batch, elements)"""
    return x if x.ndim == 2 else cast(Tensor, _Flatten.apply(x))  # type: ignore[no-untyped-call]


@final
@dataclass(frozen=True, eq=False)
class Dense:
    """A x + b with a matrix A; the input is flattened."""

    weight: Tensor  # (out, in)
    bias: Tensor | None  # (out,)
    in_shape: Shape

    @property
    def shape(self) -> Shape:
        return (self.weight.shape[0],)

    @cached_property
    def _as_in_memory(self) -> Tensor:
        """A with its columns in the order in which images lie in memory: one copy of A saves one of every batch."""
        channels, height, width = self.in_shape
        return self.weight.reshape(-1, channels, height, width).permute(0, 2, 3, 1).flatten(1)

    def __call__(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            return F.linear(x, self.weight, self.bias)
        return F.linear(x.permute(0, 2, 3, 1).flatten(1), self._as_in_memory, self.bias)

    def adjoint(self, g: Tensor) -> Tensor:
        """Aᵀ g. # (batch, out) -> (batch, *in_shape)"""
        if len(self.in_shape) != 3:
            return g @ self.weight
        channels, height, width = self.in_shape
        return (g @ self._as_in_memory).reshape(-1, height, width, channels).permute(0, 3, 1, 2)


@final
@dataclass(frozen=True, eq=False)
class Conv:
    """A x + b with a convolution A."""

    weight: Tensor  # (out, in / groups, height, width)
    bias: Tensor | None  # (out,)
    in_shape: Shape
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    @property
    def shape(self) -> Shape:
        return (self.weight.shape[0], *windows(self))

    def __call__(self, x: Tensor) -> Tensor:
        return F.conv2d(image_layout(x), self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)

    def adjoint(self, g: Tensor) -> Tensor:
        """Aᵀ g. # (batch, *shape) -> (batch, *in_shape)"""
        return F.conv_transpose2d(
            g, self.weight, None, self.stride, self.padding, unseen(self), self.groups, self.dilation
        )


Layer = Dense | Conv


def linear(layer: Layer) -> Layer:
    """A without b."""
    return replace(layer, bias=None)


def absolute(layer: Layer) -> Layer:
    """|A| without b: what it does to the radius of a box."""
    return replace(layer, bias=None, weight=layer.weight.abs())


def per_channel(values: Tensor, like: Tensor) -> Tensor:
    """One value per channel, broadcastable to a batch of a layer's outputs. # (channels,) -> (channels, 1…)"""
    return values.reshape(-1, *[1] * (like.ndim - 2))


@final
@dataclass(frozen=True, eq=False)
class Layers:
    """The affine layers of one step, in order; a ReLU follows each but the last.

    `natural` has f(x) on the clean batch where that had to be computed for the batch norms, so that no loss pays for it
    twice; `clean_logits` computes it where it is missing.
    """

    affine: tuple[Layer, ...]
    mean: Tensor  # (channels, 1, 1)
    std: Tensor  # (channels, 1, 1)
    natural: Tensor | None = None  # (batch, classes)

    def normalise(self, x: Tensor) -> Tensor:
        """Pixels in [0, 1] to what the first affine layer takes. # (batch, *in_shape)"""
        return image_layout((x - self.mean) / self.std)

    def logits(self, x: Tensor, *, start: int = 0) -> Tensor:
        """f from pixels or, with `start` = k > 0, from the input of affine layer k (0-based), after its ReLU.

        # (batch, *shape) -> (batch, classes)
        """
        x = self.normalise(x) if start == 0 else x
        for layer in self.affine[start:-1]:
            x = layer(x).relu_()
        return self.affine[-1](x)

    def clean_logits(self, x: Tensor) -> Tensor:
        """f(x) on the clean batch."""
        return self.logits(x) if self.natural is None else self.natural

    def detach(self) -> "Layers":
        """The same numbers without gradients to the parameters, for attacks."""
        affine = tuple(
            replace(a, weight=a.weight.detach(), bias=None if a.bias is None else a.bias.detach()) for a in self.affine
        )
        return replace(self, affine=affine, natural=None if self.natural is None else self.natural.detach())


class Chain:
    """A `Sequential` of Normalise (optional, first), Conv2d, Linear, BatchNorm after these, ReLU and Flatten."""

    def __init__(self, module: nn.Sequential, in_shape: Shape) -> None:
        self.module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.in_shape = tuple(in_shape)
        self._normalise, self.parts = _read(module)
        shapes = [self.in_shape]
        for affine, _ in self.parts:
            _expect_fit(module, affine, shapes[-1])
            layer = _layer(affine, affine.weight, affine.bias, shapes[-1])
            shapes.append(layer.shape)
        self.shapes = tuple(shapes)  # of the input and of every affine layer's output

    @property
    def has_batch_norm(self) -> bool:
        return any(norm is not None for _, norm in self.parts)

    def weights(self, *, start: int = 0) -> list[nn.Parameter]:
        """The weights of affine layers from `start` on: no biases, no batch norms (what ℓ1 regularisation covers)."""
        return [cast(nn.Parameter, affine.weight) for affine, _ in self.parts[start:]]

    def parameters(self, *, start: int = 0) -> list[nn.Parameter]:
        """All parameters of affine layers from `start` on, with their batch norms."""
        modules = [m for pair in self.parts[start:] for m in pair if m is not None]
        return [p for m in modules for p in m.parameters()]

    def layers(self, x: Tensor | None = None) -> Layers:
        """The layers with the batch norms' statistics of the clean batch x, which also updates their running averages;
        without x, with the running averages, as in evaluation. # x: (batch, *in_shape) pixels"""
        mean, std = self._pixels()
        if x is None or not self.has_batch_norm:
            return Layers(tuple(self._folded(k, None)[0] for k in range(len(self.parts))), mean, std)
        value: Tensor | None = image_layout((x - mean) / std)
        affine = []
        for k in range(len(self.parts)):
            layer, value = self._folded(k, value)
            affine.append(layer)
            if k < len(self.parts) - 1:
                assert value is not None
                value = value.relu()
        return Layers(tuple(affine), mean, std, natural=value)

    def _pixels(self) -> tuple[Tensor, Tensor]:
        if self._normalise is not None:
            return self._normalise.mean, self._normalise.std
        weight = self.parts[0][0].weight
        return weight.new_zeros(1), weight.new_ones(1)

    def _folded(self, k: int, x: Tensor | None) -> tuple[Layer, Tensor | None]:
        """Affine layer k with its batch norm folded in and, for an input x, its output."""
        affine, norm = self.parts[k]
        layer = _layer(affine, affine.weight, affine.bias, self.shapes[k])
        value = None if x is None else layer(x)
        if norm is None:
            return layer, value
        if value is None:
            assert norm.running_mean is not None and norm.running_var is not None
            mean, variance = norm.running_mean, norm.running_var
        else:
            mean, variance = _statistics(norm, value)
        scale = (variance + norm.eps).rsqrt()
        shift = -mean * scale
        if norm.affine:
            scale, shift = scale * norm.weight, shift * norm.weight + norm.bias
        bias = shift if layer.bias is None else layer.bias * scale + shift
        weight = layer.weight * scale.reshape(-1, *[1] * (layer.weight.ndim - 1))
        if value is not None:
            value = value * per_channel(scale, value) + per_channel(shift, value)
        return replace(layer, weight=weight, bias=bias), value


def _statistics(norm: BatchNorm, x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of every channel over the whole batch, however many processes share it.

    As in torch, running averages take the variance with Bessel's correction, and without a momentum weigh all batches
    alike.
    """
    count = x.numel() // x.shape[1] * (dist.get_world_size() if dist.is_initialized() else 1)
    if count < 2:
        raise UsageError("a batch norm got one value per channel; expected a batch of more than one sample")
    dims = [d for d in range(x.ndim) if d != 1]
    mean = mean_over_processes(x.mean(dims))
    centred = x - per_channel(mean, x)
    variance = mean_over_processes(centred.square().mean(dims))
    with torch.no_grad():
        if norm.running_mean is not None and norm.running_var is not None:
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            momentum = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            norm.running_mean.lerp_(mean, momentum)
            norm.running_var.lerp_(variance * (count / (count - 1)), momentum)
    return mean, variance


def _layer(module: nn.Conv2d | nn.Linear, weight: Tensor, bias: Tensor | None, in_shape: Shape) -> Layer:
    if isinstance(module, nn.Linear):
        return Dense(weight, bias, in_shape)
    stride, padding, dilation = (cast(tuple[int, int], v) for v in (module.stride, module.padding, module.dilation))
    return Conv(weight, bias, in_shape, stride, padding, dilation, module.groups)


def _read(module: nn.Sequential) -> tuple[Normalise | None, list[tuple[nn.Conv2d | nn.Linear, BatchNorm | None]]]:
    """The normalisation and the affine layers with their batch norms, or an error that names what does not fit."""
    normalise: Normalise | None = None
    parts: list[tuple[nn.Conv2d | nn.Linear, BatchNorm | None]] = []
    relu_next = norm_next = False
    for name, m in module._modules.items():  # named_children() leaves out a module's second place
        problem = ""
        if isinstance(m, Normalise):
            problem = "must come first" if parts or normalise is not None else ""
            if not bool((m.std > 0).all()):
                problem = "needs positive deviations"
            normalise = m
        elif isinstance(m, nn.Conv2d | nn.Linear):
            if any(m is other for other, _ in parts):
                problem = "appears twice"
            elif relu_next:
                problem = "follows another affine layer without a ReLU between"
            elif isinstance(m, nn.Conv2d) and (isinstance(m.padding, str) or m.padding_mode != "zeros"):
                problem = "needs zero padding given in numbers"
            parts.append((m, None))
            relu_next = norm_next = True
        elif isinstance(m, BatchNorm):
            if not norm_next:
                problem = "must follow a Conv2d or Linear at once"
            elif m.running_mean is None:
                problem = "needs running averages (track_running_stats)"
            else:
                parts[-1], norm_next = (parts[-1][0], m), False
        elif isinstance(m, nn.ReLU):
            if not relu_next:
                problem = "must follow an affine layer"
            relu_next = norm_next = False
        elif isinstance(m, nn.Flatten):
            problem = "" if (m.start_dim, m.end_dim) == (1, -1) else "must flatten all dimensions of a sample"
            norm_next = False
        else:
            problem = "is not supported in training"
        if problem:
            raise UnsupportedOpError(
                f"module '{name}' ({type(m).__name__}) {problem}; expected a Sequential of Normalise, then Conv2d or "
                "Linear, each with an optional BatchNorm, and ReLUs between them"
            )
    if not parts or not relu_next or not isinstance(parts[-1][0], nn.Linear):
        raise UnsupportedOpError("a network to train must end in a Linear layer, without a ReLU after it")
    if len(parts) < 2:
        raise UnsupportedOpError("a network to train needs at least one layer with ReLUs before its last")
    return normalise, parts


def _expect_fit(module: nn.Sequential, affine: nn.Conv2d | nn.Linear, shape: Shape) -> None:
    """Refuse an affine layer that does not take inputs of this shape."""
    if isinstance(affine, nn.Linear):
        fits, wanted = affine.in_features == math.prod(shape), f"{affine.in_features} elements"
    else:
        fits, wanted = len(shape) == 3 and affine.in_channels == shape[0], f"images of {affine.in_channels} channels"
    if not fits:
        name = next(name for name, m in module.named_children() if m is affine)
        raise UnsupportedOpError(
            f"module '{name}' ({type(affine).__name__}) gets inputs of shape {list(shape)}; expected {wanted}"
        )


def l1_norm(weights: Sequence[Tensor]) -> Tensor:
    """‖θ‖₁ over the given weights."""
    return torch.stack([w.abs().sum() for w in weights]).sum()

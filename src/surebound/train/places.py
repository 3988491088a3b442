"""Operations whose numbers are a module's parameters: places in a network that every step of training fills anew.

A place is filled with an operation over the parameters, so that gradients flow to them. A batch norm is folded into the
convolution or matrix before it, and is a scaling of channels where there is none; given the clean batch, it takes that
batch's statistics, and its running averages otherwise.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from surebound.errors import UsageError
from surebound.network.conv import Conv
from surebound.network.graph import value
from surebound.network.linear import Linear, Scale
from surebound.network.op import Affine, Shape
from surebound.train.parallel import mean_over_processes

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Place:
    """An affine operation of the structure that training reads once; its numbers are those of the step."""

    shape: Shape
    make: Callable[[], Affine] | None = None  # the operation over the parameters as they are; None for a norm alone
    norm: BatchNorm | None = None  # of the operation's output
    weights: tuple[nn.Parameter, ...] = ()  # what ℓ1 regularisation covers
    parameters: tuple[nn.Parameter, ...] = ()
    bias: None = None
    roundings: int = 0

    def fill(self, x: Tensor | None = None) -> tuple[Affine, Tensor | None]:
        """The operation of this step and, for inputs x, its outputs; batch norms by the statistics over x."""
        op = None if self.make is None else self.make()
        y = x if op is None or x is None else value(op, x)
        if self.norm is None:
            assert op is not None
            return op, y
        scale, shift = _line(self.norm, y)
        if y is not None:
            y = y * _spread(scale, y.ndim - 1) + _spread(shift, y.ndim - 1)
        return _scaled(op, scale, shift, self.shape), y

    def apply(self, x: Tensor) -> Tensor:
        return self.fill()[0].apply(x)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return self.fill()[0].adjoint(g)


def _spread(values: Tensor, axes: int) -> Tensor:
    """One value for each entry of the first of so many axes. # (channels,) -> (channels, 1…)"""
    return values.reshape(-1, *[1] * (axes - 1))


def _scaled(op: Affine | None, scale: Tensor, shift: Tensor, shape: Shape) -> Affine:
    """scale ⊙ (A x + b) + shift; without an op, of the input itself. # scale, shift: (channels,)"""
    if op is None:
        return Scale(_spread(scale, len(shape)).expand(shape), _spread(shift, len(shape)).expand(shape))
    assert isinstance(op, Conv | Linear)
    shift = _spread(shift, len(shape))
    bias = shift if op.bias is None else op.bias * _spread(scale, len(shape)) + shift
    return replace(op, weight=op.weight * _spread(scale, op.weight.ndim), bias=bias)


def _line(norm: BatchNorm, x: Tensor | None) -> tuple[Tensor, Tensor]:
    """Slope and intercept of each channel, from the statistics of a batch or, without one, from the averages."""
    if x is None:
        assert norm.running_mean is not None and norm.running_var is not None
        mean, variance = norm.running_mean, norm.running_var
    else:
        mean, variance = _statistics(norm, x)
    scale = (variance + norm.eps).rsqrt()
    shift = -mean * scale
    return (scale * norm.weight, shift * norm.weight + norm.bias) if norm.affine else (scale, shift)


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
    centred = x - _spread(mean, x.ndim - 1)
    variance = mean_over_processes(centred.square().mean(dims))
    with torch.no_grad():
        if norm.running_mean is not None and norm.running_var is not None:
            assert norm.num_batches_tracked is not None
            norm.num_batches_tracked.add_(1)
            momentum = 1 / int(norm.num_batches_tracked) if norm.momentum is None else norm.momentum
            norm.running_mean.lerp_(mean, momentum)
            norm.running_var.lerp_(variance * (count / (count - 1)), momentum)
    return mean, variance

"""Torch's modules as operations of a network, in a table by type."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load.algebra import Algebra, Data
from surebound.load.torch_ops import (
    average_pool,
    batch_norm,
    celu,
    clamp,
    conv,
    conv_transpose,
    elu,
    gelu,
    global_pool,
    interpolate,
    leaky_relu,
    linear,
    max_pool,
    pad,
    prelu,
    relu,
    relu6,
    selu,
    softplus,
)
from surebound.network import ACTIVATIONS
from surebound.network.activation import Activation


def _linear_module(a: Algebra, m: nn.Linear, x: Data) -> Data:
    return linear(a, x, m.weight, m.bias)


def _conv_module(a: Algebra, m: nn.Conv1d | nn.Conv2d, x: Data) -> Data:
    if m.padding_mode != "zeros":
        raise UnsupportedOpError(f"pads of mode '{m.padding_mode}' are not supported; expected zeros")
    return conv(m.weight.ndim - 2)(a, x, m.weight, m.bias, m.stride, m.padding, m.dilation, m.groups)


def _conv_transpose_module(a: Algebra, m: nn.ConvTranspose1d | nn.ConvTranspose2d, x: Data) -> Data:
    spread = conv_transpose(m.weight.ndim - 2)
    return spread(a, x, m.weight, m.bias, m.stride, m.padding, m.output_padding, m.groups, m.dilation)


def _upsample_module(a: Algebra, m: nn.Upsample, x: Data) -> Data:
    return interpolate(a, x, m.size, m.scale_factor, m.mode, m.align_corners, m.recompute_scale_factor)


def _batch_norm_module(a: Algebra, m: nn.BatchNorm1d | nn.BatchNorm2d, x: Data) -> Data:
    return batch_norm(a, x, m.running_mean, m.running_var, m.weight, m.bias, eps=m.eps)


def _max_pool_module(a: Algebra, m: nn.MaxPool1d | nn.MaxPool2d, x: Data) -> Data:
    pool = max_pool(1 if isinstance(m, nn.MaxPool1d) else 2)
    return pool(a, x, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices)


def _average_pool_module(a: Algebra, m: nn.AvgPool1d | nn.AvgPool2d, x: Data) -> Data:
    pool = average_pool(1 if isinstance(m, nn.AvgPool1d) else 2)
    override = getattr(m, "divisor_override", None)
    return pool(a, x, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, override)


def _flatten_module(a: Algebra, m: nn.Flatten, x: Data) -> Data:
    return a.move(x, lambda index: torch.from_numpy(index).flatten(m.start_dim, m.end_dim).numpy())


def _unflatten_module(a: Algebra, m: nn.Unflatten, x: Data) -> Data:
    if not isinstance(m.dim, int):
        raise NetworkError("an unflatten names its axis; expected a number")
    axis, sizes = m.dim, tuple(m.unflattened_size)
    return a.move(x, lambda index: torch.from_numpy(index).unflatten(axis, sizes).numpy())


def _pad_module(a: Algebra, m: nn.ZeroPad1d | nn.ZeroPad2d | nn.ConstantPad1d | nn.ConstantPad2d, x: Data) -> Data:
    return pad(a, x, m.padding, value=float(m.value))


Module = Callable[[Algebra, Any, Data], Data]


def _row(function: Activation) -> Module:
    return lambda a, m, x: a.apply(x, function)


MODULES: dict[type[nn.Module], Module] = {
    **{getattr(nn, row.module): _row(row) for row in ACTIVATIONS.values() if row.module},
    nn.AdaptiveAvgPool1d: lambda a, m, x: global_pool("mean", 1)(a, x, m.output_size),
    nn.AdaptiveAvgPool2d: lambda a, m, x: global_pool("mean", 2)(a, x, m.output_size),
    nn.AdaptiveMaxPool1d: lambda a, m, x: global_pool("max", 1)(a, x, m.output_size, m.return_indices),
    nn.AdaptiveMaxPool2d: lambda a, m, x: global_pool("max", 2)(a, x, m.output_size, m.return_indices),
    nn.AvgPool1d: _average_pool_module,
    nn.AvgPool2d: _average_pool_module,
    nn.BatchNorm1d: _batch_norm_module,
    nn.BatchNorm2d: _batch_norm_module,
    nn.CELU: lambda a, m, x: celu(a, x, m.alpha),
    nn.ConstantPad1d: _pad_module,
    nn.ConstantPad2d: _pad_module,
    nn.Conv1d: _conv_module,
    nn.Conv2d: _conv_module,
    nn.ConvTranspose1d: _conv_transpose_module,
    nn.ConvTranspose2d: _conv_transpose_module,
    nn.Dropout: lambda a, m, x: x,
    nn.Dropout1d: lambda a, m, x: x,
    nn.Dropout2d: lambda a, m, x: x,
    nn.ELU: lambda a, m, x: elu(a, x, m.alpha),
    nn.Flatten: _flatten_module,
    nn.GELU: lambda a, m, x: gelu(a, x, m.approximate),
    nn.Hardtanh: lambda a, m, x: clamp(a, x, m.min_val, m.max_val),
    nn.Identity: lambda a, m, x: x,
    nn.LeakyReLU: lambda a, m, x: leaky_relu(a, x, m.negative_slope),
    nn.Linear: _linear_module,
    nn.MaxPool1d: _max_pool_module,
    nn.MaxPool2d: _max_pool_module,
    nn.PReLU: lambda a, m, x: prelu(a, x, m.weight),
    nn.ReLU: lambda a, m, x: relu(a, x),
    nn.ReLU6: lambda a, m, x: relu6(a, x),
    nn.SELU: lambda a, m, x: selu(a, x),
    nn.Softplus: lambda a, m, x: softplus(a, x, m.beta, m.threshold),
    nn.Unflatten: _unflatten_module,
    nn.Upsample: _upsample_module,
    nn.ZeroPad1d: _pad_module,
    nn.ZeroPad2d: _pad_module,
}
"""Modules whose forward pass is known; others are traced through."""

"""Torch's functions and methods as operations of a network, in tables by name.

Functions are written with the parameters of the torch functions they stand for, so that torch's own ways of calling
them (by position or keyword) work unchanged. In-place variants share the entry of the plain ones.

A Python number in a call (a slope, a bound, an epsilon) means its float32 value: that is what torch computes with in a
float32 module, and what an ONNX export of it stores.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from surebound.errors import UnsupportedOpError
from surebound.load.algebra import Algebra, Array, Data, Value
from surebound.load.resize import Axis
from surebound.load.torch_calls import average_pool_window, conv_window, max_pool_window, per_axis
from surebound.network import ACTIVATIONS
from surebound.network.activation import Activation
from surebound.network.activations import CUBE, GELU, GELU_TANH, SOFTPLUS, SQUARE
from surebound.network.op import Shape

Values = dict[str, Callable[..., Any]]


def shape_of(value: Any) -> Shape:
    """A tensor's full shape."""
    return tuple(value.shape)


def _array(value: Any) -> Array:
    """A constant as an array of its exact numbers."""
    if isinstance(value, Tensor):
        if type(value) not in (Tensor, nn.Parameter) or value.is_complex():
            kind = "complex numbers" if value.is_complex() else f"the class {type(value).__name__}"
            raise UnsupportedOpError(f"a tensor of {kind} is not supported; expected torch.Tensor with real numbers")
        return value.detach().cpu().double().numpy()
    if value is None:
        raise UnsupportedOpError("it computes with None, as for where a largest number is; expected numbers")
    return np.asarray(value, dtype=np.float32)


def _value(value: Any) -> Value:
    return value if isinstance(value, Data) else _array(value)


# ---- functions


def _add(a: Algebra, input: Any, other: Any, *, alpha: float = 1) -> Data:
    return a.sum(_value(input), _times(a, other, alpha))


def _sub(a: Algebra, input: Any, other: Any, *, alpha: float = 1) -> Data:
    return a.sum(_value(input), _times(a, other, alpha), -1)


def _times(a: Algebra, other: Any, alpha: float) -> Value:
    if alpha == 1:
        return _value(other)
    return _mul(a, a.data(_value(other)), alpha)


def _rsub(a: Algebra, input: Any, other: Any, *, alpha: float = 1) -> Data:
    return _sub(a, other, input, alpha=alpha)


def _mul(a: Algebra, input: Any, other: Any) -> Data:
    return a.product(_value(input), _value(other))


def _div(a: Algebra, input: Any, other: Any, *, rounding_mode: str | None = None) -> Data:
    if rounding_mode is not None:
        raise UnsupportedOpError("a division that rounds is not supported; expected rounding_mode=None")
    return a.quotient(_value(input), _value(other))


def _neg(a: Algebra, input: Data) -> Data:
    return a.each(input, a.builder.negate)


def _abs(a: Algebra, input: Data) -> Data:
    return a.each(input, a.builder.absolute)


def relu(a: Algebra, input: Data, inplace: bool = False) -> Data:
    return a.each(input, a.builder.relu)


def leaky_relu(a: Algebra, input: Data, negative_slope: float = 0.01, inplace: bool = False) -> Data:
    return a.leaky_relu(input, _array(negative_slope))


def prelu(a: Algebra, input: Data, weight: Tensor) -> Data:
    slopes = _array(weight)
    if slopes.size > 1:
        slopes = slopes.reshape(-1, *[1] * (len(input.shape) - 2))
    return a.leaky_relu(input, slopes)


def clamp(a: Algebra, input: Data, min: Any = None, max: Any = None) -> Data:
    if isinstance(min, Data) or isinstance(max, Data):
        raise UnsupportedOpError("a bound of a clamp depends on the network's input; expected constants")
    y: Data = input
    if isinstance(min, Tensor) or isinstance(max, Tensor):
        y = y if min is None else a.extreme([y, _array(min)], largest=True)
        return y if max is None else a.extreme([y, _array(max)], largest=False)
    lo, hi = (None if bound is None else float(np.float32(bound)) for bound in (min, max))
    return a.each(y, lambda node: a.builder.clip(node, lo, hi))


def _clamp_min(a: Algebra, input: Data, min: Any) -> Data:
    return clamp(a, input, min)


def _clamp_max(a: Algebra, input: Data, max: Any) -> Data:
    return clamp(a, input, max=max)


def _hardtanh(a: Algebra, input: Data, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Data:
    return clamp(a, input, min_val, max_val)


def relu6(a: Algebra, input: Data, inplace: bool = False) -> Data:
    return clamp(a, input, 0.0, 6.0)


def _row(function: Activation) -> Callable[..., Data]:
    def handler(a: Algebra, input: Data, inplace: bool = False) -> Data:
        return a.apply(input, function)

    return handler


def gelu(a: Algebra, input: Data, approximate: str = "none") -> Data:
    if approximate not in ("none", "tanh"):
        raise UnsupportedOpError(f"a GELU approximated by '{approximate}' is not supported; expected none or tanh")
    return a.apply(input, GELU if approximate == "none" else GELU_TANH)


def elu(a: Algebra, input: Data, alpha: float = 1.0, inplace: bool = False) -> Data:
    return a.elu(input, float(np.float32(alpha)))


def selu(a: Algebra, input: Data, inplace: bool = False) -> Data:
    return a.scale(a.elu(input, 1.6732632423543772), np.asarray(1.0507009873554805))


def celu(a: Algebra, input: Data, alpha: float = 1.0, inplace: bool = False) -> Data:
    return a.celu(input, float(np.float32(alpha)))


def softplus(a: Algebra, input: Data, beta: float = 1.0, threshold: float = 20.0) -> Data:
    """Without the threshold, above which torch takes x itself, if that is off by at most e⁻¹⁵: by log(1 + e⁻ᵗ) / β."""
    factor = float(np.float32(beta))
    if not factor > 0 or threshold + min(log(factor), 0.0) < 15:
        raise UnsupportedOpError(
            f"a softplus with beta {beta:g} and threshold {threshold:g} is not supported;"
            " expected beta > 0 and threshold >= 15, less log(beta) where that is below 0"
        )
    inner = a.scale(input, np.asarray(factor))
    return a.scale(a.apply(inner, SOFTPLUS), np.asarray(1.0 / factor), exact=factor == 1.0)


def _pow(a: Algebra, input: Data, exponent: Any) -> Data:
    if exponent not in (1, 2, 3):
        raise UnsupportedOpError("a power other than 1, 2 or 3 is not supported")
    return input if exponent == 1 else a.apply(input, SQUARE if exponent == 2 else CUBE)


def _square(a: Algebra, input: Data) -> Data:
    return a.apply(input, SQUARE)


def _maximum(a: Algebra, input: Any, other: Any) -> Data:
    return a.extreme([_value(input), _value(other)], largest=True)


def _minimum(a: Algebra, input: Any, other: Any) -> Data:
    return a.extreme([_value(input), _value(other)], largest=False)


class Extremes(NamedTuple):
    """What torch.max and torch.min return along an axis. Where they are is no number of the network."""

    values: Data
    indices: None = None


def _extreme(kind: str) -> Callable[..., Any]:
    """torch.max and torch.min: of two tensors, of all elements, or along an axis."""

    def handler(
        a: Algebra, input: Any, other: Any = None, keepdim: bool = False, *, dim: int | None = None
    ) -> Data | Extremes:
        axis = other if isinstance(other, int) else dim
        if axis is not None:
            return Extremes(a.reduce(input, [axis], keepdim, kind))
        if other is None:
            return a.reduce(input, None, False, kind)
        return (_maximum if kind == "max" else _minimum)(a, input, other)

    return handler


def _reduction(kind: str) -> Callable[..., Data]:
    def handler(
        a: Algebra, input: Data, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
    ) -> Data:
        if dtype is not None:
            raise UnsupportedOpError("a reduction to another type is not supported; expected dtype=None")
        axes = [dim] if isinstance(dim, int) else list(dim or ())
        return a.reduce(input, axes or None, keepdim, kind)

    return handler


def _cat(a: Algebra, tensors: Sequence[Any], dim: int = 0) -> Data:
    return a.concat([_value(t) for t in tensors], dim)


def _stack(a: Algebra, tensors: Sequence[Any], dim: int = 0) -> Data:
    values = [a.data(_value(t)) for t in tensors]
    axis = dim if dim >= 0 else dim + len(values[0].shape) + 1
    return a.concat([a.move(v, lambda index: np.expand_dims(index, axis)) for v in values], axis)


def pad(a: Algebra, input: Data, pad: Sequence[int], mode: str = "constant", value: float | None = None) -> Data:
    if mode != "constant":
        raise UnsupportedOpError(f"pads of mode '{mode}' are not supported; expected constant")
    pairs = [(int(before), int(after)) for before, after in zip(pad[::2], pad[1::2], strict=True)][::-1]
    return a.pad(input, [*[(0, 0)] * (len(input.shape) - len(pairs)), *pairs], float(np.float32(value or 0.0)))


def linear(a: Algebra, input: Data, weight: Tensor, bias: Tensor | None = None) -> Data:
    y = a.matmul(input, _array(weight).T)
    return y if bias is None else a.shift(y, _array(bias))


def _matmul(a: Algebra, input: Any, other: Any) -> Data:
    return a.matmul(_value(input), _value(other))


def conv(a: Algebra, input: Data, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> Data:
    w = conv_window(weight, *args, **kwargs)
    return a.conv(input, _array(weight), None if bias is None else _array(bias), w)


def conv_transpose(axes: int) -> Callable[..., Data]:
    def handler(
        a: Algebra,
        input: Data,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Data:
        pads = [(p, p) for p in per_axis(padding, axes)]
        b = None if bias is None else _array(bias)
        steps, spread, extra = (per_axis(v, axes) for v in (stride, dilation, output_padding))
        return a.conv_transpose(input, _array(weight), b, steps, pads, spread, groups, extra)

    return handler


def interpolate(
    a: Algebra,
    input: Data,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Data:
    kinds = {"nearest": "nearest", "linear": "linear", "bilinear": "linear"}
    if mode not in kinds or antialias:
        raise UnsupportedOpError(f"resizing by '{mode}' is not supported; expected nearest, linear or bilinear")
    axes, lengths = len(input.shape) - 2, input.shape[2:]
    if size is not None:
        after = per_axis(size, axes)
    else:
        factors = scale_factor if isinstance(scale_factor, list | tuple) else (scale_factor,) * axes
        after = tuple(int(m * s) for m, s in zip(lengths, map(float, factors), strict=True))
    if size is not None or recompute_scale_factor:
        scales = tuple(Fraction(n, m) for n, m in zip(after, lengths, strict=True))
    else:  # which place is nearest shows whether a number was rounded, and torch does not
        scales = tuple(Fraction(float(s if mode == "nearest" else np.float32(s))) for s in factors)
    coordinates = "align_corners" if align_corners else "half_pixel"
    nearest = mode == "nearest"
    changed = {
        axis: Axis(before=m, after=n, scale=s, coordinates="asymmetric" if nearest else coordinates, inverse=nearest)
        for axis, (m, n, s) in enumerate(zip(lengths, after, scales, strict=True), start=2)
    }
    return a.resize(input, changed, kinds[mode], "floor")


def _where(a: Algebra, condition: Any, input: Any, other: Any) -> Data:
    if isinstance(condition, Data):
        raise UnsupportedOpError("a condition depends on the network's input; expected a constant")
    return a.choose(np.asarray(condition), _value(input), _value(other))


def max_pool(axes: int) -> Callable[..., Data]:
    def handler(a: Algebra, input: Data, *args: Any, **kwargs: Any) -> Data:
        return a.max_pool(input, max_pool_window(axes, *args, **kwargs))

    return handler


def average_pool(axes: int) -> Callable[..., Data]:
    def handler(a: Algebra, input: Data, *args: Any, **kwargs: Any) -> Data:
        return a.average_pool(input, average_pool_window(axes, *args, **kwargs))

    return handler


def global_pool(kind: str, axes: int) -> Callable[..., Data]:
    def handler(a: Algebra, input: Data, output_size: Any, return_indices: bool = False) -> Data:
        if return_indices:
            raise UnsupportedOpError("a pool that returns indices is not supported; expected return_indices=False")
        wanted = tuple(input.shape[2 + i] if n is None else n for i, n in enumerate(_sizes(output_size, axes)))
        if wanted == input.shape[2:]:
            return input
        if wanted != (1,) * axes:
            raise UnsupportedOpError(f"adaptive pooling to {list(wanted)} is not supported; expected 1 on each axis")
        return a.reduce(input, range(2, 2 + axes), True, kind)

    return handler


def _sizes(output_size: Any, axes: int) -> tuple[int | None, ...]:
    return tuple(output_size) if isinstance(output_size, list | tuple) else (output_size,) * axes


def batch_norm(
    a: Algebra,
    input: Data,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Data:
    if training or running_mean is None or running_var is None:
        raise UnsupportedOpError("a batch norm without fixed statistics is not supported; expected running ones")
    mean, variance = _array(running_mean), _array(running_var)
    gamma = np.ones_like(mean) if weight is None else _array(weight)
    beta = np.zeros_like(mean) if bias is None else _array(bias)
    return a.batch_norm(input, gamma, beta, mean, variance, float(np.float32(eps)))


def _same(a: Algebra, input: Data, *_: Any, **__: Any) -> Data:
    return input


def _to(a: Algebra, input: Data, *args: Any, **kwargs: Any) -> Data:
    """To float32 or float64, or to a device, which changes no numbers but by rounding."""
    for value in (*args, *kwargs.values()):
        kind = value.dtype if isinstance(value, Tensor) else value
        if isinstance(value, Data) or (isinstance(kind, torch.dtype) and kind not in (torch.float32, torch.float64)):
            raise UnsupportedOpError("a cast to another type is not supported; expected float32 or float64")
    return input


def _dropout(a: Algebra, input: Data, p: float = 0.5, training: bool = True, inplace: bool = False) -> Data:
    if training and p > 0:
        raise UnsupportedOpError("a dropout in training mode is not supported; expected training=False")
    return input


FUNCTIONS: Values = {
    **{row.function: _row(row) for row in ACTIVATIONS.values() if row.function},
    "abs": _abs,
    "adaptive_avg_pool1d": global_pool("mean", 1),
    "adaptive_avg_pool2d": global_pool("mean", 2),
    "adaptive_max_pool1d": global_pool("max", 1),
    "adaptive_max_pool2d": global_pool("max", 2),
    "add": _add,
    "amax": _reduction("max"),
    "amin": _reduction("min"),
    "avg_pool1d": average_pool(1),
    "avg_pool2d": average_pool(2),
    "batch_norm": batch_norm,
    "cat": _cat,
    "celu": celu,
    "clamp": clamp,
    "clamp_max": _clamp_max,
    "clamp_min": _clamp_min,
    "clip": clamp,
    "concat": _cat,
    "conv1d": conv,
    "conv2d": conv,
    "conv_transpose1d": conv_transpose(1),
    "conv_transpose2d": conv_transpose(2),
    "div": _div,
    "dropout": _dropout,
    "elu": elu,
    "gelu": gelu,
    "hardtanh": _hardtanh,
    "iadd": _add,
    "imul": _mul,
    "interpolate": interpolate,
    "isub": _sub,
    "itruediv": _div,
    "leaky_relu": leaky_relu,
    "linear": linear,
    "matmul": _matmul,
    "max": _extreme("max"),
    "max_pool1d": max_pool(1),
    "max_pool2d": max_pool(2),
    "maximum": _maximum,
    "mean": _reduction("mean"),
    "min": _extreme("min"),
    "minimum": _minimum,
    "mm": _matmul,
    "mul": _mul,
    "multiply": _mul,
    "neg": _neg,
    "pad": pad,
    "pow": _pow,
    "prelu": prelu,
    "relu": relu,
    "relu6": relu6,
    "rsub": _rsub,
    "selu": selu,
    "softplus": softplus,
    "square": _square,
    "stack": _stack,
    "sub": _sub,
    "subtract": _sub,
    "sum": _reduction("sum"),
    "truediv": _div,
    "true_divide": _div,
    "where": _where,
}
"""Functions of torch, torch.nn.functional and operator, by name."""

METHODS: Values = {**FUNCTIONS, "float": _same, "double": _same, "detach": _same, "to": _to}
"""Methods of tensors."""

MOVES = frozenset(
    (
        "chunk",
        "clone",
        "contiguous",
        "diagonal",
        "expand",
        "flatten",
        "flip",
        "getitem",
        "index_select",
        "moveaxis",
        "movedim",
        "narrow",
        "permute",
        "pixel_shuffle",
        "pixel_unshuffle",
        "repeat",
        "repeat_interleave",
        "reshape",
        "roll",
        "select",
        "split",
        "squeeze",
        "swapaxes",
        "swapdims",
        "t",
        "tensor_split",
        "tile",
        "transpose",
        "unbind",
        "unflatten",
        "unsqueeze",
        "view",
    )
)
"""What only moves the numbers of its first argument."""

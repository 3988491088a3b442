"""What torch's calls say, in one place for what reads them (`torch_ops`) and what writes them
(`surebound.train.onnx_calls`): which function a module calls, and how the kernel of a convolution or pool moves.
"""

from typing import Any

from torch import Tensor, nn

from surebound.errors import UnsupportedOpError
from surebound.load.window import Window
from surebound.network import ACTIVATIONS
from surebound.network.build import Pads
from surebound.network.op import Shape

_CONV = ("weight", "bias", "stride", "padding", "dilation", "groups")
_MAX_POOL = ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
_AVERAGE_POOL = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad")
_BATCH_NORM = ("running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")

CALLS: dict[type[nn.Module], tuple[str, tuple[str, ...]]] = {
    **{getattr(nn, row.module): (row.function, ()) for row in ACTIVATIONS.values() if row.module and row.function},
    nn.AdaptiveAvgPool1d: ("adaptive_avg_pool1d", ("output_size",)),
    nn.AdaptiveAvgPool2d: ("adaptive_avg_pool2d", ("output_size",)),
    nn.AdaptiveMaxPool1d: ("adaptive_max_pool1d", ("output_size", "return_indices")),
    nn.AdaptiveMaxPool2d: ("adaptive_max_pool2d", ("output_size", "return_indices")),
    nn.AvgPool1d: ("avg_pool1d", _AVERAGE_POOL),
    nn.AvgPool2d: ("avg_pool2d", (*_AVERAGE_POOL, "divisor_override")),
    nn.BatchNorm1d: ("batch_norm", _BATCH_NORM),
    nn.BatchNorm2d: ("batch_norm", _BATCH_NORM),
    nn.CELU: ("celu", ("alpha",)),
    nn.Conv1d: ("conv1d", _CONV),
    nn.Conv2d: ("conv2d", _CONV),
    nn.ConvTranspose1d: ("conv_transpose1d", (*_CONV, "output_padding")),
    nn.ConvTranspose2d: ("conv_transpose2d", (*_CONV, "output_padding")),
    nn.ELU: ("elu", ("alpha",)),
    nn.GELU: ("gelu", ("approximate",)),
    nn.Hardtanh: ("hardtanh", ("min_val", "max_val")),
    nn.LeakyReLU: ("leaky_relu", ("negative_slope",)),
    nn.Linear: ("linear", ("weight", "bias")),
    nn.MaxPool1d: ("max_pool1d", _MAX_POOL),
    nn.MaxPool2d: ("max_pool2d", _MAX_POOL),
    nn.PReLU: ("prelu", ("weight",)),
    nn.ReLU: ("relu", ()),
    nn.ReLU6: ("relu6", ()),
    nn.SELU: ("selu", ()),
    nn.Softplus: ("softplus", ("beta", "threshold")),
    nn.Upsample: ("interpolate", ("size", "scale_factor", "mode", "align_corners", "recompute_scale_factor")),
}
"""Modules as calls of functions of torch.nn.functional, whose parameters they have as attributes of the same names."""


def parameters(m: nn.Module) -> dict[str, Any]:
    """What a module of `CALLS` calls its function with, besides the input."""
    mode = getattr(m, "padding_mode", "zeros")
    if mode != "zeros":
        raise UnsupportedOpError(f"pads of mode '{mode}' are not supported; expected zeros")
    return {name: getattr(m, name) for name in CALLS[type(m)][1]}


def per_axis(value: Any, axes: int) -> Shape:
    """A number for each axis, where torch takes one for all."""
    return (int(value),) * axes if isinstance(value, int) else tuple(int(v) for v in value)


def conv_window(weight: Tensor, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1) -> Window:
    """Of F.conv1d and F.conv2d. # weight: (out, in / groups, *kernel)"""
    kernel, axes = tuple(weight.shape[2:]), weight.ndim - 2
    spread, pads = per_axis(dilation, axes), [(0, 0)] * axes
    if padding == "same":
        reach = [d * (k - 1) for d, k in zip(spread, kernel, strict=True)]
        pads = [(r // 2, r - r // 2) for r in reach]
    elif padding != "valid":
        pads = [(p, p) for p in per_axis(padding, axes)]
    return Window(kernel=kernel, stride=per_axis(stride, axes), pads=pads, dilation=spread, groups=groups)


def max_pool_window(
    axes: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Window:
    """Of F.max_pool1d and F.max_pool2d."""
    if return_indices:
        raise UnsupportedOpError("a pool that returns indices is not supported; expected return_indices=False")
    kernel, steps, pads = _pool(axes, kernel_size, stride, padding)
    return Window(kernel=kernel, stride=steps, pads=pads, dilation=per_axis(dilation, axes), ceil_mode=ceil_mode)


def average_pool_window(
    axes: int,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Window:
    """Of F.avg_pool1d and F.avg_pool2d."""
    if divisor_override is not None:
        raise UnsupportedOpError("a pool with its own divisor is not supported; expected divisor_override=None")
    kernel, steps, pads = _pool(axes, kernel_size, stride, padding)
    return Window(
        kernel=kernel,
        stride=steps,
        pads=pads,
        dilation=(1,) * axes,
        ceil_mode=ceil_mode,
        count_include_pad=count_include_pad,
    )


def _pool(axes: int, kernel: Any, stride: Any, padding: Any) -> tuple[Shape, Shape, Pads]:
    """Sizes, steps (the sizes if there are none) and pads."""
    sizes = per_axis(kernel, axes)
    return sizes, per_axis(stride, axes) if stride else sizes, [(p, p) for p in per_axis(padding, axes)]

"""Torch's modules and functions as ONNX nodes, in tables by type and by name: what `surebound.train.export` writes.

A handler returns the name of its result, or None where ONNX has nothing that means the same. Tensors that depend on the
input are names; weights and constants are tensors.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, final

import torch
from torch import Tensor, nn

from surebound.network.architectures import Normalise

BatchNorm = nn.BatchNorm1d | nn.BatchNorm2d


@final
@dataclass(frozen=True)
class Emit:
    """Appends nodes for one call."""

    name: str
    add: Callable[[str, str, Sequence[str], dict[str, Tensor], Any], str]

    def __call__(self, op: str, *inputs: str, weights: dict[str, Tensor] | None = None, **attributes: Any) -> str:
        """The call itself."""
        return self.add(op, self.name, inputs, weights or {}, attributes)

    def part(self, name: str, op: str, *inputs: str, weights: dict[str, Tensor] | None = None) -> str:
        """A step on the way."""
        return self.add(op, f"{self.name}.{name}", inputs, weights or {}, {})

    def constant(self, name: str, number: float) -> dict[str, Tensor]:
        return {f"{self.name}.{name}": torch.tensor(number, device="cpu")}


def _normalise(e: Emit, m: Normalise, x: str) -> str:
    # With an axis for the batch, like the input: α,β-CROWN asserts as many axes as that has.
    centred = e.part("centred", "Sub", x, weights={f"{e.name}.mean": m.mean[None]})
    return e("Div", centred, weights={f"{e.name}.std": m.std[None]})


def _affine(name: str, m: nn.Conv1d | nn.Conv2d | nn.Linear) -> dict[str, Tensor]:
    return {f"{name}.weight": m.weight} | ({} if m.bias is None else {f"{name}.bias": m.bias})


def _conv(e: Emit, m: nn.Conv1d | nn.Conv2d, x: str) -> str | None:
    if m.padding_mode != "zeros" or isinstance(m.padding, str):
        return None
    return e(
        "Conv",
        x,
        weights=_affine(e.name, m),
        kernel_shape=m.kernel_size,
        strides=m.stride,
        pads=[*m.padding, *m.padding],
        dilations=m.dilation,
        group=m.groups,
    )


def _linear(e: Emit, m: nn.Linear, x: str) -> str:
    return e("Gemm", x, weights=_affine(e.name, m), transB=1)


def _batch_norm(e: Emit, m: BatchNorm, x: str) -> str | None:
    """Scale, shift, mean and variance, in the order of ONNX."""
    if m.running_mean is None or m.running_var is None:
        return None
    scale = m.weight if m.affine else torch.ones_like(m.running_mean)
    shift = m.bias if m.affine else torch.zeros_like(m.running_mean)
    weights = {"weight": scale, "bias": shift, "running_mean": m.running_mean, "running_var": m.running_var}
    return e("BatchNormalization", x, weights={f"{e.name}.{key}": w for key, w in weights.items()}, epsilon=m.eps)


def _flatten(e: Emit, x: str, start_dim: int = 0, end_dim: int = -1) -> str | None:
    return e("Flatten", x, axis=1) if (start_dim, end_dim) == (1, -1) else None


def _prelu(e: Emit, m: nn.PReLU, x: str) -> str | None:
    """Slopes for each channel of an image."""
    return e("PRelu", x, weights={f"{e.name}.weight": m.weight.reshape(-1, 1, 1)})


def _leaky_relu(e: Emit, x: str, negative_slope: float = 0.01, inplace: bool = False) -> str:
    return e("LeakyRelu", x, alpha=negative_slope)


def _simple(op: str) -> Callable[..., str]:
    def handler(e: Emit, x: str, inplace: bool = False) -> str:
        return e(op, x)

    return handler


def _silu(e: Emit, x: str, inplace: bool = False) -> str:
    return e("Mul", x, e.part("gate", "Sigmoid", x))


def _gelu(e: Emit, x: str, approximate: str = "none") -> str | None:
    if approximate != "none":
        return None
    bent = e.part("erf", "Erf", e.part("scaled", "Div", x, weights=e.constant("root", sqrt(2.0))))
    gate = e.part("gate", "Mul", x, e.part("raised", "Add", bent, weights=e.constant("one", 1.0)))
    return e("Mul", gate, weights=e.constant("half", 0.5))


def _elu(e: Emit, x: str, alpha: float = 1.0, inplace: bool = False) -> str:
    return e("Elu", x, alpha=alpha)


def _softplus(e: Emit, x: str, beta: float = 1.0, threshold: float = 20.0) -> str | None:
    return e("Softplus", x) if beta == 1 else None


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


def _max_pool(
    e: Emit,
    x: str,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> str | None:
    if ceil_mode or return_indices:
        return None
    kernel, pads = _pair(kernel_size), _pair(padding)
    steps = _pair(stride) if stride else kernel
    return e("MaxPool", x, kernel_shape=kernel, strides=steps, pads=pads * 2, dilations=_pair(dilation))


def _average_pool(
    e: Emit,
    x: str,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> str | None:
    if ceil_mode or divisor_override is not None:
        return None
    kernel, pads = _pair(kernel_size), _pair(padding)
    steps, counts = _pair(stride) if stride else kernel, int(count_include_pad)
    return e("AveragePool", x, kernel_shape=kernel, strides=steps, pads=pads * 2, count_include_pad=counts)


def _global_average(e: Emit, x: str, output_size: Any) -> str | None:
    return e("GlobalAveragePool", x) if _pair(output_size) == [1, 1] else None


def _mean(e: Emit, x: str, dim: Any = None, keepdim: bool = False) -> str | None:
    axes = [dim] if isinstance(dim, int) else list(dim or ())
    return e("ReduceMean", x, axes=axes, keepdims=int(keepdim)) if axes and 0 not in axes else None


def _arithmetic(op: str) -> Callable[..., str | None]:
    """Of two tensors, or of a tensor and a constant after it."""

    def handler(e: Emit, a: Any, b: Any) -> str | None:
        if isinstance(a, str) and isinstance(b, str):
            return e(op, a, b)
        if not isinstance(a, str):
            return None
        constant = b if isinstance(b, Tensor) else torch.tensor(float(b), device="cpu")
        return e(op, a, weights={f"{e.name}.constant": constant.float()})

    return handler


def _cat(e: Emit, tensors: Sequence[Any], dim: int = 0) -> str | None:
    return e("Concat", *tensors, axis=dim) if all(isinstance(t, str) for t in tensors) and dim else None


def _size(e: Emit, x: str, dim: int | None = None) -> int | None:
    """The batch's size, which only a view asks for."""
    return -1 if dim == 0 else None


def _view(e: Emit, x: str, *shape: Any) -> str | None:
    return e("Flatten", x, axis=1) if len(shape) == 2 and shape[1] == -1 else None


def _function_linear(e: Emit, x: str, weight: Tensor, bias: Tensor | None = None) -> str:
    weights = {"weight": weight} | ({} if bias is None else {"bias": bias})
    return e("Gemm", x, weights={f"{e.name}.{key}": w for key, w in weights.items()}, transB=1)


def _function_conv(
    e: Emit,
    x: str,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> str | None:
    if isinstance(padding, str):
        return None
    weights = {"weight": weight} | ({} if bias is None else {"bias": bias})
    named, pads = {f"{e.name}.{key}": w for key, w in weights.items()}, _pair(padding) * 2
    return e("Conv", x, weights=named, strides=_pair(stride), pads=pads, dilations=_pair(dilation), group=groups)


def _same(e: Emit, m: nn.Module, x: str) -> str:
    return x


Handler = Callable[..., Any]

MODULES: dict[type[nn.Module], Handler] = {
    Normalise: _normalise,
    nn.AdaptiveAvgPool2d: lambda e, m, x: _global_average(e, x, m.output_size),
    nn.AvgPool2d: lambda e, m, x: _average_pool(
        e, x, m.kernel_size, m.stride, m.padding, m.ceil_mode, m.count_include_pad, m.divisor_override
    ),
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.Conv1d: _conv,
    nn.Conv2d: _conv,
    nn.Dropout: _same,
    nn.ELU: lambda e, m, x: _elu(e, x, m.alpha),
    nn.Flatten: lambda e, m, x: _flatten(e, x, m.start_dim, m.end_dim),
    nn.GELU: lambda e, m, x: _gelu(e, x, m.approximate),
    nn.Identity: _same,
    nn.LeakyReLU: lambda e, m, x: _leaky_relu(e, x, m.negative_slope),
    nn.Linear: _linear,
    nn.MaxPool2d: lambda e, m, x: _max_pool(
        e, x, m.kernel_size, m.stride, m.padding, m.dilation, m.ceil_mode, m.return_indices
    ),
    nn.PReLU: _prelu,
    nn.ReLU: lambda e, m, x: e("Relu", x),
    nn.SiLU: lambda e, m, x: _silu(e, x),
    nn.Sigmoid: lambda e, m, x: e("Sigmoid", x),
    nn.Softplus: lambda e, m, x: _softplus(e, x, m.beta, m.threshold),
    nn.Tanh: lambda e, m, x: e("Tanh", x),
}
"""Modules, as nodes."""

FUNCTIONS: dict[str, Handler] = {
    "adaptive_avg_pool2d": _global_average,
    "add": _arithmetic("Add"),
    "avg_pool2d": _average_pool,
    "cat": _cat,
    "conv2d": _function_conv,
    "div": _arithmetic("Div"),
    "elu": _elu,
    "flatten": _flatten,
    "gelu": _gelu,
    "iadd": _arithmetic("Add"),
    "imul": _arithmetic("Mul"),
    "isub": _arithmetic("Sub"),
    "itruediv": _arithmetic("Div"),
    "leaky_relu": _leaky_relu,
    "linear": _function_linear,
    "max_pool2d": _max_pool,
    "mean": _mean,
    "mul": _arithmetic("Mul"),
    "relu": _simple("Relu"),
    "reshape": _view,
    "sigmoid": _simple("Sigmoid"),
    "silu": _silu,
    "size": _size,
    "softplus": _softplus,
    "sub": _arithmetic("Sub"),
    "tanh": _simple("Tanh"),
    "truediv": _arithmetic("Div"),
    "view": _view,
}
"""Functions of torch, torch.nn.functional and operator, and methods of tensors, by name."""

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

from surebound.load.torch_calls import (
    CALLS,
    average_pool_window,
    conv_window,
    max_pool_window,
    parameters,
    per_axis,
)
from surebound.load.window import Window
from surebound.network import ACTIVATIONS
from surebound.network.architectures import Normalise


@final
@dataclass(frozen=True)
class Emit:
    """Appends nodes for one call."""

    name: str
    axes: int  # of its result, with the batch
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


def _affine(e: Emit, weight: Tensor, bias: Tensor | None) -> dict[str, Tensor]:
    return {f"{e.name}.weight": weight} | ({} if bias is None else {f"{e.name}.bias": bias})


def _linear(e: Emit, x: str, weight: Tensor, bias: Tensor | None = None) -> str:
    return e("Gemm", x, weights=_affine(e, weight, bias), transB=1)


def _moved(e: Emit, op: str, x: str, w: Window, weights: dict[str, Tensor] | None = None, **more: Any) -> str:
    """A kernel that moves over an image."""
    pads = [*(before for before, _ in w.pads), *(after for _, after in w.pads)]
    return e(op, x, weights=weights, kernel_shape=w.kernel, strides=w.stride, pads=pads, **more)


def _conv(e: Emit, input: str, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any) -> str:
    w = conv_window(weight, *args, **kwargs)
    return _moved(e, "Conv", input, w, _affine(e, weight, bias), dilations=w.dilation, group=w.groups)


def _max_pool(axes: int) -> Callable[..., str | None]:
    def handler(e: Emit, input: str, *args: Any, **kwargs: Any) -> str | None:
        w = max_pool_window(axes, *args, **kwargs)
        return None if w.ceil_mode else _moved(e, "MaxPool", input, w, dilations=w.dilation)

    return handler


def _average_pool(axes: int) -> Callable[..., str | None]:
    def handler(e: Emit, input: str, *args: Any, **kwargs: Any) -> str | None:
        w = average_pool_window(axes, *args, **kwargs)
        counts = int(w.count_include_pad)
        return None if w.ceil_mode else _moved(e, "AveragePool", input, w, count_include_pad=counts)

    return handler


def _global_average(axes: int) -> Callable[..., str | None]:
    def handler(e: Emit, input: str, output_size: Any) -> str | None:
        return e("GlobalAveragePool", input) if per_axis(output_size, axes) == (1,) * axes else None

    return handler


def _batch_norm(
    e: Emit,
    x: str,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> str | None:
    """Scale, shift, mean and variance, in the order of ONNX."""
    if training or running_mean is None or running_var is None:
        return None
    scale = torch.ones_like(running_mean) if weight is None else weight
    shift = torch.zeros_like(running_mean) if bias is None else bias
    weights = {"weight": scale, "bias": shift, "running_mean": running_mean, "running_var": running_var}
    return e("BatchNormalization", x, weights={f"{e.name}.{key}": w for key, w in weights.items()}, epsilon=eps)


def _flatten(e: Emit, x: str, start_dim: int = 0, end_dim: int = -1) -> str | None:
    return e("Flatten", x, axis=1) if (start_dim, end_dim) == (1, -1) else None


def _prelu(e: Emit, x: str, weight: Tensor) -> str:
    """A slope for all, or for each entry of the axis after the batch."""
    return e("PRelu", x, weights={f"{e.name}.weight": weight.reshape(-1, *[1] * (e.axes - 2))})


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


def _same(e: Emit, m: nn.Module, x: str) -> str:
    return x


Handler = Callable[..., Any]

FUNCTIONS: dict[str, Handler] = {
    **{row.function: _simple(row.onnx) for row in ACTIVATIONS.values() if row.function and row.onnx},
    "adaptive_avg_pool1d": _global_average(1),
    "adaptive_avg_pool2d": _global_average(2),
    "add": _arithmetic("Add"),
    "avg_pool1d": _average_pool(1),
    "avg_pool2d": _average_pool(2),
    "batch_norm": _batch_norm,
    "cat": _cat,
    "conv1d": _conv,
    "conv2d": _conv,
    "div": _arithmetic("Div"),
    "elu": _elu,
    "flatten": _flatten,
    "gelu": _gelu,
    "iadd": _arithmetic("Add"),
    "imul": _arithmetic("Mul"),
    "isub": _arithmetic("Sub"),
    "itruediv": _arithmetic("Div"),
    "leaky_relu": _leaky_relu,
    "linear": _linear,
    "max_pool1d": _max_pool(1),
    "max_pool2d": _max_pool(2),
    "mean": _mean,
    "mul": _arithmetic("Mul"),
    "prelu": _prelu,
    "relu": _simple("Relu"),
    "reshape": _view,
    "silu": _silu,
    "size": _size,
    "softplus": _softplus,
    "sub": _arithmetic("Sub"),
    "truediv": _arithmetic("Div"),
    "view": _view,
}
"""Functions of torch, torch.nn.functional and operator, and methods of tensors, by name."""


def _called(kind: type[nn.Module]) -> Handler:
    function = FUNCTIONS[CALLS[kind][0]]
    return lambda e, m, x: function(e, x, **parameters(m))


MODULES: dict[type[nn.Module], Handler] = {
    **{kind: _called(kind) for kind, (function, _) in CALLS.items() if function in FUNCTIONS},
    Normalise: _normalise,
    nn.Dropout: _same,
    nn.Flatten: lambda e, m, x: _flatten(e, x, m.start_dim, m.end_dim),
    nn.Identity: _same,
}
"""Modules, as nodes."""

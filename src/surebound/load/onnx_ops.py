"""ONNX operations, one small handler each, in a table by name.

A handler sees its node as a `Call` of which at least one input depends on the network's input; nodes that read only
constants are evaluated beforehand, and nodes that only move numbers are run on positions (`MOVES`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.limits import check_elements
from surebound.load.algebra import Algebra, Array, Data, Value
from surebound.network.build import Pads
from surebound.network.op import Shape

FLOAT, DOUBLE = 1, 11  # onnx.TensorProto's numbers
FLOATING = (FLOAT, DOUBLE, 10, 16)  # and float16, bfloat16


@dataclass(frozen=True)
class Call:
    """One node: its inputs (None where an optional one is left out) and attributes."""

    algebra: Algebra
    inputs: list[Value | None]
    attributes: dict[str, Any]
    opset: int

    @property
    def x(self) -> Data:
        """The first input, which must depend on the network's input."""
        return self.data(0)

    def given(self, i: int) -> bool:
        """Whether an input is there."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> Value:
        """An input that must be there."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise NetworkError(f"input {i} is missing")
        return value

    def data(self, i: int) -> Data:
        """An input as a tensor of the network."""
        return self.algebra.data(self.value(i))

    def constant(self, i: int) -> Array:
        """An input that must be constant."""
        value = self.value(i)
        if isinstance(value, Data):
            raise UnsupportedOpError(f"input {i} depends on the network's input; expected a constant")
        return value

    def optional(self, i: int) -> Array | None:
        """An input that must be constant if it is there."""
        return self.constant(i) if self.given(i) else None

    def integers(self, i: int, attribute: str) -> list[int] | None:
        """What newer opsets give as an input and older ones as an attribute."""
        given = self.optional(i)
        if given is not None:
            return [int(v) for v in given.reshape(-1)]
        listed = self.attributes.get(attribute)
        return None if listed is None else [int(v) for v in listed]


Handler = Callable[[Call], Value]


def _add(call: Call) -> Value:
    return call.algebra.sum(call.value(0), call.value(1))


def _sub(call: Call) -> Value:
    return call.algebra.sum(call.value(0), call.value(1), -1)


def _mul(call: Call) -> Value:
    return call.algebra.product(call.value(0), call.value(1))


def _div(call: Call) -> Value:
    return call.algebra.quotient(call.value(0), call.value(1))


def _sum(call: Call) -> Value:
    total: Value = call.value(0)
    for i in range(1, len(call.inputs)):
        total = call.algebra.sum(call.algebra.data(total), call.value(i))
    return total


def _neg(call: Call) -> Value:
    return call.algebra.each(call.x, call.algebra.builder.negate)


def _abs(call: Call) -> Value:
    return call.algebra.each(call.x, call.algebra.builder.absolute)


def _max(call: Call) -> Value:
    return call.algebra.extreme([call.value(i) for i in range(len(call.inputs))], largest=True)


def _min(call: Call) -> Value:
    return call.algebra.extreme([call.value(i) for i in range(len(call.inputs))], largest=False)


def _relu(call: Call) -> Value:
    return call.algebra.each(call.x, call.algebra.builder.relu)


def _leaky_relu(call: Call) -> Value:
    return call.algebra.leaky_relu(call.x, np.asarray(call.attributes.get("alpha", np.float32(0.01))))


def _prelu(call: Call) -> Value:
    return call.algebra.leaky_relu(call.x, call.constant(1))


def _clip(call: Call) -> Value:
    bounds: list[Array | None] = [call.optional(1), call.optional(2)]
    if call.opset < 11:
        bounds = [np.asarray(b) if (b := call.attributes.get(k)) is not None else None for k in ("min", "max")]
    if any(b is not None and b.size != 1 for b in bounds):
        raise NetworkError("a bound is not a single number")
    lo, hi = (None if b is None else float(b.reshape(-1)[0]) for b in bounds)
    return call.algebra.each(call.x, lambda node: call.algebra.builder.clip(node, lo, hi))


def _matmul(call: Call) -> Value:
    return call.algebra.matmul(call.value(0), call.value(1))


def _gemm(call: Call) -> Value:
    algebra = call.algebra
    sides = [call.value(0), call.value(1)]
    if any(len(side.shape) != 2 for side in sides):
        raise NetworkError(f"factors of shapes {[list(s.shape) for s in sides]}; expected two axes each")
    for i, flag in enumerate(("transA", "transB")):
        side = sides[i]
        if call.attributes.get(flag, 0):
            sides[i] = algebra.move(side, np.transpose) if isinstance(side, Data) else side.T
    y = _times(algebra, algebra.matmul(*sides), call.attributes.get("alpha", 1.0))
    if not call.given(2):
        return y
    c = call.value(2)
    beta = call.attributes.get("beta", 1.0)
    if isinstance(c, Data) or c.dtype == np.float64:
        return algebra.sum(y, _times(algebra, algebra.data(c), beta) if beta != 1.0 else c)
    # A product of two float32 numbers is exact in float64.
    return algebra.shift(y, c.astype(np.float64) * beta)


def _times(algebra: Algebra, x: Data, factor: float) -> Data:
    return x if factor == 1.0 else algebra.scale(x, np.asarray(factor))


def _conv(call: Call) -> Value:
    weight = call.constant(1)
    window = _window(call, tuple(weight.shape[2:]))
    if window.kernel != weight.shape[2:]:
        raise NetworkError(f"kernel_shape is {list(window.kernel)}; expected {list(weight.shape[2:])}, as the weights")
    return call.algebra.conv(
        call.x,
        weight,
        call.optional(2),
        window.stride,
        window.pads,
        window.dilation,
        int(call.attributes.get("group", 1)),
    )


def _max_pool(call: Call) -> Value:
    w = _window(call)
    return call.algebra.max_pool(call.x, w.kernel, w.stride, w.pads, w.dilation, w.ceil_mode)


def _average_pool(call: Call) -> Value:
    w = _window(call)
    include = bool(call.attributes.get("count_include_pad", 0))
    return call.algebra.average_pool(call.x, w.kernel, w.stride, w.pads, w.dilation, w.ceil_mode, include)


@dataclass(frozen=True)
class _Window:
    kernel: Shape
    stride: Shape
    pads: Pads
    dilation: Shape
    ceil_mode: bool


def _window(call: Call, kernel: Shape | None = None) -> _Window:
    """The window that convolutions and pools share."""
    a = call.attributes
    kernel = tuple(a.get("kernel_shape") or kernel or ())
    axes = len(kernel)
    stride = tuple(a.get("strides") or (1,) * axes)
    dilation = tuple(a.get("dilations") or (1,) * axes)
    flat = list(a.get("pads") or [0] * (2 * axes))
    lengths = call.x.shape[2:]
    if not axes or {len(stride), len(dilation), len(lengths)} != {axes} or len(flat) != 2 * axes:
        raise NetworkError(f"a window of {axes} axes does not fit a tensor of shape {list(call.x.shape)}")
    if min(*kernel, *stride, *dilation) < 1 or min(flat) < 0:
        raise NetworkError("a kernel size, stride or dilation is below 1, or a pad below 0")
    mode = a.get("auto_pad", b"NOTSET").decode()
    pads = list(zip(flat[:axes], flat[axes:], strict=True))
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        missing = [
            max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
            for n, k, s, d in zip(lengths, kernel, stride, dilation, strict=True)
        ]
        pads = [(m // 2, m - m // 2) if mode == "SAME_UPPER" else (m - m // 2, m // 2) for m in missing]
    elif mode == "VALID":
        pads = [(0, 0)] * axes
    elif mode != "NOTSET":
        raise NetworkError(f"auto_pad is '{mode}'; expected NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    return _Window(kernel, stride, pads, dilation, bool(a.get("ceil_mode", 0)))


def _batch_norm(call: Call) -> Value:
    if call.attributes.get("training_mode", 0) or not call.attributes.get("spatial", 1):
        raise UnsupportedOpError("a batch norm in training mode, or one without shared channels, is not supported")
    epsilon = float(call.attributes.get("epsilon", np.float32(1e-5)))
    gamma, beta, mean, variance = (call.constant(i) for i in range(1, 5))
    return call.algebra.batch_norm(call.x, gamma, beta, mean, variance, epsilon)


def _reduce(kind: str) -> Handler:
    def handler(call: Call) -> Value:
        axes = call.integers(1, "axes")
        if not axes and call.attributes.get("noop_with_empty_axes", 0):
            return call.x
        return call.algebra.reduce(call.x, axes or None, bool(call.attributes.get("keepdims", 1)), kind)

    return handler


def _global(kind: str) -> Handler:
    def handler(call: Call) -> Value:
        return call.algebra.reduce(call.x, range(2, len(call.x.shape)), True, kind)

    return handler


def _concat(call: Call) -> Value:
    values = [call.value(i) for i in range(len(call.inputs))]
    return call.algebra.concat(values, int(call.attributes.get("axis", 1)))


def _pad(call: Call) -> Value:
    mode = call.attributes.get("mode", b"constant").decode()
    flat = call.integers(1, "pads")
    fill = call.optional(2) if call.opset >= 11 else np.asarray(call.attributes.get("value", 0.0))
    rank = len(call.x.shape)
    axes = [int(a) for a in call.constant(3).reshape(-1)] if call.given(3) else list(range(rank))
    if any(not -rank <= a < rank for a in axes):
        raise NetworkError(f"axes {axes} do not exist in the shape {list(call.x.shape)}")
    if flat is None or len(flat) != 2 * len(axes):
        raise NetworkError(f"{len(flat or ())} pads for {len(axes)} axes; expected two for each axis")
    pads = [(0, 0)] * rank
    for axis, before, after in zip(axes, flat[: len(axes)], flat[len(axes) :], strict=True):
        pads[axis] = (before, after)
    check_elements(n + abs(before) + abs(after) for n, (before, after) in zip(call.x.shape, pads, strict=True))
    if mode == "constant":
        return call.algebra.pad(call.x, pads, 0.0 if fill is None else float(fill.reshape(-1)[0]))
    if mode == "edge":
        return call.algebra.move(call.x, lambda index: np.pad(index, pads, mode="edge"))
    if mode == "reflect":
        return call.algebra.move(call.x, lambda index: np.pad(index, pads, mode="reflect"))
    raise UnsupportedOpError(f"pads of mode '{mode}' are not supported; expected constant, edge or reflect")


def _identity(call: Call) -> Value:
    return call.x


def _dropout(call: Call) -> Value:
    training = call.optional(2)
    if training is not None and bool(training):
        raise UnsupportedOpError("a dropout in training mode is not supported; expected a network for inference")
    return call.x


def _cast(call: Call) -> Value:
    if call.attributes.get("to") not in (FLOAT, DOUBLE):
        raise UnsupportedOpError("a cast to another type than float32 or float64 is not supported")
    return call.x


def _shape(call: Call) -> Value:
    start, end = call.attributes.get("start", 0), call.attributes.get("end")
    return np.array(call.x.shape[start:end], dtype=np.int64)


def _size(call: Call) -> Value:
    return np.array(prod(call.x.shape), dtype=np.int64)


HANDLERS: dict[str, Handler] = {
    "Abs": _abs,
    "Add": _add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": _conv,
    "Div": _div,
    "Dropout": _dropout,
    "Gemm": _gemm,
    "GlobalAveragePool": _global("mean"),
    "GlobalMaxPool": _global("max"),
    "Identity": _identity,
    "LeakyRelu": _leaky_relu,
    "MatMul": _matmul,
    "Max": _max,
    "MaxPool": _max_pool,
    "Min": _min,
    "Mul": _mul,
    "Neg": _neg,
    "PRelu": _prelu,
    "Pad": _pad,
    "ReduceMax": _reduce("max"),
    "ReduceMean": _reduce("mean"),
    "ReduceMin": _reduce("min"),
    "ReduceSum": _reduce("sum"),
    "Relu": _relu,
    "Shape": _shape,
    "Size": _size,
    "Sub": _sub,
    "Sum": _sum,
}
"""What is computed from tensors of the network."""

MOVES = frozenset(
    (
        "DepthToSpace",
        "Expand",
        "Flatten",
        "Gather",
        "Reshape",
        "Slice",
        "SpaceToDepth",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    )
)
"""What only moves the numbers of its first input."""

SUPPORTED = tuple(sorted((*HANDLERS, *MOVES, "Constant", "ConstantOfShape")))

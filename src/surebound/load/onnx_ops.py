"""ONNX operations, one small handler each, in a table by name.

A handler sees its node as a `Call` of which at least one input depends on the network's input; nodes that read only
constants are evaluated beforehand, and nodes that only move numbers are run on positions (`MOVES`).
"""

from dataclasses import replace
from math import prod

import numpy as np

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.limits import check_elements
from surebound.load.algebra import Algebra, Array, Data, Value
from surebound.load.onnx_activations import ACTIVATION_HANDLERS
from surebound.load.onnx_call import Call, Handler, window
from surebound.load.onnx_images import IMAGE_HANDLERS

FLOAT, DOUBLE = 1, 11  # onnx.TensorProto's numbers
FLOATING = (FLOAT, DOUBLE, 10, 16)  # and float16, bfloat16


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
    w = window(call, tuple(weight.shape[2:]))
    if w.kernel != weight.shape[2:]:
        raise NetworkError(f"kernel_shape is {list(w.kernel)}; expected {list(weight.shape[2:])}, as the weights")
    return call.algebra.conv(call.x, weight, call.optional(2), replace(w, groups=int(call.attributes.get("group", 1))))


def _max_pool(call: Call) -> Value:
    w = window(call)
    return call.algebra.max_pool(call.x, w)


def _average_pool(call: Call) -> Value:
    w = replace(window(call), count_include_pad=bool(call.attributes.get("count_include_pad", 0)))
    return call.algebra.average_pool(call.x, w)


def _batch_norm(call: Call) -> Value:
    training = call.attributes.get("training_mode", 0) or call.outputs > 1  # the latter before opset 14
    if training or not call.attributes.get("spatial", 1):
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


def _where(call: Call) -> Value:
    return call.algebra.choose(call.constant(0), call.value(1), call.value(2))


def _shape(call: Call) -> Value:
    start, end = call.attributes.get("start", 0), call.attributes.get("end")
    return np.array(call.x.shape[start:end], dtype=np.int64)


def _size(call: Call) -> Value:
    return np.array(prod(call.x.shape), dtype=np.int64)


HANDLERS: dict[str, Handler] = {
    **ACTIVATION_HANDLERS,
    **IMAGE_HANDLERS,
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
    "Where": _where,
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

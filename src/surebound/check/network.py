"""Reads an ONNX file as affine operations and ReLUs, in the order of the file.

The network means exact real arithmetic over the numbers that the file stores. A batch axis is a batch of 1. What only
moves numbers is done on an array of positions; a maximum becomes ReLUs, max(a, b) = b + relu(a − b). Operations that
are not in the tables at the end are refused.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from surebound.check.arithmetic import LIMIT, Arithmetic, Array, CheckError
from surebound.check.ops import Conv, Input, Linear, Op, Pick, Relu, Scale, Shape, Sum

ELEMENTS = 2**24  # of one tensor
NODES = 2**16
STANDARD = ("", "ai.onnx")


class Network:
    """Operations in an order in which they can be computed; node 0 is the input. Neurons are numbered by layers."""

    def __init__(self, ops: list[Op], reads: list[tuple[int, ...]], output: int) -> None:
        self.ops, self.reads, self.output = ops, reads, output
        self.sizes = [prod(op.shape) for op in ops]
        self.layers = [i for i, op in enumerate(ops) if isinstance(op, Relu)]  # the ReLUs
        self.layer_of = {node: layer for layer, node in enumerate(self.layers)}
        self.widths = [self.sizes[i] for i in self.layers]
        self.first = np.cumsum([0, *self.widths])  # number of each layer's first neuron, and of all neurons


class Data(NamedTuple):
    """A tensor that depends on the input: a node's elements under a shape, with the batch."""

    node: int
    shape: Shape


Value = Data | Array


def read_network(content: bytes, inputs: int, arithmetic: Arithmetic) -> Network:
    """The network of an ONNX file, for a property over so many inputs."""
    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf has no error of its own
        raise CheckError("the network is not an ONNX file, or is cut short") from error
    versions = {o.version for o in model.opset_import if o.domain in STANDARD}
    if len(versions) != 1 or min(versions) < 7:
        raise CheckError(f"the network uses ONNX opsets {sorted(versions)}; expected one, 7 or later")
    if model.functions or model.graph.sparse_initializer or len(model.graph.node) > NODES:
        raise CheckError(f"the network has functions, sparse weights or more than {NODES:,} nodes; expected none of it")
    return _Reader(model.graph, arithmetic).read(inputs)


def _inner(shape: Shape) -> Shape:
    """The shape without the batch."""
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape or (1,)


def _array(tensor: onnx.TensorProto) -> Array:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise CheckError("the network keeps weights in other files; a proof covers one file")
    return numpy_helper.to_array(tensor)


def _positions(shape: Shape) -> Array:
    return np.arange(prod(shape), dtype=np.int64).reshape(shape)


def _joint(*shapes: Shape) -> Shape:
    joint = np.broadcast_shapes(*shapes)
    if prod(joint) > ELEMENTS:
        raise CheckError(f"a tensor of shape {list(joint)}; expected at most {ELEMENTS:,} elements")
    return joint


class _Reader:
    """Walks the graph once; a tensor is a `Data`, or a constant."""

    def __init__(self, graph: onnx.GraphProto, arithmetic: Arithmetic) -> None:
        self.graph, self.arithmetic = graph, arithmetic
        self.values: dict[str, Value] = {}
        self.ops: list[Op] = []
        self.reads: list[tuple[int, ...]] = []

    def read(self, inputs: int) -> Network:
        for tensor in self.graph.initializer:
            try:
                self.define(tensor.name, _array(tensor))
            except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
                raise CheckError(f"the weights {tensor.name[:80]!r} are damaged: {error}") from error
        sources = [i for i in self.graph.input if i.name not in self.values]
        if len(sources) != 1 or len(self.graph.output) != 1:
            raise CheckError(f"the network has {len(sources)} inputs, {len(self.graph.output)} outputs; expected one")
        kind = sources[0].type.tensor_type
        shape = tuple(d.dim_value for d in kind.shape.dim)
        if shape and (shape[0] < 1 or prod(shape) != inputs):
            shape = (1, *shape[1:])  # a batch
        if len(shape) > 8 or prod(shape) != inputs or min(shape, default=1) < 1 or kind.elem_type not in (1, 11):
            raise CheckError(f"the network's input has the shape {list(shape[:9])}; expected {inputs} real numbers")
        self.define(sources[0].name, Data(self.add(Input(_inner(shape), ())), shape))
        for node in self.graph.node:
            try:
                with np.errstate(all="ignore"):
                    self.define(node.output[0], self.evaluate(node))
            except Exception as error:  # NumPy and onnx complain about malformed nodes in many ways
                raise CheckError(f"node {node.name[:80]!r} ({node.op_type[:40]}): {str(error)[:200]}") from error
        result = self.values.get(self.graph.output[0].name)
        if not isinstance(result, Data):
            raise CheckError("the network's output does not depend on its input")
        return self.without_unused(result.node)

    def define(self, name: str, value: Value) -> None:
        if name in self.values:
            raise CheckError(f"the network defines the tensor {name[:80]!r} twice; expected it once")
        self.values[name] = value

    def evaluate(self, node: onnx.NodeProto) -> Value:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        missing = [name for name in node.input if name and name not in self.values]
        if missing or node.domain not in STANDARD or len(attributes) != len(node.attribute) or any(node.output[1:]):
            raise CheckError("it reads what nothing before it computes, or has outputs or attributes of its own")
        call = Call(self, [self.values[name] if name else None for name in node.input], attributes)
        if node.op_type in MOVES:
            return self.move(call.value(0), lambda x: MOVES[node.op_type](call, x))
        if node.op_type not in OPERATIONS:
            raise CheckError("there are no proofs for this operation")
        return OPERATIONS[node.op_type](call)

    def without_unused(self, output: int) -> Network:
        """The network without what does not lead to the output."""
        needed = {0, output}
        for i in range(output, 0, -1):
            needed.update(self.reads[i] if i in needed else ())
        number = {old: new for new, old in enumerate(sorted(needed))}
        reads = [tuple(number[j] for j in self.reads[i]) for i in number]
        return Network([self.ops[i] for i in number], reads, number[output])

    # ---- operations on tensors of the network

    def add(self, op: Op, *reads: int, bias: Array | None = None) -> int:
        if not 0 < prod(op.shape) <= ELEMENTS or len(self.ops) > NODES:
            raise CheckError(f"a tensor has the shape {list(op.shape)}, or there are more than {NODES:,} operations")
        op.bias = None if bias is None else np.broadcast_to(bias, op.shape).reshape(-1)
        self.ops.append(op)
        self.reads.append(reads)
        return len(self.ops) - 1

    def real(self, constant: Any) -> Array:
        """A constant as numbers to compute with, with at least one axis."""
        constant = np.atleast_1d(constant)
        if constant.dtype.kind != "f" or not (abs(values := constant.astype(np.float64)) <= LIMIT).all():
            raise CheckError(f"a constant is {constant.dtype}, NaN or beyond {LIMIT:g}; expected numbers")
        return self.arithmetic.array(values)

    def move(self, x: Value, f: Callable[[Array], Array]) -> Value:
        """f is run on a constant, or on the positions 0, 1, … of a tensor, and puts −1 where a zero is to come."""
        return self.pick(x.node, np.asarray(f(_positions(x.shape)))) if isinstance(x, Data) else np.asarray(f(x))

    def pick(self, node: int, index: Array) -> Data:
        op, reads = self.ops[node], self.reads[node]
        if isinstance(op, Pick):
            index = np.where(index < 0, -1, op.index[np.maximum(index, 0)])
        else:
            reads = (node,)
        sizes = [prod(self.ops[j].shape) for j in reads]
        if len(reads) == 1 and np.array_equal(index.reshape(-1), np.arange(sizes[0])):
            return Data(reads[0], index.shape)
        return Data(self.add(Pick(index.reshape(_inner(index.shape)), [(n,) for n in sizes]), *reads), index.shape)

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        tensors = [p for p in parts if isinstance(p, Data)]
        if not tensors:
            return np.concatenate([p for p in parts if not isinstance(p, Data)], axis)
        if len(tensors) != len(parts):
            raise CheckError("a constant is joined to a tensor; expected tensors only")
        ends = np.cumsum([0, *(prod(p.shape) for p in tensors)])
        index = np.concatenate([n + _positions(p.shape) for n, p in zip(ends, tensors, strict=False)], axis)
        op = Pick(index.reshape(_inner(index.shape)), [(prod(p.shape),) for p in tensors])
        return Data(self.add(op, *(p.node for p in tensors)), index.shape)

    def broadcast(self, x: Data, shape: Shape) -> int:
        return x.node if x.shape == shape else self.pick(x.node, np.broadcast_to(_positions(x.shape), shape)).node

    def sum(self, parts: Sequence[Data], signs: Sequence[int], bias: Array | None = None) -> Data:
        shape = _joint(*(p.shape for p in parts), *([] if bias is None else [bias.shape]))
        nodes = [self.broadcast(p, shape) for p in parts]
        if len(parts) == 1 and signs[0] == 1 and (bias is None or not bias.any()):
            return Data(nodes[0], shape)
        spread = None if bias is None else np.broadcast_to(bias, shape).reshape(_inner(shape))
        return Data(self.add(Sum(_inner(shape), signs), *nodes, bias=spread), shape)

    def scale(self, x: Data, weight: Array, roundings: int = 0) -> Data:
        shape = _joint(x.shape, weight.shape)
        node = self.broadcast(x, shape)
        if not roundings and (weight == 1).all():
            return Data(node, shape)
        return Data(self.add(Scale(np.broadcast_to(weight, shape).reshape(_inner(shape)), roundings), node), shape)

    def relu(self, x: Data) -> Data:
        inner = _inner(x.shape)
        if isinstance(self.ops[x.node], Relu) and self.ops[x.node].shape == inner:
            return x
        return Data(self.add(Relu(inner, [inner]), x.node), x.shape)

    def linear(self, x: Data, matrix: Array) -> Data:
        """x @ matrix on the last axis. # matrix (in, out)"""
        if matrix.ndim != 2 or x.shape[-1:] != matrix.shape[:1]:
            raise CheckError(f"a matrix of shape {list(matrix.shape)} cannot multiply {list(x.shape)}")
        shape = (*x.shape[:-1], matrix.shape[1])
        return Data(self.add(Linear(_inner(shape)[:-1], np.ascontiguousarray(matrix.T)), x.node), shape)

    def conv(self, x: Data, weight: Array, bias: Array | None, window: "Window", groups: int) -> Data:
        """A convolution of (1, channels, *size) with one or two spatial axes."""
        size, stride, dilation, before, after = window
        fits = weight.ndim == len(x.shape) and x.shape[0] == 1 and groups > 0 and len(weight) % groups == 0
        if not fits or x.shape[1] != weight.shape[1] * groups or size != weight.shape[2:]:
            raise CheckError(f"a kernel of shape {list(weight.shape)} cannot convolve {list(x.shape)}")
        lead = (1,) * (4 - len(x.shape))
        source, kernel = (x.shape[1], *lead, *x.shape[2:]), weight.reshape(*weight.shape[:2], *lead, *weight.shape[2:])
        pads = [(0, 0)] * len(lead) + list(zip(before, after, strict=True))
        if prod((source[0], *(n + sum(p) for n, p in zip(source[1:], pads, strict=True)))) > ELEMENTS:
            raise CheckError("a padded image is too large")
        op = Conv(source, kernel, (*lead, *stride), pads, (*lead, *dilation), groups)
        if min(op.places) < 1 or op.room > 2**27:
            raise CheckError("a convolution's windows do not fit its input, or are too many")
        node = self.add(op, x.node, bias=None if bias is None else bias.reshape(-1, 1, 1))
        op.shape = (op.shape[0], *op.places[len(lead) :])
        return Data(node, (1, *op.shape))

    def maximum(self, x: Data, contestants: Array) -> Data:
        """The maximum over the first axis of an array of positions, by a tournament."""
        while len(contestants) > 1:
            pairs = len(contestants) // 2
            a, b = (self.pick(x.node, contestants[i * pairs : (i + 1) * pairs]) for i in (0, 1))
            best: Any = self.sum([b, self.relu(self.sum([a, b], (1, -1)))], (1, 1))
            if len(contestants) % 2:
                best = self.concat([best, self.pick(x.node, contestants[-1:])], 0)
            x, contestants = best, _positions(best.shape)
        return self.pick(x.node, contestants[0])


Window = tuple[Shape, Shape, Shape, Shape, Shape]
"""What a convolution or a pooling reads along each spatial axis: kernel, stride, dilation, pads before and after."""


class Call(NamedTuple):
    """One node: its inputs and attributes."""

    reader: _Reader
    given: list[Value | None]
    attributes: dict[str, Any]

    def has(self, i: int) -> bool:
        return i < len(self.given) and self.given[i] is not None

    def value(self, i: int) -> Value:
        if i < len(self.given) and (value := self.given[i]) is not None:
            return value
        raise CheckError(f"input {i} is missing")

    def data(self, i: int = 0) -> Data:
        if isinstance(value := self.value(i), Data):
            return value
        raise CheckError(f"input {i} is a constant; expected a tensor that depends on the network's input")

    def constant(self, i: int) -> Array:
        if not isinstance(value := self.value(i), Data):
            return value
        raise CheckError(f"input {i} depends on the network's input; expected a constant")

    def real(self, i: int) -> Array:
        return self.reader.real(self.constant(i))

    def integers(self, i: int, name: str) -> list[int] | None:
        """What newer opsets give as an input, and older ones as an attribute."""
        given = self.constant(i).reshape(-1).tolist() if self.has(i) else self.attributes.get(name)
        return None if given is None else [int(v) for v in given]

    def window(self, kernel: Shape | None = None) -> Window:
        a, lengths = self.attributes, self.data().shape[2:]
        axes, mode = len(lengths), a.get("auto_pad", b"NOTSET")
        kernel = tuple(kernel or a.get("kernel_shape", ()))
        given = tuple(a.get("kernel_shape", kernel))
        stride, dilation = tuple(a.get("strides", (1,) * axes)), tuple(a.get("dilations", (1,) * axes))
        pads = tuple(a.get("pads", (0,) * 2 * axes))
        sizes = (*kernel, *stride, *dilation)
        fits = given == kernel and {len(kernel), len(stride), len(dilation), len(pads) / 2} == {axes} and axes in (1, 2)
        if not fits or min(sizes) < 1 or min(pads) < 0 or max(*sizes, *pads) > ELEMENTS or a.get("ceil_mode"):
            raise CheckError("a window that does not fit, or hangs over the end; expected one or two spatial axes")
        if mode in (b"SAME_UPPER", b"SAME_LOWER"):
            along = zip(lengths, kernel, stride, dilation, strict=True)
            room = [max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0) for n, k, s, d in along]
            less, more = tuple(r // 2 for r in room), tuple(r - r // 2 for r in room)
            pads = (*less, *more) if mode == b"SAME_UPPER" else (*more, *less)
        elif mode != b"NOTSET" and (mode != b"VALID" or any(pads)):
            raise CheckError(f"auto_pad is {mode!r}; expected NOTSET, SAME_UPPER, SAME_LOWER or VALID without pads")
        return kernel, stride, dilation, pads[:axes], pads[axes:]


# ---- the operations


def _add(call: Call, sign: int = 1) -> Value:
    a, b = call.value(0), call.value(1)
    if isinstance(a, Data) and isinstance(b, Data):
        return call.reader.sum([a, b], (1, sign))
    if isinstance(a, Data):
        return call.reader.sum([a], (1,), sign * call.real(1))
    return call.reader.sum([call.data(1)], (sign,), call.real(0))


def _mul(call: Call) -> Value:
    first = isinstance(call.value(0), Data)
    return call.reader.scale(call.data(0 if first else 1), call.real(1 if first else 0))


def _inverse(reader: _Reader, divisor: Array) -> Array:
    inverse = reader.arithmetic.divide(reader.real(np.ones(divisor.shape)), divisor)
    if not divisor.all() or not (abs(inverse) <= LIMIT).all():
        raise CheckError(f"a divisor is below {1 / LIMIT:g}")
    return inverse


def _div(call: Call) -> Value:
    divisor = call.real(1)
    return call.reader.scale(call.data(), _inverse(call.reader, divisor), 0 if (abs(divisor) == 1).all() else 1)


def _matmul(call: Call) -> Value:
    if isinstance(call.value(0), Data):
        return call.reader.linear(call.data(), call.real(1))
    turned: Any = call.reader.move(call.data(1), lambda x: x.swapaxes(-1, -2))
    return call.reader.move(call.reader.linear(turned, call.real(0).T), lambda x: x.swapaxes(-1, -2))


def _gemm(call: Call) -> Value:
    reader, a = call.reader, call.attributes
    x: Any = reader.move(call.data(), np.transpose) if a.get("transA") else call.data()
    matrix = call.real(1).T if a.get("transB") else call.real(1)
    alpha, beta = (reader.real(a.get(name, 1.0)) for name in ("alpha", "beta"))
    if len(x.shape) != 2 or (call.has(2) and beta != 1 and call.constant(2).dtype != np.float32):
        raise CheckError("a first factor without two axes, or a scaled bias that is not float32")
    y = reader.scale(reader.linear(x, matrix), alpha)
    if call.has(2) and isinstance(call.value(2), Data):
        return reader.sum([y, call.data(2)], (1, 1))
    return reader.sum([y], (1,), call.real(2) * beta) if call.has(2) else y  # exact: two float32 numbers


def _conv(call: Call) -> Value:
    weight, bias = call.real(1), call.real(2) if call.has(2) else None
    if bias is not None and bias.shape != weight.shape[:1]:
        raise CheckError("the bias does not fit the weights")
    return call.reader.conv(call.data(), weight, bias, call.window(weight.shape[2:]), call.attributes.get("group", 1))


def _max_pool(call: Call) -> Value:
    x, reader, read = call.data(), call.reader, []
    index = _positions(x.shape)
    for axis, (k, s, d, before, after) in enumerate(zip(*call.window(), strict=True), start=2):
        count = (x.shape[axis] + before + after - d * (k - 1) - 1) // s + 1
        if not 0 < count * k <= ELEMENTS or x.shape[0] != 1:
            raise CheckError("a window does not fit its input")
        w = np.arange(count)[:, None] * s - before + np.arange(k) * d
        inside = (w >= 0) & (w < x.shape[axis])
        if not inside.any(1).all():
            raise CheckError("a window lies entirely in the padding")
        w = np.where(inside, w, np.take_along_axis(w, inside.argmax(1)[:, None], 1))  # padding never wins
        used, where = np.unique(w, return_inverse=True)
        index = index.take(used, axis)
        read.append(where.reshape(w.shape))
    x = reader.pick(x.node, index)
    for axis in reversed(range(2, len(x.shape))):
        x = reader.maximum(x, np.moveaxis(_positions(x.shape).take(read[axis - 2].T, axis), axis, 0))
    return x


def _average_pool(call: Call, everything: bool = False) -> Value:
    x, reader = call.data(), call.reader
    window = call.window(x.shape[2:] if everything else None)
    ones = reader.real(np.ones((x.shape[1], 1, *window[0])))
    total = reader.conv(x, ones, None, window, x.shape[1])
    counts = reader.ops[total.node].apply([reader.real(np.ones((1, *reader.ops[total.node].sources[0])))])
    if call.attributes.get("count_include_pad"):
        counts = reader.real(np.full(total.shape, float(prod(window[0]))))
    return reader.scale(total, _inverse(reader, counts.reshape(total.shape)), roundings=1)


def _batch_norm(call: Call) -> Value:
    x, reader, a = call.data(), call.reader, call.attributes
    if reader.arithmetic.exact:
        raise CheckError("a square root has no exact value; expected a check without --exact")
    gamma, beta, mean, variance = (call.real(i).reshape(-1, *(1,) * (len(x.shape) - 2)) for i in (1, 2, 3, 4))
    spread = variance + np.float64(a.get("epsilon", np.float32(1e-5)))
    weight = gamma / np.sqrt(spread)
    fits = (spread > 0).all() and (abs(weight) <= LIMIT).all() and {len(gamma), len(beta), len(mean)} == {x.shape[1]}
    if not fits or a.get("training_mode") or not a.get("spatial", 1) or x.shape[0] != 1:
        raise CheckError("a batch norm in training mode, whose variance is not positive, or whose constants do not fit")
    return reader.sum([reader.scale(reader.sum([x], (1,), -mean), weight, roundings=4)], (1,), beta)


def _leaky_relu(call: Call) -> Value:
    reader, x, slope = call.reader, call.data(), call.reader.real(call.attributes.get("alpha", np.float32(0.01)))
    return reader.sum([reader.scale(x, slope), reader.scale(reader.relu(x), 1 - slope, 1)], (1, 1))


def _pad(call: Call) -> Value:
    pads, x, rank = call.integers(1, "pads") or [], call.data(), len(call.data().shape)
    fill = call.constant(2) if call.has(2) else np.asarray(call.attributes.get("value", 0.0))
    if call.attributes.get("mode", b"constant") != b"constant" or fill.any() or call.has(3):
        raise CheckError("pads other than zeros around all axes")
    pairs = list(zip(pads[:rank], pads[rank:], strict=True))
    if len(pairs) != rank or min(pads) < 0 or prod(n + sum(p) for n, p in zip(x.shape, pairs, strict=True)) > ELEMENTS:
        raise CheckError("pads that remove elements, add too many, or do not fit")
    return call.reader.move(x, lambda index: np.pad(index, pairs, constant_values=-1))


def _same(call: Call) -> Value:
    if call.has(2) and call.constant(2).any():
        raise CheckError("a dropout in training mode")
    return call.value(0)


def _reshape(call: Call, x: Array) -> Array:
    shape = call.integers(1, "shape") or []
    if min(shape, default=0) < -1:
        raise CheckError(f"a shape of {shape[:8]}")
    keep = not call.attributes.get("allowzero", 0)
    return x.reshape([x.shape[i] if n == 0 and keep else n for i, n in enumerate(shape)])


def _slice(call: Call, x: Array) -> Array:
    names = ("starts", "ends", "axes", "steps")
    starts, ends, axes, steps = (call.integers(i, name) or [] for i, name in enumerate(names, start=1))
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        axis, step = axes[i] if axes else i, steps[i] if steps else 1
        if step < 1 or not -x.ndim <= axis < x.ndim:
            raise CheckError("a slice with a step below 1, or along an axis that is not there")
        x = x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]
    return x


OPERATIONS: dict[str, Callable[[Call], Value]] = {
    "Add": _add,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Concat": lambda call: call.reader.concat([call.value(i) for i in range(len(call.given))], call.attributes["axis"]),
    "Constant": lambda call: _array(call.attributes["value"]),
    "Conv": _conv,
    "Div": _div,
    "Dropout": _same,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda call: _average_pool(call, everything=True),
    "Identity": _same,
    "LeakyRelu": _leaky_relu,
    "MatMul": _matmul,
    "MaxPool": _max_pool,
    "Mul": _mul,
    "Pad": _pad,
    "Relu": lambda call: call.reader.relu(call.data()),
    "Shape": lambda call: np.array(call.value(0).shape[call.attributes.get("start", 0) : call.attributes.get("end")]),
    "Sub": lambda call: _add(call, -1),
}

MOVES: dict[str, Callable[[Call, Array], Array]] = {
    "Flatten": lambda call, x: x.reshape(prod(x.shape[: call.attributes.get("axis", 1)]), -1),
    "Gather": lambda call, x: x.take(call.constant(1).astype(np.int64), call.attributes.get("axis", 0)),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": lambda call, x: np.squeeze(x, None if (axes := call.integers(1, "axes")) is None else tuple(axes)),
    "Transpose": lambda call, x: np.transpose(x, call.attributes.get("perm")),
    "Unsqueeze": lambda call, x: np.expand_dims(x, tuple(call.integers(1, "axes") or ())),
}

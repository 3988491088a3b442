"""Reads an ONNX file as affine operations and ReLUs, in the order of the file.

The network means exact real arithmetic over the numbers that are stored. A batch axis is a batch of 1. What only moves
numbers is done on an array of positions; max(a, b) becomes b + relu(a − b). What the table at the end lacks is refused.
"""

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

from surebound.check.arithmetic import LIMIT, Arithmetic, Array, CheckError, expect
from surebound.check.ops import Conv, Linear, Mix, Op, Pair, Relu, Shape

ELEMENTS = 2**24  # of one tensor
NODES = 2**16
STANDARD = ("", "ai.onnx")


class Network:
    """Operations in an order in which they can be computed; node 0 is the input. Neurons are numbered by layers."""

    def __init__(self, arithmetic: Arithmetic, ops: list[Op], reads: list[tuple[int, ...]], output: int) -> None:
        self.arithmetic, self.ops, self.reads, self.output = arithmetic, ops, reads, output
        self.sizes = [op.size for op in ops]
        self.layers = [i for i, op in enumerate(ops) if isinstance(op, Relu)]  # the ReLUs
        self.layer_of = {node: layer for layer, node in enumerate(self.layers)}
        self.widths = [self.sizes[i] for i in self.layers]
        self.first = np.cumsum([0, *self.widths])  # number of each layer's first neuron
        self.neurons = int(self.first[-1])


class Data(NamedTuple):
    """A tensor that depends on the input: a node's numbers under a shape, with the batch."""

    node: int
    shape: Shape


def read_network(content: bytes, inputs: int, arithmetic: Arithmetic) -> Network:
    """The network of an ONNX file, for a property over so many inputs."""
    reader = _Reader(arithmetic)
    try:
        with np.errstate(all="ignore"):
            return reader.read(onnx.load_model_from_string(content), inputs)
    except Exception as error:  # NumPy, onnx and protobuf complain about malformed files in many ways
        raise CheckError(f"{reader.at}: {str(error)[:200]}") from error


def _array(tensor: onnx.TensorProto) -> Array:
    expect(tensor.data_location != onnx.TensorProto.EXTERNAL, "weights in other files; a proof covers one file")
    return np.asarray(numpy_helper.to_array(tensor))


def _positions(*parts: Data) -> list[Array]:
    """Numbers 0, 1, … for the entries of one tensor, and on through the others."""
    ends = np.cumsum([0, *(prod(part.shape) for part in parts)])
    return [np.arange(a, b).reshape(p.shape) for a, b, p in zip(ends, ends[1:], parts, strict=False)]


class _Reader:
    """Walks the graph once; a tensor is a `Data`, or a constant."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic, self.at = arithmetic, "the network"  # the part that is read
        self.values, self.ops, self.reads = dict[str, Any](), list[Op](), list[tuple[int, ...]]()
        self.given, self.attributes = dict[int, Any](), dict[str, Any]()  # of the node that is read

    def read(self, model: onnx.ModelProto, inputs: int) -> Network:
        graph, versions = model.graph, {o.version for o in model.opset_import if o.domain in STANDARD}
        plain = not model.functions and not graph.sparse_initializer and len(graph.node) <= NODES
        expect(plain and len(versions) == 1 and min(versions) >= 7, "expected plain nodes of one opset, 7 or later")
        for tensor in graph.initializer:
            self.define(tensor.name, _array(tensor))
        sources = [i for i in graph.input if i.name not in self.values]
        expect(len(sources) == len(graph.output) == 1, "several inputs or outputs; expected one of each")
        kind = sources[0].type.tensor_type
        shape = tuple(max(d.dim_value, int(i == 0)) for i, d in enumerate(kind.shape.dim))  # an open batch is one of 1
        fits = prod(shape) == inputs and min(shape, default=1) > 0 and kind.elem_type in (1, 11)
        expect(fits, f"an input of shape {list(shape[:9])}; expected {inputs} real numbers")
        self.define(sources[0].name, self.add(Op(inputs), shape))
        needed = {graph.output[0].name}
        for node in reversed(graph.node):
            needed.update(node.input if node.output[0] in needed else ())
        for node in graph.node:
            if node.output[0] in needed:  # what does not lead to the output is left out
                self.at = f"node {node.name[:80]!r} ({node.op_type[:40]})"
                self.define(node.output[0], self.evaluate(node))
        result: Any = self.values.get(graph.output[0].name)
        expect(isinstance(result, Data), "an output that does not depend on the input")
        return Network(self.arithmetic, self.ops, self.reads, result.node)

    def define(self, name: str, value: Any) -> None:
        expect(name not in self.values, f"the tensor {name[:80]!r} is defined twice; expected it once")
        self.values[name] = value

    def evaluate(self, node: onnx.NodeProto) -> Data | Array:
        self.attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        known = node.op_type in OPERATIONS and node.domain in STANDARD and not any(node.output[1:])
        expect(known and len(self.attributes) == len(node.attribute), "there are no proofs for such an operation")
        expect(all(not name or name in self.values for name in node.input), "it reads what nothing before it computes")
        self.given = {i: self.values[name] for i, name in enumerate(node.input) if name}
        return OPERATIONS[node.op_type](self)

    def data(self, i: int = 0) -> Data:
        expect(isinstance(self.given.get(i), Data), f"input {i} is missing or constant; expected a computed one")
        return Data(*self.given[i])

    def constant(self, i: int) -> Array:
        expect(isinstance(self.given.get(i), np.ndarray), f"input {i} is missing or computed; expected a constant")
        return np.asarray(self.given[i])

    def real(self, i: int) -> Array:
        """A constant as numbers to compute with, with at least one axis."""
        constant = np.atleast_1d(self.constant(i))
        fits = constant.dtype.kind == "f" and (abs(constant.astype(np.float64)) <= LIMIT).all()
        expect(fits, f"a constant of {constant.dtype}, NaN or beyond {LIMIT:g}; expected real numbers")
        return self.arithmetic.array(constant.astype(np.float64))

    def window(self, kernel: Shape) -> tuple[Shape, list[Pair]]:
        """Stride and pads of the two spatial axes."""
        a, shape = self.attributes, self.data().shape
        stride, pads = tuple(a.get("strides", (1, 1))), tuple(a.get("pads", (0, 0, 0, 0)))
        fits = [len(part) for part in (shape, kernel, stride, pads)] == [4, 2, 2, 4] and shape[0] == 1
        fits = fits and min(*kernel, *stride) > 0 and min(pads) >= 0 and tuple(a.get("kernel_shape", kernel)) == kernel
        plain = {*a.get("dilations", [1])} == {1} and a.get("auto_pad", b"NOTSET") == b"NOTSET"
        expected = "expected windows over two spatial axes without dilations, auto_pad and ceil_mode"
        expect(fits and plain and not a.get("ceil_mode"), expected)
        return stride, [(pads[0], pads[2]), (pads[1], pads[3])]

    def add(self, op: Op, shape: Shape, *reads: int, bias: Array | None = None) -> Data:
        fits = 0 < op.size == prod(shape) <= ELEMENTS and len(self.ops) <= NODES
        expect(fits, f"a tensor of shape {list(shape)[:9]}, or more than {NODES:,} operations")
        op.bias = self.arithmetic.array(np.zeros(op.size)) if bias is None else np.broadcast_to(bias, shape).reshape(-1)
        self.ops.append(op)
        self.reads.append(reads)
        return Data(len(self.ops) - 1, shape)

    def mix(self, *parts: Data, indices: Any = (), weights: Any = (1,), bias: Any = None, roundings: int = 0) -> Data:
        """Σ w ⊙ parts[index] + bias, broadcast: see `Mix`. Without indices, Σ w ⊙ part + bias."""
        indices = indices or _positions(*parts)
        shape = np.broadcast_shapes(*(np.shape(c) for c in (*indices, *weights, bias)))
        expect(prod(shape) <= ELEMENTS, f"a tensor of shape {list(shape)}")
        indices, sizes = [np.broadcast_to(i, shape).reshape(-1) for i in indices], [prod(p.shape) for p in parts]
        if bias is None and weights == (1,) and np.array_equal(indices[0], np.arange(sizes[0])):
            return Data(parts[0].node, shape)  # another shape, and nothing more
        weights = [w if isinstance(w, int) else np.broadcast_to(w, shape).reshape(-1) for w in weights]
        return self.add(Mix(sizes, indices, weights, roundings), shape, *(p.node for p in parts), bias=bias)

    def move(self, f: Callable[[Array], Any]) -> Data:
        """f is run on the positions of a tensor, and puts −1 where a zero is to come."""
        return self.mix(self.data(), indices=[f(*_positions(self.data()))])

    def divided(self, x: Data, divisor: Array) -> Data:
        expect((abs(divisor) >= 1 / LIMIT).all(), f"a divisor is below {1 / LIMIT:g}")
        return self.mix(x, weights=[1 / divisor], roundings=1)

    def relu(self, x: Data) -> Data:
        return self.add(Relu(prod(x.shape)), x.shape, x.node)

    def linear(self, matrix: Array) -> Data:
        """x @ matrix on the last axis. # matrix (in, out)"""
        x = self.data()
        fits = matrix.ndim == 2 and x.shape[-1:] == matrix.shape[:1]
        expect(fits, f"a matrix of shape {list(matrix.shape)} cannot multiply {list(x.shape)}")
        return self.add(Linear(prod(x.shape[:-1]), matrix), (*x.shape[:-1], matrix.shape[1]), x.node)

    def conv(self, weight: Array, bias: Array | None, groups: int) -> Data:
        x, (stride, pads) = self.data(), self.window(weight.shape[2:])
        fits = groups > 0 and len(weight) % groups == 0 and x.shape[1] == weight.shape[1] * groups
        fits = fits and (bias is None or bias.shape == weight.shape[:1])
        expect(fits, f"a kernel of shape {list(weight.shape)}, or its bias, does not fit {list(x.shape)}")
        op = Conv(x.shape[1:], weight, stride, pads, groups)
        fits = min(op.places) > 0 and op.room <= 2**27 and x.shape[1] * prod(op.padded) <= ELEMENTS
        expect(fits, "a convolution's windows do not fit its input, or are too many")
        return self.add(op, (1, len(weight), *op.places), x.node, bias=bias if bias is None else bias[:, None, None])

    def maximum(self, x: Data, contestants: Array) -> Data:
        """The maximum over the first axis of an array of positions, by a tournament."""
        while len(contestants) > 1:
            a, b, odd = np.split(contestants, [len(contestants) // 2, len(contestants) // 2 * 2])
            won = self.relu(self.mix(x, indices=[a, b], weights=(1, -1)))
            best = self.mix(x, won, indices=[b, _positions(x, won)[1]], weights=(1, 1))
            if len(odd):
                best = self.mix(best, x, indices=[np.concatenate([*_positions(best), prod(best.shape) + odd])])
            x, contestants = best, _positions(best)[0]
        return self.mix(x, indices=[contestants[0]])

    def sum(self, sign: int = 1) -> Data:
        if isinstance(self.given[0], Data) and isinstance(self.given[1], Data):
            return self.mix(self.data(0), self.data(1), weights=(1, sign))
        if isinstance(self.given[0], Data):
            return self.mix(self.data(0), bias=sign * self.real(1))
        return self.mix(self.data(1), weights=(sign,), bias=self.real(0))

    def product(self) -> Data:
        x = 0 if isinstance(self.given[0], Data) else 1
        return self.mix(self.data(x), weights=[self.real(1 - x)])

    def gemm(self) -> Data:
        a = self.attributes
        plain = a.get("alpha", 1) == a.get("beta", 1) == 1 and not a.get("transA") and len(self.data().shape) == 2
        expect(plain, "expected a matrix product without factors, of a tensor that has two axes and is not turned")
        y = self.linear(self.real(1).T if a.get("transB") else self.real(1))
        return self.mix(y, bias=self.real(2)) if 2 in self.given else y

    def max_pool(self) -> Data:
        x, kernel, read = self.data(), tuple(self.attributes["kernel_shape"]), list[Array]()
        stride, pads = self.window(kernel)
        expect(not np.any(pads), "expected windows without pads")
        (index,) = _positions(x)
        for axis, k, s in zip((2, 3), kernel, stride, strict=True):
            windows = np.arange(0, x.shape[axis] - k + 1, s)[:, None] + np.arange(k)
            used, where = np.unique(windows, return_inverse=True)  # what no window reads is left out
            index = index.take(used, axis)
            read.append(where.reshape(windows.shape))
        x = self.mix(x, indices=[index])
        for axis in (3, 2):
            x = self.maximum(x, np.moveaxis(_positions(x)[0].take(read[axis - 2].T, axis), axis, 0))
        return x

    def average_pool(self, kernel: Shape) -> Data:
        whole = self.attributes.get("count_include_pad") or not any(self.attributes.get("pads", ()))
        expect(whole, "pads that do not count; expected count_include_pad")
        channels = self.data().shape[1]
        total = self.conv(self.arithmetic.array(np.ones((channels, 1, *kernel))), None, channels)
        return self.divided(total, self.arithmetic.array([prod(kernel)]))

    def batch_norm(self) -> Data:
        x, a = self.data(), self.attributes
        expect(not self.arithmetic.exact, "a square root has no exact value; expected a check without --exact")
        gamma, beta, mean, variance = (self.real(i).reshape(-1, *(1,) * (len(x.shape) - 2)) for i in (1, 2, 3, 4))
        weight = gamma / np.sqrt(variance + np.float64(a.get("epsilon", np.float32(1e-5))))
        fits = (abs(weight) <= LIMIT).all() and {*map(len, (gamma, beta, mean, variance))} == {x.shape[1]}
        plain = not a.get("training_mode") and a.get("spatial", 1)
        expect(fits and plain, "a batch norm in training mode, of a variance below 0, or of constants that do not fit")
        return self.mix(self.mix(x, bias=-mean), weights=[weight], bias=beta, roundings=4)

    def pad(self) -> Data:
        a, n = self.attributes, len(self.data().shape)
        pads = self.constant(1).tolist() if 1 in self.given else a["pads"]
        fill = self.constant(2).any() if 2 in self.given else a.get("value", 0)
        plain = not fill and a.get("mode", b"constant") == b"constant" and 3 not in self.given
        expect(plain, "expected pads of zeros around all axes")
        return self.move(lambda x: np.pad(x, list(zip(pads[:n], pads[n:], strict=True)), constant_values=-1))

    def same(self) -> Any:
        expect(2 not in self.given or not self.constant(2).any(), "a dropout in training mode")
        return self.given[0]

    def reshape(self) -> Data:
        shape, keep = self.constant(1).tolist(), not self.attributes.get("allowzero", 0)
        expect(min(shape, default=0) >= -1, f"a shape of {shape[:8]}")
        return self.move(lambda x: x.reshape([x.shape[i] if n == 0 and keep else n for i, n in enumerate(shape)]))


OPERATIONS: dict[str, Callable[[_Reader], Data | Array]] = {
    "Add": _Reader.sum,
    "AveragePool": lambda r: r.average_pool(tuple(r.attributes["kernel_shape"])),
    "BatchNormalization": _Reader.batch_norm,
    "Cast": lambda r: r.constant(0).astype({1: np.float32, 11: np.float64}[r.attributes["to"]]),
    "Constant": lambda r: _array(r.attributes["value"]),
    "Conv": lambda r: r.conv(r.real(1), r.real(2) if 2 in r.given else None, r.attributes.get("group", 1)),
    "Div": lambda r: r.divided(r.data(), r.real(1)),
    "Dropout": _Reader.same,
    "Flatten": lambda r: r.move(lambda x: x.reshape(prod(x.shape[: r.attributes.get("axis", 1)]), -1)),
    "Gather": lambda r: r.move(lambda x: x.take(r.constant(1).astype(np.int64), r.attributes.get("axis", 0))),
    "Gemm": _Reader.gemm,
    "GlobalAveragePool": lambda r: r.average_pool(r.data().shape[2:]),
    "Identity": _Reader.same,
    "MatMul": lambda r: r.linear(r.real(1)),
    "MaxPool": _Reader.max_pool,
    "Mul": _Reader.product,
    "Pad": _Reader.pad,
    "Relu": lambda r: r.relu(r.data()),
    "Reshape": _Reader.reshape,
    "Sub": lambda r: r.sum(-1),
    "Transpose": lambda r: r.move(lambda x: np.transpose(x, r.attributes.get("perm"))),
}

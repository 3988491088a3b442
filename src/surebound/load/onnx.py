"""Reads an ONNX file as a `Network`: `load_onnx(path)`.

The network means exact real arithmetic over the numbers stored in the file. A part of the graph that depends on no
input (shape arithmetic, folded weights) is evaluated once as ONNX defines it, in its own type, as runtimes do. A batch
axis is read as a batch of 1 and left out of the network's shapes. Several inputs or outputs are read as one vector, in
the file's order (`ends`).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surebound.errors import NetworkError, ResourceError, UnsupportedOpError, one_line, quoted, visible
from surebound.limits import AXES, ELEMENTS, PORTS, Deadline, Tally, check_elements
from surebound.load.algebra import Algebra, Data, Value
from surebound.load.ends import begin, end
from surebound.load.fold import EVALUATED, evaluate
from surebound.load.onnx_call import Call
from surebound.load.onnx_check import Step, check_each, is_plain
from surebound.load.onnx_file import STANDARD, File, array, constants, read_onnx
from surebound.load.onnx_ops import DOUBLE, FLOAT, FLOATING, HANDLERS, MOVES, SUPPORTED
from surebound.load.replay import Replay
from surebound.memory import is_out_of_memory
from surebound.network.agreement import check_agreement
from surebound.network.graph import Network
from surebound.network.linear import size
from surebound.network.model import Model
from surebound.network.op import Shape
from surebound.problem import Port, Ports

if TYPE_CHECKING:
    from onnx import NodeProto, ValueInfoProto

_LONG = 40  # letters of an operation's name
_RUNTIME = "onnxruntime"


def load_onnx(path: str | Path, *, check: bool = True) -> Network:
    """The network in an .onnx or .onnx.gz file, by default compared with onnxruntime at a few points."""
    if check:
        return load_model(path).network
    file = read_onnx(Path(path))
    return _Reader(file, Deadline()).read(_readings(file, None)[0])[0].tensors()


def load_model(path: str | Path, *, inputs: int | None = None, deadline: Deadline = Deadline()) -> Model:
    """As `read_model`, over torch's tensors."""
    return read_model(path, inputs=inputs, deadline=deadline).tensors()


def read_model(path: str | Path, *, inputs: int | None = None, deadline: Deadline = Deadline()) -> Model:
    """The network of a file, together with the file run by onnxruntime, which it is compared with at a few points.

    Where it is not clear whether an input's first axis is a batch, the reading with so many `inputs` goes first.
    onnxruntime never sees a file that was not read before: it would allocate and run whatever is in it.
    """
    path = Path(path)
    try:
        file = read_onnx(path, deadline)
        original: Replay | None = None
        refused: list[NetworkError] = []
        for shapes in _readings(file, inputs):
            try:
                reader = _Reader(file, deadline)
                network, ports = reader.read(shapes)
                original = original or Replay(file)
                check_agreement(network, original, _RUNTIME, f"'{path}'", deadline=deadline)
                if reader.steps:
                    check_each(file, reader.steps, reader.dispatch, reader.filled, deadline)
                return Model(network, original, str(path), ports, _RUNTIME)
            except NetworkError as error:
                refused.append(error)
        raise refused[0]
    except (MemoryError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise ResourceError(f"there is not enough memory to read '{path}'; expected a smaller network") from error
        raise


@dataclass(frozen=True)
class Survey:
    """What an ONNX file holds, read without building a network: it also describes files that cannot be loaded."""

    operations: Counter[str]  # by type
    unsupported: tuple[tuple[str, str], ...]  # (type, node's name) of each operation outside the supported set
    inputs: tuple[tuple[str, str], ...]  # (name, shape), such as ("x", "1 x 3 x 32 x 32")
    outputs: tuple[tuple[str, str], ...]
    parameters: int  # floating point numbers in the file


def survey(path: str | Path) -> Survey:
    """What an ONNX file holds. An operation that depends on no input is evaluated on loading, if it is a simple one."""
    file = read_onnx(Path(path))
    graph = file.model.graph
    live = {value.name for value in file.inputs}  # what depends on the input
    operations: Counter[str] = Counter()
    unsupported = []
    for node in graph.node:
        kind = visible(node.op_type if _standard(node) else f"{node.domain}.{node.op_type}")
        operations[kind] += 1
        if live.isdisjoint(node.input) and _standard(node):
            if node.op_type not in EVALUATED:
                unsupported.append((kind, _name(node)))
            continue
        if not _supported(node):
            unsupported.append((kind, _name(node)))
        if node.op_type not in ("Shape", "Size"):
            live.update(node.output)
    floats = [w for w in graph.initializer if w.data_type in FLOATING]
    floats += [t for n in graph.node if n.op_type == "Constant" for t in constants(n) if t.data_type in FLOATING]
    return Survey(
        operations,
        tuple(unsupported),
        tuple((visible(value.name), _shape_text(value)) for value in file.inputs),
        tuple((visible(value.name), _shape_text(value)) for value in file.outputs),
        sum(prod(tensor.dims) for tensor in floats),
    )


def operations(path: str | Path) -> Counter[str]:
    """The types of a file's operations and how often each occurs."""
    return survey(path).operations


def _standard(node: "NodeProto") -> bool:
    return node.domain in STANDARD


def _supported(node: "NodeProto") -> bool:
    return _standard(node) and (node.op_type in HANDLERS or node.op_type in MOVES)


def _name(node: "NodeProto") -> str:
    return visible(node.name or (node.output[0] if node.output else node.op_type))


def _shape_text(value: "ValueInfoProto") -> str:
    dims = value.type.tensor_type.shape.dim
    return " x ".join(str(d.dim_value) if d.dim_value > 0 else visible(d.dim_param) or "?" for d in dims) or "?"


# ---- the inputs


def _readings(file: File, inputs: int | None) -> list[list[Shape]]:
    """The full shapes of all inputs to read the graph with, the likeliest first.

    A first axis is the batch if it is 1 or left open. With one input, a fixed size above 1 is a batch if all outputs
    start with the same size or do not say; otherwise, as on a lone axis, or where the file cannot be read that way, it
    counts features. With several inputs it counts features.
    """
    for kind, found in (("inputs", file.inputs), ("outputs", file.outputs)):
        if not 1 <= len(found) <= PORTS:
            raise NetworkError(f"'{file.path}' has {len(found):,} {kind}; expected one, or at most {PORTS:,}")
    shapes = [_input_shape(file, value) for value in file.inputs]
    total = sum(map(size, shapes))
    if total > ELEMENTS:
        raise NetworkError(f"the inputs of '{file.path}' have {total:,} elements in all; expected at most {ELEMENTS:,}")
    batch, rest = (shapes[0][0], shapes[0][1:]) if shapes[0] else (1, ())
    if len(shapes) > 1 or batch == 1:
        return [shapes]
    outer = [value.type.tensor_type.shape.dim[:1] for value in file.outputs]
    shared = rest and all(dim.dim_value in (0, batch) for first in outer for dim in first)
    readings = [[(1, *rest)]] * bool(shared) + [shapes]
    return sorted(readings, key=lambda found: size(found[0]) != inputs)  # stable: without `inputs`, the order stays


def _batch(file: File) -> int:
    """The first dimension that a file fixes for its first input."""
    dims = file.inputs[0].type.tensor_type.shape.dim
    return max(dims[0].dim_value, 1) if dims else 1


def _input_shape(file: File, value: "ValueInfoProto") -> Shape:
    """The full shape of an input, with a batch of 1 where its size is left open."""
    place, tensor = f"the input {quoted(value.name)} of '{file.path}'", value.type.tensor_type
    if tensor.elem_type not in (FLOAT, DOUBLE):
        raise NetworkError(f"{place} is not of floating point; expected float32")
    if not tensor.HasField("shape"):
        raise NetworkError(f"{place} has no shape; expected fixed dimensions")
    if len(tensor.shape.dim) > AXES:
        raise NetworkError(f"{place} has {len(tensor.shape.dim)} axes; expected at most {AXES}")
    dims = [d.dim_value for d in tensor.shape.dim]
    if any(d < 1 for d in dims[1:]):
        raise NetworkError(f"{place} has an open dimension after the first; expected fixed dimensions")
    shape = (max(dims[0], 1), *dims[1:]) if dims else ()
    try:
        check_elements(shape)
    except NetworkError as error:
        raise NetworkError(f"{place} is too large: {error}") from error
    return shape


# ---- the graph


class _Reader:
    """Walks the graph once; every tensor is a `Data` or a constant."""

    def __init__(self, file: File, deadline: Deadline) -> None:
        self._graph, self._opset, self._path = file.model.graph, file.opset, file.path
        self._file, self._deadline = file, deadline
        self._values: dict[str, Value] = {}
        self._double: set[str] = set()  # what depends on the input and is of float64
        self.filled = 1  # rows of a batch of fixed size that is read as one of them, with which it is filled
        self.steps: list[Step] = []  # what is to be compared by itself

    def read(self, shapes: Sequence[Shape]) -> tuple[Network, Ports]:
        """The network, for inputs of full shapes."""
        algebra, inputs = begin(shapes)
        builder = algebra.builder
        if shapes[0][:1] == (1,):
            self.filled = _batch(self._file)
        self._double.update(v.name for v in self._file.inputs if v.type.tensor_type.elem_type == DOUBLE)
        self._read_weights(builder.tally)
        sources, results = ([value.name for value in ends] for ends in (self._file.inputs, self._file.outputs))
        self._values.update(zip(sources, inputs, strict=True))
        for node in self._graph.node:
            self._deadline.check()
            builder.name = _name(node)
            outputs = self._evaluate(node, algebra)
            self._values.update((name, y) for name, y in zip(node.output, outputs, strict=False) if name)
        missing = [name for name in results if name not in self._values]
        if missing:
            raise NetworkError(f"no node of '{self._path}' computes the output {quoted(missing[0])}")
        found = [self._values[name] for name in results]
        ports = Ports(
            tuple(map(Port, sources, shapes)), tuple(Port(n, y.shape) for n, y in zip(results, found, strict=True))
        )
        return builder.arrays(end(algebra, found)), ports

    def _read_weights(self, tally: Tally) -> None:
        for weight in self._graph.initializer:
            self._deadline.check()
            try:
                numbers = array(weight)
            except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
                place = f"the weights {quoted(weight.name)} of '{self._path}'"
                raise NetworkError(f"{place} are damaged: {one_line(error)}") from error
            tally.add(numbers.size, numbers.itemsize)
            self._values[weight.name] = numbers

    def _evaluate(self, node: "NodeProto", algebra: Algebra) -> Sequence[Value]:
        """A node's outputs; every failure becomes an error that names the node."""
        place = f"node {quoted(algebra.builder.name)} ({visible(node.op_type[:_LONG])}) of '{self._path}'"
        missing = [name for name in node.input if name and name not in self._values]
        if missing:
            raise NetworkError(f"{place} reads {quoted(missing[0])}, which nothing before it computes")
        inputs = [self._values[name] if name else None for name in node.input]
        try:
            with np.errstate(all="ignore"):  # NaN and infinity are refused where they are used
                outputs = self.dispatch(node, inputs, algebra)
        except UnsupportedOpError as error:
            raise UnsupportedOpError(f"{place}: {error}") from error
        except NetworkError as error:
            raise NetworkError(f"{place}: {error}") from error
        except Exception as error:  # NumPy, torch and onnx each complain about a malformed node in their own way
            if is_out_of_memory(error):
                raise ResourceError(f"{place} needs more memory than there is; expected a smaller network") from error
            raise NetworkError(f"{place} is malformed ({type(error).__name__}: {one_line(error)})") from error
        double = not self._double.isdisjoint(node.input)
        if self.filled > 1 or not is_plain(node, inputs):
            self.steps.append(Step(node, inputs, outputs, double))
        if any(a.i == DOUBLE for a in node.attribute if a.name == "to") if node.op_type == "Cast" else double:
            self._double.update(node.output)
        return outputs

    def dispatch(self, node: "NodeProto", inputs: list[Value | None], algebra: Algebra) -> Sequence[Value]:
        """What a node is read as."""
        attributes = _attributes(node)
        known = [v for v in inputs if not isinstance(v, Data)]
        tally = algebra.builder.tally
        if len(known) == len(inputs) and _standard(node):
            return evaluate(node, attributes, [c for c in known if c is not None], self._opset, tally)
        if not _supported(node):
            raise UnsupportedOpError.unknown("operation", node.op_type, SUPPORTED)
        if self.filled > 1 and node.op_type in ("Shape", "Size"):
            raise UnsupportedOpError(
                f"it reads the size of a batch of {self.filled}; expected a batch of 1, or of any size"
            )
        if node.op_type not in MOVES:
            call = Call(node.op_type, algebra, inputs, attributes, self._opset, len(node.output))
            return [HANDLERS[node.op_type](call)]
        first, *others = inputs
        arrays = [v for v in others if v is not None and not isinstance(v, Data)]
        if not isinstance(first, Data) or any(isinstance(v, Data) for v in others):
            raise UnsupportedOpError("what to move depends on the network's input; expected a constant")
        positions = np.arange(prod(first.shape), dtype=np.int64).reshape(first.shape)
        moved = evaluate(node, attributes, [positions, *arrays], self._opset, tally)
        return [algebra.move(first, lambda _, index=index: index) for index in moved]  # type: ignore[misc]


def _attributes(node: "NodeProto") -> dict[str, Any]:
    from onnx import helper

    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.name in found:
            raise NetworkError(f"the attribute {quoted(attribute.name)} is given twice; expected it once")
        found[attribute.name] = helper.get_attribute_value(attribute)
    return found

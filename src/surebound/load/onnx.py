"""Reads an ONNX file as a `Network`: `load_onnx(path)`.

The network means exact real arithmetic over the numbers stored in the file. A part of the graph that depends on no
input (shape arithmetic, folded weights) is evaluated once as ONNX defines it, in its own type, as runtimes do. A batch
axis is read as a batch of 1 and left out of the network's shapes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surebound.errors import NetworkError, ResourceError, UnsupportedOpError, one_line, quoted, visible
from surebound.limits import AXES, Deadline, Tally, check_elements
from surebound.load.agreement import check_agreement
from surebound.load.algebra import Algebra, Data, Value, inner
from surebound.load.fold import EVALUATED, evaluate
from surebound.load.onnx_call import Call
from surebound.load.onnx_file import STANDARD, File, array, constants, read_onnx
from surebound.load.onnx_ops import DOUBLE, FLOAT, FLOATING, HANDLERS, MOVES, SUPPORTED
from surebound.load.replay import Replay, replay
from surebound.memory import is_out_of_memory
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.network.op import Shape

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto, ValueInfoProto

_SHOWN = 5  # names in a sentence
_LONG = 40  # letters of an operation's name


def load_onnx(path: str | Path, *, check: bool = True) -> Network:
    """The network in an .onnx or .onnx.gz file, by default compared with onnxruntime at a few points."""
    if check:
        return load_model(path).network
    file = read_onnx(Path(path))
    return _read(file, _input_shapes(file, None)[0], Deadline()).tensors()


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
        for shape in _input_shapes(file, inputs):
            try:
                network = _read(file, shape, deadline)
                original = original or Replay(file)
                check_agreement(network, original, "onnxruntime", f"'{path}'", deadline=deadline)
                return Model(network, original, str(path))
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
    graph = read_onnx(Path(path)).model.graph
    weights = {weight.name for weight in graph.initializer}
    sources = [value for value in graph.input if value.name not in weights]
    live = {value.name for value in sources}  # what depends on the input
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
        tuple((visible(value.name), _shape_text(value)) for value in sources),
        tuple((visible(value.name), _shape_text(value)) for value in graph.output),
        sum(prod(tensor.dims) for tensor in floats),
    )


def operations(path: str | Path) -> Counter[str]:
    """The types of a file's operations and how often each occurs."""
    return survey(path).operations


def unsupported_operations(path: str | Path) -> Counter[str]:
    """The types of operations for which `load_onnx` would refuse a file, and how often each occurs."""
    return Counter(kind for kind, _ in survey(path).unsupported)


def _standard(node: "NodeProto") -> bool:
    return node.domain in STANDARD


def _supported(node: "NodeProto") -> bool:
    return _standard(node) and (node.op_type in HANDLERS or node.op_type in MOVES)


def _name(node: "NodeProto") -> str:
    return visible(node.name or (node.output[0] if node.output else node.op_type))


def _shape_text(value: "ValueInfoProto") -> str:
    dims = value.type.tensor_type.shape.dim
    return " x ".join(str(d.dim_value) if d.dim_value > 0 else visible(d.dim_param) or "?" for d in dims) or "?"


def check_against_onnxruntime(network: Network, path: str | Path) -> None:
    """Raise `NetworkError` if the network differs from the file, run by onnxruntime at a few fixed points."""
    check_agreement(network, replay(path), "onnxruntime", f"'{path}'")


# ---- the input


def _single_input(graph: "GraphProto", path: Path) -> "ValueInfoProto":
    """The one input that is not a weight, of a floating-point type."""
    weights = {w.name for w in graph.initializer}
    inputs: list[ValueInfoProto] = [i for i in graph.input if i.name not in weights]
    for kind, found in (("inputs", inputs), ("outputs", list(graph.output))):
        if len(found) != 1:
            names = ", ".join(quoted(f.name) for f in found[:_SHOWN]) or "none"
            more = ", …" if len(found) > _SHOWN else ""
            raise NetworkError(f"'{path}' has {len(found)} {kind} ({names}{more}); expected one")
    name, tensor = quoted(inputs[0].name), inputs[0].type.tensor_type
    if tensor.elem_type not in (FLOAT, DOUBLE):
        raise NetworkError(f"the input {name} of '{path}' is not of floating point; expected float32")
    if not tensor.HasField("shape"):
        raise NetworkError(f"the input {name} of '{path}' has no shape; expected fixed dimensions")
    if len(tensor.shape.dim) > AXES:
        raise NetworkError(f"the input {name} of '{path}' has {len(tensor.shape.dim)} axes; expected at most {AXES}")
    return inputs[0]


def _input_shapes(file: File, inputs: int | None) -> list[Shape]:
    """The full shapes to read the graph with, the likeliest first.

    The first axis is the batch if it is 1 or left open. A fixed size above 1 is a batch if the output starts with the
    same size or does not say; otherwise, as on a lone axis, or where the file cannot be read that way, it counts
    features.
    """
    source = _single_input(file.model.graph, file.path)
    dims = [d.dim_value for d in source.type.tensor_type.shape.dim]
    if not dims:
        return [()]
    batch, rest = dims[0], tuple(dims[1:])
    place = f"the input {quoted(source.name)} of '{file.path}'"
    if any(d < 1 for d in rest):
        raise NetworkError(f"{place} has an open dimension after the first; expected fixed dimensions")
    try:
        check_elements(d for d in dims if d > 0)
    except NetworkError as error:
        raise NetworkError(f"{place} is too large: {error}") from error
    if batch <= 1:
        return [(1, *rest)]
    outer = [d.dim_value for d in file.model.graph.output[0].type.tensor_type.shape.dim][:1]
    shapes = [(1, *rest)] if rest and (not outer or outer[0] in (0, batch)) else []
    shapes.append((batch, *rest))
    return sorted(shapes, key=lambda shape: prod(shape) != inputs)  # stable, so that the order stays without `inputs`


# ---- the graph


def _read(file: File, shape: Shape, deadline: Deadline) -> Network:
    """The network of a file, for an input of a full shape."""
    return _Reader(file, deadline).read(_single_input(file.model.graph, file.path).name, shape)


class _Reader:
    """Walks the graph once; every tensor is a `Data` or a constant."""

    def __init__(self, file: File, deadline: Deadline) -> None:
        self._graph, self._opset, self._path = file.model.graph, file.opset, file.path
        self._deadline = deadline
        self._values: dict[str, Value] = {}

    def read(self, source: str, shape: Shape) -> Network:
        """The network, for an input of a full shape."""
        builder = Builder(inner(shape))
        algebra = Algebra(builder)
        self._read_weights(builder.tally)
        self._values[source] = Data(0, shape)
        for node in self._graph.node:
            self._deadline.check()
            builder.name = _name(node)
            outputs = self._evaluate(node, algebra)
            self._values.update((name, y) for name, y in zip(node.output, outputs, strict=False) if name)
        result = self._graph.output[0].name
        if result not in self._values:
            raise NetworkError(f"no node of '{self._path}' computes the output {quoted(result)}")
        return builder.arrays(algebra.data(self._values[result]).node)

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
                return self._dispatch(node, inputs, algebra)
        except UnsupportedOpError as error:
            raise UnsupportedOpError(f"{place}: {error}") from error
        except NetworkError as error:
            raise NetworkError(f"{place}: {error}") from error
        except Exception as error:  # NumPy, torch and onnx each complain about a malformed node in their own way
            if is_out_of_memory(error):
                raise ResourceError(f"{place} needs more memory than there is; expected a smaller network") from error
            raise NetworkError(f"{place} is malformed ({type(error).__name__}: {one_line(error)})") from error

    def _dispatch(self, node: "NodeProto", inputs: list[Value | None], algebra: Algebra) -> Sequence[Value]:
        attributes = _attributes(node)
        known = [v for v in inputs if not isinstance(v, Data)]
        tally = algebra.builder.tally
        if len(known) == len(inputs) and _standard(node):
            return evaluate(node, attributes, [c for c in known if c is not None], self._opset, tally)
        if not _supported(node):
            raise UnsupportedOpError(f"this operation is not supported; expected one of {', '.join(SUPPORTED)}")
        if node.op_type not in MOVES:
            return [HANDLERS[node.op_type](Call(algebra, inputs, attributes, self._opset))]
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

"""Reads an ONNX file as a `Network`: `load_onnx(path)`.

The network means exact real arithmetic over the numbers stored in the file. A part of the graph that depends on no
input (shape arithmetic, folded weights) is evaluated once as ONNX defines it, in its own type, as runtimes do. A batch
axis is read as a batch of 1 and left out of the network's shapes.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load.agreement import check_agreement
from surebound.load.algebra import Algebra, Array, Data, Value, inner
from surebound.load.onnx_ops import DOUBLE, FLOAT, FLOATING, HANDLERS, MOVES, SUPPORTED, Call, check_elements
from surebound.load.replay import Replay, read_bytes, replay
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.network.op import Shape

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

OLDEST_OPSET = 7
"""Before it, broadcasting was an attribute of each operation."""


def load_onnx(path: str | Path, *, check: bool = True) -> Network:
    """The network in an .onnx or .onnx.gz file, by default compared with onnxruntime at a few points."""
    path = Path(path)
    model = _parse(path)
    opset = _opset(model, path)
    source = _single_input(model.graph, path)
    errors = []
    for shape in _input_shapes(source, model.graph.output[0], path):
        try:
            network = _Reader(model.graph, opset, path).read(source.name, shape)
            break
        except NetworkError as error:
            errors.append(error)
    else:
        raise errors[0]
    if check:
        check_against_onnxruntime(network, path)
    return network


@dataclass(frozen=True)
class Survey:
    """What an ONNX file holds, read without building a network: it also describes files that cannot be loaded."""

    operations: Counter[str]  # by type
    unsupported: tuple[tuple[str, str], ...]  # (type, node's name) of each operation outside the supported set
    inputs: tuple[tuple[str, str], ...]  # (name, shape), such as ("x", "1 x 3 x 32 x 32")
    outputs: tuple[tuple[str, str], ...]
    parameters: int  # floating point numbers in the file


def survey(path: str | Path) -> Survey:
    """What an ONNX file holds. An operation that depends on no input is supported, since it is evaluated on loading."""
    graph = _parse(Path(path)).graph
    constants = {weight.name for weight in graph.initializer}
    sources = [value for value in graph.input if value.name not in constants]
    live = {value.name for value in sources}  # what depends on the input
    operations: Counter[str] = Counter()
    unsupported = []
    for node in graph.node:
        kind = node.op_type if _standard(node) else f"{node.domain}.{node.op_type}"
        operations[kind] += 1
        if live.isdisjoint(node.input) and _standard(node):
            continue
        if not _supported(node):
            unsupported.append((kind, _name(node)))
        if node.op_type not in ("Shape", "Size"):
            live.update(node.output)
    floats = [w for w in graph.initializer if w.data_type in FLOATING]
    floats += [a.t for n in graph.node if n.op_type == "Constant" for a in n.attribute if a.t.data_type in FLOATING]
    return Survey(
        operations,
        tuple(unsupported),
        tuple((value.name, _shape_text(value)) for value in sources),
        tuple((value.name, _shape_text(value)) for value in graph.output),
        sum(prod(tensor.dims) for tensor in floats),
    )


def operations(path: str | Path) -> Counter[str]:
    """The types of a file's operations and how often each occurs."""
    return survey(path).operations


def unsupported_operations(path: str | Path) -> Counter[str]:
    """The types of operations for which `load_onnx` would refuse a file, and how often each occurs."""
    return Counter(kind for kind, _ in survey(path).unsupported)


def _standard(node: "NodeProto") -> bool:
    return node.domain in ("", "ai.onnx")


def _supported(node: "NodeProto") -> bool:
    return _standard(node) and (node.op_type in HANDLERS or node.op_type in MOVES)


def _name(node: "NodeProto") -> str:
    return str(node.name or (node.output[0] if node.output else node.op_type))


def _shape_text(value: "ValueInfoProto") -> str:
    dims = value.type.tensor_type.shape.dim
    return " x ".join(str(d.dim_value) if d.dim_value > 0 else d.dim_param or "?" for d in dims) or "?"


def load_model(path: str | Path) -> Model:
    """The network of a file, together with the file run by onnxruntime."""
    return Model(load_onnx(path), replay(path), str(path))


def fingerprint(path: Path) -> str:
    """The SHA-256 of a file and, where it keeps weights in others, of those, too."""
    digest = hashlib.sha256(path.read_bytes())
    import onnx
    from onnx.external_data_helper import uses_external_data

    graph = onnx.load_model_from_string(read_bytes(path)).graph
    constants = [a.t for node in graph.node for a in node.attribute if a.HasField("t")]
    named = {
        entry.value
        for tensor in (*graph.initializer, *constants)
        if uses_external_data(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in sorted(named):
        digest.update(name.encode() + (path.parent / name).read_bytes())
    return digest.hexdigest()


def check_against_onnxruntime(network: Network, path: str | Path) -> None:
    """Raise `NetworkError` if the network differs from the file, run by onnxruntime at a few fixed points."""
    check_agreement(network, Replay(path), "onnxruntime", f"'{path}'")


def _parse(path: Path) -> "ModelProto":
    """The file's content, checked for what surebound cannot read at all."""
    content = read_bytes(path)
    import onnx

    try:
        model = onnx.load_model_from_string(content)
    except Exception as error:  # protobuf has no typed errors to name here
        raise NetworkError(f"'{path}' is not an ONNX file, or is cut short; expected an ONNX model") from error
    if not model.HasField("graph") or not model.graph.output:
        raise NetworkError(f"'{path}' holds no network; expected an ONNX model with a graph")
    if model.graph.sparse_initializer:
        raise NetworkError(f"'{path}' has sparse weights; expected dense ones")
    try:
        onnx.load_external_data_for_model(model, str(path.parent))
    except Exception as error:  # the helper lets many kinds through: missing files, bad offsets, forbidden paths
        raise NetworkError(f"'{path}' keeps weights in other files, which cannot be read: {error}") from error
    return model


def _opset(model: "ModelProto", path: Path) -> int:
    version = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    if version < OLDEST_OPSET:
        raise NetworkError(f"'{path}' uses ONNX opset {version}; expected {OLDEST_OPSET} or later")
    return int(version)


def _single_input(graph: "GraphProto", path: Path) -> "ValueInfoProto":
    """The one input that is not a weight, of a floating-point type."""
    weights = {w.name for w in graph.initializer}
    inputs: list[ValueInfoProto] = [i for i in graph.input if i.name not in weights]
    for kind, found in (("inputs", inputs), ("outputs", list(graph.output))):
        if len(found) != 1:
            names = ", ".join(f.name for f in found) or "none"
            raise NetworkError(f"'{path}' has {len(found)} {kind} ({names}); expected one")
    tensor = inputs[0].type.tensor_type
    if tensor.elem_type not in (FLOAT, DOUBLE):
        raise NetworkError(f"the input '{inputs[0].name}' of '{path}' is not of floating point; expected float32")
    if not tensor.HasField("shape"):
        raise NetworkError(f"the input '{inputs[0].name}' of '{path}' has no shape; expected fixed dimensions")
    return inputs[0]


def _input_shapes(source: "ValueInfoProto", result: "ValueInfoProto", path: Path) -> list[Shape]:
    """The full shapes to read the graph with, the likeliest first.

    The first axis is the batch if it is 1 or left open. A fixed size above 1 is a batch if the output starts with the
    same size or does not say; otherwise, as on a lone axis, it counts features.
    """
    dims = [d.dim_value for d in source.type.tensor_type.shape.dim]
    if not dims:
        return [()]
    batch, rest = dims[0], tuple(dims[1:])
    if any(d < 1 for d in rest):
        raise NetworkError(
            f"the input '{source.name}' of '{path}' has an open dimension after the first; expected fixed dimensions"
        )
    try:
        check_elements(d for d in dims if d > 0)
    except NetworkError as error:
        raise NetworkError(f"the input '{source.name}' of '{path}' is too large: {error}") from error
    if batch > 1:
        outer = [d.dim_value for d in result.type.tensor_type.shape.dim][:1]
        whole = [(batch, *rest)]
        batched = [(1, *rest)] if rest and (not outer or outer[0] in (0, batch)) else []
        return [*batched, *whole]
    return [(1, *rest)]


class _Reader:
    """Walks the graph once; every tensor is a `Data` or a constant."""

    def __init__(self, graph: "GraphProto", opset: int, path: Path) -> None:
        self._graph, self._opset, self._path = graph, opset, path
        self._values: dict[str, Value] = {}

    def read(self, source: str, shape: Shape) -> Network:
        """The network, for an input of a full shape."""
        from onnx import numpy_helper

        for weight in self._graph.initializer:
            try:
                self._values[weight.name] = numpy_helper.to_array(weight)
            except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
                raise NetworkError(f"the weights '{weight.name}' of '{self._path}' are damaged: {error}") from error
        builder = Builder(inner(shape))
        algebra = Algebra(builder)
        self._values[source] = Data(0, shape)
        for node in self._graph.node:
            builder.name = _name(node)
            outputs = self._evaluate(node, algebra)
            self._values.update((name, y) for name, y in zip(node.output, outputs, strict=False) if name)
        result = self._graph.output[0].name
        if result not in self._values:
            raise NetworkError(f"no node of '{self._path}' computes the output '{result}'")
        return builder.build(algebra.data(self._values[result]).node)

    def _evaluate(self, node: "NodeProto", algebra: Algebra) -> Sequence[Value]:
        """A node's outputs; every failure becomes an error that names the node."""
        place = f"node '{algebra.builder.name}' ({node.op_type}) of '{self._path}'"
        missing = [name for name in node.input if name and name not in self._values]
        if missing:
            raise NetworkError(f"{place} reads '{missing[0]}', which nothing before it computes")
        inputs = [self._values[name] if name else None for name in node.input]
        try:
            return self._dispatch(node, inputs, algebra)
        except UnsupportedOpError as error:
            raise UnsupportedOpError(f"{place}: {error}") from error
        except NetworkError as error:
            raise NetworkError(f"{place}: {error}") from error
        except Exception as error:  # NumPy, torch and onnx each complain about a malformed node in their own way
            raise NetworkError(f"{place} is malformed ({type(error).__name__}: {error})") from error

    def _dispatch(self, node: "NodeProto", inputs: list[Value | None], algebra: Algebra) -> Sequence[Value]:
        from onnx import helper

        constants = [v for v in inputs if not isinstance(v, Data)]
        if len(constants) == len(inputs) and _standard(node):
            return self._run(node, [c for c in constants if c is not None])
        if not _supported(node):
            raise UnsupportedOpError(f"this operation is not supported; expected one of {', '.join(SUPPORTED)}")
        if node.op_type in MOVES:
            first = inputs[0]
            others = [v for v in inputs[1:] if v is not None]
            arrays = [v for v in others if not isinstance(v, Data)]
            if not isinstance(first, Data) or len(arrays) < len(others):
                raise UnsupportedOpError("what to move depends on the network's input; expected a constant")
            return self._move(node, first, arrays, algebra)
        attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        return [HANDLERS[node.op_type](Call(algebra, inputs, attributes, self._opset))]

    def _move(self, node: "NodeProto", x: Data, others: list[Array], algebra: Algebra) -> Sequence[Value]:
        """The node run on the positions of x."""
        if node.op_type == "Expand":
            check_elements(np.broadcast_shapes(x.shape, tuple(others[0].tolist())))
        elif node.op_type == "Tile":
            check_elements([*x.shape, *others[0].reshape(-1)])
        positions = np.arange(int(np.prod(x.shape)), dtype=np.int64).reshape(x.shape)
        moved = self._run(node, [positions, *others])
        return [algebra.move(x, lambda _, index=index: index) for index in moved]  # type: ignore[misc]

    def _run(self, node: "NodeProto", arrays: list[Array]) -> list[Array]:
        """The node's outputs by ONNX's reference implementation, for inputs that are all known."""
        from onnx import TypeProto, helper

        if node.op_type == "Constant" and any(a.name == "sparse_value" for a in node.attribute):
            raise NetworkError("a constant is sparse; expected a dense one")
        if node.op_type == "ConstantOfShape":
            check_elements(arrays[0].reshape(-1))
        quick = _quick(node, arrays)
        if quick is not None:
            return [quick]
        from onnx.reference import ReferenceEvaluator

        feeds = dict(zip((name for name in node.input if name), arrays, strict=True))
        graph = helper.make_graph(
            [node],
            "node",
            [helper.make_value_info(name, TypeProto()) for name in feeds],
            [helper.make_value_info(name, TypeProto()) for name in node.output if name],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self._opset)])
        with np.errstate(all="ignore"):
            return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]


def _quick(node: "NodeProto", arrays: list[Array]) -> Array | None:
    """The output of a constant or a reshape, which most networks have, without loading the reference implementation."""
    from onnx import helper, numpy_helper

    attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    if node.op_type == "Constant" and set(attributes) == {"value"}:
        return numpy_helper.to_array(attributes["value"])
    if node.op_type == "Flatten" and 0 <= attributes.get("axis", 1) <= arrays[0].ndim:
        lead = arrays[0].shape[: attributes.get("axis", 1)]
        return arrays[0].reshape(int(np.prod(lead, dtype=np.int64)), -1) if arrays[0].size else None
    if (
        node.op_type == "Reshape"
        and len(arrays) == 2
        and arrays[1].ndim == 1
        and ((arrays[1] > 0) | (arrays[1] == -1)).all()
    ):
        return arrays[0].reshape(arrays[1].astype(np.int64))
    return None

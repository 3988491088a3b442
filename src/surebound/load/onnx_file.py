"""An ONNX file: its bytes, what protobuf makes of them, and the files beside it that hold weights.

Nothing here looks at what the nodes compute. What no reader could make sense of, or what would take too much memory, is
refused.
"""

import hashlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from surebound.errors import NetworkError, one_line, quoted
from surebound.limits import AXES, NAMES, NETWORK_BYTES, NODES, UNPACKED_BYTES, Deadline, mib, read_file
from surebound.load.wire import check_parsed_size

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

STANDARD = ("", "ai.onnx")
"""The names of ONNX's own domain."""
OLDEST_OPSET = 7
"""Before it, broadcasting was an attribute of each operation."""
_BOOL = 9  # onnx.TensorProto's number


@dataclass(frozen=True)
class File:
    """A file that was read: `model` holds all weights, also those of other files."""

    path: Path
    content: bytes  # unpacked
    model: "ModelProto"
    outside: tuple[str, ...] = ()  # the names of those other files

    @property
    def opset(self) -> int:
        """The version of ONNX's operations that the file uses."""
        versions = {int(o.version) for o in self.model.opset_import if o.domain in STANDARD} or {1}
        if len(versions) > 1:
            raise NetworkError(f"'{self.path}' uses ONNX opsets {sorted(versions)}; expected one")
        version = versions.pop()
        if version < OLDEST_OPSET:
            raise NetworkError(f"'{self.path}' uses ONNX opset {version}; expected {OLDEST_OPSET} or later")
        return version

    @property
    def inputs(self) -> "list[ValueInfoProto]":
        """The inputs that are not weights."""
        weights = {weight.name for weight in self.model.graph.initializer}
        return [value for value in self.model.graph.input if value.name not in weights]

    @property
    def outputs(self) -> "list[ValueInfoProto]":
        return list(self.model.graph.output)


def read_onnx(path: Path, deadline: Deadline = Deadline()) -> File:
    """The file's content, checked for what surebound cannot read at all."""
    content = read_bytes(path, deadline)
    check_parsed_size(content, path, deadline)
    model = _parse(content, path)
    graph = model.graph
    if not model.HasField("graph") or not graph.output:
        raise NetworkError(f"'{path}' holds no network; expected an ONNX model with a graph")
    if len(graph.node) > NODES:
        raise NetworkError(f"'{path}' has {len(graph.node):,} nodes; expected at most {NODES:,}")
    names = sum(len(node.input) + len(node.output) for node in graph.node)
    if names > NAMES:
        raise NetworkError(f"the nodes of '{path}' read and write {names:,} tensors; expected at most {NAMES:,}")
    if graph.sparse_initializer:
        raise NetworkError(f"'{path}' has sparse weights; expected dense ones")
    hidden = [f.name for f in model.functions if f.domain in STANDARD]
    if hidden:
        raise NetworkError(f"'{path}' has a function {quoted(hidden[0])} of its own in ONNX's domain; expected none")
    _check_names(model, path)
    return File(path, content, model, _load_outside(model, path))


def read_bytes(path: Path, deadline: Deadline = Deadline()) -> bytes:
    """A network's bytes, unpacked if they are gzipped."""
    content = read_file(
        path,
        "network",
        NetworkError,
        most=NETWORK_BYTES,
        unpacked=UNPACKED_BYTES,
        expected="an ONNX file",
        deadline=deadline,
    )
    if not content:
        raise NetworkError(f"the network '{path}' is empty; expected an ONNX file")
    return content


def _parse(content: bytes, path: Path) -> "ModelProto":
    import onnx

    try:
        return onnx.load_model_from_string(content)
    except Exception as error:  # protobuf has no typed errors to name here
        raise NetworkError(f"'{path}' is not an ONNX file, or is cut short; expected an ONNX model") from error


def _check_names(model: "ModelProto", path: Path) -> None:
    """Refuse a tensor that is defined twice: which of the two counts is not ours to guess."""
    known: set[str] = set()
    weights = [w.name for w in model.graph.initializer]
    inputs = {value.name for value in model.graph.input} - set(
        weights
    )  # an input that names a weight has it as default
    written = (name for node in model.graph.node for name in node.output if name)
    for name in chain(weights, inputs, written):
        if name in known:
            raise NetworkError(f"'{path}' defines the tensor {quoted(name)} twice; expected it once")
        known.add(name)


# ---- weights


def array(tensor: "TensorProto") -> NDArray[Any]:
    """The numbers of a tensor; an error of many kinds if its parts contradict each other."""
    from onnx import numpy_helper

    if any(d < 0 for d in tensor.dims):
        raise ValueError(f"the shape {list(tensor.dims[:AXES])} has a negative dimension")
    if tensor.data_type == _BOOL and any(b not in (0, 1) for b in tensor.int32_data):  # 256 is true to some
        raise ValueError("a truth value is neither 0 nor 1")
    return numpy_helper.to_array(tensor)


def tensors(model: "ModelProto") -> "Iterator[TensorProto]":
    """The weights of a model and the constants in its nodes."""
    yield from model.graph.initializer
    for node in model.graph.node:
        yield from constants(node)


def constants(node: "NodeProto") -> "Iterator[TensorProto]":
    """The tensors among a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("t"):
            yield attribute.t


def _load_outside(model: "ModelProto", path: Path) -> tuple[str, ...]:
    """Put the weights that lie in other files into the model, and return the names of those files."""
    from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

    outside = [tensor for tensor in tensors(model) if uses_external_data(tensor)]
    try:
        places = [_place(tensor, path.parent) for tensor in outside]
        if sum(size for _, size in places) > NETWORK_BYTES:
            raise NetworkError(f"they are more than {mib(NETWORK_BYTES)}")
        for tensor in outside:
            load_external_data_for_tensor(tensor, str(path.parent))
    except Exception as error:  # the helper lets many kinds through: missing files, bad offsets, forbidden paths
        raise NetworkError(f"'{path}' keeps weights in other files, which cannot be read: {one_line(error)}") from error
    return tuple(sorted({name for name, _ in places}))


def _place(tensor: "TensorProto", folder: Path) -> tuple[str, int]:
    """The name of the file that holds a tensor, and how many bytes of it."""
    from onnx.external_data_helper import ExternalDataInfo

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a key that nobody knows
        info = ExternalDataInfo(tensor)
    file = folder / info.location
    if not file.is_file():  # a pipe would be waited for
        raise NetworkError(f"{quoted(info.location)} is no file")
    return info.location, file.stat().st_size - (info.offset or 0) if info.length is None else info.length


def fingerprint(path: Path) -> str:
    """The SHA-256 of a file and, where it keeps weights in others, of those, too."""
    digest = hashlib.sha256()
    for name in (None, *read_onnx(path).outside):
        digest.update(b"" if name is None else name.encode())
        with (path if name is None else path.parent / name).open("rb") as file:
            while part := file.read(2**22):
                digest.update(part)
    return digest.hexdigest()

"""Runs the original file in onnxruntime, on one thread: the last word on a counterexample, and the check on loading."""

from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surebound.errors import NetworkError, visible
from surebound.load.onnx_file import File, read_onnx

if TYPE_CHECKING:
    from onnx import ValueInfoProto

_CHUNK = 1024  # rows in one run, so that memory does not grow with the number of rows
# Without the fallback onnxruntime reports a damaged file on standard output and tries it again.
_CPU: dict[str, Any] = {"providers": ["CPUExecutionProvider"], "enable_fallback": False}


class Replay:
    """The file as a function of float32 rows. # (n, inputs) -> (n, outputs)"""

    def __init__(self, file: File) -> None:
        self.path = file.path
        self._session = open_session(file, _with_open_batch(file))
        self._inputs = [_Feed(value) for value in self._session.get_inputs()]
        self._outputs = [value.name for value in file.outputs]
        if [feed.name for feed in self._inputs] != [value.name for value in file.inputs]:
            raise NetworkError(
                f"'{self.path}' has other inputs in onnxruntime; expected those of the file, in its order"
            )

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
        """The network's outputs, flattened, for each row."""
        rows = np.ascontiguousarray(x)
        several = len(self._inputs) > 1
        chunks = [(self._parts if several else self._rows)(rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)]
        double = any(feed.type is np.float64 for feed in self._inputs)
        with np.errstate(over="ignore"):
            return np.concatenate(chunks).astype(np.float64 if double else np.float32)

    def _parts(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows of several inputs, one at a time."""
        shapes = [tuple(1 if d is None else d for d in feed.dims) for feed in self._inputs]
        ends = [0, *accumulate(map(prod, shapes))]
        if rows.shape[1] != ends[-1]:
            raise NetworkError(f"'{self.path}' has inputs of {ends[-1]} numbers in all; got rows of {rows.shape[1]}")
        found = []
        for row in rows:
            parts = [row[a:b].reshape(shape) for (a, b), shape in zip(pairwise(ends), shapes, strict=True)]
            found.append(_joined([y[None] for y in self._run(*parts)]))
        return np.concatenate(found)

    def _rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows of a single input."""
        (feed,) = self._inputs
        batch, rest = (feed.dims[0], feed.dims[1:]) if feed.dims else (1, [])
        sample = tuple(d for d in rest if d is not None)
        columns = rows.shape[1]
        if len(sample) == len(rest) and batch is not None and columns == batch * prod(sample):
            whole = tuple(d for d in feed.dims if d is not None)
            return np.concatenate([_joined([y[None] for y in self._run(row.reshape(whole))]) for row in rows])
        if len(sample) < len(rest) or columns != prod(sample):
            raise NetworkError(f"'{self.path}' has inputs of shape {feed.dims}; got rows of {columns} numbers")
        if batch is not None:
            # The file insists on a batch of its own size: the row fills it.
            full = [np.broadcast_to(row.reshape(sample), (batch, *sample)) for row in rows]
            found = [self._run(f) for f in full]
            if any(y.shape[:1] != (batch,) for ys in found for y in ys):
                raise NetworkError(f"'{self.path}' mixes the rows of a batch of {batch}; expected a result for each")
            return np.concatenate([_joined([y[:1] for y in ys]) for ys in found])
        ys = self._run(rows.reshape(len(rows), *sample))
        if all(y.ndim and len(y) == len(rows) for y in ys):
            return _joined(ys)
        # A reshape inside the file has mixed the rows; it meant one row at a time.
        return np.concatenate([_joined([y[None] for y in self._run(row.reshape(1, *sample))]) for row in rows])

    def _run(self, *inputs: NDArray[Any]) -> list[NDArray[Any]]:
        feeds = {f.name: np.ascontiguousarray(x, dtype=f.type) for f, x in zip(self._inputs, inputs, strict=True)}
        try:
            return [np.asarray(y) for y in self._session.run(self._outputs, feeds)]
        except Exception as error:  # onnxruntime's errors have no common base
            raise NetworkError(f"'{self.path}' cannot be run by onnxruntime: {_first_line(error)}") from error


def open_session(file: File, content: bytes, *, plain: bool = False) -> Any:
    """A session of onnxruntime for a model that has a file's weights, `plain` if each node is to run as it stands."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    folder = str(file.path.resolve().parent)
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    try:
        return ort.InferenceSession(content, options, **_CPU)
    except Exception as error:  # onnxruntime's errors have no common base
        raise NetworkError(f"'{file.path}' cannot be run by onnxruntime: {_first_line(error)}") from error


class _Feed:
    """An input as onnxruntime sees it."""

    def __init__(self, value: Any) -> None:
        self.name: str = value.name
        self.type = np.float64 if value.type == "tensor(double)" else np.float32
        self.dims: list[int | None] = [d if isinstance(d, int) and d > 0 else None for d in value.shape]


def _joined(ys: list[NDArray[Any]]) -> NDArray[Any]:
    """Outputs side by side, each flattened. # each (n, …) -> (n, outputs)"""
    return np.concatenate([y.reshape(len(y), -1) for y in ys], axis=1)


def replay(path: str | Path) -> Replay:
    """The file as a function of float32 rows."""
    return Replay(read_onnx(Path(path)))


def _with_open_batch(file: File) -> bytes:
    """The file's bytes, with an open batch where an old exporter spelt that as a batch of 0."""
    if not any(map(_has_batch_0, (*file.model.graph.input, *file.model.graph.output))):
        return file.content
    import onnx

    model = onnx.load_model_from_string(file.content)  # without the weights of other files
    for value in filter(_has_batch_0, (*model.graph.input, *model.graph.output)):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    return bytes(model.SerializeToString())


def _has_batch_0(value: "ValueInfoProto") -> bool:
    dims = value.type.tensor_type.shape.dim
    return len(dims) > 0 and dims[0].WhichOneof("value") == "dim_value" and dims[0].dim_value == 0


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return visible(lines[0][:300]) if lines else type(error).__name__

"""Runs the original file in onnxruntime, on one thread: the last word on a counterexample, and the check on loading."""

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
        import onnxruntime as ort

        self.path = file.path
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.log_severity_level = 4
        folder = str(self.path.resolve().parent)
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        try:
            self._session: Any = ort.InferenceSession(_with_open_batch(file), options, **_CPU)
        except Exception as error:  # onnxruntime's errors have no common base
            raise NetworkError(f"'{self.path}' cannot be run by onnxruntime: {_first_line(error)}") from error
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        if (len(inputs), len(outputs)) != (1, 1):
            raise NetworkError(
                f"'{self.path}' has {len(inputs)} inputs and {len(outputs)} outputs; expected one of each"
            )
        first = inputs[0]
        self._name: str = first.name
        self._double = first.type == "tensor(double)"
        self._dims: list[int | None] = [d if isinstance(d, int) and d > 0 else None for d in first.shape]

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
        """The network's outputs, flattened, for each row."""
        rows = np.ascontiguousarray(x, dtype=np.float64 if self._double else np.float32)
        chunks = [self._rows(rows[i : i + _CHUNK]) for i in range(0, len(rows), _CHUNK)]
        with np.errstate(over="ignore"):
            return np.concatenate(chunks).astype(np.float64 if self._double else np.float32)

    def _rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        batch, rest = (self._dims[0], self._dims[1:]) if self._dims else (1, [])
        sample = tuple(d for d in rest if d is not None)
        columns = rows.shape[1]
        whole = None if batch is None else batch * prod(sample)
        if len(sample) == len(rest) and columns == whole:
            return np.stack([self._run(row.reshape(self._whole())).reshape(-1) for row in rows])
        if len(sample) < len(rest) or columns != prod(sample):
            raise NetworkError(f"'{self.path}' has inputs of shape {self._dims}; got rows of {columns} numbers")
        if batch is not None:
            # The file insists on a batch of its own size: the row fills it.
            full = [np.broadcast_to(row.reshape(sample), (batch, *sample)) for row in rows]
            ys = [self._run(np.ascontiguousarray(f)) for f in full]
            if any(y.shape[:1] != (batch,) for y in ys):
                raise NetworkError(f"'{self.path}' mixes the rows of a batch of {batch}; expected a result for each")
            return np.stack([y[0].reshape(-1) for y in ys])
        y = self._run(rows.reshape(len(rows), *sample))
        if y.ndim and len(y) == len(rows):
            return y.reshape(len(rows), -1)
        # A reshape inside the file has mixed the rows; it meant one row at a time.
        return np.stack([self._run(row.reshape(1, *sample)).reshape(-1) for row in rows])

    def _whole(self) -> tuple[int, ...]:
        return tuple(d for d in self._dims if d is not None)

    def _run(self, x: NDArray[Any]) -> NDArray[Any]:
        try:
            return np.asarray(self._session.run(None, {self._name: x})[0])
        except Exception as error:  # onnxruntime's errors have no common base
            raise NetworkError(f"'{self.path}' cannot be run by onnxruntime: {_first_line(error)}") from error


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

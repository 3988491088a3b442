"""A network that can go to other processes, and to machines that do not have its file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from surebound.load.onnx import load_model
from surebound.load.onnx_file import read_onnx
from surebound.network.model import Model


@final
class PortableNetwork:
    """A network's file. What is loaded from it stays where it is; with `pack`, the bytes go along instead."""

    def __init__(self, path: Path, *, model: Model | None = None, pack: bool = False, device: str = "cpu") -> None:
        self._path, self._device = path, device
        self._model = None if model is None else model.tensors(device)
        names = (path.name, *read_onnx(path).outside) if pack else ()
        self._bytes = {name: (path.parent / name).read_bytes() for name in names}

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_model": None}

    @property
    def model(self) -> Model:
        """The network on its device, loaded once in each process."""
        if self._model is None:
            with self.file() as path:
                self._model = load_model(path).tensors(self._device)
        return self._model

    @contextmanager
    def file(self) -> Iterator[Path]:
        """Its file: the one it was made from, or a copy for as long as it is needed."""
        if not self._bytes:
            yield self._path
            return
        with TemporaryDirectory(prefix="surebound-") as folder:
            for name, content in self._bytes.items():
                (Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / name).write_bytes(content)
            yield Path(folder) / self._path.name

"""A network that can go to other processes, and to machines that do not have its file."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, final

from surebound.errors import NetworkError
from surebound.load.onnx import load_model
from surebound.load.onnx_file import fingerprint, read_onnx
from surebound.network.model import Model


@final
class PortableNetwork:
    """A network's file. What is loaded from it stays where it is; with `pack`, the bytes go along instead.

    The file has to stay as it is, or was when `sha256` was its fingerprint: what another network shows, which took its
    place meanwhile, would be taken for what this one shows.
    """

    def __init__(
        self,
        path: Path,
        *,
        sha256: str | None = None,
        model: Model | None = None,
        pack: bool = False,
        device: str = "cpu",
    ) -> None:
        self._path, self._device = path, device
        self._sha256 = fingerprint(path) if sha256 is None else sha256
        self._model = None if model is None else model.tensors(device)
        names = (path.name, *read_onnx(path).outside) if pack else ()
        self._bytes = {name: (path.parent / name).read_bytes() for name in names}
        if model is not None:
            self._expect_same(path)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_model": None}

    @property
    def model(self) -> Model:
        """The network on its device, loaded once in each process."""
        if self._model is None:
            with self.file() as path:
                model = load_model(path).tensors(self._device)
                self._expect_same(path)
            self._model = model
        return self._model

    def _expect_same(self, path: Path) -> None:
        if fingerprint(path) != self._sha256:
            raise NetworkError(f"'{self._path}' has changed since it was first read; expected it to stay as it is")

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

"""A list of named arrays that moves to disk when it grows."""

import io
import tempfile
import weakref
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]


class Spool:
    """Arrays are added and read back in order. Beyond so many bytes they are kept in a nameless file."""

    def __init__(self, memory: int = 2**26) -> None:
        self._memory, self._held = memory, 0
        self._items: list[Arrays | int] = []  # or where the item begins in the file
        self._file: IO[bytes] | None = None

    def add(self, arrays: Arrays) -> None:
        size = sum(array.nbytes for array in arrays.values())
        if self._held + size <= self._memory:
            self._held += size
            self._items.append(arrays)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        self._items.append(self._file.seek(0, 2))
        np.savez(self._file, **arrays)  # type: ignore[arg-type]  # the stubs know no keywords

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Arrays]:
        ends = [item for item in self._items if isinstance(item, int)][1:]
        for item in self._items:
            if isinstance(item, int):
                yield self._read(item, ends.pop(0) if ends else None)
            else:
                yield dict(item)

    def _read(self, begin: int, end: int | None) -> Arrays:
        assert self._file is not None
        self._file.seek(begin)
        data = self._file.read() if end is None else self._file.read(end - begin)
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            return {name: found[name] for name in found.files}

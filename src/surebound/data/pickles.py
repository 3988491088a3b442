"""The pickles of CIFAR-10's Python version, read without running anything in them.

A pickle is a program that may call any function it names. The official files name four: three to rebuild a NumPy array
and one to turn text into bytes. Calls of the first three are only written down, and `read_batch` takes the array's
bytes from that record; the fourth becomes `str.encode`, which can do nothing but encode text. Any other name is
refused before it is looked up.
"""

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surebound.errors import UsageError

ARRAY_NAMES = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),  # what NumPy 2 writes
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


@dataclass(slots=True)
class Recorded:
    """A name in a pickle, or the call of one: written down, never run."""

    name: str
    arguments: tuple[object, ...] = ()
    state: object = None

    def __call__(self, *arguments: object) -> "Recorded":
        return Recorded(self.name, arguments)

    def __setstate__(self, state: object) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) in ARRAY_NAMES:
            return Recorded(name)
        if (module, name) == ("_codecs", "encode"):
            return str.encode
        raise UsageError(f"it asks for '{module}.{name}'")


def read_batch(content: bytes, path: Path, columns: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (n, columns) and labels (n,) of a pickled dictionary with a uint8 array b"data" and a list b"labels"."""
    expected = f"expected a pickled CIFAR-10 batch: b'data', a uint8 array (images, {columns}), and b'labels', a list"
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle can raise anything
        raise UsageError(f"cannot read '{path}' ({str(error) or type(error).__name__}); {expected}") from error
    match batch:
        case {b"data": Recorded("_reconstruct", _, state), b"labels": [*labels]} if all(map(_is_label, labels)):
            pixels = _array(state)
            if pixels is not None and pixels.shape == (len(labels), columns) and len(labels) > 0:
                return pixels, np.array(labels, np.uint8)
    raise UsageError(f"'{path}' holds something else or is damaged; {expected}")


def _is_label(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 256


def _array(state: object) -> NDArray[np.uint8] | None:
    """The matrix that a pickled array's state (version, shape, type, column by column?, bytes) describes, if it is one
    of uint8."""
    match state:
        case [1, [int(rows), int(columns)], Recorded("dtype", ["u1" | b"u1", *_]), by_column, bytes(content)] if (
            min(rows, columns) > 0 and len(content) == rows * columns
        ):
            return np.frombuffer(content, np.uint8).reshape((rows, columns), order="F" if by_column else "C")
    return None

"""The pickles of CIFAR-10's Python version, read without running anything in them.

A pickle is a program that may call any function it names. The official files name four: three to rebuild a NumPy array
and one to turn text into bytes. Calls of the first three are only written down, and `read_batch` takes the array's
bytes from that record; the fourth becomes a function that can do nothing but encode text. Any other name is refused
before it is looked up.
"""

import io
import pickle
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from surebound.errors import UsageError

MOST_STEPS = 10**6  # of a pickle; a batch of 10,000 images has some 60,000
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
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._room = len(content)  # for what calls may make of the content: no more than there is of it

    def find_class(self, module: str, name: str) -> Callable[..., object]:
        if (module, name) in ARRAY_NAMES:
            return Recorded(name)
        if (module, name) == ("_codecs", "encode"):
            return self._encode
        raise UsageError(f"it asks for '{module}.{name}'")

    def _encode(self, text: str, encoding: str) -> bytes:
        self._room -= len(text)
        if self._room < 0 or encoding != "latin1":
            raise UsageError("it encodes text in a way that pickle does not")
        return text.encode("latin1")


def _scan(content: bytes) -> None:
    """Refuse a pickle that would take time or memory out of proportion, before any of it is read for good.

    Python makes room for all entries of the memo up to the highest number in use, and a writer numbers them in turn.
    """
    entries, numbered = 0, ("PUT", "BINPUT", "LONG_BINPUT")
    for steps, (operation, argument, _) in enumerate(pickletools.genops(content)):
        if steps > MOST_STEPS:
            raise UsageError(f"it has more than {MOST_STEPS} steps")
        entries += operation.name in (*numbered, "MEMOIZE")
        if operation.name in numbered and not int(argument or 0) <= entries:
            raise UsageError(f"it numbers its entry {entries} as {argument}")


def read_batch(content: bytes, path: Path, columns: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (n, columns) and labels (n,) of a pickled dictionary with a uint8 array b"data" and a list b"labels"."""
    expected = f"expected a pickled CIFAR-10 batch: b'data', a uint8 array (images, {columns}), and b'labels', a list"
    try:
        _scan(content)
        batch = _Unpickler(content).load()
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

"""Reads files: bytes that may be gzipped, and proofs, which are ZIP archives of NPY arrays.

Nothing that a proof says about itself is believed: an array is read only if its type and shape are what the caller
expects, no more bytes are unpacked than that takes, and every failure is a sentence.
"""

import gzip
import json
import zipfile
import zlib
from collections.abc import Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from surebound.check.arithmetic import Array, CheckError, InvalidError

ABOUT, MEMBER, CONTENT = 2**24, 2**27, 2**31  # bytes at most: of `about`, of an array, of a network or property
INT32, INT8, UINT8 = (np.dtype(name) for name in ("<i4", "|i1", "|u1"))
FLOATS = [np.dtype("<f4"), np.dtype("<f8")]


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    try:
        with Path(path).open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            content = (gzip.GzipFile(fileobj=file) if packed else file).read(CONTENT + 1)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise CheckError(f"cannot read '{path}' ({getattr(error, 'strerror', None) or error})") from error
    if len(content) > CONTENT:
        raise CheckError(f"'{path}' has more than {CONTENT:,} bytes")
    return content


class Proof:
    """An open proof."""

    def __init__(self, path: str | Path) -> None:
        try:
            self._zip = zipfile.ZipFile(path)
            self._members = {info.filename: info for info in self._zip.infolist()}
            self.about: Any = json.loads(self.array("about", [UINT8], (None,), ABOUT).tobytes().decode("utf-8"))
            if len(self._members) != len(self._zip.infolist()) or not isinstance(self.about, dict):
                raise InvalidError("it has two members of one name, or does not say what it is about")
        except Exception as error:  # zipfile and json fail in many ways on damaged files
            raise CheckError(f"'{path}' is not a proof of this format ({str(error)[:200]})") from error

    def close(self) -> None:
        self._zip.close()

    def has(self, name: str) -> bool:
        """Whether there is an array of this name."""
        return f"{name}.npy" in self._members

    def array(self, name: str, types: Any, shape: Sequence[int | None], most: int = MEMBER) -> Array:
        """An array of one of these types and of this shape, in which None stands for any length."""
        if not self.has(name):
            raise InvalidError(f"it has no array '{name}'")
        info = self._members[f"{name}.npy"]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
            raise InvalidError(f"the array '{name}' is packed in a way that is not part of the format")
        try:
            with self._zip.open(info) as file:
                read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
                found, fortran, dtype = read[npy.read_magic(file)](file)
                wanted = tuple(n if m is None else m for n, m in zip(found, shape, strict=True))
                size = prod(found) * dtype.itemsize
                if dtype not in types or fortran or found != wanted or min(found) < 0 or size > most:
                    expected = f"{' or '.join(t.name for t in types)} of {list(shape)}, at most {most:,} bytes"
                    raise InvalidError(f"the array '{name}' is {dtype} of {list(found)}; expected {expected}")
                content = file.read(size + 1)
        except InvalidError:
            raise
        except Exception as error:  # zipfile, zlib and NumPy's header reader fail in many ways on damaged files
            raise InvalidError(f"the array '{name}' is damaged ({type(error).__name__})") from error
        if len(content) != size:
            raise InvalidError(f"the array '{name}' is longer or shorter than it says")
        return np.frombuffer(content, dtype=dtype).reshape(found)

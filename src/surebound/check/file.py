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

from surebound.check.arithmetic import Array, CheckError, expect

ABOUT, MEMBER, HEADER = 2**24, 2**27, 2**14  # bytes at most: of `about`, of an array, of what is said before either
INT32, INT8, UINT8 = (np.dtype(name) for name in ("<i4", "|i1", "|u1"))
FLOATS = [np.dtype("<f4"), np.dtype("<f8")]


def read_bytes(path: str | Path) -> bytes:
    """The content of a file, unpacked if it is gzipped."""
    try:
        content = Path(path).read_bytes()
        return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    except (OSError, EOFError, zlib.error) as error:
        raise CheckError(f"cannot read '{path}' ({getattr(error, 'strerror', None) or error})") from error


class Proof(zipfile.ZipFile):
    """An open proof."""

    def __init__(self, path: str | Path) -> None:
        try:
            super().__init__(path)
            self.members = {info.filename: info for info in self.infolist()}
            expect(len(self.members) == len(self.infolist()), "two members of one name")
            self.about: Any = json.loads(self.array("about", [UINT8], (None,), ABOUT).tobytes().decode("utf-8"))
            kind = isinstance(self.about, dict) and (self.about.get("format"), self.about.get("version"))
            expect(kind == ("surebound proof", 1), "it does not say that it is a surebound proof of version 1")
        except Exception as error:  # zipfile and json fail in many ways on damaged files
            raise CheckError(f"'{path}' is not a proof of this format ({str(error)[:200]})") from error

    def array(self, name: str, types: Any, shape: Sequence[int | None], most: int = MEMBER) -> Array:
        """An array of one of these types and of this shape, in which None stands for any length."""
        expect(f"{name}.npy" in self.members, f"it has no array '{name}'")
        info = self.members[f"{name}.npy"]
        known = info.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) and not info.flag_bits & 1
        expect(known, f"the array '{name}' is packed in a way that is not part of the format")
        expect(info.file_size <= most + HEADER, f"the array '{name}' is larger than {most:,} bytes")
        try:
            with self.open(info) as file:
                read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
                found, fortran, dtype = read[npy.read_magic(file)](file)
                wanted = tuple(n if m is None else m for n, m in zip(found, shape, strict=True))
                size, longest = prod(found) * dtype.itemsize, max(found)  # of which another may be 0
                fits = dtype in types and not fortran and found == wanted and min(found) >= 0
                fits = fits and size <= most and longest <= most
                content = file.read(size + 1) if fits else b""
                given = f"{dtype} of {list(found)}"
        except Exception as error:  # zipfile, zlib and NumPy's header reader fail in many ways on damaged files
            raise CheckError(f"the array '{name}' is damaged ({type(error).__name__})") from error
        expected = f"{' or '.join(t.name for t in types)} of {list(shape)}, at most {most:,} bytes"
        expect(fits, f"the array '{name}' is {given}; expected {expected}")
        expect(len(content) == size, f"the array '{name}' is longer or shorter than it says")
        return np.frombuffer(content, dtype=dtype).reshape(found)

"""Argument types and output files that several commands share."""

import os
import tempfile
from argparse import ArgumentTypeError
from pathlib import Path

from surebound.errors import UsageError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def positive_seconds(text: str) -> float:
    """A number of seconds above zero."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"expected a positive number of seconds, got '{text}'")
    return value


def positive_int(text: str) -> int:
    """A whole number above zero."""
    if not text.isascii() or not text.isdigit() or int(text[:18]) == 0:
        raise ArgumentTypeError(f"expected a positive whole number, got '{text}'")
    return int(text)


def seed(text: str) -> int:
    """A whole number from 0 to 2**63 − 1."""
    if not text.isascii() or not text.isdigit() or int(text[:30]) >= 2**63:
        raise ArgumentTypeError(f"expected a whole number from 0 to 2**63 - 1, got '{text}'")
    return int(text)


def memory_size(text: str) -> int:
    """Bytes, with an optional K, M, G or T.

    >>> memory_size("2G")
    2147483648
    """
    number, unit = (text[:-1], text[-1].upper()) if text and text[-1].isalpha() else (text, "")
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        value = -1.0
    if not 2**20 <= value < 2**50:
        raise ArgumentTypeError(f"expected a size of at least 1M such as 500M or 2G, got '{text}'")
    return int(value)


def writable(path: str | None) -> Path | None:
    """A path for a result, checked before any work is done."""
    if path is None:
        return None
    target = Path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise UsageError(f"cannot write '{path}': expected a file name in an existing folder")
    return target


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written."""
    if path.exists() and not path.is_file():  # a pipe or device
        path.write_text(text)
        return
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w") as file:
                file.write(text)
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(f"cannot write '{path}': {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask

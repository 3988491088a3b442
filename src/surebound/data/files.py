"""Where downloaded data sets lie, and reading their files."""

import os
from collections.abc import Sequence
from pathlib import Path

from surebound.errors import MissingFileError, reason

VARIABLE = "SUREBOUND_DATA"


def places(data_dir: Path | None) -> list[Path]:
    """The folders that are searched for data sets, in order."""
    if data_dir is not None and not os.path.isdir(data_dir):
        return [data_dir]  # a mistyped folder is an error, not a reason to look elsewhere
    chosen = os.environ.get(VARIABLE)
    found = [data_dir, Path(chosen) if chosen else None, Path(os.path.expanduser("~/.cache/surebound"))]
    return list(dict.fromkeys(place for place in found if place is not None))


def find_folder(name: str, layouts: Sequence[str], *, wanted: str, data_dir: Path | None) -> Path:
    """The first of the folders `layouts` in the first place that has one.

    `wanted` says what to download where there is none.
    """
    searched = places(data_dir)
    for place in searched:
        for layout in layouts:
            if os.path.isdir(place / layout):
                return place / layout
    where = ", ".join(f"'{place}'" for place in searched)
    raise MissingFileError(f"data set '{name}' is not in {where}; expected {wanted} in '{searched[0] / name}'")


def read_bytes(path: Path, *, source: str) -> bytes:
    """The content of a file that comes from `source`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise MissingFileError(f"cannot read '{path}' ({reason(error)}); expected a file of {source}") from error

"""A proof, and its file: a ZIP archive of NumPy arrays, put in place when it is whole."""

import gzip
import hashlib
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.files import replacing
from surebound.proof.record import BoxRecord, Step
from surebound.version import __version__

LEVEL = 6  # of compression


@dataclass(frozen=True, eq=False)
class Proof:
    """Why a property holds, for `surebound check` to follow."""

    records: Sequence[BoxRecord]
    widths: Sequence[int]  # neurons of each layer of ReLUs

    def save(self, path: str | Path, *, network: str | Path, property: str | Path) -> None:
        """Write it to a file, as a proof about the network and the property in these files."""
        about: dict[str, Any] = {
            "format": "surebound proof",
            "version": 1,
            "writer": f"surebound {__version__}",
            "network": _sha256(Path(network)),
            "property": _sha256(Path(property)),
            "widths": list(self.widths),
        }
        with (
            replacing(path) as partial,
            zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=LEVEL) as archive,
        ):
            steps = [step for record in self.records for step in record.needed]
            about["steps"] = [_write(archive, f"s{number}", step) for number, step in enumerate(steps)]
            _add(archive, "about", np.frombuffer(json.dumps(about).encode(), np.uint8))


def _write(archive: zipfile.ZipFile, name: str, step: Step) -> dict[str, Any]:
    """Write the members of a step; what is said about it."""
    members, chunks = dict(step.members), iter([step.chunk] if step.chunk else [])
    if step.forest is not None:
        trees, chunks = step.forest.written(step.root)
        members |= trees
    for key, array in members.items():
        _add(archive, f"{name}/{key}", array)
    count = 0
    for count, chunk in enumerate(chunks, start=1):
        for key, array in chunk.items():
            _add(archive, f"{name}/c{count - 1}/{key}", array[:, : step.rows] if key == "pi" else array)
    return step.about | {"chunks": max(count, 1)}


def _add(archive: zipfile.ZipFile, name: str, array: NDArray[Any]) -> None:
    member = zipfile.ZipInfo(f"{name}.npy")  # of no date: the same proof is the same file
    member.compress_type = zipfile.ZIP_DEFLATED
    with archive.open(member, "w", force_zip64=True) as file:
        np.lib.format.write_array(file, np.ascontiguousarray(array), allow_pickle=False)


def _sha256(path: Path) -> str:
    """Of a file's bytes, unpacked if they are gzipped."""
    data = path.read_bytes()
    return hashlib.sha256(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).hexdigest()

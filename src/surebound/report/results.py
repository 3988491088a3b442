"""What a report is made from: the runs of stores, and folders of training."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path, PurePath
from typing import Any

from surebound.config import read_toml
from surebound.errors import MissingFileError, StoreError, SureboundError, UsageError
from surebound.evaluate.store import Row, Run, Store, log_of
from surebound.report.numbers import number

_DEPTH = 4  # levels below a folder at which training folders are looked for
_GALLERY = 12  # counterexamples to read of a run: a data set's would fill the memory


@dataclass(frozen=True, eq=False, kw_only=True)
class Result:
    """A run of a store and its rows, of which only the first few keep their counterexamples: they are large."""

    store: Path
    number: int
    run: Run
    rows: Sequence[Row]

    @property
    def missing(self) -> int:
        """How many of the images asked for have no row yet."""
        return len(set(self.run.images) - {row.image for row in self.rows})


@dataclass(frozen=True, eq=False, kw_only=True)
class Training:
    """A training folder. `problems` are sentences on what of it could not be read."""

    folder: Path
    name: str
    config: Mapping[str, Any]
    epochs: Sequence[Mapping[str, Any]]
    validations: Sequence[Mapping[str, Any]]
    hashes: Mapping[str, str]  # file name: SHA-256
    problems: Sequence[str]


@dataclass(frozen=True, eq=False, kw_only=True)
class Material:
    """All that a page shows."""

    name: str
    stores: Mapping[Path, str | None]  # with the SHA-256 of each that nobody is writing
    results: Sequence[Result]
    trainings: Sequence[Training]


def gather(path: str | Path) -> Material:
    """Read a store, or of a folder the training folders in and below it, and all stores in it and in these."""
    target = Path(path)
    if not target.exists():
        raise MissingFileError(
            f"cannot read '{target}': there is no such file or folder; expected a store or a training folder"
        )
    folders: list[Path] = []
    if target.is_dir():
        folders = training_folders(target)
        places = [target, *(folder for folder in folders if folder != target)]
        stores = [file for place in places for file in sorted(place.glob("*.sqlite")) if file.is_file()]
        if not stores and not folders:
            raise UsageError(f"'{target}' holds no results; expected a store (*.sqlite) or training folders")
    else:
        stores = [target]
    results = []
    for file in stores:
        with Store(file, readonly=True) as store:
            results += read_results(store)
    return Material(
        name=target.resolve().name,
        stores={file: store_hash(file) for file in stores},
        results=results,
        trainings=[read_training(folder, target) for folder in folders],
    )


def short_names(paths: Iterable[str]) -> dict[str, str]:
    """The last part of each path, with as many parts before it as tell it from the others.

    >>> short_names(["runs/colt/seed-0", "runs/ibp-r/seed-0", "net.onnx"])
    {'runs/colt/seed-0': 'colt/seed-0', 'runs/ibp-r/seed-0': 'ibp-r/seed-0', 'net.onnx': 'net.onnx'}
    """
    parts = {path: PurePath(path).parts for path in paths}
    names = {}
    for path, own in parts.items():
        others = [other for other in parts.values() if other != own]
        length = 2 if own[-1:] == ("model.onnx",) else 1
        while length < len(own) and any(other[-length:] == own[-length:] for other in others):
            length += 1
        names[path] = PurePath(*own[-length:]).as_posix()
    return names


def read_results(store: Store) -> list[Result]:
    """All runs of a store."""
    try:
        return [
            Result(store=store.path, number=number, run=run, rows=store.rows(number, counters=_GALLERY))
            for number, run in store.runs().items()
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise StoreError(f"'{store.path}' holds a record that surebound certify did not write: {error}") from error


def store_hash(path: Path) -> str | None:
    """The SHA-256 of a store; None while its newest rows lie in a log beside it."""
    log = log_of(path)
    return None if log.exists() and log.stat().st_size else _sha256(path)


def training_folders(folder: Path, depth: int = _DEPTH) -> list[Path]:
    """The folder and those below that hold a training run, in the order of their names."""
    found = [folder] if all((folder / name).is_file() for name in ("config.toml", "metrics.jsonl")) else []
    if depth:
        try:
            below = sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and p.name[0] != ".")
        except OSError:  # not ours to read
            below = []
        for inner in below:
            found += training_folders(inner, depth - 1)
    return found


def read_training(folder: Path, root: Path) -> Training:
    """A training folder below a root, whatever state it is in: the run may have been killed, or still go on."""
    problems = []
    config: Mapping[str, Any] = {}
    try:
        config = read_toml(folder / "config.toml")
    except SureboundError as error:
        problems.append(str(error))
    records, damaged = _records(folder / "metrics.jsonl")
    if damaged:
        problems.append(f"{damaged} of the lines of metrics.jsonl could not be read and are left out")
    files = (folder / name for name in ("config.toml", "model.onnx", "weights.safetensors"))
    name = folder.relative_to(root).as_posix()
    return Training(
        folder=folder,
        name=folder.resolve().name if name == "." else name,
        config=config,
        epochs=[r for r in records if r.get("kind") == "epoch"],
        validations=[r for r in records if r.get("kind") == "validation"],
        hashes={file.name: _sha256(file) for file in files if file.is_file()},
        problems=problems,
    )


def _records(path: Path) -> tuple[list[dict[str, Any]], int]:
    """The objects with an epoch in a file of JSON lines, and the number of lines that are none."""
    found, damaged = [], 0
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict) and isfinite(number(record.get("epoch"))):
            found.append(record)
        else:
            damaged += bool(line.strip())
    return found, damaged


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

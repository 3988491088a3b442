"""What both experiments share: a request, checks before any work, and what comes out."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surebound.errors import UsageError, quoted
from surebound.evaluate.store import Store
from surebound.files import replacing
from surebound.report.tables import SEARCHES
from surebound.reproduce.jobs import LOG, JobEnded
from surebound.reproduce.place import Place
from surebound.reproduce.scales import METHODS, SETTINGS, Scale, Training
from surebound.work import Engine, choose
from surebound.work.processes import Processes

if TYPE_CHECKING:
    from surebound.data.dataset import Dataset

_TITLES = {"table1": "Table 1", "branching": "Branching"}


@dataclass(frozen=True, kw_only=True)
class Request:
    """What to reproduce."""

    place: Place
    resume: bool = False
    workers: int | None = None
    cluster: str | None = None
    resources: Mapping[str, Any] | None = None
    settings: tuple[str, ...] = tuple(SETTINGS)
    methods: tuple[str, ...] = METHODS
    search: str | None = None  # the verifier's profile; None: the default for table 1, each for branching
    steps: int | None = None  # try each training for so many steps, and nothing else


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What came out."""

    markdown: str
    files: tuple[Path, ...]  # written for people
    failures: tuple[str, ...]  # sentences


def cores() -> int:
    """How many workers fit the machine."""
    return len(os.sched_getaffinity(0))


def engine(request: Request, lock: int, default: int) -> Engine:
    """Who does the work. Processes inherit the lock of the folder, which is free only when the last one has ended."""
    if request.cluster is not None or request.resources is not None:
        return choose(workers=request.workers, cluster=request.cluster, resources=request.resources)
    return Processes(request.workers or default, log=request.place.path / LOG, keep=(lock,))


def refuse(place: Place, experiment: str, *, taken: bool) -> None:
    """Raise UsageError if there are results already, or files of something else, such as another report."""
    names = sorted(entry.name for entry in place.path.iterdir() if not entry.name.startswith("."))
    if names and not {*names} & {*SETTINGS, LOG, *(place.store(name).name for name in _TITLES)}:
        raise UsageError(
            f"'{place.out}' holds {quoted(names[0])}{' and other files' if names[1:] else ''}, and nothing that "
            "'surebound reproduce' wrote; expected a new or empty folder, or one that it began"
        )
    if taken:
        raise UsageError(
            f"'{place.out}' already holds results of {experiment}; "
            "expected --resume to go on with them, or another --out"
        )


def check(place: Place) -> "Dataset":
    """The images. Raises now what a training would only complain about later."""
    from surebound.bounds.device import expect_usable
    from surebound.data import load_dataset

    expect_usable(place.device, f"--device '{place.device}'")
    return load_dataset(place.scale.dataset, place.data_dir)


def failure(ended: JobEnded) -> str:
    """A sentence on a job that failed."""
    return f"{ended.job} failed: {ended.reason}"


def document(experiment: str, scale: Scale, tables: Mapping[str, str], failures: Sequence[str], note: str = "") -> str:
    """A summary in Markdown: the table of each profile with what differs from the paper below it, and what failed."""
    parts = [f"# {_TITLES[experiment]}, scale {scale.name}"]
    for search, table in tables.items():
        points = "\n".join(f"- {sentence}" for sentence in scale.differences(experiment, search))
        parts += [f"## With {SEARCHES[search]}", table, f"### What differs from the paper\n\n{points}"]
    parts += [note] * bool(note)
    if failures:
        parts.append("## Failed\n\n" + "\n".join(f"- {sentence}" for sentence in failures))
    return "\n\n".join(part.strip() for part in parts) + "\n"


def write(path: Path, text: str) -> None:
    """Write a summary, whole."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_page(place: Place, store: Path) -> Path:
    """The HTML page on everything in the folder."""
    from surebound.report.page import default_output, make_page

    path = default_output(place.path)
    settle(store)
    write(path, make_page(place.path))
    settle(store)  # readers leave a log, too
    return path


def settle(path: Path) -> None:
    """Make a store, or have all that was written to it in the one file."""
    with Store(path):
        pass


def table1_trainings(request: Request) -> list[Training]:
    """All trainings of table 1: every method and radius with the first seed, then with the next."""
    return [
        Training(setting, method, seed)
        for seed in request.place.scale.seeds
        for method in request.methods
        for setting in request.settings
    ]

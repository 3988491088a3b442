"""What both experiments share: a plan, checks before any work, and what comes out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from surebound.errors import UsageError
from surebound.files import replacing
from surebound.reproduce.place import Place
from surebound.reproduce.pool import Ended
from surebound.reproduce.scales import METHODS, SETTINGS, Cell, Scale


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to reproduce."""

    place: Place
    resume: bool = False
    workers: int | None = None
    settings: tuple[str, ...] = tuple(SETTINGS)
    methods: tuple[str, ...] = METHODS
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


def refuse(place: Place, experiment: str, *, taken: bool) -> None:
    """An error if there are results already."""
    if taken:
        raise UsageError(
            f"'{place.out}' already holds results of {experiment}; "
            "expected --resume to go on with them, or another --out"
        )


def check_data(place: Place) -> None:
    """An error that says where to put the data, if it is not there."""
    from surebound.data import load_dataset

    load_dataset(place.scale.dataset, place.data_dir)


def failure(ended: Ended) -> str:
    """A sentence on a job that failed."""
    return f"{ended.job} failed: {ended.reason}"


def document(title: str, scale: Scale, body: str, failures: Sequence[str], after: str = "") -> str:
    """A summary in Markdown: the table, what failed, and what differs from the paper."""
    parts = [f"# {title}, scale {scale.name}", body]
    if failures:
        parts.append("## Failed\n\n" + "\n".join(f"- {sentence}" for sentence in failures))
    parts.append("## What differs from the paper\n\n" + "\n".join(f"- {sentence}" for sentence in scale.differs))
    return "\n\n".join(part.strip() for part in (*parts, after) if part) + "\n"


def write(path: Path, text: str) -> None:
    """Write a summary, whole."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_page(place: Place) -> Path:
    """The HTML page on everything in the folder."""
    from surebound.report.page import default_output, make_page

    path = default_output(place.path)
    write(path, make_page(place.path))
    return path


def table1_cells(plan: Plan) -> list[Cell]:
    """All trainings of table 1: every method and radius with the first seed, then with the next."""
    return [
        Cell(setting, method, seed)
        for seed in plan.place.scale.seeds
        for method in plan.methods
        for setting in plan.settings
    ]

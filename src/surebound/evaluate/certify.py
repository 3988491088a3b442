"""Certifies the images of a data set and writes each one's result to a store as soon as it is known.

Work comes in two kinds: screening a batch of images, and searching one image that screening left open. Searches go
first, so that rows are complete as early as possible and a killed run has little to do again. Processes share nothing:
each loads the network once, gets images and returns rows, and only the process that was called writes.
"""

import hashlib
import os
import platform
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from typing import Any, final

import numpy as np

from surebound.data.dataset import Dataset
from surebound.errors import MissingFileError, StoreError, UsageError
from surebound.evaluate.radius import search_radius
from surebound.evaluate.stages import Certifier, Open, Sample, Settings, property_sha256
from surebound.evaluate.store import Accuracies, Row, Run, Store
from surebound.evaluate.workers import Work, Workers
from surebound.problem import Robustness
from surebound.version import __version__

BATCH = 50  # images screened together


@dataclass(frozen=True, kw_only=True)
class CertifyProgress:
    """How far a certification is."""

    done: int
    total: int
    accuracies: Accuracies  # of the images that are done
    seconds: float
    remaining: float | None  # seconds, estimated; None before anything is done

    @property
    def share(self) -> float:
        return self.done / max(self.total, 1)


OnProgress = Callable[[CertifyProgress], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class Certification:
    """What came out: the rows of all images that were asked for, also those of earlier runs."""

    store: Path
    run: int  # its number in the store
    rows: tuple[Row, ...]
    seconds: float

    @property
    def accuracies(self) -> Accuracies:
        return Accuracies.of(self.rows)


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """What to certify, and how."""

    model: Path  # an ONNX file, or the folder of a training run that ended
    dataset: Dataset
    eps: Fraction
    images: Sequence[int]  # of the test images
    settings: Settings = field(default_factory=Settings)
    notes: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    @property
    def file(self) -> Path:
        """The ONNX file."""
        file = self.model / "model.onnx" if self.model.is_dir() else self.model
        if not file.is_file():
            raise MissingFileError(
                f"there is no network '{file}'; expected an ONNX file, or the folder of a training run that ended"
            )
        return file

    def sample(self, image: int) -> Sample:
        x, y = self.dataset.test.take([image])
        return Sample(image, np.asarray(x, dtype=np.float32).reshape(-1), int(y[0]))

    def describe(self) -> Run:
        """The run as the store keeps it."""
        return Run(
            model=str(self.model),
            model_sha256=hashlib.sha256(self.file.read_bytes()).hexdigest(),
            dataset=self.dataset.name,
            shape=tuple(self.dataset.shape),
            classes=tuple(self.dataset.classes),
            eps=str(self.eps),
            images=tuple(self.images),
            options=asdict(self.settings),
            notes=dict(self.notes),
            command=self.command,
            version=__version__,
            machine=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def certify(
    task: Task, store: Path, *, workers: int = 1, resume: bool = False, on_progress: OnProgress | None = None
) -> Certification:
    """Certify the images that have no row yet. See `surebound.certify` for the public form."""
    begin = time.monotonic()
    run = task.describe()
    with Store(store) as results:
        known = results.find(run)
        if known is not None and not resume:
            raise UsageError(
                f"'{store}' already has results of this network, data set, radius and options; "
                "expected --resume to go on with them, or another --store"
            )
        number = results.begin(run)
        done = results.done(number)
        _expect_same_images(task, done, store)
        left = [i for i in task.images if i not in done]
        loop = _Loop(task, results, number, on_progress, finished=[i for i in task.images if i in done])
        with Workers(workers, task.file, task.eps, task.settings, task=_work) as pool:
            loop.run(left, pool)
        rows = {row.image: row for row in results.rows(number)}
        return Certification(
            store=store, run=number, rows=tuple(rows[i] for i in task.images), seconds=time.monotonic() - begin
        )


def _expect_same_images(task: Task, done: Mapping[int, str], store: Path) -> None:
    for image in task.images:
        if image in done and done[image] != property_sha256(task.sample(image), task.eps):
            raise StoreError(
                f"image {image} of '{task.dataset.name}' is not the one that '{store}' has a result for; "
                "expected the data set that the run began with"
            )


def _work(certifier: Certifier, work: Work) -> tuple[list[Row], list[Open]]:
    """What a worker does: a screening or a search, and the radius of what it settles."""
    rows, open_ = certifier.screen(work) if isinstance(work, list) else ([certifier.search(work)], [])
    if certifier.settings.radius_search:
        samples = {s.image: s for s in (work if isinstance(work, list) else [work.sample])}
        rows = [search_radius(certifier, row, samples[row.image]) for row in rows]
    return rows, open_


@final
class _Loop:
    """Hands out work and writes rows."""

    def __init__(
        self, task: Task, results: Store, number: int, on_progress: OnProgress | None, *, finished: Sequence[int]
    ) -> None:
        self._task, self._results, self._number, self._on_progress = task, results, number, on_progress
        asked = set(finished)
        self._rows = [row for row in results.rows(number) if row.image in asked]
        self._before = len(self._rows)
        self._begin = time.monotonic()

    def run(self, left: Sequence[int], pool: Workers) -> None:
        batches = deque(list(left[i : i + BATCH]) for i in range(0, len(left), BATCH))
        open_: deque[Open] = deque()
        running: set[Future[tuple[list[Row], list[Open]]]] = set()
        self._report()
        while batches or open_ or running:
            while len(running) < pool.slots and (batches or open_):
                work: Work = open_.popleft() if open_ else [self._task.sample(i) for i in batches.popleft()]
                running.add(pool.submit(work))
            finished, running = wait(running, return_when=FIRST_COMPLETED)
            for future in finished:
                rows, more = future.result()
                for row in rows:
                    self._results.add(self._number, row)
                self._rows += rows
                open_.extend(more)
            self._report()

    def _report(self) -> None:
        if self._on_progress is None:
            return
        done, total = len(self._rows), len(self._task.images)
        seconds, fresh = time.monotonic() - self._begin, len(self._rows) - self._before
        remaining = seconds / fresh * (total - done) if fresh else None
        accuracies = Accuracies.of(self._rows)
        self._on_progress(
            CertifyProgress(done=done, total=total, accuracies=accuracies, seconds=seconds, remaining=remaining)
        )


def exact(eps: float | str | Fraction) -> Fraction:
    """A radius from 0 to 1, taken exactly."""
    radius = Robustness(np.zeros(0), 0, eps).radius()
    if radius > 1:
        raise UsageError(f"eps must be from 0 to 1, got {eps!r}")
    return radius

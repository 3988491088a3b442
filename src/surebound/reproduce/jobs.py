"""The jobs of an experiment, on whatever engine: handed out in their order, with what follows from one first."""

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, final

from surebound.data import load_dataset
from surebound.errors import SureboundError, WorkerLostError, one_line
from surebound.evaluate.certifying import Certifying, rank
from surebound.evaluate.store import Row, Store
from surebound.evaluate.worker import Work
from surebound.load.onnx import load_model
from surebound.reproduce.job import Job
from surebound.reproduce.pace import Pace
from surebound.reproduce.perform import ExperimentSetup, Part, Piece, table1_task
from surebound.reproduce.place import Place
from surebound.work import Desk, Done, Engine, Event, Failed, Pool, Said

LOG = "workers.log"  # of the output folder: what processes complain about
GRACE = 20.0  # seconds for a training to be saved in
_TICK = 0.5  # seconds


@dataclass(frozen=True, kw_only=True)
class JobEnded:
    """A job that is over; `result` is None if it failed, for a `reason`."""

    job: Job
    seconds: float
    result: dict[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How far the work is."""

    done: int
    total: int
    running: tuple[str, ...]
    remaining: float | None  # seconds, estimated; None if nothing like it was done yet
    ended: JobEnded | None = None  # the job that just ended


OnStatus = Callable[[Status], None]
Then = Callable[[JobEnded], Sequence[Job]]
"""Jobs to do next, now that one has ended."""


def run_jobs(
    engine: Engine, place: Place, jobs: Iterable[Job], *, then: Then = lambda _: (), total: int, on_status: OnStatus
) -> None:
    """Do jobs in their order, those that follow from one first. `total` counts all."""
    with engine.open(ExperimentSetup(place.absolute())) as pool, _Stores(place) as stores:
        _Jobs(place, pool, stores, jobs, then, total, on_status).run()


@dataclass(eq=False)
class _Active:
    """A job under way."""

    job: Job
    number: int
    began: float = field(default_factory=time.monotonic)
    share: float = 0.0
    text: str = ""
    certifying: Certifying | None = None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def __str__(self) -> str:
        return f"{self.job}, {self.text}" if self.text else str(self.job)


@final
class _Stores:
    """The results of each experiment, opened when they are needed: only this process writes to them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._open: dict[str, Store] = {}

    def __getitem__(self, experiment: str) -> Store:
        if experiment not in self._open:
            self._open[experiment] = Store(self._place.store(experiment))
        return self._open[experiment]

    def __enter__(self) -> "_Stores":
        return self

    def __exit__(self, *_: object) -> None:
        for store in self._open.values():
            store.close()


@final
class _Jobs:
    """Which jobs wait, which are under way, and what comes out of them."""

    def __init__(
        self,
        place: Place,
        pool: Pool[Part, Any],
        stores: _Stores,
        jobs: Iterable[Job],
        then: Then,
        total: int,
        on_status: OnStatus,
    ) -> None:
        self._place, self._pool, self._stores = place, pool, stores
        self._then, self._total, self._on_status = then, total, on_status
        self._desk = Desk[Part, Any](pool)
        self._waiting = deque(jobs)
        self._active: dict[Job, _Active] = {}
        self._numbers, self._done, self._pace = count(), 0, Pace()
        self._dataset = load_dataset(place.scale.dataset, place.data_dir)

    def run(self) -> None:
        """Until all jobs are over."""
        self._feed()
        for event in self._desk.events(_TICK):
            done = self._done
            self._heard(event)
            self._feed()
            if self._done == done:
                self._on_status(self._status())

    def _feed(self) -> None:
        """Begin jobs while some worker has nothing to do."""
        while self._waiting and len(self._desk) < self._pool.slots:
            job = self._waiting.popleft()
            active = self._active[job] = _Active(job, next(self._numbers))
            if job.kind == "certify":
                self._begin_certifying(active)
            else:
                self._desk.add(job, rank=(active.number,), grace=GRACE if job.kind in ("train", "try") else 0.0)

    def _begin_certifying(self, active: _Active) -> None:
        training, place = active.job.training, self._place
        try:
            seconds = place.training_seconds(training)
            notes = place.notes(
                "table1", training, method=training.method, seed=training.seed, training_seconds=seconds
            )
            task = table1_task(place, training, self._dataset, active.job.search, notes)
            active.certifying = Certifying(task, load_model(task.file), self._stores["table1"], resume=True)
            self._go_on(active, active.certifying.begin(self._pool.slots))
        except SureboundError as error:
            self._end(active, active.seconds, reason=self._why(error))

    def _go_on(self, active: _Active, works: Sequence[Work]) -> None:
        """Hand out the next images of a certification, or end it."""
        assert active.certifying is not None
        for work in works:
            self._desk.add(Piece(active.job, work), rank=(active.number, *rank(work)))
        progress = active.certifying.progress(self._pool.slots)
        active.share, active.text = progress.share, f"{progress.done:,} of {progress.total:,} images"
        if active.certifying.over:
            found = progress.accuracies
            shares = {name: getattr(found, name) for name in ("standard", "robust", "verified")}
            self._end(active, active.seconds, {"images": found.images, **shares})

    def _heard(self, event: Event[Part, Any] | None) -> None:
        if event is None:
            return
        part = event.task
        active = self._active.get(part.job if isinstance(part, Piece) else part)
        if active is None:  # the last words of a certification that failed
            return
        certifying = active.certifying
        match event, part:
            case Said(_, (share, text)), _:
                active.share, active.text = share, text
            case Done(_, answer, seconds), Piece(_, work) if certifying is not None:
                self._go_on(active, certifying.done(work, answer, seconds))
            case Failed(_, WorkerLostError() as error, seconds), Piece(_, work) if certifying is not None:
                self._go_on(active, certifying.lost(work, str(error), seconds))
            case Done(_, result, seconds), Job():
                self._end(active, seconds, self._branched(part, result) if part.kind == "branch" else result)
            case Failed(_, error, seconds), _:
                self._desk.discard(lambda other: isinstance(other, Piece) and other.job is active.job)
                self._end(active, seconds, reason=self._why(error))

    def _branched(self, job: Job, rows: dict[str, Row]) -> dict[str, Any]:
        """Write what each rule came to."""
        for rule, row in rows.items():
            self._stores["branching"].add(job.runs[rule], row)
        return {rule: [row.outcome, round(row.seconds, 3)] for rule, row in rows.items()}

    def _end(self, active: _Active, seconds: float, result: dict[str, Any] | None = None, reason: str = "") -> None:
        """Take note of a job that is over, and of what follows from it."""
        del self._active[active.job]
        ended = JobEnded(job=active.job, seconds=seconds, result=result, reason=reason)
        self._done += 1
        self._pace.add(active.job.kind, seconds)
        self._waiting.extendleft(reversed(self._then(ended)))
        self._on_status(self._status(ended))

    def _status(self, ended: JobEnded | None = None) -> Status:
        busy = list(self._active.values())
        left = self._pace.remaining(
            [job.kind for job in self._waiting],
            [(active.job.kind, active.share, active.seconds) for active in busy],
            self._total - self._done,
            self._pool.slots,
        )
        running = tuple(map(str, busy))
        return Status(done=self._done, total=self._total, running=running, remaining=left, ended=ended)

    def _why(self, error: Exception) -> str:
        """A sentence on an error."""
        if isinstance(error, SureboundError):
            log = self._place.path / LOG
            hint = f"; see '{log}'" if isinstance(error, WorkerLostError) and log.exists() else ""
            return f"{one_line(error)}{hint}"
        return f"{type(error).__name__}: {one_line(error)}"

"""Certifies the images of a data set and writes each one's result to a store as soon as it is known.

Work comes in three kinds: screening a batch of images, searching one image that screening left open, and bisecting the
radius of one. What ends an image goes first, so that rows are complete as early as possible and a killed run has little
to do again. Processes share nothing: each loads the network once, gets images and returns rows, and only the process
that was called writes.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from surebound.errors import ResourceError, StoreError, UsageError
from surebound.evaluate.evidence import Proofs
from surebound.evaluate.proofs import ProofFolder
from surebound.evaluate.stages import Certifier, Open, Sample
from surebound.evaluate.store import Accuracies, Row, Run, Store
from surebound.evaluate.task import Task, check_fits
from surebound.evaluate.workers import Probe, Result, Work, Workers
from surebound.load.onnx import load_model

BATCH = 50  # images screened together, at most


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
        return Accuracies.of_rows(self.rows)

    @property
    def proofs(self) -> Proofs:
        """What is known of the proofs."""
        return Proofs.of_rows(self.rows)

    def __repr__(self) -> str:
        return f"Certification(run {self.run} of '{self.store}', {self.accuracies})"


def certify(
    task: Task, store: Path, *, workers: int = 1, resume: bool = False, on_progress: OnProgress | None = None
) -> Certification:
    """Certify the images that have no row yet. See `surebound.certify` for the public form."""
    begin = time.monotonic()
    if not isinstance(workers, int) or workers < 1:
        raise UsageError(f"workers is {workers!r}; expected a whole number from 1 up")
    model = load_model(task.file)
    check_fits(model, task.dataset)
    run = task.describe()
    with Store(store) as results:
        if results.find(run) is not None and not resume:
            raise UsageError(
                f"'{store}' already has results of this network, data set, radius and options; "
                "expected --resume (resume=True) to go on with them, or another store"
            )
        expect_same_data(results, run)
        folder = task.folder
        if folder is not None:
            folder.prepare(model.network, run.subject)
        number = results.begin(run)
        done = results.outcomes(number)
        again = {i for i, outcome in done.items() if folder and outcome == "verified" and not folder.has(i)}
        ended = [done[i] for i in task.images if i in done and i not in again]
        loop = _Loop(task, results, number, ended, again, on_progress)
        certifier = Certifier(model, task.eps, task.settings, folder)
        with _cleared(folder), Workers(workers, task.file, certifier) as pool:
            try:
                loop.run([i for i in task.images if i not in done or i in again], pool)
            except BrokenProcessPool as error:
                raise ResourceError(
                    f"a worker was killed, perhaps for lack of memory; what is done is in '{store}', and resuming goes "
                    "on from there (fewer workers need less memory)"
                ) from error
        rows = {row.image: row for row in results.rows(number)}
        return Certification(
            store=store, run=number, rows=tuple(rows[i] for i in task.images), seconds=time.monotonic() - begin
        )


def so_far(task: Task, store: Path, seconds: float) -> Certification | None:
    """What there is of a certification that was interrupted after so long; None if it has not begun."""
    try:
        with Store(store, readonly=True) as results:
            number = results.find(task.describe())
            rows = {} if number is None else {row.image: row for row in results.rows(number)}
    except StoreError:  # it is not there yet, or not whole
        return None
    if number is None:
        return None
    done = tuple(rows[i] for i in task.images if i in rows)
    return Certification(store=store, run=number, rows=done, seconds=seconds)


def expect_same_data(results: Store, run: Run) -> None:
    """Raise StoreError if the store has this very run, but on other images under the same name."""
    for other in results.runs().values():
        if other.key != run.key and replace(other, data_sha256=run.data_sha256).key == run.key:
            raise StoreError(
                f"'{results.path}' has results of other images under the name '{run.dataset}'; "
                "expected the data set that the run began with, or another store"
            )


@contextmanager
def _cleared(folder: ProofFolder | None) -> Iterator[None]:
    """Whatever happens, no half of a proof is left behind."""
    try:
        yield
    finally:
        if folder is not None:
            folder.clear()


@final
class _Loop:
    """Hands out work and writes rows."""

    def __init__(
        self,
        task: Task,
        results: Store,
        number: int,
        done: Sequence[str],
        again: Collection[int],
        on_progress: OnProgress | None,
    ) -> None:
        """`done` is how images ended before; those of `again` were verified then, and lack but a proof."""
        self._task, self._results, self._number, self._on_progress = task, results, number, on_progress
        self._again = again
        self._outcomes = Counter(done)
        self._before = len(done)
        self._begin = time.monotonic()

    def run(self, left: Sequence[int], pool: Workers) -> None:
        size = max(1, min(BATCH, -(-len(left) // pool.slots)))
        batches = deque(list(left[i : i + size]) for i in range(0, len(left), size))
        urgent: deque[Open | Probe] = deque()
        running: dict[Future[Result], Work] = {}
        self._report()
        while batches or urgent or running:
            while len(running) < pool.slots and (batches or urgent):
                work: Work = urgent.popleft() if urgent else [self._task.sample(i) for i in batches.popleft()]
                running[pool.submit(work)] = work
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                urgent.extend(self._take(running.pop(future), future.result()))
            self._report()

    def _take(self, work: Work, result: Result) -> list[Open | Probe]:
        """Write the rows that are final; what is to do next."""
        more: list[Open | Probe] = list(result.open)
        samples = {s.image: s for s in _samples(work)}
        for row in result.rows:
            if row.image in self._again:
                self._results.prove(self._number, row)
                self._outcomes["verified" if row.proof is None else row.outcome] += 1
            elif self._task.settings.radius_search and row.correct and not isinstance(work, Probe):
                more.append(Probe(samples[row.image], row))
            else:
                self._results.add(self._number, row)
                self._outcomes[row.outcome] += 1
        return more

    def _report(self) -> None:
        if self._on_progress is None:
            return
        done, total = self._outcomes.total(), len(self._task.images)
        seconds, fresh = time.monotonic() - self._begin, done - self._before
        remaining = seconds / fresh * (total - done) if fresh else None
        accuracies = Accuracies.of(self._outcomes)
        self._on_progress(
            CertifyProgress(done=done, total=total, accuracies=accuracies, seconds=seconds, remaining=remaining)
        )


def _samples(work: Work) -> list[Sample]:
    return work if isinstance(work, list) else [work.sample]

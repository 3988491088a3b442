"""Certifies the images of a data set and writes each one's result to a store as soon as it is known.

Work comes in three kinds: screening a batch of images, searching one image that screening left open, and bisecting the
radius of one. Screening goes first; then it is known which images are hard, and these are searched first, lest one that
takes long is begun when all others are done. Workers share nothing: each loads the network once, gets indices of images
and returns rows, and only the process that was called writes.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from surebound.errors import StoreError, UsageError, WorkerLostError
from surebound.evaluate.evidence import Proofs
from surebound.evaluate.proofs import ProofFolder
from surebound.evaluate.stages import Certifier, Open
from surebound.evaluate.store import Accuracies, Row, Run, Store
from surebound.evaluate.task import Task, check_fits
from surebound.evaluate.worker import CertifySetup, Probe, Result, Screen, Work
from surebound.load.onnx import load_model
from surebound.load.portable import PortableNetwork
from surebound.work import Desk, Done, Engine, Failed, Pool
from surebound.work.inline import Inline

BATCH = 50  # images screened together, at most


@dataclass(frozen=True, kw_only=True)
class CertifyProgress:
    """How far a certification is."""

    done: int
    total: int
    accuracies: Accuracies  # of the images that are done
    seconds: float
    remaining: float | None  # seconds, estimated; None before anything like it is done

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
    alone: float = 0.0  # seconds of those in which the last image was at work, and other workers had nothing to do

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
    task: Task, store: Path, *, engine: Engine = Inline(), resume: bool = False, on_progress: OnProgress | None = None
) -> Certification:
    """Certify the images that have no row yet. See `surebound.certify` for the public form."""
    begin = time.monotonic()
    model = load_model(task.file)
    check_fits(model, task.dataset)
    run, folder = task.describe(), task.folder
    setup = CertifySetup(
        network=PortableNetwork(task.file, model=model, pack=engine.remote),
        eps=task.eps,
        settings=task.settings,
        samples=task.samples,
        proofs=folder,
        remote=engine.remote,
    )
    with engine.open(setup) as pool, Store(store) as results:
        if results.find(run) is not None and not resume:
            raise UsageError(
                f"'{store}' already has results of this network, data set, radius and options; "
                "expected --resume (resume=True) to go on with them, or another store"
            )
        expect_same_data(results, run)
        if folder is not None:
            folder.prepare(model.network, run.subject)
        number = results.begin(run)
        done = results.outcomes(number)
        again = {i for i, outcome in done.items() if folder and outcome == "verified" and not folder.has(i)}
        ended = [done[i] for i in task.images if i in done and i not in again]
        loop = _Loop(task, Certifier(model, task.eps, task.settings), results, number, ended, again, on_progress)
        with _cleared(folder):
            alone = loop.run([i for i in task.images if i not in done or i in again], pool)
        rows = {row.image: row for row in results.rows(number)}
    return Certification(
        store=store,
        run=number,
        rows=tuple(rows[i] for i in task.images),
        seconds=time.monotonic() - begin,
        alone=alone,
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
        certifier: Certifier,
        results: Store,
        number: int,
        done: Sequence[str],
        again: Collection[int],
        on_progress: OnProgress | None,
    ) -> None:
        """`done` is how images ended before; those of `again` were verified then, and lack but a proof."""
        self._task, self._certifier, self._results, self._number = task, certifier, results, number
        self._on_progress = on_progress
        self._again = again
        self._outcomes = Counter(done)
        self._left, self._over = Counter[str](), Counter[str]()  # images by the kind of work
        self._spent: defaultdict[str, float] = defaultdict(float)  # seconds
        self._begin = time.monotonic()

    def run(self, left: Sequence[int], pool: Pool[Work, Result]) -> float:
        """Certify images; how many seconds the last one was alone for."""
        desk = Desk(pool)
        size = max(1, min(BATCH, -(-len(left) // pool.slots)))
        self._add(desk, [Screen(tuple(left[i : i + size])) for i in range(0, len(left), size)])
        self._report(pool.slots)
        for event in desk.events():
            match event:
                case Done(work, result, seconds):
                    self._count(work, seconds)
                    self._add(desk, self._take(work, result))
                case Failed(work, WorkerLostError() as error, seconds):
                    self._count(work, seconds)
                    self._add(desk, self._lost(work, str(error), seconds))
                case Failed(_, error, _):
                    raise error
            self._report(pool.slots)
        return desk.alone

    def _add(self, desk: Desk[Work, Result], works: Sequence[Work]) -> None:
        for work in works:
            self._left[type(work).__name__] += len(work.images)
            desk.add(work, rank=_rank(work))

    def _count(self, work: Work, seconds: float) -> None:
        kind, images = type(work).__name__, len(work.images)
        self._left[kind] -= images
        self._over[kind] += images
        self._spent[kind] += seconds

    def _take(self, work: Work, result: Result) -> list[Work]:
        """Write the rows that are final; what is to do next."""
        if result.files and self._task.folder is not None:
            self._task.folder.receive(result.files)
        more: list[Work] = list(result.open)
        probed = self._task.settings.radius_search and not isinstance(work, Probe)
        for row in result.rows:
            if probed and row.correct and row.image not in self._again:
                more.append(Probe(row))
            else:
                self._write(row)
        return more

    def _lost(self, work: Work, reason: str, seconds: float) -> list[Work]:
        """Workers died of a piece of work: look for the image that they died of, which stays undecided."""
        if len(work.images) > 1:
            return [Screen((image,)) for image in work.images]
        if isinstance(work, Probe):
            self._write(replace(work.row, reason=f"its radii are not known: {reason}"))
        else:
            self._write(self._certifier.give_up(self._task.samples[work.images[0]], reason, seconds))
        return []

    def _write(self, row: Row) -> None:
        if row.image in self._again:
            self._results.prove(self._number, row)
            self._outcomes["verified" if row.proof is None else row.outcome] += 1
        else:
            self._results.add(self._number, row)
            self._outcomes[row.outcome] += 1

    def _report(self, slots: int) -> None:
        if self._on_progress is None:
            return
        self._on_progress(
            CertifyProgress(
                done=self._outcomes.total(),
                total=len(self._task.images),
                accuracies=Accuracies.of(self._outcomes),
                seconds=time.monotonic() - self._begin,
                remaining=self._remaining(slots),
            )
        )

    def _remaining(self, slots: int) -> float | None:
        """Seconds, from those that work of the same kinds took."""
        kinds = [kind for kind, images in self._left.items() if images]
        if not all(self._over[kind] for kind in kinds):
            return None
        return sum(self._left[kind] * self._spent[kind] / self._over[kind] for kind in kinds) / slots


def _rank(work: Work) -> tuple[float, ...]:
    """What goes first: what says which images are hard, then what ends an image, then the hardest."""
    match work:
        case Screen():
            return (0.0,)
        case Probe():
            return (1.0,)
        case Open():
            return (2.0, work.margin)

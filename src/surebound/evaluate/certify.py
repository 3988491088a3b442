"""Certifies the images of a data set and writes each one's result to a store as soon as it is known.

Workers share nothing: each loads the network once, gets indices of images and returns rows, and only the process that
was called writes.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from surebound.errors import StoreError, WorkerLostError
from surebound.evaluate.certifying import Certifying, OnProgress, expect_room_for, rank
from surebound.evaluate.evidence import Proofs
from surebound.evaluate.proofs import ProofFolder
from surebound.evaluate.store import Accuracies, Row, Store
from surebound.evaluate.task import Task, check_fits
from surebound.evaluate.worker import CertifySetup, Result, Work
from surebound.load.onnx import load_model
from surebound.load.portable import PortableNetwork
from surebound.network.model import Model
from surebound.work import Desk, Done, Engine, Failed
from surebound.work.inline import Inline

_TICK = 2.0  # seconds after which progress is reported, though nothing happened


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
    report = on_progress or (lambda _: None)
    sha256, model = task.sha256, load_model(task.file)
    check_fits(model, task.dataset)
    if task.folder is not None:
        _prepare(task, task.folder, model, store, resume=resume)
    setup = CertifySetup(
        network=PortableNetwork(task.file, sha256=sha256, model=model, pack=engine.remote, device=task.device),
        eps=task.eps,
        settings=task.settings,
        samples=task.samples,
        proofs=task.folder,
        remote=engine.remote,
        room=task.room,
    )
    with engine.open(setup) as pool, Store(store) as results, _cleared(task.folder):
        certifying = Certifying(task, model, results, resume=resume)
        desk = Desk[Work, Result](pool)
        more = certifying.begin(pool.slots)
        report(certifying.progress(pool.slots))
        _add(desk, more)
        for events in desk.batches(_TICK):
            with certifying.together():
                for event in events:
                    match event:
                        case Done(work, result, seconds):
                            _add(desk, certifying.done(work, result, seconds))
                        case Failed(work, WorkerLostError() as error, seconds):
                            _add(desk, certifying.lost(work, str(error), seconds))
                        case Failed(_, error, _):
                            raise error
            report(certifying.progress(pool.slots))
        return Certification(
            store=store,
            run=certifying.number,
            rows=certifying.rows(),
            seconds=time.monotonic() - begin,
            alone=desk.alone,
        )


def _prepare(task: Task, folder: ProofFolder, model: Model, store: Path, *, resume: bool) -> None:
    """Have the folder for proofs before there is a new store, and the store's complaints before there is a folder."""
    run = task.describe()
    if store.exists():
        with Store(store) as results:
            expect_room_for(results, run, resume=resume)
    folder.prepare(model.network, run.subject)


def _add(desk: Desk[Work, Result], works: list[Work]) -> None:
    for work in works:
        desk.add(work, rank=rank(work))


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


@contextmanager
def _cleared(folder: ProofFolder | None) -> Iterator[None]:
    """Whatever happens, no half of a proof is left behind."""
    try:
        yield
    finally:
        if folder is not None:
            folder.clear()

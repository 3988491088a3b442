"""A certification under way: what there is to do, and what becomes of what workers answer.

Work comes in three kinds: screening a batch of images, searching one image that screening left open, and bisecting the
radius of one. Screening goes first; then it is known which images are hard, and these are searched first, lest one that
takes long is begun when all others are done.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import final

from surebound.errors import StoreError, UsageError
from surebound.evaluate.room import images_together
from surebound.evaluate.stages import Certifier, Open
from surebound.evaluate.store import Accuracies, Row, Run, Store
from surebound.evaluate.task import Task
from surebound.evaluate.worker import Probe, Result, Screen, Work
from surebound.network.model import Model

BATCH = 50  # images screened together, at most


@dataclass(frozen=True, kw_only=True)
class CertifyProgress:
    """How far a certification is."""

    done: int
    total: int
    accuracies: Accuracies  # of the images that are done
    seconds: float
    remaining: float | None  # seconds, estimated; None before anything like it is done
    memory: int  # bytes that each process is expected to take at most, about

    @property
    def share(self) -> float:
        return self.done / max(self.total, 1)


OnProgress = Callable[[CertifyProgress], None]


@final
class Certifying:
    """Says what to do next, and writes rows."""

    def __init__(self, task: Task, model: Model, results: Store, *, resume: bool) -> None:
        """Begin, or go on, with a run in a store. Images that were verified and lack but a proof are done again."""
        run, folder = task.describe(), task.folder
        expect_room_for(results, run, resume=resume)
        self.number = results.begin(run)
        done = results.outcomes(self.number)
        self._task, self._results, self._folder = task, results, folder
        self._certifier = Certifier(model, task.eps, task.settings)
        self._network, self._memory = model.network, task.room.expected(model.network)
        self._again = set[int]()
        if folder is not None:
            proofs = results.proved(self.number)
            verified = (i for i, outcome in done.items() if outcome == "verified")
            self._again = {i for i in verified if not folder.suffices(i, proofs.get(i))}
        self._outcomes = Counter(done[i] for i in task.images if i in done and i not in self._again)
        self._missing = [i for i in task.images if i not in done or i in self._again]
        self._left, self._over = Counter[str](), Counter[str]()  # images by the kind of work
        self._spent: defaultdict[str, float] = defaultdict(float)  # seconds
        self._begin = time.monotonic()
        self._waiting: list[Row] | None = None  # rows to be written `together`

    def begin(self, slots: int) -> list[Work]:
        """The first pieces of work, for so many workers."""
        left = self._missing
        even = -(-len(left) // slots)
        size = max(1, min(images_together(self._network, self._task.settings.passes, BATCH), even))
        return self._counted([Screen(tuple(left[i : i + size])) for i in range(0, len(left), size)])

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write all rows that become known inside at the end, in one transaction: syncing the store takes longer than
        writing to it, and many workers may have answered meanwhile."""
        waiting: list[Row] = []
        self._waiting = waiting
        try:
            yield
        finally:
            self._waiting = None
            self._write(*waiting)

    def done(self, work: Work, result: Result, seconds: float) -> list[Work]:
        """Write the rows that are final. Returns the work that follows."""
        self._count(work, seconds)
        if result.files and self._folder is not None:
            self._folder.receive(result.files)
        more: list[Work] = list(result.open)
        probed = self._task.settings.radius_search and not isinstance(work, Probe)
        final = []
        for row in result.rows:
            if probed and row.correct and row.image not in self._again:
                more.append(Probe(row))
            else:
                final.append(row)
        self._write(*final)
        return self._counted(more)

    def lost(self, work: Work, reason: str, seconds: float) -> list[Work]:
        """A piece of work has killed its workers: find the image that did it, and leave that one undecided."""
        self._count(work, seconds)
        if len(work.images) > 1:
            return self._counted([Screen((image,)) for image in work.images])
        if isinstance(work, Probe):
            self._write(replace(work.row, reason=f"its radii are not known: {reason}"))
        else:
            self._write(self._certifier.give_up(self._task.samples[work.images[0]], reason, seconds))
        return []

    @property
    def over(self) -> bool:
        """Whether all that was handed out came back."""
        return not self._left.total()

    def progress(self, slots: int) -> CertifyProgress:
        """How far it is."""
        return CertifyProgress(
            done=self._outcomes.total(),
            total=len(self._task.images),
            accuracies=Accuracies.of(self._outcomes),
            seconds=time.monotonic() - self._begin,
            remaining=self._remaining(slots),
            memory=self._memory,
        )

    def rows(self) -> tuple[Row, ...]:
        """All rows, also those of before."""
        rows = {row.image: row for row in self._results.rows(self.number)}
        return tuple(rows[i] for i in self._task.images)

    def _counted(self, works: list[Work]) -> list[Work]:
        for work in works:
            self._left[type(work).__name__] += len(work.images)
        return works

    def _count(self, work: Work, seconds: float) -> None:
        kind, images = type(work).__name__, len(work.images)
        self._left[kind] -= images
        self._over[kind] += images
        self._spent[kind] += seconds

    def _write(self, *rows: Row) -> None:
        """Those of images that are new in one transaction."""
        if self._waiting is not None:
            self._waiting.extend(rows)
            return
        new = [row for row in rows if row.image not in self._again]
        if new:
            self._results.add(self.number, *new)
            self._outcomes.update(row.outcome for row in new)
        for row in rows:
            if row.image in self._again:
                self._results.prove(self.number, row)
                self._outcomes["verified" if row.robust and row.proof is None else row.outcome] += 1

    def _remaining(self, slots: int) -> float | None:
        """Seconds, from those that work of the same kinds took."""
        kinds = [kind for kind, images in self._left.items() if images]
        if not all(self._over[kind] for kind in kinds):
            return None
        return sum(self._left[kind] * self._spent[kind] / self._over[kind] for kind in kinds) / slots


def rank(work: Work) -> tuple[float, ...]:
    """What goes first: what says which images are hard, then what ends an image, then the hardest."""
    match work:
        case Screen():
            return (0.0,)
        case Probe():
            return (1.0,)
        case Open():
            return (2.0, work.margin)


def expect_room_for(results: Store, run: Run, *, resume: bool) -> None:
    """Raise an error if the store has results of this run that are not to be gone on with, or of other images."""
    if results.find(run) is not None and not resume:
        raise UsageError(
            f"'{results.path}' already has results of this network, data set, radius and options; "
            "expected --resume (resume=True) to go on with them, or another store"
        )
    expect_same_data(results, run)


def expect_same_data(results: Store, run: Run) -> None:
    """Raise StoreError if the store has this very run, but on other images under the same name."""
    for other in results.runs().values():
        if other.key != run.key and replace(other, data_sha256=run.data_sha256).key == run.key:
            raise StoreError(
                f"'{results.path}' has results of other images under the name '{run.dataset}'; "
                "expected the data set that the run began with, or another store"
            )

"""Results of certifying data sets, in one SQLite file. Needs nothing but NumPy, so that reports open in an instant.

A *run* is one network over the images of one data set with one radius and one set of options; a file may hold many. A
*row* is one image of a run and how it ended. Rows that are known at the same time are one transaction (write-ahead log,
synced), so a killed process loses at most the images it was working on, and (run, image) is the key, so none can be
there twice. Proofs of rows are in a table of their own (`surebound.evaluate.evidence`).
"""

import hashlib
import json
import re
import sqlite3
import time
from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from typing import Any, Literal, final, get_args

import numpy as np
from numpy.typing import NDArray

from surebound.errors import StoreError
from surebound.evaluate import evidence as proofs
from surebound.evaluate.evidence import Evidence, is_time

Outcome = Literal["misclassified", "attacked", "falsified", "verified", "timeout", "unknown"]
Stage = Literal["standard", "ibp", "crown", "attack", "alpha-crown", "search"]  # in the order in which they run
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
STAGES: tuple[Stage, ...] = get_args(Stage)

_RADIUS = re.compile(r"[0-9]{1,400}(/[0-9]{1,400})?|[0-9]{0,30}\.[0-9]{1,400}")
_APPLICATION = 0x73626E64  # "sbnd": tells our files from other databases
_VERSION = 1
_OLD = {"search": "default", "norm": "inf"}  # options that runs of before had without a name
_PATIENCE = 60.0  # seconds to wait for other processes
_SCHEMA = """
CREATE TABLE runs (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL UNIQUE,
    record TEXT NOT NULL
);
CREATE TABLE rows (
    run INTEGER NOT NULL REFERENCES runs (id),
    image INTEGER NOT NULL,
    label INTEGER NOT NULL,
    predicted INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    stage TEXT NOT NULL,
    seconds REAL NOT NULL,
    subproblems INTEGER NOT NULL,
    lower_bound REAL,
    certified_eps TEXT,
    attacked_eps TEXT,
    reason TEXT NOT NULL,
    phases TEXT NOT NULL,
    property_sha256 TEXT NOT NULL,
    adversarial INTEGER,
    clean BLOB,
    counterexample BLOB,
    PRIMARY KEY (run, image)
) WITHOUT ROWID;
"""
# The columns of a row but for its counterexample, and statements over all of them.
_COLUMNS = (
    *("image", "label", "predicted", "outcome", "stage", "seconds", "subproblems", "lower_bound"),
    *("certified_eps", "attacked_eps", "reason", "phases", "property_sha256"),
)
_PICTURE = ("adversarial", "clean", "counterexample")
_ALL = ("run", *_COLUMNS, *_PICTURE)
_INSERT = (
    f"INSERT INTO rows ({', '.join(_ALL)}) VALUES ({', '.join(f':{name}' for name in _ALL)}) "
    "ON CONFLICT (run, image) DO NOTHING"
)
_PLAIN = f"SELECT {', '.join(_COLUMNS)} FROM rows WHERE run = ? ORDER BY image"
_PICTURES = (
    f"SELECT image, {', '.join(_PICTURE)} FROM rows WHERE run = ? AND counterexample IS NOT NULL ORDER BY image LIMIT ?"
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What was certified, and everything needed to do it again.

    `options` are what the results depend on; `notes` are for people and reports: the method and seed of training, say.
    """

    model: str  # the path as given
    model_sha256: str
    dataset: str
    data_sha256: str = ""  # of the test images and labels
    shape: tuple[int, ...]  # of an image
    classes: tuple[str, ...]
    eps: str  # exact: "2/255"
    images: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    version: str = ""
    machine: str = ""
    started: str = ""  # ISO 8601, UTC

    @property
    def search(self) -> str:
        """The profile; runs of a time when there was one do not name it."""
        return str(self.options.get("search", "default"))

    @property
    def norm(self) -> str:
        """In which the radius is measured; runs of a time when there was one do not name it."""
        return str(self.options.get("norm", "inf"))

    @property
    def radius(self) -> str:
        """The radius, and its norm if that is not ℓ∞."""
        return self.eps if self.norm == "inf" else f"{self.eps} in ℓ{self.norm}"

    @property
    def subject(self) -> dict[str, str]:
        """What its images' properties depend on: whatever the options, these are what is proved."""
        return {"network": self.model_sha256, "dataset": self.dataset, "images": self.data_sha256, "eps": self.radius}

    @property
    def key(self) -> str:
        """A hash of everything that the rows depend on, apart from which images were asked for."""
        options = {name: value for name, value in self.options.items() if _OLD.get(name) != value}
        parts = [self.model_sha256, self.dataset, self.data_sha256, self.eps, options]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, eq=False, kw_only=True)
class Counter:
    """A replayed counterexample: the image, the point, and the class that scores as high as the label there."""

    clean: NDArray[np.float32]  # (inputs,)
    point: NDArray[np.float32]  # (inputs,)
    adversarial: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Row:
    """How one image ended, and which stage settled it.

    With a radius search, `certified_eps` is the largest radius proved and `attacked_eps` the smallest one at which a
    counterexample was replayed, if any.
    """

    image: int
    label: int
    predicted: int
    outcome: Outcome
    stage: Stage
    seconds: float = 0.0  # its share of batched stages, and its own search
    phases: Mapping[str, float] = field(default_factory=dict)  # the same by stage, the search by its parts
    subproblems: int = 0
    lower_bound: float | None = None
    certified_eps: str | None = None
    attacked_eps: str | None = None
    reason: str = ""
    property_sha256: str = ""
    counter: Counter | None = None
    proof: Evidence | None = None

    @property
    def correct(self) -> bool:
        return self.outcome != "misclassified"

    @property
    def withstood(self) -> bool:
        """Correct, and the first attack found nothing."""
        return self.outcome not in ("misclassified", "attacked")

    @property
    def robust(self) -> bool:
        """Correct, and nothing that ran found a counterexample."""
        return self.withstood and self.outcome != "falsified"

    @property
    def verified(self) -> bool:
        return self.outcome == "verified"


@dataclass(frozen=True, kw_only=True)
class Accuracies:
    """Shares of the images, each a part of the one before it; what is robust but not verified is undecided.

    Without any images, the shares are NaN.
    """

    images: int
    standard: float  # right
    withstood: float  # and the first attack found nothing
    robust: float  # nor did anything else that ran
    verified: float
    undecided: float  # timeout or unknown

    @staticmethod
    def of_rows(rows: Iterable[Row]) -> "Accuracies":
        """The accuracies over some rows."""
        return Accuracies.of(row.outcome for row in rows)

    @staticmethod
    def of(outcomes: Iterable[str]) -> "Accuracies":
        """The accuracies over some outcomes, listed or counted."""
        count = Counts(outcomes)
        images = count.total()
        verified, undecided = count["verified"], count["timeout"] + count["unknown"]
        robust = verified + undecided
        withstood = robust + count["falsified"]

        def share(part: int) -> float:
            return part / images if images else nan

        return Accuracies(
            images=images,
            standard=share(withstood + count["attacked"]),
            withstood=share(withstood),
            robust=share(robust),
            verified=share(verified),
            undecided=share(undecided),
        )


def log_of(store: Path) -> Path:
    """Where the newest rows of a store lie while it is written: beside the file itself, not beside a link to it."""
    return Path(f"{store.resolve()}-wal")


@final
class Store:
    """One file of results: `with Store(path) as store: …`."""

    def __init__(self, path: str | Path, *, readonly: bool = False) -> None:
        """Open a store, or make a new one; `readonly` needs one that is there and leaves it as it is."""
        self.path, self._place = Path(path), Path(path).absolute()
        self._identity: tuple[int, int] | None = None  # of the file, once it is there
        if readonly and not self.path.is_file():
            raise StoreError(f"there is no store '{self.path}'; expected a file that surebound certify wrote")
        with self._sentence():
            target = self._readonly_uri() if readonly else str(self._place)
            self._db = sqlite3.connect(target, uri=readonly, isolation_level=None, timeout=_PATIENCE)
            try:
                self._open(readonly)
            except BaseException:
                self._db.close()
                raise

    def _readonly_uri(self) -> str:
        """Without a log beside it the file is complete and nobody writes: it is read as it is, and no log is made."""
        return f"{self.path.resolve().as_uri()}?mode=ro{'' if log_of(self.path).exists() else '&immutable=1'}"

    def _open(self, readonly: bool) -> None:
        if not readonly and self._empty:
            self._keep_a_log()
            with self._transaction():
                if self._empty:  # still: another process may have made it meanwhile
                    self._make()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION:
            raise StoreError(f"'{self.path}' is not a store of results; expected a file that surebound certify wrote")
        if version != _VERSION:
            raise StoreError(f"'{self.path}' is a store of version {version}; expected {_VERSION}")
        self._identity = self._found()
        if not readonly:
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute(proofs.SCHEMA)

    def _found(self) -> tuple[int, int] | None:
        """Which file has the store's name."""
        try:
            stat = self._place.stat()
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def _keep_a_log(self) -> None:
        """Write ahead. Unlike everything else, SQLite does not wait for others to let it change this."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    @property
    def _empty(self) -> bool:
        return not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]

    def _make(self) -> None:
        for statement in _SCHEMA.split(";"):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA application_id = {_APPLICATION}")
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._db.close()

    def runs(self) -> dict[int, Run]:
        """All runs by number, in the order in which they began."""
        with self._sentence():
            found = self._db.execute("SELECT id, record FROM runs ORDER BY id").fetchall()
        with self._whole("its runs"):
            return {number: _run(record) for number, record in found}

    def find(self, run: Run) -> int | None:
        """The number of a run with the same key."""
        with self._sentence():
            found = self._db.execute("SELECT id FROM runs WHERE key = ?", (run.key,)).fetchone()
        return None if found is None else int(found[0])

    def begin(self, run: Run) -> int:
        """Note a run, or give one of the same key more images and the newest notes; its number."""
        with self._sentence(), self._transaction():
            found = self._db.execute("SELECT id, record FROM runs WHERE key = ?", (run.key,)).fetchone()
            if found is None:
                cursor = self._db.execute("INSERT INTO runs (key, record) VALUES (?, ?)", (run.key, _record(run)))
                return int(cursor.lastrowid or 0)
            with self._whole("its runs"):
                number, old = int(found[0]), _run(found[1])
            images = tuple(dict.fromkeys((*old.images, *run.images)))
            versions = ", ".join(dict.fromkeys([*old.version.split(", "), run.version]))
            merged = replace(
                old, images=images, notes={**old.notes, **run.notes}, command=run.command, version=versions
            )
            self._db.execute("UPDATE runs SET record = ? WHERE id = ?", (_record(merged), number))
            return number

    def add(self, run: int, *rows: Row) -> None:
        """Write rows, all of them or none: to sync the file takes far longer than to write a row. The first row of an
        image stays."""
        with self._sentence(), self._transaction():
            self._db.executemany(_INSERT, [{"run": run, **_values(row)} for row in rows])
            for row in rows:
                self._note_proof(run, row)

    def prove(self, run: int, row: Row) -> None:
        """Note the proof of an image that was verified before. If the checker refused it, or there is a counterexample,
        the image is so no longer."""
        with self._sentence(), self._transaction():
            self._note_proof(run, row)
            if not row.robust:
                for table in ("rows", "proofs"):
                    self._db.execute(f"DELETE FROM {table} WHERE run = ? AND image = ?", (run, row.image))
                broken = replace(row, reason="it was verified before, and broken when that was to be proved")
                self._db.execute(_INSERT, {"run": run, **_values(broken)})

    def _note_proof(self, run: int, row: Row) -> None:
        """Note a row's proof, if it has one. An image that is verified is so no longer if the checker refused it."""
        if row.proof is None:
            return
        proofs.insert(self._db, run, row.image, row.proof)
        if row.proof.checked is False:
            changed = "UPDATE rows SET outcome = ?, reason = ? WHERE run = ? AND image = ? AND outcome = 'verified'"
            self._db.execute(changed, (row.outcome, row.reason, run, row.image))

    def rows(self, run: int, *, counters: int | None = None) -> list[Row]:
        """The rows of a run, by image. `counters` is how many keep their counterexamples, which are most of a store; by
        default all."""
        with self._sentence():
            plain = self._db.execute(_PLAIN, (run,)).fetchall()
            pictures = self._db.execute(_PICTURES, (run, -1 if counters is None else counters)).fetchall()
        proved = self.proved(run)
        with self._whole(f"the rows of run {run}"):
            shown = {image: _counter(*picture) for image, *picture in pictures}
            named = (dict(zip(_COLUMNS, values, strict=True)) for values in plain)
            return [_row(row, shown.get(row["image"]), proved.get(row["image"])) for row in named]

    def outcomes(self, run: int) -> dict[int, Outcome]:
        """The images that have a row, and how they ended."""
        with self._sentence():
            found = dict(self._db.execute("SELECT image, outcome FROM rows WHERE run = ?", (run,)).fetchall())
        with self._whole(f"the rows of run {run}"):
            _expect(set(found.values()) <= set(OUTCOMES), "an outcome")
        return found

    def proved(self, run: int) -> dict[int, Evidence]:
        """What is known of the proofs of a run, by image."""
        with self._sentence(), self._whole(f"the proofs of run {run}"):
            return proofs.select(self._db, run)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            if self._identity not in (None, self._found()):  # SQLite would go on with a file that has no name
                raise StoreError(
                    f"'{self.path}' was moved, removed or replaced while it was in use; expected it to stay where it is"
                )
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")

    @contextmanager
    def _sentence(self) -> Iterator[None]:
        """What the database complains about, as one sentence."""
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError(f"cannot use '{self.path}' as a store of results: {error}") from error

    @contextmanager
    def _whole(self, what: str) -> Iterator[None]:
        """Content that we did not write, as one sentence."""
        try:
            yield
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = str(error) or type(error).__name__
            raise StoreError(f"'{self.path}' is damaged: {what} cannot be read ({reason})") from error


def _record(run: Run) -> str:
    return json.dumps(vars(run))


def _run(record: str) -> Run:
    values = json.loads(record)
    run = Run(**values | {name: tuple(values[name]) for name in ("shape", "classes", "images")})
    texts = (run.model, run.model_sha256, run.dataset, run.data_sha256, run.eps, run.command, run.version, run.machine)
    _expect(all(isinstance(t, str) for t in (*texts, run.started, *run.classes)), "a text")
    _expect(all(_is_count(n) for n in run.images), "an image's index")
    _expect(all(_is_count(n) and n > 0 for n in run.shape), "a shape")
    _expect(isinstance(run.options, dict) and isinstance(run.notes, dict), "options or notes")
    return run


def _values(row: Row) -> dict[str, object]:
    """A row as the table has it."""
    counter = row.counter
    return {
        **{name: getattr(row, name) for name in _COLUMNS},
        "phases": json.dumps(dict(row.phases)),
        "adversarial": None if counter is None else counter.adversarial,
        "clean": None if counter is None else counter.clean.astype("<f4").tobytes(),
        "counterexample": None if counter is None else counter.point.astype("<f4").tobytes(),
    }


def _counter(adversarial: Any, clean: Any, point: Any) -> Counter:
    _expect(_is_count(adversarial) and len(clean) == len(point), "a counterexample")
    return Counter(clean=np.frombuffer(clean, "<f4"), point=np.frombuffer(point, "<f4"), adversarial=adversarial)


def _row(values: dict[str, Any], counter: Counter | None, proof: Evidence | None) -> Row:
    phases = json.loads(values.pop("phases"))
    row = Row(**values, phases=phases, counter=counter, proof=proof)
    _expect(all(map(_is_count, (row.image, row.label, row.predicted, row.subproblems))), "a whole number")
    _expect(row.outcome in OUTCOMES and row.stage in STAGES, "an outcome or stage")
    _expect(is_time(row.seconds) and isinstance(row.lower_bound, float | None), "seconds or a bound")
    _expect(isinstance(phases, dict) and all(map(is_time, phases.values())), "phases")
    _expect(isinstance(row.reason, str) and isinstance(row.property_sha256, str), "a text")
    for radius in (row.certified_eps, row.attacked_eps):
        _expect(radius is None or bool(_RADIUS.fullmatch(radius)), "a radius")
    return row


def _expect(fine: bool, what: str) -> None:
    if not fine:
        raise ValueError(f"{what} is not one")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63

"""What is known of an image's proof, and the table of a store that keeps it. A store of before has no such table."""

import sqlite3
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Protocol

SCHEMA = """
CREATE TABLE IF NOT EXISTS proofs (
    run INTEGER NOT NULL REFERENCES runs (id),
    image INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    seconds REAL NOT NULL,
    checked INTEGER,
    check_seconds REAL,
    PRIMARY KEY (run, image)
) WITHOUT ROWID
"""


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A proof that was written. `checked` says whether the checker accepted it; None if it was not checked."""

    bytes: int
    seconds: float = 0.0  # to write it
    checked: bool | None = None
    check_seconds: float | None = None
    refused: str = ""  # why the checker did not accept it; a store keeps it as the row's reason

    def checked_by(self, seconds: float, refused: str) -> "Evidence":
        """The same after a check. `refused` says why the checker did not accept it; empty if it did."""
        return replace(self, checked=not refused, check_seconds=seconds, refused=refused)


class Proved(Protocol):
    """A row of a store."""

    @property
    def verified(self) -> bool: ...

    @property
    def proof(self) -> Evidence | None: ...


@dataclass(frozen=True, kw_only=True)
class Proofs:
    """The proofs of a run."""

    verified: int  # images
    written: int  # proofs of those
    accepted: int  # by the checker
    refused: int  # by the checker, of images that are not verified therefore
    median_bytes: float | None
    median_check_seconds: float | None

    @staticmethod
    def of_rows(rows: Iterable["Proved"]) -> "Proofs":
        """The proofs of some rows."""
        pairs = [(row.verified, row.proof) for row in rows]
        found = [proof for verified, proof in pairs if verified and proof is not None]
        times = [proof.check_seconds for proof in found if proof.check_seconds is not None]
        return Proofs(
            verified=sum(verified for verified, _ in pairs),
            written=len(found),
            accepted=sum(proof.checked is True for proof in found),
            refused=sum(proof is not None and proof.checked is False for _, proof in pairs),
            median_bytes=median(proof.bytes for proof in found) if found else None,
            median_check_seconds=median(times) if times else None,
        )


def insert(db: sqlite3.Connection, run: int, image: int, evidence: Evidence) -> None:
    """Note a proof, in place of an earlier one."""
    values = {"run": run, "image": image, **asdict(evidence)}
    del values["refused"]
    marks = ", ".join(f":{name}" for name in values)
    db.execute(f"INSERT OR REPLACE INTO proofs ({', '.join(values)}) VALUES ({marks})", values)


def select(db: sqlite3.Connection, run: int) -> dict[int, Evidence]:
    """The proofs of a run, by image. Raises ValueError for what was not written here."""
    if db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'proofs'").fetchone() == (0,):
        return {}
    names = "image, bytes, seconds, checked, check_seconds"
    return {row[0]: _evidence(*row[1:]) for row in db.execute(f"SELECT {names} FROM proofs WHERE run = ?", (run,))}


def _evidence(size: object, seconds: object, checked: object, check_seconds: object) -> Evidence:
    if not isinstance(size, int) or not 0 <= size < 2**63 or checked not in (None, 0, 1):
        raise ValueError("a proof is not one")
    if not is_time(seconds) or not (check_seconds is None or is_time(check_seconds)):
        raise ValueError("a proof's time is not one")
    return Evidence(
        bytes=size,
        seconds=float(str(seconds)),
        checked=None if checked is None else bool(checked),
        check_seconds=None if check_seconds is None else float(str(check_seconds)),
    )


def is_time(value: object) -> bool:
    """Whether a stored value may be a number of seconds."""
    return isinstance(value, int | float) and 0 <= value < 1e12

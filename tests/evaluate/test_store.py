"""The store keeps what it was given, exactly once, and refuses files that are not its own."""

import sqlite3
from dataclasses import replace
from math import isnan
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from surebound.errors import StoreError
from surebound.evaluate.evidence import Evidence
from surebound.evaluate.store import OUTCOMES, Accuracies, Counter, Row, Run, Store

RUN = Run(
    model="net.onnx",
    model_sha256="ab",
    dataset="digits",
    shape=(1, 8, 8),
    classes=("zero", "one"),
    eps="1/10",
    images=(0, 1, 2),
    options={"timeout": 5.0, "branching": "upb"},
    notes={"method": "ibp-r"},
)


def row(image: int, **changes: object) -> Row:
    first = Row(image=image, label=1, predicted=1, outcome="verified", stage="ibp", seconds=0.5, phases={"ibp": 0.5})
    return replace(first, **changes)  # type: ignore[arg-type]


def test_what_goes_in_comes_out(tmp_path: Path) -> None:
    counter = Counter(clean=np.arange(4, dtype=np.float32) / 7, point=np.ones(4, dtype=np.float32), adversarial=3)
    rows = [
        row(0, lower_bound=1 / 3, subproblems=9, property_sha256="cd"),
        row(1, outcome="attacked", stage="attack", counter=counter, certified_eps="1/300", attacked_eps="0.0625"),
        row(2, outcome="timeout", stage="search", reason="the time ran out"),
    ]
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        for one in rows:
            store.add(number, one)
    with Store(tmp_path / "a.sqlite", readonly=True) as store:
        assert store.runs() == {number: RUN}
        found = store.rows(number)
        assert store.outcomes(number) == {0: "verified", 1: "attacked", 2: "timeout"}
    for before, after in zip(rows, found, strict=True):
        assert replace(before, counter=None).__dict__ == replace(after, counter=None).__dict__
    kept = found[1].counter
    assert kept is not None and kept.adversarial == 3
    assert (kept.clean == counter.clean).all() and (kept.point == counter.point).all()


def test_rows_that_come_together_are_one_transaction(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        done: list[str] = []
        store._db.set_trace_callback(done.append)
        store.add(number, *(row(i) for i in range(50)))
        store._db.set_trace_callback(None)
        assert done.count("COMMIT") == 1
        with pytest.raises(StoreError):
            store.add(number, row(60), row(61, outcome=None))
        assert [r.image for r in store.rows(number)] == list(range(50))  # all of them or none


def test_only_the_counterexamples_that_are_wanted_are_read(tmp_path: Path) -> None:
    point = np.zeros(4, dtype=np.float32)
    broken = {"outcome": "attacked", "counter": Counter(clean=point, point=point, adversarial=0)}
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        store.add(number, *(row(i, **(broken if i % 2 else {})) for i in range(8)))
        for wanted, kept in ((None, [1, 3, 5, 7]), (2, [1, 3]), (0, [])):
            rows = store.rows(number, counters=wanted)
            assert [r.image for r in rows] == list(range(8))
            assert [r.image for r in rows if r.counter is not None] == kept


def test_the_first_row_of_an_image_stays(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        store.add(number, row(0))
        store.add(number, row(0, outcome="timeout"))
        assert [r.outcome for r in store.rows(number)] == ["verified"]


def test_runs_are_told_apart_by_what_results_depend_on(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        assert store.find(replace(RUN, images=(7,), command="other", notes={})) == number
        own = ({"model_sha256": "cd"}, {"dataset": "mnist"}, {"data_sha256": "ef"}, {"eps": "1/5"})
        for change in (*own, {"options": {"timeout": 6.0}}):
            assert store.find(replace(RUN, **change)) is None  # type: ignore[arg-type]
        assert store.begin(replace(RUN, images=(2, 7), notes={"seed": 1})) == number
        (merged,) = store.runs().values()
        assert merged.images == (0, 1, 2, 7) and merged.notes == {"method": "ibp-r", "seed": 1}


def test_a_run_names_every_version_that_wrote_rows(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        for version in ("0.7.0", "0.8.0", "0.8.0", "0.7.0"):
            store.begin(replace(RUN, version=version))
        (found,) = store.runs().values()
    assert found.version == "0.7.0, 0.8.0"


def test_accuracies_by_hand() -> None:
    outcomes = ["verified"] * 4 + ["attacked"] * 2 + ["misclassified", "falsified", "timeout", "unknown"]
    found = Accuracies.of_rows([row(i, outcome=outcome) for i, outcome in enumerate(outcomes)])
    # What the search broke withstood the first attack, but is not robust.
    assert (found.images, found.standard, found.withstood, found.robust) == (10, 0.9, 0.7, 0.6)
    assert (found.verified, found.undecided) == (0.4, 0.2)
    ends = {outcome: row(0, outcome=outcome) for outcome in OUTCOMES}
    assert [o for o, r in ends.items() if r.withstood] == ["falsified", "verified", "timeout", "unknown"]
    assert [o for o, r in ends.items() if r.robust] == ["verified", "timeout", "unknown"]


def test_no_images_have_no_accuracies() -> None:
    found = Accuracies.of([])
    assert found.images == 0
    assert all(isnan(s) for s in (found.standard, found.withstood, found.robust, found.verified, found.undecided))


def test_two_writers_at_once(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as one, Store(tmp_path / "a.sqlite") as two:
        number = one.begin(RUN)
        for i in range(20):
            (one if i % 2 else two).add(number, row(i))
        assert len(one.rows(number)) == len(two.rows(number)) == 20


def test_made_by_several_at_once(tmp_path: Path) -> None:
    for attempt in range(20):
        path = tmp_path / f"{attempt}.sqlite"
        threads = [Thread(target=lambda path=path: Store(path).close()) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with Store(path) as store:
            assert store.runs() == {}


@pytest.mark.parametrize("again", [False, True])
def test_nothing_stays_verified_whose_proof_was_refused(tmp_path: Path, again: bool) -> None:
    """`again`: an image that was verified before; else two processes have come to the same image."""
    refused = Evidence(bytes=9).checked_by(0.1, "a wrong bound")
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        store.add(number, row(0))
        (store.prove if again else store.add)(number, row(0, outcome="unknown", reason="refused", proof=refused))
        (found,) = store.rows(number)
    assert (found.outcome, found.reason) == ("unknown", "refused")
    assert found.proof is not None and found.proof.checked is False


def test_a_counterexample_to_what_was_verified_takes_its_place(tmp_path: Path) -> None:
    point = np.zeros(4, dtype=np.float32)
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        store.add(number, row(0, proof=Evidence(bytes=9)))
        store.prove(number, row(0, outcome="timeout", stage="search"))
        assert [(r.outcome, r.proof is None) for r in store.rows(number)] == [("verified", False)]
        broken = Counter(clean=point, point=point, adversarial=3)
        store.prove(number, row(0, outcome="falsified", stage="search", counter=broken))
        (found,) = store.rows(number)
    assert (found.outcome, found.stage, found.proof) == ("falsified", "search", None)
    assert found.counter is not None and found.counter.adversarial == 3
    assert found.reason == "it was verified before, and broken when that was to be proved"


def test_a_link_to_a_store_shows_what_is_in_its_log(tmp_path: Path) -> None:
    (tmp_path / "link.sqlite").symlink_to("a.sqlite")
    with Store(tmp_path / "a.sqlite") as store:
        store.add(store.begin(RUN), row(0))
        with Store(tmp_path / "link.sqlite", readonly=True) as link:
            assert [r.image for r in link.rows(1)] == [0]


def test_a_transaction_that_was_cut_off_leaves_nothing(tmp_path: Path) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        with pytest.raises(StoreError):
            store.add(number, row(0, outcome=None))
        store.add(number, row(1))
        assert [r.image for r in store.rows(number)] == [1]


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be read as a header" * 9, b""])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.sqlite").write_bytes(content)
    with pytest.raises(StoreError, match=r"a\.sqlite"):
        Store(tmp_path / "a.sqlite", readonly=True)
    other = sqlite3.connect(tmp_path / "b.sqlite")
    other.execute("CREATE TABLE t (x)")
    other.close()
    for readonly in (False, True):
        with pytest.raises(StoreError, match=r"b\.sqlite"):
            Store(tmp_path / "b.sqlite", readonly=readonly)
    with pytest.raises(StoreError, match="no store"):
        Store(tmp_path / "c.sqlite", readonly=True)
    with pytest.raises(StoreError, match="cannot use"):
        Store(tmp_path / "nosuch" / "c.sqlite")


def test_another_version_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "a.sqlite").close()
    db = sqlite3.connect(tmp_path / "a.sqlite")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(StoreError, match="version 99"):
        Store(tmp_path / "a.sqlite")


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE rows SET outcome = 'zzz'",
        "UPDATE rows SET stage = 7",
        "UPDATE rows SET label = 'one'",
        "UPDATE rows SET seconds = 1e308",
        "UPDATE rows SET phases = '[1'",
        "UPDATE rows SET phases = '[]'",
        "UPDATE rows SET certified_eps = '1e9999999'",
        "UPDATE rows SET counterexample = x'0102', clean = x'0102', adversarial = 1",
        "UPDATE rows SET counterexample = x'00000000', clean = x'00000000', adversarial = NULL",
        "UPDATE runs SET record = '{'",
        "UPDATE runs SET record = '[]'",
        "UPDATE runs SET record = json_set(record, '$.shape', json('[\"a\"]'))",
        "UPDATE runs SET record = json_set(record, '$.notes', 3)",
    ],
)
def test_damage_is_one_sentence(tmp_path: Path, damage: str) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        store.add(store.begin(RUN), row(0))
    db = sqlite3.connect(tmp_path / "a.sqlite")
    with db:
        db.execute(damage)
    db.close()
    with Store(tmp_path / "a.sqlite", readonly=True) as store, pytest.raises(StoreError, match="damaged"):
        store.runs()
        store.rows(1)


@pytest.mark.parametrize("replaced", [False, True])
def test_a_store_that_is_taken_away_is_noticed(tmp_path: Path, replaced: bool) -> None:
    with Store(tmp_path / "a.sqlite") as store:
        number = store.begin(RUN)
        (tmp_path / "a.sqlite").rename(tmp_path / "b.sqlite")
        if replaced:
            Store(tmp_path / "a.sqlite").close()
        with pytest.raises(
            StoreError, match=r"a\.sqlite' was moved, removed or replaced while it was in use; expected"
        ):
            store.add(number, row(0))


def test_a_store_is_always_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Store(":memory:").close()
    assert (tmp_path / ":memory:").is_file()

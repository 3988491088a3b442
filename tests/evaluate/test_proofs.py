"""Proofs of certified images: accepted, brought back where they are lost, and no result where they are refused."""

import json
import pickle
import sqlite3
import zipfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from certifying import DIGITS, EPS, take_digits
from classifiers import small_digits, write
from commands import surebound as run

import surebound
from surebound.check import CheckError, Result, check
from surebound.errors import UsageError
from surebound.evaluate import proofs
from surebound.evaluate.certify import Certification
from surebound.evaluate.certify import certify as certify_task
from surebound.evaluate.evidence import Evidence, Proofs
from surebound.evaluate.store import Store
from surebound.evaluate.task import Task
from surebound.evaluate.worker import CertifySetup
from surebound.load.vnnlib import read_property
from surebound.proof import checkable
from surebound.work.inline import InlinePool

pytestmark = pytest.mark.slow
IMAGES = (*range(30), 36, 49)  # the last two need a search


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(small_digits(), tmp_path_factory.mktemp("net"))


def certify(net: Path, folder: Path, name: str = "s", **more: Any) -> Certification:
    values = {"images": IMAGES, "proofs": folder / "proofs", "timeout": 60.0, **more}
    return surebound.certify(net, "digits", eps=EPS, store=folder / f"{name}.sqlite", **values)


@pytest.fixture(scope="module")
def done(net: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Certification]:
    folder = tmp_path_factory.mktemp("done")
    return folder / "proofs", certify(net, folder, check_proofs=True)


def test_every_verified_image_has_a_valid_proof_whatever_stage_settled_it(
    net: Path, done: tuple[Path, Certification]
) -> None:
    folder, result = done
    verified = [row for row in result.rows if row.verified]
    assert {row.stage for row in verified} == {"ibp", "crown", "alpha-crown", "search"}
    names = {f"image-{row.image}.{end}" for row in verified for end in ("proof", "vnnlib.gz")}
    assert {file.name for file in folder.iterdir()} == names | {"about.json"}
    for row in verified:
        files = folder / f"image-{row.image}.vnnlib.gz", folder / f"image-{row.image}.proof"
        found = check(net, *files)
        assert (found.valid, found.reason, found.regions) == (True, "", 9)
        assert row.proof is not None and row.proof.checked is True
        assert row.proof.bytes == files[1].stat().st_size and row.proof.check_seconds is not None
    assert result.proofs == replace(
        result.proofs, verified=len(verified), written=len(verified), accepted=len(verified)
    )
    assert all(row.proof is None for row in result.rows if not row.verified)


def test_the_property_is_the_one_that_was_asked(done: tuple[Path, Certification]) -> None:
    folder, result = done
    image = next(row.image for row in result.rows if row.verified)
    (sample,) = take_digits(range(image, image + 1))
    asked, read = sample.robustness(EPS).to_property(10), read_property(folder / f"image-{image}.vnnlib.gz")
    assert (read.inputs, read.outputs, len(read.regions)) == (64, 10, 9)
    for ours, theirs in zip(asked.regions, read.regions, strict=True):
        assert ours.box.key == theirs.box.key and not theirs.rounded
        assert (ours.on_output == theirs.on_output).all() and (ours.constant == theirs.constant).all()


def test_rows_are_those_of_a_run_without_proofs(net: Path, tmp_path: Path, done: tuple[Path, Certification]) -> None:
    plain = certify(net, tmp_path, proofs=None)
    assert [(row.image, row.outcome) for row in plain.rows] == [(row.image, row.outcome) for row in done[1].rows]
    assert plain.proofs.written == 0


def test_workers_write_the_same_files(net: Path, tmp_path: Path, done: tuple[Path, Certification]) -> None:
    images = [0, 1, 3, 36, 49]
    result = certify(net, tmp_path, images=images, workers=2, check_proofs=True)
    assert result.proofs.accepted == 5
    for row in result.rows:
        for name in (f"image-{row.image}.vnnlib.gz", f"image-{row.image}.proof"):
            assert (tmp_path / "proofs" / name).read_bytes() == (done[0] / name).read_bytes()


@dataclass(frozen=True)
class _Elsewhere:
    """An engine whose only worker is on another machine: all that it knows was pickled."""

    remote: bool = True

    def open(self, setup: CertifySetup) -> InlinePool[Any, Any]:
        travelled: CertifySetup = pickle.loads(pickle.dumps(setup))
        return InlinePool(travelled)


def test_other_machines_send_the_same_files(net: Path, tmp_path: Path, done: tuple[Path, Certification]) -> None:
    task = Task(
        model=net, dataset=DIGITS, eps=EPS, images=[0, 1, 3, 36, 49], proofs=tmp_path / "proofs", check_proofs=True
    )
    result = certify_task(task, tmp_path / "s.sqlite", engine=_Elsewhere())
    assert result.proofs.accepted == 5
    for row in result.rows:
        for name in (f"image-{row.image}.vnnlib.gz", f"image-{row.image}.proof"):
            assert (tmp_path / "proofs" / name).read_bytes() == (done[0] / name).read_bytes()


def test_resuming_brings_proofs_back_and_adds_them_to_old_rows(net: Path, tmp_path: Path) -> None:
    images = [0, 1, 3]
    before = certify(net, tmp_path, images=images, proofs=None)
    assert all(row.verified and row.proof is None for row in before.rows)
    after = certify(net, tmp_path, images=images, resume=True, check_proofs=True)
    assert all(row.proof is not None and row.proof.checked for row in after.rows)
    for old, new in zip(before.rows, after.rows, strict=True):
        assert asdict(replace(new, proof=None)) == asdict(old)
    (tmp_path / "proofs" / "image-1.proof").unlink()
    kept = (tmp_path / "proofs" / "image-0.proof").stat().st_mtime_ns
    again = certify(net, tmp_path, images=images, resume=True)
    assert again.proofs.written == 3
    assert [row.proof is not None and row.proof.checked for row in again.rows] == [True, None, True]
    assert (tmp_path / "proofs" / "image-0.proof").stat().st_mtime_ns == kept
    files = [tmp_path / "proofs" / f"image-1.{end}" for end in ("vnnlib.gz", "proof")]
    assert check(net, *files).valid


def test_proofs_that_another_store_noted_or_nobody_checked_are_made_anew(net: Path, tmp_path: Path) -> None:
    images = [0, 1, 3]
    certify(net, tmp_path, images=images)
    certify(net, tmp_path, "other", images=images, proofs=None)
    again = certify(net, tmp_path, "other", images=images, resume=True)
    assert (again.proofs.verified, again.proofs.written, again.proofs.accepted) == (3, 3, 0)
    checked = certify(net, tmp_path, "other", images=images, resume=True, check_proofs=True)
    assert (checked.proofs.written, checked.proofs.accepted) == (3, 3)


def test_a_folder_has_proofs_about_one_radius(net: Path, tmp_path: Path, done: tuple[Path, Certification]) -> None:
    certify(net, tmp_path, images=[0, 1])
    label = json.loads((tmp_path / "proofs" / "about.json").read_text())
    assert (label["dataset"], label["eps"]) == ("digits", "1/30") and len(label["network"]) == 64
    other = {"eps": "1/5", "store": tmp_path / "other.sqlite", "images": [0, 1]}  # at which both are broken
    with pytest.raises(UsageError, match="has proofs about another network, data set or radius; expected an empty"):
        surebound.certify(net, "digits", proofs=tmp_path / "proofs", **other)
    for name in ("image-0", "image-1"):
        for end in ("proof", "vnnlib.gz"):
            assert (tmp_path / "proofs" / f"{name}.{end}").read_bytes() == (done[0] / f"{name}.{end}").read_bytes()
    assert not any(row.verified for row in surebound.certify(net, "digits", proofs=tmp_path / "new", **other).rows)
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["about.json"]
    assert certify(net, tmp_path, "slower", images=[0, 1], timeout=61.0).proofs.written == 2
    (tmp_path / "proofs" / "about.json").unlink()
    with pytest.raises(UsageError, match="has proofs about another"):
        certify(net, tmp_path, images=[0, 1], resume=True)


def test_a_folder_that_cannot_be_made_leaves_no_store(net: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot make the folder .* for proofs"):
        certify(net, tmp_path, images=[0], proofs=net)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_taken_leaves_no_folder(net: Path, tmp_path: Path) -> None:
    certify(net, tmp_path, images=[0], proofs=None)
    with pytest.raises(UsageError, match="already has results"):
        certify(net, tmp_path, images=[0])
    assert not (tmp_path / "proofs").exists()


def test_what_the_checker_refuses_is_not_verified(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(row.verified for row in certify(net, tmp_path, "old", images=[0, 3], proofs=None).rows)
    monkeypatch.setattr(proofs, "check", lambda *_: Result(valid=False, reason="step 1: a leaf has the bound -1"))
    for name, resume in (("fresh", False), ("old", True)):
        result = certify(net, tmp_path, name, images=[0, 3], check_proofs=True, resume=resume)
        for row in result.rows:
            assert row.outcome == "unknown" and row.proof is not None and row.proof.checked is False
            assert row.reason == "the checker did not accept the proof: step 1: a leaf has the bound -1"
        assert (result.accuracies.verified, result.accuracies.undecided) == (0.0, 1.0)
        assert (result.proofs.written, result.proofs.refused) == (0, 2)
        for file in (tmp_path / "proofs").iterdir():
            file.unlink()


def test_a_network_that_the_checker_cannot_read_is_refused_first(
    net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise CheckError("the operation Sin is not covered")

    monkeypatch.setattr(checkable, "read_network", refuse)
    with pytest.raises(UsageError, match=r"there are no proofs for .*: the operation Sin is not covered"):
        certify(net, tmp_path, images=[0])
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder"):
        certify(net, tmp_path, images=[0], proofs=tmp_path / "file" / "proofs")
    with pytest.raises(UsageError, match="proofs are to be checked, but not written"):
        certify(net, tmp_path, images=[0], proofs=None, check_proofs=True)


def test_an_interruption_leaves_no_half_file(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "proofs").mkdir()
    (tmp_path / "proofs" / ".image-7.proof.partial").write_bytes(b"of a worker that was killed")
    opened = zipfile.ZipFile.open

    def interrupt(self: zipfile.ZipFile, name: Any, *args: Any, **more: Any) -> Any:
        if "about" in getattr(name, "filename", ""):
            raise KeyboardInterrupt
        return opened(self, name, *args, **more)

    monkeypatch.setattr(zipfile.ZipFile, "open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        certify(net, tmp_path, images=[3])
    assert {file.name for file in (tmp_path / "proofs").iterdir()} == {"about.json", "image-3.vnnlib.gz"}
    monkeypatch.undo()
    assert certify(net, tmp_path, images=[3], resume=True, check_proofs=True).proofs.accepted == 1


def test_stores_of_before_have_no_proofs(net: Path, tmp_path: Path, done: tuple[Path, Certification]) -> None:
    certify(net, tmp_path, images=[0], proofs=None)
    with sqlite3.connect(tmp_path / "s.sqlite") as db:
        db.execute("DROP TABLE proofs")
    with Store(tmp_path / "s.sqlite", readonly=True) as store:
        assert store.rows(1)[0].proof is None
    assert certify(net, tmp_path, images=[0], resume=True).proofs.written == 1


def test_numbers_of_proofs() -> None:
    class Row:
        def __init__(self, verified: bool, proof: Evidence | None) -> None:
            self.verified, self.proof = verified, proof

    rows = [
        Row(True, Evidence(bytes=100, checked=True, check_seconds=1.0)),
        Row(True, Evidence(bytes=300, checked=True, check_seconds=3.0)),
        Row(True, Evidence(bytes=200)),
        Row(True, None),
        Row(False, Evidence(bytes=9, checked=False, check_seconds=9.0)),
        Row(False, None),
    ]
    assert Proofs.of_rows(rows) == Proofs(
        verified=4, written=3, accepted=2, refused=1, median_bytes=200, median_check_seconds=2.0
    )


def test_command_line(net: Path, tmp_path: Path) -> None:
    options = ("--dataset", "digits", "--eps", "1/30", "--store", tmp_path / "s.sqlite")
    failed = run("certify", net, *options, "--check-proofs")
    assert failed.returncode == 2 and "--check-proofs without --proofs" in failed.stderr
    more = ("--proofs", tmp_path / "p", "--check-proofs", "--json", tmp_path / "r.json", "--first", 4)
    done = run("certify", net, *options, *more)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "r.json").read_text())["proofs"]
    assert record["folder"] == str(tmp_path / "p") and record["refused"] == 0
    assert 0 < record["written"] == record["accepted"] == record["verified"]
    line = next(line for line in done.stdout.splitlines() if line.startswith("proofs"))
    assert f"{record['written']} of {record['verified']} verified images" in line
    assert f"{record['accepted']} accepted by the checker" in line
    with Store(tmp_path / "s.sqlite", readonly=True) as store:
        (noted,) = store.runs().values()
    assert noted.notes["proofs"] == str(tmp_path / "p")
    files = sorted((tmp_path / "p").glob("image-*"))
    checked = run("check", net, files[1], files[0])
    assert checked.returncode == 0 and checked.stdout.startswith("valid\n")

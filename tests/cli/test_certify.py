"""`surebound certify`, as its users and their scripts see it; and what is left when it is killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from classifiers import small_digits, write
from commands import SUREBOUND, environment, write_hard
from commands import surebound as run

from surebound.cli import certify
from surebound.cli.main import main
from surebound.errors import StoreError
from surebound.evaluate.certifying import CertifyProgress
from surebound.evaluate.store import Row, Store

pytestmark = pytest.mark.slow

IMAGES = ["--dataset", "digits", "--eps", "1/30"]
SHARES = {"standard", "withstood", "robust", "verified", "undecided"}
KEYS = SHARES | {"images", "images_asked", "outcomes", "settled_by", "eps", "store", "seconds"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training output folder `run` with its network, and one without."""
    place = tmp_path_factory.mktemp("certify")
    for name in ("run", "empty"):
        (place / name).mkdir()
    write(small_digits(), place / "run")
    write_hard(place)
    return place


def _rows(store: Path) -> dict[int, Row]:
    with Store(store, readonly=True) as results:
        (number,) = results.runs()
        rows = results.rows(number)
    assert len({row.image for row in rows}) == len(rows)
    return {row.image: row for row in rows}


def test_summary_json_and_store(folder: Path, tmp_path: Path) -> None:
    report, store = tmp_path / "r.json", tmp_path / "s.sqlite"
    done = run("certify", "run", *IMAGES, "--first", 60, "--store", store, "--json", report, cwd=folder)
    assert done.returncode == 0, done.stderr
    record, rows = json.loads(report.read_text()), _rows(store)
    assert set(record) >= KEYS and record["images"] == len(rows) == 60
    assert record["standard"] * 60 == pytest.approx(sum(row.correct for row in rows.values()))
    assert record["verified"] * 60 == pytest.approx(sum(row.verified for row in rows.values()))
    assert record["verified"] <= record["robust"] <= record["withstood"] <= record["standard"]
    assert sum(record["outcomes"].values()) == sum(record["settled_by"].values()) == 60
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["standard", "withstood", "robust", "verified", "settled", "results"]
    assert f"{100 * record['verified']:.1f} %" in lines[2] and str(store) in lines[-1]
    with Store(store, readonly=True) as results:
        (noted,) = results.runs().values()
    assert noted.command.startswith("surebound certify run --dataset digits") and noted.eps == "1/30"
    assert noted.model == "run" and len(noted.model_sha256) == 64 and noted.images == tuple(range(60))
    assert all(len(row.property_sha256) == 64 for row in rows.values())


def test_the_store_is_in_the_models_folder(folder: Path) -> None:
    for extra, code in (([], 0), ([], 2), (["--resume"], 0)):
        done = run("certify", "run", *IMAGES, "--indices", "3,1", "--quiet", *extra, cwd=folder)
        assert done.returncode == code, done.stderr
        assert ("--resume" in done.stderr) == (code == 2)
    assert set(_rows(folder / "run" / "certify.sqlite")) == {1, 3}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nosuch.onnx", *IMAGES], "nosuch.onnx"),
        (["empty", *IMAGES], "model.onnx"),
        (["hard.onnx", *IMAGES], "expected 1 x 8 x 8"),
        (["run", "--dataset", "digits", "--eps", "2"], "--eps"),
        (["run", *IMAGES, "--first", "100000"], "--first"),
        (["run", *IMAGES, "--workers", "0"], "--workers"),
        (["run", *IMAGES, "--workers", "2", "--threads", "2"], "--threads"),
        (["run", *IMAGES, "--store", "nosuch/s.sqlite"], "--store"),
        (["run", *IMAGES, "--store", "run/model.onnx"], "--store"),
        (["run", *IMAGES, "--branching", "best"], "--branching"),
        (["run", *IMAGES, "--timeout", "-1"], "--timeout"),
    ],
)
def test_mistakes_are_one_sentence(folder: Path, arguments: list[str], complaint: str) -> None:
    done = run("certify", *arguments, cwd=folder)
    assert done.returncode == 2 and complaint in done.stderr
    assert done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert not (folder / "certify.sqlite").exists()


@pytest.mark.parametrize("command", ["certify", "attack"])
@pytest.mark.parametrize(("name", "noted"), [("mnist", True), ("digits", False), ("data/digits", False)])
def test_another_data_set_than_the_one_trained_on_is_noted(
    folder: Path, tmp_path: Path, command: str, name: str, noted: bool
) -> None:
    shutil.copytree(folder / "run", tmp_path / "run", ignore=shutil.ignore_patterns("*.sqlite*"))
    (tmp_path / "run" / "config.toml").write_text(f'data = {{ name = "{name}" }}')
    done = run(command, "run", *IMAGES, "--first", 2, "--quiet", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = f"'run' was trained on '{name}', and these are images of 'digits'\n"
    assert done.stderr == (expected if noted else "")


def test_a_store_of_another_kind(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.sqlite").write_text("not a database, " * 100)
    done = run("certify", "run", *IMAGES, "--first", 2, "--store", tmp_path / "s.sqlite", cwd=folder)
    assert done.returncode == 2 and "s.sqlite" in done.stderr and len(done.stderr.splitlines()) == 1


def test_radius_search(folder: Path, tmp_path: Path) -> None:
    done = run("certify", "run", *IMAGES, "--first", 4, "--radius-search", "--store", tmp_path / "s.sqlite", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert any(row.certified_eps for row in _rows(tmp_path / "s.sqlite").values())


def _start(folder: Path, store: Path, *extra: str) -> subprocess.Popen[str]:
    command = [*SUREBOUND, "certify", "run", *IMAGES, "--first", "120", "--store", str(store), "--resume", *extra]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def test_killed_again_and_again(folder: Path, tmp_path: Path) -> None:
    """SIGKILL at random moments, ten times: one row for each image, and the verdicts of an undisturbed run."""
    undisturbed = run("certify", "run", *IMAGES, "--first", 120, "--store", tmp_path / "a.sqlite", cwd=folder)
    assert undisturbed.returncode == 0
    store, chance, counts = tmp_path / "b.sqlite", random.Random(0), []
    for _ in range(10):
        going = _start(folder, store, "--workers", "2", "--quiet")
        time.sleep(chance.uniform(0.5, 6.0))
        going.kill()
        going.communicate()
        counts.append(len(_rows(store)) if store.exists() and _begun(store) else 0)
    assert counts == sorted(counts)  # nothing is lost
    last = _start(folder, store, "--workers", "2", "--quiet")
    out, error = last.communicate(timeout=300)
    assert last.returncode == 0, error
    expected, found = _rows(tmp_path / "a.sqlite"), _rows(store)
    assert {i: row.outcome for i, row in found.items()} == {i: row.outcome for i, row in expected.items()}
    assert "of 120" in out


def _begun(store: Path) -> bool:
    try:
        with Store(store, readonly=True) as results:
            return bool(results.runs())
    except StoreError:  # it is being made
        return False


def test_workers_end_with_their_parent(folder: Path, tmp_path: Path) -> None:
    going = _start(folder, tmp_path / "s.sqlite", "--workers", "2", "--quiet")
    deadline = time.monotonic() + 60
    children: list[int] = []
    while len(children) < 2 and time.monotonic() < deadline:
        children = _children(going.pid)
        time.sleep(0.05)
    going.kill()
    going.communicate()
    while any(map(_alive, children)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(children) == 2 and not any(map(_alive, children))


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in found.read_text().split()] if found.exists() else []


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_interrupted(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "s.sqlite"
    going = _start(folder, store)
    deadline = time.monotonic() + 60
    while not (store.exists() and _begun(store)) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(going.pid, signal.SIGINT)
    out, error = going.communicate(timeout=60)
    assert going.returncode in (0, 130), error
    if going.returncode == 130:
        assert "--resume" in error and "of 120 images" in error and "Traceback" not in error
        assert out == "" or out.startswith("standard")


@pytest.mark.parametrize("least", [0, 1])
def test_what_is_known_when_interrupted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], least: int
) -> None:
    class Line(certify._Line):
        def __call__(self, progress: CertifyProgress) -> None:
            if progress.done >= least:
                raise KeyboardInterrupt

    monkeypatch.setattr(certify, "_Line", Line)
    json_file, store = tmp_path / "r.json", tmp_path / "s.sqlite"
    arguments = ["certify", folder / "run", *IMAGES, "--first", 60, "--store", store, "--json", json_file]
    assert main(list(map(str, arguments))) == 130
    out, error = capsys.readouterr()
    record, done = json.loads(json_file.read_text()), len(_rows(store))
    assert (record["images"], record["images_asked"], record["interrupted"]) == (done, 60, True)
    assert f"interrupted after {done} of 60 images" in error
    if least:
        assert 0 < done < 60 and all(0 <= record[name] <= 1 for name in SHARES)
        assert out.startswith("standard") and f" of {done}, " in out
    else:
        assert done == 0 and all(record[name] is None for name in SHARES) and out == ""

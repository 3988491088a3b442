"""`surebound reproduce`, as its users see it: killed, interrupted, resumed, refused, and in the end complete."""

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable
from contextlib import closing, redirect_stderr
from dataclasses import replace
from io import StringIO
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from commands import SUREBOUND, environment

from surebound.cli.main import main
from surebound.errors import UsageError
from surebound.evaluate.store import Row, Run, Store
from surebound.reproduce.job import Job
from surebound.reproduce.jobs import JobEnded, Status, run_jobs
from surebound.reproduce.lock import locked
from surebound.reproduce.pace import Pace
from surebound.reproduce.place import Place
from surebound.reproduce.scales import METHODS, NETWORKS, PROFILES, RULES, SCALES, SETTINGS, Training
from surebound.train.config import read_config
from surebound.work.processes import Processes

pytestmark = pytest.mark.slow

TABLE1 = ["reproduce", "table1", "--scale", "smoke", "--workers", "1"]
BRANCHING = ["reproduce", "branching", "--scale", "smoke"]
TRAININGS = [Training(s, m, seed) for seed in (0, 1) for m in METHODS for s in SETTINGS]


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    """`reproduce table1` in a session of its own, as a terminal would start it."""
    command = [*SUREBOUND, *TABLE1, "--out", str(out), *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        command,
        env=environment(),
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # even if the tests themselves ignore it
        **pipes,
    )


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something has happened while a process is at work."""
    give_up = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.02)


def count_rows(store: Path) -> int:
    if not store.exists():
        return 0
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as db:
        if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            return 0
        return int(db.execute("SELECT count(*) FROM rows").fetchone()[0])


def contents(store: Path) -> dict[int, tuple[Run, list[Row]]]:
    with Store(store, readonly=True) as opened:
        return {number: (run, opened.rows(number)) for number, run in opened.runs().items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Table 1 after a kill, a Ctrl-C and two resumptions; with what was seen on the way."""
    out, seen = tmp_path_factory.mktemp("reproduce") / "table", dict[str, Any]()
    store = out / "table1.sqlite"

    process = start(out)
    wait_for(lambda: count_rows(store) >= 15, process)  # in the middle of a certification, or of a training
    process.kill()
    process.communicate()
    with locked(out):  # free only when the worker has ended, too
        seen["after kill"] = count_rows(store)
    with redirect_stderr(StringIO()) as refused:
        seen["refused"] = main([*TABLE1, "--out", str(out)]), refused.getvalue()

    process = start(out, "--resume")
    begun = out / "8-255" / "ibp-shi" / "seed-0" / "config.toml"
    wait_for(begun.exists, process)  # in the middle of a training
    os.killpg(process.pid, signal.SIGINT)
    _, complaint = process.communicate(timeout=120)
    seen["interrupted"] = process.returncode, complaint
    seen["after interrupt"] = count_rows(store)
    seen["trained"] = (begun.parent / "model.onnx").exists()  # where the training was quicker than the interrupt

    process = start(out, "--resume")
    stdout, stderr = process.communicate(timeout=600)
    assert process.returncode == 0, stderr
    seen["stdout"], seen["stderr"] = stdout, stderr
    return out, seen


def test_scales_are_the_presets() -> None:
    for training in TRAININGS:
        for scale in SCALES.values():
            config = Place(out=".", scale_name=scale.name).config(training)
            assert (config.eps, config.seed) == (training.eps, training.seed)
        name = f"cifar10-{training.setting}-{training.method}"
        paper = Place(out=".", scale_name="paper").config(training)
        assert paper == replace(read_config(name), seed=training.seed)
        cpu = Place(out=".", scale_name="cpu").config(training)
        small = read_config(f"{name}-cpu")
        assert cpu == replace(small, seed=training.seed, data=replace(small.data, first=16000))
        day = Place(out=".", scale_name="day").config(training)
        assert day == replace(read_config(f"{name}-day"), seed=training.seed)
        assert cpu.network.name == "conv-small" and cpu.schedule.epochs * cpu.schedule.stages in range(9, 21)


def test_a_kill_loses_little_and_nothing_is_done_twice(finished: tuple[Path, dict[str, Any]]) -> None:
    out, seen = finished
    assert 15 <= seen["after kill"] <= seen["after interrupt"] < 240
    runs = contents(out / "table1.sqlite")
    assert len(runs) == len(TRAININGS)
    for run, rows in runs.values():
        assert [row.image for row in rows] == list(range(10)) == list(run.images)
    assert seen["stderr"].count("training 8/255 ibp-shi seed 0:") == (0 if seen["trained"] else 1)
    assert "training 2/255 ibp-r seed 0:" not in seen["stderr"]


def test_an_interrupt_says_how_to_go_on(finished: tuple[Path, dict[str, Any]]) -> None:
    code, complaint = finished[1]["interrupted"]
    assert code == 130
    assert "--resume goes on" in complaint and "Traceback" not in complaint


def test_results_are_not_overwritten(finished: tuple[Path, dict[str, Any]]) -> None:
    code, complaint = finished[1]["refused"]
    assert code == 2 and complaint.count("\n") == 1
    assert "already holds results of table 1; expected --resume" in complaint


@pytest.mark.parametrize("command", [TABLE1, [*TABLE1, "--resume"], BRANCHING], ids=["table1", "resumed", "branching"])
def test_a_folder_of_something_else_is_left_alone(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "certify.sqlite").write_text("of a demo")
    (tmp_path / "report.html").write_text("its report")
    assert main([*command, "--out", str(tmp_path)]) == 2
    complaint = capsys.readouterr().err
    assert "holds 'certify.sqlite' and other files" in complaint and "new or empty folder" in complaint
    assert complaint.count("\n") == 1 and (tmp_path / "report.html").read_text() == "its report"
    assert {path.name for path in tmp_path.iterdir()} == {"certify.sqlite", "report.html"}


def test_runs_carry_what_the_table_needs(finished: tuple[Path, dict[str, Any]]) -> None:
    out, _ = finished
    place = Place(out=str(out), scale_name="smoke")
    found = {}
    for run, _ in contents(out / "table1.sqlite").values():
        notes = dict(run.notes)
        seconds = notes.pop("training_seconds")
        training = Training(notes["setting"].replace("/", "-"), notes["method"], notes["seed"])
        found[training] = notes
        assert run.eps == notes["setting"] and run.dataset == "digits"
        assert run.options["timeout"] == 2.0 and run.options["early_stop"] and run.options["branching"] == "upb"
        assert 0 < seconds == place.training_seconds(training)
        assert run.command.startswith("surebound reproduce table1 --scale smoke")
    assert set(found) == set(TRAININGS)
    assert found[TRAININGS[0]] == {
        "experiment": "table1",
        "setting": "2/255",
        "method": "ibp-r",
        "seed": 0,
        "scale": "smoke",
        "folder": "2-255/ibp-r/seed-0",
    }


def test_the_table_has_every_method_beside_the_paper(finished: tuple[Path, dict[str, Any]]) -> None:
    out, seen = finished
    text = (out / "table1.md").read_text()
    assert seen["stdout"].startswith(text)
    assert f"wrote {out / 'table1.md'}\nwrote {out / 'report.html'}\n" in seen["stdout"]
    lines = [line for line in text.splitlines() if line.startswith(("| 2/255", "| 8/255"))]
    assert len(lines) == 12
    assert all(line.split(" | ")[2:4] == ["2", "10"] and line.count("±") >= 4 for line in lines)
    assert any("61.97 ± 0.18" in line and "IBP-R" in line for line in lines)
    assert all(sentence in text for sentence in SCALES["smoke"].differs)
    assert "Failed" not in text
    assert "Table 1" in (out / "report.html").read_text()


def test_branching_takes_the_networks_of_table1(
    finished: tuple[Path, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    out, _ = finished
    weights = {p: p.stat().st_mtime_ns for p in out.rglob("weights.safetensors")}
    assert main([*BRANCHING, "--out", str(out), "--search", "paper"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("# Branching, scale smoke\n\n## With the paper's search\n")
    assert "own search" not in captured.out
    published = contents(out / "branching.sqlite")
    assert {run.options["search"] for run, _ in published.values()} == {"paper"}
    assert main([*BRANCHING, "--out", str(out), "--resume"]) == 0  # now the other table
    captured = capsys.readouterr()
    assert weights == {p: p.stat().st_mtime_ns for p in out.rglob("weights.safetensors")}
    assert not list(out.glob("*-wal"))  # everything is in the one file
    runs = contents(out / "branching.sqlite")
    assert [
        (r.options["search"], r.notes["setting"], r.notes["network"], r.notes["branching"]) for r, _ in runs.values()
    ] == [
        (search, SETTINGS[setting], method, rule)
        for search in PROFILES
        for setting, method in NETWORKS
        for rule in RULES
    ]
    for run, rows in runs.values():
        assert [row.image for row in rows] == list(range(5))
        assert run.notes["experiment"] == "branching" and run.notes["scale"] == "smoke"
        assert run.options["branching"] == run.notes["branching"] and not run.options["early_stop"]
        attack = (run.options["steps"], run.options["restarts"], run.options["targets"])
        assert attack == (SCALES["smoke"].attack if run.search == "paper" else (40, 3, 3))
    for k in range(0, len(runs), len(RULES)):  # all rules begin from the same: what needs no search ends alike
        groups = [rows for _, rows in list(runs.values())[k : k + len(RULES)]]
        for same in zip(*groups, strict=True):
            if same[0].outcome in ("misclassified", "attacked"):
                assert len({(row.outcome, row.stage, row.seconds) for row in same}) == 1
    text = (out / "branching.md").read_text()
    assert captured.out.startswith(text)
    assert [text.count(f"| {name} |") for name in ("UPB", "FSB", "SR")] == [8, 8, 8]
    assert text.count("| 2/255 |") == text.count("| 8/255 |") == 12 and text.count("98.87") == 2
    first, second = text.split("## With surebound's own search")
    for search, part in (("paper", first), ("default", second)):
        assert part.count("### What differs from the paper") == 1
        assert all(f"- {sentence}\n" in part for sentence in SCALES["smoke"].differences("branching", search))
    assert "Cactus plot" in (out / "report.html").read_text()

    assert main([*BRANCHING, "--out", str(out)]) == 2
    assert "already holds results of branching" in capsys.readouterr().err
    with closing(sqlite3.connect(out / "branching.sqlite")) as db, db:  # as a kill between two rules leaves it
        db.execute("DELETE FROM rows WHERE run = 2 AND image >= 3")
        db.execute("UPDATE rows SET reason = 'kept'")
    assert main([*BRANCHING, "--out", str(out), "--resume"]) == 0
    for number, (_, rows) in contents(out / "branching.sqlite").items():
        kept = [row.reason == "kept" for row in rows]
        assert kept == [True, True, True, number != 2, number != 2]


def test_another_scale_does_not_fit(finished: tuple[Path, dict[str, Any]]) -> None:
    place = Place(out=str(finished[0]), scale_name="cpu")
    with pytest.raises(UsageError, match=r"not of scale cpu \(it differs in .*data.name.*\); expected the scale"):
        place.trained(TRAININGS[0])


def test_a_training_that_fails_does_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "2-255" / "colt").mkdir(parents=True)
    (tmp_path / "2-255" / "colt" / "seed-0").write_text("in the way")
    assert main([*TABLE1, "--out", str(tmp_path), "--methods", "colt", "--settings", "2-255"]) == 2
    captured = capsys.readouterr()
    assert "training 2/255 colt seed 0 failed: cannot make the folder" in captured.err
    assert captured.err.endswith("1 of the jobs failed; --resume tries them again\n")
    assert "## Failed\n\n- training 2/255 colt seed 0 failed" in (tmp_path / "table1.md").read_text()
    assert [run.notes["seed"] for run, _ in contents(tmp_path / "table1.sqlite").values()] == [1]


def test_first_steps_leave_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--out", str(tmp_path), "--steps", "2", "--methods", "ibp-shi", "--settings", "8-255"]
    assert main([*TABLE1, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("| 8/255 | ibp-shi | 2 | ")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_dies_fails_its_job_only(tmp_path: Path) -> None:
    place = Place(out=str(tmp_path), scale_name="smoke")
    ended: list[JobEnded] = []

    def then(job: JobEnded) -> list[Job]:
        ended.append(job)
        return []

    def on_status(_: Status) -> None:
        if not ended:
            for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
                os.kill(int(child), signal.SIGKILL)

    jobs = [Job(kind="try", training=training, steps=1) for training in TRAININGS[:2]]
    run_jobs(Processes(1), place, jobs, then=then, total=2, on_status=on_status)
    assert ended[0].result is None and "ended by SIGKILL (out of memory?) (3 times)" in ended[0].reason
    assert ended[1].result is not None and ended[1].result["steps"] == 1


def test_one_reproduction_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = count(0.0, 60.0)
    with locked(tmp_path):
        monkeypatch.setattr(time, "monotonic", lambda: next(seconds))  # so that nobody waits
        assert main([*TABLE1, "--out", str(tmp_path)]) == 2
    assert "another 'surebound reproduce' is at work" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["table1", "--out", "OUT"], "--scale"),
        (["table1", "--out", "OUT", "--scale", "huge"], "'huge'"),
        (["table2", "--out", "OUT", "--scale", "smoke"], "'table2'"),
        (["table1", "--scale", "smoke"], "--out"),
        (
            ["table1", "--out", "OUT", "--scale", "smoke", "--methods", "ibpr"],
            "unknown 'ibpr'; expected some of: ibp-r",
        ),
        (["table1", "--out", "OUT", "--scale", "smoke", "--workers", "0"], "--workers"),
    ],
)
def test_bad_options(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str) -> None:
    out = tmp_path / "out"
    with pytest.raises(SystemExit) as caught:
        main(["reproduce", *(str(out) if a == "OUT" else a for a in arguments)])
    text = capsys.readouterr().err
    assert caught.value.code == 2 and complaint in text and text.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["branching", "--steps", "3"], "--steps tries trainings out"),
        (["branching", "--methods", "crown-ibp"], "leave none of them"),
        (["branching", "--methods", "ibp-r", "--settings", "8-255"], "leave none of them"),
        (["table1", "--device", "cuda:77", "--methods", "colt"], "--device 'cuda:77' cannot be used here"),
    ],
)
def test_mistakes_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    out = tmp_path / "out"
    assert main(["reproduce", *arguments, "--scale", "smoke", "--out", str(out)]) == 2
    text = capsys.readouterr().err
    assert complaint in text and text.count("\n") == 1
    assert not out.exists()


def test_missing_data_says_where_to_put_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUREBOUND_DATA", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for experiment in ("table1", "branching"):
        assert main(["reproduce", experiment, "--scale", "cpu", "--out", str(tmp_path / "out")]) == 2
        text = capsys.readouterr().err
        assert "cifar" in text and "http" in text
    assert not (tmp_path / "out").exists()


def test_the_rest_is_estimated_from_what_was_done() -> None:
    pace = Pace()
    assert pace.remaining(["train"], [("train", 0.0, 5.0)], 4, 1) is None
    pace.add("train", 100.0)
    pace.add("certify", 20.0)
    pace.add("certify", 0.1)  # had been done before
    assert pace.remaining(["train"], [("train", 0.5, 60.0)], 4, 2) == pytest.approx((100 + 60 + 2 * 20) / 2)


def test_images_that_take_no_time_make_the_rest_shorter() -> None:
    pace = Pace()
    for seconds in [0.01] * 98 + [20.0] * 2:
        pace.add("branch", seconds)
    assert pace.remaining(["branch"] * 100, [], 100, 1) == pytest.approx(98 * 0.01 + 2 * 20.0)

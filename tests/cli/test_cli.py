"""The command line, as its users and their scripts see it."""

import io
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from commands import SUREBOUND, environment, surebound, write_hard, write_sine, write_tiny

from surebound import __version__
from surebound.cli.arguments import memory_size, write_whole
from surebound.cli.display import ProgressLine
from surebound.cli.main import main
from surebound.cli.verify import json_text, vnncomp_text
from surebound.errors import UsageError
from surebound.problem import Verdict
from surebound.verify.progress import Progress

pytestmark = pytest.mark.slow

KEYS = {"verdict", "seconds", "seconds_by_phase", "subproblems", "lower_bound", "branching", "seed", "version"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Networks and properties, good and bad."""
    place = tmp_path_factory.mktemp("cli")
    write_tiny(place)
    write_hard(place)
    write_sine(place)
    holds = (place / "holds.vnnlib").read_text()
    third = "(declare-const X_2 Real)\n(assert (<= X_2 1))\n(assert (>= X_2 0))\n"
    (place / "three.vnnlib").write_text(third + holds)
    (place / "text.onnx").write_text("this is not a network\n")
    (place / "text.vnnlib").write_text("this is not a property\n")
    (place / "empty.onnx").touch()
    (place / "empty.vnnlib").touch()
    (place / "folder").mkdir()
    (place / "run").mkdir()
    (place / "run" / "model.onnx").touch()
    return place


# ---- verify


def test_unsat_with_json(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = surebound("verify", "tiny.onnx", "holds.vnnlib", "--json", report, "--seed", 7, "--timeout", 60, cwd=folder)
    assert (done.returncode, done.stdout) == (0, "unsat\n")
    assert "subproblems" in done.stderr and len(done.stderr.splitlines()) == 1
    record = json.loads(report.read_text())
    assert set(record) - {"reason"} == KEYS
    assert (record["verdict"], record["seed"], record["version"]) == ("unsat", 7, __version__)
    assert 0 < sum(record["seconds_by_phase"].values()) <= record["seconds"] + 1e-3
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_a_property_that_nothing_can_violate_is_pointed_out(folder: Path, tmp_path: Path) -> None:
    slip = tmp_path / "slip.vnnlib"
    slip.write_text((folder / "holds.vnnlib").read_text() + "(assert (>= X_1 2))\n")
    proof, reason = (
        tmp_path / "proof",
        "nothing can violate the property: it asks for X_1 to be at least 2 and at most 1.0",
    )
    done = surebound("verify", "tiny.onnx", slip, "--proof", proof, "--quiet", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unsat\n", f"surebound: {reason}\n")
    assert f"({reason})" in surebound("verify", "tiny.onnx", slip, cwd=folder).stderr
    assert reason in surebound("inspect", "tiny.onnx", slip, cwd=folder).stdout
    checked = surebound("check", "tiny.onnx", slip, proof, cwd=folder).stdout
    assert checked.startswith("valid\n") and "nothing was to be proved: no input keeps to the bounds" in checked


def test_sat_with_a_counterexample_that_stands(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "counterexample"
    done = surebound("verify", "tiny.onnx", "fails.vnnlib", "--counterexample", file, "--quiet", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "sat\n", "")
    head, body = file.read_text().split("\n", 1)
    assert head == "sat" and body.startswith("((X_0 ") and body.endswith("))\n")
    pairs = re.findall(r"\(([XY])_(\d+) (\S+?)\)", body)
    assert [(letter, index) for letter, index, _ in pairs] == [("X", "0"), ("X", "1"), ("Y", "0"), ("Y", "1")]
    x, y = (np.array([float(v) for letter, _, v in pairs if letter == wanted]) for wanted in "XY")
    assert (np.abs(x) <= 1).all() and (x.astype(np.float32) == x).all() and y[1] >= 0.9
    session = ort.InferenceSession(folder / "tiny.onnx", providers=["CPUExecutionProvider"])
    assert (session.run(None, {"x": x.astype(np.float32)[None]})[0][0] == y).all()


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (["nosuch.onnx", "holds.vnnlib"], "cannot read the network 'nosuch.onnx': there is no such file"),
        (["tiny.onnx", "nosuch.vnnlib"], "cannot read the property 'nosuch.vnnlib': there is no such file"),
        (["empty.onnx", "holds.vnnlib"], "the network 'empty.onnx' is empty; expected an ONNX file"),
        (["tiny.onnx", "empty.vnnlib"], "the property 'empty.vnnlib' is empty; expected a VNN-LIB file"),
        (["folder", "holds.vnnlib"], "'folder': it is a folder"),
        (["tiny.onnx", "folder"], "'folder': it is a folder"),
        (["run", "holds.vnnlib"], "'run': it is a folder; expected an ONNX file, such as its model.onnx"),
        (["text.onnx", "holds.vnnlib"], "'text.onnx' is not an ONNX file"),
        (["tiny.onnx", "text.vnnlib"], "text.vnnlib: line 1: expected '(', got 'this'"),
        (["sine.onnx", "holds.vnnlib"], "node 'squash' (Sin) of 'sine.onnx': this operation is not supp"),
        (["tiny.onnx", "three.vnnlib"], "three.vnnlib is over 3 inputs and 2 outputs, but the network has 2 inputs"),
        (["tiny.onnx", "holds.vnnlib", "--json", "no/where"], "--json 'no/where': expected a file name in an existing"),
        (
            ["tiny.onnx", "holds.vnnlib", "--counterexample", "folder"],
            "--counterexample 'folder': it is a folder; expected",
        ),
        (["tiny.onnx", "holds.vnnlib", "--json", "tiny.onnx"], "it would overwrite 'tiny.onnx', which is read"),
        (["tiny.onnx", "holds.vnnlib", "--json", "a", "--counterexample", "a"], "overwrite the file of --counterex"),
    ],
)
def test_mistakes_are_one_sentence(
    folder: Path, args: list[str], complaint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    before = _contents(folder)
    assert main(["verify", *args]) == 2
    out, err = capsys.readouterr()
    assert out == "" and complaint in err and err.startswith("surebound: ") and err.count("\n") == 1
    assert _contents(folder) == before


def _contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--timeout", "soon"),
        ("--timeout", "-1"),
        ("--timeout", "0"),
        ("--timeout", "nan"),
        ("--branching", "best"),
        ("--seed", "-1"),
        ("--seed", "9" * 40),
        ("--threads", "0"),
        ("--threads", "two"),
        ("--memory", "3X"),
        ("--memory", "10"),
        ("--time", "3"),  # no abbreviations
    ],
)
def test_bad_options(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["verify", "tiny.onnx", "holds.vnnlib", option, value])
    out, err = capsys.readouterr()
    assert caught.value.code == 2 and out == ""
    assert option in err and value in err and err.count("\n") == 1
    assert err.startswith("surebound verify: ") and err.endswith("(see 'surebound verify --help')\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is unreadable to root")
def test_files_that_may_not_be_read_or_written(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(b"x")
    secret.chmod(0)
    assert main(["verify", str(secret), str(folder / "holds.vnnlib")]) == 2
    assert "permission denied" in capsys.readouterr().err
    tmp_path.chmod(0o555)
    report = str(tmp_path / "report.json")
    assert main(["verify", str(folder / "tiny.onnx"), str(folder / "holds.vnnlib"), "--json", report]) == 2
    assert "permission denied" in capsys.readouterr().err


def test_a_missing_file_is_reported_without_importing_torch(folder: Path) -> None:
    program = (
        "import sys; from surebound.cli.main import main; "
        "code = main(['verify', 'nosuch.onnx', 'holds.vnnlib']); "
        "sys.exit(99 if 'torch' in sys.modules or 'onnx' in sys.modules else code)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "nosuch.onnx" in done.stderr


def test_interrupt_keeps_what_is_known_and_a_terminal_gets_a_bar(folder: Path, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    ours, theirs = pty.openpty()
    command = [*SUREBOUND, "verify", "hard.onnx", "hard.vnnlib", "--json", str(report), "--threads", "2"]
    command += ["--timeout", "100"]
    with subprocess.Popen(
        command,
        cwd=folder,
        env=environment(TERM="xterm"),
        stdout=subprocess.PIPE,
        stderr=theirs,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    ) as process:
        os.close(theirs)
        shown = b""
        deadline = time.monotonic() + 60
        while b" open" not in shown and time.monotonic() < deadline:  # the search is running
            shown += os.read(ours, 4096)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    os.close(ours)
    assert (process.returncode, out) == (130, b"unknown\n")
    assert b"\r\x1b[2K[" in shown and b"s of 100  search" in shown
    record = json.loads(report.read_text())
    assert set(record) - {"reason"} == KEYS
    assert (record["verdict"], record["reason"]) == ("unknown", "interrupted")
    assert record["subproblems"] > 0 and record["lower_bound"] < 0


def test_a_full_disk_is_unknown_with_a_sentence(folder: Path, tmp_path: Path) -> None:
    """The limit on the size of files stands for a disk that is full: the system refuses to write more."""
    report = tmp_path / "report.json"
    command = [*SUREBOUND, "verify", "hard.onnx", "hard.vnnlib", "--json", str(report), "--memory", "1M"]
    done = subprocess.run(
        [*command, "--timeout", "100", "--branching", "sr"],
        cwd=folder,
        env=environment(TMPDIR=str(tmp_path)),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)),
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, "unknown\n")
    sentence = f"the search queue outgrew its memory and cannot be kept in '{tmp_path}' (file too large)"
    assert sentence in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr
    record = json.loads(report.read_text())
    assert record["verdict"] == "unknown" and sentence in record["reason"]
    assert record["subproblems"] > 500 and record["lower_bound"] < 0
    assert not list(tmp_path.glob("surebound*"))


def test_a_reader_that_leaves_early_is_no_error(folder: Path) -> None:
    command = [*SUREBOUND, "inspect", "sine.onnx"]
    with subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_a_mistake_is_one_also_where_nobody_reads_of_it(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone, Path("/dev/full").open("w") as full:
        for errors in (gone, full):
            command = [*SUREBOUND, "verify", "nosuch.onnx", "holds.vnnlib"]
            done = subprocess.run(
                command, cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=errors, check=False
            )
            assert (done.returncode, done.stdout) == (2, b"")


def test_a_full_disk_behind_standard_output_is_named(folder: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [*SUREBOUND, "verify", "tiny.onnx", "holds.vnnlib"]
        done = subprocess.run(
            command, cwd=folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert done.stderr == "surebound: cannot write to standard output (No space left on device)\n"


# ---- inspect


def test_inspect_a_network_and_a_property(folder: Path) -> None:
    done = surebound("inspect", "tiny.onnx", "holds.vnnlib", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "operations   3 Gemm, 2 Relu" in lines
    assert "parameters   35" in lines  # (2·4 + 4) + (4·3 + 3) + (3·2 + 2)
    assert "unsupported  none" in lines
    assert "to exclude   1 region with 1 row in all, over 1 box" in lines
    table = [line.split() for line in lines if line.startswith(("1 ", "2 ", "all "))]
    # |x₀| + |x₁| is never negative, but its least value is 0, which rounding outward puts below 0
    assert [row[-3:] for row in table] == [["4", "4", "4"], ["3", "3", "3"], ["7", "7", "7"]]
    assert any(line.startswith("search ") for line in lines)


def test_inspect_names_what_is_not_supported(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder / "sine.onnx")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "operations   1 Sin" in lines and "unsupported  Sin, node 'squash'" in lines


def test_inspect_says_that_it_leaves_a_property_out(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(folder / "sine.onnx"), str(folder / "holds.vnnlib")]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("property ") and last.endswith(
        "holds.vnnlib: not looked at, since the network is not supported"
    )


def test_inspect_prints_nothing_for_a_property_that_does_not_fit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(folder / "tiny.onnx"), str(folder / "three.vnnlib")]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "over 3 inputs" in err


# ---- parts


def test_lines_when_piped_and_silence_when_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for quiet in (False, True):
        stream = io.StringIO()
        monkeypatch.setattr(sys, "stderr", stream)
        line = ProgressLine(quiet=quiet, timeout=60.0)
        for second in range(12):
            line(Progress(phase="search", seconds=second, subproblems=1000 * second, open=3, lowest=-0.5))
            now[0] += 1.0
        line.done()
        shown = stream.getvalue().splitlines()
        assert shown == [] if quiet else len(shown) == 2
    assert line.last is not None and line.last.subproblems == 11_000
    assert "\r" not in stream.getvalue()


def test_results_are_strict_json_and_text_without_a_counterexample() -> None:
    verdict = Verdict(status="timeout", lower_bound=float("-inf"))
    assert json.loads(json_text(verdict))["lower_bound"] is None
    assert vnncomp_text(verdict) == "timeout\n"


def test_write_whole_leaves_nothing_behind_when_it_fails(tmp_path: Path) -> None:
    target = tmp_path / "report"
    write_whole(target, "one")
    write_whole(target, "two")
    assert target.read_text() == "two"
    with pytest.raises(UsageError, match="cannot write"):
        write_whole(tmp_path / "absent" / "report", "x")
    assert list(tmp_path.iterdir()) == [target]


def test_memory_sizes() -> None:
    assert [memory_size(text) for text in ("1M", "1.5g", "2097152")] == [2**20, 3 * 2**29, 2**21]

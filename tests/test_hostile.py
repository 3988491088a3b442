"""The quick ones of the hostile files, in this process: one sentence that says what is wrong, and no memory for it.

`python tests/hostile.py` runs all of them, each in a process of its own with little memory and time.
"""

import gzip
import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import environment, write_tiny
from hostile import CASES
from hostile_case import BOX, REFUSED, Case
from onnx_models import X, save_op

import surebound
from surebound.cli.main import main
from surebound.errors import NetworkError, OutOfTimeError, UsageError
from surebound.limits import Deadline, Tally, read_file
from surebound.load.fold import EVALUATED
from surebound.load.vnnlib import read_property
from surebound.load.wire import check_parsed_size

QUICK = [case for case in CASES if not case.slow]
MEMORY = 2**29  # bytes that Python and NumPy may allocate; the largest of the files has an eighth of that


def test_there_are_enough_files() -> None:
    assert len(CASES) >= 200 and len(QUICK) >= 150
    assert len({case.name for case in CASES}) == len(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_hostile(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    args = case.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    tracemalloc.start(1)
    try:
        code = main(args)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    out, err = capsys.readouterr()
    assert peak < MEMORY
    assert all(c.isprintable() for c in (out + err).replace("\n", ""))
    if code == 0:
        assert out.splitlines()[0] in case.ends or "printed" in case.ends
    else:
        assert code == 2 and REFUSED in case.ends and out == ""
        assert err.startswith("surebound: ") and err.count("\n") == 1 and case.says in err


# ---- limits of time


def test_time_that_runs_out_while_reading_is_a_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["verify", "tiny.onnx", "holds.vnnlib", "--timeout", "1e-9", "--json", "r.json"]) == 0
    out, err = capsys.readouterr()
    assert out == "timeout\n" and "(the time ran out while reading 'holds.vnnlib')" in err
    record = json.loads((tmp_path / "r.json").read_text())
    assert record["verdict"] == "timeout" and record["reason"] == "the time ran out while reading 'holds.vnnlib'"


def test_the_python_interface_counts_the_reading_too(tmp_path: Path) -> None:
    write_tiny(tmp_path)
    net, prop = tmp_path / "tiny.onnx", tmp_path / "holds.vnnlib"
    verdict = surebound.verify(net, prop, timeout=1e-9)
    assert verdict.status == "timeout" and verdict.reason == f"the time ran out while reading '{prop}'"
    verdict = surebound.verify(net, read_property(prop), timeout=1e-9)
    assert verdict.status == "timeout" and verdict.reason == f"the time ran out while reading '{net}'"
    assert surebound.verify(net, prop, timeout=60).status == "unsat"


@pytest.mark.parametrize(
    "formula",
    ["(<= (+ " + "1 " * 10_000 + ") Y_0)", "(or " + "(<= Y_0 0)" * 10_000 + ")", "(<= " + "Y_0 " * 10_000 + ")"],
    ids=["sum", "or", "chain"],
)
def test_the_clock_is_looked_at_within_one_assertion(formula: str, tmp_path: Path) -> None:
    """The limit is passed after the file was unpacked; nothing but the reader of formulas can notice."""
    path = tmp_path / "p.vnnlib"
    path.write_text(f"{BOX}(assert {formula})")
    with pytest.raises(OutOfTimeError, match="while reading"):
        read_property(path, deadline=Deadline(0.0))


def test_a_watchdog_ends_what_does_not_look_at_the_clock() -> None:
    code = """
import time
from surebound.cli.watchdog import Watchdog
first = Watchdog(time.monotonic() + 0.1, lambda: 7)
first.call_off()
time.sleep(0.3)
print("alive", flush=True)
Watchdog(time.monotonic() + 0.1, lambda: print("timeout") or 3)
while True:
    pass
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "alive\ntimeout\n", "")


# ---- limits of size


def test_files_are_read_up_to_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def read() -> bytes:
        return read_file(path, "file", UsageError, most=100, unpacked=1000, expected="little")

    for content in (b"", b"x" * 100):
        path.write_bytes(content)
        assert read() == content
    path.write_bytes(gzip.compress(b"x" * 1000))
    assert read() == b"x" * 1000
    for content, message in ((b"x" * 101, "has 0 MiB"), (gzip.compress(b"x" * 1001), "unpacks to more")):
        path.write_bytes(content)
        with pytest.raises(UsageError, match=message):
            read()


def test_moderate_tensors_add_up() -> None:
    tally = Tally()
    for _ in range(4):
        tally.add(2**27, 8)
    with pytest.raises(NetworkError, match="4,096 MiB"):
        tally.add(1)


def test_a_file_is_measured_before_it_is_parsed(tmp_path: Path) -> None:
    """A large file of few parts is parsed, and a small one of many is not."""
    net = save_op(tmp_path / "net.onnx", "Gemm", (1, 600), [X, np.zeros((600, 600), np.float32)], opset=13)
    content = net.read_bytes()
    assert len(content) > 2**20
    check_parsed_size(content, net, Deadline(), 2**24)
    with pytest.raises(NetworkError, match="so many parts"):
        check_parsed_size(b"\x3a\x84\x80\x80\x02" + b"\x0a\x00" * (2**21 + 2), net, Deadline(), 2**24)
    with pytest.raises(OutOfTimeError):
        check_parsed_size(b"\x3a\x84\x80\x80\x02" + b"\x0a\x00" * (2**21 + 2), net, Deadline(0.0), 2**24)


@pytest.mark.parametrize("op", sorted(EVALUATED - {"Constant"}))
def test_what_is_evaluated_is_an_operation_that_onnx_knows(op: str) -> None:
    assert onnx.defs.has(op) and not onnx.defs.get_schema(op).deprecated
    assert not any(a.type == onnx.defs.OpSchema.AttrType.GRAPH for a in onnx.defs.get_schema(op).attributes.values())

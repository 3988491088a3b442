"""What a command imports before it answers: what the first attempt settles is settled without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment, write_hard, write_tiny

pytestmark = pytest.mark.slow

RUN = """
import json, sys
from surebound.cli.main import main
try:
    code = main({arguments!r})
except SystemExit as end:
    code = end.code
print(json.dumps([code, [name for name in {names!r} if name in sys.modules]]))
"""


def imported(
    folder: Path, *arguments: str, names: tuple[str, ...] = ("torch", "highspy")
) -> tuple[list[str], list[str]]:
    """The lines that a command prints, and which of some modules it has imported by then."""
    code = RUN.format(arguments=list(arguments), names=list(names))
    run = [sys.executable, "-c", code]
    done = subprocess.run(run, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120, check=True)
    *lines, last = done.stdout.splitlines()
    exit_code, found = json.loads(last)
    assert exit_code == 0, done.stderr
    return lines, found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("start")
    write_tiny(place)
    write_hard(place)
    box = "".join(f"(declare-const X_{i} Real)\n(assert (>= X_{i} 0.1))\n(assert (<= X_{i} 0.11))\n" for i in range(2))
    outputs = "(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
    (place / "far.vnnlib").write_text(f"{box}{outputs}(assert (>= Y_0 1000))\n")
    (place / "near.vnnlib").write_text(f"{box}{outputs}(assert (<= Y_0 1000))\n")
    for name, vary, least in (("few", 3, 2), ("more", 6, 5)):  # of hard.onnx, whose other inputs are 0
        ends = [f"(assert (>= X_{i} {-(i < vary):d}))\n(assert (<= X_{i} {i < vary:d}))\n" for i in range(30)]
        declared = "".join(f"(declare-const X_{i} Real)\n{end}" for i, end in enumerate(ends))
        (place / f"{name}.vnnlib").write_text(f"{declared}{outputs}(assert (>= Y_0 {least}))\n")
    return place


@pytest.mark.parametrize(("problem", "verdict"), [("far.vnnlib", "unsat"), ("near.vnnlib", "sat")])
def test_what_the_first_attempt_settles_needs_no_torch(folder: Path, problem: str, verdict: str) -> None:
    files = ("--json", "out.json", "--counterexample", "out.txt")
    lines, found = imported(folder, "verify", "tiny.onnx", problem, "--quiet", *files)
    assert (lines, found) == ([verdict], [])
    record = json.loads((folder / "out.json").read_text())
    assert record["verdict"] == verdict and record["lower_bound"] is None
    assert set(record["seconds_by_phase"]) == {"load", "attack"}
    assert (folder / "out.txt").read_text().split()[0] == verdict


def test_a_short_bisection_needs_no_torch(folder: Path) -> None:
    lines, found = imported(folder, "verify", "hard.onnx", "few.vnnlib", "--quiet", "--json", "out.json")
    assert (lines, found) == (["unsat"], [])
    record = json.loads((folder / "out.json").read_text())
    assert record["branching"] == "input" and record["subproblems"] > 10
    assert set(record["seconds_by_phase"]) == {"load", "attack", "bounding", "branching", "queue"}


def test_a_long_one_goes_on_with_torch(folder: Path) -> None:
    lines, found = imported(folder, "verify", "hard.onnx", "more.vnnlib", "--quiet", "--json", "out.json")
    assert (lines, "torch" in found) == (["unsat"], True)
    assert json.loads((folder / "out.json").read_text())["branching"] == "input"


def test_who_asks_for_neurons_to_be_split_gets_that(folder: Path) -> None:
    for branching, needed in (("auto", False), ("input", False), ("upb", True)):
        options = ("--branching", branching, "--json", "out.json")
        lines, found = imported(folder, "verify", "tiny.onnx", "holds.vnnlib", "--quiet", *options)
        assert (lines, "torch" in found) == (["unsat"], needed)
        assert json.loads((folder / "out.json").read_text())["branching"] == ("upb" if needed else "input")


def test_what_it_does_not_settle_does(folder: Path) -> None:
    lines, found = imported(folder, "verify", "hard.onnx", "hard.vnnlib", "--quiet", "--timeout", "15")
    assert (lines, "torch" in found) == (["timeout"], True)


@pytest.mark.parametrize("options", [("--proof", "out.proof"), ("--search", "paper")])
def test_options_that_ask_for_more_than_a_verdict_get_it(folder: Path, options: tuple[str, str]) -> None:
    lines, found = imported(folder, "verify", "tiny.onnx", "far.vnnlib", "--quiet", *options)
    assert (lines, "torch" in found) == (["unsat"], True)


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("verify", "--help"), ("train", "--help")])
def test_help_imports_no_library(folder: Path, arguments: tuple[str, ...]) -> None:
    assert imported(folder, *arguments, names=("numpy", "onnx", "torch"))[1] == []

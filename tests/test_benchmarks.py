"""The benchmark scripts on tiny inputs: what they count as right, wrong, replayed and crashed."""

import argparse
import gzip
import importlib
import json
import sys
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script of benchmarks/ or examples/ by its plain name, as when it is run by hand."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    before = set(sys.modules)
    yield importlib.import_module
    for name in ("common", "replay", "run", "vnncomp", "branching_mnist", "tiny"):
        if name not in before:
            sys.modules.pop(name, None)


@pytest.fixture
def tiny(script: Any, tmp_path: Path) -> Path:
    """A folder with the tiny network, whose property `fails` has a counterexample at (0, 1), and `holds` has none."""
    script("tiny").write(tmp_path)
    return tmp_path


def witness(x: tuple[str, str], y: tuple[str, str]) -> str:
    return f"sat\n((X_0 {x[0]})\n(X_1 {x[1]})\n(Y_0 {y[0]})\n(Y_1 {y[1]}))\n"


@pytest.mark.parametrize(
    ("x", "y", "failure"),
    [
        (("0.0", "1.0"), ("1.25", "1.0"), None),
        (("0.0", "1.0000000000000002"), ("1.25", "1.0"), "an input lies outside the box"),
        (("0.5", "1.0"), ("1.75", "0.5"), "the outputs do not violate the property"),
        (("0.0", "1.0"), ("1.25", "1.5"), "the written outputs are not the network's"),
        (("nan", "1.0"), ("1.25", "1.0"), "ValueError: Invalid literal for Fraction: 'nan'"),
    ],
)
def test_replay_judges_counterexamples(
    script: Any, tiny: Path, x: tuple[str, str], y: tuple[str, str], failure: str | None
) -> None:
    found = script("replay").check(tiny / "tiny.onnx", tiny / "fails.vnnlib", witness(x, y))
    assert found == failure


def test_replay_reads_gzipped_files_and_rejects_an_empty_witness(script: Any, tiny: Path) -> None:
    replay = script("replay")
    packed = tiny / "fails.vnnlib.gz"
    packed.write_bytes(gzip.compress((tiny / "fails.vnnlib").read_bytes()))
    assert replay.check(tiny / "tiny.onnx", packed, witness(("0.0", "-1.0"), ("1.25", "1.0"))) is None
    assert replay.check(tiny / "tiny.onnx", packed, "sat\n") is not None


@pytest.mark.parametrize(
    ("formula", "truth"),
    [
        ("(<= X_0 0.1)", True),
        ("(< X_0 0.1)", False),
        ("(or (and (>= Y_0 3) (<= X_0 0)) (and (>= Y_0 2)))", True),
        ("(and (>= Y_0 3) (<= X_0 1))", False),
        ("(>= (+ Y_0 (* 2 X_0) (- 0.2)) 2)", True),
        ("(> (- Y_0 1 1) 0)", False),
        ("(= (- Y_0) -2e0)", True),
    ],
)
def test_formulas_are_evaluated_exactly(script: Any, formula: str, truth: bool) -> None:
    replay = script("replay")
    (assertion,) = replay.read_assertions(f"(declare-const X_0 Real) ; (assert no)\n(assert {formula})")
    assert replay.holds(assertion, {"X_0": Fraction("0.1"), "Y_0": Fraction(2)}) is truth


def test_unreadable_formulas_are_errors(script: Any) -> None:
    replay = script("replay")
    for text in ("(assert (<= X_0 1)", "(check-sat)"):
        with pytest.raises(ValueError, match=r"parentheses|unknown commands"):
            replay.read_assertions(text)
    with pytest.raises(ValueError, match="unknown formula 'not'"):
        replay.holds(["not", ["<=", "X_0", "1"]], {"X_0": Fraction(0)})


def test_an_instance_is_run_replayed_and_judged(script: Any, tiny: Path) -> None:
    common, vnncomp = script("common"), script("vnncomp")
    rows = ["benchmark,onnx,vnnlib,timeout,expected,competition_seconds"]
    rows += ["tiny,tiny.onnx,fails.vnnlib,9,unsat,", "tiny,missing.onnx,holds.vnnlib,9,unsat,"]
    (tiny / "instances.csv").write_text("\n".join(rows) + "\n")
    fails, missing = common.read_instances(tiny)
    record = vnncomp.run_instance(fails, 60.0, 1)
    assert (record["verdict"], record["replay"], record["crash"]) == ("sat", None, None)
    assert record["wrong"]  # unsat was expected
    crashed = vnncomp.run_instance(missing, 60.0, 1)
    assert crashed["verdict"] == "none"
    assert "exit code 2" in crashed["crash"]
    assert not crashed["wrong"]
    assert vnncomp.tally_text([record, crashed]) == (
        "solved 0 of 2 with a known verdict, 1 wrong, 0 of 1 replays failed, 1 crashes"
    )
    page = vnncomp.report([record, crashed], 2, "a machine.")
    assert "**sat: WRONG**" in page
    assert "**crash**" in page


def test_a_silent_or_hanging_process_is_a_crash(script: Any) -> None:
    launch = script("vnncomp")._launch
    assert launch([sys.executable, "-c", "print('unsat')"], 60.0) == ("unsat", None)
    assert launch([sys.executable, "-c", "print('hello')"], 60.0)[0] == "none"
    assert launch([sys.executable, "-c", "import sys; print('unsat'); sys.exit(3)"], 60.0)[1] is not None
    assert launch([sys.executable, "-c", "import time; time.sleep(60)"], 0.2) == ("none", "killed after 0 s")


def test_the_easy_half_is_by_wall_time_over_known_verdicts(script: Any) -> None:
    walls = {"unsat": (5.0, 1.0, 3.0), "sat": (2.0,), "unknown": (0.1,)}
    records = [{"expected": e, "wall": w} for e, ws in walls.items() for w in ws]
    assert [r["wall"] for r in script("vnncomp").easy_half(records)] == [1.0, 2.0]


def test_a_log_resumes_after_half_a_line(script: Any, tmp_path: Path) -> None:
    common = script("common")
    path = tmp_path / "log.jsonl"
    common.Log(path, ("name",), resume=False).add({"name": "a", "value": 1})
    with path.open("a") as file:
        file.write('{"name": "b", "va')
    log = common.Log(path, ("name",), resume=True)
    assert log.find(name="a") == {"name": "a", "value": 1}
    assert log.find(name="b") is None
    log.add({"name": "b", "value": 2})
    assert [json.loads(line)["value"] for line in path.read_text().splitlines()] == [1, 2]
    with pytest.raises(SystemExit, match="--resume"):
        common.Log(path, ("name",), resume=False)


def test_the_mnist_box_holds_the_exact_normalised_pixels(script: Any) -> None:
    mnist = script("branching_mnist")
    eps = Fraction("0.2")
    prop = mnist.robustness(np.array([0, 100, 255], dtype=np.uint8), 3, eps)
    box = prop.regions[0].box
    ends = [(Fraction(0), eps), (Fraction(100, 255) - eps, Fraction(100, 255) + eps), (1 - eps, Fraction(1))]
    for i, (low, high) in enumerate(ends):
        exact_low, exact_high = ((end - Fraction("0.1307")) / Fraction("0.3081") for end in (low, high))
        assert Fraction(float(box.lower[i])) <= exact_low < Fraction(float(np.nextafter(box.lower[i], np.inf)))
        assert Fraction(float(np.nextafter(box.upper[i], -np.inf))) < exact_high <= Fraction(float(box.upper[i]))
    scores = np.arange(10.0)
    margins = [float((region.on_output @ scores)[0]) for region in prop.regions]
    assert margins == [3.0 - other for other in range(10) if other != 3]


def _group(mnist: ModuleType, verdicts: tuple[str, str, str], seconds: tuple[float, float, float]) -> Any:
    return {
        rule: {"image": 7, "eps": "0.2", "verdict": v, "seconds": s, "subproblems": 20, "phases": {"branching": 0.1}}
        for rule, v, s in zip(mnist.RULES, verdicts, seconds, strict=True)
    }


def test_the_mnist_report_averages_as_the_paper_and_finds_contradictions(script: Any) -> None:
    mnist = script("branching_mnist")
    groups = [
        _group(mnist, ("unsat", "unsat", "unsat"), (1.0, 2.0, 3.0)),
        _group(mnist, ("unsat", "timeout", "unsat"), (3.0, 20.0, 1.0)),
    ]
    groups[1]["upb"]["subproblems"] = 1000  # FSB timed out: left out of the mean
    table = mnist.comparison_table({"0.2": groups})
    assert "| UPB | **2.000** | 20.0 | **0.0** |" in table
    assert "| FSB | 11.000 | 20.0 | 50.0 |" in table
    assert not any(map(mnist.contradicts, groups))
    clash = _group(mnist, ("unsat", "sat", "timeout"), (1.0, 1.0, 1.0))
    assert mnist.contradicts(clash)
    page = mnist.report({"0.2": [*groups, clash]}, argparse.Namespace(first=3, timeout=20.0), "a machine.")
    assert "**1 contradictions" in page
    assert "ε = 0.2, FSB: images 7" in page


def test_run_compares_the_rules_on_a_random_network(script: Any) -> None:
    run = script("run")
    case = run.random_case(width=12, inputs=6, eps=0.05)
    runs = [run.run_case(case, rule, 20.0) for rule in run.RULES]
    assert {r.verdict.status for r in runs} <= {"sat", "unsat"}
    assert len({r.verdict.status for r in runs}) == 1
    page = run.report(runs, 20.0, "a machine.")
    assert "0 wrong verdicts" in page
    assert "FSB ÷ UPB time" in page

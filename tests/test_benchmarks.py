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

from surebound.load.vnnlib import read_property
from surebound.problem import Robustness, Verdict

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script of benchmarks/ or examples/ by its plain name, as when it is run by hand."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    before = set(sys.modules)
    yield importlib.import_module
    folders = (ROOT / "benchmarks", ROOT / "examples")
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").parent in folders:
            del sys.modules[name]


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


@pytest.mark.slow
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
    late = vnncomp.overshoot_text([{"wall": 61.5, "timeout": 60.0, "instance": "late"}, record])
    assert late == "1 of 2 over their timeout by more than 0.5 s; most: +1.50 s, late"
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


def test_rules_are_compared_on_a_random_network(script: Any) -> None:
    rules = script("rules")
    case = rules.random_case(width=12, inputs=6, eps=0.05)
    runs = [rules.run_case(case, rule, 20.0) for rule in rules.RULES]
    assert {r.verdict.status for r in runs} <= {"sat", "unsat"}
    assert len({r.verdict.status for r in runs}) == 1
    page = rules.report(runs, 20.0)
    assert "0 wrong verdicts" in page
    assert "FSB ÷ UPB time" in page


def _verdict(status: str, subproblems: int, seconds: float, **phases: float) -> Verdict:
    return Verdict(status=status, subproblems=subproblems, seconds=seconds, seconds_by_phase=phases)


def test_rates_leave_out_attacks_and_root_bounds(script: Any) -> None:
    common, rates = script("common"), script("rates")
    long = _verdict("timeout", 900, 4.0, load=9.0, attack=1.0, root=1.0, bounding=1.0, queue=0.5)
    assert common.search_rate(long) == 600.0
    assert common.search_rate(_verdict("unsat", 9, 1.0, attack=0.5, root=0.5)) is None
    short = _verdict("unsat", 100, 1.0, bounding=0.5)
    table = rates.rate_table([rates.Search(network="net", name=str(i), verdict=v) for i, v in enumerate((long, short))])
    assert "| net | 0 | timeout | 900 | 1.50 | 600 | 4.00 | 225 |" in table
    assert "| **net** | **all of these** |  | 1,000 | 2.00 | 500 | 5.00 | 200 |" in table


def test_rule_ratios_are_geometric_means_where_both_ended(script: Any) -> None:
    rules = script("rules")
    seconds = {"a": (1.0, 2.0, 3.0, 1.0), "b": (1.0, 8.0, 9.0, 1.0)}
    runs = [
        rules.Run(case=case, expected="unsat", rule=rule, verdict=_verdict(status, 4, found, bounding=found))
        for case, times in seconds.items()
        for rule, found in zip(rules.RULES, times, strict=True)
        for status in ("timeout" if (case, rule) == ("b", "sr") else "unsat",)
    ]
    assert rules.mean_ratio(runs, "fsb") == pytest.approx(4.0)
    assert rules.mean_ratio(runs, "sr") == pytest.approx(3.0)
    assert "≥ 9.00" in rules.ratio_table(runs, ["a", "b"])


def test_columns_of_a_profile_add_up(script: Any) -> None:
    phases = script("phases")
    took = {"import": 0.25, "load": 0.5, "attack": 1.0, "root": 2.0, "bounding": 3.0, "novel": 0.25}
    record = {"wall": 8.5, "seconds": 7.5, "phases": took}
    found = phases.columns(record)
    assert found["start-up"] == 1.75
    assert found["other"] == 0.75  # the phase without a column, and half a second in no phase
    assert sum(found.values()) - found["wall"] == found["wall"]
    assert phases.fastest([record, record | {"wall": 8.0}])["wall"] == 8.0
    before = phases.columns({"wall": 17.0, "seconds": 16.0, "phases": {"bounding": 12.0, "load": 0.5}})
    profile = phases.Profile(name="net", before=before, now=found)
    row = next(line for line in phases.ratio_table([profile]).splitlines() if line.startswith("| net"))
    cells = dict(zip(phases.COLUMNS, row.split(" | ")[1:], strict=True))
    assert (cells["wall"], cells["bounding"], cells["root"], cells["queue"]) == ("2.00", "4.00", "0.00", "–")
    assert "| sum | 8.50 | 1.75 |" in phases.seconds_table([("net", found)])


def test_starts_are_compared_by_the_least_of_their_seconds(script: Any) -> None:
    start = script("start")
    costs = {"a": {"before": (2.0, 4.0), "now": (1.0, 1.0)}, "b": {"before": (1.0, 1.0), "now": (2.0, 1.0)}}
    text = start.report(costs, "v1", "here")
    assert "| a | 2.00 | 1.00 | 2.00 | 4.00 | 1.00 | 4.00 |" in text
    assert "| **geometric mean** |  |  | **1.00** |  |  | **2.00** |" in text
    wall, processor = start.run(["--version"], start.HERE, 1)
    assert processor > 0 and wall > 0


def test_both_forms_bound_the_same_nodes_alike(script: Any) -> None:
    bounding, rules = script("bounding"), script("rules")
    case = rules.random_case(width=20, inputs=8, eps=0.05)
    pair = bounding.prepare(case.name, case.model, case.problem, nodes=6)
    folded, graph = (bounding.bound(subject, nodes, 4) for subject, nodes in pair.sides.values())
    assert 0 < pair.folded.form.neurons < pair.graph.form.neurons == 60
    assert folded.tolist() == pytest.approx(graph.tolist(), rel=1e-3)
    assert float(folded.max()) < 0  # nothing is proved, so every node takes all iterations
    assert bounding.multiply_adds(pair.graph) == 8 * 20 + 2 * 20 * 20 + 20 * 3
    found = bounding.measure(pair, 1, iterations=2)
    assert found.flops == (2 * 2 + 1) * 2 * pair.folded.form.numbers * 6
    assert 0 < found.nonzero <= found.work.folded


def test_a_wider_box_keeps_its_centre(script: Any) -> None:
    problem = script("rules").random_case(width=5, inputs=3, eps=0.01).problem.to_property(3)
    wide = script("bounding").widened(problem, 2.0)
    box, wider = problem.regions[0].box, wide.regions[0].box
    assert np.allclose(wider.upper - wider.lower, 2 * (box.upper - box.lower))
    assert np.allclose(wider.upper + wider.lower, box.upper + box.lower)
    assert all(region.box is wider for region in wide.regions)


def _measured(bounding: ModuleType, folded: float, graph: float) -> Any:
    return bounding.Measured(
        name="net",
        neurons=bounding.Counts(10, 50),
        nodes=4,
        iterations=2,
        work=bounding.Counts(2_000_000, 1_000_000),
        nonzero=500_000,
        folded=folded,
        graph=graph,
        share=0.5,
        products=8e9,
        automatic="folded",
    )


def test_forms_are_compared(script: Any) -> None:
    bounding = script("bounding")
    table = bounding.forms_table([_measured(bounding, 0.1, 0.4), _measured(bounding, 0.4, 0.2)])
    assert "| net | folded | yes | 50 | 10 | 4 | 2.00 | 1.00 | 100 | 400 | 4.00 |" in table
    assert "| net | folded | no | 50 | 10 | 4 | 2.00 | 1.00 | 400 | 200 | 0.50 |" in table
    assert "| net | 10 | 25% | 0.08 | 4.0 | 8.0 | 50% | 12% |" in bounding.share_table([_measured(bounding, 0.1, 0.4)])


def _points(growth: ModuleType) -> list[Any]:
    """Root bounds that grow with the square, and boundings in proportion."""
    return [
        growth.Point(series=series, size=n, ambiguous=n, root=0.01 * n**2, bounding=0.02 * n)
        for series in growth.SERIES
        for n in (1, 2, 4)
    ]


def test_growth_is_an_exponent(script: Any) -> None:
    growth = script("growth")
    assert growth.exponents(_points(growth))["width"] == pytest.approx((2.0, 1.0))
    assert "| **depth** | **exponent** |  | **2.00** | **1.00** |" in growth.growth_table(_points(growth))


def test_the_history_gets_a_line_for_each_run(script: Any, tmp_path: Path) -> None:
    run, growth, bounding = script("run"), script("growth"), script("bounding")
    measured = [_measured(bounding, 0.1, 0.4), _measured(bounding, 0.1, 0.9)]
    line = run.history_line([], measured, {"a": (4.0, 1.0), "b": (1.0, 1.0)}, "v1", _points(growth))
    assert len(line) == len(run.HISTORY)
    assert line[2:] == ["8", "6.00", "50%", "–", "–", "–", "v1", "2.00", "1.00", "1.00", "1.00"]
    empty = run.history_line([], [], {}, "v1", [])
    assert empty[2:] == ["–", "–", "–", "–", "–", "–", "v1", "–", "–", "–", "–"]
    for _ in range(2):
        run.append_history(tmp_path / "history.md", line)
    table = [text for text in (tmp_path / "history.md").read_text().splitlines() if text.startswith("|")]
    assert len(table) == 4
    assert table[2] == table[3] == "| " + " | ".join(line) + " |"


def test_an_earlier_revision_is_measured_where_both_decided(script: Any, tmp_path: Path) -> None:
    run, common = script("run"), script("common")
    one, two = (
        common.Instance(benchmark=b, onnx=tmp_path / "n.onnx", vnnlib=tmp_path / "p.vnnlib", expected="unsat")
        for b in ("one", "two")
    )
    good, bad = {"wall": 2.0, "verdict": "unsat"}, {"wall": 1.0, "verdict": "timeout"}
    runs = {(one.name, "before"): [good], (one.name, "now"): [good, good | {"wall": 0.5}]}
    runs |= {(two.name, "before"): [bad], (two.name, "now"): [good]}
    assert run.wall_pairs([one, two], runs) == {one.name: (2.0, 0.5)}
    assert run.mean_of_ratios({one.name: (2.0, 0.5)}) == pytest.approx(4.0)


def test_what_is_missing_is_said(script: Any, tmp_path: Path) -> None:
    common, revisions = script("common"), script("revisions")
    with pytest.raises(common.Unavailable, match="there are no instances in"):
        common.read_instances(tmp_path)
    with pytest.raises(common.Unavailable, match="names 0 of the instances"):
        common.pick([], "cifar")
    with pytest.raises(common.Unavailable, match="git archive"), revisions.source_of("no-such-revision"):
        pass


def _row(image: int, stage: str, outcome: str) -> argparse.Namespace:
    return argparse.Namespace(image=image, stage=stage, outcome=outcome)


def test_the_sample_has_enough_images_that_take_long(script: Any) -> None:
    certification = script("certification")
    rows = [_row(i, "search" if i % 20 == 0 else "crown", "verified") for i in range(200)]
    chosen = certification.sample(rows, 30)
    assert len({row.image for row in chosen}) == 30
    assert sum(row.stage == "search" for row in chosen) == certification.LEAST
    assert certification.sample(rows[1:5], 30) == rows[1:5]
    group = certification.Group(name="crown", size=100, walls=(2.0, 4.0))
    assert group.total == 100 * 3.0 / certification.WORKERS
    assert certification.Group(name="none", size=0, walls=()).total == 0.0


def test_contradictions_between_certify_and_verify_are_found(script: Any) -> None:
    certification = script("certification")
    rows = [_row(0, "crown", "verified"), _row(1, "attack", "attacked"), _row(2, "search", "timeout")]
    said = {0: {"verdict": "sat"}, 1: {"verdict": "sat"}, 2: {"verdict": "unsat"}}
    assert certification.contradictions(rows, said) == [0]


def test_a_written_property_is_the_robustness_of_the_image(script: Any, tmp_path: Path) -> None:
    certification, networks = script("certification"), script("cached")
    picture = networks.Picture(7, np.array([0.0, 0.25, 1.0]), 2)
    eps = Fraction(2, 255)
    file = tmp_path / "image.vnnlib"
    file.write_text(certification.vnnlib_text(picture, eps))
    written = read_property(file)
    meant = Robustness(picture.x, 2, eps).to_property(10)
    assert len(written.regions) == 9
    assert np.allclose(written.regions[0].box.lower, meant.regions[0].box.lower, rtol=0, atol=1e-16)
    assert np.allclose(written.regions[0].box.upper, meant.regions[0].box.upper, rtol=0, atol=1e-16)
    for region, other in zip(written.regions, meant.regions, strict=True):
        assert np.array_equal(region.on_output, other.on_output)


def test_whole_trainings_cost_their_steps_times_the_papers_epochs(script: Any) -> None:
    """At 8/255: 333 steps an epoch, 600 and 200 epochs of IBP-R, 60 and 140 epochs in each of COLT's three stages."""
    seconds = {("ibp-r", 0.5, 0): 0.5, ("ibp-r", 1.0, 0): 1.0}
    for stage in range(3):
        seconds |= {("colt", 0.5, stage): 1.0, ("colt", 1.0, stage): 2.0}
        seconds |= {("colt-original", 0.5, stage): 2.0, ("colt-original", 1.0, stage): 3.0 + stage}
    ibp_r, port = 333 * (600 * 0.5 + 200) / 3600, 333 * 3 * (60 + 280) / 3600
    original = 333 * (3 * 120 + 140 * 12) / 3600
    assert script("train_step").cost(seconds, "8-255") == [
        "8/255",
        *(f"{hours:.1f}" for hours in (ibp_r, port, original)),
        f"{500 / 1020:.2f}",
        "0.57",
        "2.00",
        "4.4",
    ]
    assert script("train_step").cost({("ibp-r", 1.0, 0): 1.0}, "8-255") == []


@pytest.fixture
def simulation(script: Any) -> Any:
    return script("simulation")


def images_of(simulation: Any, *searches: float) -> list[Any]:
    """Images that take no screening; the longer the search, the lower the margin."""
    return [simulation.Image(0.0, -seconds, seconds) for seconds in searches]


def test_one_worker_does_everything_one_after_the_other(simulation: Any) -> None:
    images = [simulation.Image(1.0, -1.0, 4.0), simulation.Image(2.0), simulation.Image(3.0)]
    costs = simulation.Costs(start=10.0, batch=0.5, answer=0.25, row=0.125)
    found = simulation.replay(images, 1, costs)
    rows = 2 * 0.125 + 0.125  # two of the batch, then that of the search
    assert found.makespan == pytest.approx(10 + 0.5 + 6 + 4 + 2 * 0.25 + rows)
    assert found.driver == pytest.approx(2 * 0.25 + rows)
    assert found.efficiency(found) == 1.0


def test_the_hardest_first_by_hand(simulation: Any) -> None:
    images, costs = images_of(simulation, 2, 3, 3, 4), simulation.Costs()
    assert simulation.replay(images, 2, costs, hardest_first=False).makespan == 7  # 2 + 3, and 3 + 4
    hardest = simulation.replay(images, 2, costs)
    assert hardest.makespan == 6  # 4 + 2, and 3 + 3
    assert simulation.replay(images_of(simulation, 9, 1, 1), 3, costs).alone == 8


@pytest.mark.parametrize("hardest_first", [True, False])
@pytest.mark.parametrize("workers", [1, 3, 20, 300])
def test_a_replay_keeps_the_bounds_of_any_schedule(simulation: Any, workers: int, hardest_first: bool) -> None:
    """Graham 1966: nothing ends before work / workers, or the longest; who never idles ends before their sum."""
    rng = np.random.default_rng(workers)
    images = [
        simulation.Image(*map(float, (s, -t, t))) if t > 1 else simulation.Image(float(s))
        for s, t in zip(rng.random(700), rng.exponential(1.0, 700), strict=True)
    ]
    work = sum(image.screening + (image.search or 0.0) for image in images)
    size = min(50, -(-700 // workers))
    batches = [sum(i.screening for i in images[k : k + size]) for k in range(0, 700, size)]
    longest = max(batches) + max(image.search or 0.0 for image in images)
    makespan = simulation.replay(images, workers, simulation.Costs(), hardest_first=hardest_first).makespan
    assert max(work / workers, max(i.search or 0.0 for i in images)) <= makespan * (1 + 1e-9)
    assert makespan <= work / workers + longest + 1e-9


def test_what_a_lost_node_was_at_is_done_again(simulation: Any) -> None:
    images = images_of(simulation, *[5.0] * 64)
    calm = simulation.replay(images, 16, simulation.Costs())
    losses = simulation.Losses(share=0.5, until=15.0, workers=8, away=2.0)
    lossy = simulation.replay(images, 16, simulation.Costs(), losses=losses)
    assert (calm.makespan, calm.lost) == (20.0, 0)
    assert lossy.lost == 8 and 20.0 < lossy.makespan <= 20.0 + 5.0 + 2.0
    assert simulation.replay(images, 1, simulation.Costs(), losses=losses).lost == 0  # the last node stays


def test_a_driver_that_is_too_slow_is_the_limit(simulation: Any) -> None:
    images = images_of(simulation, *[1.0] * 500)
    found = simulation.replay(images, 500, simulation.Costs(row=1.0))
    assert found.makespan >= 500 and found.driver / found.makespan > 0.99
    assert simulation.replay(images, 500, simulation.Costs(answer=1.0)).makespan < 5  # answers that come together


def test_what_was_recorded_becomes_images_and_costs(script: Any) -> None:
    scale = script("scale")
    records = [{"kind": "start", "seconds": 2.0}]
    records += [{"kind": "part", "name": 10 * k, "images": 10, "seconds": 3.0} for k in range(5)]
    records += [{"kind": "screen", "name": 50 * k, "images": 50, "seconds": 11.0, "margins": {}} for k in range(2)]
    with pytest.raises(scale.Unavailable, match="no batch is recorded with all its searches"):
        scale.recorded([])
    records[-1] = records[-1] | {"margins": {"60": -0.5}}
    assert len(scale.recorded(records)[0]) == 50  # of the other batch a search is missing
    records.append({"kind": "search", "name": 60, "margin": -0.5, "seconds": 7.0})
    images, costs = scale.recorded(records)
    assert costs.start == 2.0 and costs.batch == pytest.approx(1.0)  # 15 s in five batches, 11 s in one
    assert costs.together == 50
    assert len(images) == 100 and sum(i.screening for i in images) == pytest.approx(20.0)
    assert [(i.margin, i.search) for i in images if i.search is not None] == [(-0.5, 7.0)]
    assert scale.drawn(images, 300) == scale.drawn(images, 300) and len(scale.drawn(images, 300)) == 300


def test_runs_that_disagree_are_found(script: Any) -> None:
    runs = [{"outcomes": {"0": "verified", "1": "attacked", "2": "timeout"}}]
    runs.append({"outcomes": {"0": "verified", "1": "falsified", "2": "verified"}})
    disagreements = script("scale").disagreements
    assert disagreements(runs) == []
    assert disagreements([*runs, {"outcomes": {"0": "attacked"}}]) == ["0"]

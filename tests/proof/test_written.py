"""Proofs that verifications write: the checker accepts them, whatever the search did to find them."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from networks import random_fc
from proving import known, problem, prove
from verifications import ALONE, prop, region

from surebound.bounds.beta_crown import Ascent
from surebound.check import check
from surebound.load.onnx import load_model
from surebound.load.vnnlib import read_property
from surebound.network.graph import Network
from surebound.problem import Box, Property, Robustness
from surebound.proof import forest
from surebound.proof.property_text import property_text
from surebound.proof.spool import Spool
from surebound.verify import search
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.strategy import Iterations, Refinement

pytestmark = pytest.mark.slow
GAP = 0.01  # by which properties hold
SLOW = replace(
    ALONE,
    root=Ascent(iterations=0),
    iterations=Iterations(count=1),
    batch=2,
    patience=-1.0,
    refinements=(Refinement(rounds=1), Refinement(rounds=3)),
)


def accepted(folder: Path, network: Network, question: Property, *, exact: bool = False, **more: Any) -> Any:
    """Verify, have the proof checked, in fractions too, and return what the checker says and the proof's steps."""
    done = prove(folder, network, question, **more)
    assert done.verdict.status == "unsat", done.verdict.reason
    found = check(*done.files)
    assert (found.valid, found.reason) == (True, "")
    if exact:
        again = check(*done.files, exact=True)
        assert (again.valid, again.leaves, again.claims) == (True, found.leaves, found.claims)
        assert found.slack is not None and again.slack is not None
        assert again.slack == pytest.approx(found.slack, abs=1e-9)
    steps = [step for record in done.verdict.proof.records for step in record.needed]
    return found, steps


@pytest.mark.parametrize("branching", ["auto", "upb", "fsb", "sr", "mixture", "input"])
@pytest.mark.parametrize("kind", ["fc", "conv", "residual", "pool"])
def test_proofs_of_every_branching_rule_are_accepted(kind: str, branching: str, tmp_path: Path) -> None:
    leaves = 0
    for seed in range(2):
        # bisecting dozens of inputs takes long
        network, question = problem(kind, seed, 0.3 if branching == "input" and kind != "fc" else 1e-3)
        found, _ = accepted(tmp_path, network, question, branching=branching, exact=kind == "fc")
        leaves = max(leaves, found.leaves - found.claims)
    assert leaves > 4 or (kind, branching) == ("pool", "input")


def test_claims_are_written_place_by_place(tmp_path: Path) -> None:
    """Of an image, so that those that are checked together read a small part of it."""
    network, question = problem("conv", 1, 1e-3)
    _, steps = accepted(tmp_path, network, question)
    mixed = 0
    for step in steps:
        if step.about["kind"] == "layer" and step.forest is None:
            places = np.prod(network.nodes[network.layers[step.about["layer"]]].shape[1:], dtype=int)
            neuron = step.members["neuron"]
            assert (np.diff(neuron % places) >= 0).all()
            mixed += bool(places > 1 and (np.diff(neuron) < 0).any())
    assert mixed


@pytest.mark.parametrize("kind", ["wide", "residual"])
def test_proofs_of_searches_that_begin_anew_over_refined_layers(kind: str, tmp_path: Path) -> None:
    refined = 0
    for seed in range(3):
        network, question = problem(kind, seed, 1e-3)
        _, steps = accepted(tmp_path, network, question, strategy=SLOW, exact=kind == "wide")
        refined += any(step.about["kind"] == "layer" and step.forest is not None for step in steps)
    assert refined


def test_proofs_of_linear_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = search.Programs.run
    """A second tree, which finds its proof first because the other may not bound anything well."""
    strategy = replace(
        ALONE,
        standstill=1,
        standstill_share=10.0,
        batch=2,
        root=Ascent(iterations=0),
        iterations=Iterations(count=0, cap=0),
    )
    turns = []
    monkeypatch.setattr(search.Programs, "run", lambda self, seconds: (turns.append(1), run(self, seconds))[1])
    for seed in range(3):
        network, question = problem("wide", seed, 1e-3)
        found, _ = accepted(tmp_path, network, question, branching="upb", strategy=strategy, exact=True)
        assert found.leaves - found.claims > 1
    assert len(turns) >= 3


def several(rng: np.random.Generator) -> tuple[Network, Property]:
    """Boxes, one of which is empty, with regions of one and several rows, about inputs too."""
    network, box, row, least, _ = known("fc", 1)
    half = Box(box.lower, np.where(np.arange(3) == 0, (box.lower + box.upper) / 2, box.upper))
    none = Box(box.upper, box.lower)
    both = np.stack([row, rng.normal(size=2)])
    on_input = np.array([[0.0, 0.0, 0.0], [0.5, -1.0, 0.25]])
    return network, prop(
        network,
        region(half, row, GAP - least),
        region(none, row, -1e3),
        region(box, both, np.array([GAP - least, -1e3]), on_input=on_input),
        region(box, row, 3 * GAP - least),
        region(half, -row, 1e3, strict=True),
        region(box, both[::-1], np.array([-1e3, 2 * GAP - least]), strict=True),
    )


@pytest.mark.parametrize("branching", ["upb", "input", "auto"])
def test_proofs_of_several_boxes_regions_and_rows(branching: str, tmp_path: Path, rng: np.random.Generator) -> None:
    network, question = several(rng)
    found, steps = accepted(tmp_path, network, question, branching=branching, exact=True)
    assert found.regions == 6
    assert sorted(step.about["region"] for step in steps if step.about["kind"] == "region") == [0, 2, 3, 4, 5]
    assert {(step.about["region"], step.about["box"]) for step in steps if step.about["kind"] == "region"} == {
        (0, 0), (2, 2), (3, 2), (4, 0), (5, 2)
    }  # fmt: skip


def test_regions_that_no_input_reaches_are_counted_in_files(tmp_path: Path) -> None:
    """Its first region, and the box of it, are empty; those of another are so by less than a rounding."""
    network, box, row, least, _ = known("fc", 1)
    empty, half = Box(box.upper, box.lower), Box(box.lower, (box.lower + box.upper) / 2)
    question = prop(network, *(region(part, row, GAP - least) for part in (empty, half, empty, box, half)))
    done = prove(tmp_path, network, question)
    text = done.property.read_text()
    gone = "(and (>= X_0 0.1) (<= X_0 0.09999999999999999999) (>= X_1 0) (<= X_1 1) (>= X_2 0) (<= X_2 1))"
    done.property.write_text(text.replace("(assert (or\n", f"(assert (or\n{gone}\n"))
    read = read_property(done.property)
    assert read.places == ((2, 2), (4, 3), (5, 2))
    verdict = verify(load_model(done.net), read, Options(quick_attack=None, strategy=ALONE, proof=True))
    verdict.proof.save(done.proof, network=done.net, property=done.property)
    assert check(*done.files).reason == ""


def test_rows_that_hold_only_together_are_mixed(tmp_path: Path) -> None:
    """y₀ ≤ −1/4 and −y₀ ≤ 1/8 + …: neither row alone is impossible, their sum is."""
    network = random_fc(np.random.default_rng(3), (2, 5, 4, 2))
    box = Box(-np.ones(2), np.ones(2))
    rows = np.array([[1.0, 0.0], [-1.0, 0.0]])
    found, _ = accepted(tmp_path, network, prop(network, region(box, rows, np.array([0.25, -0.125]))), exact=True)
    assert found.slack is not None and 0 < found.slack <= 0.125


def test_a_search_that_spills_writes_the_same_proof(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network, question = problem("residual", 0, GAP)
    monkeypatch.setattr(forest, "CHUNK", 2)
    done = prove(tmp_path, network, question, "upb", ALONE)
    held = done.proof.read_bytes()
    spilled = 0

    class Small(Spool):
        def __init__(self) -> None:
            super().__init__(memory=0)

        def add(self, arrays: Any) -> None:
            nonlocal spilled
            super().add(arrays)
            spilled += self._file is not None

    monkeypatch.setattr(forest, "Spool", Small)
    again = prove(tmp_path, network, question, "upb", ALONE)
    assert spilled > 2 and again.proof.read_bytes() == held
    assert check(*again.files).valid


def test_a_proof_is_the_same_file_each_time(tmp_path: Path) -> None:
    for branching in ("upb", "auto", "input"):
        network, question = problem("fc", 0, GAP)
        first = prove(tmp_path, network, question, branching, ALONE).proof.read_bytes()
        assert prove(tmp_path, network, question, branching, ALONE).proof.read_bytes() == first


def test_no_proof_without_unsat_or_unless_asked(tmp_path: Path) -> None:
    network, question = problem("fc", 0, -GAP)
    assert prove(tmp_path, network, question).verdict.proof is None
    network, question = problem("fc", 0, GAP)
    done = prove(tmp_path, network, question, proof=False)
    assert done.verdict.status == "unsat" and done.verdict.proof is None


def test_an_interruption_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = prove(tmp_path, *problem("fc", 0, GAP))
    done.proof.write_bytes(b"old")

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(zipfile.ZipFile, "open", interrupt)
    with pytest.raises(KeyboardInterrupt):
        done.verdict.proof.save(done.proof, network=done.net, property=done.property)
    assert done.proof.read_bytes() == b"old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["net.onnx", "proof", "prop.vnnlib"]


def test_a_forest_with_a_part_left_over_is_not_written() -> None:
    grown = forest.Forest(1, np.arange(2))
    grown.split(np.array([0]), np.array([1]), np.array([1]), np.array([2]))
    signs = np.array([[0, 1]], np.int8)
    grown.close(forest.Leaves(np.array([1]), signs, np.zeros((1, 2)), np.zeros((1, 2))))
    with pytest.raises(ValueError, match="neither split nor closed"):
        grown.written()


# ---- properties as text


def test_a_property_reads_back_as_itself(tmp_path: Path, rng: np.random.Generator) -> None:
    network, question = several(rng)
    ends = np.array([5e-324, -1 / 3, 1e300]), np.array([2e-308, 0.0, 1.7e308])
    wild = prop(network, region(Box(*ends), np.array([[1e-300, -3.0]]), 0.1))
    robust = Robustness(np.array([0.1, 0.2, 0.7]), 1, "2/255").to_property(2)
    for asked in (question, wild, robust):
        (tmp_path / "p.vnnlib").write_text(property_text(asked))
        read = read_property(tmp_path / "p.vnnlib")
        reached = [i for i, part in enumerate(asked.regions) if not part.box.empty]
        assert read.places is not None and [number for number, _ in read.places] == reached
        for a, b in zip((asked.regions[i] for i in reached), read.regions, strict=True):
            assert a.box.key == b.box.key and not b.rounded
            assert (a.on_output == b.on_output).all() and (a.constant == b.constant).all()
            assert (a.strict == b.strict).all()
            ours = np.zeros((len(a.constant), 3)) if a.on_input is None else a.on_input
            theirs = np.zeros((len(a.constant), 3)) if b.on_input is None else b.on_input
            assert (ours == theirs).all()

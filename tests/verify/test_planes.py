"""Searches with planes from the first subproblem on, by their bounds alone, against MILPs; and when there are none."""

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from minima import milp_minimum
from networks import random_box, random_fc
from proving import problem, prove
from verifications import ALONE, KINDS, as_box, decide, exact, region

from surebound.bounds.audit import auditing
from surebound.bounds.beta_crown import Ascent, Duals, Splits
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import LayerBounding, fold_network
from surebound.check import check
from surebound.network.linear import Linear
from surebound.proof import record
from surebound.verify import bounder
from surebound.verify.bounder import Bounder
from surebound.verify.clock import Clock
from surebound.verify.options import Options
from surebound.verify.strategy import Strategy, paper
from surebound.verify.subject import Subject, specify

EAGER = replace(ALONE, root=Ascent(iterations=0), planes_after=1, planes_gain=-1e9, refinements=(), programs=False)
OPTIONS = Options(quick_attack=None, strategy=EAGER, timeout=60.0)
SEEDS = {"fc": (1, 2), "conv": (3, 7), "residual": (3, 6), "pool": (4, 5)}  # that need splits, but not many


@pytest.mark.slow
@pytest.mark.parametrize("branching", ["auto", "upb", "fsb", "sr"])
@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_with_planes_equal_the_milp(kind: str, branching: str) -> None:
    for seed in SEEDS[kind]:
        network, box, row, least = exact(kind, seed)
        for shift, status in ((1e-3, "unsat"), (-1e-3, "sat")):
            verdict = decide(network, region(box, row, -least + shift), branching=branching, options=OPTIONS)
            assert verdict.status == status and "planes" in verdict.seconds_by_phase


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_nothing_false_is_proved_with_planes(seed: int) -> None:
    """One layer, wide boxes, thresholds a hair above the minimum: rational arithmetic confirms every bound."""
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (4, 10, 2))
    box, row = as_box(*random_box(rng, network, radius=1.5)), rng.normal(size=2)
    least = milp_minimum(network, box, row, 0.0).value
    with auditing() as audit:
        assert decide(network, region(box, row, -least - 1e-6), options=OPTIONS).status != "unsat"
        assert decide(network, region(box, row, -least + 1e-3), options=OPTIONS).status == "unsat"
    assert audit.claims > 0


def subject_of(regions: int, *, folded: bool = True) -> Subject:
    rng = np.random.default_rng(5)
    network = random_fc(rng, (4, 16, 12, 3))
    lower, upper = random_box(rng, network, radius=1.0)
    enclosure = Enclosure(network, lower, upper)
    form = fold_network(enclosure, LayerBounding(ascent=None), lambda: None)
    assert form is not None
    rows = [region(as_box(lower, upper), rng.normal(size=3), 0.0) for _ in range(regions)]
    chosen = form if folded else GraphForm.at(enclosure, network.output)
    return Subject(network, chosen, specify(chosen, rows))


def test_a_region_gets_planes_when_its_search_has_taken_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    original = bounder.find_planes
    monkeypatch.setattr(bounder, "find_planes", lambda *args: (found.append(args[4]), original(*args))[1])
    strategy = Strategy(planes_after=5, planes_gain=-1e9)
    many = Bounder(subject_of(3), strategy, Clock(60.0))
    many.see(torch.tensor([0, 0, 0, 0, 1, 1]))
    assert found == []
    many.see(torch.tensor([1, 1, 0, 1]))
    many.see(torch.tensor([0, 1]))
    assert found == [0, 1]
    for other in (
        Bounder(subject_of(3), strategy, Clock(60.0), found={}),
        Bounder(subject_of(3), replace(strategy, planes_limit=0), Clock(60.0)),
        Bounder(subject_of(3), paper(), Clock(60.0)),
        Bounder(subject_of(3, folded=False), strategy, Clock(60.0)),
    ):
        other.see(torch.zeros(10_000, dtype=torch.int64))
    assert found == [0, 1]


def test_a_search_is_shared_when_no_more_planes_are_to_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    original = bounder.find_planes
    monkeypatch.setattr(bounder, "find_planes", lambda *args: (found.append(args[4]), original(*args))[1])
    subject, strategy = subject_of(4), Strategy(planes_after=3, planes_gain=-1e9)
    one = Bounder(subject, strategy, Clock(60.0))
    one.see(torch.tensor([1, 1, 1, 0, 2, 2]))
    assert not one.settled([0, 1, 2]) and found == [1]
    one.see(torch.tensor([2, 1, 1]))
    assert one.settled([0, 1, 2]) and found == [1, 2, 0]  # nine subproblems, though few of region 0
    assert one.settled([0, 1, 2, 3]) and sorted(one.found) == [0, 1, 2]
    one.see(torch.full((9,), 3))
    other = Bounder(subject, strategy, Clock(60.0), found=one.found)
    other.see(torch.arange(4).repeat(9))
    assert other.settled([3]) and found == [1, 2, 0]
    splits, duals = subject.roots()
    assert torch.equal(one.sound_bounds(splits, duals), other.sound_bounds(splits, duals))


def test_a_search_that_gets_no_planes_is_shared_at_once() -> None:
    subject, strategy = subject_of(4), Strategy(planes_after=3, planes_gain=-1e9)
    tried = Bounder(subject, strategy, Clock(60.0))
    tried.see(torch.tensor([1, 1, 1]))
    assert tried.settled([1]) and sorted(tried.found) == [1]
    full = Bounder(subject, strategy, Clock(60.0))
    full._room = 1
    full.see(torch.tensor([2, 2, 2]))
    assert full.settled([0, 2, 3]) and sorted(full.found) == [2]
    for none in (
        Bounder(subject, paper(), Clock(60.0)),
        Bounder(subject, strategy, Clock(60.0), found={}),
    ):
        assert none.settled([0, 1]) and none.found == {}


def test_nodes_of_regions_with_planes_and_without_are_bounded_together() -> None:
    subject = subject_of(3)
    mixed = Bounder(subject, Strategy(planes_after=2, planes_gain=-1e9), Clock(60.0))
    mixed.see(torch.tensor([1, 1]))
    region, alpha = torch.tensor([2, 1, 0, 1, 1]), subject.fast_relaxation.lower_slope.repeat(5, 1)
    signs = torch.zeros(5, subject.form.neurons, dtype=torch.int8)
    signs[3, 0], signs[4, 0] = 1, -1
    nodes, duals = Splits(region, signs), Duals(alpha, torch.zeros_like(alpha), None)
    bounded = mixed.bound(nodes, duals, Ascent(iterations=20), torch.inf)
    plain = subject.bound(nodes, duals, Ascent(iterations=20), torch.inf)
    same = region != 1
    assert torch.allclose(bounded.bound[same], plain.bound[same], atol=1e-4)
    assert bool((bounded.bound[~same] > plain.bound[~same] + 1e-3).all())
    value, lam = mixed.evaluate(nodes, bounded.duals)
    assert torch.allclose(value, bounded.bound, atol=1e-4) and torch.allclose(lam, bounded.lam, atol=1e-4)
    sound = mixed.sound_bounds(nodes, bounded.duals)
    assert torch.allclose(sound.float(), bounded.bound, atol=1e-3)


def test_planes_that_gain_little_are_not_kept() -> None:
    subject = subject_of(1)
    lazy = Bounder(subject, Strategy(planes_after=1, planes_gain=1e9), Clock(60.0))
    lazy.see(torch.tensor([0]))
    splits, duals = subject.roots()
    assert torch.equal(lazy.sound_bounds(splits, duals), subject.sound_bounds(splits, duals))


def chunks(path: Path) -> tuple[int, int]:
    """Of the steps that have planes: how many chunks of leaves need them, and how many do not."""
    names = [name.split("/") for name in zipfile.ZipFile(path).namelist()]
    steps = {name[0] for name in names if name[1:] == ["p0", "weight.npy"]}
    every = {(step, *rest[:1]) for step, *rest in names if step in steps and rest[0].startswith("c")}
    planed = {(step, rest[0]) for step, *rest in names if rest[1:] == ["planes.npy"]}
    return len(planed), len(every - planed)


@pytest.mark.parametrize("exact", [False, True])
def test_a_proof_has_the_planes_of_its_leaves(tmp_path: Path, exact: bool) -> None:
    done = prove(tmp_path, *problem("fc" if exact else "wide", 0, 0.05), branching="upb", strategy=EAGER)
    assert done.verdict.status == "unsat" and "planes" in done.verdict.seconds_by_phase
    found = check(*done.files, exact=exact)
    assert (found.valid, found.reason) == (True, "")
    assert chunks(done.proof)[0] > 0


@pytest.mark.parametrize("kind", ["wide", "conv", "residual", "pool"])
def test_leaves_from_before_there_were_planes(tmp_path: Path, kind: str) -> None:
    """Some leaves need them and some do not, since their multipliers are for lines."""
    strategy = replace(EAGER, planes_after=8, batch=4)
    done = prove(tmp_path, *problem(kind, 0, 0.01), branching="upb", strategy=strategy)
    found = check(*done.files)
    assert (found.valid, found.reason) == (True, "")
    if kind == "wide":
        assert min(chunks(done.proof)) > 0


def test_planes_that_a_proof_has_no_room_for_are_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "MEMBER", 100)
    done = prove(tmp_path, *problem("wide", 0, 0.05), branching="upb", strategy=EAGER)
    assert done.verdict.status == "unsat" and "planes" not in done.verdict.seconds_by_phase
    assert check(*done.files).valid


def test_planes_that_overflow_in_float32_are_not_kept() -> None:
    """Numbers that float64 holds: the ascent has no bound to compare, and the search goes on without planes."""
    rng = np.random.default_rng(5)
    network = random_fc(rng, (2, 4, 4, 1))
    nodes = (
        replace(node, op=replace(node.op, weight=node.op.weight * 1e25)) if isinstance(node.op, Linear) else node
        for node in network.nodes
    )
    network = replace(network, nodes=tuple(nodes))
    box = as_box(*random_box(rng, network, radius=2.0))
    verdict = decide(network, region(box, np.ones(1), -1e60), options=replace(OPTIONS, timeout=1.0))
    assert verdict.status != "unsat" and "planes" in verdict.seconds_by_phase


def test_planes_are_what_a_proof_has_room_for() -> None:
    """Weights and κ are float32, in the bounds as in the file."""
    subject = subject_of(1)
    eager = Bounder(subject, Strategy(planes_after=1, planes_gain=-1e9), Clock(60.0))
    eager.see(torch.tensor([0]))
    for plane in eager.found[0]:
        assert torch.equal(plane.weight.float().double(), plane.weight)
        assert torch.equal(plane.kappa.float().double(), plane.kappa)


def test_known_planes_are_the_only_ones() -> None:
    subject = subject_of(2)
    first = Bounder(subject, Strategy(planes_after=1, planes_gain=-1e9), Clock(60.0))
    first.see(torch.tensor([1]))
    other = Bounder(subject, Strategy(planes_after=1, planes_gain=-1e9), Clock(60.0), found=first.found)
    other.see(torch.tensor([0, 1]))
    assert list(other.found) == [1] and other.found[1] is first.found[1]
    assert other.planed(torch.tensor([0, 1, 0])).tolist() == [False, True, False]

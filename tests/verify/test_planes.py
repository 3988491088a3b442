"""Searches with planes from the first subproblem on, by their bounds alone, against MILPs; and when there are none."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import random_box, random_fc
from proving import problem, prove
from verifications import ALONE, KINDS, as_box, decide, exact, region

from surebound.bounds.audit import auditing
from surebound.bounds.beta_crown import Ascent, Duals, Splits
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.planet_lp import milp_minimum
from surebound.bounds.root import LayerBounding, fold_network
from surebound.check import check
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
    many = Bounder(subject_of(3), strategy, Clock(60.0), planes=True)
    many.see(torch.tensor([0, 0, 0, 0, 1, 1]))
    assert found == []
    many.see(torch.tensor([1, 1, 0, 1]))
    many.see(torch.tensor([0, 1]))
    assert found == [0, 1]
    for other in (
        Bounder(subject_of(3), strategy, Clock(60.0), planes=False),
        Bounder(subject_of(3), replace(strategy, planes_limit=0), Clock(60.0), planes=True),
        Bounder(subject_of(3), paper(), Clock(60.0), planes=True),
        Bounder(subject_of(3, folded=False), strategy, Clock(60.0), planes=True),
    ):
        other.see(torch.zeros(10_000, dtype=torch.int64))
    assert found == [0, 1]


def test_nodes_of_regions_with_planes_and_without_are_bounded_together() -> None:
    subject = subject_of(3)
    mixed = Bounder(subject, Strategy(planes_after=2, planes_gain=-1e9), Clock(60.0), planes=True)
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
    lazy = Bounder(subject, Strategy(planes_after=1, planes_gain=1e9), Clock(60.0), planes=True)
    lazy.see(torch.tensor([0]))
    splits, duals = subject.roots()
    assert torch.equal(lazy.sound_bounds(splits, duals), subject.sound_bounds(splits, duals))


@pytest.mark.slow
def test_a_proof_has_no_planes(tmp_path: Path) -> None:
    """What is written down are lines, which the checker knows."""
    done = prove(tmp_path, *problem("wide", 0, 0.05), branching="upb", strategy=EAGER)
    assert done.verdict.status == "unsat" and done.verdict.subproblems > 3
    assert "planes" not in done.verdict.seconds_by_phase
    assert check(*done.files).valid

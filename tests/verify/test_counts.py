"""What counts as a subproblem: a region with some splits that was bounded, once, whichever stage did it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from certifying import EPS, finish, no_attack, take_digits
from classifiers import small_digits, write
from verifications import ALONE, WEAK, decide, exact, region

import surebound
from surebound.evaluate import stages
from surebound.evaluate.stages import Certifier, Settings
from surebound.network.graph import Network
from surebound.problem import Box, Region, Verdict
from surebound.verify import search_stages
from surebound.verify import stages as verify_stages
from surebound.verify.clock import OutOfTime
from surebound.verify.options import Options
from surebound.verify.strategy import Strategy

RIVALS = 9  # of a digit


@pytest.mark.slow
def test_every_image_counts_its_rivals_once_and_two_for_each_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "attack_images", no_attack)
    certifier = Certifier(surebound.load(write(small_digits(), tmp_path)), EPS, Settings(branching="upb", timeout=30.0))
    rows = finish(certifier, take_digits(range(40)))
    seen = {row.stage: row for row in rows.values() if row.verified}
    assert {"crown", "search"} <= seen.keys()
    for row in rows.values():
        if row.stage == "standard":
            assert row.subproblems == 0
        elif row.stage != "search":
            assert row.verified and row.subproblems == RIVALS
        else:
            assert row.subproblems >= RIVALS and (row.subproblems - RIVALS) % 2 == 0
            assert row.subproblems > RIVALS or not row.verified  # what no split proved ended before


def test_a_search_counts_what_was_screened(tmp_path: Path) -> None:
    """Also where it has no time to bound anything itself."""
    model = surebound.load(write(small_digits(), tmp_path))
    samples = take_digits(range(60))
    _, left = Certifier(model, EPS, Settings(attack="pgd", steps=1, restarts=1, targets=1)).screen(samples)
    image = next(image for image in left if len(image.rivals) < RIVALS)
    row = Certifier(model, EPS, Settings(timeout=1e-9)).search(samples[image.image], image)
    assert (row.outcome, row.stage, row.subproblems) == ("timeout", "search", RIVALS)


def _regions(box: Box, rows: list[np.ndarray[Any, Any]], constant: list[float]) -> list[Region]:
    return [region(box, row, c) for row, c in zip(rows, constant, strict=True)]


def test_regions_that_the_root_settles_count_beside_those_that_are_split() -> None:
    """Two regions far from their thresholds count one each, beside those of the third."""
    network, box, row, least = exact("conv", 3)
    alone = _decide(network, _regions(box, [row], [-least + 1e-3]))
    both = _decide(network, _regions(box, [row, row, row], [-least + 1e-3, -least + 100.0, -least + 200.0]))
    assert alone.status == both.status == "unsat"
    assert alone.subproblems > 1 and alone.subproblems % 2 == 1  # one region, two for each split
    assert both.subproblems == alone.subproblems + 2


def _decide(network: Network, regions: list[Region], branching: str = "upb", strategy: Strategy = ALONE) -> Verdict:
    return decide(network, *regions, branching=branching, options=Options(quick_attack=WEAK, strategy=strategy))


def _out_of_time(*_: Any, **__: Any) -> Any:
    raise OutOfTime


def test_time_that_runs_out_after_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    network, box, row, least = exact("conv", 3)
    monkeypatch.setattr(verify_stages, "fold_network", _out_of_time)
    found = _decide(network, _regions(box, [row, row], [-least + 1e-3, -least + 100.0]))
    assert (found.status, found.subproblems) == ("timeout", 2)


def test_time_that_runs_out_while_layers_are_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    network, box, row, least = exact("conv", 3)
    searched = []
    search = search_stages.search_neurons

    def counted(*args: Any) -> Any:
        searched.append(search(*args))
        return searched[-1]

    monkeypatch.setattr(search_stages, "search_neurons", counted)
    monkeypatch.setattr(search_stages, "refine", _out_of_time)
    found = _decide(network, _regions(box, [row], [-least + 1e-3]), "auto", replace(ALONE, patience=-1.0))
    (outcome,) = searched
    assert outcome.end == "slow" and outcome.subproblems > 1
    assert (found.status, found.subproblems) == ("timeout", outcome.subproblems)


@pytest.mark.parametrize("branching", ["auto", "input"])
def test_a_box_that_is_bisected_counts_once(branching: str) -> None:
    """Whether the network over it was bounded before, as `auto` does, or not."""
    network, box, row, least = exact("fc", 1)
    bisects = replace(ALONE, neuron_limit=-1)
    found = _decide(network, _regions(box, [row], [-least + 1e-3]), branching, bisects)
    assert found.branching == "input" and found.status == "unsat"
    assert found.subproblems > 1 and found.subproblems % 2 == 1

"""Large networks: layers are bounded where it matters, and every verdict is as it is for small ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import random_box, random_conv
from verifications import ALONE, KINDS, WEAK, as_box, decide, exact, model, region

from surebound.network.graph import Network
from surebound.problem import Box
from surebound.verify import roots, stages
from surebound.verify.cascade import Question
from surebound.verify.clock import Clock
from surebound.verify.engine import Engine
from surebound.verify.options import Options
from surebound.verify.roots import is_large, matter, root_bounds, settle_where_it_matters

LARGE = replace(ALONE, patience=0.0)  # so that any network counts as large
SEEDS = {"fc": (1, 2), "conv": (3, 7), "residual": (3, 6), "pool": (4, 5)}


def engine(network: Network, **strategy: object) -> Engine:
    return Engine(model(network), Options(strategy=replace(LARGE, **strategy)), Clock(None))  # type: ignore[arg-type]


@pytest.mark.parametrize("time", [0.0, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_of_large_networks_against_milp(kind: str, time: float) -> None:
    """With no time to bound all layers the search is over the layers as they are, else it goes on as always."""
    for seed in SEEDS[kind]:
        network, box, row, least = exact(kind, seed)
        options = Options(quick_attack=WEAK, strategy=replace(LARGE, matter_time=time))
        for constant, expected in ((-least + 1e-3, "unsat"), (-least - 1e-3, "sat")):
            found = decide(network, region(box, row, constant), branching="upb", options=options)
            assert found.status == expected


def test_rounds_tighten_the_bound_and_end_when_it_is_proved(rng: np.random.Generator) -> None:
    gained = 0
    for _ in range(10):
        network = random_conv(rng)
        box, row = as_box(*random_box(rng, network, radius=0.3)), rng.normal(size=network.outputs)
        over_intervals, over_some, over_all = (_root(network, box, row, shares) for shares in ((), (0.5,), (0.5, 1.0)))
        assert over_intervals - 1e-9 <= over_some <= over_all + 1e-9
        gained += over_all > over_intervals + 1e-6
    assert gained > 3


def _root(network: Network, box: Box, row: np.ndarray, shares: tuple[float, ...]) -> float:  # type: ignore[type-arg]
    """The bound of a region that no bound proves."""
    here, question = engine(network, matter_shares=shares), Question(lambda: [region(box, row, -1e3)])
    enclosure = here.enclosure(box)
    assert is_large(here, enclosure)
    settle_where_it_matters(here, question, enclosure)
    return float(question.bounds)


def test_what_is_open_is_what_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two regions, one of which intervals prove, the other is left."""
    network, box, row, least = exact("conv", 3)
    here = engine(network, matter_shares=(0.5,))
    question = Question(lambda: [region(box, row, 1e3), region(box, row, -least - 1e-3)])
    _, subject = settle_where_it_matters(here, question, here.enclosure(box))
    assert [r.constant.item() for r in question.open] == [-least - 1e-3]
    assert subject.regions == 1
    assert float(root_bounds(here, subject)) == pytest.approx(float(question.bounds[1]), abs=1e-5)


def test_rounds_that_take_too_long_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    network, box, row, least = exact("conv", 3)
    rounds: list[int] = []
    monkeypatch.setattr(roots, "settle_layers", lambda *_, only, **more: rounds.append(int(only.sum())))
    here = engine(network, matter_time=0.0)
    question = Question(lambda: [region(box, row, -least - 1e-3)])
    settle_where_it_matters(Engine(here.model, here.options, Clock(60.0)), question, here.enclosure(box))
    assert not rounds


def test_small_networks_are_bounded_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    network, box, row, least = exact("conv", 3)
    monkeypatch.setattr(stages, "settle_where_it_matters", None)
    assert decide(network, region(box, row, -least + 1e-3), branching="upb").status == "unsat"


def test_neurons_that_cost_most() -> None:
    cost = torch.tensor([[6.0, 3.0, 1.0, 0.0], [0.0, 0.0, 1.0, 9.0]])
    assert matter(cost, 0.5).tolist() == [True, False, False, True]
    assert matter(cost, 0.7).tolist() == [True, True, False, True]
    assert matter(cost, 1.0).tolist() == [True, True, True, True]
    assert matter(torch.zeros(1, 3), 0.8).tolist() == [False, False, False]

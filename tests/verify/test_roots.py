"""Large networks: layers are bounded where it matters, and every verdict is as it is for small ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import random_box, random_conv
from verifications import ALONE, KINDS, WEAK, as_box, decide, exact, model, region

from surebound.bounds.beta_crown import Splits
from surebound.bounds.graph_form import GraphForm
from surebound.network.graph import Network
from surebound.problem import Box
from surebound.verify import roots, stages
from surebound.verify.cascade import Question
from surebound.verify.clock import Clock
from surebound.verify.engine import Engine
from surebound.verify.options import Options
from surebound.verify.roots import (
    learning_pays,
    matter,
    root_bounds,
    settle_in_order,
    settle_the_rest,
    settle_where_it_matters,
)
from surebound.verify.subject import Subject, specify

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
        options = Options(quick_attack=WEAK, timeout=60.0, strategy=replace(LARGE, matter_time=time))
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
    settle_where_it_matters(here, question, here.enclosure(box))
    return float(question.bounds)


def test_rounds_are_about_what_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two regions, one of which intervals prove, the other says what matters."""
    network, box, row, least = exact("conv", 3)
    asked: list[list[bool]] = []
    monkeypatch.setattr(roots, "settle_layers", lambda *_, only, **more: asked.append(only.tolist()))  # and not whole
    here = engine(network, matter_shares=(0.5,))
    for parts in ([region(box, -row, 1e3), region(box, row, -least - 1e-3)], [region(box, row, -least - 1e-3)]):
        question = Question(lambda parts=parts: parts)  # type: ignore[misc]
        settle_where_it_matters(here, question, here.enclosure(box))
        assert [part.constant.item() for part in question.open] == [-least - 1e-3]
    assert len(asked) == 2 and asked[0] == asked[1] and any(asked[0])


def test_rounds_that_take_too_long_are_left_out() -> None:
    network, box, row, least = exact("conv", 3)
    given = engine(network, matter_time=0.0)
    here = Engine(given.model, given.options, Clock(60.0))
    before, question = here.enclosure(box), Question(lambda: [region(box, row, -least - 1e-3)])
    after = settle_where_it_matters(here, question, before)
    for k in range(len(network.layers)):
        assert all(torch.equal(a, b) for a, b in zip(before.layer(k), after.layer(k), strict=True))
    assert settle_the_rest(here, box, after) is after
    in_time = Engine(given.model, engine(network).options, Clock(60.0))
    assert settle_the_rest(in_time, box, after) is not after


def test_many_regions_do_not_wait_to_learn_what_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an ascent for each would cost more than bounding all layers in order, that is what happens."""
    network, box, row, least = exact("conv", 3)
    here = engine(network)
    for time, whole in ((0.8, True), (0.0, False)):
        here = Engine(here.model, replace(here.options, strategy=replace(LARGE, order_time=time)), Clock(60.0))
        first = here.enclosure(box)
        first.extend(len(network.nodes) - 1)
        after, bounded = settle_in_order(here, box, first)
        assert bounded == whole and (sum(after.ambiguous()) < sum(first.ambiguous())) == whole
        assert len(after.lower) == len(network.nodes)
    many = Question(lambda: [region(box, row, -least - 1e-3 - i) for i in range(500)])
    assert not learning_pays(here, many, first)
    monkeypatch.setattr(stages, "settle_where_it_matters", None)
    assert decide(network, region(box, row, -least + 1e-3), branching="upb", options=here.options).status == "unsat"


def test_roots_are_bounded_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many regions as a property may have would take the memory many times; bounds are the same."""
    network, box, row, least = exact("conv", 3)
    here, found, made = engine(network), list[torch.Tensor](), list[int]()
    regions = [region(box, row, -least - 0.1 * i) for i in range(5)]
    form = GraphForm.at(here.enclosure(box), network.output)
    bound = Subject.bound

    def spy(self: Subject, nodes: Splits, *args: object) -> object:
        made.append(len(nodes))
        return bound(self, nodes, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Subject, "bound", spy)
    for together in (5, 2):
        monkeypatch.setattr(roots, "batch_size", lambda *_, together=together: together)
        found.append(root_bounds(here, Subject(network, form, specify(form, regions))))
    assert made == [5, 2, 2, 1]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


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

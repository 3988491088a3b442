"""Bisection of boxes: halves cover, nothing is lost on the way, and every bound pays for its rows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from networks import Builder, over_arrays, pre_activations, random_fc

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.root import LayerBounding, tighten_layers
from surebound.load.vnnlib import to_property
from surebound.load.vnnlib1 import parse
from surebound.network.graph import Input, Network, Node
from surebound.network.linear import Linear
from surebound.problem import Box, Region
from surebound.verify.clock import Clock
from surebound.verify.search import Limits, Outcome, search_inputs
from surebound.verify.spaces.inputs import InputSpace, _gains
from surebound.verify.strategy import Strategy

over_both = pytest.mark.parametrize("over", [lambda network: network, over_arrays], ids=["tensors", "arrays"])
Over = Callable[[Network], Network]


def region(network: Network, low: float, high: float, row: list[float], constant: float) -> Region:
    inputs = network.inputs
    return Region(
        box=Box(np.full(inputs, low), np.full(inputs, high)),
        on_output=np.array([row]),
        constant=np.array([constant]),
        strict=np.zeros(1, dtype=bool),
    )


def decide(network: Network, *regions: Region, seconds: float = 20.0, strategy: Strategy = Strategy()) -> Outcome:
    """Without attacks: only bounds decide."""
    return search_inputs(network, regions, strategy, Clock(seconds), lambda _: None, Limits())


@over_both
def test_halves_cover_their_box(over: Over, rng: np.random.Generator) -> None:
    network = over(random_fc(rng, (2, 4, 1)))
    space = InputSpace(network, [region(network, -1.0, 1.0, [1.0], 0.0)], Strategy(), Clock(10.0))
    parents = space.roots()
    for _ in range(6):
        parents = space.halves(replace(parents, split=network.array(rng.integers(0, 2, size=len(parents)))), 0.0)
    assert len(parents) == 64
    lower, upper = parents.state["lower"], parents.state["upper"]
    assert float((upper - lower).prod(1).sum()) == 4.0
    for x in network.array(rng.uniform(-1.0, 1.0, size=(500, 2))):
        assert ((lower <= x) & (x <= upper)).all(1).any()


def zigzag(teeth: int) -> Network:
    """y = Σ ± relu(x − k) goes up and down between 0 and 1 on [0, teeth]."""
    build = Builder(np.random.default_rng(0), (1,))
    bias = -torch.arange(teeth, dtype=torch.float64)
    weight = torch.tensor([1.0, *[2.0 * (-1) ** k for k in range(1, teeth)]], dtype=torch.float64)
    hidden = build.relu(build.add(Linear(torch.ones(teeth, 1, dtype=torch.float64), bias), 0))
    build.add(Linear(weight[None]), hidden)
    return build.network()


@over_both
def test_no_box_is_lost(over: Over) -> None:
    """The function is at least 0 and touches it at every even number. Boxes around one of them, with a threshold just
    above it, wait in the queue while those of a wide box, whose bounds are far lower, are proved four at a time."""
    network, few = over(zigzag(12)), Strategy(box_elements=1)
    wide = region(network, 0.0, 12.0, [1.0], 0.05)
    assert decide(network, wide, strategy=few).end == "proved"
    outcome = decide(network, wide, region(network, 3.999, 4.001, [1.0], -1e-9), seconds=1.0, strategy=few)
    assert outcome.end != "proved"
    assert -1e-6 < outcome.lower_bound <= 0  # the wide one is done


@over_both
def test_boxes_that_cannot_be_bisected_prove_nothing(over: Over) -> None:
    """At a point y = 2⁶⁰ x₀ − 2⁶⁰ x₁ + ½ is ½ + 2⁶⁰ (x₀ − x₁): too close to call, and no box is left to bisect."""
    build = Builder(np.random.default_rng(0), (2,))
    build.add(Linear(torch.tensor([[2.0**60, -(2.0**60)]], dtype=torch.float64)), 0)
    network = over(build.network())
    outcome = decide(network, region(network, 1.0, 1.0, [1.0], 0.5))
    assert outcome.end == "undecided"
    assert "cannot be split" in outcome.reason
    both = decide(network, region(network, 1.0, 1.0, [1.0], 0.5), region(network, 1.0, 1.0, [1.0], 1e9))
    assert both.end == "undecided"


@over_both
def test_decimals_are_those_of_the_file(over: Over) -> None:
    """y = x: 0.1 y − 0.100000000000000001 x ≤ −5e-19 for x ≥ 1, but float64 holds the same 0.1 twice."""
    text = (
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 1))(assert (<= X_0 2))"
        "(assert (<= (- (* 0.1 Y_0) (* 0.100000000000000001 X_0)) -5e-19))"
    )
    problem = to_property(parse(text), source="text")
    network = over(Network((Node(Input((1,)), (), "x"),), 0))
    assert decide(network, *problem.regions, seconds=0.2).end != "proved"


def test_a_box_of_a_proof_is_closed_as_the_checker_does_it(rng: np.random.Generator) -> None:
    """With what is known of a larger box a bound may be positive that CROWN on the box alone does not find. Such a box
    stays open if it is written down, and is closed otherwise."""
    network = random_fc(rng, (2, 8, 8, 1))
    for recorded in (False, True):
        space = InputSpace(
            network, [region(network, -1.0, 1.0, [1.0], 0.0)], Strategy(), Clock(10.0), recorded=recorded
        )
        crown = float(space._best_rows(_crowned(space), torch.zeros(1, dtype=torch.int64)).bound)
        roots = space.roots()
        centre = pre_activations(network, torch.zeros(1, 2, dtype=torch.float64))
        for name in ("layers_lower", "layers_upper"):  # as if all neurons stayed where they are at the centre
            roots.state[name] = torch.cat(centre[:-1], dim=1)
        found = float(space.bound(roots).nodes.bound)
        assert found > crown + 1e-3
        space.rows[2].fill_(-(found + crown) / 2)  # between what the two can prove
        assert bool(space.bound(roots).proved) is not recorded


def _crowned(space: InputSpace) -> Enclosure:
    enclosure = space._enclosure(space.roots())
    tighten_layers(enclosure, LayerBounding(slopes=("crown",), ascent=None), lambda: None)
    return enclosure


@over_both
def test_the_input_that_matters_is_split(over: Over) -> None:
    """−y = relu(−x₀) − relu(x₀ + 10 x₁): x₁ moves the bound ten times as far as x₀ does; x₂ is in nothing."""
    build = Builder(np.random.default_rng(0), (3,))
    first = torch.tensor([[1.0, 10.0, 0.0], [-1.0, 0.0, 0.0]], dtype=torch.float64)
    hidden = build.relu(build.add(Linear(first), 0))
    build.add(Linear(torch.tensor([[1.0, -1.0]], dtype=torch.float64)), hidden)
    network = over(build.network())
    space = InputSpace(network, [region(network, -1.0, 1.0, [-1.0], 0.0)], Strategy(), Clock(10.0))
    bounded = space.bound(space.roots())
    assert space.choose(bounded).split.tolist() == [1]
    gain = bounded.hints["gain"][0].tolist()
    assert gain[1] > gain[0] > gain[2] == 0.0


def test_the_gain_is_what_both_halves_save() -> None:
    """One neuron over [−1, 3] that an input moves by ± ½: b̄ is ¾, and 3·½ / 3.5 and 2.5·1 / 3.5 in the halves."""
    moves, lam = torch.tensor([[[0.5]]]), torch.tensor([[2.0]], dtype=torch.float64)
    low, high = torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[3.0]], dtype=torch.float64)
    expected = 2 * (2 * 0.75 - 3 * 0.5 / 3.5 - 2.5 / 3.5)
    assert float(_gains(moves, lam, low, high)) == pytest.approx(expected, abs=1e-6)
    assert float(_gains(moves, -lam, low, high)) == 0.0  # the lower line costs nothing here

"""Every method of bounding passes the same properties, against samples, the MILP, NumPy and values found by hand."""

from functools import cache

import numpy as np
import pytest
import torch
from minima import milp_minimum
from networks import (
    Builder,
    makers,
    pre_activations,
    random_box,
    random_fc,
    sample,
)
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds import BOUNDS
from surebound.bounds.result import LayerBounds
from surebound.errors import UsageError
from surebound.network.graph import Network
from surebound.network.linear import Linear
from surebound.problem import Box

MAKERS = makers(4, 8, 8, 3)
RADIUS = 0.15
ROUNDING = 1e-11  # what error accounting may cost on networks of this size
SOLVER = 1e-7  # what the tolerances of the MILP's solver may cost
# two MILPs for every neuron: only where they are small
CASES = [(name, maker) for name in BOUNDS for maker in MAKERS if name != "milp" or maker == "fc"]

every_method = pytest.mark.parametrize(("name", "maker"), CASES, ids=lambda part: part)


@cache
def problem(maker: str, seed: int = 0) -> tuple[Network, Tensor, Tensor]:
    """A network and three boxes."""
    rng = np.random.default_rng(seed)
    network = MAKERS[maker](rng)
    return network, *random_box(rng, network, boxes=3, radius=RADIUS)


@cache
def bounds(name: str, maker: str, seed: int = 0) -> LayerBounds:
    return BOUNDS[name](*problem(maker, seed))


@cache
def exact_output(maker: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The exact range of every output over the first box, by the MILP. # (outputs,) each"""
    network, lower, upper = problem(maker)
    box = Box(lower[0].flatten().numpy(), upper[0].flatten().numpy())
    unit = np.eye(network.outputs)
    low = [milp_minimum(network, box, c, 0.0).value for c in unit]
    high = [-milp_minimum(network, box, -c, 0.0).value for c in unit]
    return np.array(low), np.array(high)


def tolerance(name: str) -> float:
    return SOLVER if name == "milp" else 0.0


@every_method
def test_contains_samples_of_every_layer(name: str, maker: str, rng: np.random.Generator) -> None:
    network, lower, upper = problem(maker)
    found = bounds(name, maker)
    widths = [*(network.width(k) for k in range(len(network.layers))), network.outputs]
    assert [tuple(low.shape) for low in found.lower] == [(3, w) for w in widths]
    for b in range(3):
        values = pre_activations(network, sample(rng, lower[b], upper[b], 5_000))
        for low, high, value in zip(found.lower, found.upper, values, strict=True):
            assert low.dtype == high.dtype == torch.float64
            assert (low[b] <= high[b] + tolerance(name)).all()
            assert (low[b] <= value + tolerance(name)).all()
            assert (value <= high[b] + tolerance(name)).all()


@pytest.mark.slow
@every_method
def test_a_batch_of_boxes_equals_one_at_a_time(name: str, maker: str) -> None:
    network, lower, upper = problem(maker)
    together = bounds(name, maker)
    # α-CROWN's slopes come from an ascent in float32, where the order of summation shows
    close = 1e-5 if name == "alpha-crown" else ROUNDING
    for b in range(3):
        alone = BOUNDS[name](network, lower[b : b + 1], upper[b : b + 1])
        for k in range(len(alone.lower)):
            torch.testing.assert_close(together.lower[k][b], alone.lower[k][0], rtol=0.0, atol=close)
            torch.testing.assert_close(together.upper[k][b], alone.upper[k][0], rtol=0.0, atol=close)


@every_method
def test_shrinks_to_the_value_at_a_point(name: str, maker: str) -> None:
    """On the point itself up to rounding; around it, in proportion to the radius."""
    network, lower, upper = problem(maker)
    centre, reach = (lower + upper)[:1] / 2, (upper - lower)[:1] / 2
    values = pre_activations(network, centre)
    at_point = BOUNDS[name](network, centre, centre)
    nearby = [BOUNDS[name](network, centre - r * reach, centre + r * reach) for r in (1e-3, 1e-6)]
    wide, narrow = (found.upper[-1] - found.lower[-1] for found in nearby)
    for low, high, value in zip(at_point.lower, at_point.upper, values, strict=True):
        torch.testing.assert_close(low, value, rtol=0.0, atol=ROUNDING + tolerance(name))
        torch.testing.assert_close(high, value, rtol=0.0, atol=ROUNDING + tolerance(name))
    assert (narrow <= 1.01e-3 * wide + ROUNDING + tolerance(name)).all()
    assert (wide < 0.02).all()


@pytest.mark.slow
@every_method
def test_lies_below_the_exact_minimum_which_lies_below_samples(name: str, maker: str, rng: np.random.Generator) -> None:
    network, lower, upper = problem(maker)
    found, (low, high) = bounds(name, maker), exact_output(maker)
    values = network.forward(sample(rng, lower[0], upper[0], 5_000)).flatten(1).numpy()
    for bound, exact, reached in (
        (found.lower[-1][0].numpy(), low, values.min(0)),
        (-found.upper[-1][0].numpy(), -high, -values.max(0)),
    ):
        assert (bound <= exact + SOLVER).all()
        assert (exact <= reached + SOLVER).all()
        if name == "milp":
            np.testing.assert_allclose(bound, exact, rtol=0, atol=SOLVER)
        if name == "interval":  # so that the comparison says something
            assert (bound < exact - 0.05).all()


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("seed", range(4))
def test_tighter_methods_are_tighter_on_the_output(maker: str, seed: int) -> None:
    """interval ≤ FastLin, CROWN ≤ α-CROWN ≤ Planet LP; only the second of these is not a theorem."""
    names = ("interval", "fastlin", "crown", "alpha-crown", "planet-lp")
    for side in ("lower", "upper"):
        sign = 1.0 if side == "lower" else -1.0
        interval, fastlin, crown, alpha, planet = (sign * getattr(bounds(n, maker, seed), side)[-1] for n in names)
        slack = 1e-5 * (1.0 + alpha.abs())
        assert (torch.minimum(fastlin, crown) >= interval - slack).all()
        assert (alpha >= torch.maximum(fastlin, crown) - slack).all()
        assert (planet >= alpha - slack).all()
        assert (alpha - interval).max() > 0.05


def test_neither_fastlin_nor_crown_is_the_better_one() -> None:
    """Over 4 seeds and all networks each is tighter by more than 1e-3 on many outputs, on each kind of network."""
    wins = {"fastlin": 0, "crown": 0}
    for maker in MAKERS:
        gaps = [bounds("crown", maker, seed).lower[-1] - bounds("fastlin", maker, seed).lower[-1] for seed in range(4)]
        gap = torch.cat([g.flatten() for g in gaps])
        wins["fastlin"] += int((gap < -1e-3).sum())
        wins["crown"] += int((gap > 1e-3).sum())
    assert wins["fastlin"] >= 10
    assert wins["crown"] >= 10
    network, lower, upper = problem("fc", 0)
    gap = BOUNDS["crown"](network, lower, upper).lower[-1] - BOUNDS["fastlin"](network, lower, upper).lower[-1]
    assert gap.min() < -1e-3
    assert gap.max() > 1e-3


def negative_part() -> Network:
    """f(x) = relu(x) − x, written relu(x) − relu(x + 9) + 9 so that it is a ReLU network on [−9, ∞)."""
    build = Builder(np.random.default_rng(0), (1,))
    first = Linear(torch.ones(2, 1, dtype=torch.float64), torch.tensor([0.0, 9.0], dtype=torch.float64))
    last = Linear(torch.tensor([[1.0, -1.0]], dtype=torch.float64), torch.tensor([9.0], dtype=torch.float64))
    build.add(last, build.relu(build.add(first, 0)))
    return build.network()


@pytest.mark.parametrize(
    ("low", "high", "name", "least"),
    [
        # [−1, 2]: ā = 2/3, so FastLin has f ≥ (2/3 − 1) x ≥ −2/3; CROWN takes the slope 1, so f ≥ 0
        (-1.0, 2.0, "interval", -2.0),
        (-1.0, 2.0, "fastlin", -2 / 3),
        (-1.0, 2.0, "crown", 0.0),
        (-1.0, 2.0, "alpha-crown", 0.0),
        # [−2, 1]: ā = 1/3, so FastLin has f ≥ −2/3 x ≥ −2/3; CROWN takes the slope 0, so f ≥ −x ≥ −1
        (-2.0, 1.0, "interval", -1.0),
        (-2.0, 1.0, "fastlin", -2 / 3),
        (-2.0, 1.0, "deepz", -2 / 3),
        (-2.0, 1.0, "crown", -1.0),
        (-2.0, 1.0, "alpha-crown", 0.0),
        (-2.0, 1.0, "planet-lp", 0.0),
        (-2.0, 1.0, "milp", 0.0),
    ],
)
def test_one_neuron_by_hand(low: float, high: float, name: str, least: float) -> None:
    """The upper line makes all but intervals exact above: f ≤ (ā − 1) x + b̄, which at x = l̂ is −l̂."""
    ends = (torch.full((1, 1), end, dtype=torch.float64) for end in (low, high))
    found = BOUNDS[name](negative_part(), *ends)
    assert found.lower[-1].item() == pytest.approx(least, abs=1e-6)
    assert found.upper[-1].item() == pytest.approx(high - low if name == "interval" else -low, abs=1e-6)
    np.testing.assert_allclose(found.lower[0], [[low, low + 9.0]], rtol=0, atol=1e-7)
    np.testing.assert_allclose(found.upper[0], [[high, high + 9.0]], rtol=0, atol=1e-7)


def test_interval_formula(rng: np.random.Generator) -> None:
    """l̂ = [W]₊ l + [W]₋ u + b and û = [W]₊ u + [W]₋ l + b, in NumPy, and widened by roundings only."""
    network = random_fc(rng, (5, 16, 16, 16, 4))
    lower, upper = random_box(rng, network, boxes=10, radius=0.5)
    found = BOUNDS["interval"](network, lower, upper)
    low, high = lower.numpy(), upper.numpy()
    for k, op in enumerate(node.op for node in network.nodes if isinstance(node.op, Linear)):
        assert op.bias is not None
        weight, bias = op.weight.numpy(), op.bias.numpy()
        plus, minus = np.maximum(weight, 0.0).T, np.minimum(weight, 0.0).T
        low, high = low @ plus + high @ minus + bias, high @ plus + low @ minus + bias
        np.testing.assert_allclose(found.lower[k], low, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found.upper[k], high, rtol=1e-12, atol=1e-12)
        assert (found.lower[k].numpy() < low + 1e-15).all()
        assert (found.upper[k].numpy() > high - 1e-15).all()
        low, high = np.maximum(low, 0.0), np.maximum(high, 0.0)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UsageError, match="unknown bound 'crwon'; expected one of: interval, fastlin, crown"):
        BOUNDS["crwon"]

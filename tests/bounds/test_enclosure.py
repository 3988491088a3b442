"""Intervals of every node against rational arithmetic: sums that lose, ends that round, numbers out of hand."""

from fractions import Fraction
from math import inf, nan

import numpy as np
import pytest
import torch
from exact import exact_values
from one_by_one import U, add_one_by_one, losing

from surebound.bounds.enclosure import Enclosure
from surebound.network.build import Builder
from surebound.network.graph import Network

N = 1023


def enclosed(network: Network, low: list[float], high: list[float]) -> Enclosure:
    ends = (torch.tensor(end, dtype=torch.float64).reshape(1, *network.input_shape) for end in (low, high))
    enclosure = Enclosure(network, *ends)
    enclosure.extend(len(network.nodes) - 1)
    return enclosure


def assert_contains(enclosure: Enclosure, x: list[float]) -> None:
    """Every node's value at a point."""
    for node, values in enumerate(exact_values(enclosure.network, x)):
        ends = (t[node][0].flatten().tolist() for t in (enclosure.lower, enclosure.upper))
        for value, low, high in zip(values.reshape(-1), *ends, strict=True):
            assert low == -np.inf or Fraction(low) <= value
            assert high == np.inf or value <= Fraction(high)


@pytest.mark.parametrize("radius", [0.0, 1.0])
def test_sums_that_lose_stay_inside(radius: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """± (x₀ + u x₁ + u x₂ + …), added up one by one, at a point and over a box whose ends lose as much."""
    add_one_by_one(monkeypatch)
    build = Builder((N + 1,))
    network = build.build(build.linear(0, torch.stack([losing(N), -losing(N)])))
    enclosure = enclosed(network, [1.0 - radius] * (N + 1), [1.0 + radius] * (N + 1))
    for x in (1.0 - radius, 1.0 + radius):
        assert_contains(enclosure, [x] * (N + 1))
    assert float(enclosure.upper[1].max()) < 1.0 + radius + 10 * N * U


def test_adding_a_bias_stays_inside(rng: np.random.Generator) -> None:
    """A product much smaller than the bias is rounded off, wholly or in part."""
    for _ in range(200):
        build = Builder((1,))
        weight, bias = rng.normal(size=(8, 1)) * 2.0 ** -rng.integers(40, 60, size=(8, 1)), rng.normal(size=8)
        x = float(rng.normal())
        assert_contains(enclosed(build.build(build.linear(0, weight, bias)), [x], [x]), [x])


def test_moving_numbers_keeps_their_intervals(rng: np.random.Generator) -> None:
    """Ends of very different sizes, through operations that are exact."""
    build = Builder((6,))
    network = build.build(build.concat([build.pick(0, np.array([5, 0, 0, 3])), build.pick(0, np.arange(6)[::-1])], 0))
    for _ in range(300):
        low = rng.choice([-1.0, 1.0], size=6) * 10.0 ** rng.uniform(-20, 5, size=6)
        high = low + 10.0 ** rng.uniform(-20, 5, size=6)
        enclosure = enclosed(network, low.tolist(), high.tolist())
        assert_contains(enclosure, low.tolist())
        assert_contains(enclosure, high.tolist())


def test_numbers_out_of_hand_are_unknown() -> None:
    build = Builder((1,))
    first = build.linear(0, [[1e60]])
    second = build.linear(first, [[1e60]])
    network = build.build(build.linear(second, [[1e-100]]))
    enclosure = enclosed(network, [1.0], [2.0])
    assert (enclosure.lower[1] > 0.9e60).all() and (enclosure.upper[1] < 2.1e60).all()
    for node in (2, 3):
        assert (enclosure.lower[node] == -torch.inf).all() or torch.isnan(enclosure.lower[node]).all()
        assert (enclosure.upper[node] == torch.inf).all() or torch.isnan(enclosure.upper[node]).all()
    for low, high in ((0.0, 1e101), (-1e101, 0.0)):
        large = enclosed(network, [low], [high])
        assert large.lower[0].item() == -torch.inf
        assert large.upper[0].item() == torch.inf


def test_bounds_out_of_hand_are_not_taken_from_elsewhere() -> None:
    """Whoever found them: an interval keeps to HUGE, or is all numbers."""
    enclosure = Enclosure(Builder((4,)).build(0), -torch.ones(1, 4).double(), torch.ones(1, 4).double())
    enclosure.lower[0], enclosure.upper[0] = torch.full((1, 4), -inf).double(), torch.full((1, 4), inf).double()
    low = torch.tensor([[1e135, -1e135, nan, -1e99]], dtype=torch.float64)
    enclosure.tighten(0, low, torch.tensor([[2e135, 1.0, 1.0, 1e99]], dtype=torch.float64))
    assert enclosure.lower[0].tolist() == [[-inf, -inf, -inf, -1e99]]
    assert enclosure.upper[0].tolist() == [[inf, inf, inf, 1e99]]


def test_an_underflow_is_not_zero() -> None:
    """1e-200 x over [1e-200, 2e-200] is above 0, though float64 says 0."""
    build = Builder((1,))
    for weight in (1e-200, -1e-200):
        network = build.build(build.linear(0, [[weight]]))
        enclosure = enclosed(network, [1e-200], [2e-200])
        assert_contains(enclosure, [1e-200])
        assert_contains(enclosure, [2e-200])


def test_a_relu_is_never_negative() -> None:
    build = Builder((3,))
    enclosure = enclosed(build.build(build.relu(0)), [-2.0, -1.0, 1.0], [-1.0, 1.0, 2.0])
    assert enclosure.lower[1].tolist() == [[0.0, 0.0, 1.0]]
    assert enclosure.upper[1].tolist() == [[0.0, 1.0, 2.0]]

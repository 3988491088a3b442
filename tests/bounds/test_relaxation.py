"""The two lines around a ReLU, in rational arithmetic: above and below it wherever l̂ ≤ x̂ ≤ û, and close to it."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from surebound.bounds.relaxation import relax, upper_intercept


def intervals(rng: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """l̂ < 0 < û of sizes from 1e-9 to 1e9, some of them nearly one-sided."""
    low, high = (torch.from_numpy(10.0 ** rng.uniform(-9, 9, size=count)) for _ in range(2))
    return -low, high


@pytest.mark.parametrize("slopes", ["crown", "fastlin", "interval"])
def test_lines_hold_at_both_ends(slopes: str, rng: np.random.Generator) -> None:
    """Between the ends, too, since the ReLU is convex; and they are as low as rounding lets them be."""
    lower, upper = intervals(rng, 500)
    lines = relax(lower, upper, slopes)
    assert lines.ambiguous.all()
    for low, high, slope, intercept, alpha in zip(
        *(t.tolist() for t in (lower, upper, lines.upper_slope, lines.intercept, lines.lower_slope)), strict=True
    ):
        a, b, low, high = Fraction(slope), Fraction(intercept), Fraction(low), Fraction(high)
        assert a * low + b >= 0
        assert a * high + b >= high
        assert 0 <= alpha <= 1
        exact = high if slopes == "interval" else -low * high / (high - low)
        assert b <= exact * (1 + Fraction(1, 2**40)) + abs(Fraction(high)) / 2**50


def test_an_intercept_fits_any_slope(rng: np.random.Generator) -> None:
    """Also one that float32 has rounded."""
    lower, upper = intervals(rng, 500)
    slope = torch.from_numpy(rng.uniform(size=500)).float().double()
    for a, low, high, b in zip(
        *(t.tolist() for t in (slope, lower, upper, upper_intercept(slope, lower, upper))), strict=True
    ):
        assert Fraction(a) * Fraction(low) + Fraction(b) >= 0
        assert Fraction(a) * Fraction(high) + Fraction(b) >= Fraction(high)


def test_an_intercept_is_that_of_the_rounded_slope(rng: np.random.Generator) -> None:
    lower, upper = intervals(rng, 500)
    lines = relax(lower, upper, rounded=lambda slope: slope.float().double())
    assert torch.equal(lines.upper_slope, lines.upper_slope.float().double())
    for a, low, high, b in zip(*(t.tolist() for t in (lines.upper_slope, lower, upper, lines.intercept)), strict=True):
        assert Fraction(a) * Fraction(low) + Fraction(b) >= 0
        assert Fraction(a) * Fraction(high) + Fraction(b) >= Fraction(high)


@pytest.mark.parametrize("slopes", ["crown", "fastlin", "interval"])
def test_lines_hold_where_numbers_underflow(slopes: str, rng: np.random.Generator) -> None:
    """A coefficient of 1e300 makes much of the last bit of 5e-324, so the upper line has to be above that, too."""
    unit = 5e-324
    near, few = unit * rng.integers(1, 2**20, size=(2, 200)), unit * rng.integers(1, 9, size=200)
    lower = torch.from_numpy(np.concatenate([-near[0], -rng.uniform(0.5, 3, size=200), -near[0]]))
    upper = torch.from_numpy(np.concatenate([near[1], few, rng.uniform(0.5, 3, size=200)]))
    lines = relax(lower, upper, slopes)
    for low, high, slope, intercept in zip(
        *(t.tolist() for t in (lower, upper, lines.upper_slope, lines.intercept)), strict=True
    ):
        a, b, low, high = Fraction(slope), Fraction(intercept), Fraction(low), Fraction(high)
        assert a * low + b >= 0
        assert a * high + b >= high


def test_stable_neurons_are_lines() -> None:
    tiny = 5e-324
    lower = torch.tensor([0.0, 1.0, -2.0, -2.0, -tiny, -1.0, 0.0], dtype=torch.float64)
    upper = torch.tensor([1.0, 2.0, -1.0, 0.0, 1.0, tiny, 0.0], dtype=torch.float64)
    for slopes in ("crown", "fastlin", "interval"):
        lines = relax(lower, upper, slopes)
        assert lines.ambiguous.tolist() == [False, False, False, False, True, True, False]
        assert lines.upper_slope[:4].tolist() == lines.lower_slope[:4].tolist() == [1.0, 1.0, 0.0, 0.0]
        assert lines.intercept[:4].tolist() == [0.0] * 4
        for i in (4, 5):
            a, b = Fraction(float(lines.upper_slope[i])), Fraction(float(lines.intercept[i]))
            assert a * Fraction(float(lower[i])) + b >= 0
            assert a * Fraction(float(upper[i])) + b >= Fraction(float(upper[i]))

"""Boxes and balls as users write them: what lies in them is decided exactly."""

from fractions import Fraction
from math import inf

import numpy as np
import pytest

from surebound.domain.sets import Ball, Box, exact_norm, within
from surebound.errors import PropertyError, UsageError
from surebound.problem import Property, Region, Robustness
from surebound.proof.property_text import property_text


def test_a_point_of_a_sphere_lies_in_its_ball_and_the_next_one_does_not() -> None:
    ball = Ball.around(np.zeros(3), Fraction(5, 8), "2")  # 0.375² + 0.5² = 0.625²
    assert ball.contains(np.array([0.375, -0.5, 0.0]))
    assert not ball.contains(np.array([0.375, np.nextafter(0.5, 1.0), 0.0]))
    assert not ball.contains(np.array([0.375, 0.5, 2.0**-30]))  # by 2⁻⁶⁰, which a sum in float64 would lose


def test_in_l1_gaps_add_up_exactly() -> None:
    ball = Ball.around(np.zeros(3), Fraction(1, 2), "1")
    assert ball.contains(np.array([0.25, -0.25, 0.0]))
    assert not ball.contains(np.array([0.25, -0.25, 2.0**-80]))


def test_the_box_counts_as_well_as_the_ball() -> None:
    ball = Ball.around(np.array([0.25, 1.0]), Fraction(1, 2), "2", low=0.0, high=1.0)
    assert ball.lower.tolist() == [0.0, 0.5] and ball.upper.tolist() == [0.75, 1.0]
    assert ball.contains(np.array([0.0, 1.0])) and not ball.contains(np.array([-0.125, 1.0]))
    assert ball.hull.contains(np.array([0.0, 0.5])) and not ball.contains(np.array([0.0, 0.5]))


def test_the_hull_is_rounded_outward() -> None:
    ball = Ball.around(np.array([0.5]), Fraction(1, 3), "1")
    assert Fraction(ball.lower[0]) < Fraction(1, 6) and Fraction(ball.upper[0]) > Fraction(5, 6)


@pytest.mark.parametrize("radius", [0.1, np.float32(0.1), np.float64(0.1)])
def test_a_radius_that_is_a_float_is_taken_exactly(radius: float) -> None:
    """Not rounded where it is added to the centre, or squared: the hull holds the ball, and the ball no more."""
    centre, exact = np.array([0.7, 1e-3, 0.2]), Fraction(float(radius))
    ball = Ball.around(centre, radius, "2")
    assert ball.radius == exact and type(ball.radius) is Fraction
    for low, m, high in zip(ball.lower.tolist(), centre.tolist(), ball.upper.tolist(), strict=True):
        assert Fraction(low) <= Fraction(m) - exact and Fraction(m) + exact <= Fraction(high)
    unit = Ball.around(np.zeros(1), radius, "2")
    assert unit.contains(np.array([float(radius)])) and not unit.contains(np.nextafter([float(radius)], 1.0))


@pytest.mark.parametrize("radius", ["1e400", "1e-999999999", "1e+9_999_999_99", inf, float("nan"), "many", None])
def test_a_radius_that_is_no_number_of_use_is_refused(radius: object) -> None:
    for make in (
        lambda: Ball.around([0.5], radius, "2", low=0.0, high=1.0),  # type: ignore[arg-type]
        lambda: Ball(centre=[0.5], radius=radius, norm="2", lower=[0.0], upper=[1.0]),  # type: ignore[arg-type]
        lambda: Robustness(np.array([0.5]), 0, radius, norm=2).domain(),  # type: ignore[arg-type]
        lambda: Robustness(np.array([0.5]), 0, radius).domain(),  # type: ignore[arg-type]
    ):
        with pytest.raises(UsageError, match=r"must be a number such as 0\.1 or 2/255"):
            make()


@pytest.mark.parametrize("norm", ["inf", "2", "1"])
def test_inputs_may_be_without_bounds(norm: str) -> None:
    domain = Robustness(np.array([0.5, -7.0]), 0, "1/4", low=-inf, high=inf, norm=norm).domain()
    assert domain.lower.tolist() == [0.25, -7.25] and domain.upper.tolist() == [0.75, -6.75]


def test_balls_are_told_apart_from_boxes_and_from_each_other() -> None:
    domains = [
        *(Ball.around(np.array([0.5, 0.5]), Fraction(1, 2), norm, low=0, high=1) for norm in ("1", "2")),  # type: ignore[arg-type]
        Ball.around(np.array([0.5, 0.5]), Fraction(2, 3), "2", low=0, high=1),
        Ball.around(np.array([0.5, 0.625]), Fraction(2, 3), "2", low=0, high=1),
        Box(np.zeros(2), np.ones(2)),
    ]
    assert len({d.key for d in domains}) == len(domains)
    assert domains[0].key == Ball.around([0.5, 0.5], Fraction(1, 2), "1", low=-0.0, high=1).key


@pytest.mark.parametrize("value", [3, "l2", None, True, "", 1.5, -1])
def test_other_norms_are_refused(value: object) -> None:
    with pytest.raises(UsageError, match="expected inf, 2 or 1"):
        exact_norm(value)


def test_a_ball_that_makes_no_sense_is_refused() -> None:
    x = np.array([0.5])
    for change, complaint in (
        ({"norm": "inf"}, "it is a box"),
        ({"radius": Fraction(-1)}, "a radius from 0 up"),
        ({"lower": np.array([-inf])}, "finite bounds"),
        ({"lower": np.array([0.75])}, "outside of its bounds"),
        ({"lower": np.zeros(2)}, "of one length"),
        ({"centre": np.array(["a"])}, "not an array of numbers"),
    ):
        given = {"centre": x, "radius": Fraction(1), "norm": "2", "lower": x, "upper": x} | change
        with pytest.raises((PropertyError, UsageError), match=complaint):
            Ball(**given)


def test_robustness_in_each_norm() -> None:
    x = np.array([0.5, 1.0, 0.25])
    for norm in (2, "2", 2.0, 1, "1"):
        ball = Robustness(x, 0, "1/3", norm=norm).domain()
        assert isinstance(ball, Ball) and (ball.norm, ball.radius) == (exact_norm(norm), Fraction(1, 3))
        assert ball.key != Robustness(x, 0, "1/3").domain().key
        assert ball.hull.key == Robustness(x, 0, "1/3").domain().key
    assert Robustness(x, 0, "1/3", norm=inf).domain().key == Robustness(x, 0, "1/3").box().key
    assert isinstance(Robustness(x, 0, 7, norm=2).domain(), Ball)  # more than any pixel can move
    assert "in ℓ2" in Robustness(x, 0, "1/3", norm=2).to_property(3).source


def test_a_property_has_one_norm_and_its_text_boxes_only() -> None:
    regions = [Robustness(np.array([0.5]), 0, "1/3", norm=n).to_property(2).regions[0] for n in (2, "inf")]
    with pytest.raises(PropertyError, match="several norms"):
        Property(tuple(regions), 1, 2)
    with pytest.raises(PropertyError, match="no balls"):
        property_text(Property((regions[0],), 1, 2))
    assert "X_0" in property_text(Property((regions[1],), 1, 2))


def test_a_counterexample_lies_in_the_ball() -> None:
    ball = Ball.around(np.zeros(2), Fraction(5, 8), "2")
    row = {"on_output": np.array([[1.0]]), "constant": np.zeros(1), "strict": np.zeros(1, dtype=bool)}
    region = Region(box=ball, **row)
    assert region.holds(np.array([0.375, 0.5]), np.zeros(1))
    assert not region.holds(np.array([0.5, 0.5]), np.zeros(1))
    assert within(np.array([0.5, 0.5]), np.zeros(2), Fraction(1, 2), "inf")

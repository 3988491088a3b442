"""What rounding does to a minimum over a ball stays within its error term, in sums that lose all they can."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from one_by_one import add_one_by_one
from torch import Tensor

from surebound.bounds.around import enclosure_over
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.minimum import BallMinimum
from surebound.bounds.rounding import gamma
from surebound.domain.balls import Balls
from surebound.domain.exact import least_over_ball
from surebound.domain.sets import Ball, Norm
from surebound.network.build import Builder
from surebound.problem import Region
from surebound.verify.subject import Subject, specify


def exact(balls: Balls, lam: Tensor) -> Fraction:
    """The least value of −λ·x."""
    parts = (-lam, balls.centre[0], balls.lower[0], balls.upper[0])
    c, centre, lower, upper = ([Fraction(v) for v in part.tolist()] for part in parts)
    return least_over_ball(c, centre, Fraction(float(balls.radius)), lower, upper, balls.norm)


def too_high(balls: Balls, lam: Tensor) -> float:
    """By how much a claim exceeds the exact minimum, in units of the error that it is said to have."""
    least = BallMinimum(balls).minimise(lam[None])
    reach = torch.maximum(balls.lower.abs(), balls.upper.abs())[0]
    error = float(torch.as_tensor(least.error)) + gamma(len(lam)) * float(lam.abs() @ reach)
    return float(Fraction(float(least.value)) - exact(balls, lam)) / error


def test_a_norm_that_is_added_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sums lose a unit with every summand: p·m = −1.5 + u + u + …, and ‖p‖² = 1 + u/2 + u/2 + …."""
    n, m = 1023, 2.0**-26
    centre = np.array([-1.5, *[m] * n])
    lower, upper = np.array([-1.5, *[-m] * n]), np.array([1.5, *[3 * m] * n])
    balls = Balls.of([Ball(centre=centre, radius=Fraction(3), norm="2", lower=lower, upper=upper)])
    lam = torch.tensor([1.0, *[2.0**-27] * n], dtype=torch.float64)
    add_one_by_one(monkeypatch)
    parted = balls.parted(lam[None])
    assert bool((parted.box == 0).all())  # nothing is clipped
    assert float(BallMinimum(balls).minimise(lam[None]).value) == -1.5  # and nothing of the others
    assert 0.3 < too_high(balls, lam) <= 1


@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("radius", [1, 10**20])
def test_squares_that_underflow(radius: int, norm: Norm) -> None:
    ball = Ball.around(np.zeros(3), Fraction(radius), norm)
    for scale in (1e-161, 3e-162, 2e-162, 1e-163, 1e-200, 1e-310):
        for share in (0.3, 0.5, 0.7, 0.9):
            lam = torch.tensor([1.0, share, -share], dtype=torch.float64) * scale
            assert too_high(Balls.of([ball]), lam) <= 1


def test_two_inputs_whose_products_all_round() -> None:
    """In one of these draws, the products of an input go through more roundings than a sum of two has."""
    for seed in range(120, 220):
        rng = np.random.default_rng(seed)
        x = rng.uniform(size=2) * 10 ** rng.uniform(-2, 0, size=2)
        ball = Ball.around(x, Fraction(float(rng.uniform(0.1, 1.6))), ("1", "2")[seed % 2], low=0.0, high=1.0)  # type: ignore[arg-type]
        assert too_high(Balls.of([ball]), torch.from_numpy(rng.normal(size=2))) <= 1


def test_a_dual_bound_has_the_error_of_its_minimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """−x over the ball of the first test, with rows on the input alone."""
    n, m = 1023, 2.0**-26
    centre = np.array([-1.5, *[m] * n])
    lower, upper = np.array([-1.5, *[-m] * n]), np.array([1.5, *[3 * m] * n])
    ball = Ball(centre=centre, radius=Fraction(3), norm="2", lower=lower, upper=upper)
    row = -np.array([1.0, *[2.0**-27] * n])
    build = Builder((n + 1,))
    network = build.build(build.linear(0, np.ones((1, n + 1))))
    region = Region(
        box=ball, on_output=np.zeros((1, 1)), on_input=row[None], constant=np.zeros(1), strict=np.zeros(1, dtype=bool)
    )
    enclosure = enclosure_over(network, [ball])
    form = GraphForm.at(enclosure, network.output)
    subject = Subject(network, form, specify(form, [region]))
    add_one_by_one(monkeypatch)
    claimed = float(subject.sound_bounds(*subject.roots()))
    assert Fraction(claimed) <= exact(Balls.of([ball]), torch.from_numpy(-row))


def test_what_is_not_finite_bounds_nothing() -> None:
    for norm in ("1", "2"):
        balls = Balls.of([Ball.around(np.full(3, 0.5), Fraction(1, 4), norm, low=0, high=1)])  # type: ignore[arg-type]
        for bad in (torch.nan, torch.inf, -torch.inf):
            for rest in (0.0, 1.0, -1.0):
                value = BallMinimum(balls).minimise(torch.tensor([[rest, bad, rest]]).double()).value
                assert not float(value) > -torch.inf


def test_several_balls_at_once_are_what_each_is_alone() -> None:
    rng = np.random.default_rng(0)
    for norm in ("1", "2"):
        balls = [
            Ball.around(rng.uniform(size=6), Fraction(float(rng.uniform(0.1, 1))), norm, low=0, high=1)  # type: ignore[arg-type]
            for _ in range(4)
        ]
        lam = torch.from_numpy(rng.normal(size=(4, 6)))
        together = BallMinimum(Balls.of(balls)).minimise(lam)
        alone = [
            BallMinimum(Balls.of([b]).map(lambda t: t[0])).minimise(row[None])
            for b, row in zip(balls, lam, strict=True)
        ]
        assert torch.allclose(together.value, torch.cat([a.value for a in alone]), rtol=1e-15)
        assert torch.allclose(torch.as_tensor(together.error), torch.cat([torch.as_tensor(a.error) for a in alone]))

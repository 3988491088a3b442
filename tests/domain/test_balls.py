"""Minima, projections and points of balls within boxes, beside rational arithmetic and two solvers of SciPy."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize

from surebound.bounds.minimum import BallMinimum
from surebound.bounds.rounding import gamma
from surebound.domain.balls import Balls
from surebound.domain.exact import least_over_ball
from surebound.domain.sets import Ball, Norm, Vector

Floats = NDArray[np.float64]


def random_ball(rng: np.random.Generator, norm: Norm, n: int, largest: float = 2.0) -> Ball:
    """Around an image with many black and white pixels."""
    x = rng.uniform(size=n)
    x[rng.random(n) < 0.3], x[rng.random(n) < 0.1] = 0.0, 1.0
    return Ball.around(x, Fraction(float(rng.uniform(0, largest))), norm, low=0.0, high=1.0)


def fractions(v: Any) -> list[Fraction]:
    return [Fraction(x) for x in np.asarray(v).tolist()]


def exact_least(c: Vector, ball: Ball) -> Fraction:
    ends = fractions(ball.lower), fractions(ball.upper)
    return least_over_ball(fractions(c), fractions(ball.centre), ball.radius, *ends, ball.norm)


@pytest.mark.parametrize("norm", ["1", "2"])
def test_the_minimum_is_that_of_rational_arithmetic(norm: Norm) -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        ball = random_ball(rng, norm, int(rng.integers(1, 30)))
        lam = torch.from_numpy(rng.normal(size=(2, ball.centre.size)) * 10 ** rng.uniform(-3, 3))
        least = BallMinimum(Balls.of([ball])).minimise(lam)
        reach = np.maximum(np.abs(ball.lower), np.abs(ball.upper))
        for i in range(2):
            exact, size = exact_least(-lam[i].numpy(), ball), float((lam[i].abs() * torch.from_numpy(reach)).sum())
            error = float(torch.as_tensor(least.error)[i]) + gamma(ball.centre.size) * size
            assert Fraction(float(least.value[i])) - Fraction(error) <= exact
            assert float(least.value[i]) == pytest.approx(float(exact), abs=1e-13 * max(size, 1e-6))
            assert float(-lam[i] @ least.x[i]) == pytest.approx(float(exact), abs=1e-9 * max(size, 1e-6))


@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("radius", [Fraction(0), Fraction(1, 10**400), Fraction(1, 10**170), Fraction(1, 10**20)])
def test_the_minimum_over_a_ball_that_is_a_point_or_nearly_so(norm: Norm, radius: Fraction) -> None:
    x, lam = np.array([0.0, 0.25, 1.0, 0.5]), torch.tensor([[3.0, -2.0, 5.0, 0.0], [-9.0, 1.0, -4.0, 1e-9]]).double()
    least = BallMinimum(Balls.of([Ball.around(x, radius, norm, low=0.0, high=1.0)])).minimise(lam)
    assert least.value.tolist() == pytest.approx((-lam @ torch.from_numpy(x)).tolist(), abs=1e-15)
    assert torch.as_tensor(least.error).max() < 1e-14


def test_in_l1_the_minimum_is_that_of_a_linear_program() -> None:
    rng = np.random.default_rng(1)
    for _ in range(40):
        n = int(rng.integers(1, 12))
        ball, c = random_ball(rng, "1", n), rng.normal(size=n)
        # x − m ≤ s, m − x ≤ s, Σ s ≤ r
        eye = np.eye(n)
        rows = np.vstack([np.hstack([eye, -eye]), np.hstack([-eye, -eye]), np.concatenate([np.zeros(n), np.ones(n)])])
        ends = np.concatenate([ball.centre, -ball.centre, [float(ball.radius)]])
        bounds = [*zip(ball.lower, ball.upper, strict=True), *[(0, None)] * n]
        solved = linprog(np.concatenate([c, np.zeros(n)]), A_ub=rows, b_ub=ends, bounds=bounds)
        assert float(exact_least(c, ball)) == pytest.approx(solved.fun, abs=1e-9)


def test_in_l2_the_minimum_is_that_of_a_convex_solver() -> None:
    rng = np.random.default_rng(2)
    for _ in range(25):
        n = int(rng.integers(1, 8))
        ball, c = random_ball(rng, "2", n, largest=1.0), rng.normal(size=n)

        def room(x: Floats, ball: Ball = ball) -> float:
            return float(ball.radius) ** 2 - float(((x - ball.centre) ** 2).sum())

        solved = minimize(
            lambda x, c=c: c @ x,
            ball.centre,
            jac=lambda x, c=c: c,
            bounds=[*zip(ball.lower, ball.upper, strict=True)],
            constraints=[{"type": "ineq", "fun": room}],
            options={"ftol": 1e-12, "maxiter": 500},
        )
        found = float(exact_least(c, ball))
        assert found <= solved.fun + 1e-6 and found == pytest.approx(solved.fun, abs=1e-4)


@pytest.mark.parametrize("norm", ["1", "2"])
def test_without_a_box_it_is_the_dual_norm(norm: Norm) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        n = int(rng.integers(1, 20))
        ball = Ball.around(rng.normal(size=n), Fraction(float(rng.uniform(0.1, 3))), norm)
        c = rng.normal(size=n)
        dual = np.abs(c).max() if norm == "1" else np.sqrt((c**2).sum())
        least = BallMinimum(Balls.of([ball])).minimise(torch.from_numpy(-c)[None])
        closed = c @ ball.centre - float(ball.radius) * dual
        assert float(least.value[0]) == pytest.approx(closed, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("norm", ["1", "2"])
def test_a_projection_is_the_nearest_point(norm: Norm) -> None:
    """It lies in the ball, and no direction into the ball leads nearer: the angle to each of its points is obtuse."""
    rng = np.random.default_rng(4)
    for _ in range(60):
        n = int(rng.integers(1, 15))
        ball = random_ball(rng, norm, n)
        balls = Balls.of([ball])
        x = torch.from_numpy(rng.normal(size=(5, n)) * 1.5)
        y = balls.project(x)
        assert bool(((y >= balls.lower) & (y <= balls.upper)).all())
        gap = (y - balls.centre).abs()
        length = gap.sum(1) if norm == "1" else gap.square().sum(1).sqrt()
        assert bool((length <= float(ball.radius) * (1 + 1e-9) + 1e-12).all())
        others = balls.sample(torch.from_numpy(rng.uniform(-1, 1, size=(200, n))))
        others = torch.cat([others, balls.parted(x - y).x])
        assert float(((others[:, None] - y) * (x - y)).sum(2).max()) <= 1e-7
        inside = balls.project(others)
        assert torch.allclose(inside, others, atol=1e-9)


@pytest.mark.parametrize("norm", ["1", "2"])
def test_points_begin_at_the_centre_and_reach_the_border(norm: Norm) -> None:
    rng = np.random.default_rng(5)
    ball = Ball.around(np.full(20, 0.5), Fraction(1, 4), norm, low=0.0, high=1.0)
    balls = Balls.of([ball])
    assert torch.equal(balls.sample(torch.zeros(1, 20).double()), balls.centre)
    far = balls.sample(torch.from_numpy(rng.uniform(-1, 1, size=(50, 20)))) - balls.centre
    length = far.abs().sum(1) if norm == "1" else far.square().sum(1).sqrt()
    assert bool((length > 0.2).all())


@pytest.mark.parametrize("norm", ["1", "2"])
def test_a_step_is_as_long_as_the_radius_and_goes_up(norm: Norm) -> None:
    rng = np.random.default_rng(6)
    balls = Balls.of([Ball.around(np.zeros(100), Fraction(1, 2), norm)])
    gradient = torch.from_numpy(rng.normal(size=(7, 100)))
    step = balls.along(gradient)
    length = step.abs().sum(1) if norm == "1" else step.square().sum(1).sqrt()
    assert torch.allclose(length, torch.full((7,), 0.5).double()) and bool(((step * gradient).sum(1) > 0).all())
    if norm == "1":
        assert torch.equal(step.abs().argmax(1), gradient.abs().argmax(1)) and (step != 0).sum(1).tolist() == [1] * 7
    else:
        assert torch.allclose(step, gradient / gradient.square().sum(1, keepdim=True).sqrt() / 2)


def test_radii_are_rounded_up() -> None:
    for radius in (Fraction(1, 3), Fraction(2, 3), Fraction(1, 10), Fraction(1, 2)):
        assert Fraction(float(Balls.of([Ball.around(np.zeros(1), radius, "2")]).radius)) >= radius


def test_of_some_inputs_a_ball_shows_no_less() -> None:
    ball = Ball.around(np.array([0.5, 0.25, 1.0]), Fraction(1, 4), "2", low=0, high=1)
    some = Balls.of([ball]).over(torch.tensor([0, 2]))
    assert some.centre.tolist() == [[0.5, 1.0]] and float(some.radius) == 0.25
    assert some.lower.tolist() == [[0.25, 0.75]]

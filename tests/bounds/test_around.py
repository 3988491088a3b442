"""Bounds over balls: closed forms on linear networks, and nothing below what a point of the ball reaches on others."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from exact import exact_output, fractions
from networks import NETWORKS, pre_activations, random_fc
from one_by_one import U, add_one_by_one, losing
from torch import Tensor

import surebound
from surebound.bounds import BOUNDS, OVER_BALLS
from surebound.bounds.around import Around, affine_nodes, dual_norms, enclosure_over, row_norms
from surebound.bounds.audit import auditing
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.root import LayerBounding, fold_network, settle_layers
from surebound.domain.balls import Balls
from surebound.domain.exact import least_over_ball
from surebound.domain.sets import Ball, Norm
from surebound.errors import UsageError
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Region
from surebound.verify.subject import Subject, specify


def random_ball(rng: np.random.Generator, network: Network, norm: Norm, radius: float) -> Ball:
    x = rng.uniform(size=network.inputs)
    x[rng.random(x.size) < 0.2] = 0.0
    return Ball.around(x, Fraction(float(rng.uniform(radius / 4, radius))), norm, low=0.0, high=1.0)


def points(rng: np.random.Generator, ball: Ball, network: Network, count: int) -> Tensor:
    """Points of the ball: of its inside, its border, and where linear functions are least, moved in by a hair."""
    balls = Balls.of([ball])
    unit = rng.uniform(-1, 1, size=(count, ball.centre.size)) * rng.choice([0.1, 1.0], size=(count, 1))
    corners = balls.parted(torch.from_numpy(rng.normal(size=(count, ball.centre.size)))).x
    found = torch.cat([balls.sample(torch.from_numpy(unit)), corners, balls.centre])
    found = balls.centre + (found - balls.centre) * (1 - 1e-9)
    return torch.clamp(found, balls.lower, balls.upper).reshape(-1, *network.input_shape)


def bounds(network: Network, ball: Ball, method: str) -> list[tuple[Tensor, Tensor]]:
    found = surebound.bounds(Model(network, lambda x: x, "network"), ball, method=method)  # type: ignore[operator]
    return [*zip(found.lower, found.upper, strict=True)]


@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("method", OVER_BALLS)
def test_a_linear_network_has_the_closed_form(norm: Norm, method: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(30):
        n = int(rng.integers(1, 25))
        build = Builder((n,))
        weight, bias = rng.normal(size=(4, n)), rng.normal(size=4)
        network = build.build(build.linear(0, weight, bias))
        centre, radius = rng.normal(size=n), Fraction(float(rng.uniform(0.01, 2)))
        ((low, high),) = bounds(network, Ball.around(centre, radius, norm), method)
        dual = np.abs(weight).max(1) if norm == "1" else np.sqrt((weight**2).sum(1))
        middle, reach = weight @ centre + bias, float(radius) * dual
        assert np.allclose(low[0], middle - reach, rtol=1e-10) and np.allclose(high[0], middle + reach, rtol=1e-10)
        assert (low[0].numpy() <= middle - reach).all() and (high[0].numpy() >= middle + reach).all()


@pytest.mark.parametrize("norm", ["1", "2"])
def test_within_pixels_it_is_the_exact_minimum(norm: Norm) -> None:
    rng = np.random.default_rng(1)
    for _ in range(30):
        n = int(rng.integers(1, 25))
        build = Builder((n,))
        weight, bias = rng.normal(size=(3, n)), rng.normal(size=3)
        network = build.build(build.linear(0, weight, bias))
        ball = random_ball(rng, network, norm, 2.0)
        ((low, high),) = bounds(network, ball, "crown")
        parts = (ball.centre, ball.lower, ball.upper)
        centre, lower, upper = ([Fraction(v) for v in part.tolist()] for part in parts)
        for i in range(3):
            for sign, claimed in ((1, float(low[0, i])), (-1, -float(high[0, i]))):
                row = [sign * v for v in fractions(weight[i]).tolist()]
                least = least_over_ball(row, centre, ball.radius, lower, upper, norm) + sign * Fraction(float(bias[i]))
                assert Fraction(claimed) <= least and claimed == pytest.approx(float(least), abs=1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_point_of_a_ball_lies_outside_of_its_bounds(name: str, norm: Norm) -> None:
    """15 networks of each kind in each norm: 210 in all."""
    rng = np.random.default_rng([int(norm), len(name)])
    for k in range(15):
        network = NETWORKS[name](rng)
        ball = random_ball(rng, network, norm, 0.8 if norm == "2" else 1.5)
        reached = pre_activations(network, points(rng, ball, network, 60))
        widths = {}
        for method in OVER_BALLS if k < 5 else ("crown", "alpha-crown"):
            for (low, high), values in zip(bounds(network, ball, method), reached, strict=True):
                assert bool((values >= low - 1e-9).all()) and bool((values <= high + 1e-9).all())
                widths[method] = float((high - low).sum())
        assert widths["alpha-crown"] <= widths["crown"] * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("norm", ["1", "2"])
def test_the_float32_passes_and_the_folded_form_hold_too(norm: Norm) -> None:
    rng = np.random.default_rng(3)
    for k in range(30):
        network = list(NETWORKS.values())[k % len(NETWORKS)](rng)
        ball = random_ball(rng, network, norm, 0.8)
        reached = pre_activations(network, points(rng, ball, network, 60))
        settled, folding = enclosure_over(network, [ball]), enclosure_over(network, [ball])
        settle_layers(settled, lambda: None)
        form = fold_network(folding, LayerBounding(), lambda: None)
        assert form is not None and form.balls is not None
        for enclosure in (settled, folding):
            for layer, values in enumerate(reached[:-1]):
                low, high = enclosure.layer(layer)
                assert bool((values >= low - 1e-9).all()) and bool((values <= high + 1e-9).all())
        rows = torch.from_numpy(rng.normal(size=(3, network.outputs)))
        lowest = (reached[-1] @ rows.T).amin(0)
        region = Region(box=ball, on_output=rows.numpy(), constant=np.zeros(3), strict=np.zeros(3, dtype=bool))
        regions = [
            Region(box=ball, on_output=region.on_output[[r]], constant=np.zeros(1), strict=np.zeros(1, dtype=bool))
            for r in range(3)
        ]
        subject = Subject(network, form, specify(form, regions))
        nodes, duals = subject.roots()
        assert bool((subject.sound_bounds(nodes, duals) <= lowest + 1e-9).all())


@pytest.mark.slow
@pytest.mark.parametrize("norm", ["1", "2"])
def test_claims_over_balls_are_confirmed_in_rational_arithmetic(norm: Norm) -> None:
    rng = np.random.default_rng(5)
    with auditing() as audit:
        for k in range(12):
            network = random_fc(rng, (int(rng.integers(2, 7)), 6, 5, 2))
            ball = random_ball(rng, network, norm, 1.0)
            bounds(network, ball, OVER_BALLS[k % len(OVER_BALLS)])
            enclosure = enclosure_over(network, [ball])
            settle_layers(enclosure, lambda: None)
    assert audit.claims > 300


def test_a_claim_beside_a_relu_is_confirmed() -> None:
    """A node that is affine in the input, after a ReLU in the order of nodes that it does not read."""
    rng, build = np.random.default_rng(3), Builder((4,))
    first = build.relu(build.linear(0, rng.normal(size=(3, 4))))
    second = build.relu(build.linear(0, rng.normal(size=(3, 4)), rng.normal(size=3)))
    network = build.build(build.sum(first, second))
    with auditing() as audit:
        enclosure = enclosure_over(network, [random_ball(rng, network, "2", 1.0)])
        enclosure.extend(network.output)
    assert audit.claims > 12


def test_a_ball_is_tighter_than_the_box_around_it() -> None:
    rng = np.random.default_rng(6)
    network = random_fc(rng, (30, 20, 20, 3))
    ball = Ball.around(rng.uniform(size=30), Fraction(1, 4), "2", low=0.0, high=1.0)
    for method in OVER_BALLS:
        ball_width = sum(float((high - low).sum()) for low, high in bounds(network, ball, method))
        box = BOUNDS[method](network, *(torch.from_numpy(end)[None] for end in (ball.lower, ball.upper)))
        box_width = sum(float((high - low).sum()) for low, high in zip(box.lower, box.upper, strict=True))
        assert ball_width < 0.6 * box_width


def test_methods_for_boxes_alone_say_so() -> None:
    network = random_fc(np.random.default_rng(0), (2, 3, 2))
    ball = Ball.around(np.zeros(2), Fraction(1), "2")
    for method in set(BOUNDS) - set(OVER_BALLS):
        with pytest.raises(UsageError, match=f"'{method}' is for boxes"):
            bounds(network, ball, method)


def test_which_nodes_are_affine_in_the_input() -> None:
    build = Builder((2,))
    first = build.linear(0, np.ones((3, 2)))
    second = build.linear(build.relu(first), np.ones((2, 3)))
    network = build.build(build.sum(second, build.linear(0, np.ones((2, 2)))))
    assert affine_nodes(network) == {first}


def test_norms_of_rows_that_are_added_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """‖(1, 2⁻²⁷, …, 2⁻²⁷)‖ is 1 when squares are added up from the first; nothing else rounds."""
    n = 1000
    balls = Balls.of([Ball.around(np.zeros(n + 1), Fraction(1), "2")])
    add_one_by_one(monkeypatch)
    rows = losing(n, 2.0**-27)[None]
    assert float(balls.dual_norm(rows)) == 1
    assert Fraction(float(dual_norms(balls, rows))) ** 2 >= 1 + n * Fraction(1, 2**54)


def test_rows_that_are_rounded_when_they_are_multiplied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row of two matrices is 1 + n u, but comes out as 1 when added up one by one."""
    n = 1000
    build = Builder((1,))
    network = build.build(build.linear(build.linear(0, torch.ones(n + 1, 1).double()), losing(n)[None]))
    add_one_by_one(monkeypatch)
    for norm in ("1", "2"):
        assert Fraction(float(row_norms(network, network.output, norm))) >= 1 + n * Fraction(U)  # type: ignore[arg-type]


def test_a_row_whose_squares_underflow() -> None:
    build = Builder((3,))
    network = build.build(build.linear(0, [[2e-162, 1e-162, 1e-162]]))
    exact = sum(Fraction(w) ** 2 for w in (2e-162, 1e-162, 1e-162))
    assert Fraction(float(row_norms(network, network.output, "2"))) ** 2 >= exact


def test_an_interval_around_a_ball_is_rounded_outward() -> None:
    rng = np.random.default_rng(7)
    for _ in range(300):
        build = Builder((1,))
        weight, bias = (np.float32(rng.normal(size=s)).astype(np.float64) for s in ((1, 1), (1,)))
        network = build.build(build.linear(0, weight, bias))
        centre, radius = float(rng.normal()), Fraction(float(rng.uniform(0, 2)))
        around = Around(network, Balls.of([Ball.around([centre], radius, "2")]))
        found = around.bounds(network.output)
        assert found is not None
        ends = [exact_output(network, [Fraction(centre) + sign * radius])[0] for sign in (-1, 1)]
        assert Fraction(float(found[0])) <= min(ends) and max(ends) <= Fraction(float(found[1]))


@pytest.mark.parametrize("radius", [0, 1])
def test_where_numbers_overflow_a_ball_says_nothing(radius: int) -> None:
    build = Builder((1,))
    network = build.build(build.linear(build.linear(0, [[1e200]]), [[1e200]]))
    found = Around(network, Balls.of([Ball.around([0.5], Fraction(radius), "2")])).bounds(network.output)
    assert found is not None and float(found[0]) == -torch.inf and float(found[1]) == torch.inf
    enclosure = enclosure_over(network, [Ball.around([0.5], Fraction(radius), "2")])
    enclosure.extend(network.output)
    assert not torch.isnan(enclosure.lower[-1]).any()
    assert isinstance(enclosure, Enclosure)

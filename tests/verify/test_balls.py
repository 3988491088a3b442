"""Verdicts over balls: what is proved no point contradicts, and what is found lies in the ball, exactly."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from classifiers import small_digits, write
from networks import random_fc
from scipy.optimize import Bounds, LinearConstraint, milp
from torch import nn

import surebound
from surebound.attacks import ATTACKS
from surebound.attacks.objective import Objective
from surebound.bounds.enclosure import enclose
from surebound.data import load_dataset
from surebound.domain.balls import Balls
from surebound.domain.sets import Ball, Norm
from surebound.errors import UsageError
from surebound.network.graph import Network, Relu
from surebound.network.linear import Linear
from surebound.network.model import Model
from surebound.problem import Property, Region, Robustness
from surebound.verify.options import Options
from surebound.verify.pipeline import verify


def model_of(network: Network) -> Model:
    def replay(x: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return network.forward(torch.from_numpy(x).double().reshape(-1, *network.input_shape)).float().numpy()

    return Model(network, replay, "network")


def below(ball: Ball, threshold: float) -> Property:
    """Violated where the first output is at most the threshold."""
    region = Region(
        box=ball, on_output=np.array([[1.0]]), constant=np.array([-threshold]), strict=np.zeros(1, dtype=bool)
    )
    return Property((region,), ball.centre.size, 1)


def least_in_l1(network: Network, ball: Ball) -> float:
    """The least output over an ℓ1 ball, by SciPy's MILP solver: big-M for every ReLU."""
    lower, upper = (torch.from_numpy(end)[None] for end in (ball.lower, ball.upper))
    enclosure = enclose(network, lower, upper)
    n = ball.centre.size
    low, high, integer = [*ball.lower, *[0.0] * n], [*ball.upper, *[np.inf] * n], [0] * 2 * n
    rows: list[tuple[dict[int, float], float, float]] = []
    for i in range(n):  # |x_i − m_i| ≤ s_i
        rows += [({i: 1.0, n + i: -1.0}, -np.inf, ball.centre[i]), ({i: -1.0, n + i: -1.0}, -np.inf, -ball.centre[i])]
    rows.append(({n + i: 1.0 for i in range(n)}, -np.inf, float(ball.radius)))
    columns = list(range(n))
    for k, node in enumerate(network.nodes[1:], start=1):
        a, b = enclosure.lower[k].flatten().tolist(), enclosure.upper[k].flatten().tolist()
        new = list(range(len(low), len(low) + len(a)))
        low, high, integer = low + a, high + b, integer + [0] * len(a)
        if isinstance(node.op, Linear):
            assert node.op.bias is not None
            for i, (w, c) in enumerate(zip(node.op.weight.tolist(), node.op.bias.tolist(), strict=True)):
                rows.append(({new[i]: 1.0} | {j: -v for j, v in zip(columns, w, strict=True)}, c, c))
        else:
            assert isinstance(node.op, Relu)
            before = enclosure.lower[k - 1].flatten().tolist(), enclosure.upper[k - 1].flatten().tolist()
            for y, x, a, b in zip(new, columns, *before, strict=True):
                z = len(low)
                low, high, integer = [*low, 0.0], [*high, 1.0], [*integer, 1]
                a, b = min(a, 0.0), max(b, 0.0)
                rows += [({y: 1.0, x: -1.0}, 0.0, np.inf), ({y: 1.0, x: -1.0, z: -a}, -np.inf, -a)]
                rows.append(({y: 1.0, z: -b}, -np.inf, 0.0))
        columns = new
    matrix = np.zeros((len(rows), len(low)))
    for r, (terms, _, _) in enumerate(rows):
        for j, v in terms.items():
            matrix[r, j] += v
    cost = np.zeros(len(low))
    cost[columns[0]] = 1.0
    limits = LinearConstraint(matrix, [r[1] for r in rows], [r[2] for r in rows])
    solved = milp(cost, integrality=np.array(integer), bounds=Bounds(low, high), constraints=limits)
    assert solved.success
    return float(solved.fun)


def test_in_l1_verdicts_are_those_of_an_exact_solver() -> None:
    rng = np.random.default_rng(0)
    for _ in range(40):
        network = random_fc(rng, (int(rng.integers(2, 6)), 6, 5, 1))
        x = rng.uniform(size=network.inputs)
        ball = Ball.around(x, Fraction(float(rng.uniform(0.2, 1.5))), "1", low=0.0, high=1.0)
        least, model = least_in_l1(network, ball), model_of(network)
        assert verify(model, below(ball, least - 1e-3), Options(timeout=30.0)).status == "unsat"
        found = verify(model, below(ball, least + 1e-3), Options(timeout=30.0))
        assert found.status == "sat" and found.counterexample is not None
        assert ball.contains(found.counterexample.x)


def test_in_l2_verdicts_are_those_of_a_fine_grid() -> None:
    """Two inputs: the least output over a grid of the disc within the box, finer than a margin of 1e-2 needs."""
    rng = np.random.default_rng(1)
    decided = 0
    for _ in range(40):
        network = random_fc(rng, (2, 8, 6, 1))
        x = rng.uniform(size=2)
        ball = Ball.around(x, Fraction(float(rng.uniform(0.2, 0.8))), "2", low=0.0, high=1.0)
        angle, radius = np.meshgrid(
            np.linspace(0, 2 * np.pi, 721), np.linspace(0, float(ball.radius) * (1 - 1e-9), 200)
        )
        disc = ball.centre + np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(-1, 2)
        disc = np.clip(disc, ball.lower, ball.upper)  # which leads nearer to the centre
        least, model = float(network.forward(torch.from_numpy(disc)).min()), model_of(network)
        low = verify(model, below(ball, least - 2e-2), Options(timeout=30.0))
        high = verify(model, below(ball, least + 1e-3), Options(timeout=30.0))
        assert low.status != "sat" and high.status != "unsat"
        decided += (low.status == "unsat") + (high.status == "sat")
        if high.counterexample is not None:
            assert ball.contains(high.counterexample.x)
    assert decided >= 78


@pytest.mark.parametrize("norm", ["1", "2"])
def test_what_is_proved_of_many_networks_no_attack_breaks(norm: Norm) -> None:
    rng = np.random.default_rng(2)
    statuses = []
    for _ in range(60):
        network = random_fc(rng, (8, 10, 10, 1))
        ball = Ball.around(rng.uniform(size=8), Fraction(float(rng.uniform(0.1, 0.6))), norm, low=0.0, high=1.0)
        model, at = model_of(network), float(network.forward(torch.from_numpy(ball.centre)[None]))
        prop = below(ball, at - float(rng.uniform(0.05, 0.4)))
        statuses.append(verify(model, prop, Options(timeout=20.0, quick_attack=None)).status)
        balls = Balls.of([ball])
        directions = torch.from_numpy(rng.normal(size=(500, 8)))
        points = torch.cat([balls.parted(directions).x, balls.sample(torch.from_numpy(rng.uniform(-1, 1, (500, 8))))])
        attack = ATTACKS["pgd"](steps=60, restarts=10)
        found = attack.run(Objective(network, prop.regions), generator=torch.Generator().manual_seed(0))
        lowest = min(float(network.forward(points).min()) + float(prop.regions[0].constant[0]), float(found.values))
        if statuses[-1] == "unsat":
            assert lowest > -1e-6
        if lowest < -1e-4:
            assert statuses[-1] == "sat"
    assert {"unsat", "sat"} <= set(statuses) <= {"unsat", "sat", "unknown"} and statuses.count("unknown") <= 1


@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh, nn.GELU])
def test_smooth_activations_over_balls(norm: Norm, activation: type[nn.Module]) -> None:
    """Nothing below a bound, and verdicts that agree with many points."""
    torch.manual_seed(0)
    rng, statuses = np.random.default_rng(6), []
    for _ in range(6):
        module = nn.Sequential(nn.Linear(5, 8), activation(), nn.Linear(8, 6), activation(), nn.Linear(6, 1)).eval()
        with torch.no_grad():
            for p in module.parameters():
                p.mul_(2.0)
        model = surebound.load(module, input_shape=(5,))  # type: ignore[operator]
        ball = Ball.around(rng.uniform(size=5).astype(np.float32), Fraction(1, 2), norm, low=0.0, high=1.0)
        balls = Balls.of([ball])
        x = torch.cat(
            [
                balls.parted(torch.from_numpy(rng.normal(size=(2000, 5)))).x,
                balls.sample(torch.rand(2000, 5).double() * 2 - 1),
            ]
        )
        values = model.network.forward(x)
        for method in ("interval", "crown"):
            found = surebound.bounds(model, ball, method=method)  # type: ignore[operator]
            assert bool((values >= found.lower[-1] - 1e-9).all()) and bool((values <= found.upper[-1] + 1e-9).all())
        least = float(values.min())
        low = verify(model, below(ball, least - 0.05), Options(timeout=20.0))
        high = verify(model, below(ball, least + 1e-3), Options(timeout=20.0))
        assert low.status in ("unsat", "unknown", "timeout") and high.status in ("sat", "unknown", "timeout")
        statuses += [low.status, high.status]
    assert statuses.count("unsat") >= 4 and statuses.count("sat") >= 5


def test_branching_of_inputs_and_proofs_are_refused() -> None:
    model = model_of(random_fc(np.random.default_rng(0), (2, 3, 2)))
    problem = Robustness(np.full(2, 0.5), 0, "1/4", norm=2)
    with pytest.raises(UsageError, match="bisects boxes"):
        surebound.verify(model, problem, branching="input")  # type: ignore[operator]
    with pytest.raises(UsageError, match="no proofs over"):
        surebound.verify(model, problem, proof=True)  # type: ignore[operator]


@pytest.mark.parametrize("norm", ["1", "2"])
def test_a_point_near_the_border_is_moved_inside(norm: Norm) -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        x = rng.uniform(size=50).astype(np.float32)
        ball = Ball.around(x, Fraction(float(rng.uniform(1e-3, 1))), norm, low=0.0, high=1.0)
        border = Balls.of([ball]).parted(torch.from_numpy(rng.normal(size=(1, 50)))).x[0].numpy()
        inside = ball.nearest(border)
        assert inside is not None and ball.contains(inside)
        assert (inside.astype(np.float32) == inside).all()
        assert np.abs(inside - border).max() <= 2e-3 * float(ball.radius) + 1e-7


def test_a_ball_that_holds_no_float32_has_no_counterexample() -> None:
    ball = Ball.around(np.array([0.1, 0.2]), Fraction(1, 10**12), "2")
    assert ball.nearest(ball.centre) is None


@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("method", ["pgd", "mi-fgsm"])
def test_attacks_stay_in_the_ball_and_get_far(norm: Norm, method: str) -> None:
    """On a linear function the least value is known."""
    rng = np.random.default_rng(4)
    for _ in range(10):
        network = random_fc(rng, (30, 1))
        ball = Ball.around(rng.uniform(size=30).astype(np.float32), Fraction(1, 2), norm, low=0.0, high=1.0)
        prop = below(ball, -100.0)  # nowhere
        attack = ATTACKS[method](steps=100, restarts=4)
        found = attack.run(Objective(network, prop.regions), generator=torch.Generator().manual_seed(0))
        point = found.points[0].double()
        assert Ball.around(ball.centre, ball.radius * Fraction(1001, 1000), norm).contains(point.numpy())
        op = network.nodes[1].op
        assert isinstance(op, Linear)
        best = Balls.of([ball]).parted(-op.weight).x
        least, start = (float(network.forward(x.reshape(1, -1))) for x in (best, torch.from_numpy(ball.centre)))
        assert float(network.forward(point[None])) <= start + (0.97 if norm == "2" else 0.9) * (least - start)


def test_digits_in_all_norms_by_the_public_interface(tmp_path: Path) -> None:
    net = surebound.load(write(small_digits(), tmp_path))  # type: ignore[operator]
    x, y = load_dataset("digits").test.take(range(12))
    for norm, eps in ((2, "1/4"), (1, "1/2"), ("inf", "1/50")):
        seen = set()
        for image, label in zip(x.double().numpy(), y.tolist(), strict=True):
            problem = Robustness(image, label, eps, norm=norm)
            verdict = surebound.verify(net, problem, timeout=30)  # type: ignore[operator]
            seen.add(verdict.status)
            if verdict.counterexample is not None:
                assert problem.domain().contains(verdict.counterexample.x)
        assert seen == {"sat", "unsat"}


def test_workers_share_a_search_over_a_ball() -> None:
    rng = np.random.default_rng(5)
    network = random_fc(rng, (20, 30, 30, 1))
    ball = Ball.around(rng.uniform(size=20), Fraction(3, 4), "2", low=0.0, high=1.0)
    least = float(network.forward(Balls.of([ball]).sample(torch.from_numpy(rng.uniform(-1, 1, (2000, 20))))).min())
    options = Options(timeout=10.0, workers=2, early_stop=False)
    assert verify(model_of(network), below(ball, least - 0.02), options).status in ("unsat", "sat", "timeout")

"""The Planet LP, the MILP and leaf multipliers against SciPy's LPs over all ReLU patterns, samples and rationals."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from exact import exact_output
from minima import affine_blocks, milp_minimum, planet_bounds
from networks import (
    Builder,
    pre_activations,
    random_box,
    random_conv,
    random_fc,
    random_pool,
    random_residual,
    sample,
)
from numpy.typing import NDArray
from one_by_one import U, add_one_by_one, losing
from scipy.optimize import linprog
from torch import Tensor

from surebound.bounds.enclosure import enclose
from surebound.bounds.planet_lp import (
    System,
    _refuted,
    affine_rows,
    leaf_multipliers,
    milp,
    planet_lp,
)
from surebound.network.graph import Network
from surebound.network.linear import Linear
from surebound.problem import Box

Pattern = dict[int, NDArray[np.int8]]


def tiny_residual(rng: np.random.Generator) -> Network:
    """2 → 3 → [ReLU → 3, + skip] → ReLU → 2, minus a skip from the input."""
    build = Builder(rng, (2,))
    stem = build.linear(0, 3)
    joined = build.plus(build.linear(build.relu(stem), 3), stem)
    build.plus(build.linear(build.relu(joined), 2), build.linear(0, 2), -1.0)
    return build.network()


TINY = {
    "fc": lambda rng: random_fc(rng, (2, 4, 3, 2)),
    "wide": lambda rng: random_fc(rng, (3, 6, 2)),
    "residual": tiny_residual,
}
SMALL = {"conv": random_conv, "residual": random_residual, "pool": random_pool}


def patterns(network: Network) -> list[Pattern]:
    widths = [network.width(k) for k in range(len(network.layers))]
    found = []
    for signs in product((-1, 1), repeat=sum(widths)):
        parts = np.split(np.array(signs, dtype=np.int8), np.cumsum(widths)[:-1])
        found.append(dict(enumerate(parts)))
    return found


def pattern_minimum(network: Network, lower: Tensor, upper: Tensor, c: NDArray[np.float64], pattern: Pattern) -> float:
    """min c · f(x) where the ReLUs follow a pattern: the affine maps are read off by forward passes of unit vectors."""
    n = network.inputs
    probes = torch.cat([torch.zeros(1, n), torch.eye(n)]).double().reshape(n + 1, *network.input_shape)
    recorded = []

    def activate(k: int, xhat: Tensor) -> Tensor:
        recorded.append(xhat.flatten(1).numpy())
        return xhat * torch.from_numpy(pattern[k] > 0).double().reshape(xhat.shape[1:])

    output = network.trace(probes, activate).flatten(1).numpy()
    xhat, sign = np.concatenate(recorded, 1), np.concatenate([pattern[k] for k in range(len(network.layers))])
    # −s x̂ ≤ 0 with x̂ = x̂(0) + Σ_i x_i (x̂(e_i) − x̂(0))
    result = linprog(
        (output[1:] - output[0]) @ c,
        A_ub=-(xhat[1:] - xhat[0]).T * sign[:, None],
        b_ub=sign * xhat[0],
        bounds=np.stack([lower.flatten().numpy(), upper.flatten().numpy()], 1),
    )
    return float(result.fun + output[0] @ c) if result.status == 0 else np.inf


def interval_layers(network: Network, lower: Tensor, upper: Tensor) -> list[tuple[Tensor, Tensor]]:
    enclosure = enclose(network, lower, upper)
    return [(low[0], high[0]) for low, high in map(enclosure.layer, range(len(network.layers)))]


def as_box(lower: Tensor, upper: Tensor) -> Box:
    return Box(lower.flatten().numpy(), upper.flatten().numpy())


def test_affine_blocks_reproduce_the_pre_activations(rng: np.random.Generator) -> None:
    for make in (*TINY.values(), *SMALL.values()):
        network = make(rng)
        x = torch.from_numpy(rng.normal(size=(5, *network.input_shape)))
        values = [value.numpy() for value in pre_activations(network, x)]
        for block, expected in zip(affine_blocks(network), values, strict=True):
            got = x.flatten(1).numpy() @ block.on_input.T + block.constant
            for k, weight in block.on_layers.items():
                got = got + np.maximum(values[k], 0.0) @ weight.T
            np.testing.assert_allclose(got, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_milp_equals_all_patterns(name: str, rng: np.random.Generator) -> None:
    for _ in range(2):
        network = TINY[name](rng)
        lower, upper = random_box(rng, network, radius=1.5)
        c = rng.normal(size=network.outputs)
        every = patterns(network)
        least = [pattern_minimum(network, lower, upper, c, pattern) for pattern in every]
        found = milp_minimum(network, as_box(lower, upper), c, 0.25)
        assert found.value == pytest.approx(min(least) + 0.25, abs=1e-7)
        assert found.bound == pytest.approx(found.value, abs=1e-7)
        at_x = network.forward(torch.from_numpy(found.x).reshape(1, *network.input_shape)).flatten().numpy()
        assert c @ at_x + 0.25 == pytest.approx(found.value, abs=1e-6)

        split: Pattern = {0: np.zeros(network.width(0), dtype=np.int8)}
        split[0][0], split[0][-1] = 1, -1
        consistent = [v for v, p in zip(least, every, strict=True) if p[0][0] == 1 and p[0][-1] == -1]
        constrained = milp_minimum(network, as_box(lower, upper), c, 0.0, splits=split)
        assert constrained.value == pytest.approx(min(consistent), abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_fully_split_planet_equals_the_pattern(name: str, rng: np.random.Generator) -> None:
    network = TINY[name](rng)
    lower, upper = random_box(rng, network, radius=1.5)
    layers = interval_layers(network, lower, upper)
    c = rng.normal(size=network.outputs)
    feasible = 0
    for pattern in patterns(network):
        expected = pattern_minimum(network, lower, upper, c, pattern)
        found = planet_bounds(network, lower, upper, layers, torch.from_numpy(c)[None], splits=pattern)
        assert found.value[0] == pytest.approx(expected, abs=1e-7)
        assert found.bound[0] == pytest.approx(expected, abs=1e-7)
        feasible += np.isfinite(expected)
    assert 2 <= feasible < len(patterns(network))


def planet_by_scipy(network: Network, lower: Tensor, upper: Tensor, layers: list[tuple[Tensor, Tensor]]) -> float:
    """Eq. 12 for the first output of a fully connected network, written out with variables x_0, x̂_1, x_1, x̂_2, …"""
    linear = [node.op for node in network.nodes if isinstance(node.op, Linear)]
    weights = [(op.weight.numpy(), op.bias.numpy()) for op in linear]
    bounds = list(zip(lower.flatten().tolist(), upper.flatten().tolist(), strict=True))
    columns = len(bounds) + 2 * sum(len(low) for low, _ in layers)
    equal, equal_to, most, most_is = [], [], [], []

    def row(*terms: tuple[int, float]) -> NDArray[np.float64]:
        values = np.zeros(columns)
        for column, value in terms:
            values[column] += value
        return values

    source = list(range(len(bounds)))
    for (weight, bias), (low, high) in zip(weights[:-1], layers, strict=True):
        width = len(bias)
        before = list(range(len(bounds), len(bounds) + width))
        after = list(range(len(bounds) + width, len(bounds) + 2 * width))
        bounds += [*zip(low.tolist(), high.tolist(), strict=True), *[(None, None)] * width]
        for i in range(width):
            a, b = float(low[i]), float(high[i])
            equal.append(row((before[i], 1.0), *((s, -w) for s, w in zip(source, weight[i], strict=True))))
            equal_to.append(bias[i])
            if a < 0 < b:
                most += [row((after[i], -1.0)), row((before[i], 1.0), (after[i], -1.0))]
                most += [row((after[i], 1.0), (before[i], -b / (b - a)))]
                most_is += [0.0, 0.0, -a * b / (b - a)]
            else:
                equal.append(row((after[i], 1.0), (before[i], -1.0 if a >= 0 else 0.0)))
                equal_to.append(0.0)
        source = after
    cost = row(*zip(source, weights[-1][0][0], strict=True))
    result = linprog(cost, np.reshape(most, (-1, columns)), most_is, np.array(equal), equal_to, bounds)
    return float(result.fun + weights[-1][1][0])


@pytest.mark.parametrize("name", ["fc", "wide"])
def test_planet_equals_scipy(name: str, rng: np.random.Generator) -> None:
    for _ in range(4):
        network = TINY[name](rng)
        lower, upper = random_box(rng, network, radius=1.0)
        layers = interval_layers(network, lower, upper)
        found = planet_bounds(network, lower, upper, layers, torch.eye(network.outputs)[:1], torch.tensor([2.0]))
        expected = planet_by_scipy(network, lower, upper, layers) + 2.0
        assert found.value[0] == pytest.approx(expected, abs=1e-7)
        assert expected - 1e-7 < found.bound[0] <= expected + 1e-12


@pytest.mark.parametrize("name", SMALL)
def test_planet_below_milp_below_samples(name: str, rng: np.random.Generator) -> None:
    network = SMALL[name](rng)
    lower, upper = random_box(rng, network, radius=0.2)
    rows = torch.from_numpy(rng.normal(size=(2, network.outputs)))
    ranges = planet_lp(network, lower, upper)
    layers = [(low[0], high[0]) for low, high in zip(ranges.lower[:-1], ranges.upper[:-1], strict=True)]
    planet = planet_bounds(network, lower, upper, layers, rows)
    loose = planet_bounds(network, lower, upper, (), rows)
    values = pre_activations(network, sample(rng, lower[0], upper[0], 10_000))[-1] @ rows.T
    assert (loose.bound <= planet.bound + 1e-9).all()
    assert (planet.bound <= planet.value + 1e-12).all()
    assert (planet.bound > planet.value - 1e-8).all()
    for r in range(2):
        exact = milp_minimum(network, as_box(lower, upper), rows[r].numpy(), 0.0, layers)
        assert planet.bound[r] <= exact.value + 1e-8
        assert exact.value <= values[:, r].min() + 1e-8
        assert exact.value - loose.value[r] > 1e-3  # so that the comparison says something


def test_splits_tighten_and_cover(rng: np.random.Generator) -> None:
    """Splitting a neuron never loosens the relaxation, and the worse half never exceeds the true minimum."""
    network = random_residual(rng)
    lower, upper = random_box(rng, network, radius=0.3)
    layers = interval_layers(network, lower, upper)
    rows = torch.from_numpy(rng.normal(size=(1, network.outputs)))
    whole = planet_bounds(network, lower, upper, layers, rows).bound[0]
    exact = milp_minimum(network, as_box(lower, upper), rows[0].numpy(), 0.0, layers).value
    gains = []
    for k, (low, high) in enumerate(layers):
        for j in torch.nonzero((low < 0) & (high > 0)).flatten().tolist()[:3]:
            halves = []
            for sign in (-1, 1):
                split = {k: np.zeros(len(low), dtype=np.int8)}
                split[k][j] = sign
                halves.append(planet_bounds(network, lower, upper, layers, rows, splits=split).bound[0])
            assert whole - 1e-9 <= min(halves) <= exact + 1e-8
            gains.append(min(halves) - whole)
    assert max(gains) > 1e-3


@pytest.mark.parametrize("make", [*TINY.values(), *SMALL.values()])
def test_planet_lp_contains_samples_and_refines_intervals(make, rng: np.random.Generator) -> None:
    network = make(rng)
    lower, upper = random_box(rng, network, boxes=2, radius=0.3)
    bounds = planet_lp(network, lower, upper)
    intervals = enclose(network, lower, upper)
    for b in range(2):
        values = pre_activations(network, sample(rng, lower[b], upper[b], 10_000))
        for k, value in enumerate(values):
            node = network.output if k == len(network.layers) else network.before(k)
            assert (bounds.lower[k][b] <= value).all()
            assert (value <= bounds.upper[k][b]).all()
            assert (bounds.lower[k][b] >= intervals.lower[node][b].flatten() - 1e-9).all()
            assert (bounds.upper[k][b] <= intervals.upper[node][b].flatten() + 1e-9).all()
    assert (bounds.lower[-1] > intervals.lower[network.output].flatten(1) + 1e-3).any()


@pytest.mark.slow
def test_milp_ranges_are_exact_on_every_layer(rng: np.random.Generator) -> None:
    network = tiny_residual(rng)
    lower, upper = random_box(rng, network, radius=1.0)
    ranges = milp(network, lower, upper)
    relaxed = planet_lp(network, lower, upper)
    every = patterns(network)
    for k, node in enumerate([network.before(0), network.before(1), network.output]):
        inner = Network(network.nodes, node)
        unit = np.eye(inner.outputs)
        low = [min(pattern_minimum(inner, lower, upper, c, pattern) for pattern in every) for c in unit]
        high = [-min(pattern_minimum(inner, lower, upper, -c, pattern) for pattern in every) for c in unit]
        np.testing.assert_allclose(ranges.lower[k][0], low, rtol=0, atol=1e-7)
        np.testing.assert_allclose(ranges.upper[k][0], high, rtol=0, atol=1e-7)
        assert (relaxed.lower[k] <= ranges.lower[k] + 1e-9).all()
        assert (relaxed.upper[k] >= ranges.upper[k] - 1e-9).all()


def test_milp_without_time_claims_nothing(rng: np.random.Generator) -> None:
    network = random_conv(rng)
    lower, upper = random_box(rng, network, radius=1.0)
    c = rng.normal(size=network.outputs)
    stopped = milp_minimum(network, as_box(lower, upper), c, 0.0, time_limit=0.0)
    values = pre_activations(network, sample(rng, lower[0], upper[0], 1_000))[-1].numpy() @ c
    assert stopped.bound <= values.min()
    assert np.isnan(stopped.value) or stopped.bound < stopped.value


def test_contradicting_splits_are_infeasible(rng: np.random.Generator) -> None:
    """Two equal neurons on different sides of 0 (by an LP), and a stable neuron on its other side (by its bounds)."""
    weight = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 0.0]], dtype=torch.float64)
    build = Builder(rng, (2,))
    hidden = build.add(Linear(weight, torch.tensor([0.0, -0.25, 9.0], dtype=torch.float64)), 0)
    build.linear(build.relu(hidden), 1)
    network, lower, upper = build.network(), -torch.ones(1, 2), torch.ones(1, 2)
    for signs in ([-1, 1, 0], [0, 0, -1]):
        split = {0: np.array(signs, dtype=np.int8)}
        found = planet_bounds(network, lower, upper, (), torch.eye(1), splits=split)
        assert found.value[0] == np.inf
        assert found.bound[0] == np.inf
        assert np.isnan(found.x).all()
        assert milp_minimum(network, as_box(lower, upper), np.ones(1), 0.0, splits=split).value == np.inf


def test_bounds_hold_in_exact_arithmetic(rng: np.random.Generator) -> None:
    """On single points rounding is all there is: the exact rational value lies inside, and the bounds are close."""
    for _ in range(20):
        network = random_fc(rng, (4, 6, 6, 1))
        x = torch.from_numpy(rng.normal(size=(1, 4)) * 100.0)
        values = [Fraction(v) for v in x[0].tolist()]
        for node in network.nodes[1:]:
            if isinstance(node.op, Linear):
                values = [
                    sum((Fraction(w) * v for w, v in zip(row, values, strict=True)), Fraction(b))
                    for row, b in zip(node.op.weight.tolist(), node.op.bias.tolist(), strict=True)
                ]
            else:
                values = [max(v, Fraction(0)) for v in values]
        bounds = planet_lp(network, x, x)
        low, high = bounds.lower[-1].item(), bounds.upper[-1].item()
        assert Fraction(low) <= values[0] <= Fraction(high)
        assert high - low < 1e-9


def test_coefficients_that_lose_are_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """y = 4 − x − u x − u x − …, directly and through a ReLU that is active: added up one by one x keeps its 1."""
    add_one_by_one(monkeypatch)
    count = 1000
    for relu in (False, True):
        build = Builder(np.random.default_rng(0), (1,))
        copies = build.add(Linear(torch.ones(count + 1, 1, dtype=torch.float64)), 0)
        last = Linear(-losing(count)[None], torch.tensor([4.0], dtype=torch.float64))
        node = build.add(last, copies)
        if relu:
            build.relu(node)
        ends = (torch.full((1, 1), end, dtype=torch.float64) for end in (1.0, 1.5))
        found = planet_bounds(build.network(), *ends, (), torch.eye(1))
        least = 4 - Fraction(3, 2) * (1 + count * Fraction(U))
        assert Fraction(found.bound[0]) <= least
        assert found.bound[0] == pytest.approx(2.5, abs=1e-11)


def test_a_dual_bound_is_not_rounded_up() -> None:
    """min −v₀ − u v₁ − u v₂ − … over [0, 1]ⁿ, of which NumPy's sum loses the terms beside the first."""
    count = 1000
    blank, index = np.zeros(0), np.zeros(0, dtype=np.int64)
    ends = np.zeros(count + 1), np.ones(count + 1)
    system = System(*ends, blank, blank, blank, index, index, blank, index, ())
    cost = -losing(count).numpy()
    least = -(1 + count * Fraction(U))
    assert Fraction(float(cost.sum())) > least + 4 * Fraction(U)
    assert Fraction(system.dual_bound(cost, blank)) <= least


def test_a_ray_has_to_prove_what_it_says(rng: np.random.Generator) -> None:
    """0 ≤ v₀ − v₁ ≤ 1 over [0, 1]² has solutions, whatever a solver's ray says; v₀ − v₁ ≥ 2 has none."""

    class Solver:
        def __init__(self, ray: float) -> None:
            self.ray = ray

        def getDualRay(self) -> tuple[None, bool, list[float]]:
            return None, True, [self.ray]

    row, column, value = np.zeros(2, dtype=np.int64), np.arange(2), np.array([1.0, -1.0])
    none = np.zeros(0, dtype=np.int64)
    for low, high, refuted in ((0.0, 1.0, False), (2.0, 3.0, True), (1.0, 1.0, False)):
        ends = (np.zeros(2), np.ones(2), np.array([low]), np.array([high]))
        system = System(*ends, np.zeros(1), row, column, value, none, ())
        for ray in (1.0, -1.0, 1e-9, 1e9):
            assert _refuted(system, Solver(ray)) == refuted  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(4))
def test_coefficients_that_underflow_are_paid_for(seed: int) -> None:
    """x̂ = 1e-320 x for x up to 1e38, by eight weights that float32 holds: the coefficient has few bits."""
    rng = np.random.default_rng(seed)
    build, node = Builder(rng, (1,)), 0
    for _ in range(8):
        weight = torch.full((1, 1), float(np.float32(10.0 ** -rng.uniform(39.7, 40.3))), dtype=torch.float64)
        node = build.add(Linear(weight), node)
    network = build.network()
    ends = (torch.full((1, 1), end, dtype=torch.float64) for end in (-1e38, 1e38))
    enclosure = enclose(network, *ends)
    rows = affine_rows(network, network.output, None, enclosure.errors)
    found = Fraction(float(rows.on_input[0, 0])) * Fraction(1e38)
    assert abs(found - exact_output(network, [1e38])[0]) <= Fraction(float(rows.error[0]))


def leaf(rng: np.random.Generator, n: int, splits: int, rows: int, margin: float) -> dict[str, NDArray[np.float64]]:
    """Random splits that all hold at some point of the box, and rows that equal `margin` there."""
    lower, upper = -rng.uniform(size=n), rng.uniform(size=n)
    x = rng.uniform(lower, upper)
    A, b = rng.normal(size=(splits, n)), rng.normal(size=splits)
    C = rng.normal(size=(rows, n))
    problem = {"preactivations": A, "offsets": b, "signs": np.sign(A @ x + b), "rows": C, "constants": margin - C @ x}
    return {**problem, "lower": lower, "upper": upper}


@pytest.mark.parametrize(("n", "splits", "rows"), [(2, 3, 1), (5, 0, 1), (8, 12, 3), (40, 60, 9), (500, 500, 4)])
def test_leaf_multipliers_prove_their_value(n: int, splits: int, rows: int, rng: np.random.Generator) -> None:
    problem = leaf(rng, n, splits, rows, margin=0.1)
    found = leaf_multipliers(**problem)
    assert found is not None
    assert found.pi.shape == (rows,)
    assert found.beta.shape == (splits,)
    assert (found.pi >= 0).all()
    assert (found.beta >= 0).all()
    assert found.pi.sum() + found.beta.sum() == pytest.approx(1.0, abs=1e-12)
    signed = problem["signs"] * found.beta
    slope = found.pi @ problem["rows"] - signed @ problem["preactivations"]
    constant = found.pi @ problem["constants"] - signed @ problem["offsets"]
    centre, radius = (problem["upper"] + problem["lower"]) / 2, (problem["upper"] - problem["lower"]) / 2
    assert slope @ centre - np.abs(slope) @ radius + constant == pytest.approx(found.value, abs=1e-7)
    # attained: the primal objective at x is the same number
    r = problem["rows"] @ found.x + problem["constants"]
    violated = -problem["signs"] * (problem["preactivations"] @ found.x + problem["offsets"])
    assert np.concatenate([r, violated]).max() == pytest.approx(found.value, abs=1e-7)
    assert (problem["lower"] <= found.x).all()
    assert (found.x <= problem["upper"]).all()


def test_leaf_with_a_counterexample_has_a_value_below_zero(rng: np.random.Generator) -> None:
    for _ in range(10):
        problem = leaf(rng, 6, 10, 2, margin=-0.05)
        found = leaf_multipliers(**problem)
        assert found is not None
        assert found.value < 0
        assert (problem["rows"] @ found.x + problem["constants"] < 0).all()
        assert (problem["signs"] * (problem["preactivations"] @ found.x + problem["offsets"]) > 0).all()


def test_leaf_without_one_has_a_value_above_zero() -> None:
    """x ≥ ¼ from the split and x + ¼ ≤ 0 from the row: t* = ¼ at x = 0, with equal multipliers."""
    found = leaf_multipliers(
        preactivations=np.ones((1, 1)), offsets=np.array([-0.25]), signs=np.ones(1),
        rows=np.ones((1, 1)), constants=np.array([0.25]), lower=-np.ones(1), upper=np.ones(1),
    )  # fmt: skip
    assert found is not None
    assert found.value == pytest.approx(0.25, abs=1e-9)
    np.testing.assert_allclose(np.concatenate([found.x, found.pi, found.beta]), [0.0, 0.5, 0.5], rtol=0, atol=1e-9)


def test_empty_leaf_has_a_value_above_zero() -> None:
    """x ≥ ½ and x ≤ −½ exclude each other, whatever the row says."""
    found = leaf_multipliers(
        preactivations=np.ones((2, 1)), offsets=np.array([-0.5, 0.5]), signs=np.array([1.0, -1.0]),
        rows=np.zeros((1, 1)), constants=np.array([-9.0]), lower=-np.ones(1), upper=np.ones(1),
    )  # fmt: skip
    assert found is not None
    assert found.value == pytest.approx(0.5, abs=1e-9)
    assert found.pi[0] == pytest.approx(0.0, abs=1e-9)


def test_leaf_out_of_time_is_none(rng: np.random.Generator) -> None:
    problem = leaf(rng, 600, 500, 4, margin=0.1)
    assert leaf_multipliers(**problem, time_limit=0.0) is None

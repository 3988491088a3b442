"""Every attack of the registry keeps the same promises; the objective and each update rule match their formulas."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from networks import Builder, random_conv, random_fc, random_pool, random_residual
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor

from surebound.attacks import ATTACKS
from surebound.attacks.descent import AttackResult
from surebound.attacks.mi_fgsm import MIFGSM
from surebound.attacks.objective import Objective
from surebound.attacks.pgd import PGD
from surebound.domain.sets import round_inward
from surebound.errors import PropertyError, UsageError
from surebound.network.conv import Conv
from surebound.network.graph import Network, Relu
from surebound.network.linear import Linear, Shift, Sum
from surebound.network.shape import Pick, Reshape
from surebound.problem import Box, Region

Array = NDArray[Any]
SETTINGS: dict[str, dict[str, Any]] = {"pgd": {"steps": 20, "restarts": 6}, "mi-fgsm": {"steps": 40, "restarts": 8}}
NETWORKS: dict[str, Callable[[np.random.Generator], Network]] = {
    "fc": lambda rng: random_fc(rng, (4, 10, 8, 3)),
    "conv": random_conv,
    "residual": random_residual,
    "pool": random_pool,
}
every_attack = pytest.mark.parametrize("name", list(ATTACKS))
every_network = pytest.mark.parametrize("kind", list(NETWORKS))


def evaluate(network: Network, x: Array) -> Array:
    """f(x) of one point, in float64 and NumPy, from the definitions of the operations."""
    values = [np.asarray(x, dtype=np.float64).reshape(network.input_shape)]
    for node in network.nodes[1:]:
        op, a = node.op, [values[i] for i in node.inputs]
        match op:
            case Relu():
                y = np.maximum(a[0], 0.0)
            case Linear():
                y = op.weight.double().numpy() @ a[0]
            case Conv():
                p, s, w = op.padding[0], op.stride[0], op.weight.double().numpy()
                windows = sliding_window_view(np.pad(a[0], ((0, 0), (p, p), (p, p))), w.shape[2:], axis=(1, 2))
                y = np.einsum("ihwkl,oikl->ohw", windows[:, ::s, ::s], w)
            case Shift():
                y = a[0]
            case Sum():
                y = sum(s * v for s, v in zip(op.signs.tolist(), a, strict=True))
            case Reshape():
                y = a[0].reshape(op.shape)
            case Pick():
                y = a[0].reshape(-1)[op.index.numpy()]
            case _:
                raise AssertionError(f"unexpected {op}")
        values.append(y if isinstance(op, Relu) or op.bias is None else y + op.bias.double().numpy())
    return values[network.output].reshape(-1)


def value_of(network: Network, region: Region, x: Array) -> float:
    """v(x) in float64 and NumPy."""
    rows = region.on_output @ evaluate(network, x) + region.constant
    if region.on_input is not None:
        rows = rows + region.on_input @ x
    return float(rows.max(initial=-np.inf))


def random_region(
    rng: np.random.Generator, network: Network, *, rows: int = 2, radius: float = 0.3, on_input: bool = False
) -> Region:
    """Random rows over a random box, some of whose inputs are fixed."""
    lower = rng.normal(size=network.inputs) - radius * rng.uniform(size=network.inputs)
    upper = lower + radius * rng.uniform(size=network.inputs)
    fixed = rng.uniform(size=network.inputs) < 0.2
    lower[fixed] = upper[fixed] = lower[fixed].astype(np.float32)
    return Region(
        box=Box(lower, upper),
        on_output=rng.normal(size=(rows, network.outputs)),
        on_input=rng.normal(size=(rows, network.inputs)) if on_input else None,
        constant=rng.normal(size=rows) + 1.0,
        strict=np.zeros(rows, dtype=bool),
    )


def unit_region(inputs: int, outputs: int, *, row: Array | None = None, constant: float = 0.0) -> Region:
    """One row (the first output unless given) over [−1, 1]^inputs."""
    row = np.eye(1, outputs) if row is None else row
    ends = np.ones(inputs)
    return Region(box=Box(-ends, ends), on_output=row, constant=np.array([constant]), strict=np.zeros(1, dtype=bool))


def cone(target: Array) -> Network:
    """f(x) = Σ_i |x_i − target_i|."""
    n = len(target)
    build = Builder(np.random.default_rng(0), (n,))
    weight, bias = torch.eye(n).repeat(2, 1), torch.from_numpy(target).float().repeat(2)
    signs = torch.cat([torch.ones(n), -torch.ones(n)])
    hidden = build.relu(build.add(Linear(signs[:, None] * weight, -signs * bias), 0))
    build.add(Linear(torch.ones(1, 2 * n)), hidden)
    return build.network()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def run(name: str, objective: Objective, *, seed: int = 0, start: Tensor | None = None, **more: Any) -> AttackResult:
    return ATTACKS[name](**{**SETTINGS[name], **more}).run(objective, generator=seeded(seed), start=start)


def test_listing_the_attacks_does_not_import_torch() -> None:
    code = "import sys; from surebound.attacks import ATTACKS; print(*ATTACKS); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, list(SETTINGS))


# The objective


def test_boxes_are_rounded_inward_and_no_further(rng: np.random.Generator) -> None:
    centre = np.concatenate([rng.normal(size=500), rng.normal(size=500) * 10.0 ** rng.integers(-42, 38, size=500)])
    box = Box(centre - np.abs(centre) * 1e-3, centre + np.abs(centre) * 1e-3)
    lower, upper = round_inward(box)
    assert (lower >= box.lower).all() and (upper <= box.upper).all()
    assert (np.nextafter(lower, np.float32(-np.inf)) < box.lower).all()
    assert (np.nextafter(upper, np.float32(np.inf)) > box.upper).all()


def test_bounds_beyond_float32_are_its_largest_numbers() -> None:
    lower, upper = round_inward(Box(np.array([-1e300, 1.0]), np.array([1e300, 1e39])))
    largest = np.finfo(np.float32).max
    np.testing.assert_array_equal(lower, [-largest, 1.0])
    np.testing.assert_array_equal(upper, [largest, largest])


@every_attack
def test_a_box_without_float32_points_is_not_attacked(name: str) -> None:
    network = cone(np.zeros(2))
    constant, strict = np.array([-9.0]), np.zeros(1, dtype=bool)
    boxes = [Box(np.array([0.1, 0.0]), np.array([0.1, 1.0])), Box(np.array([0.5, 0.0]), np.array([0.5, 1.0]))]
    regions = [Region(box=box, on_output=np.ones((1, 1)), constant=constant, strict=strict) for box in boxes]
    objective = Objective(network, regions)
    assert objective.attackable.tolist() == [False, True]
    result = run(name, objective, stop_at="all")
    assert result.found.tolist() == [False, True]
    assert result.points[0].isnan().all() and result.values[0] == torch.inf

    nearest = run(name, Objective(network, regions, thin="nearest"), stop_at="all")
    assert nearest.found.all() and nearest.points[0, 0] == np.float32(0.1)


@every_network
@pytest.mark.parametrize("on_input", [False, True])
def test_values_and_gradients_equal_numpy_autograd_and_finite_differences(
    kind: str, on_input: bool, rng: np.random.Generator
) -> None:
    network = NETWORKS[kind](rng)
    regions = [random_region(rng, network, rows=rows, on_input=on_input and rows != 2) for rows in (1, 2, 4)]
    objective = Objective(network, regions)
    x = objective.clip(torch.from_numpy(rng.normal(size=(3, 5, network.inputs))).float())
    value, gradient = objective.value_and_gradient(x)
    torch.testing.assert_close(objective.value(x), value)
    for i, region in enumerate(regions):
        for j in range(5):
            point = x[i, j].double().numpy()
            assert float(value[i, j]) == pytest.approx(value_of(network, region, point), rel=1e-4, abs=1e-5)

            leaf = x[i, j].double().requires_grad_()
            rows = torch.from_numpy(region.on_output) @ network.forward(leaf.reshape(1, *network.input_shape)).flatten()
            if region.on_input is not None:
                rows = rows + torch.from_numpy(region.on_input) @ leaf
            (rows + torch.from_numpy(region.constant)).max().backward()
            assert leaf.grad is not None
            torch.testing.assert_close(gradient[i, j].double(), leaf.grad, rtol=1e-4, atol=1e-5)

            direction = rng.normal(size=network.inputs)
            ahead, behind = (value_of(network, region, point + h * direction) for h in (1e-7, -1e-7))
            slope = float(gradient[i, j].double().numpy() @ direction)
            assert (ahead - behind) / 2e-7 == pytest.approx(slope, rel=1e-4, abs=1e-4)


def test_the_gradient_along_a_direction_is_that_of_the_output(rng: np.random.Generator) -> None:
    network = random_conv(rng)
    objective = Objective(network, [random_region(rng, network, on_input=True)] * 2)
    x, w = torch.rand(2, 3, network.inputs), torch.rand(3, network.outputs)
    gradient = objective.value_and_gradient(x, direction=w)[1]
    leaf = x.double().requires_grad_()
    y = network.forward(leaf.reshape(6, *network.input_shape)).reshape(2, 3, -1)
    (y * w).sum().backward()
    torch.testing.assert_close(gradient.double(), leaf.grad, rtol=1e-4, atol=1e-5)


def test_a_conjunction_is_as_far_as_its_worst_row(rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 6, 2))
    box, rows, strict = Box(np.zeros(3), np.ones(3)), np.array([[1.0, -1.0], [2.0, 0.0]]), np.zeros(2, dtype=bool)
    centre = evaluate(network, np.full(3, 0.5))
    both, one, other = (
        Region(box=box, on_output=rows[r], constant=-rows[r] @ centre, strict=strict[r])
        for r in (slice(None), slice(1), slice(1, None))
    )
    x = torch.rand(3, 50, 3)
    x[:] = x[0]
    value = Objective(network, [both, one, other]).value(x)
    torch.testing.assert_close(value[0], value[1:].amax(0))
    assert (value[0] == value[1]).any() and (value[0] == value[2]).any()


def test_zero_is_below_zero_only_where_rows_are_not_strict() -> None:
    network = cone(np.zeros(1))
    box, zero = Box(np.zeros(1), np.ones(1)), np.zeros(2)
    regions = [
        Region(box=box, on_output=np.array([[c], [-1.0]]), constant=zero, strict=np.array([strict, False]))
        for c, strict in ((1.0, False), (1.0, True))
    ]
    value = Objective(network, regions).value(torch.zeros(2, 1, 1))
    assert (value <= 0).reshape(-1).tolist() == [True, False]


def test_a_region_without_rows_is_all_counterexample(rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 6, 2))
    regions = [random_region(rng, network, rows=rows) for rows in (0, 1)]
    assert run("pgd", Objective(network, regions)).found[0]
    assert run("pgd", Objective(network, regions[:1])).found[0]


def test_an_overflow_is_no_counterexample() -> None:
    build = Builder(np.random.default_rng(0), (2,))
    build.add(Linear(torch.full((1, 1), -3e38)), build.relu(build.add(Linear(torch.full((1, 2), 3e38)), 0)))
    network = build.network()
    region = unit_region(2, 1)
    for row in (region.on_output, -region.on_output, 0 * region.on_output):
        objective = Objective(network, [unit_region(2, 1, row=row, constant=1.0)])
        value, gradient = objective.value_and_gradient(torch.ones(1, 1, 2))
        assert value.isnan().sum() == 0 and gradient.isfinite().all()
    assert not (value <= 0).any()


def test_a_region_must_fit_the_network(rng: np.random.Generator) -> None:
    region = random_region(rng, random_fc(rng, (3, 6, 2)))
    with pytest.raises(PropertyError, match="3 inputs and 2 outputs"):
        Objective(random_fc(rng, (4, 6, 2)), [region])


def test_regions_over_one_box_share_it(rng: np.random.Generator) -> None:
    """A thousand regions over a large image would take a gigabyte for each end."""
    network = random_fc(rng, (4, 6, 3))
    first = random_region(rng, network, radius=0.1)
    regions = [first, *(replace(random_region(rng, network), box=first.box) for _ in range(9))]
    shared, alone = Objective(network, regions), [Objective(network, [region]) for region in regions]
    for name in ("lower", "upper", "half_width", "attackable"):
        ends = getattr(shared, name)
        assert ends.stride(0) == 0 and torch.equal(ends, torch.cat([getattr(one, name) for one in alone]))
    middle = shared.middle_values()
    assert middle is not None
    expected = [one.value((one.lower / 2 + one.upper / 2)[:, None]).item() for one in alone]
    torch.testing.assert_close(middle, torch.tensor(expected))
    assert Objective(network, [first, random_region(rng, network)]).middle_values() is None


@every_attack
def test_the_most_promising_region_is_attacked_first(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the regions do not fit into memory together, so that time may run out before the last of them."""
    box = Box(np.full(3, 0.25), np.full(3, 0.5))
    regions = [replace(unit_region(3, 1, constant=constant), box=box) for constant in (5.0, -1.0, 2.0)]
    objective = Objective(cone(np.zeros(3)), regions, wave_bytes=1)
    assert objective.capacity == 1
    taken, take = list[int](), Objective.take

    def spy(self: Objective, group: Tensor) -> Objective:
        taken.extend(group.tolist() if self is objective else [])
        return take(self, group)

    monkeypatch.setattr(Objective, "take", spy)
    result = run(name, objective, restarts=1, diversify=0)
    assert taken == [1] and result.found.tolist() == [False, True, False]


# Every attack


@every_attack
@every_network
def test_points_lie_in_the_box_and_have_the_reported_values(name: str, kind: str, rng: np.random.Generator) -> None:
    network = NETWORKS[kind](rng)
    regions = [random_region(rng, network, rows=1 + i % 3, on_input=i == 2) for i in range(5)]
    result = run(name, Objective(network, regions), stop_at="all")
    assert result.points.dtype == torch.float32
    for region, point, value, found in zip(regions, result.points, result.values, result.found, strict=True):
        x = point.double().numpy()
        assert (x >= region.box.lower).all() and (x <= region.box.upper).all()
        assert float(value) == pytest.approx(value_of(network, region, x), rel=1e-4, abs=1e-5)
        assert bool(found) == (float(value) <= 0)


@every_attack
@every_network
def test_no_attack_ends_worse_than_it_starts(name: str, kind: str, rng: np.random.Generator) -> None:
    network = NETWORKS[kind](rng)
    regions = [random_region(rng, network) for _ in range(4)]
    objective = Objective(network, regions)
    start = objective.clip(torch.from_numpy(rng.normal(size=(4, 3, network.inputs))).float())
    at_start = objective.value(start).amin(1)
    assert (run(name, objective, start=start, stop_at="all").values <= at_start + 1e-6).all()
    stay = run(name, objective, start=start, steps=0, stop_at="all")
    torch.testing.assert_close(stay.values, at_start)
    centre = objective.value(objective.clip((objective.lower / 2 + objective.upper / 2)[:, None]))
    assert (run(name, objective, stop_at="all").values <= centre[:, 0] + 1e-6).all()


@every_attack
def test_the_seed_decides_everything(name: str, rng: np.random.Generator) -> None:
    network = random_conv(rng)
    objective = Objective(network, [random_region(rng, network) for _ in range(3)])
    first, second, other = (run(name, objective, seed=seed, steps=2, stop_at="all") for seed in (1, 1, 2))
    assert torch.equal(first.points, second.points) and torch.equal(first.values, second.values)
    assert not torch.equal(first.points, other.points)


@every_attack
def test_a_batch_of_regions_is_searched_as_each_alone(name: str, rng: np.random.Generator) -> None:
    network = random_fc(rng, (4, 10, 8, 3))
    regions = [random_region(rng, network, rows=1 + i % 3, on_input=i == 3) for i in range(6)]
    together = run(name, Objective(network, regions), stop_at="all")
    for i, region in enumerate(regions):
        alone = run(name, Objective(network, [region]), stop_at="all")
        # Batches round differently, and signs of gradients magnify it. Regions that mixed would be 0.1 apart.
        torch.testing.assert_close(alone.points[0], together.points[i], rtol=0, atol=1e-3)
        torch.testing.assert_close(alone.values[0], together.values[i], rtol=0, atol=1e-3)
    assert together.found.any() and not together.found.all()


@every_attack
@pytest.mark.parametrize("points", [1, 4, 11])
def test_memory_limits_do_not_change_the_search(
    name: str, points: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = random_fc(rng, (4, 10, 8, 3))
    regions = [random_region(rng, network, radius=0.1) for _ in range(5)]
    whole, drawn = (run(name, Objective(network, regions), stop_at="all", steps=s, diversify=0) for s in (20, 0))
    objective = Objective(network, regions, wave_bytes=40 * points)
    assert objective.capacity == points
    largest = 0
    forward = Network.trace

    def spy(self: Network, x: Tensor, *args: Any) -> Tensor:
        nonlocal largest
        largest = max(largest, len(x))
        return forward(self, x, *args)

    monkeypatch.setattr(Network, "trace", spy)
    for steps, expected in ((20, whole), (0, drawn)):  # without steps, no restart makes up for another
        waves = run(name, objective, stop_at="all", steps=steps, diversify=0)
        assert torch.equal(waves.found, expected.found) and largest <= points
        torch.testing.assert_close(waves.values[~expected.found], expected.values[~expected.found])


@every_attack
def test_finds_what_sampling_finds(name: str, rng: np.random.Generator) -> None:
    tried = 0
    for _ in range(30):
        network = random_fc(rng, (5, 12, 12, 3))
        region = random_region(rng, network, rows=2, radius=1.0)
        x = region.box.lower + rng.uniform(size=(2000, 5)) * (region.box.upper - region.box.lower)
        y = network.forward(torch.from_numpy(x)).numpy()
        share = float((y @ region.on_output.T + region.constant <= 0).all(1).mean())
        if 0 < share < 0.05:
            tried += 1
            assert run(name, Objective(network, [region]), restarts=20).found[0]
    assert tried >= 3


@every_attack
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_finds_what_sampling_misses(name: str, scale: float, rng: np.random.Generator) -> None:
    target = scale * rng.uniform(-0.9, 0.9, size=20)
    network = cone(target)
    ends = scale * np.ones(20)
    region = Region(
        box=Box(-ends, ends),
        on_output=np.ones((1, 1)),
        constant=np.array([-3.0 * scale]),
        strict=np.zeros(1, dtype=bool),
    )
    x = scale * rng.uniform(-1.0, 1.0, size=(20_000, 20))
    assert np.abs(x - target).sum(1).min() > 3.0 * scale
    result = run(name, Objective(network, [region]))
    assert result.found[0]
    assert np.abs(result.points[0].double().numpy() - target).sum() <= 3.0 * scale


@every_attack
def test_a_start_far_from_the_counterexample_is_led_to_it(name: str) -> None:
    network = cone(np.full(6, 0.5))
    objective = Objective(network, [unit_region(6, 1, constant=-0.5)])
    result = run(name, objective, start=-torch.ones(1, 4, 6))
    assert result.found[0]


@every_attack
def test_stops_at_any_or_at_all(name: str) -> None:
    network = cone(np.zeros(3))
    constants = (-0.2, -9.0, -0.2, 1.0)  # found late, at once, late, never
    objective = Objective(network, [unit_region(3, 1, constant=c) for c in constants])
    start = torch.full((4, 2, 3), 0.9)
    assert run(name, objective, start=start).found.tolist() == [False, True, False, False]
    assert run(name, objective, start=start, stop_at="all", steps=200).found.tolist() == [True, True, True, False]


@every_attack
def test_stops_at_the_deadline(name: str, rng: np.random.Generator) -> None:
    network = random_fc(rng, (20, 50, 50, 3))
    objective = Objective(network, [unit_region(20, 3, constant=1e3)])
    attack = ATTACKS[name](steps=10**6, restarts=10, stop_at="all")
    begin = time.monotonic()
    late = attack.run(objective, generator=seeded(), deadline=begin)
    assert late.values[0] == torch.inf and not late.found[0]
    short = attack.run(objective, generator=seeded(), deadline=begin + 0.2)
    assert short.values[0].isfinite() and time.monotonic() - begin < 5.0


@every_attack
def test_a_corner_that_cannot_be_left_ends_the_search(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = Builder(rng, (3,))
    build.add(Linear(torch.tensor([[1.0, -2.0, 0.0]])), 0)
    objective = Objective(build.network(), [unit_region(3, 1, constant=9.0)])
    passes = 0
    gradient = Objective.value_and_gradient

    def spy(self: Objective, x: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        nonlocal passes
        passes += 1
        return gradient(self, x, **more)

    monkeypatch.setattr(Objective, "value_and_gradient", spy)
    more: dict[str, Any] = {"decay": 1.0} if name == "pgd" else {"lr": (0.3, 0.5), "decay": (0.99, 0.99)}
    result = run(name, objective, steps=10_000, restarts=4, **more)
    assert float(result.values[0]) == pytest.approx(6.0) and passes < 20


@every_attack
@pytest.mark.parametrize(
    "wrong", [{"steps": -1}, {"restarts": 0}, {"diversify": -1}, {"stop_at": "some"}, {"decay": (2.0, 3.0)}]
)
def test_settings_that_make_no_sense_are_refused(name: str, wrong: dict[str, Any]) -> None:
    if name == "pgd" and "decay" in wrong:
        wrong = {"decay": 2.0}
    with pytest.raises(UsageError, match=rf"{name}: {next(iter(wrong))} must"):
        ATTACKS[name](**wrong)


@every_attack
def test_a_start_must_have_the_shape_of_the_batch(name: str, rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 6, 2))
    objective = Objective(network, [random_region(rng, network)])
    for shape in ((1, 3), (2, 1, 3), (1, 1, 4)):
        with pytest.raises(UsageError, match="shape"):
            run(name, objective, start=torch.zeros(shape))


@every_attack
def test_no_regions_is_no_result(name: str, rng: np.random.Generator) -> None:
    settings: list[dict[str, Any]] = [{}] if name == "pgd" else [{}, {"relative": False}]
    for more in settings:
        assert run(name, Objective(random_fc(rng, (3, 6, 2)), []), **more).points.shape == (0, 3)


@every_attack
def test_some_counterexamples_are_only_found_from_diverse_outputs(name: str) -> None:
    # Flat around the centre and along most of the box: f = 1 − relu(Σx − 7) has a gradient only near one corner, but a
    # second output, Σx, leads there.
    build = Builder(np.random.default_rng(0), (8,))
    total = build.add(Linear(torch.tensor([[1.0] * 8, [1.0] * 8]), torch.tensor([-7.0, 20.0])), 0)
    build.add(Linear(torch.tensor([[-1.0, 0.0], [0.0, 1.0]]), torch.tensor([0.5, 0.0])), build.relu(total))
    objective = Objective(build.network(), [unit_region(8, 2)])
    assert not run(name, objective, diversify=0).found[0]
    assert run(name, objective, diversify=2).found[0]


# The update rules


@pytest.mark.parametrize(("unit", "expected"), [("eps", [-0.05, 9.75]), ("pixel", [-0.2, 9.75])])
def test_pgd_steps_in_either_unit(unit: str, expected: list[float]) -> None:
    build = Builder(np.random.default_rng(0), (2,))
    build.add(Linear(torch.tensor([[2.0, 1.0]])), 0)
    region = Region(
        box=Box(np.array([-0.2, 9.0]), np.array([0.2, 11.0])),
        on_output=np.ones((1, 1)),
        constant=np.zeros(1),
        strict=np.zeros(1, dtype=bool),
    )
    attack = PGD(steps=1, restarts=1, step_unit=unit)  # type: ignore[arg-type]
    result = attack.run(Objective(build.network(), [region]), generator=seeded())
    np.testing.assert_allclose(result.points[0].numpy(), expected, rtol=1e-6)


def test_pgd_steps_shrink_by_the_decay() -> None:
    build = Builder(np.random.default_rng(0), (1,))
    build.add(Linear(torch.ones(1, 1)), 0)
    attack = PGD(steps=3, restarts=1, step_size=0.25, decay=0.5)
    result = attack.run(Objective(build.network(), [unit_region(1, 1, constant=9.0)]), generator=seeded())
    assert float(result.points[0, 0]) == -0.25 * (1 + 0.5 + 0.25)


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("steps", [1, 6])
def test_mi_fgsm_equals_its_formula(relative: bool, steps: int, rng: np.random.Generator) -> None:
    lr, mu, decay = 0.15, 0.9, 0.95
    momentum_mattered = False
    for _ in range(10):
        network = random_fc(rng, (4, 12, 8, 2))
        region = random_region(rng, network, rows=1, radius=2.0)
        region = Region(
            box=region.box, on_output=region.on_output, constant=np.array([1e3]), strict=np.zeros(1, dtype=bool)
        )
        objective = Objective(network, [region])
        lower, upper = (t[0].double().numpy() for t in (objective.lower, objective.upper))
        start = objective.clip(torch.from_numpy(rng.normal(size=(1, 2, 4))).float())
        trail = [(np.inf, np.zeros(4))]
        for x in start[0].double().numpy():
            g, half = np.zeros(4), (upper - lower) / 2
            for t in range(steps + 1):
                trail.append((value_of(network, region, x), x))
                step = 1e-6 * np.eye(4)
                differences = [value_of(network, region, x + e) - value_of(network, region, x - e) for e in step]
                gradient = np.array(differences) / 2e-6 * (half if relative else 1.0)
                norm = np.abs(gradient).sum()
                g = mu * g + gradient / max(norm, 1e-30)
                momentum_mattered |= bool((np.sign(g) * gradient < 0).any())
                x = np.clip(x - lr * decay**t * np.sign(g) * (half if relative else 1.0), lower, upper)
        best, point = min(trail, key=lambda pair: pair[0])
        attack = MIFGSM(steps=steps, lr=(lr, lr), mu=(mu, mu), decay=(decay, decay), relative=relative, still=1e-9)
        result = attack.run(objective, generator=seeded(), start=start)
        assert float(result.values[0]) == pytest.approx(best, rel=1e-5)
        np.testing.assert_allclose(result.points[0].numpy(), point, atol=1e-4)
    assert momentum_mattered or steps == 1


def test_mi_fgsm_keeps_its_momentum_when_another_region_is_found(rng: np.random.Generator) -> None:
    attack = MIFGSM(steps=8, lr=(0.2, 0.2), mu=(1.0, 1.0), decay=(0.99, 0.99), stop_at="all")
    for _ in range(20):
        network = random_fc(rng, (4, 12, 8, 1))
        start = torch.from_numpy(rng.uniform(-1.0, 1.0, size=(1, 1, 4))).float().expand(2, -1, -1)
        at_start = float(evaluate(network, start[0, 0].double().numpy())[0])
        regions = [unit_region(4, 1, constant=constant) for constant in (1e3, 1e-3 - at_start)]
        together = attack.run(Objective(network, regions), generator=seeded(), start=start)
        alone = attack.run(Objective(network, regions[:1]), generator=seeded(), start=start[:1])
        assert together.found.tolist() == [False, True]
        torch.testing.assert_close(together.points[0], alone.points[0])


def test_mi_fgsm_draws_its_settings_for_each_restart() -> None:
    attack = MIFGSM(restarts=2000, steps=1, diversify=0)
    build = Builder(np.random.default_rng(0), (1,))
    build.add(Linear(torch.ones(1, 1)), 0)
    objective = Objective(build.network(), [unit_region(1, 1, constant=9.0)])
    moved = attack.run(objective, generator=seeded(), start=torch.zeros(1, 2000, 1))
    assert -0.5 <= float(moved.points[0, 0]) < -0.49  # the best restart has the largest lr


def test_mi_fgsm_ends_a_restart_that_has_stopped_moving(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = Objective(cone(np.zeros(3)), [unit_region(3, 1, constant=1.0)])
    sizes: list[int] = []
    gradient = Objective.value_and_gradient

    def spy(self: Objective, x: Tensor, **more: Any) -> tuple[Tensor, Tensor]:
        sizes.append(x.shape[1])
        return gradient(self, x, **more)

    monkeypatch.setattr(Objective, "value_and_gradient", spy)
    result = MIFGSM(restarts=50, lr=(0.1, 0.1)).run(objective, generator=seeded())
    assert float(result.values[0]) == pytest.approx(1.0, abs=1e-2)
    assert sizes == sorted(sizes, reverse=True) and sizes[0] == 50 and sum(sizes) < 50 * 500 / 2

"""The first attempt, on NumPy arrays: a verdict it gives is right, and it gives none where it cannot know."""

from fractions import Fraction

import numpy as np
import pytest
from exact import exact_output
from networks import NETWORKS, over_arrays, random_box, random_fc, sample

from surebound.bounds.audit import auditing
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Box, Property, Region
from surebound.verify import first
from surebound.verify.clock import Clock
from surebound.verify.first import first_attempt


def model_of(network: Network) -> Model:
    """A network over arrays, replayed in float32."""
    single = network.single()

    def replay(x):  # type: ignore[no-untyped-def]
        with np.errstate(all="ignore"):
            return single.forward(x.reshape(-1, *network.input_shape)).reshape(len(x), -1)

    return Model(network, replay, "test")


def region(box: Box, on_output: list[list[float]], constant: list[float], strict: bool = False) -> Region:
    rows = np.array(on_output, dtype=np.float64)
    return Region(box=box, on_output=rows, constant=np.array(constant), strict=np.full(len(constant), strict))


def property_of(network: Network, *regions: Region) -> Property:
    return Property(regions, network.inputs, network.outputs)


def identity(inputs: int = 1) -> Network:
    build = Builder((inputs,))
    return build.arrays(build.linear(0, np.eye(inputs)))


@pytest.mark.parametrize("name", list(NETWORKS))
def test_verdicts_are_right(name: str) -> None:
    """Thresholds around the values that samples reach: a sat violates, an unsat has no sample, bounds are confirmed."""
    rng = np.random.default_rng(7)
    tensors = NETWORKS[name](rng)
    network, seen = over_arrays(tensors), set()
    for radius in (0.001, 0.05):
        lower, upper = random_box(rng, tensors, radius=radius)
        box = Box(lower.numpy().reshape(-1), upper.numpy().reshape(-1))
        row = rng.normal(size=(1, network.outputs))
        values = tensors.forward(sample(rng, lower[0], upper[0], 300)).flatten(1).numpy() @ row[0]
        spread = values.max() - values.min()
        for threshold in (values.min() - 3 * spread, values.min() - 1e-9, values.mean(), values.max()):
            prop = property_of(network, region(box, row.tolist(), [-threshold]))
            with auditing(limit=5000) as audit:
                verdict = first_attempt(model_of(network), prop, Clock(None))
            seen.add(None if verdict is None else verdict.status)
            if verdict is None:
                continue
            if verdict.status == "unsat":
                assert values.min() > threshold and (audit.claims or not audit.covers(network))
                assert verdict.subproblems == 1
            else:
                assert verdict.counterexample is not None
                assert prop.regions[0].holds(verdict.counterexample.x, verdict.counterexample.y.astype(np.float64))
    assert seen >= {"sat", "unsat"}


def test_every_region_over_every_box_has_to_be_proved() -> None:
    network = identity()
    near, far = Box(np.array([0.0]), np.array([1.0])), Box(np.array([5.0]), np.array([6.0]))
    fine, broken = region(near, [[1.0]], [1.0]), region(far, [[-1.0]], [5.5])
    model = model_of(network)
    held = first_attempt(model, property_of(network, fine, region(far, [[1.0]], [1.0])), Clock(None))
    assert held is not None and (held.status, held.subproblems) == ("unsat", 2)
    for regions in ((fine, broken), (broken, fine)):
        verdict = first_attempt(model, property_of(network, *regions), Clock(None))
        assert verdict is not None and verdict.status == "sat"


def test_one_row_above_zero_rules_a_region_out_and_no_other() -> None:
    network = identity()
    box = Box(np.array([0.0]), np.array([1.0]))
    both = region(box, [[-1.0], [1.0]], [-3.0, 1.0])  # x >= -3 and x <= -1
    verdict = first_attempt(model_of(network), property_of(network, both), Clock(None))
    assert verdict is not None and verdict.status == "unsat"
    open_ = region(box, [[-1.0], [1.0]], [0.6, -0.55])  # x >= 0.6 and x <= 0.55: no single row rules it out
    assert first_attempt(model_of(network), property_of(network, both, open_), Clock(None)) is None
    elsewhere = region(Box(np.array([-9.0]), np.array([-8.0])), [[-1.0]], [1.0])  # x >= 1, over another box
    for regions in ((open_, elsewhere), (elsewhere, open_)):
        assert first_attempt(model_of(network), property_of(network, *regions), Clock(None)) is None


def test_a_bound_of_zero_proves_nothing() -> None:
    network = identity()
    box = Box(np.array([0.0]), np.array([1.0]))
    touching = region(box, [[1.0]], [0.0], strict=True)  # x < 0
    assert first_attempt(model_of(network), property_of(network, touching), Clock(None)) is None


def test_nothing_is_proved_of_a_region_without_rows_or_of_numbers_out_of_hand() -> None:
    network, box = identity(), Box(np.array([0.0]), np.array([1.0]))
    bare = Region(box=box, on_output=np.zeros((0, 1)), constant=np.zeros(0), strict=np.zeros(0, dtype=bool))
    elsewhere = Model(network, lambda x: np.full((len(x), 1), np.nan), "test")  # no point can be replayed
    assert first_attempt(elsewhere, property_of(network, bare), Clock(None)) is None
    huge = Box(np.array([1e101]), np.array([1e102]))
    assert first_attempt(elsewhere, property_of(network, region(huge, [[1.0]], [1.0])), Clock(None)) is None
    build = Builder((1,))
    wild = build.arrays(build.linear(build.linear(0, [[1e200]]), [[1e200]]))
    overflows = Model(wild, lambda x: np.full((len(x), 1), np.inf), "test")
    assert first_attempt(overflows, property_of(wild, region(box, [[1.0]], [1.0])), Clock(None)) is None


def test_a_point_that_the_replay_does_not_confirm_is_no_counterexample() -> None:
    network, box = identity(), Box(np.array([0.0]), np.array([1.0]))
    prop = property_of(network, region(box, [[-1.0]], [0.5]))
    refused = Model(network, lambda x: np.zeros((len(x), 1), dtype=np.float32), "test")
    assert first_attempt(refused, prop, Clock(None)) is None
    assert first_attempt(model_of(network), prop, Clock(None)) is not None


def test_roundings_decide_for_no_verdict() -> None:
    """Σ xᵢ/3 − n/3·x₀ is 0 at the only point: no error term, and it would be proved positive or negative."""
    n = 301
    build = Builder((n,))
    network = build.arrays(build.linear(0, np.full((1, n), np.float32(1 / 3))))
    x = np.full(n, float(np.float32(0.1)))
    value = exact_output(network, x.tolist())[0]
    box = Box(x, x)
    for shift in (Fraction(0), Fraction(1, 2**60)):
        constant = -float(value + shift)
        prop = property_of(network, region(box, [[1.0]], [constant]))
        silent = Model(network, lambda x: np.full((len(x), 1), np.nan), "test")
        verdict = first_attempt(silent, prop, Clock(None))
        assert verdict is None or Fraction(constant) + value > 0


def test_large_networks_and_short_times_are_left_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    network = over_arrays(random_fc(rng, (3, 4, 2)))
    prop = property_of(network, region(Box(np.zeros(3), np.zeros(3)), [[0.0, 0.0]], [1.0]))
    model = model_of(network)
    assert first_attempt(model, prop, Clock(None)) is not None
    assert first_attempt(model, prop, Clock(-1.0)) is None
    for limit in ("PRODUCTS", "ELEMENTS"):
        with monkeypatch.context() as patch:
            patch.setattr(first, limit, 1)
            assert first_attempt(model, prop, Clock(None)) is None
    empty = Box(np.ones(3), np.zeros(3))
    assert first_attempt(model, property_of(network, region(empty, [[1.0, 0.0]], [0.0])), Clock(None)) is None

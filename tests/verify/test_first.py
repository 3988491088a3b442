"""The first attempt, on NumPy arrays: a verdict it gives is right, and it gives none where it cannot know."""

from dataclasses import replace
from fractions import Fraction
from typing import Any

import curves
import numpy as np
import pytest
import torch
from exact import exact_output
from networks import NETWORKS, over_arrays, random_box, random_fc, sample
from verifications import exact

from surebound.bounds.audit import auditing
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Box, Property, Region, Verdict
from surebound.verify import first
from surebound.verify.begun import Begun
from surebound.verify.clock import Clock
from surebound.verify.first import first_attempt
from surebound.verify.options import Options
from surebound.verify.pipeline import verify


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


def silent(network: Network) -> Model:
    """A network of which no point can be replayed."""
    return Model(network, lambda x: np.full((len(x), network.outputs), np.nan), "test")


def attempt(model: Model, prop: Property, **options: Any) -> Verdict | None:
    """The verdict, if there is one."""
    found = first_attempt(model, prop, Clock(None), **options)
    return found if isinstance(found, Verdict) else None


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
                verdict = attempt(model_of(network), prop, bisect=False)
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
    assert attempt(model_of(network), property_of(network, both, open_), bisect=False) is None
    elsewhere = region(Box(np.array([-9.0]), np.array([-8.0])), [[-1.0]], [1.0])  # x >= 1, over another box
    for regions in ((open_, elsewhere), (elsewhere, open_)):
        assert attempt(model_of(network), property_of(network, *regions), bisect=False) is None


def test_a_bound_of_zero_proves_nothing() -> None:
    network = identity()
    box = Box(np.array([0.0]), np.array([1.0]))
    touching = region(box, [[1.0]], [0.0], strict=True)  # x < 0
    assert attempt(model_of(network), property_of(network, touching), seconds=0.05) is None


def test_nothing_is_proved_of_a_region_without_rows_or_of_numbers_out_of_hand() -> None:
    network, box = identity(), Box(np.array([0.0]), np.array([1.0]))
    bare = Region(box=box, on_output=np.zeros((0, 1)), constant=np.zeros(0), strict=np.zeros(0, dtype=bool))
    elsewhere = Model(network, lambda x: np.full((len(x), 1), np.nan), "test")  # no point can be replayed
    assert first_attempt(elsewhere, property_of(network, bare), Clock(None)) is None
    huge = Box(np.array([1e101]), np.array([1e102]))
    assert attempt(elsewhere, property_of(network, region(huge, [[1.0]], [1.0])), seconds=0.05) is None
    build = Builder((1,))
    wild = build.arrays(build.linear(build.linear(0, [[1e200]]), [[1e200]]))
    overflows = Model(wild, lambda x: np.full((len(x), 1), np.inf), "test")
    assert attempt(overflows, property_of(wild, region(box, [[1.0]], [1.0])), seconds=0.05) is None


def test_a_point_that_the_replay_does_not_confirm_is_no_counterexample() -> None:
    network, box = identity(), Box(np.array([0.0]), np.array([1.0]))
    prop = property_of(network, region(box, [[-1.0]], [0.5]))
    refused = Model(network, lambda x: np.zeros((len(x), 1), dtype=np.float32), "test")
    assert attempt(refused, prop, seconds=0.05) is None
    assert attempt(model_of(network), prop) is not None


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
        verdict = attempt(silent, prop)
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
    crossing = property_of(network, region(Box(-np.ones(3), np.ones(3)), [[1.0, 0.0]], [-1e9]))
    assert isinstance(first_attempt(silent(network), crossing, Clock(None), seconds=0.0), Begun)
    for limit, most in (("FEW_INPUTS", 2), ("PRODUCTS", 100)):  # of inputs; of a pass with symbols, not of one without
        with monkeypatch.context() as patch:
            patch.setattr(first, limit, most)
            assert first_attempt(silent(network), crossing, Clock(None), seconds=0.0) is None
    assert first_attempt(model, property_of(network), Clock(None)) is None  # not a region that could be violated


@pytest.mark.parametrize("seed", range(12))
def test_bisecting_equals_the_milp(seed: int) -> None:
    """Thresholds 1e-3 below and above the exact minimum; what is proved is confirmed in rational arithmetic."""
    tensors, box, row, least = exact("fc", seed)
    network = over_arrays(tensors)
    held = property_of(network, region(box, [row.tolist()], [-least + 1e-3]))
    broken = property_of(network, region(box, [row.tolist()], [-least - 1e-3]))
    with auditing(limit=5000) as audit:
        verdict = attempt(model_of(network), held, seconds=60.0)
    assert verdict is not None and verdict.status == "unsat"
    assert audit.claims > verdict.subproblems
    assert verdict.branching in ((None,) if verdict.subproblems == 1 else ("input",))
    verdict = attempt(model_of(network), broken, seconds=60.0)
    assert verdict is not None and verdict.status == "sat" and verdict.counterexample is not None
    assert broken.regions[0].holds(verdict.counterexample.x, verdict.counterexample.y.astype(np.float64))


def test_bisecting_finds_what_a_grid_finds() -> None:
    """Of two inputs: each value between the least of a fine grid and what the slope allows below is not proved."""
    rng = np.random.default_rng(5)
    tensors = random_fc(rng, (2, 20, 20, 2))
    network, box = over_arrays(tensors), Box(-np.ones(2), np.ones(2))
    axis = torch.linspace(-1.0, 1.0, 301, dtype=torch.float64)
    values = tensors.forward(torch.cartesian_prod(axis, axis)).numpy()
    for row in rng.normal(size=(6, 2)):
        least = float((values @ row).min())
        for gap, expected in ((0.1, "unsat"), (-1e-9, "sat")):
            part = region(box, [row.tolist()], [-least + gap])
            verdict = attempt(model_of(network), property_of(network, part), seconds=60.0)
            assert verdict is not None and verdict.status == expected


@pytest.mark.parametrize("name", curves.ROWS)
def test_bisecting_finds_what_a_grid_finds_of_every_activation(name: str) -> None:
    proved = 0
    for seed in range(2):
        case = curves.Case.drawn(np.random.default_rng([seed, 17]), curves.ROWS[name], (2, 6, 1))
        network = over_arrays(case.network)
        for margin in (-0.05, -0.01, 1e-3):
            verdict = attempt(silent(network), property_of(network, case.region(margin)), seconds=0.3)
            assert verdict is None or (verdict.status == "unsat" and margin < 0)
            proved += verdict is not None and verdict.subproblems > 1
    assert proved  # by splits


def halves(network: Network) -> tuple[Region, ...]:
    """Two regions over one box and one over another, none of which a pass proves, but a search does."""
    box, other = Box(-np.ones(2), np.ones(2)), Box(np.zeros(2), 2 * np.ones(2))
    axis = np.linspace(0.0, 1.0, 101)
    unit = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    parts = []
    for at, row in ((box, [1.0, 0.0]), (box, [0.0, 1.0]), (other, [1.0, -1.0])):
        values = np.asarray(network.forward(at.lower + unit * (at.upper - at.lower)))  # type: ignore[arg-type]
        parts.append(region(at, [row], [0.1 - float((values @ np.array(row)).min())]))
    return tuple(parts)


def test_a_search_goes_on_where_it_was_left() -> None:
    tensors = random_fc(np.random.default_rng(2), (2, 30, 30, 2))
    network = over_arrays(tensors)
    prop = property_of(network, *halves(network))
    whole = attempt(model_of(network), prop, seconds=60.0)
    assert whole is not None and whole.status == "unsat" and whole.subproblems > 20
    slow: list[str] = []
    left = first_attempt(model_of(network), prop, Clock(None), seconds=0.0, slow=lambda: slow.append("slow"))
    assert isinstance(left, Begun) and slow == ["slow"]
    assert len(left.nodes) >= 2 and left.subproblems < whole.subproblems
    model, options = Model(tensors, model_of(network).replay, "test"), Options(quick_attack=None, branching="input")
    rest = verify(model, prop, options, begun=left.tensors())
    alone = verify(model, prop, options)
    assert (rest.status, alone.status) == ("unsat", "unsat")
    # What is open of a region that does not hold is not forgotten.
    for i in range(3):
        parts = [replace(r, constant=r.constant - (0.2 if i == j else 0.0)) for j, r in enumerate(prop.regions)]
        broken = property_of(network, *parts)
        left = first_attempt(silent(network), broken, Clock(None), seconds=0.0)
        assert isinstance(left, Begun)
        assert verify(model, broken, options, begun=left.tensors()).status == "sat"


def test_open_boxes_stay_with_their_regions() -> None:
    network = over_arrays(random_fc(np.random.default_rng(2), (2, 30, 30, 2)))
    regions = halves(network)
    left = first_attempt(model_of(network), property_of(network, *regions), Clock(None), seconds=0.0)
    assert isinstance(left, Begun)
    middle = left.among(regions[1:])
    assert middle is not None and len(middle.nodes) == int((np.asarray(left.nodes.region) > 0).sum())
    for part, at in zip(regions[1:], (0, 1), strict=True):
        boxes = middle.nodes[middle.nodes.region == at].state
        assert len(boxes["lower"])
        assert (np.asarray(boxes["lower"]) >= part.box.lower).all() and (
            np.asarray(boxes["upper"]) <= part.box.upper
        ).all()
    stranger = replace(regions[0], constant=regions[0].constant)
    assert left.among([stranger]) is None
    assert left.among([*regions, stranger]) is None


def test_boxes_that_cannot_be_decided_are_neither_proved_nor_handed_over() -> None:
    """At a point y = 2⁶⁰ x₀ − 2⁶⁰ x₁ + ½ is too close to call, and there is nothing to bisect."""
    build = Builder((2,))
    network = build.arrays(build.linear(0, [[2.0**60, -(2.0**60)]]))
    point, wide = Box(np.ones(2), np.ones(2)), Box(np.array([1.0, 1.0]), np.array([2.0, 1.0]))
    near = region(point, [[1.0]], [0.5])
    for other in (region(wide, [[1.0]], [1e9]), region(wide, [[1.0]], [0.5])):  # soon proved; never
        prop = property_of(network, near, other)
        assert first_attempt(silent(network), prop, Clock(None), seconds=0.0) is None
        assert first_attempt(silent(network), prop, Clock(None), seconds=0.2) is None


def test_a_proof_that_is_written_down_begins_at_the_roots() -> None:
    tensors = random_fc(np.random.default_rng(2), (2, 30, 30, 2))
    network = over_arrays(tensors)
    prop = property_of(network, *halves(network)[:1])
    left = first_attempt(model_of(network), prop, Clock(None), seconds=0.0)
    assert isinstance(left, Begun)
    model = Model(tensors, model_of(network).replay, "test")
    verdicts = [
        verify(model, prop, Options(quick_attack=None, branching="input", proof=True), begun=begun)
        for begun in (None, left.tensors())
    ]
    assert all(v.status == "unsat" and v.proof is not None for v in verdicts)
    assert verdicts[0].subproblems == verdicts[1].subproblems

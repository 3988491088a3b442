"""How a verdict is put together from boxes, regions, leaves and searches: nothing that was left open is forgotten."""

from dataclasses import replace
from itertools import permutations
from typing import Any, Literal

import numpy as np
import pytest
import torch
from minima import milp_minimum
from networks import Builder, random_box, random_fc
from numpy.typing import NDArray
from torch import Tensor
from verifications import WEAK, model

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.fixed import fixed_rows
from surebound.network.activation import Lines
from surebound.network.graph import Network
from surebound.network.linear import Linear
from surebound.network.model import Model
from surebound.problem import Box, Property, Region
from surebound.verify import rows as rows_stage
from surebound.verify import stages
from surebound.verify.cascade import Question, Settled
from surebound.verify.confirm import Confirm
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.rows import Rows
from surebound.verify.search import Programs
from surebound.verify.spaces.programs import Standstill
from surebound.verify.strategy import Strategy


def identity() -> Network:
    build = Builder(np.random.default_rng(0), (1,))
    build.add(Linear(torch.ones(1, 1, dtype=torch.float64)), 0)
    return build.network()


def below(low: float, high: float, constant: float = 0.0) -> Region:
    """Violated where y + constant < 0 for some x of [low, high]."""
    return Region(
        box=Box(np.array([low]), np.array([high])),
        on_output=np.ones((1, 1)),
        constant=np.array([constant]),
        strict=np.ones(1, dtype=bool),
    )


def status(network: Network, *regions: Region, branching: str = "upb", timeout: float = 20.0) -> str:
    problem = Property(regions, network.inputs, network.outputs)
    return verify(model(network), problem, Options(branching=branching, timeout=timeout, quick_attack=WEAK)).status


TOUCHED = below(0.0, 1.0)  # y < 0 never holds, but no bound with a rounding error proves it
PROVED = below(1.0, 2.0)


@pytest.mark.parametrize("branching", ["auto", "upb"])
def test_a_box_left_undecided_stays_so(branching: str) -> None:
    """Whatever comes before and after it."""
    assert status(identity(), PROVED, below(2.0, 3.0), branching=branching) == "unsat"
    assert status(identity(), TOUCHED, branching=branching) == "unknown"
    for regions in permutations([TOUCHED, PROVED, below(2.0, 3.0)]):
        assert status(identity(), *regions, branching=branching) == "unknown"
    for regions in permutations([below(-1.0, 1.0), PROVED, TOUCHED]):
        assert status(identity(), *regions, branching=branching) == "sat"


def test_an_undecided_leaf_is_unknown() -> None:
    """y = relu(x) + relu(−x) over [−1, 1] touches 0 between its two leaves."""
    build = Builder(np.random.default_rng(0), (1,))
    hidden = build.relu(build.add(Linear(torch.tensor([[1.0], [-1.0]], dtype=torch.float64)), 0))
    build.add(Linear(torch.ones(1, 2, dtype=torch.float64)), hidden)
    network = build.network()
    assert status(network, below(-1.0, 1.0)) == "unknown"
    assert status(network, below(-1.0, 1.0, 1e-6)) == "unsat"
    assert status(network, below(-1.0, 1.0, -1e-6)) == "sat"


def test_a_region_without_rows_is_never_unsat() -> None:
    """Every point violates it; here none can be replayed, so that it is not sat either."""
    network = identity()
    silent = Model(network, lambda x: np.full((len(x), 1), np.nan, dtype=np.float32), "silent")
    none = Region(box=PROVED.box, on_output=np.zeros((0, 1)), constant=np.zeros(0), strict=np.zeros(0, dtype=bool))
    for regions in ((none,), (none, PROVED), (PROVED, none)):
        for branching in ("auto", "upb", "input"):
            options = Options(branching=branching, timeout=5.0, quick_attack=WEAK)
            assert verify(silent, Property(regions, 1, 1), options).status == "unknown"


def split_needed(seed: int) -> tuple[Network, Box, NDArray[np.float64], float]:
    """A network, box and row with its exact minimum, which no bound at the root reaches."""
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (3, 6, 5, 2))
    lower, upper = random_box(rng, network, radius=1.0)
    box, row = Box(lower.flatten().numpy(), upper.flatten().numpy()), rng.normal(size=2)
    return network, box, row, milp_minimum(network, box, row, 0.0).value


def region(box: Box, row: NDArray[np.float64], constant: float) -> Region:
    return Region(box=box, on_output=row[None], constant=np.array([constant]), strict=np.zeros(1, dtype=bool))


@pytest.mark.slow
@pytest.mark.parametrize("branching", ["auto", "upb", "input"])
def test_every_region_is_searched_with_its_own_rows(branching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two regions over one box, one of which has a counterexample that is never replayed: no search may prove it."""
    monkeypatch.setattr(Confirm, "__call__", lambda *_: None)
    network, box, row, least = split_needed(1)
    proved, violated = (region(box, row, -least + shift) for shift in (1e-2, -1e-2))
    assert status(network, proved, proved, branching=branching) == "unsat"
    for pair in ((proved, violated), (violated, proved)):
        assert status(network, *pair, branching=branching, timeout=0.5) != "unsat"


def test_programs_that_do_not_finish_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Confirm, "__call__", lambda *_: None)
    monkeypatch.setattr(Standstill, "reached", lambda *_: True)
    asked = []
    monkeypatch.setattr(Programs, "run", lambda _, seconds: asked.append(seconds))
    network, box, row, least = split_needed(1)
    assert status(network, region(box, row, -least - 1e-2)) == "unknown"
    assert asked


@pytest.mark.parametrize("branching", ["auto", "upb", "input"])
@pytest.mark.parametrize("distance", [1e-3, 1e-7, 1e-11])
def test_a_bound_just_below_zero_settles_nothing(
    branching: str, distance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """y = x is −distance at the end of the box, which is never replayed; the root bound is as tight as can be."""
    monkeypatch.setattr(Confirm, "__call__", lambda *_: None)
    assert status(identity(), below(distance, 1.0, -2 * distance), branching=branching, timeout=0.3) != "unsat"
    assert status(identity(), below(2 * distance, 1.0, -distance), branching=branching) == "unsat"


def test_float32_settles_nothing(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are below 0 by less than a rounding of float32, at a point that is never replayed."""
    monkeypatch.setattr(Confirm, "__call__", lambda *_: None)
    build = Builder(rng, (3,))
    weight = torch.from_numpy(rng.normal(size=(1, 3)))
    build.add(Linear(weight), 0)
    network = build.network()
    fooled = 0
    for _ in range(20):
        x = rng.uniform(0.5, 1.0, size=3)
        constant = -float(weight[0].numpy() @ x) - 1e-10
        part = region(Box(x, x + 1e-12), np.ones(1), constant)
        thin = float(weight[0].float().numpy() @ x.astype(np.float32) + np.float32(constant))
        fooled += thin > 0
        assert status(network, part, timeout=2.0) == "unknown"
    assert fooled >= 3


def test_every_root_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of five regions over one box, bounded two at a time, the last has a counterexample that is never replayed."""
    monkeypatch.setattr(Confirm, "__call__", lambda *_: None)
    network, box, row, least = split_needed(1)
    regions = tuple(region(box, row, -least + shift) for shift in (1e-2, 1e-2, 1e-2, 1e-2, -1e-2))
    problem = Property(regions, network.inputs, network.outputs)
    options = Options(branching="upb", timeout=0.5, quick_attack=None, strategy=Strategy(batch=2))
    assert verify(model(network), problem, options).status != "unsat"
    fine = replace(problem, regions=problem.regions[:4])
    assert verify(model(network), fine, replace(options, timeout=20.0)).status == "unsat"


@pytest.mark.parametrize("stage", ["ibp", "crown"])
def test_every_box_has_its_own_bounds(stage: Literal["ibp", "crown"], rng: np.random.Generator) -> None:
    """However many boxes, regions of a box and rows of a region are bounded together."""
    network = random_fc(rng, (3, 6, 5, 2))
    questions = []
    for count in (2, 1, 3, 1, 2):
        lower, upper = random_box(rng, network, radius=0.3)
        box = Box(lower.flatten().numpy(), upper.flatten().numpy())
        regions = [
            Region(
                box=box,
                on_output=rng.normal(size=(rows, 2)),
                on_input=rng.normal(size=(rows, 3)) if rows > 1 else None,
                constant=rng.normal(size=rows),
                strict=np.zeros(rows, dtype=bool),
            )
            for rows in rng.integers(1, 4, size=count)
        ]
        questions.append(regions)
    found = []
    for elements in (1, 2**24):
        asked = [Question(lambda regions=regions: regions) for regions in questions]  # type: ignore[misc]
        Rows(stage, network, elements=elements).run(asked)
        found.append(torch.cat([question.bounds for question in asked]))
    alone = [Question(lambda region=region: [region]) for regions in questions for region in regions]  # type: ignore[misc]
    for question in alone:
        Rows(stage, network).run([question])
    each = torch.cat([question.bounds for question in alone])
    one_by_one, together = found
    assert torch.allclose(together, each, rtol=1e-9, atol=1e-9)
    same = torch.isclose(one_by_one, each, rtol=1e-9, atol=1e-9)
    if stage == "crown":
        assert same.all()
    else:  # a box is left at the first row that is not proved
        assert (same | (one_by_one < each)).all() and same.sum() >= 5
    assert len(set(each.tolist())) == 9


@pytest.mark.parametrize("most", [60, 2**20])
def test_few_rows_are_bounded_twice(most: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty boxes with one row each, and one box with forty regions, of which one has fifty rows."""
    network = random_fc(rng, (3, 4, 2))
    asked = []
    for rows in (*([1],) * 30, [50, *[1] * 39]):
        lower, upper = random_box(rng, network)
        box = Box(lower.flatten().numpy(), upper.flatten().numpy())
        parts = [(rng.normal(size=(n, 2)), rng.normal(size=n) + 100.0, np.zeros(n, dtype=bool)) for n in rows]
        regions = [Region(box=box, on_output=a, constant=b, strict=c) for a, b, c in parts]
        asked.append(Question(lambda regions=regions: regions))  # type: ignore[misc]
    bounded: list[tuple[int, ...]] = []

    def counting(enclosure: Enclosure, lines: Lines, on_output: Tensor, *args: Any, **options: Any) -> Tensor:
        bounded.append(tuple(on_output.shape[:2]))
        return fixed_rows(enclosure, lines, on_output, *args, **options)

    monkeypatch.setattr(rows_stage, "fixed_rows", counting)
    Rows("ibp", network, elements=4 * most).run(asked)
    assert all(boxes * rows <= most for boxes, rows in bounded)
    assert 119 <= sum(boxes * rows for boxes, rows in bounded) <= 2 * 119
    assert all(bool((question.bounds > -torch.inf).all()) for question in asked)


def test_bounds_go_to_the_regions_that_are_open() -> None:
    question = Question(lambda: [PROVED, TOUCHED, PROVED])
    assert question.learn(torch.tensor([1.0, -1.0, torch.nan]).double()).tolist() == [False, True, True]
    assert question.learn(torch.tensor([-2.0, 3.0]).double()).tolist() == [True, False]
    assert question.bounds.tolist() == [1.0, -1.0, 3.0]
    assert question.open == [TOUCHED]
    assert question.proved("test") is None
    question.learn(torch.tensor([0.5]).double())
    assert question.proved("test") == Settled(stage="test", end="proved", lower_bound=0.5)
    assert question.subproblems == 3


def test_memory_that_runs_out_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **more: object) -> None:
        raise MemoryError

    network, box, row, least = split_needed(1)
    part = Property((region(box, row, -least + 1e-2),), network.inputs, network.outputs)
    monkeypatch.setattr(stages, "settle_layers", fails)
    verdict = verify(model(network), part, Options(branching="upb", quick_attack=WEAK))
    assert (verdict.status, verdict.reason) == ("unknown", "the memory ran out")

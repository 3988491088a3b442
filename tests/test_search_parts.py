"""The parts of a search, one by one: queue, clock, policies, the confirmation of counterexamples, properties."""

import os
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from surebound.bounds.beta_crown import Duals, Nodes
from surebound.errors import ResourceError, UsageError
from surebound.network.graph import Input, Network, Node
from surebound.network.linear import Linear
from surebound.problem import Box, Region, Robustness, round_down, round_up
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.confirm import Confirm
from surebound.verify.early_stop import EarlyStop
from surebound.verify.iterations import IterationPolicy
from surebound.verify.progress import Progress
from surebound.verify.queue import Batch, Queue

NEURONS, ROWS = 5, 3


def batch(rng: np.random.Generator, bounds: list[float], rows: int = ROWS) -> Batch:
    """Random nodes; α and β are multiples of 2⁻¹⁰, which half precision holds."""
    n = len(bounds)
    signs = torch.from_numpy(rng.integers(-1, 2, size=(n, NEURONS)).astype(np.int8))
    alpha, beta = (torch.from_numpy(rng.integers(0, 1025, size=(n, NEURONS)) / 1024).float() for _ in range(2))
    mix = torch.from_numpy(rng.dirichlet(np.ones(rows), size=n)).float() if rows > 1 else None
    region, depth, split = (torch.from_numpy(rng.integers(0, 5, size=n)) for _ in range(3))
    return Batch(Nodes(region, signs), Duals(alpha, beta, mix), torch.tensor(bounds), depth, split)


def assert_same(got: Batch, sent: Batch, order: list[int]) -> None:
    index = torch.tensor(order)
    assert got.nodes.signs is not None and sent.nodes.signs is not None
    assert got.duals.beta is not None and sent.duals.beta is not None
    pairs = [
        (got.nodes.signs, sent.nodes.signs),
        (got.nodes.region, sent.nodes.region),
        (got.duals.alpha, sent.duals.alpha),
        (got.duals.beta, sent.duals.beta),
        (got.bound, sent.bound),
        (got.depth, sent.depth),
        (got.split, sent.split),
    ]
    if sent.duals.mix is not None:
        assert got.duals.mix is not None
        pairs.append((got.duals.mix, sent.duals.mix))
    for mine, theirs in pairs:
        assert torch.equal(mine, theirs[index])
        assert mine.dtype == theirs.dtype


@pytest.mark.parametrize("rows", [1, ROWS])
def test_queue_returns_the_lowest_first(rows: int, rng: np.random.Generator) -> None:
    queue = Queue(NEURONS, rows, 2**20)
    assert (len(queue), queue.lowest) == (0, float("inf"))
    sent = batch(rng, [-1.0, -3.0, 0.5, -np.inf, -2.0], rows)
    queue.push(sent)
    assert (len(queue), queue.lowest) == (5, -np.inf)
    assert_same(queue.pop(2), sent, [3, 1])
    assert (len(queue), queue.lowest) == (3, -2.0)
    assert_same(queue.pop(9), sent, [4, 0, 2])
    assert (len(queue), len(queue.pop(4)), queue.spilled) == (0, 0, False)


def test_queue_fills_in_what_a_root_lacks(rng: np.random.Generator) -> None:
    queue = Queue(NEURONS, 1, 2**20)
    whole = batch(rng, [-1.0], rows=1)
    queue.push(replace(whole, nodes=Nodes(whole.nodes.region, None), duals=Duals(whole.duals.alpha, None, None)))
    got = queue.pop(1)
    assert got.nodes.signs is not None and got.duals.beta is not None
    assert got.nodes.signs.tolist() == [[0] * NEURONS]
    assert got.duals.beta.tolist() == [[0.0] * NEURONS]
    assert got.duals.mix is None


def test_queue_keeps_multipliers_finite(rng: np.random.Generator) -> None:
    """Half precision ends at 65,504."""
    queue = Queue(NEURONS, 1, 2**20)
    sent = batch(rng, [-1.0], rows=1)
    queue.push(replace(sent, duals=Duals(sent.duals.alpha, torch.full((1, NEURONS), 1e9), None)))
    beta = queue.pop(1).duals.beta
    assert beta is not None
    assert beta.tolist() == [[60000.0] * NEURONS]


def test_queue_on_disk(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """64 nodes stay in memory, however small the budget; the others are in a file that has no name."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    queue = Queue(NEURONS, ROWS, 1)
    first = batch(rng, rng.normal(size=64).tolist())
    queue.push(first)
    assert not queue.spilled
    assert list(tmp_path.iterdir()) == []
    more = batch(rng, rng.normal(size=3000).tolist())
    for part in torch.arange(3000).split(1000):
        bound, depth, split = more.bound[part], more.depth[part], more.split[part]
        queue.push(Batch(more.nodes[part], more.duals[part], bound, depth, split))
    assert queue.spilled
    assert list(tmp_path.iterdir()) == []
    assert any(
        str(tmp_path) in os.readlink(handle) for handle in Path("/proc/self/fd").iterdir() if handle.is_symlink()
    )
    whole = Batch(
        Nodes(torch.cat([first.nodes.region, more.nodes.region]), _joined(first.nodes.signs, more.nodes.signs)),
        Duals(
            torch.cat([first.duals.alpha, more.duals.alpha]),
            _joined(first.duals.beta, more.duals.beta),
            _joined(first.duals.mix, more.duals.mix),
        ),
        torch.cat([first.bound, more.bound]),
        torch.cat([first.depth, more.depth]),
        torch.cat([first.split, more.split]),
    )
    order = whole.bound.argsort().tolist()
    assert_same(queue.pop(1500), whole, order[:1500])
    assert_same(queue.pop(3064), whole, order[1500:])
    queue.close()
    queue.close()  # once more does no harm


def test_a_node_that_comes_back_changed_is_refused(rng: np.random.Generator) -> None:
    queue = Queue(NEURONS, ROWS, 1)
    queue.push(batch(rng, rng.normal(size=200).tolist()))
    assert queue._disk is not None
    os.pwrite(queue._disk._file.fileno(), b"\x07", 11)
    with pytest.raises(ResourceError, match="cannot be read back"):
        queue.pop(200)
    queue.close()


def test_queue_grows_in_memory(rng: np.random.Generator) -> None:
    """It begins with room for 1,024 nodes."""
    queue = Queue(NEURONS, ROWS, 2**24)
    sent = batch(rng, rng.normal(size=3000).tolist())
    queue.push(sent)
    assert not queue.spilled
    assert_same(queue.pop(3000), sent, sent.bound.argsort().tolist())


def _joined(a: torch.Tensor | None, b: torch.Tensor | None) -> torch.Tensor:
    assert a is not None and b is not None
    return torch.cat([a, b])


def test_queue_reuses_slots(rng: np.random.Generator) -> None:
    """However long a search goes on, it needs room only for what is open at once."""
    queue = Queue(NEURONS, ROWS, 1)
    for _ in range(50):
        sent = batch(rng, rng.normal(size=60).tolist())
        queue.push(sent)
        assert_same(queue.pop(60), sent, sent.bound.argsort().tolist())
    assert not queue.spilled


def test_early_stop_by_hand() -> None:
    """Gains 4, 2, 2, 2, 2 average to 4, 3, 2.5, 2.25, 2.125. From LB = −17 that is 8 batches, and 30 nodes are 3 more:
    11 batches of 2 s are 22 s."""
    estimate = EarlyStop()
    question = {"lowest": -17.0, "queue": 30, "batch": 10, "batch_seconds": 2.0}
    for gain, average in ((4.0, 4.0), (2.0, 3.0), (2.0, 2.5), (2.0, 2.25)):
        estimate = estimate.observed(gain)
        assert estimate.gain == average
        assert not estimate.hopeless(**question, remaining=0.0)  # too early to tell
    estimate = estimate.observed(2.0)
    assert (estimate.batches, estimate.gain) == (5, 2.125)
    assert estimate.hopeless(**question, remaining=21.99)
    assert not estimate.hopeless(**question, remaining=22.0)
    assert not estimate.hopeless(**{**question, "lowest": 0.0}, remaining=0.0)
    stuck = replace(estimate, gain=0.0)
    assert stuck.hopeless(**question, remaining=1e9)
    assert not stuck.hopeless(**question, remaining=float("inf"))  # no timeout, no hurry


def test_iteration_policy_by_hand() -> None:
    policy = IterationPolicy(count=2)
    assert [policy.wants_probe(depth) for depth in (3, 4, 9)] == [False, True, True]
    # 5 more iterations gain 1.0, 0.2 each; branching gains 0.6 for 2 · 2 iterations, 0.15 each
    raised = policy.probed(more_gain=1.0, branch_gain=0.6)
    assert (raised.count, raised.rest) == (7, 0)
    # 0.2 is not more than 0.8 / 4
    refused = policy.probed(more_gain=1.0, branch_gain=0.8)
    assert (refused.count, refused.rest) == (2, 20)
    assert not refused.wants_probe(9)
    for _ in range(20):
        refused = refused.rested()
    assert refused.rest == 0 == refused.rested().rest
    assert refused.wants_probe(4)
    counts = [2]
    while policy.wants_probe(4):
        policy = policy.probed(more_gain=1.0, branch_gain=0.0)
        counts.append(policy.count)
    assert counts == [2, 7, 14, 28, 56, 100]


def test_clock_counts_nested_phases_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    seen: list[Progress] = []
    clock = Clock(10.0, seen.append)
    with clock.phase("root"):
        now += 1
        with clock.phase("attack"):
            now += 2
            with clock.phase("queue"):
                now += 0.5
        now += 4
        with clock.phase("attack"):
            now += 0.25
    with pytest.raises(KeyError), clock.phase("queue"):
        now += 0.125
        raise KeyError
    assert clock.phases == {"root": 5.0, "attack": 2.25, "queue": 0.625}
    assert (clock.elapsed, clock.remaining) == (7.875, 2.125)
    assert [(p.phase, p.seconds) for p in seen] == [("root", 0.0), ("attack", 1.0), ("queue", 3.0)]
    clock.check()
    now = 110.0
    with pytest.raises(OutOfTime):
        clock.check()
    assert Clock(None).remaining == float("inf")


def double(weight: float = 2.0) -> Network:
    """y = 2x, or another multiple."""
    op = Linear(torch.tensor([[weight]], dtype=torch.float64))
    return Network((Node(Input((1,)), (), "input"), Node(op, (0,), "double")), 1)


def at_most(low: float, high: float, constant: float, *, strict: bool = False, coefficient: float = 1.0) -> Region:
    """Violated where coefficient · y + constant ≤ 0."""
    return Region(
        box=Box(np.array([low]), np.array([high])),
        on_output=np.array([[coefficient]]),
        constant=np.array([constant]),
        strict=np.array([strict]),
    )


def confirm(value: float | None = None) -> Confirm:
    """Replays y = 2x in float32, or a value whatever the point."""

    def replay(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x * np.float32(2) if value is None else np.full_like(x, value)

    return Confirm(double(), replay)


def test_confirm_keeps_what_violates() -> None:
    found = confirm()(np.array([0.25]), [at_most(0.0, 1.0, -0.5)])
    assert found is not None
    assert (found.x.tolist(), found.y.tolist()) == ([0.25], [0.5])
    assert confirm()(np.array([0.25]), [at_most(0.0, 1.0, -0.5, strict=True)]) is None
    assert confirm()(np.array([0.25]), [at_most(0.0, 1.0, -0.4999)]) is None
    second = confirm()(np.array([0.25]), [at_most(0.0, 1.0, 0.0), at_most(0.0, 1.0, -0.5)])
    assert second is not None


def test_confirm_moves_points_into_the_box() -> None:
    """0.1 and 0.3 are no float32: the counterexample is the next one inside."""
    for point, x in ((-7.0, np.float32(0.1)), (9.0, np.nextafter(np.float32(0.3), np.float32(0)))):
        found = confirm()(np.array([point]), [at_most(0.1, 0.3, -5.0)])
        assert found is not None
        assert found.x[0] == x
        assert 0.1 <= found.x[0] <= 0.3
    outside = confirm()(np.array([0.0]), [at_most(0.1, 0.3, 0.0)])  # y = 0 would violate, but 0 is not in the box
    assert outside is None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_confirm_refuses_what_is_no_number(value: float) -> None:
    assert confirm(value)(np.array([0.25]), [at_most(0.0, 1.0, -0.5)]) is None
    assert confirm()(np.array([np.nan]), [at_most(0.0, 1.0, -0.5)]) is None


def test_confirm_in_an_interval_without_float32() -> None:
    """x = 0.1 is a float64; its float32 neighbour is replayed, and the real y = 0.2 has to violate as well."""
    # float32's y is 0.2 + 3e-9, so that the replay decides the third
    for constant, holds in ((-0.21, True), (-0.2 - 1e-8, True), (-0.2 - 1e-9, False), (-0.2 + 1e-8, False)):
        found = confirm()(np.array([0.1]), [at_most(0.1, 0.1, constant)])
        assert (found is not None) == holds
    found = confirm()(np.array([0.1]), [at_most(0.1, 0.1, -0.21)])
    assert found is not None
    assert found.x[0] == 0.1
    # float32 says 0.2 + 3e-9 ≥ 0.2 + 1e-9, the real numbers say no
    assert confirm()(np.array([0.1]), [at_most(0.1, 0.1, 0.2 + 1e-9, coefficient=-1.0)]) is None


def test_holds_is_exact() -> None:
    """0.1 · 3 and 0.3 differ in the reals by −1.1e-17 or so, which float64 sums round away."""
    part = at_most(0.0, 1.0, -0.3, coefficient=0.1)
    exact = Fraction(0.1) * 3 - Fraction(0.3)
    x, y = np.array([0.5]), np.array([3.0])
    assert part.holds(x, y) == (exact <= 0)
    assert replace(part, on_output=-part.on_output, constant=-part.constant).holds(x, y) == (exact >= 0)
    tie = at_most(0.0, 1.0, -0.375, coefficient=0.125)
    assert tie.holds(x, y)
    assert not replace(tie, strict=np.array([True])).holds(x, y)


def test_holds_with_rounded_constants_demands_it_for_all_of_them() -> None:
    x, y = np.array([0.5]), np.array([3.0])
    tie = replace(at_most(0.0, 1.0, -0.375, coefficient=0.125), rounded=True)
    assert not tie.holds(x, y)
    slack = 0.75 * 2.0**-52  # Σ |terms| · 2⁻⁵²
    for factor, holds in ((0.99, False), (1.01, True)):
        below = replace(tie, on_output=np.array([[0.125, 1.0]]))
        assert below.holds(x, np.array([3.0, -factor * slack])) == holds


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_holds_needs_numbers_in_the_box(bad: float) -> None:
    part = at_most(0.0, 1.0, -9.0)
    assert part.holds(np.array([1.0]), np.array([3.0]))
    assert not part.holds(np.array([bad]), np.array([3.0]))
    assert not part.holds(np.array([1.0]), np.array([bad]))
    assert not part.holds(np.array([np.nextafter(1.0, 2.0)]), np.array([3.0]))
    assert not part.holds(np.array([-5e-324]), np.array([3.0]))


@pytest.mark.parametrize("eps", ["2/255", "0.1", 0.1, Fraction(1, 3), "1e-20", 0])
def test_robustness_rounds_outward(eps: float | str | Fraction, rng: np.random.Generator) -> None:
    x = np.concatenate([rng.random(20), [0.0, 1.0]])
    problem = Robustness(x, 1, eps).to_property(3)
    box, radius = problem.regions[0].box, Fraction(eps)
    assert all(part.box is box for part in problem.regions)
    for value, low, high in zip(x.tolist(), box.lower.tolist(), box.upper.tolist(), strict=True):
        least, most = max(Fraction(value) - radius, Fraction(0)), min(Fraction(value) + radius, Fraction(1))
        assert Fraction(low) <= least < Fraction(np.nextafter(low, 2.0))
        assert Fraction(np.nextafter(high, -1.0)) < most <= Fraction(high)
    assert [part.on_output.tolist() for part in problem.regions] == [[[-1.0, 1.0, 0.0]], [[0.0, 1.0, -1.0]]]
    assert [part.strict.tolist() for part in problem.regions] == [[False], [False]]


def test_rounding_of_rationals() -> None:
    third = Fraction(1, 3)
    assert Fraction(round_down(third)) < third < Fraction(round_up(third))
    assert np.nextafter(round_down(third), 1.0) == round_up(third)
    assert round_down(Fraction(1, 4)) == round_up(Fraction(1, 4)) == 0.25
    assert (round_down(Fraction(1, 10**400)), round_up(Fraction(1, 10**400))) == (0.0, 5e-324)


@pytest.mark.parametrize("eps", ["", "two", "1/0", "-1/255", -0.5, float("nan"), float("inf")])
def test_a_radius_that_is_none(eps: float | str) -> None:
    with pytest.raises(UsageError, match="eps must"):
        Robustness(np.zeros(2), 0, eps).radius()

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

from surebound.errors import ResourceError, UsageError
from surebound.network.graph import Input, Network, Node
from surebound.network.linear import Linear
from surebound.problem import Box, Region, Robustness, round_down, round_up
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.confirm import Confirm
from surebound.verify.early_stop import Pace
from surebound.verify.iterations import Iteration
from surebound.verify.node import Nodes, halves_by_sign, joined
from surebound.verify.progress import Progress
from surebound.verify.queue import Queue
from surebound.verify.strategy import Iterations

NEURONS = 5


def batch(rng: np.random.Generator, bounds: list[float]) -> Nodes:
    """Random nodes of one region of some space."""
    n = len(bounds)
    state = {
        "signs": torch.from_numpy(rng.integers(-1, 2, size=(n, NEURONS)).astype(np.int8)),
        "alpha": torch.from_numpy(rng.uniform(size=(n, NEURONS))).half(),
        "box": torch.from_numpy(rng.normal(size=(n, 2, 3))),
        "nothing": torch.zeros(n, 0),
    }
    region = torch.full((n,), 3)
    depth, split, number = (torch.from_numpy(rng.integers(-1, 5, size=n)) for _ in range(3))
    return Nodes(region, torch.tensor(bounds), depth, split, number, state)


def assert_same(got: Nodes, sent: Nodes, order: list[int]) -> None:
    index = torch.tensor(order)
    assert list(got.state) == list(sent.state)
    pairs = [(getattr(got, name), getattr(sent, name)) for name in ("region", "bound", "depth", "split", "number")]
    for mine, theirs in [*pairs, *((got.state[name], sent.state[name]) for name in got.state)]:
        assert torch.equal(mine, theirs[index])
        assert mine.dtype == theirs.dtype


def test_queue_returns_the_lowest_first(rng: np.random.Generator) -> None:
    queue = Queue(2**20)
    assert (len(queue), queue.lowest) == (0, float("inf"))
    sent = batch(rng, [-1.0, -3.0, 0.5, -np.inf, -2.0])
    queue.push(sent)
    assert (len(queue), queue.lowest) == (5, -np.inf)
    assert_same(queue.pop(2), sent, [3, 1])
    assert (len(queue), queue.lowest) == (3, -2.0)
    assert_same(queue.pop(9), sent, [4, 0, 2])
    assert (len(queue), len(queue.pop(4)), queue.spilled) == (0, 0, False)


def test_queue_knows_its_regions(rng: np.random.Generator) -> None:
    queue = Queue(2**20)
    assert queue.regions == []
    queue.push(replace(batch(rng, [-1.0, -3.0, -2.0]), region=torch.tensor([4, 0, 4])))
    assert queue.regions == [0, 4]
    queue.pop(1)
    assert queue.regions == [4]
    queue.pop(1)
    assert queue.regions == [4]
    queue.pop(1)
    assert queue.regions == []


def test_queue_returns_region_by_region(rng: np.random.Generator) -> None:
    """First that of the lowest node, and so on: nothing is left behind."""
    queue = Queue(2**20)
    sent = replace(batch(rng, [-1.0, -3.0, 0.5, -2.0, -4.0, -1.5]), region=torch.tensor([0, 4, 4, 2, 0, 2]))
    queue.push(sent)
    assert_same(queue.pop(3), sent, [4, 0, 1])
    assert (len(queue), queue.lowest, queue.regions) == (3, -2.0, [2, 4])
    queue.push(sent[torch.tensor([1])])
    assert_same(queue.pop(1), sent, [1])
    assert_same(queue.pop(9), sent, [3, 5, 2])
    assert (len(queue), queue.lowest, queue.regions) == (0, float("inf"), [])


def test_queue_returns_the_last_first(rng: np.random.Generator) -> None:
    queue = Queue(2**20, depth_first=True)
    first, second = batch(rng, [-1.0, -3.0]), batch(rng, [2.0, -9.0])
    queue.push(first)
    queue.push(second)
    assert queue.lowest == -np.inf
    assert_same(queue.pop(1), second, [1])
    queue.push(second[torch.tensor([1])])
    assert_same(queue.pop(2), second, [1, 0])
    assert_same(queue.pop(2), first, [1, 0])


def test_nodes_are_indexed_joined_and_halved(rng: np.random.Generator) -> None:
    sent = batch(rng, [-1.0, -3.0, 0.5])
    assert_same(joined([sent[torch.tensor([2])], sent]), sent, [2, 0, 1, 2])
    halves = sent.halved()
    assert halves.depth.tolist() == [d + 1 for d in sent.depth.tolist() for _ in range(2)]
    assert torch.equal(halves.state["box"], sent.state["box"].repeat_interleave(2, 0))
    split = replace(sent, split=torch.tensor([4, 0, 2]))
    signs = halves_by_sign(split).state["signs"]
    for i, neuron in enumerate((4, 0, 2)):
        assert signs[2 * i : 2 * i + 2, neuron].tolist() == [1, -1]
        kept = [j for j in range(NEURONS) if j != neuron]
        assert (signs[2 * i : 2 * i + 2, kept] == sent.state["signs"][i, kept]).all()


def test_queue_on_disk(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """64 nodes stay in memory, however small the budget; the others are in a file that has no name."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    queue = Queue(1)
    first = batch(rng, rng.normal(size=64).tolist())
    queue.push(first)
    assert not queue.spilled
    assert list(tmp_path.iterdir()) == []
    more = batch(rng, rng.normal(size=3000).tolist())
    for part in torch.arange(3000).split(1000):
        queue.push(more[part])
    assert queue.spilled
    assert list(tmp_path.iterdir()) == []
    assert any(
        str(tmp_path) in os.readlink(handle) for handle in Path("/proc/self/fd").iterdir() if handle.is_symlink()
    )
    whole = joined([first, more])
    order = whole.bound.argsort().tolist()
    assert_same(queue.pop(1500), whole, order[:1500])
    assert_same(queue.pop(3064), whole, order[1500:])
    queue.close()
    queue.close()  # once more does no harm


def test_a_node_that_comes_back_changed_is_refused(rng: np.random.Generator) -> None:
    queue = Queue(1)
    queue.push(batch(rng, rng.normal(size=200).tolist()))
    assert queue._disk is not None
    os.pwrite(queue._disk._file.fileno(), b"\x07", 11)
    with pytest.raises(ResourceError, match="cannot be read back"):
        queue.pop(200)
    queue.close()


def test_queue_grows_in_memory(rng: np.random.Generator) -> None:
    """It begins with room for 1,024 nodes."""
    queue = Queue(2**24)
    sent = batch(rng, rng.normal(size=3000).tolist())
    for part in (slice(1000), slice(1000, 3000)):
        queue.push(sent[torch.arange(3000)[part]])
    assert not queue.spilled
    assert_same(queue.pop(3000), sent, sent.bound.argsort().tolist())


def test_queue_reuses_slots(rng: np.random.Generator) -> None:
    """However long a search goes on, it needs room only for what is open at once."""
    queue = Queue(1)
    for _ in range(50):
        sent = batch(rng, rng.normal(size=60).tolist())
        queue.push(sent)
        assert_same(queue.pop(60), sent, sent.bound.argsort().tolist())
    assert not queue.spilled


def test_early_stop_by_hand() -> None:
    """Gains 4, 2, 2, 2, 2 average to 4, 3, 2.5, 2.25, 2.125. From LB = −17 that is 8 batches, and 30 nodes are 3 more:
    11 batches of 2 s are 22 s."""
    pace = Pace()
    question = {"lowest": -17.0, "queue": 30}
    for gain, average in ((4.0, 4.0), (2.0, 3.0), (2.0, 2.5), (2.0, 2.25)):
        pace = pace.observed(gain, 10, 2.0)
        assert pace.gain == average
        assert not pace.takes_longer(0.0, **question)  # too early to tell
    pace = pace.observed(2.0, 10, 2.0)
    assert (pace.batches, pace.gain, pace.each) == (5, 2.125, 0.2)
    assert pace.takes_longer(21.99, **question)
    assert not pace.takes_longer(22.0, **question)
    assert not pace.takes_longer(0.0, lowest=0.0, queue=30)
    stuck = replace(pace, gain=0.0)
    assert stuck.takes_longer(1e9, **question)
    assert not stuck.takes_longer(float("inf"), **question)  # no timeout, no hurry


def test_iteration_policy_by_hand() -> None:
    policy = Iteration(Iterations(count=2), 2)
    assert [policy.wants_probe(depth) for depth in (3, 4, 9)] == [False, True, True]
    # 5 more iterations gain 1.0, 0.2 each; branching gains 0.6 for 2 · 2 iterations, 0.15 each
    raised = policy.probed(more_gain=1.0, branch_gain=0.6)
    assert (raised.count, raised.waiting) == (7, 0)
    # 0.2 is not more than 0.8 / 4
    refused = policy.probed(more_gain=1.0, branch_gain=0.8)
    assert (refused.count, refused.waiting) == (2, 20)
    assert not refused.wants_probe(9)
    for _ in range(20):
        refused = refused.rested()
    assert refused.waiting == 0 == refused.rested().waiting
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

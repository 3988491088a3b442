"""Whole verifications against oracles that share nothing with them: MILPs, LPs over all ReLU patterns, fine grids."""

import errno
import os
import re
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from minima import milp_minimum
from networks import random_box, random_fc, random_pool
from scipy.optimize import linprog
from torch import Tensor
from verifications import (
    ALONE,
    KINDS,
    WEAK,
    Matrix,
    as_box,
    decide,
    exact,
    model,
    region,
    row_values,
    violated,
)

from surebound.bounds.beta_crown import Ascent
from surebound.bounds.enclosure import Enclosure
from surebound.errors import PropertyError, UsageError
from surebound.network.graph import Input, Network, Node
from surebound.problem import Box, Region, Robustness, Verdict
from surebound.verify import stages
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.early_stop import Pace
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.queue import Queue
from surebound.verify.strategy import Iterations
from surebound.verify.tree import Tree

RULES = ("auto", "upb", "fsb", "sr")
LAZY = replace(
    ALONE, root=Ascent(iterations=0), ascent=Ascent(iterations=0), iterations=Iterations(count=0, cap=0)
)  # so that everything has to be split


SEEDS = {"fc": (1, 2), "conv": (3, 7), "residual": (3, 6), "pool": (4, 5)}  # that need splits, but not many


def both_sides(kind: str, seed: int, branching: str, options: Options | None = None) -> list[Verdict]:
    """Thresholds 1e-3 below and above the exact minimum."""
    network, box, row, least = exact(kind, seed)
    return [
        decide(network, region(box, row, constant), branching=branching, options=options)
        for constant in (-least + 1e-3, -least - 1e-3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("branching", RULES)
@pytest.mark.parametrize("kind", KINDS)
def test_verdicts_equal_the_milp(kind: str, branching: str) -> None:
    verdicts = [v for seed in SEEDS[kind] for v in both_sides(kind, seed, branching)]
    assert [v.status for v in verdicts] == ["unsat", "sat"] * 2
    assert all(v.subproblems > 1 for v in verdicts)


def test_input_bisection_equals_the_milp() -> None:
    for seed in range(3):
        unsat, sat = both_sides("fc", seed, "input")
        assert (unsat.status, sat.status) == ("unsat", "sat")
        assert unsat.branching == "input"


@pytest.mark.slow
@pytest.mark.parametrize("branching", ["upb", "sr"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_graph_form_gives_the_same_verdicts(kind: str, branching: str) -> None:
    options = Options(quick_attack=WEAK, strategy=replace(ALONE, folded_limit=0), timeout=60.0)
    assert [v.status for v in both_sides(kind, SEEDS[kind][1], branching, options)] == ["unsat", "sat"]


@pytest.mark.parametrize("branching", (*RULES, "input"))
def test_a_disjunction_over_boxes_needs_all_of_them(branching: str) -> None:
    network, _, row, _ = exact("fc", 3)
    rng = np.random.default_rng(3)
    boxes = [as_box(*random_box(rng, network, radius=0.7)) for _ in range(3)]
    least = [milp_minimum(network, box, row, 0.0).value for box in boxes]
    proved = [region(box, row, -value + 1e-3) for box, value in zip(boxes, least, strict=True)]
    assert decide(network, *proved, branching=branching).status == "unsat"
    for i in range(3):
        broken = [replace(part, constant=part.constant - 2e-3 * (i == j)) for j, part in enumerate(proved)]
        verdict = decide(network, *broken, branching=branching)
        assert verdict.status == "sat"
        assert violated(network, tuple(broken), verdict) == i


def pattern_minimum(network: Network, part: Region) -> float:
    """min over the box of the largest row, by one LP for each ReLU pattern."""
    n, widths = network.inputs, [network.width(k) for k in range(len(network.layers))]
    probes = torch.cat([torch.zeros(1, n), torch.eye(n)]).double()
    best = np.inf
    for signs in product((0.0, 1.0), repeat=sum(widths)):
        masks = torch.tensor(signs, dtype=torch.float64).split(widths)
        recorded: list[Matrix] = []

        def activate(k: int, xhat: Tensor, masks: tuple[Tensor, ...] = masks, out: list[Matrix] = recorded) -> Tensor:
            out.append(xhat.numpy())
            return xhat * masks[k]

        y = network.trace(probes, activate).numpy()
        side = 1 - 2 * np.array(signs)  # side · x̂ ≤ 0
        xhat = np.concatenate(recorded, axis=1)
        rows = y @ part.on_output.T + (0 if part.on_input is None else probes.numpy() @ part.on_input.T)
        upper = np.concatenate([rows[1:] - rows[0], (xhat[1:] - xhat[0]) * side], axis=1).T
        relief = np.concatenate([-np.ones(rows.shape[1]), np.zeros(xhat.shape[1])])[:, None]
        most = np.concatenate([-rows[0] - part.constant, -xhat[0] * side])
        limits = [*zip(part.box.lower, part.box.upper, strict=True), (None, None)]
        result = linprog(np.eye(n + 1)[-1], np.hstack([upper, relief]), most, bounds=limits)
        best = min(best, result.fun) if result.status == 0 else best
    return float(best)


@pytest.mark.slow
@pytest.mark.parametrize("on_input", [False, True])
def test_conjunctions_equal_all_patterns(on_input: bool, rng: np.random.Generator) -> None:
    """The rows' largest value is at least t* on the box: the region is empty iff t* > 0."""
    for rows in (2, 3):
        network = random_fc(rng, (2, 4, 2, 2))
        box = as_box(*random_box(rng, network, radius=1.5))
        also = rng.normal(size=(rows, 2)) if on_input else None
        part = region(box, rng.normal(size=(rows, 2)), rng.normal(size=rows), on_input=also)
        least = pattern_minimum(network, part)
        for shift, status in ((1e-3, "unsat"), (-1e-3, "sat")):
            near = replace(part, constant=part.constant - least + shift)
            for branching in RULES:
                assert decide(network, near, branching=branching).status == status


def test_input_rows_cut_the_box(rng: np.random.Generator) -> None:
    """y = x: y₀ ≥ 1 can be reached, and so can x₀ + x₁ ≤ −1, but not both where x₁ ≥ −1.9."""
    network = Network((Node(Input((2,)), (), "input"),), 0)
    rows, on_input = np.array([[-1.0, 0.0], [0.0, 0.0]]), np.array([[0.0, 0.0], [1.0, 1.0]])
    for low, status in ((-1.9, "unsat"), (-2.1, "sat")):
        part = region(Box(np.array([-3.0, low]), np.array([3.0, 3.0])), rows, 1.0, on_input=on_input)
        assert decide(network, part).status == status


@pytest.mark.parametrize("branching", (*RULES, "input"))
def test_strict_rows(branching: str) -> None:
    network, box, row, least = exact("fc", 4)
    for shift, status in ((1e-3, "unsat"), (-1e-3, "sat")):
        assert decide(network, region(box, row, shift - least, strict=True), branching=branching).status == status
    identity = Network((Node(Input((1,)), (), "input"),), 0)
    unit = Box(np.zeros(1), np.ones(1))
    options = Options(timeout=0.5)
    assert decide(identity, region(unit, np.ones(1), 0.0), branching=branching, options=options).status == "sat"
    touched = decide(identity, region(unit, np.ones(1), 0.0, strict=True), branching=branching, options=options)
    assert touched.status in ("unsat", "unknown", "timeout")


@pytest.mark.slow
def test_leaves_are_decided_without_any_ascent(rng: np.random.Generator) -> None:
    leaves = 0
    for _ in range(6):
        network = random_fc(rng, (2, 4, 3, 2))
        box, row = as_box(*random_box(rng, network, radius=1.5)), rng.normal(size=2)
        least = milp_minimum(network, box, row, 0.0).value
        for shift, status in ((1e-3, "unsat"), (-1e-3, "sat")):
            options = Options(quick_attack=WEAK, strategy=LAZY, timeout=60.0)
            verdict = decide(network, region(box, row, shift - least), branching="upb", options=options)
            assert verdict.status == status
            leaves += "leaves" in verdict.seconds_by_phase
    assert leaves >= 3


@pytest.mark.slow
def test_a_leaf_whose_violation_is_small_is_found() -> None:
    """Once `unknown`: the leaf's minimiser was not a minimiser of the row."""
    rng = np.random.default_rng(14)
    network = random_pool(rng)
    box = as_box(*random_box(rng, network, radius=0.25))
    row = rng.normal(size=2)
    least = milp_minimum(network, box, row, 0.0).value
    assert decide(network, region(box, row, -least - 1e-3), branching="upb").status == "sat"


def test_auto_does_not_bisect_what_few_splits_prove() -> None:
    """Once it bisected the three inputs without end."""
    rng = np.random.default_rng(11)
    network = random_fc(rng, (3, 6, 5, 2))
    box = as_box(*random_box(rng, network, radius=1.0))
    row = rng.normal(size=2)
    least = milp_minimum(network, box, row, 0.0).value
    verdict = decide(network, region(box, row, -least + 1e-3))
    assert verdict.status == "unsat"
    assert verdict.subproblems < 500


@pytest.mark.slow
def test_what_a_grid_finds_is_never_called_unsat() -> None:
    tally = dict.fromkeys(("unsat", "sat", "unknown", "timeout"), 0)
    axis = np.linspace(0.0, 1.0, 61)
    grid = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        network = random_fc(rng, [(2, 4, 2), (2, 5, 4, 2), (2, 3, 3, 3, 3)][seed % 3])
        parts, reachable = [], False
        for _ in range(rng.integers(1, 4)):
            box = as_box(*random_box(rng, network, radius=1.5))
            rows = int(rng.integers(1, 4))
            also = rng.normal(size=(rows, 2)) if rng.random() < 0.3 else None
            part = region(box, rng.normal(size=(rows, network.outputs)), 0.0, on_input=also)
            points = box.lower + grid * (box.upper - box.lower)
            value = row_values(network, part, points).max(1)  # the region is reached where this is ≤ 0
            part = replace(part, constant=-value.min() + rng.normal(scale=0.05, size=rows) + 0.02)
            reachable |= bool(row_values(network, part, points).max(1).min() <= 0)
            parts.append(part)
        branching = (*RULES, "input")[seed % 5]
        options = Options(timeout=2.0 if branching == "input" else 30.0)
        if seed % 2:
            options = replace(options, quick_attack=WEAK)
        status = decide(network, *parts, branching=branching, options=options).status
        tally[status] += 1
        assert not (reachable and status == "unsat"), seed
        assert not reachable or status == "sat", seed
    assert tally["unsat"] >= 20
    assert tally["sat"] >= 20
    assert tally["unknown"] + tally["timeout"] <= 3


@pytest.mark.slow
def test_a_queue_on_disk_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spilled = []

    class Watched(Queue):
        def close(self) -> None:
            spilled.append((self.spilled, len(list(tmp_path.iterdir()))))
            super().close()

    monkeypatch.setattr("surebound.verify.search.Queue", Watched)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    small = Options(quick_attack=WEAK, strategy=replace(ALONE, batch=128), memory=1, timeout=60.0)
    assert [v.status for v in both_sides("conv", 1, "sr", small)] == ["unsat", "sat"]
    assert spilled == [(True, 0), (True, 0)]  # the file has no name: nothing is left, however the process ends


@pytest.mark.parametrize("room", [0, 3])
def test_a_full_disk_ends_the_search_with_what_is_known(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `room` nodes, the disk takes half a node and then no more."""
    written: list[int] = []

    def pwrite(handle: int, data: bytes, place: int, write: Any = os.pwrite) -> int:
        written.append(len(data))
        if len(written) <= room:
            return int(write(handle, data, place))
        if len(written) == room + 1:
            return int(write(handle, data[: len(data) // 2], place))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", pwrite)
    network, box, row, least = exact("conv", 1)
    options = Options(quick_attack=WEAK, strategy=replace(ALONE, batch=128), memory=1, timeout=60.0)
    verdict = decide(network, region(box, row, 1e-3 - least), branching="sr", options=options)
    assert (verdict.status, len(written)) == ("unknown", room + 2)
    assert re.fullmatch(
        r"the search queue outgrew its memory and cannot be kept in '/.*' \(no space left on device\); "
        r"expected room there, \$TMPDIR to name a folder with room, or a larger --memory",
        verdict.reason,
    )
    assert verdict.subproblems > 64
    assert verdict.lower_bound is not None and verdict.lower_bound < 1e-3  # the least value of the row is 1e-3


def test_a_node_that_comes_back_changed_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that lost what was written gives back zeros: a node without splits, of the first region."""
    monkeypatch.setattr(os, "pread", lambda handle, size, place: bytes(size))
    network, box, row, least = exact("conv", 1)
    options = Options(quick_attack=WEAK, strategy=replace(ALONE, batch=128), memory=1, timeout=60.0)
    verdict = decide(network, region(box, row, 1e-3 - least), branching="sr", options=options)
    assert verdict.status == "unknown"
    assert "came back other than it was written" in verdict.reason


def test_no_time_is_a_timeout() -> None:
    network, box, row, least = exact("conv", 7)
    for branching in (*RULES, "input"):
        options = Options(quick_attack=WEAK, timeout=1e-9)
        verdict = decide(network, region(box, row, 1e-3 - least), branching=branching, options=options)
        assert verdict.status == "timeout"
        assert "time" in verdict.reason


def test_a_search_whose_time_runs_out_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it where its time is a share, after which the clock goes on."""

    def grow(self: Tree, pause: object = None) -> str | None:
        raise OutOfTime

    monkeypatch.setattr(Tree, "grow", grow)
    network, box, row, least = exact("conv", 7)
    verdict = decide(network, region(box, row, 1e-3 - least), branching="upb", options=Options(quick_attack=WEAK))
    assert verdict.status == "timeout"


@pytest.mark.slow
@pytest.mark.parametrize("branching", ["auto", "upb", "input"])
def test_wherever_the_time_runs_out_the_verdict_is_timeout(branching: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At every look at the clock, one after the other, until there are enough for a proof."""
    network, box, row, least = exact("conv", 7)
    margin = 0.03 if branching == "input" else 1e-3  # the row's least value
    part = region(box, row, margin - least)
    looks = 0

    def check(self: Clock) -> None:
        nonlocal looks
        looks += 1
        if looks > allowed:
            raise OutOfTime

    monkeypatch.setattr(Clock, "check", check)
    found, allowed = [], 0
    while not found or found[-1] == "timeout":
        looks, allowed = 0, allowed + max(1, allowed // 8)
        verdict = decide(network, part, branching=branching)
        assert verdict.lower_bound is None or verdict.lower_bound <= margin + 1e-9
        found.append(verdict.status)
    assert found[-1] == "unsat" and len(found) > 20


def test_early_stop_is_asked_only_if_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "takes_longer", lambda self, seconds, **_: seconds < float("inf"))
    network, box, row, least = exact("conv", 7)
    part, options = region(box, row, 1e-3 - least), Options(quick_attack=WEAK, timeout=60.0)
    assert decide(network, part, branching="upb", options=options).status == "unsat"
    verdict = decide(network, part, branching="upb", options=replace(options, early_stop=True))
    assert verdict.status == "timeout"
    assert "stopped early" in verdict.reason


def test_equal_boxes_are_bounded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not regions share the object: a property may write out the same box for each of them."""
    network, box, row, least = exact("conv", 3)
    bounded: list[float] = []

    whole = stages.settle_layers

    def settle(enclosure: Enclosure, *others: Any, **more: Any) -> bool:
        bounded.append(float(enclosure.upper[0].max()))
        return whole(enclosure, *others, **more)

    monkeypatch.setattr(stages, "settle_layers", settle)
    lower = np.where(box.lower == 0, -0.0, box.lower)
    copies = [Box(box.lower.copy(), box.upper.copy()), Box(lower, box.upper.copy()), box]
    other = Box(box.lower, box.upper + np.eye(len(box.upper))[0] * 2.0**-50)
    parts = [region(some, row, 1e-3 - least) for some in (*copies, other)]
    assert decide(network, *parts[:3], branching="upb").status == "unsat"
    assert len(bounded) == 1
    assert decide(network, *parts, branching="upb").status == "unsat"
    assert len(bounded) == 3  # another box is another box, however near


def test_a_seed_fixes_the_search() -> None:
    first, again = ([v.subproblems for v in both_sides("residual", 3, "upb")] for _ in range(2))
    assert first == again


def test_nothing_to_reach_is_unsat() -> None:
    network, box, row, _ = exact("fc", 0)
    assert decide(network).status == "unsat"
    empty = Box(box.upper + 1.0, box.lower)
    assert decide(network, region(empty, row, -1e6)).status == "unsat"
    assert decide(network, region(empty, row, 0.0), region(box, row, -1e6)).status == "sat"


@pytest.mark.parametrize("eps", [0.125, "0.125", "1/8", Fraction(1, 8)])
def test_robustness(eps: float | str | Fraction) -> None:
    """y = (2x₀ − 0.5, 1 − x₀) around x₀ = 0.75: the margin 3x₀ − 1.5 stays positive while x₀ > 0.5."""
    rng = np.random.default_rng(0)
    network = random_fc(rng, (1, 2))
    network.nodes[1].op.weight.copy_(torch.tensor([[2.0], [-1.0]]))
    network.nodes[1].op.bias.copy_(torch.tensor([-0.5, 1.0]))
    safe = verify(model(network), Robustness(np.array([0.75]), 0, eps), Options())
    assert safe.status == "unsat"
    broken = verify(model(network), Robustness(np.array([0.625]), 0, eps), Options())
    assert broken.status == "sat"  # the scores meet at 0.5
    assert broken.counterexample is not None
    assert broken.counterexample.x[0] == 0.5


def test_mistakes_are_named() -> None:
    network, box, row, _ = exact("fc", 0)
    x = np.full(3, 0.5)
    for label in (-1, 2):
        with pytest.raises(UsageError, match=f"label {label} is not one of the network's 2 outputs"):
            verify(model(network), Robustness(x, label, 0.1), Options())
    with pytest.raises(UsageError, match="eps"):
        verify(model(network), Robustness(x, 0, "1/0"), Options())
    with pytest.raises(UsageError, match="unknown branching 'best'"):
        decide(network, region(box, row, 0.0), branching="best")
    with pytest.raises(PropertyError, match="3 inputs"):
        verify(model(network), Robustness(np.zeros(4), 0, 0.1), Options())

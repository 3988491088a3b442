"""The first attempt at a property, on NumPy arrays: what it settles is settled before torch could be imported.

It is the beginning of the cascade (`surebound.verify.stages`) in small: a few points for a counterexample, then
intervals, FastLin and CROWN for a proof, and where few inputs vary, the search that bisects the box, for a moment. The
arithmetic and the search are the cascade's own, over arrays instead of tensors.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from surebound.attacks.objective import Objective
from surebound.bounds.enclosure import enclose
from surebound.bounds.fixed import fixed_rows
from surebound.network.activation import Lines
from surebound.network.cost import products
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Counterexample, Property, Region, Status, Verdict, by_box, stack_rows
from surebound.verify import FEW_INPUTS
from surebound.verify.begun import Begun
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.confirm import Confirm, expect_agreement
from surebound.verify.look import Look
from surebound.verify.queue import Queue
from surebound.verify.spaces.inputs import InputSpace
from surebound.verify.strategy import Strategy
from surebound.verify.tree import Tree

PRODUCTS = 2**26
"""Multiply-adds of a pass for all regions, beyond which torch is faster, its import included."""
ELEMENTS = 2**24
"""Numbers in the largest array of a pass."""
STEPS = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25)
"""Half widths of the box that a point moves along the sign of its gradient, one after the other."""
LINES: tuple[Lines, ...] = ("interval", "fastlin", "crown")
SECONDS = 0.5
"""That bisecting may take: beyond, torch is worth its import, for more threads than one."""


def first_attempt(
    model: Model,
    problem: Property,
    clock: Clock,
    *,
    seed: int = 0,
    bisect: bool = True,
    seconds: float = SECONDS,
    slow: Callable[[], None] = lambda: None,
) -> Verdict | Begun | None:
    """Return a verdict if a few points, one backward pass or a short search decide; else where that search stands, or
    None.

    `model` over NumPy arrays. The search may take some `seconds`; once half of them are over, `slow` is called.
    """
    model.check_fits(problem)
    regions = [region for region in problem.regions if not region.box.empty]
    if not regions or regions[0].box.norm != "inf" or not _small(model.network, regions):
        return None
    try:
        with np.errstate(all="ignore"):  # NaN and infinity prove nothing
            with clock.phase("attack"):
                found = _counterexample(model, regions, clock)
            if found is not None:
                return _verdict("sat", clock, seed, counterexample=found)
            if all(_proved(model.network, [regions[i] for i in group], clock) for group in by_box(regions)):
                return _proved_all(model, regions, clock, seed, subproblems=len(regions))
            bisect = bisect and 0 < problem.varying <= FEW_INPUTS and _quick(model.network, regions)
            return _bisected(model, regions, clock, seed, seconds, slow) if bisect else None
    except OutOfTime:
        return None


def _small(network: Network, regions: Sequence[Region]) -> bool:
    rows = sum(len(region.constant) for region in regions) + len(regions)
    return rows * products(network, network.output) <= PRODUCTS and rows * network.widest <= ELEMENTS


def _verdict(status: Status, clock: Clock, seed: int, **more: Any) -> Verdict:
    return Verdict(status=status, seconds=clock.elapsed, seconds_by_phase=clock.phases, seed=seed, **more)


def _proved_all(model: Model, regions: Sequence[Region], clock: Clock, seed: int, **more: Any) -> Verdict:
    expect_agreement(model, regions)
    return _verdict("unsat", clock, seed, **more)


def _counterexample(model: Model, regions: Sequence[Region], clock: Clock) -> Counterexample | None:
    """From the centre of each box along the sign of the gradient: every point of a region that violates is replayed."""
    objective, confirm = Objective(model.network, regions, thin="nearest"), Confirm(model.network, model.replay)
    x = objective.clip((objective.lower / 2 + objective.upper / 2)[:, None])  # (regions, 1, inputs)
    for step in (*STEPS, 0.0):
        clock.check()
        value, gradient = objective.value_and_gradient(x)
        for i in np.flatnonzero(np.asarray(value[:, 0]) <= 0).tolist():
            found = confirm(np.asarray(x[i, 0], dtype=np.float64), [regions[i]])
            if found is not None:
                return found
        x = objective.clip(x - step * objective.half_width[:, None] * np.sign(gradient))  # type: ignore[arg-type]
    return None


def _proved(network: Network, regions: Sequence[Region], clock: Clock) -> bool:
    """Whether every region over a box has a row that is above 0 in all of it, so that it cannot hold."""
    box, shape = regions[0].box, (1, *network.input_shape)
    if not all(len(region.constant) for region in regions):  # violated everywhere
        return False
    enclosure = enclose(network, *(network.array(end.reshape(shape)) for end in (box.lower, box.upper)))
    rows = [network.array(part[None]) for part in stack_rows(regions)]
    starts = np.cumsum([0, *(len(region.constant) for region in regions)])[:-1]
    best = np.full(len(regions), -np.inf)
    for lines in LINES:
        bounds = np.asarray(fixed_rows(enclosure, lines, *rows, check=clock.check))[0]
        best = np.fmax(best, np.maximum.reduceat(bounds, starts))
        if (best > 0).all():
            return True
    return False


def _quick(network: Network, regions: Sequence[Region]) -> bool:
    """Whether one box takes no time, and every region can be proved of it."""
    symbols = network.inputs + network.neurons
    return all(len(r.constant) for r in regions) and symbols * products(network, network.output) <= PRODUCTS


def _bisected(
    model: Model, regions: Sequence[Region], clock: Clock, seed: int, seconds: float, slow: Callable[[], None]
) -> Verdict | Begun | None:
    """What the search that bisects boxes finds out in some seconds."""
    look = Look(model.network, regions, Confirm(model.network, model.replay), clock.check)
    space, queue = InputSpace(model.network, regions, Strategy(), clock), Queue(2**28)
    tree = Tree(space, queue, clock, look)
    paused = tree.grow(lambda tree: "half" if tree.seconds > seconds / 2 else None)
    if paused is not None:
        slow()
        paused = tree.grow(lambda tree: "slow" if tree.seconds > seconds else None)
    if paused is not None:  # what is undecided is not in the queue
        return None if tree.undecided else Begun(regions, queue.pop(len(queue)), tree.subproblems)
    more: dict[str, Any] = {"subproblems": tree.subproblems, "branching": "input"}
    if tree.found is not None:
        return _verdict("sat", clock, seed, counterexample=tree.found, **more)
    return _proved_all(model, regions, clock, seed, **more) if tree.proved else None

"""The first attempt at a property, on NumPy arrays: what it settles is settled before torch could be imported.

It is the beginning of the cascade (`surebound.verify.stages`) in small: a few points for a counterexample, then
intervals, FastLin and CROWN for a proof. The arithmetic is the cascade's own, over arrays instead of tensors.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from surebound.attacks.objective import Objective
from surebound.bounds.enclosure import enclose
from surebound.bounds.fixed import Lines, fixed_rows
from surebound.network.cost import products
from surebound.network.graph import Network
from surebound.network.linear import size
from surebound.network.model import Model
from surebound.problem import Counterexample, Property, Region, Status, Verdict, stack_rows
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.confirm import Confirm

PRODUCTS = 2**26
"""Multiply-adds of a pass for all regions, beyond which torch is faster, its import included."""
ELEMENTS = 2**24
"""Numbers in the largest array of a pass."""
STEPS = (1.0, 1.0, 0.5, 0.5, 0.25, 0.25)
"""Half widths of the box that a point moves along the sign of its gradient, one after the other."""
LINES: tuple[Lines, ...] = ("interval", "fastlin", "crown")


def first_attempt(model: Model, problem: Property, clock: Clock, *, seed: int = 0) -> Verdict | None:
    """The verdict, if a few points or one backward pass settle it. `model` over NumPy arrays."""
    model.check_fits(problem)
    regions = [region for region in problem.regions if not region.box.empty]
    if not regions or regions[0].box.norm != "inf" or not _small(model.network, regions):
        return None
    try:
        with np.errstate(all="ignore"), clock.phase("attack"):  # NaN and infinity prove nothing
            found = _counterexample(model, regions, clock)
        if found is not None:
            return _verdict("sat", clock, seed, counterexample=found)
        with np.errstate(all="ignore"):
            proved = all(_proved(model.network, group, clock) for group in _by_box(regions))
    except OutOfTime:
        return None
    return _verdict("unsat", clock, seed, subproblems=len(regions)) if proved else None


def _small(network: Network, regions: Sequence[Region]) -> bool:
    rows = sum(len(region.constant) for region in regions) + len(regions)
    widest = max(size(node.shape) for node in network.nodes)
    return rows * products(network, network.output) <= PRODUCTS and rows * widest <= ELEMENTS


def _verdict(status: Status, clock: Clock, seed: int, **more: Any) -> Verdict:
    return Verdict(status=status, seconds=clock.elapsed, seconds_by_phase=clock.phases, seed=seed, **more)


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


def _by_box(regions: Sequence[Region]) -> Iterator[list[Region]]:
    groups: dict[tuple[bytes, bytes], list[Region]] = {}
    for region in regions:
        groups.setdefault(region.box.key, []).append(region)
    yield from groups.values()


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

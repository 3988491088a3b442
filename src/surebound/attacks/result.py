"""What an attack returns, and the descent that all attacks share.

An attack is its `Rule`: how a gradient becomes a move. Starting points, projection on the boxes, waves that bound the
memory, the best point so far and when to stop are the same for all of them and live here.
"""

import time
from dataclasses import dataclass
from typing import Literal, Protocol, final, get_args

import torch
from torch import Tensor

from surebound.attacks.objective import Objective
from surebound.errors import UsageError

StopAt = Literal["any", "all"]

WAVE_BYTES = 1 << 23
"""The largest tensor of a wave of points. More is no faster once it leaves the cache, and finds nothing sooner."""


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The best point of each region, which lies in its box.

    A region in which no point could be tried (it holds no float32 point, the network overflows, or the attack stopped
    before) has the point NaN and the value +∞.
    """

    points: Tensor  # (regions, inputs) float32
    values: Tensor  # (regions,) float32, v(points) of `surebound.attacks.objective`
    found: Tensor  # (regions,) bool, v(points) <= 0: a candidate counterexample, to be replayed


class Attack(Protocol):
    """What every entry of `surebound.attacks.ATTACKS` makes."""

    def run(
        self,
        objective: Objective,
        *,
        generator: torch.Generator,
        start: Tensor | None = None,
        deadline: float | None = None,
    ) -> AttackResult:
        """Search all regions.

        Args:
            objective: what to minimise, and over which boxes.
            generator: where all randomness comes from.
            start: (regions, restarts, inputs), the only starting points, instead of random ones. Clipped to the boxes.
            deadline: return soon after `time.monotonic()` passes this.
        """
        ...


class Rule(Protocol):
    """How an attack moves."""

    def __call__(
        self, iteration: int, gradient: Tensor, momentum: Tensor, half_width: Tensor, restarts: slice
    ) -> tuple[Tensor, Tensor]:
        """The change of x and the next momentum (0 before the first), for some regions and the given restarts.

        gradient, momentum and results: (regions, restarts, inputs); half_width: (regions, 1, inputs).
        """
        ...


def descend(
    objective: Objective,
    rule: Rule,
    *,
    steps: int,
    restarts: int,
    diversify: int,
    stop_at: StopAt,
    generator: torch.Generator,
    start: Tensor | None,
    deadline: float | None,
) -> AttackResult:
    """x ← Π_box(x + rule(∇v(x))) from every starting point, `steps` times, keeping the best x of each region.

    Without `start`, the first restart begins at the centre of the box and the others uniformly in it. What is drawn is
    drawn once for each restart and shared by the regions: a region's search does not depend on which other regions are
    in the batch, except through `stop_at`.

    Before that, the random restarts move `diversify` times by a half width along the sign of ∇(w · f(x)), with w uniform
    in [−1, 1]^outputs, which spreads the outputs where uniform starts only spread the inputs (ODI: Tashiro, Song and
    Ermon 2020, eq. 2–3). Given starts and the centre stay where they are.
    """
    best = _Best(objective, stop_at, deadline)
    unit = direction = None
    if start is None:
        unit = 2 * torch.rand(restarts, objective.inputs, generator=generator) - 1
        unit[0] = 0.0
        if diversify:
            direction = 2 * torch.rand(restarts, objective.outputs, generator=generator) - 1
            direction[0] = 0.0
    else:
        expected = (len(objective), objective.inputs)
        if start.ndim != 3 or (start.shape[0], start.shape[2]) != expected:
            raise UsageError(
                f"an attack's start must have the shape (regions, restarts, inputs) = ({expected[0]}, any, {expected[1]}),"
                f" got {tuple(start.shape)}"
            )
        restarts = start.shape[1]

    capacity = max(1, WAVE_BYTES // objective.bytes_per_point)  # points of a wave
    regions = torch.nonzero(objective.attackable).reshape(-1)
    done = 0
    while done < restarts and len(regions):
        now = slice(done, min(restarts, done + max(1, capacity // len(regions))))
        for group in regions.split(max(1, capacity // (now.stop - now.start))):
            part = objective.take(group)
            if start is not None:
                x = start[group, now].to(part.lower)
            else:
                assert unit is not None
                x = (part.lower / 2 + part.upper / 2)[:, None] + unit[now] * part.half_width[:, None]
            w = None if direction is None else direction[now]
            _wave(part, group, part.clip(x), rule, steps, now, diversify, w, best)
            if best.over():
                return best.result()
        regions = regions[best.values[regions] > 0]
        done = now.stop
    return best.result()


def _wave(
    objective: Objective,
    group: Tensor,  # the objective's regions among those of `best`
    x: Tensor,  # (regions, restarts, inputs)
    rule: Rule,
    steps: int,
    restarts: slice,
    diversify: int,
    direction: Tensor | None,  # (restarts, outputs)
    best: "_Best",
) -> None:
    """The descent of as many points as fit in memory."""
    momentum = torch.zeros_like(x)
    for iteration in range(0 if direction is None else -diversify, steps + 1):
        if iteration == steps:
            best.update(group, x, objective.value(x))
            return
        value, gradient = objective.value_and_gradient(x, direction=direction if iteration < 0 else None)
        best.update(group, x, value)
        if best.over():
            return
        open_ = best.values[group] > 0
        if not open_.all():
            if not open_.any():
                return
            objective, group = objective.take(open_), group[open_]
            x, momentum, gradient = x[open_], momentum[open_], gradient[open_]
        half_width = objective.half_width[:, None]
        if iteration < 0:
            x = objective.clip(x + half_width * gradient.sign())
            continue
        move, momentum = rule(iteration, gradient, momentum, half_width, restarts)
        last, x = x, objective.clip(x + move)
        if torch.equal(x, last) and torch.equal(x, objective.clip(x - half_width * gradient.sign())):
            return  # every point sits in the corner that its gradient points to: a local minimum


@final
class _Best:
    """The best points so far, and whether they are good enough."""

    def __init__(self, objective: Objective, stop_at: StopAt, deadline: float | None) -> None:
        self.points = torch.full_like(objective.lower, torch.nan)
        self.values = torch.full((len(objective),), torch.inf)
        self._stop_at = stop_at
        self._deadline = deadline

    def update(self, group: Tensor, x: Tensor, value: Tensor) -> None:
        """Take over what is better. # (regions,), (regions, restarts, inputs), (regions, restarts)"""
        lowest, at = value.min(1)
        better = lowest < self.values[group]
        self.values[group[better]] = lowest[better]
        self.points[group[better]] = x[better, at[better]]

    def over(self) -> bool:
        """Whether to stop now."""
        found = self.values <= 0
        enough = found.any() if self._stop_at == "any" else found.all()
        return bool(enough) or (self._deadline is not None and time.monotonic() >= self._deadline)

    def result(self) -> AttackResult:
        """What to return."""
        return AttackResult(self.points, self.values, self.values <= 0)


def check_counts(attack: str, *, steps: int, restarts: int, diversify: int, stop_at: str) -> None:
    """Raise UsageError unless the settings that all attacks share make sense."""
    for name, value, least in (("steps", steps, 0), ("restarts", restarts, 1), ("diversify", diversify, 0)):
        if value < least:
            raise UsageError(f"{attack}: {name} must be at least {least}, got {value}")
    if stop_at not in get_args(StopAt):
        raise UsageError(f"{attack}: stop_at must be 'any' or 'all', got {stop_at!r}")

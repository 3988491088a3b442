"""The descent that all attacks share, and what an attack returns.

An attack is its `Update`: how a gradient becomes a move. Starting points, projection on the boxes, waves that bound the
memory, the best point so far and when to stop are the same for all of them and live here.
"""

import itertools
import time
from dataclasses import dataclass
from typing import Literal, Protocol, final, get_args

import torch
from torch import Tensor

from surebound.attacks.objective import Objective
from surebound.errors import UsageError

StopAt = Literal["any", "all"]


@dataclass(frozen=True, eq=False)
class AttackResult:
    """The best point of each region, which lies in its box; where counterexamples were found, the best of the first.

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
            deadline: evaluate nothing after `time.monotonic()` passes this, and return what there is.
        """
        ...


class Update(Protocol):
    """How an attack moves."""

    def __call__(
        self, iteration: int, gradient: Tensor, momentum: Tensor, objective: Objective, restarts: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The change of x, and the next momentum; the first is 0. `restarts` says which restarts these are.

        # gradient, momentum and results: (regions, restarts, inputs)
        """
        ...


def drawn(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Uniform in [0, 1), on the processor: the same whatever device they are taken to."""
    return torch.rand(shape, generator=generator, device="cpu")


def starts(objective: Objective, start: Tensor | None, restarts: int) -> int:
    """The number of starting points of each region, given or not."""
    if start is None:
        return restarts
    if start.ndim != 3 or (start.shape[0], start.shape[2]) != (len(objective), objective.inputs):
        raise UsageError(
            f"an attack's start must have the shape (regions, restarts, inputs), here ({len(objective)}, any,"
            f" {objective.inputs}), got {tuple(start.shape)}"
        )
    return start.shape[1]


def descend(
    objective: Objective,
    update: Update,
    *,
    moves: Tensor,  # (restarts,) int
    diversify: int,
    stop_at: StopAt,
    generator: torch.Generator,
    start: Tensor | None,
    deadline: float | None,
) -> AttackResult:
    """x ← Π(x + update(∇v(x))) from every starting point, `moves` times, keeping the best x of each region.

    Π is the projection on the region's box or ball.
    Without `start`, the first restart begins at the centre of the domain and the others all over it. What is drawn is
    drawn once for each restart and shared by the regions: a region's search does not depend on which other regions are
    in the batch, except through `stop_at`.

    Every second restart first moves `diversify` times by a half width along ∇(w · f(x)), w uniform in
    [−1, 1]^outputs, which spreads the outputs where uniform starts only spread the inputs (ODI: Tashiro, Song and Ermon
    2020, eq. 2–3). Some counterexamples are only found from there and others never, hence one half of each.
    """
    restarts = len(moves)
    best = _Best(objective, stop_at, deadline)
    unit = w = None
    if start is None:
        unit = 2 * drawn((restarts, objective.inputs), generator).to(objective.lower.device) - 1
        unit[0] = 0.0
        if diversify and restarts > 1:
            w = 2 * drawn((restarts, objective.outputs), generator).to(objective.lower.device) - 1
            w[::2] = 0.0

    regions = torch.nonzero(objective.attackable).reshape(-1)
    if len(regions) > objective.capacity and (middle := objective.middle_values()) is not None:
        regions = regions[middle[regions].argsort(stable=True)]  # the most promising first: time may end the attack
    done = 0
    while done < restarts and len(regions):
        end = min(restarts, done + max(1, objective.capacity // len(regions)))
        wave = torch.arange(done, end, device=moves.device)
        for group in regions.split(max(1, objective.capacity // len(wave))):
            part = objective.take(group)
            if unit is not None:
                x = part.starts(unit[wave])
            else:
                assert start is not None
                x = part.clip(start[group[:, None], wave].to(part.lower))
            if w is not None:
                x = _diversified(part, group, x, w[wave], diversify, best)
            _descend_wave(part, group, x, update, wave, moves, best)
            if best.over():
                return best.result()
        regions = regions[best.values[regions] > 0]
        done += len(wave)
    return best.result()


def _diversified(objective: Objective, group: Tensor, x: Tensor, w: Tensor, count: int, best: "_Best") -> Tensor:
    """Starting points moved along w · f. # w: (restarts, outputs)"""
    for _ in range(count):
        if best.over():
            break
        value, gradient = objective.value_and_gradient(x, direction=w)
        best.update(group, x, value)
        x = objective.clip(x + objective.along(gradient))
    return x


def _descend_wave(
    objective: Objective,
    group: Tensor,  # which of the regions of `best` the objective has
    x: Tensor,  # (regions, restarts, inputs)
    update: Update,
    restarts: Tensor,  # which of all restarts x has
    moves: Tensor,  # (all restarts,)
    best: "_Best",
) -> None:
    """The descent of as many points as fit in memory. Regions leave when found, restarts after their last move."""
    momentum = torch.zeros_like(x)
    for iteration in itertools.count():
        if best.over():
            return
        running = moves[restarts] > iteration
        if not running.any():
            best.update(group, x, objective.value(x))
            return
        value, gradient = objective.value_and_gradient(x)
        best.update(group, x, value)
        open_ = best.values[group] > 0
        if not open_.any():
            return
        if not open_.all() or not running.all():
            objective, group, restarts = objective.take(open_), group[open_], restarts[running]
            x, momentum, gradient = (t[open_][:, running] for t in (x, momentum, gradient))
        move, momentum = update(iteration, gradient, momentum, objective, restarts)
        last, x = x, objective.clip(x + move)
        if torch.equal(x, last) and torch.equal(x, objective.clip(x + objective.along(-gradient))):
            return  # every point sits in the corner that its gradient points to: a local minimum


@final
class _Best:
    """The best points so far, and whether they are good enough."""

    def __init__(self, objective: Objective, stop_at: StopAt, deadline: float | None) -> None:
        self.points = torch.full_like(objective.lower, torch.nan)
        self.values = objective.lower.new_full((len(objective),), torch.inf)
        self._stop_at = stop_at
        self._deadline = deadline

    def update(self, group: Tensor, x: Tensor, value: Tensor) -> None:
        """Take over what is better, where nothing is found yet.

        # (regions,), (regions, restarts, inputs), (regions, restarts)
        """
        lowest, at = value.min(1)
        better = (lowest < self.values[group]) & (self.values[group] > 0)
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

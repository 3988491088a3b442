"""Statistics of one run's rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TypeVar

from surebound.evaluate.store import OUTCOMES, STAGES, Outcome, Row, Stage
from surebound.report.numbers import number, radius

T = TypeVar("T")
Point = tuple[float, float]

_Z = 1.959964  # of a 95 % interval
_FASTEST = 1e-3  # seconds: times below are noise, and 0 has no logarithm


@dataclass(frozen=True)
class Step:
    """A stage: how many images reached it, and how many it settled in which way."""

    stage: Stage
    arriving: int
    settled: Mapping[Outcome, int]

    @property
    def going_on(self) -> int:
        return self.arriving - sum(self.settled.values())


def funnel(rows: Sequence[Row]) -> list[Step]:
    """The stages in order, up to the last that an image reached."""
    counts = Counter((row.stage, row.outcome) for row in rows)
    steps, left = [], len(rows)
    for stage in STAGES:
        settled = {outcome: counts[stage, outcome] for outcome in OUTCOMES if counts[stage, outcome]}
        if left:
            steps.append(Step(stage, left, settled))
        left -= sum(settled.values())
    return steps


def interval(share: float, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of n images.

    >>> [round(v, 4) for v in interval(0.5, 100)]
    [0.4038, 0.5962]
    """
    if n == 0:
        return 0.0, 1.0
    middle = (share + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z / (1 + _Z**2 / n) * sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def cactus(seconds: Sequence[float]) -> list[Point]:
    """(k, time of the k-th fastest)."""
    return [(k, max(s, _FASTEST)) for k, s in enumerate(sorted(seconds), start=1)]


def times(rows: Sequence[Row], *outcomes: Outcome) -> list[float]:
    """The seconds of the rows that ended in one of some ways."""
    return [row.seconds for row in rows if row.outcome in outcomes and isfinite(row.seconds)]


def phase_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """All seconds by phase, in the order in which phases first appear."""
    totals: dict[str, float] = {}
    for row in rows:
        for name, value in row.phases.items():
            seconds = number(value)
            totals[name] = totals.get(name, 0.0) + (seconds if isfinite(seconds) else 0.0)
    return {name: seconds for name, seconds in totals.items() if seconds > 0}


def has_radii(rows: Sequence[Row]) -> bool:
    """Whether the radius was searched for."""
    return any(row.certified_eps is not None or row.attacked_eps is not None for row in rows)


def certified_curve(rows: Sequence[Row]) -> list[Point]:
    """(r, share of the images whose class is proved to hold within r), as the corners of a descending stair."""
    return _stair([value if row.correct and isfinite(value := radius(row.certified_eps)) else -1.0 for row in rows])


def standing_curve(rows: Sequence[Row]) -> list[Point]:
    """(r, share of the images without a counterexample within r); it ends at the last counterexample."""
    limits = [radius(row.attacked_eps) if row.correct else -1.0 for row in rows]
    return _stair([limit if isfinite(limit) else float("inf") for limit in limits])


def _stair(limits: Sequence[float]) -> list[Point]:
    """How the share of limits that are at least r falls with r."""
    n = max(len(limits), 1)
    share = sum(limit >= 0 for limit in limits) / n
    points = [(0.0, share)]
    for limit, falls in sorted(Counter(limit for limit in limits if 0 <= limit < float("inf")).items()):
        points.append((limit, share))
        share -= falls / n
        points.append((limit, share))
    return points


def thin(items: Sequence[T], most: int) -> list[T]:
    """Evenly chosen items, the first and the last among them.

    >>> thin(range(11), 3)
    [0, 5, 10]
    """
    if len(items) <= most:
        return list(items)
    return [items[round(k * (len(items) - 1) / (most - 1))] for k in range(most)]

"""How long the rest will take."""

from collections.abc import Sequence
from statistics import fmean
from typing import final

_REPEATED = frozenset({"train", "certify"})  # kinds of which one that is done already is done again, in no time
_TELLING = 1.0  # seconds: one of these that takes less was there already
_EARLY = 0.02  # share of a job below which its pace says little


@final
class Pace:
    """Learns how long jobs of each kind take."""

    def __init__(self) -> None:
        self._seconds: dict[str, list[float]] = {}

    def add(self, kind: str, seconds: float) -> None:
        """A job of a kind took so long."""
        self._seconds.setdefault(kind, []).append(seconds)

    def remaining(
        self, ready: Sequence[str], running: Sequence[tuple[str, float, float]], left: int, workers: int
    ) -> float | None:
        """Seconds until all is done: jobs that are ready, by kind; running ones with share and seconds so far.

        `left` counts both, and those that will follow from them; these are taken for what is not `ready`'s own kind:
        each takes as long as a mean job. None before enough is known.

        >>> pace = Pace()
        >>> pace.add("train", 100.0)
        >>> pace.remaining(["train"], [("train", 0.5, 60.0)], 2, 1)
        160.0
        """
        under_way = {kind: seconds / share for kind, share, seconds in running if share > _EARLY}
        known = {kind: fmean(times) for kind in self._seconds if (times := self._telling(kind))}
        expected = under_way | known
        if not expected:
            return None
        mean = fmean(expected.values())
        total = sum(expected.get(kind, mean) for kind in ready)
        for kind, share, seconds in running:
            whole = seconds / share if share > _EARLY else max(expected.get(kind, mean), seconds)
            total += max(whole - seconds, 0.0)
        followers = left - len(ready) - len(running)
        following = [value for kind, value in known.items() if kind not in ready] or [mean]
        return (total + max(followers, 0) * fmean(following)) / workers

    def _telling(self, kind: str) -> list[float]:
        """The times of a kind; those of jobs that found everything done only if there are no others."""
        times = self._seconds[kind]
        return [t for t in times if t >= _TELLING or kind not in _REPEATED] or times

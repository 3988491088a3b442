"""Time: a deadline, and where the seconds went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from surebound.verify.progress import OnProgress, Progress


class OutOfTime(Exception):
    """The deadline has passed. Never leaves `surebound.verify`."""


class Clock:
    """Counts seconds by phase and knows when to stop."""

    def __init__(
        self, timeout: float | None, on_progress: OnProgress | None = None, *, start: float | None = None
    ) -> None:
        """`start` is when the time began (`time.monotonic()`), if that was before now."""
        self._on_progress = on_progress
        self.start = time.monotonic() if start is None else start
        self.deadline = float("inf") if timeout is None else self.start + timeout
        self._phases: dict[str, float] = {}
        self._open: list[str] = []  # the phases under way, outermost first
        self._counted = self.start  # up to when the time is in `_phases`

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def remaining(self) -> float:
        return self.deadline - time.monotonic()

    def quiet(self) -> "Clock":
        """A clock with the same deadline that reports to nobody: for a part of one phase."""
        return Clock(self.remaining if self.deadline < float("inf") else None)

    def check(self) -> None:
        """Raise OutOfTime once the deadline has passed."""
        if self.remaining <= 0:
            raise OutOfTime

    def report(self, phase: str, *, subproblems: int = 0, open_: int = 0, lowest: float | None = None) -> None:
        """Report how far the verification is, if anybody watches."""
        if self._on_progress is not None:
            self._on_progress(
                Progress(phase=phase, seconds=self.elapsed, subproblems=subproblems, open=open_, lowest=lowest)
            )

    @property
    def phases(self) -> dict[str, float]:
        """The seconds of each phase so far, to the microsecond."""
        self._count()
        return {name: round(seconds, 6) for name, seconds in self._phases.items()}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time spent inside towards a phase, and not towards the one around it."""
        self._count()
        if name not in self._phases:
            self._phases[name] = 0.0
            self.report(name)
        self._open.append(name)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def _count(self) -> None:
        now = time.monotonic()
        if self._open:
            self._phases[self._open[-1]] += now - self._counted
        self._counted = now


class Budget:
    """A share of the time that passes, for something that would otherwise take all of it."""

    def __init__(self, share: float) -> None:
        self.share, self.seconds = share, 0.0

    def allows(self, passed: float) -> bool:
        """Whether less than its share of so many seconds is spent."""
        return self.seconds < self.share * passed

    @contextmanager
    def spent(self) -> Iterator[None]:
        """Count the time spent inside."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds += time.monotonic() - begin

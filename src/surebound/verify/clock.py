"""Time: a deadline, and where the seconds went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTime(Exception):
    """The deadline has passed. Never leaves `surebound.verify`."""


class Clock:
    """Counts seconds by phase and knows when to stop."""

    def __init__(self, timeout: float | None) -> None:
        self.start = time.monotonic()
        self.deadline = float("inf") if timeout is None else self.start + timeout
        self.phases: dict[str, float] = {}

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start

    @property
    def remaining(self) -> float:
        return self.deadline - time.monotonic()

    def check(self) -> None:
        """Raise OutOfTime once the deadline has passed."""
        if self.remaining <= 0:
            raise OutOfTime

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time spent inside towards a phase."""
        begin = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.monotonic() - begin

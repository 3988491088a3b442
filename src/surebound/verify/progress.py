"""What a caller may watch while a verification runs."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A snapshot."""

    phase: str  # what is going on: "attack", "root", "search", or a part of the search such as "bounding"
    seconds: float
    subproblems: int = 0
    open: int = 0  # subproblems in the queue
    lowest: float | None = None  # their lowest bound


OnProgress = Callable[[Progress], None]

"""Which engine does the work."""

from surebound.errors import UsageError
from surebound.work.inline import Inline
from surebound.work.processes import Processes
from surebound.work.task import Engine


def choose(*, workers: int = 1) -> Engine:
    """The engine for so many workers: this process alone for one."""
    if not isinstance(workers, int) or workers < 1:
        raise UsageError(f"workers is {workers!r}; expected a whole number from 1 up")
    return Inline() if workers == 1 else Processes(workers)

"""When others are to take part in a search, and whether they make it faster."""

from collections.abc import Callable

import torch

from surebound.verify.pieces import Sharing
from surebound.verify.strategy import Strategy
from surebound.verify.tree import Tree

_ATTACKS = 0.2  # of the time, at most, while a pace is taken: what looking at a batch's minimisers takes is less


class Trial:
    """Lets a search go on alone for a while, since many end soon, and until it is ready to be shared.

    To compare workers with threads, it then measures the search's pace with all threads, then with one. N workers are
    at most N times as fast as one thread: if that is too little, none are started. Otherwise they are, their pace is
    measured as well, and if it is lower, threads go on.
    """

    def __init__(self, sharing: Sharing, strategy: Strategy, ready: Callable[[], bool]) -> None:
        """`ready` is asked after every batch until it is so, and may take some time for that."""
        self._count, self._threads, self._strategy = sharing.count, sharing.compare, strategy
        self._ask, self._ready = ready, False
        self._watch = _Watch()
        self._pace: float | None = None  # with all threads
        self._gain: float | None = None  # of workers over threads, as expected
        self._measured: float | None = None  # as it was

    def ended(self, tree: Tree) -> bool:
        """Whether it is time for workers, and perhaps worth it."""
        strategy = self._strategy
        if self._gain is not None or tree.open < 2:
            return False
        if tree.seconds < strategy.alone or tree.pace.batches < strategy.alone_batches:
            return False
        if not self._ready:
            self._ready = self._ask()
            return self._ready and not self._threads
        return self._compared(tree) if self._threads else True

    def slower(self, tree: Tree, subproblems: int) -> bool:
        """Whether workers, who have bounded so many subproblems together with the tree, are slower than threads."""
        if self._pace is None or self._measured is not None:
            return False
        pace = self._watch.pace(tree, subproblems, self._strategy.trial_workers)
        if pace is None:
            return False
        self._measured = pace / self._pace
        return self._measured < 1.0

    def _compared(self, tree: Tree) -> bool:
        pace = self._watch.pace(tree, tree.subproblems, self._strategy.trial)
        if pace is None:
            return False
        if self._pace is None:
            self._pace = max(pace, 1e-9)
            torch.set_num_threads(1)
            return False
        self._gain = self._count * pace / self._pace
        self.end()
        return self._gain >= self._strategy.trial_gain

    def end(self) -> None:
        """Have all threads again."""
        if self._threads:
            torch.set_num_threads(self._threads)

    @property
    def told(self) -> str:
        """What came of the comparison, for people."""
        if self._measured is not None:
            return f"{self._threads} threads, since {self._count} workers were {self._measured:.2f} times as fast"
        if self._gain is not None:
            return f"{self._threads} threads, since {self._count} workers would be {self._gain:.2f} times as fast"
        return ""


class _Watch:
    """Measures subproblems per second, ignoring intervals in which attacks took much of the time."""

    def __init__(self) -> None:
        self._since: tuple[float, int, float] | None = None  # seconds, subproblems and seconds of attacks

    def pace(self, tree: Tree, subproblems: int, seconds: float) -> float | None:
        """The pace since it was first asked for, once that was so many seconds ago; then it begins anew."""
        now = tree.seconds, subproblems, tree.clock.phases.get("attack", 0.0)
        if self._since is None:
            self._since = now
            return None
        passed, more, attacks = (new - old for new, old in zip(now, self._since, strict=True))
        if passed < seconds:
            return None
        self._since = None
        return more / passed if attacks <= _ATTACKS * passed else None

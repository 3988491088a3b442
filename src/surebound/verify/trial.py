"""When others are to take part in a search, and whether they would make it faster."""

import torch

from surebound.verify.pieces import Sharing
from surebound.verify.strategy import Strategy
from surebound.verify.tree import Tree


class Trial:
    """Lets a search go on alone for a while: many end soon.

    Where workers are to be compared with threads, it then goes on with one thread for a moment: so many workers are
    expected to be so many times as fast as that.
    """

    def __init__(self, sharing: Sharing, strategy: Strategy) -> None:
        self._count, self._threads, self._strategy = sharing.count, sharing.compare, strategy
        self._since: tuple[float, int] | None = None  # seconds and subproblems when a pace began to be taken
        self._pace: float | None = None  # subproblems a second with all threads
        self._gain: float | None = None  # of workers over threads

    def ended(self, tree: Tree) -> bool:
        """Whether it is time for workers, and worth it."""
        strategy = self._strategy
        if self._gain is not None or tree.open < 2:
            return False
        if self._since is None and tree.seconds >= strategy.alone / 2:
            self._since = tree.seconds, tree.subproblems
        if tree.seconds < strategy.alone or tree.pace.batches < strategy.alone_batches:
            return False
        return self._compared(tree) if self._threads else True

    def _compared(self, tree: Tree) -> bool:
        seconds, subproblems = self._since or (0.0, 0)
        passed = tree.seconds - seconds
        if passed < (self._strategy.trial if self._pace is not None else 1e-9):
            return False
        pace, self._since = (tree.subproblems - subproblems) / passed, (tree.seconds, tree.subproblems)
        if self._pace is None:
            self._pace = pace
            torch.set_num_threads(1)
            return False
        self._gain = self._count * pace / max(self._pace, 1e-9)
        self.end()
        return self._gain >= self._strategy.trial_gain

    def end(self) -> None:
        """Have all threads again."""
        if self._threads:
            torch.set_num_threads(self._threads)

    @property
    def told(self) -> str:
        """What came of the comparison, for people."""
        if self._gain is None:
            return ""
        return f"{self._threads} threads, since {self._count} workers would be {self._gain:.2f} times as fast"

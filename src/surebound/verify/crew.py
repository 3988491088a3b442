"""Others who take part in a search, once it has gone on for a while."""

from collections.abc import Callable
from contextlib import ExitStack

from surebound.verify.dealer import Dealer
from surebound.verify.pieces import Ground, Recorder, Sharing
from surebound.verify.strategy import Strategy
from surebound.verify.tree import Pause, Tree, first_of
from surebound.verify.trial import Trial


class Crew:
    """Workers that grow a tree: they `join` it when it is `due`, `grow` it, and `leave` in any case."""

    def __init__(
        self,
        sharing: Sharing,
        strategy: Strategy,
        ground: Callable[[], Ground],
        sink: Recorder | None,
        ready: Callable[[], bool] = lambda: True,
    ) -> None:
        """What they prove is written down in the tree's own `sink`. They wait until it is `ready` to be shared."""
        self._sharing, self._ground, self._sink = sharing, ground, sink
        self._trial = Trial(sharing, strategy, ready)
        self._workers = ExitStack()
        self._tree: Tree | None = None
        self._dealer: Dealer | None = None

    def due(self, tree: Tree) -> str | None:
        """Whether it is time for them, and worth it. Asked after every batch."""
        return "crew" if self._dealer is None and self._trial.ended(tree) else None

    def join(self, tree: Tree) -> None:
        """Start workers, with the search's ground as it is now."""
        pool = self._workers.enter_context(self._sharing.open(self._ground()))
        self._tree, self._dealer = tree, Dealer(tree, pool, self._sharing.confirm, self._sink)

    def grow(self, pause: Pause | None = None) -> str | None:
        """As `Tree.grow` does, after `join`. Workers that are slower than threads are sent away."""
        assert self._tree is not None
        if self._dealer is not None:
            reason = self._dealer.grow(self._slower if pause is None else first_of(self._slower, pause))
            if reason != "slower":
                return reason
            self._dealer.recall()
            self._dealer = None
            self._workers.close()
        return self._tree.grow(pause)

    def leave(self) -> None:
        """End them, whatever they are at."""
        self._trial.end()
        self._workers.close()

    def _slower(self, tree: Tree) -> str | None:
        dealer = self._dealer
        slower = dealer is not None and dealer.warm and self._trial.slower(tree, dealer.subproblems)
        return "slower" if slower else None

    @property
    def told(self) -> str:
        """Who searched, for people; nothing if that was never a question."""
        return self._trial.told if self._dealer is None else self._sharing.names

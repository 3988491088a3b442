"""The one loop that hands out tasks: the most urgent first, and again if a worker died."""

import heapq
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Generic, final

from surebound.errors import WorkerLostError
from surebound.work.task import Began, Done, Ended, Event, Failed, Lost, News, Pool, Raised, Result, Said, Task, Word

CRASHES = 3  # workers that a task may take with it before it counts as the reason
LOSSES = 10  # machines that may go away under it
Rank = tuple[float, ...]


@dataclass(eq=False)
class Under(Generic[Task]):
    """A task under way."""

    task: Task
    rank: Rank
    grace: float
    began: float | None = None  # by `time.monotonic`; None while its worker gets ready
    crashes: int = 0
    losses: int = 0

    @property
    def seconds(self) -> float:
        """How long it has been at work."""
        return 0.0 if self.began is None else time.monotonic() - self.began


@final
class Desk(Generic[Task, Result]):
    """Tasks that wait, tasks under way, and what becomes of them."""

    def __init__(self, pool: Pool[Task, Result]) -> None:
        self._pool = pool
        self._ready: list[tuple[Rank, int, Under[Task]]] = []
        self._numbers = count()
        self._running: dict[int, Under[Task]] = {}
        self._last_alone: float | None = None
        self.alone = 0.0  # seconds that the last task ran by itself, while other workers had nothing to do

    def add(self, task: Task, *, rank: Rank = (), grace: float = 0.0) -> None:
        """Queue a task: the lowest rank comes first, and within a rank the task that was added first."""
        self._push(Under(task, rank, grace))

    def discard(self, unwanted: Callable[[Task], bool]) -> None:
        """Forget tasks that wait."""
        self._ready = [entry for entry in self._ready if not unwanted(entry[2].task)]
        heapq.heapify(self._ready)

    def __len__(self) -> int:
        """Tasks that wait or are under way."""
        return len(self._ready) + len(self._running)

    def stop(self, task: Task) -> None:
        """Tell a task under way to end soon."""
        for number, under in self._running.items():
            if under.task is task:
                self._pool.stop(number)

    @property
    def ready(self) -> list[Task]:
        """Tasks that wait, in no order."""
        return [under.task for _, _, under in self._ready]

    @property
    def running(self) -> list[Under[Task]]:
        """Tasks under way."""
        return list(self._running.values())

    def events(self, tick: float | None = None) -> Iterator[Event[Task, Result] | None]:
        """What happens, until all is done; None whenever nothing happened for `tick` seconds."""
        for together in self.batches(tick):
            if not together:
                yield None
            yield from together

    def batches(self, tick: float | None = None) -> Iterator[list[Event[Task, Result]]]:
        """The same, with what happened meanwhile taken together; nothing if that is nothing."""
        while self._ready or self._running:
            while self._ready and len(self._running) < self._pool.slots:
                _, number, under = heapq.heappop(self._ready)
                self._running[number] = under
                self._pool.begin(number, under.task, under.grace)
            self._watch()
            news = self._pool.wait(tick)
            heard = [event for one in news if (event := self._heard(one)) is not None]
            if heard or not news:
                yield heard
        self._watch()

    def _push(self, under: Under[Task]) -> None:
        heapq.heappush(self._ready, (under.rank, next(self._numbers), under))

    def _watch(self) -> None:
        """Note how long the last task is alone."""
        alone = len(self._running) == 1 < self._pool.slots and not self._ready
        if alone and self._last_alone is None:
            self._last_alone = time.monotonic()
        elif not alone and self._last_alone is not None:
            self.alone = time.monotonic() - self._last_alone if not self._running else 0.0
            self._last_alone = None

    def _heard(self, news: News[Result]) -> Event[Task, Result] | None:
        under = self._running[news.number]
        match news:
            case Began():
                under.began = time.monotonic()
                return None
            case Word():
                return Said(under.task, news.word)
        del self._running[news.number]
        match news:
            case Ended():
                return Done(under.task, news.result, news.seconds)
            case Raised():
                return Failed(under.task, news.error, news.seconds)
            case Lost():
                return self._lost(under, news)
        raise TypeError(f"a pool told of a {type(news).__name__}")

    def _lost(self, under: Under[Task], lost: Lost[Result]) -> Failed[Task] | None:
        """Have a task done elsewhere, unless it seems to be what workers die of."""
        seconds, under.began = under.seconds, None
        under.crashes += lost.blamed
        under.losses += not lost.blamed
        if under.crashes < CRASHES and under.losses < LOSSES:
            self._push(under)
            return None
        times = under.crashes + under.losses
        often = f" ({times} times)" if times > 1 else ""
        return Failed(under.task, WorkerLostError(f"{lost.reason}{often}"), seconds)

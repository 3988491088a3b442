"""Work in this very process, one task after the other."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, final

from surebound.work.perform import Performer
from surebound.work.task import News, Result, Setup, Task, Word


@final
@dataclass(frozen=True)
class Inline:
    """The engine without workers."""

    remote: bool = False

    def open(self, setup: Setup[Task, Result]) -> "InlinePool[Task, Result]":
        return InlinePool(setup)


@final
class _Call:
    """What a task says is heard when it has ended, and nobody can ask it to stop."""

    def __init__(self) -> None:
        self.words: list[Any] = []

    def say(self, word: Any) -> None:
        self.words.append(word)

    def stopping(self) -> bool:
        return False


@final
class InlinePool(Generic[Task, Result]):
    """Does a task when someone waits for it."""

    slots = 1

    def __init__(self, setup: Setup[Task, Result]) -> None:
        self._performer = Performer(setup)
        self._tasks: deque[tuple[int, Task]] = deque()

    def begin(self, number: int, task: Task, grace: float) -> None:
        self._tasks.append((number, task))

    def stop(self, number: int) -> None:
        """Nothing is under way while someone could ask."""

    def wait(self, seconds: float | None) -> Sequence[News[Result]]:
        number, task = self._tasks.popleft()
        call = _Call()
        last = self._performer.perform(number, lambda: task, call)
        return [*(Word[Result](number, word) for word in call.words), last]

    def __enter__(self) -> "InlinePool[Task, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        self._tasks.clear()

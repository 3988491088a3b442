"""What passes between whoever has work to do, whoever does it, and the engine between the two."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
In = TypeVar("In", contravariant=True)


class Call(Protocol):
    """A task's way to talk to whoever handed it out."""

    def say(self, word: Any) -> None:
        """Send something on the way, such as how far the task is."""
        ...

    def stopping(self) -> bool:
        """Whether nobody waits for the rest: the task should return soon, with what there is."""
        ...


Do = Callable[[Task, Call], Result]
"""Does a task. What it returns, says and raises travels back."""
Setup = Callable[[], Do[Task, Result]]
"""Called once in each worker, before its first task."""


@dataclass(frozen=True, eq=False)
class Said(Generic[Task]):
    """A task said something on the way."""

    task: Task
    word: Any


@dataclass(frozen=True, eq=False)
class Done(Generic[Task, Result]):
    """A task ended; it took so long where it was done."""

    task: Task
    result: Result
    seconds: float


@dataclass(frozen=True, eq=False)
class Failed(Generic[Task]):
    """A task raised an error; a `WorkerLostError` if the processes that did it died, again and again."""

    task: Task
    error: Exception
    seconds: float


Event = Said[Task] | Done[Task, Result] | Failed[Task]


# ---- what an engine provides


@dataclass(frozen=True, eq=False)
class News(Generic[Result]):
    """What a pool has to tell about a task, by its number."""

    number: int


@dataclass(frozen=True, eq=False)
class Began(News[Result]):
    """Its worker has begun it."""


@dataclass(frozen=True, eq=False)
class Word(News[Result]):
    """It said something."""

    word: Any


@dataclass(frozen=True, eq=False)
class Ended(News[Result]):
    """It is done."""

    result: Result
    seconds: float


@dataclass(frozen=True, eq=False)
class Raised(News[Result]):
    """It raised an error."""

    error: Exception
    seconds: float


@dataclass(frozen=True, eq=False)
class Lost(News[Result]):
    """Its worker died. `blamed` is whether the task may be the reason, as it is not if a whole machine went away."""

    reason: str
    blamed: bool = True


class Pool(Protocol[In, Result]):
    """Workers that are ready for tasks: `with engine.open(setup) as pool`."""

    @property
    def slots(self) -> int:
        """How many tasks it takes at a time. It may change."""
        ...

    def begin(self, number: int, task: In, grace: float) -> None:
        """Have a task done. If the pool is closed meanwhile, it has `grace` seconds to end by itself."""
        ...

    def stop(self, number: int) -> None:
        """Let a task's `Call.stopping` be true from now on."""
        ...

    def wait(self, seconds: float | None) -> Sequence[News[Result]]:
        """What happened, as soon as something did; nothing if that takes longer than so many seconds."""
        ...

    def __enter__(self) -> "Pool[In, Result]": ...

    def __exit__(self, *_: object) -> None:
        """End all workers, whatever they are at."""
        ...


class Engine(Protocol):
    """A way to do work."""

    @property
    def remote(self) -> bool:
        """Whether workers may be on machines that do not see the files of this one."""
        ...

    def open(self, setup: "Setup[Task, Result]") -> Pool[Task, Result]:
        """Workers for a kind of tasks."""
        ...

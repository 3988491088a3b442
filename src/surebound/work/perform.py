"""How a worker does tasks, on whatever engine."""

import pickle
import time
import traceback
from collections.abc import Callable
from typing import Generic, final

from surebound.work.task import Call, Do, Ended, News, Raised, Result, Setup, Task


@final
class Performer(Generic[Task, Result]):
    """Does tasks, after a setup that waits for the first."""

    def __init__(self, setup: Setup[Task, Result]) -> None:
        self._setup = setup
        self._do: Do[Task, Result] | None = None

    def perform(self, number: int, fetch: Callable[[], Task], call: Call) -> News[Result]:
        """Do a task, and say how it ended. What an error means is for whoever handed out the task to decide."""
        begin = time.monotonic()
        try:
            self._do = self._do or self._setup()
            begin = time.monotonic()
            return Ended(number, self._do(fetch(), call), time.monotonic() - begin)
        except Exception as error:
            return Raised(number, error, time.monotonic() - begin)


def portable(news: News[Result]) -> News[Result]:
    """The same as it can travel to another process: an error with its traceback in words."""
    if not isinstance(news, Raised):
        return news
    words = "".join(traceback.format_exception(news.error))
    try:
        error = pickle.loads(pickle.dumps(news.error))
    except Exception:  # some errors of libraries do not come through
        error = RuntimeError(f"{type(news.error).__name__}: {news.error}")
    error.add_note(f"In a worker:\n{words}")
    return Raised(news.number, error, news.seconds)

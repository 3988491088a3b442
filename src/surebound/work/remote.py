"""What runs in the processes of a Ray cluster."""

import os
import pickle
import threading
from collections.abc import Callable, Iterator
from functools import cache, partial
from queue import Empty, SimpleQueue
from typing import Any, final

from surebound.errors import UsageError
from surebound.memory import keep_memory
from surebound.version import __version__
from surebound.work.perform import Performer, portable
from surebound.work.task import Began, News, Word

_TICK = 1.0  # seconds in which a wish to stop is noticed
_performers: dict[str, Performer[Any, Any]] = {}  # of this process: one, by the key of its setup


def perform(key: str, setup: list[Any], number: int, task: bytes, version: str, threads: int) -> Iterator[News[Any]]:
    """Do a task, and yield what there is to tell about it.

    The task runs beside this thread, which looks whether it is to stop, and always in the same one: glibc gives each
    new thread memory that has to be mapped anew. `setup` is a list with the reference to the pickled setup in it, lest
    Ray fetches it for every task.
    """
    if version != __version__:
        raise UsageError(f"a node of the cluster has surebound {__version__}; expected {version}, as here")
    if key not in _performers:
        _performers.clear()
        os.environ["OMP_NUM_THREADS"] = str(threads)  # before torch is imported, which the setup does
        keep_memory()
        _performers[key] = Performer(lambda: _fetch(setup[0])())
    call = _Call(key, number)
    yield Began(number)
    _jobs().put(partial(call.perform, _performers[key], task))
    while True:
        try:
            news = call.news.get(timeout=_TICK)
        except Empty:
            call.look()
            continue
        yield news
        if not isinstance(news, Word):
            return


@cache
def _jobs() -> SimpleQueue[Callable[[], None]]:
    """The queue of the one thread of this process that performs tasks."""
    jobs: SimpleQueue[Callable[[], None]] = SimpleQueue()

    def work() -> None:
        while True:
            jobs.get()()

    threading.Thread(target=work, daemon=True).start()
    return jobs


def wish(key: str, number: int) -> bytes:
    """The name under which the cluster keeps the wish that a task stops."""
    return f"surebound-stop-{key}-{number}".encode()


def _fetch(reference: Any) -> Any:
    import ray

    return pickle.loads(ray.get(reference))


def _there(name: bytes) -> bool:
    from ray.experimental.internal_kv import _internal_kv_exists

    return bool(_internal_kv_exists(name))


@final
class _Call:
    """A task's way back, and all that came of it so far."""

    def __init__(self, key: str, number: int) -> None:
        self._key, self._number, self._stopping = key, number, False
        self.news: SimpleQueue[News[Any]] = SimpleQueue()

    def perform(self, performer: Performer[Any, Any], task: bytes) -> None:
        self.news.put(portable(performer.perform(self._number, partial(pickle.loads, task), self)))

    def say(self, word: Any) -> None:
        self.news.put(Word(self._number, word))

    def look(self) -> None:
        """Look whether there is a wish to stop."""
        self._stopping = self._stopping or _there(wish(self._key, self._number))

    def stopping(self) -> bool:
        return self._stopping

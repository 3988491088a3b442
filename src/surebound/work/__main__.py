"""A process that does tasks: `python -m surebound.work DESCRIPTOR`, of a socket to whoever started it.

It is sent a setup, then TASK with (number, grace, pickled task), or STOP with the number of a task. It answers with
news, each with whether the task is over. The end of the socket means stop, whether the other side stopped or was
killed: only a task with a grace may end by itself.
"""

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, final

from surebound import interrupts
from surebound.memory import keep_memory
from surebound.work.perform import Performer, portable
from surebound.work.processes import STOP
from surebound.work.task import Began, News, Word


@final
class _Orders:
    """Reads while tasks are being done, so that the end of the socket, and a wish to stop, are noticed at once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._stopped: set[int] = set()
        self._tasks: SimpleQueue[bytes] = SimpleQueue()
        self._grace = 0.0  # of the task under way
        self.over = False
        self.setup = connection.recv_bytes()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while True:
                message = self._connection.recv_bytes()
                if message[:1] == STOP:
                    self._stopped.add(int(message[1:]))
                else:
                    self._tasks.put(message[1:])
        except (EOFError, OSError):
            self.over = True
        late = time.monotonic() + self._grace
        while time.monotonic() < late and self._grace:
            time.sleep(0.05)
        os._exit(0)

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Tasks, as they come."""
        while True:
            number, self._grace, task = pickle.loads(self._tasks.get())
            yield number, task
            self._grace = 0.0

    def stopped(self, number: int) -> bool:
        """Whether a task should stop."""
        return self.over or number in self._stopped


@final
@dataclass(frozen=True)
class _Call:
    """A task's way back."""

    number: int
    orders: _Orders
    send: Callable[[News[Any]], None]

    def say(self, word: Any) -> None:
        self.send(Word(self.number, word))

    def stopping(self) -> bool:
        return self.orders.stopped(self.number)


def main() -> None:
    """Do tasks until the socket ends."""
    interrupts.ignore()
    connection = Connection(int(sys.argv[1]))
    orders = _Orders(connection)
    keep_memory()
    performer: Performer[Any, Any] = Performer(lambda: pickle.loads(orders.setup)())

    def send(news: News[Any], *, over: bool = False) -> None:
        with suppress(BrokenPipeError):  # nobody listens any more, which the reader notices, too
            connection.send_bytes(pickle.dumps((news, over)))  # not `send`, which torch has share memory

    for number, task in orders:
        send(Began(number))
        send(portable(performer.perform(number, partial(pickle.loads, task), _Call(number, orders, send))), over=True)


if __name__ == "__main__":
    main()

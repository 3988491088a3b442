"""Work in processes on this machine, each with one thread.

A worker is `python -m surebound.work`, at the other end of a socket. It ends with this process, even if that is
killed: the system then closes the socket. Nothing else is shared, so that there is nothing to leave behind.
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Generic, final

from surebound import interrupts
from surebound.work.task import Lost, News, Result, Setup, Task

TASK, STOP = b"t", b"s"  # how messages to a worker begin
_PACKAGE = str(Path(__file__).resolve().parents[2])  # where workers find the package, installed or not
_THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}

_TO_LEAVE = 5.0  # seconds for a process to end in, beside its task's grace


@final
@dataclass(frozen=True)
class Processes:
    """The engine of so many processes."""

    count: int
    log: Path | None = None  # where they may complain; by default on this process's stderr
    keep: tuple[int, ...] = ()  # descriptors that they inherit, such as that of a lock
    remote: bool = False

    def open(self, setup: Setup[Task, Result]) -> "ProcessPool[Task, Result]":
        return ProcessPool(self, setup)


@final
class _Worker(Generic[Task]):
    """A process, and the task it is at."""

    def __init__(self, setup: bytes, keep: tuple[int, ...], log: IO[bytes] | None) -> None:
        self.task: tuple[int, float] | None = None  # its number and grace
        ours, theirs = socket.socketpair()
        with interrupts.shielded(), theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "surebound.work", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if log is None else log,
                stderr=log,
                env=os.environ | _THREADS | {"PYTHONPATH": os.pathsep.join([_PACKAGE, *filter(None, sys.path)])},
                pass_fds=(theirs.fileno(), *keep),
            )
        self.connection = Connection(ours.detach())
        self.send(setup)

    def send(self, message: bytes) -> None:
        with suppress(OSError):  # it is dead, which is on its way as news
            self.connection.send_bytes(message)

    def fate(self) -> str:
        """How the process ended."""
        code = self._process.wait()
        if code >= 0:
            return f"its process ended with code {code}"
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-code).name}{hint}"

    def leave(self) -> None:
        """Have it end: at once, unless its task has a grace."""
        if self.task is None or not self.task[1]:
            self._process.kill()
        self.connection.close()

    def end(self, deadline: float) -> None:
        """Wait for its end, but not for longer."""
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@final
class ProcessPool(Generic[Task, Result]):
    """Processes, started when there is something to do for them."""

    def __init__(self, engine: Processes, setup: Setup[Task, Result]) -> None:
        self.slots = engine.count
        self._setup, self._keep = pickle.dumps(setup), engine.keep
        self._workers: list[_Worker[Task]] = []
        self._path = engine.log
        self._log = None if engine.log is None else engine.log.open("ab")

    def begin(self, number: int, task: Task, grace: float) -> None:
        worker = self._idle()
        worker.task = number, grace
        worker.send(TASK + pickle.dumps((number, grace, pickle.dumps(task))))

    def stop(self, number: int) -> None:
        for worker in self._workers:
            if worker.task is not None and worker.task[0] == number:
                worker.send(STOP + str(number).encode())

    def wait(self, seconds: float | None) -> Sequence[News[Result]]:
        waiting = {worker.connection: worker for worker in self._workers}
        found = [self._hear(waiting[at]) for at in wait(list(waiting), seconds) if isinstance(at, Connection)]
        return [news for news in found if news is not None]

    def _hear(self, worker: _Worker[Task]) -> News[Result] | None:
        """The next message of a worker, or the news that it died."""
        try:
            news, over = pickle.loads(worker.connection.recv_bytes())
        except (EOFError, OSError):
            self._workers.remove(worker)
            worker.connection.close()
            fate = worker.fate()
            return None if worker.task is None else Lost(worker.task[0], fate)
        if over:
            worker.task = None
        return news  # type: ignore[no-any-return]

    def _idle(self) -> _Worker[Task]:
        """A worker with nothing to do, a new one if there is none."""
        for worker in self._workers:
            if worker.task is None:
                return worker
        with interrupts.held():  # one that is started is one that is ended
            self._workers.append(_Worker(self._setup, self._keep, self._log))
        return self._workers[-1]

    def __enter__(self) -> "ProcessPool[Task, Result]":
        return self

    def __exit__(self, *_: object) -> None:
        grace = max((worker.task[1] for worker in self._workers if worker.task is not None), default=0.0)
        deadline = time.monotonic() + grace + _TO_LEAVE
        try:
            for worker in self._workers:
                worker.leave()
            for worker in self._workers:
                worker.end(deadline)
        except KeyboardInterrupt:  # another one: at once
            for worker in self._workers:
                worker.end(0.0)
            raise
        finally:
            if self._log is not None and self._path is not None:
                self._log.close()
                if self._path.exists() and self._path.stat().st_size == 0:
                    self._path.unlink()

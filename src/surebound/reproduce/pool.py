"""Worker processes with one thread each, and the jobs they are given.

Workers end with whoever started them: they stop at the end of their stdin, which the system closes if this process is
killed. They also inherit the lock of the output folder, which is therefore free only when the last one has ended.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any, final

from surebound import interrupts
from surebound.reproduce.job import Job
from surebound.reproduce.pace import Pace
from surebound.reproduce.place import Place
from surebound.reproduce.worker import GRACE

LOG = "workers.log"  # of the output folder: what workers complain about beside their replies
_TICK = 0.5  # seconds
_PACKAGE = str(Path(__file__).resolve().parents[2])  # where workers find the package, installed or not


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A job that is over; `result` is None if it failed, for a `reason`."""

    job: Job
    seconds: float
    result: dict[str, Any] | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Status:
    """How far the work is."""

    done: int
    total: int
    running: tuple[str, ...]
    remaining: float | None  # seconds, estimated; None if nothing like it was done yet
    ended: Ended | None = None  # the job that just ended


OnStatus = Callable[[Status], None]
Then = Callable[[Ended], Sequence[Job]]
"""Jobs to do next, now that one has ended."""


@final
class _Worker:
    """A process, and the job it is at."""

    def __init__(self, place: Place, lock: int, log: IO[bytes], events: "SimpleQueue[tuple[_Worker, Any]]") -> None:
        paths = [_PACKAGE, *filter(None, [os.environ.get("PYTHONPATH")])]
        threads = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": os.pathsep.join(paths)}
        with interrupts.shielded():
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "surebound.reproduce.worker", place.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | threads,
                pass_fds=(lock,),
                text=True,
            )
        self.job: Job | None = None
        self.share, self.text, self.began = 0.0, "", 0.0
        self._listener = threading.Thread(target=self._listen, args=(events,), daemon=True)
        self._listener.start()

    def _listen(self, events: "SimpleQueue[tuple[_Worker, Any]]") -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            events.put((self, json.loads(line)))
        self._process.stdout.close()
        events.put((self, None))

    def begin(self, job: Job) -> None:
        assert self._process.stdin is not None
        self.job, self.share, self.text, self.began = job, 0.0, "", time.monotonic()
        with suppress(BrokenPipeError):  # its end is on its way as an event
            self._process.stdin.write(job.to_json() + "\n")
            self._process.stdin.flush()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def fate(self) -> str:
        """How the process ended."""
        self.stop()
        code = self._process.wait()
        if code >= 0:
            return f"its process ended with code {code}"
        hint = " (out of memory?)" if -code == signal.SIGKILL else ""
        return f"its process was ended by {signal.Signals(-code).name}{hint}"

    def stop(self) -> None:
        """Tell it to stop."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def end(self, deadline: float) -> None:
        """Wait for it, but not forever."""
        try:
            self._process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join()


@final
class Pool:
    """`with Pool(…) as pool: pool.run(jobs)`."""

    def __init__(self, count: int, place: Place, lock: int) -> None:
        self._count, self._place, self._lock = count, place, lock
        self._events: SimpleQueue[tuple[_Worker, Any]] = SimpleQueue()
        self._workers: list[_Worker] = []
        self._log = (place.path / LOG).open("ab")

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        deadline = time.monotonic() + GRACE + 5
        try:
            for worker in self._workers:
                worker.stop()
            for worker in self._workers:
                worker.end(deadline)
        except KeyboardInterrupt:  # a second one: at once
            for worker in self._workers:
                worker.end(0.0)
            raise
        finally:
            self._log.close()
            path = self._place.path / LOG
            if path.exists() and path.stat().st_size == 0:
                path.unlink()

    def run(self, jobs: Iterable[Job], *, then: Then = lambda _: (), total: int, on_status: OnStatus) -> None:
        """Do jobs in their order, those that follow from one first. `total` counts all."""
        ready, pace, done = deque(jobs), Pace(), 0

        def status(ended: Ended | None = None) -> Status:
            busy = [w for w in self._workers if w.job is not None]
            running = tuple(f"{w.job}{f', {w.text}' if w.text else ''}" for w in busy)
            shares = [(w.job.kind, w.share, w.seconds) for w in busy if w.job is not None]
            left = pace.remaining([job.kind for job in ready], shares, total - done, self._count)
            return Status(done=done, total=total, running=running, remaining=left, ended=ended)

        while ready or any(worker.job is not None for worker in self._workers):
            while ready and (worker := self._idle()) is not None:
                worker.begin(ready.popleft())
            try:
                worker, reply = self._events.get(timeout=_TICK)
            except Empty:
                on_status(status())
                continue
            ended = self._heard(worker, reply)
            if ended is not None:
                done += 1
                pace.add(ended.job.kind, ended.seconds)
                ready.extendleft(reversed(then(ended)))
            on_status(status(ended))

    def _idle(self) -> _Worker | None:
        """A worker with nothing to do, a new one if there may be more."""
        for worker in self._workers:
            if worker.job is None:
                return worker
        if len(self._workers) == self._count:
            return None
        with interrupts.held():  # one that is started is one that is ended
            self._workers.append(_Worker(self._place, self._lock, self._log, self._events))
        return self._workers[-1]

    def _heard(self, worker: _Worker, reply: dict[str, Any] | None) -> Ended | None:
        """Take note of a reply, None being the worker's end; the job, if that is over."""
        job, seconds = worker.job, worker.seconds
        if reply is None:
            self._workers.remove(worker)
            fate = f"{worker.fate()}; see '{self._place.path / LOG}'"
            return None if job is None else Ended(job=job, seconds=seconds, reason=fate)
        assert job is not None
        if "ready" in reply:  # its first job begins now: starting up is no part of it
            worker.began = time.monotonic()
            return None
        if "share" in reply:
            worker.share, worker.text = reply["share"], reply["text"]
            return None
        worker.job = None
        return Ended(job=job, seconds=seconds, result=reply.get("done"), reason=reply.get("failed", ""))

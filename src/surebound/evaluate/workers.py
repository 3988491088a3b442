"""Processes that certify images, each with one thread; or none, and the work is done on the spot."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from fractions import Fraction
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import final

from surebound.evaluate.stages import Certifier, Open, Sample, Settings
from surebound.evaluate.store import Row
from surebound.network.model import Model

Work = list[Sample] | Open
"""Images to screen, or one to search."""
Result = tuple[list[Row], list[Open]]
Perform = Callable[[Certifier, Work], Result]

_certifier: Certifier  # of this process, once it has begun


@final
class Workers:
    """`count` processes, or this one for a count of 1: `with Workers(…) as pool: pool.submit(work)`."""

    def __init__(self, count: int, model: Path, eps: Fraction, settings: Settings, *, task: Perform) -> None:
        self.slots = count
        self._task = task
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            # Fresh interpreters: torch's threads do not survive a fork.
            self._pool = ProcessPoolExecutor(
                count, multiprocessing.get_context("spawn"), initializer=_begin, initargs=(model, eps, settings)
            )
        else:
            self._own = _load(model, eps, settings)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        if self._pool is not None:
            if failed is not None:  # nobody waits for what is still running
                for process in list((self._pool._processes or {}).values()):
                    process.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(self, work: Work) -> "Future[Result]":
        if self._pool is not None:
            return self._pool.submit(_perform, self._task, work)
        future: Future[Result] = Future()
        future.set_result(self._task(self._own, work))
        return future


def _load(model: Path, eps: Fraction, settings: Settings) -> Certifier:
    from surebound.load.onnx import load_onnx
    from surebound.load.replay import replay

    return Certifier(Model(load_onnx(model), replay(model), str(model)), eps, settings)


def _begin(model: Path, eps: Fraction, settings: Settings) -> None:
    """What a process does first: it ends with its parent, even if that is killed, and loads the network."""
    global _certifier
    parent = multiprocessing.parent_process()
    assert parent is not None
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    import torch

    torch.set_num_threads(1)
    _certifier = _load(model, eps, settings)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _perform(task: Perform, work: Work) -> Result:
    return task(_certifier, work)

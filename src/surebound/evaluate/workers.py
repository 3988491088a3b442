"""Processes that certify images, each with one thread; or none, and the work is done on the spot."""

import multiprocessing
import os
import threading
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from fractions import Fraction
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import final

from surebound import interrupts
from surebound.evaluate.proofs import ProofFolder
from surebound.evaluate.radius import search_radius
from surebound.evaluate.stages import Certifier, Open, Sample, Settings
from surebound.evaluate.store import Row
from surebound.load.onnx import load_model
from surebound.memory import keep_memory


@dataclass(frozen=True, eq=False)
class Probe:
    """An image that is decided at the full radius, and whose own radii are wanted."""

    sample: Sample
    row: Row


Work = list[Sample] | Open | Probe
"""Images to screen, or one to search, or one to bisect the radius of."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a piece of work settled, and what it left open."""

    rows: list[Row]
    open: list[Open]


_certifier: Certifier  # of this process, once it has begun


@final
class Workers:
    """`count` processes, or this one for a count of 1: `with Workers(…) as pool: pool.submit(work)`."""

    def __init__(self, count: int, file: Path, own: Certifier) -> None:
        self.slots = count
        self._own = own
        self._pool: ProcessPoolExecutor | None = None
        if count > 1:
            # Fresh interpreters: torch's threads do not survive a fork.
            context = multiprocessing.get_context("spawn")
            start = (file, own.eps, own.settings, own.proofs)
            with interrupts.held():
                self._pool = ProcessPoolExecutor(count, context, initializer=_begin, initargs=start)

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        with interrupts.held():  # a pool that is only half gone leaves semaphores behind
            if self._pool is not None:
                if failed is not None:  # nobody waits for what is still running
                    for process in list((self._pool._processes or {}).values()):
                        process.kill()
                self._pool.shutdown(wait=True, cancel_futures=True)
                self._pool = None

    def submit(self, work: Work) -> "Future[Result]":
        if self._pool is not None:
            try:
                with interrupts.held(), interrupts.shielded():  # it may start a process
                    return self._pool.submit(_work, work)
            except OSError as error:  # one worker was killed while another was being started: its pipes are closed
                raise BrokenProcessPool(str(error)) from error
        future: Future[Result] = Future()
        future.set_result(perform(self._own, work))
        return future


def perform(certifier: Certifier, work: Work) -> Result:
    """Do a piece of work."""
    match work:
        case Open():
            return Result([certifier.search(work)], [])
        case Probe():
            return Result([search_radius(certifier, work.row, work.sample)], [])
        case _:
            return Result(*certifier.screen(work))


def _begin(file: Path, eps: Fraction, settings: Settings, proofs: ProofFolder | None) -> None:
    """What a process does first: it ends with its parent, even if that is killed, and loads the network."""
    global _certifier
    parent = multiprocessing.parent_process()
    assert parent is not None
    interrupts.ignore()
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    keep_memory()
    import torch

    torch.set_num_threads(1)
    _certifier = Certifier(load_model(file), eps, settings, proofs)


def _end_with(parent: BaseProcess) -> None:
    parent.join()
    os._exit(1)


def _work(work: Work) -> Result:
    return perform(_certifier, work)

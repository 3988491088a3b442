"""Ends the process when its time is up and its main thread does not notice, deep in some library's own code."""

import os
import sys
import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls `give_up` at a time of `time.monotonic`, unless called off before, and leaves with the code it returns.

    Everything that may take long looks at the clock by itself. This is for the one call that takes much longer than
    anyone thought: a session of onnxruntime, an import, a product of large matrices.
    """

    def __init__(self, at: float, give_up: Callable[[], int]) -> None:
        self._at, self._give_up = at, give_up
        self._over = False
        self._lock = threading.Lock()
        self._called_off = threading.Event()
        if at < float("inf"):
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def call_off(self) -> None:
        """From here on the main thread answers; this never returns if the watchdog answers already."""
        with self._lock:
            self._over = True
        self._called_off.set()

    def _watch(self) -> None:
        while (left := self._at - time.monotonic()) > 0:
            if self._called_off.wait(min(left, threading.TIMEOUT_MAX)):
                return
        with self._lock:
            if self._over:
                return
            code = self._give_up()
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(code)

"""One reproduction at a time in a folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surebound.errors import UsageError

PATIENCE = 30.0  # seconds to wait: the workers of a killed reproduction end within less


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder. Processes that inherit the descriptor hold it, too, so that it is free once all have ended."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"cannot use the folder '{folder}': {(error.strerror or str(error)).lower()}") from error
    try:
        _acquire(handle, folder)
        yield handle
    finally:
        os.close(handle)


def _acquire(handle: int, folder: Path) -> None:
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > give_up:
                raise UsageError(
                    f"another 'surebound reproduce' is at work in '{folder}'; "
                    "expected it to end first, or another --out"
                ) from None
            time.sleep(0.2)

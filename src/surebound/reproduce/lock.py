"""One reproduction at a time in a folder."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surebound.errors import UsageError, reason
from surebound.files import claim, make_folder

PATIENCE = 30.0  # seconds to wait: the workers of a killed reproduction end within less


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the folder. Processes that inherit the descriptor hold it, too, so that it is free once all have ended."""
    make_folder(folder)
    try:
        handle = _patiently(folder)
    except OSError as error:
        raise UsageError(f"cannot use the folder '{folder}': {reason(error)}") from error
    try:
        yield handle
    finally:
        os.close(handle)


def _patiently(folder: Path) -> int:
    give_up = time.monotonic() + PATIENCE
    while (handle := claim(folder)) is None:
        if time.monotonic() > give_up:
            raise UsageError(
                f"another 'surebound reproduce' is at work in '{folder}'; expected it to end first, or another --out"
            )
        time.sleep(0.2)
    return handle

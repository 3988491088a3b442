"""Progress on stderr: a bar that redraws itself on a terminal, plain lines now and then elsewhere."""

import os
import shutil
import sys
import time
from contextlib import suppress

from surebound.errors import visible
from surebound.verify.progress import Progress

USAGE_ERROR = 2  # the exit code

_CELLS = 20
_REDRAW = 0.1  # seconds between two drawings of the bar
_LINES = 5.0  # seconds between two plain lines


def complain(message: str) -> int:
    """Print an error on one line, whatever names are in it; the exit code."""
    if sys.stderr is not None:
        with suppress(OSError):  # nobody reads it, or there is no room for it: the exit code says enough
            print(f"surebound: {visible(' '.join(message.split()))}", file=sys.stderr)
    return USAGE_ERROR


class StatusLine:
    """Shows a text with the share of the work that is done; call `done` before printing anything else."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet or sys.stderr is None
        self._terminal = not self._quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._shown = time.monotonic()
        self._drawn = False

    def show(self, share: float | None, text: str, *, now: bool = False) -> None:
        """Show it if the last one is old enough, or, on a terminal, at once if `now`; `share` is None if unknown."""
        since = time.monotonic() - self._shown
        if self._quiet or (since < (_REDRAW if self._terminal else _LINES) and not (self._terminal and now)):
            return
        self._shown = time.monotonic()
        text = visible(text)
        if not self._terminal:
            print(text, file=sys.stderr, flush=True)
            return
        if share is not None:
            full = min(_CELLS, int(_CELLS * share))
            text = f"[{'#' * full}{'.' * (_CELLS - full)}] {text}"
        room = shutil.get_terminal_size().columns - 1  # a full line would wrap
        print(f"\r\x1b[2K{text[:room]}", end="", file=sys.stderr, flush=True)
        self._drawn = True

    def done(self) -> None:
        """Clear the bar."""
        if self._drawn:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._drawn = False


class ProgressLine:
    """Shows the `Progress` of a verification, and keeps the last one, and the last that counted subproblems."""

    def __init__(self, *, quiet: bool, timeout: float | None = None) -> None:
        self.last: Progress | None = None
        self.counted: Progress | None = None
        self._line = StatusLine(quiet=quiet)
        self._timeout = timeout
        self._begin = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        new_phase = self.last is None or progress.phase != self.last.phase
        self.last = progress
        self.counted = progress if progress.subproblems else self.counted
        seconds = time.monotonic() - self._begin
        share = None if self._timeout is None else seconds / self._timeout
        self._line.show(share, self._describe(progress, seconds), now=new_phase)

    def _describe(self, progress: Progress, seconds: float) -> str:
        text = f"{seconds:.1f} s"
        if self._timeout is not None:
            text += f" of {self._timeout:g}"
        text += f"  {progress.phase}"
        if progress.subproblems:
            text += f"  {progress.subproblems:,} subproblems, {progress.open:,} open"
        if progress.lowest is not None and abs(progress.lowest) < float("inf"):
            text += f", lowest bound {progress.lowest:.4g}"
        return text

    def done(self) -> None:
        """Clear the bar."""
        self._line.done()


def duration(seconds: float) -> str:
    """
    >>> duration(59.0), duration(61.0), duration(7200.0)
    ('59 s', '1 min 01 s', '2 h 00 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"

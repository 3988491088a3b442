"""Progress on stderr: a bar that redraws itself on a terminal, plain lines now and then elsewhere."""

import os
import shutil
import sys
import time

from surebound.verify.progress import Progress

_CELLS = 20
_REDRAW = 0.1  # seconds between two drawings of the bar
_LINES = 5.0  # seconds between two plain lines


class ProgressLine:
    """Shows `Progress`, and keeps the last one; call `done` before printing anything else."""

    def __init__(self, *, quiet: bool, timeout: float | None = None) -> None:
        self.last: Progress | None = None
        self._quiet = quiet or sys.stderr is None
        self._timeout = timeout
        self._terminal = not self._quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._begin = self._shown = time.monotonic()
        self._drawn = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        new_phase = self.last is None or progress.phase != self.last.phase
        self.last = progress
        since = now - self._shown
        if self._quiet or (since < (_REDRAW if self._terminal else _LINES) and not (self._terminal and new_phase)):
            return
        self._shown = now
        text = self._describe(progress, now - self._begin)
        if self._terminal:
            room = shutil.get_terminal_size().columns - 1  # a full line would wrap
            print(f"\r\x1b[2K{text[:room]}", end="", file=sys.stderr, flush=True)
            self._drawn = True
        else:
            print(text, file=sys.stderr, flush=True)

    def _describe(self, progress: Progress, seconds: float) -> str:
        text = f"{seconds:.1f} s"
        if self._timeout is not None:
            text += f" of {self._timeout:g}"
            if self._terminal:
                full = min(_CELLS, int(_CELLS * seconds / self._timeout))
                text = f"[{'#' * full}{'.' * (_CELLS - full)}] {text}"
        text += f"  {progress.phase}"
        if progress.subproblems:
            text += f"  {progress.subproblems:,} subproblems, {progress.open:,} open"
        if progress.lowest is not None and abs(progress.lowest) < float("inf"):
            text += f", lowest bound {progress.lowest:.4g}"
        return text

    def done(self) -> None:
        """Clear the bar."""
        if self._drawn:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._drawn = False

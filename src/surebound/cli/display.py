"""Progress on stderr: one line that rewrites itself on a terminal, plain lines now and then elsewhere."""

import sys
import time

from surebound.verify.progress import Progress


class ProgressLine:
    """Shows `Progress`; call `done` before printing anything else."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = sys.stderr.isatty()
        self._every = 0.1 if self._terminal else 5.0
        self._last = time.monotonic()
        self._shown = False

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if self._quiet or now - self._last < self._every:
            return
        self._last = now
        text = f"{progress.seconds:7.1f} s  {progress.phase}"
        if progress.subproblems:
            text += f"  {progress.subproblems:,} subproblems, {progress.open:,} open"
        if progress.lowest is not None:
            text += f", lowest bound {progress.lowest:.4g}"
        if self._terminal:
            print(f"\r\x1b[2K{text}", end="", file=sys.stderr, flush=True)
            self._shown = True
        else:
            print(text, file=sys.stderr, flush=True)

    def done(self) -> None:
        """Clear the line."""
        if self._shown:
            print("\r\x1b[2K", end="", file=sys.stderr, flush=True)
            self._shown = False

"""SIGINT (Ctrl-C) and SIGTERM end a command in the same way, with the exit code 128 + signal.

What a signal does depends on what is under way:

leaving   by default, the process says that it was interrupted and ends at once. That holds also in the middle of an
          import, from which an exception may not come out as it went in, or not at all.
raising   what is done is to be kept, or processes are to be ended: a KeyboardInterrupt is raised.
noting    the step under way is to end first; the same signal once more is a KeyboardInterrupt.
holding   what is under way must not be cut in two: the signal waits for its end. Another one leaves at once.

None of this happens before `listen`, so that programs that import surebound keep their own handlers. A signal that was
ignored when the process began, as in a shell's background job, stays ignored.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)
Action = Callable[[int], None]

_seen: int | None = None  # the first signal


def code() -> int:
    """The exit code of an interrupted command."""
    return 128 + (_seen or signal.SIGINT)


def listen() -> None:
    """Have signals do what the module's docstring says. Called once, by the command."""
    usual = (signal.SIG_DFL, signal.default_int_handler)
    for number in SIGNALS:
        if signal.getsignal(number) in usual:
            signal.signal(number, _on_signal)
    sys.unraisablehook = _on_unraisable


@contextmanager
def leaving(finish: Callable[[], None]) -> Iterator[None]:
    """Inside, a signal runs what is left to do and ends the process. Another signal meanwhile ends it at once."""

    def leave(_: int) -> NoReturn:
        try:
            with _doing(_leave):
                finish()
        finally:
            os._exit(code())

    with _doing(leave):
        yield


@contextmanager
def raising() -> Iterator[None]:
    """Inside, a signal raises KeyboardInterrupt. If a library turns it into another error, it becomes one again."""
    with _doing(_raise):
        try:
            yield
        except Exception as error:
            if _seen is None:
                raise
            raise KeyboardInterrupt from error


@contextmanager
def noting() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether there was a signal.

    From its first call on, a signal is only noted, and the same one again is a KeyboardInterrupt, as any is before.
    """
    noted: set[int] = set()
    asked = False

    def interrupted() -> bool:
        nonlocal asked
        asked = True
        return bool(noted)

    def note(number: int) -> None:
        if number in noted or not asked:
            _raise(number)
        noted.add(number)

    with raising(), _doing(note):
        yield interrupted


@contextmanager
def held() -> Iterator[None]:
    """Inside, a signal waits until the end; a second one leaves at once."""
    waiting: list[int] = []

    def wait(number: int) -> None:
        if waiting:
            _leave(number)
        waiting.append(number)

    try:
        with _doing(wait):
            yield
    finally:
        if waiting:
            _action(waiting[0])


@contextmanager
def shielded() -> Iterator[None]:
    """Processes that are started inside begin with both signals blocked, and may `ignore` them before any reaches them.

    Ctrl-C reaches the whole group of processes; what it means for a worker is for the one who started it to decide.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore() -> None:
    """Ignore both signals: in a process that ends when the one that started it says so, or ends itself."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


@contextmanager
def _doing(action: Action) -> Iterator[None]:
    global _action
    before = _action
    try:
        _action = action
        yield
    finally:
        _action = before


def _on_signal(number: int, _: FrameType | None) -> None:
    global _seen
    _seen = _seen or number
    _action(number)


def _leave(_: int) -> NoReturn:
    with suppress(Exception):  # whoever reads them may have left, too, or a write to them may be under way
        sys.stdout.flush()
    with suppress(OSError):
        os.write(2, b"surebound: interrupted\n")
    os._exit(code())


def _raise(_: int) -> NoReturn:
    raise KeyboardInterrupt


def _on_unraisable(unraisable: Any) -> None:
    """Raise an interrupt again a moment later if it came where it would be lost, as while an object was freed."""
    if _seen is not None and issubclass(unraisable.exc_type, KeyboardInterrupt):
        again = threading.Timer(0.01, os.kill, (os.getpid(), _seen))
        again.daemon = True
        again.start()
    else:
        sys.__unraisablehook__(unraisable)


_action: Action = _leave

"""Writing files so that whoever dies in between leaves the old ones whole."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from surebound.errors import UsageError, reason


@contextmanager
def replacing(path: str | Path, *, tag: str = "") -> Iterator[Path]:
    """A path beside `path` to write to; what is written there takes the place of `path` when the block ends well.

    At every moment `path` is the old file or the whole new one, also after a power cut. The name in between is always
    the same, so that a run that is killed again and again leaves at most one remnant; a `tag` keeps several processes
    that write the same file apart.
    """
    path = Path(path).resolve()  # through a link, not in its place
    if path.exists() and not path.is_file():  # a device's or a pipe's name would come to be a plain file's
        raise UsageError(f"cannot write '{path}' ({_kind(path)}); expected the name of a plain file")
    partial = path.with_name(f".{path.name}{tag}.partial")
    try:
        try:
            yield partial
            os.chmod(partial, 0o666 & ~_umask())  # some libraries write files that only their owner may read
            _flush(partial)
            os.replace(partial, path)
            _flush(path.parent)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise UsageError(
            f"cannot write '{path}' ({reason(error)}); expected a file name in a folder with room"
        ) from error


def claim(folder: Path) -> int | None:
    """Hold a folder until the descriptor that is returned is closed, by all processes that have it; None if another
    one holds it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        return None
    return handle


def make_folder(path: Path, use: str = "") -> None:
    """Make a folder, and those around it, unless it is there; `use` says for people what it is for."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"cannot make the folder '{path}'{use} ({reason(error)}); expected a folder, or a name for a new one"
        ) from error


def _kind(path: Path) -> str:
    return "it is a folder" if path.is_dir() else "it is a pipe or a device"


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _flush(path: Path) -> None:
    """Have what was written to a file, or the names in a folder, put on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

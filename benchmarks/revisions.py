"""Other revisions of surebound beside the one that is checked out here, so that both can be measured in turns."""

import compileall
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path

from common import ROOT, Unavailable

HERE = ROOT / "src"
FIRST = "f6476b7"  # v0.1.0, for a repository without its tags


def last_release() -> str:
    """The last tag before or at this commit."""
    try:
        return _git("describe", "--tags", "--abbrev=0").decode().strip()
    except Unavailable:
        return FIRST


def this_commit() -> str:
    """The commit that is checked out, with a + if files differ from it; a dash outside of a repository."""
    try:
        changed = _git("status", "--porcelain", "--untracked-files=no", "src").strip()
        return _git("rev-parse", "--short", "HEAD").decode().strip() + ("+" if changed else "")
    except Unavailable:
        return "–"


def environment(source: Path = HERE) -> dict[str, str]:
    """The environment of a process that runs the surebound of a src folder, compiled as an installed one is."""
    _compile(source)
    return os.environ | {"PYTHONPATH": str(source)}


@contextmanager
def source_of(revision: str) -> Iterator[Path]:
    """A src folder as it was at a revision."""
    with folders_of(revision, "src") as folder:
        yield folder / "src"


@contextmanager
def folders_of(revision: str, *names: str) -> Iterator[Path]:
    """A folder that holds some of the repository's folders as they were at a revision."""
    archive = _git("archive", revision, *names)
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=BytesIO(archive)) as files:
        files.extractall(folder, filter="data")
        yield Path(folder)


@cache
def _compile(source: Path) -> None:
    """So that the first start is as quick as the next, also where Python writes no bytecode by itself."""
    compileall.compile_dir(source, quiet=2)


def _git(*arguments: str) -> bytes:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=False)
    except OSError as error:
        raise Unavailable(f"git cannot be run: {error}") from error
    if done.returncode:
        raise Unavailable(f"git {' '.join(arguments)}: {done.stderr.decode().strip()}")
    return done.stdout

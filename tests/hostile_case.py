"""What a hostile file is, and how the command may end on it."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REFUSED = "refused"  # exit code 2 and one sentence


@dataclass(frozen=True, kw_only=True)
class Case:
    """One or more files that a stranger might send, and the ways in which the command may end on them."""

    name: str
    why: str
    write: Callable[[Path], list[str]]  # puts the files into a folder and returns the command's arguments
    ends: tuple[str, ...] = (REFUSED,)  # verdicts, or REFUSED
    says: str = ""  # part of the sentence, where it is refused
    slow: bool = False  # not in the default test run: needs a process of its own, or seconds

    def __post_init__(self) -> None:
        assert self.says or REFUSED not in self.ends, f"{self.name}: what does the sentence say?"


BOX = (
    "(declare-const X_0 Real)\n(declare-const X_1 Real)\n(declare-const Y_0 Real)\n(declare-const Y_1 Real)\n"
    + "".join(f"(assert (>= X_{i} -1.0))\n(assert (<= X_{i} 1.0))\n" for i in (0, 1))
)
ORDINARY = BOX + "(assert (>= Y_1 Y_0))\n"


def bomb(head: bytes, block: bytes, copies: int, tail: bytes = b"") -> bytes:
    """A gzip file that unpacks to head, then so many copies of a block, then a tail."""
    return gzip.compress(head, mtime=0) + gzip.compress(block, mtime=0) * copies + gzip.compress(tail, mtime=0)

"""What reading a file may cost: bytes, parts, elements, work and time.

A few bytes can ask for terabytes, whether their author was careless or hostile. Readers check sizes against these
numbers before they allocate or compute anything, and their errors say which one was hit.
"""

import gzip
import io
import os
import time
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf, prod
from pathlib import Path
from typing import IO, TypeVar

from surebound.errors import MissingFileError, NetworkError, OutOfTimeError, SureboundError

T = TypeVar("T")

# An ONNX file
NETWORK_BYTES = 2**31  # with its weights in other files; protobuf holds no more
UNPACKED_BYTES = 2**30  # of a gzipped one
PARSED_BYTES = 2**28  # that its parts take in memory, beside the weights
NODES = 2**16
NAMES = 2**20  # that all nodes read and write
AXES = 32
PORTS = 2**10  # inputs, and outputs

# A network, and the constants it is made of
ELEMENTS = 2**24  # of one tensor that is computed; weights in the file may have more
MEMORY = 2**32  # bytes of all tensors that reading makes
STEPS = 2**18  # operations of the network, after max pools and the like are written as ReLUs
WORK = 2**34  # multiplications of one operation
COLUMNS = 2**27  # numbers that the windows of one convolution read

# A file of a data set
DATA_BYTES = 2**26  # MNIST's largest has 47 MB

# A property
PROPERTY_BYTES = 2**28  # of text, unpacked
PROPERTY_2_BYTES = 2**24  # of VNN-LIB 2.0, whose parser cannot be stopped
VARIABLES = 2**24  # of the input, and of the output
FACTS = 2**22  # rows that hold in all cases: two for each input of a large network
ROWS = 1_000_000  # of a formula in disjunctive normal form
NUMBERS = 2**27  # in all arrays of a property
NESTING = 1000  # of parentheses
DIGITS = 1200  # of a number: the longest exact float64 needs 1,077
BITS = 8192  # of a numerator or denominator

_CHUNK = 2**22  # bytes
_OFTEN = 2**12  # items between two looks at the clock


@dataclass(frozen=True)
class Deadline:
    """When something has to be finished, by `time.monotonic`."""

    at: float = inf
    doing: str = "reading"

    def check(self) -> None:
        """Raise `OutOfTimeError` once the time has passed."""
        if time.monotonic() >= self.at:
            raise OutOfTimeError(f"the time ran out while {self.doing}")

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """The items, with a look at the clock now and then."""
        for number, item in enumerate(items):
            if number % _OFTEN == 0:
                self.check()
            yield item


class Tally:
    """Counts what the tensors made so far take."""

    def __init__(self) -> None:
        self.bytes = 0

    def add(self, elements: int, itemsize: int = 8) -> None:
        """Account for a tensor before it is made."""
        self.bytes += elements * itemsize
        if self.bytes > MEMORY:
            raise NetworkError(f"the tensors so far take {self.bytes // 2**20:,} MiB; expected at most {mib(MEMORY)}")


def check_elements(dimensions: Iterable[int]) -> int:
    """The number of elements of a tensor of this shape. Refuses shapes that are too large to be meant."""
    count = prod(int(d) for d in dimensions)
    if count > ELEMENTS:
        raise NetworkError(f"a tensor has {count:,} elements; expected at most {ELEMENTS:,}")
    return count


def check_work(multiplications: int) -> None:
    """Refuse an operation that would take forever."""
    if multiplications > WORK:
        raise NetworkError(f"this takes {multiplications:,} multiplications; expected at most {WORK:,}")


def read_file(
    path: Path,
    kind: str,
    wrong: type[SureboundError],
    *,
    most: int,
    unpacked: int,
    expected: str,
    deadline: Deadline = Deadline(),
) -> bytes:
    """The content of a file, unpacked if it is gzipped.

    Raises `MissingFileError` if it cannot be read, and `wrong` if it is damaged, has more than `most` bytes, or
    unpacks to more than `unpacked`.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= most:
                content = _read_at_most(file, most, size)
                size = len(content)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise MissingFileError(f"cannot read the {kind} '{path}' ({reason.lower()}); expected {expected}") from error
    if size > most:
        raise wrong(f"the {kind} '{path}' has {mib(size)}; expected at most {mib(most)}")
    if not content.startswith(b"\x1f\x8b"):
        return content
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as packed:
            content = _read_at_most(packed, unpacked, 0, deadline)
    except (OSError, EOFError, zlib.error) as error:
        raise wrong(
            f"the {kind} '{path}' is damaged or cut short ({error}); expected {expected}, gzipped or not"
        ) from error
    if len(content) > unpacked:
        raise wrong(f"the {kind} '{path}' unpacks to more than expected: at most {mib(unpacked)}")
    return content


def _read_at_most(file: IO[bytes] | gzip.GzipFile, most: int, likely: int, deadline: Deadline = Deadline()) -> bytes:
    """The content of a file of about that size, but no more than `most` + 1 bytes."""
    parts = [file.read(likely)]  # which makes room for all of it, so that it must not be `most`
    size = len(parts[0])
    while size <= most and (part := file.read(min(_CHUNK, most + 1 - size))):
        deadline.check()
        parts.append(part)
        size += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def mib(size: int) -> str:
    """
    >>> mib(2**30)
    '1,024 MiB'
    """
    return f"{size // 2**20:,} MiB"

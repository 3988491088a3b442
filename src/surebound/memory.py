"""Memory: how much there is, when it has run out, and that what is freed stays in the process."""

import ctypes
import sys
from contextlib import suppress

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h
_PAD = 2**28
_SIGNS = ("not enough memory", "can't allocate memory", "out of memory", "size calculation overflowed")


def keep_memory() -> None:
    """Have glibc reuse large blocks; elsewhere, do nothing.

    Tensors of some megabytes come and go many times in a training step or a bounding, and mapping their pages anew
    takes a good part of what bounds cost.
    """
    if not sys.platform.startswith("linux"):
        return
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, _PAD)


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch asked for more memory than there is, which it reports in several ways."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)
    )


def available() -> int:
    """Bytes of free memory, or 4 GiB where the system does not say."""
    try:
        with open("/proc/meminfo") as file:
            fields = dict(line.split(":", 1) for line in file)
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 4 * 2**30

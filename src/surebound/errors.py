"""Every error a user can cause, in one tree.

    SureboundError
    ├── UsageError              an argument, option or value that makes no sense
    │   └── MissingFileError    a path that is not there or cannot be read
    ├── NetworkError            a network that cannot be loaded
    │   └── UnsupportedOpError  an operation outside the supported set
    ├── PropertyError           a property that cannot be read or does not fit the network
    ├── OutOfTimeError          the time that was given ran out while something was read
    ├── TrainingError           a training run that cannot go on
    ├── StoreError              a file of results that cannot be read or written
    └── ResourceError           memory or disk ran out in a way that could not be avoided
        └── WorkerLostError     the processes that did a piece of work died, again and again

Each message is one sentence that names the thing, what it got and what was expected. The command line prints it and
exits with code 2; anything outside this tree is a bug in surebound.

Names come from files that strangers wrote: `quoted` puts one into a sentence, `one_line` what
a library says about them, and `visible` makes any text safe to print.
"""

from collections.abc import Iterable

_LONG = 80  # letters of a name in a sentence
_SPACES = "".join(map(chr, (0xA0, 0x1680, *range(0x2000, 0x200B), 0x202F, 0x205F, 0x3000)))


def visible(text: str | bytes, keep: str = "") -> str:
    r"""The text with an escape for each character that a terminal or browser obeys or hides instead of showing it:
    control characters, line ends, marks that turn text around, letters without width, halves of surrogates. Text that
    is not UTF-8, which protobuf hands out as bytes, is decoded likewise.

    >>> print(visible("ü\x1b[31m \u202e\n"), visible("a\nb", keep="\n"))
    ü\x1b[31m \u202e\n a
    b
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    shown = f"{_SPACES}{keep}"
    return "".join(c if c.isprintable() or c in shown else c.encode("unicode_escape").decode("ascii") for c in text)


def shortened(name: str | bytes, most: int = _LONG) -> str:
    """A name, visible, and without its middle if it is long.

    >>> shortened("conv1"), shortened("a\\n" + "n" * 99, 9)
    ('conv1', 'a\\\\nnn…nnnn')
    """
    if len(name) <= most:
        return visible(name)
    return f"{visible(name[: most // 2])}…{visible(name[len(name) - (most - most // 2 - 1) :])}"


def quoted(name: str | bytes, most: int = _LONG) -> str:
    """A name for a sentence: shortened, in quotes."""
    return f"'{shortened(name, most)}'"


def one_line(error: Exception, most: int = 300) -> str:
    """What a library says about an error, as a part of a sentence."""
    return visible(" ".join(str(error).split())[:most]) or type(error).__name__


def reason(error: OSError) -> str:
    """Why the system refused, in lower case.

    >>> reason(FileNotFoundError(2, "No such file or directory"))
    'no such file or directory'
    """
    return (error.strerror or str(error)).lower()


class SureboundError(Exception):
    """Base of all errors that surebound raises on purpose."""


class UsageError(SureboundError):
    """An argument or option that makes no sense."""


class MissingFileError(UsageError):
    """A path that does not exist or cannot be read."""


class NetworkError(SureboundError):
    """A network that cannot be loaded."""


class UnsupportedOpError(NetworkError):
    """An operation outside the supported set."""

    @classmethod
    def unknown(cls, kind: str, name: str, known: Iterable[str]) -> "UnsupportedOpError":
        """The complaint about a kind of operation whose name is not among those that are known."""
        at_end = " (one at the end can be left out: the scores before it have the same order)"
        hint = at_end if "softmax" in name.lower().replace("_", "") else ""
        return cls(f"this {kind} is not supported{hint}; expected one of {', '.join(known)}")


class PropertyError(SureboundError):
    """A property that cannot be read or does not fit the network."""


class OutOfTimeError(SureboundError):
    """The time that was given ran out while something was read."""


class TrainingError(SureboundError):
    """A training run that cannot go on."""


class StoreError(SureboundError):
    """A file of results that cannot be read or written."""


class ResourceError(SureboundError):
    """Memory or disk ran out."""


class WorkerLostError(ResourceError):
    """The processes that did a piece of work died, again and again."""

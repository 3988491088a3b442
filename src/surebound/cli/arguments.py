"""Argument types, input files and output files that several commands share."""

import os
import re
from argparse import ArgumentParser, ArgumentTypeError
from fractions import Fraction
from pathlib import Path

from surebound.errors import MissingFileError, NetworkError, PropertyError, UsageError, reason
from surebound.files import replacing
from surebound.verify import SEARCHES

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_MOST_THREADS = 1024
_LARGEST_RADIUS = 10**6
_NUMBER = r"\d{1,30}(?:\.\d{0,30})?(?:[eE]-?\d{1,2})?|\.\d{1,30}(?:[eE]-?\d{1,2})?"


def add_search(parser: ArgumentParser) -> None:
    """Which profile of the verifier to take."""
    parser.add_argument(
        "--search",
        choices=SEARCHES,
        default="default",
        help="paper: search as the paper did, with its batches, iterations and attack, and nothing that came later; "
        "auto is then upb (default: default)",
    )


def add_device(parser: ArgumentParser) -> None:
    """Where to compute."""
    parser.add_argument(
        "--device",
        default="cpu",
        metavar="NAME",
        help="where bounds and attacks are computed: cpu (default), or cuda, cuda:1 and so on, which is untried",
    )


def check_device(name: str) -> None:
    """Raise UsageError unless bounds can be computed there. All but the processor take torch, as it is, to find out."""
    if name != "cpu":
        from surebound.bounds.device import expect_exact

        expect_exact(name)


def positive_seconds(text: str) -> float:
    """A number of seconds above zero."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"expected a positive number of seconds, got '{text}'")
    return value


def thread_count(text: str) -> int:
    """A whole number of threads."""
    value = _digits(text)
    if not 1 <= value <= _MOST_THREADS:
        raise ArgumentTypeError(f"expected a whole number from 1 to {_MOST_THREADS}, got '{text}'")
    return value


def worker_count(text: str) -> int | str:
    """A whole number of workers, or auto."""
    return text if text == "auto" else thread_count(text)


def announce_threads(threads: int | None) -> int | None:
    """Tell libraries that are loaded from here on how many threads to use; how many, or None: as the environment says.

    NumPy listens to nothing else.
    """
    if threads is None and "OMP_NUM_THREADS" not in os.environ:
        threads = len(os.sched_getaffinity(0))
    if threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(threads)
    return threads


def set_threads(threads: int | None) -> None:
    """Let torch use so many threads, or as many as the environment says, or all."""
    count = announce_threads(threads)
    import torch

    if count is not None:
        torch.set_num_threads(count)


def seed(text: str) -> int:
    """A whole number from 0 to 2**63 − 1."""
    value = _digits(text)
    if not 0 <= value < 2**63:
        raise ArgumentTypeError(f"expected a whole number from 0 to 2**63 - 1, got '{text}'")
    return value


def eps(text: str) -> Fraction:
    """A radius, taken exactly.

    >>> eps("2/255"), eps("0.1"), eps("1e-3")
    (Fraction(2, 255), Fraction(1, 10), Fraction(1, 1000))
    """
    value = Fraction(-1)
    if match := re.fullmatch(rf"({_NUMBER})(?:/({_NUMBER}))?", text, re.ASCII):
        divisor = Fraction(match[2] or 1)
        value = Fraction(match[1]) / divisor if divisor else value
    if not 0 <= value <= _LARGEST_RADIUS:
        raise ArgumentTypeError(
            f"expected a number from 0 to 1, or more with --norm 2 or 1, such as 2/255, got '{text}'"
        )
    return value


def eps_text(value: Fraction) -> str:
    """A radius as people write it: exact, and accepted by `eps`.

    >>> eps_text(Fraction(1, 10)), eps_text(Fraction(1, 85)), eps_text(Fraction(1, 7)), eps_text(Fraction(1))
    ('0.1', '3/255', '1/7', '1')
    """
    decimal = f"{float(value):.12g}"
    if Fraction(decimal) == value:
        return decimal
    steps = 255 * value
    return f"{steps}/255" if steps.denominator == 1 else str(value)


def count(text: str) -> int:
    """A whole number above zero."""
    value = _digits(text)
    if not 1 <= value <= 10**9:
        raise ArgumentTypeError(f"expected a whole number from 1 up, got '{text}'")
    return value


def indices(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between, none twice.

    >>> indices("0,5,7")
    (0, 5, 7)
    """
    values = tuple(_digits(part) for part in text.split(","))
    if min(values) < 0 or max(values) >= 10**9:
        raise ArgumentTypeError(f"expected whole numbers with commas between, such as 0,5,7, got '{text}'")
    if len(set(values)) < len(values):
        raise ArgumentTypeError(f"expected each image once, got '{text}'")
    return values


def _digits(text: str) -> int:
    """A whole number written in plain digits, else -1."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 30 else -1


def memory_size(text: str) -> int:
    """Bytes, with an optional K, M, G or T.

    >>> memory_size("2G")
    2147483648
    """
    number, unit = (text[:-1], text[-1].upper()) if text and text[-1].isalpha() else (text, "")
    try:
        value = float(number) * _UNITS[unit]
    except (ValueError, KeyError):
        value = -1.0
    if not 2**20 <= value < 2**50:
        raise ArgumentTypeError(f"expected a size from 1M up, such as 500M or 2G, got '{text}'")
    return int(value)


def check_network(path: str, expected: str = "an ONNX file") -> Path:
    """The path of a network, after the checks that need no slow imports."""
    if _content_size(path, "network", expected) == 0:
        raise NetworkError(f"the network '{path}' is empty; expected an ONNX file")
    return Path(path)


def check_property(path: str) -> Path:
    """The path of a property, after the checks that need no slow imports."""
    if _content_size(path, "property", "a VNN-LIB file") == 0:
        raise PropertyError(f"the property '{path}' is empty; expected a VNN-LIB file")
    return Path(path)


def check_proof(path: str) -> Path:
    """The path of a proof, after the same checks."""
    if _content_size(path, "proof", "a file that surebound verify --proof wrote") == 0:
        raise UsageError(f"the proof '{path}' is empty; expected a file that surebound verify --proof wrote")
    return Path(path)


def _content_size(path: str, kind: str, expected: str) -> int:
    target = Path(path)
    if target.is_dir():
        problem = "it is a folder"
        if kind == "network" and (target / "model.onnx").exists():
            expected += ", such as its model.onnx"
    elif not target.exists():
        problem = "there is no such file"
    elif not target.is_file():
        problem = "it is not a regular file"
    elif not os.access(target, os.R_OK):
        problem = "permission denied"
    else:
        return target.stat().st_size
    raise MissingFileError(f"cannot read the {kind} '{path}': {problem}; expected {expected}")


def output_files(*, keep: tuple[Path, ...], **paths: str | None) -> dict[str, Path]:
    """The paths of results that were asked for, by option, checked before any work is done.

    None of them may be a folder, another result, or one of the files to `keep`; a proof, which is no text, goes to a
    plain file.
    """
    taken = {file.resolve(): f"'{file}', which is read" for file in keep}
    found: dict[str, Path] = {}
    for option, path in paths.items():
        if path is None:
            continue
        target = Path(path)
        if not path or target.is_dir() or not target.parent.is_dir():
            problem = "it is a folder; " if path and target.is_dir() else ""
            raise UsageError(f"cannot write --{option} '{path}': {problem}expected a file name in an existing folder")
        if option == "proof" and target.exists() and not target.is_file():
            raise UsageError(f"cannot write --proof '{path}': it is a pipe or a device; expected a plain file")
        if not os.access(target.parent, os.W_OK):
            raise UsageError(f"cannot write --{option} '{path}': permission denied in '{target.parent}'")
        if target.resolve() in taken:
            raise UsageError(f"cannot write --{option} '{path}': it would overwrite {taken[target.resolve()]}")
        if not target.exists() or target.is_file():  # pipes and devices may take several results
            taken[target.resolve()] = f"the file of --{option}"
        found[option] = target
    return found


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is never seen half-written; pipes and devices take the text as it comes."""
    if path.exists() and not path.is_file():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write '{path}' ({reason(error)})") from error
        return
    with replacing(path, tag=f".{os.getpid()}") as partial:
        partial.write_text(text, encoding="utf-8")

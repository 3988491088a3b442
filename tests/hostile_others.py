"""Configurations and data sets that ask for more than there is."""

import struct
from collections.abc import Callable
from pathlib import Path

from commands import write_tiny
from hostile_case import Case, bomb


def _config(name: str, why: str, content: Callable[[], str], says: str) -> Case:
    def write(folder: Path) -> list[str]:
        (folder / "run.toml").write_text(content())
        return ["train", "--config", "run.toml", "--out", "out"]

    return Case(name=f"config-{name}", why=why, write=write, says=says)


def _digits(magic: int, count: int, body: bytes, copies: int) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        write_tiny(folder)
        place = folder / "data" / "mnist"
        place.mkdir(parents=True)
        head = struct.pack(">4i", magic, count, 28, 28)
        (place / "train-images-idx3-ubyte.gz").write_bytes(bomb(head, body, copies))
        return ["attack", "tiny.onnx", "--dataset", "mnist", "--eps", "0.1", "--data-dir", "data"]

    return write


CASES = [
    _config("nested", "lists 10,000 deep", lambda: "a = " + "[" * 10_000 + "]" * 10_000, "run.toml"),
    _config("binary", "zero bytes", lambda: "\0" * 1000, "run.toml"),
    _config(
        "unknown",
        "a key that colours the terminal",
        lambda: 'method = "ibp"\n"evil\\u001B[31m\\u202E" = 1\n',
        r"evil\x1b[31m\u202e",
    ),
    Case(
        name="data-bomb",
        why="MNIST of 10 GB in 10 MB",
        write=_digits(2051, 2**31 - 1, bytes(2**26), 160),
        says="MiB",
        slow=True,
    ),
    Case(
        name="data-count",
        why="MNIST of 2^31 images in no bytes",
        write=_digits(2051, 2**31 - 1, b"", 0),
        says="expected",
    ),
]

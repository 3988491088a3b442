"""Configurations, checkpoints, data sets and stores that ask for more than there is, or are none."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from commands import write_tiny
from hostile_case import Case, bomb

from surebound.config import dump
from surebound.train.config import read_config

CONFIG = 'method = "ibp"\neps = 0.05\n[data]\nname = "digits"\n[network]\nname = "fc-small"\n[schedule]\nepochs = 1\n'


def _config(name: str, why: str, content: Callable[[], str], says: str, **options: Any) -> Case:
    def write(folder: Path) -> list[str]:
        (folder / "run.toml").write_text(content())
        return ["train", "--config", "run.toml", "--out", "out"]

    return Case(name=f"config-{name}", why=why, write=write, says=says, **options)


def _checkpoint(name: str, why: str, content: Callable[[], bytes], says: str, **options: Any) -> Case:
    def write(folder: Path) -> list[str]:
        (folder / "run.toml").write_text(CONFIG)
        (folder / "out").mkdir()
        (folder / "out" / "config.toml").write_text(dump(read_config(str(folder / "run.toml"))))
        (folder / "out" / "metrics.jsonl").touch()
        (folder / "out" / "checkpoint.safetensors").write_bytes(content())
        return ["train", "--config", "run.toml", "--out", "out", "--resume"]

    return Case(name=f"checkpoint-{name}", why=why, write=write, says=says, **options)


def _tensors(header: object, body: bytes = b"") -> bytes:
    """A safetensors file."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _metadata(text: str) -> bytes:
    return _tensors({"__metadata__": {"surebound": text}})


def _store(name: str, why: str, content: bytes) -> Case:
    def write(folder: Path) -> list[str]:
        (folder / "store.sqlite").write_bytes(content)
        return ["report", "store.sqlite"]

    return Case(name=f"store-{name}", why=why, write=write, says="store.sqlite")


def _digits(magic: int, count: int, body: bytes, copies: int) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        write_tiny(folder)
        place = folder / "data" / "mnist"
        place.mkdir(parents=True)
        head = struct.pack(">4i", magic, count, 28, 28)
        (place / "train-images-idx3-ubyte.gz").write_bytes(bomb(head, body, copies))
        return ["attack", "tiny.onnx", "--dataset", "mnist", "--eps", "0.1", "--data-dir", "data"]

    return write


_HUGE = {"weights.w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}
_LIE = {"weights.w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}

CASES = [
    _config("nested", "lists 10,000 deep", lambda: "a = " + "[" * 10_000 + "]" * 10_000, "run.toml"),
    _config("binary", "zero bytes", lambda: "\0" * 1000, "run.toml"),
    _config("unknown", "a key that colours", lambda: '"evil\\u001B[31m\\u202E" = 1\n' + CONFIG, r"evil\x1b[31m\u202e"),
    _config("epochs", "10^12 epochs", lambda: CONFIG.replace("epochs = 1", "epochs = 1000000000000"), "epochs"),
    _config("number", "a number of 100,000 digits", lambda: CONFIG.replace("0.05", "9" * 100_000), "run.toml"),
    _config("batch", "a batch of 2^60", lambda: CONFIG.replace("[network]", f"batch = {2**60}\n[network]"), "batch"),
    _config("name", "a data set that turns around", lambda: CONFIG.replace("digits", "\\u202E"), r"\u202e"),
    _checkpoint("noise", "zero bytes", lambda: bytes(1000), "checkpoint.safetensors"),
    _checkpoint("header", "a header of 2^60 bytes", lambda: struct.pack("<Q", 2**60), "checkpoint.safetensors"),
    _checkpoint("huge", "a tensor of 4 TiB that is not there", lambda: _tensors(_HUGE), "checkpoint.safetensors"),
    _checkpoint("lie", "a tensor of 4 bytes and 2^40 numbers", lambda: _tensors(_LIE, bytes(4)), "checkpoint"),
    _checkpoint("deep", "lists 100,000 deep", lambda: _tensors(b'{"a":' + b"[" * 100_000), "checkpoint.safetensors"),
    _checkpoint("record", "a record that is none", lambda: _metadata("[]"), "checkpoint.safetensors"),
    _checkpoint("record-deep", "a record 100,000 deep", lambda: _metadata("[" * 100_000), "checkpoint.safetensors"),
    _checkpoint("empty", "nothing", lambda: b"", "checkpoint.safetensors"),
    _store("noise", "not a database", b"not a database" * 1000),
    _store("head", "a database's first bytes", b"SQLite format 3\0" + bytes(84)),
    _store("empty", "nothing", b""),
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

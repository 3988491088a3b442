"""Networks that ask for more than there is: files, nodes, and code that would run on loading. And how to write one."""

import gzip
import os
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hostile_case import ORDINARY, REFUSED, Case, bomb
from onnx import TensorProto, helper
from onnx_models import X, save

Change = Callable[[onnx.ModelProto], Any]

node = helper.make_node


def i64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def f32(*shape: int) -> np.ndarray:
    """Ones, which take no memory until they are written."""
    return np.broadcast_to(np.float32(1), shape)


def raw(
    name: str, why: str, content: Callable[[], bytes], says: str, *, file: str = "net.onnx", **options: Any
) -> Case:
    """A network's file, byte by byte."""
    return Case(name=name, why=why, write=lambda folder: files(folder, content(), file), says=says, **options)


def files(folder: Path, content: bytes | None = None, name: str = "net.onnx") -> list[str]:
    """Write an ordinary property, and perhaps a network."""
    (folder / "prop.vnnlib").write_text(ORDINARY)
    if content is not None:
        (folder / name).write_bytes(content)
    return ["verify", name, "prop.vnnlib"]


def graph(
    name: str,
    why: str,
    nodes: Callable[[], Iterable[onnx.NodeProto]],
    says: str = "",
    constants: dict[str, np.ndarray] | Callable[[], dict[str, np.ndarray]] | None = None,
    *,
    shape: Sequence[int | str] = (1, 2),
    change: Change | None = None,
    opset: int = 13,
    **options: Any,
) -> Case:
    """A network of some nodes, of which one computes y."""

    def write(folder: Path) -> list[str]:
        made = constants() if callable(constants) else constants
        save(folder / "net.onnx", list(nodes()), shape, constants=made, opset=opset)
        if change is not None:
            model = onnx.load_model_from_string((folder / "net.onnx").read_bytes())
            change(model)
            (folder / "net.onnx").write_bytes(model.SerializeToString())
        return files(folder)

    return Case(name=name, why=why, write=write, says=says, **options)


def of_constants(
    name: str, why: str, op: str, inputs: Sequence[Any], says: str, *, opset: int = 13, **more: Any
) -> Case:
    """An operation on constants, of whose result the largest number is added to the input."""
    options = {key: more.pop(key) for key in ("slow", "ends") if key in more}
    constants = {f"c{k}": value for k, value in enumerate(inputs) if value is not None}
    names = ["" if value is None else f"c{k}" for k, value in enumerate(inputs)]
    return after_constants(
        name, why, lambda: [node(op, names, ["big"], **more)], says, constants, opset=opset, **options
    )


def after_constants(
    name: str,
    why: str,
    nodes: Callable[[], Iterable[onnx.NodeProto]],
    says: str,
    constants: dict[str, np.ndarray],
    **options: Any,
) -> Case:
    """The largest number of "big", which some nodes make of constants, is added to the input."""
    tail = [node("Cast", ["big"], ["real"], to=1), node("ReduceMax", ["real"], ["one"], keepdims=0)]
    return graph(name, why, lambda: [*nodes(), *tail, node("Add", [X, "one"], ["y"])], says, constants, **options)


def of_input(
    name: str, why: str, op: str, inputs: Sequence[Any], says: str, *, shape: Sequence[int] = (1, 2), **more: Any
) -> Case:
    """An operation on the input, which X stands for, and constants."""
    options = {key: more.pop(key) for key in ("slow", "ends", "opset", "change") if key in more}
    constants = {f"c{k}": v for k, v in enumerate(inputs) if v is not None and not isinstance(v, str)}
    names = ["" if v is None else X if isinstance(v, str) else f"c{k}" for k, v in enumerate(inputs)]
    return graph(name, why, lambda: [node(op, names, ["y"], **more)], says, constants, shape=shape, **options)


def change(name: str, why: str, f: Change, says: str, **options: Any) -> Case:
    """A good network of one matrix product and a ReLU, changed."""
    nodes = [node("MatMul", [X, "w"], ["h"], name="product"), node("Relu", ["h"], ["y"], name="relu")]
    return graph(name, why, lambda: nodes, says, {"w": f32(2, 2)}, change=f, **options)


def doubled(op: str, first: str, last: str, times: int, **attributes: Any) -> list[onnx.NodeProto]:
    """An operation on twice its own result, again and again."""
    names = [first, *(f"t{k}" for k in range(times - 1)), last]
    return [node(op, [a, a], [b], **attributes) for a, b in pairwise(names)]


_ZEROS = bytes(2**26)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in protobuf's wire format."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def _packed(part: bytes, megabytes: int) -> bytes:
    """A gzip file with a graph of so many equal parts."""
    block = part * (2**20 // len(part))
    return bomb(_varint(7 << 3 | 2) + _varint(len(block) * megabytes), block, megabytes)


_N = 2**21


def _sparse(folder: Path) -> list[str]:
    with (folder / "net.onnx").open("wb") as file:
        file.truncate(2**36)
    return files(folder)


def _pipe(folder: Path) -> list[str]:
    os.mkfifo(folder / "net.onnx")
    return files(folder)


def _folder(folder: Path) -> list[str]:
    (folder / "net.onnx").mkdir()
    return files(folder)


def _chain(n: int, op: str, *others: str) -> Iterable[onnx.NodeProto]:
    names = [X, *(f"v{k}" for k in range(n - 1)), "y"]
    return (node(op, [a, *others], [b]) for a, b in pairwise(names))


def _nowhere(n: int) -> Iterable[onnx.NodeProto]:
    return [*(node("Neg", ["c"], [f"c{k}"]) for k in range(n)), node("Relu", [X], ["y"])]


ANY = ("timeout", "unknown", "sat")


_LOOP = {"trips": np.int64(2**50), "true": np.bool_(True), "zero": i64(0)}


def _info(name: str, kind: int, *shape: int) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _loop(trips: str) -> onnx.NodeProto:
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Add", ["v", "v"], ["w"])],
        "body",
        [_info("k", TensorProto.INT64), _info("go", TensorProto.BOOL), _info("v", TensorProto.INT64, 1)],
        [_info("go_on", TensorProto.BOOL), _info("w", TensorProto.INT64, 1)],
    )
    return node("Loop", [trips, "true", "zero"], ["big"], body=body)


def _within(depth: int) -> onnx.NodeProto:
    inner = _loop("trips")
    empty = helper.make_graph([], "empty", [], [])
    for _ in range(depth):
        branch = helper.make_graph([inner], "branch", [], [_info("big", TensorProto.INT64, 1)])
        inner = node("If", ["true"], ["big"], then_branch=branch, else_branch=empty)
    return inner


def _scan() -> onnx.NodeProto:
    a, b = _info("a", TensorProto.FLOAT, 1), _info("b", TensorProto.FLOAT, 1)
    body = helper.make_graph([node("Identity", ["a"], ["b"])], "body", [a], [b])
    return node("Scan", ["c"], ["big"], body=body, num_scan_inputs=1)


def _deep(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = _field(1, _field(5, _field(6, content)))  # a node with an attribute that is a graph
    return content


_TEXT = np.array(["a" * 5000], dtype=object)


CASES = [
    # ---- files that are no networks, or too much of one
    raw(
        "gzip-bomb", "10 MB that unpack to 10 GB", lambda: bomb(b"", _ZEROS, 160), "MiB", file="net.onnx.gz", slow=True
    ),
    raw("gzip-bomb-plain", "the same without .gz in its name", lambda: bomb(b"", _ZEROS, 160), "MiB", slow=True),
    raw("gzip-twice", "packed twice", lambda: gzip.compress(gzip.compress(b"x" * 99)), "not an ONNX file"),
    raw("gzip-cut", "half a gzip file", lambda: gzip.compress(os.urandom(999))[:500], "damaged or cut short"),
    raw(
        "gzip-tail",
        "something behind the gzip data",
        lambda: gzip.compress(b"x" * 99) + b"tail",
        "damaged or cut short",
    ),
    raw("gzip-sum", "a wrong checksum", lambda: gzip.compress(b"x" * 99)[:-8] + bytes(8), "damaged or cut short"),
    raw("one-byte", "almost nothing", lambda: b"\x08", "not an ONNX file"),
    raw("ones", "nothing but set bits", lambda: b"\xff" * 4096, "not an ONNX file"),
    raw("noise", "random bytes", lambda: np.random.default_rng(0).bytes(100_000), "not an ONNX file"),
    raw("noise-large", "many random bytes", lambda: np.random.default_rng(0).bytes(2**21), "not an ONNX file"),
    raw("groups", "protobuf groups within each other", lambda: b"\x0b" * 2**21, "not an ONNX file"),
    raw("text", "an ONNX file in its other, readable form", lambda: b"ir_version: 8\ngraph { }\n", "not an ONNX file"),
    raw("empty-nodes", "two bytes a node, 150 when parsed", lambda: _field(7, b"\x0a\x00" * _N), "parts", slow=True),
    raw("empty-weights", "millions of empty tensors", lambda: _field(7, b"\x2a\x00" * _N), "parts", slow=True),
    raw("empty-names", "inputs without names", lambda: _field(7, _field(1, b"\x0a\x00" * 4 * _N)), "parts", slow=True),
    raw("empty-texts", "millions of texts", lambda: _field(7, _field(5, b"\x32\x00" * 4 * _N)), "parts", slow=True),
    raw("numbers", "a byte a number, 8 when parsed", lambda: _field(7, _field(5, _field(7, b"\1" * 2**26))), "parts"),
    raw(
        "nodes-bomb",
        "a gigabyte of empty nodes in a megabyte",
        lambda: _packed(b"\x0a\x00", 1000),
        "parts",
        file="net.onnx.gz",
        slow=True,
    ),
    Case(name="64-gigabytes", why="a file of 64 GiB of zeros", write=_sparse, says="MiB"),
    Case(name="pipe", why="a pipe into which nobody writes", write=_pipe, says="not a regular file"),
    Case(name="folder", why="a folder", write=_folder, says="is a folder"),
    # ---- too many of something
    graph("nodes", "300,000 nodes", lambda: _chain(300_000, "Relu"), "300,000 nodes", slow=True),
    graph("nodes-aside", "300,000 that lead nowhere", lambda: _nowhere(300_000), "300,001", {"c": f32(1)}, slow=True),
    graph("nodes-many", "60,000 sums, one after the other", lambda: _chain(60_000, "Add", X), ends=ANY, slow=True),
    graph(
        "nodes-relu", "20,000 layers", lambda: _chain(20_000, "Sub", "c"), constants={"c": f32(2)}, ends=ANY, slow=True
    ),
    of_input("inputs", "a node that reads two million tensors", "Sum", [X] * 2**21, "read and write", slow=True),
    of_input(
        "maximum", "of 100,000 tensors", "Max", [X] * 100_000, "activations", ends=(REFUSED, "timeout"), slow=True
    ),
    graph(
        "concat",
        "65,536 copies of the input, then their sum",
        lambda: [
            node("Concat", [X] * 65_536, ["a"], axis=1),
            node("ReduceSum", ["a"], ["b"]),
            node("Add", [X, "b"], ["y"]),
        ],
        ends=ANY,
        slow=True,
    ),
    # ---- code that would run on loading
    after_constants("loop", "a loop of 2^50 trips over constants", lambda: [_loop("trips")], "Loop", _LOOP),
    after_constants("loop-forever", "a loop without a number of trips", lambda: [_loop("")], "Loop", _LOOP),
    after_constants("loop-if", "a loop within an If", lambda: [_within(1)], "If", _LOOP),
    after_constants("nested-25", "graphs 25 deep", lambda: [_within(25)], "If", _LOOP),
    raw("nested-5000", "graphs 5,000 deep", lambda: _field(7, _deep(5000)), "not an ONNX file"),
    after_constants("scan", "a scan over a constant", lambda: [_scan()], "Scan", {"c": f32(2**20, 1)}),
    after_constants(
        "text-add", "a text doubled 60 times", lambda: doubled("Add", "c", "big", 60), "text", {"c": _TEXT}
    ),
    of_constants("text-concat", "two texts joined", "StringConcat", [_TEXT, _TEXT], "StringConcat", opset=20),
    of_constants("text-cast", "numbers written out", "Cast", [f32(9)], "text", to=TensorProto.STRING),
    of_constants(
        "regex", "an expression that backtracks", "RegexFullMatch", [_TEXT], "Regex", pattern="(a*)*(a*)*b", opset=20
    ),
    of_constants("random", "numbers that differ each time", "RandomNormal", [], "RandomNormal", shape=[2**40]),
    of_constants("einsum", "a sum over 2^60 terms", "Einsum", [f32(2**20)] * 3, "Einsum", equation="a,b,c->abc"),
    of_constants("convolution", "a convolution of constants", "Conv", [f32(1, 1, 64, 64), f32(1, 1, 9, 9)], "Conv"),
    of_constants("division", "-2^63 / -1, a trap of processors", "Div", [i64(-(2**63)), i64(-1)], "overflow"),
    of_constants("modulus", "-2^63 mod -1, another one", "Mod", [i64(-(2**63)), i64(-1)], "overflow"),
    of_constants("division-0", "a whole number divided by zero", "Div", [i64(1), i64(0)], "zero"),
    of_constants(
        "division-32",
        "-2^31 / -1 in 32 bits",
        "Div",
        [np.array([-(2**31)], np.int32), np.array([-1], np.int32)],
        "overflow",
    ),
]

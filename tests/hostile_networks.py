"""Networks that ask for more than there is, or lie about themselves."""

import gzip
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from hostile_case import ORDINARY, REFUSED, Case, bomb
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from onnx_models import X, save

node = helper.make_node
CASES: list[Case] = []
NO_INT = -(2**63)


def i64(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def f32(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


def _files(folder: Path, content: bytes | None = None, name: str = "net.onnx") -> list[str]:
    (folder / "prop.vnnlib").write_text(ORDINARY)
    if content is not None:
        (folder / name).write_bytes(content)
    return ["verify", name, "prop.vnnlib"]


def raw(
    name: str, why: str, content: Callable[[], bytes], says: str, *, file: str = "net.onnx", **options: Any
) -> None:
    """A network's file, byte by byte."""
    CASES.append(Case(name=name, why=why, write=lambda folder: _files(folder, content(), file), says=says, **options))


def graph(
    name: str,
    why: str,
    nodes: Callable[[], Iterable[onnx.NodeProto]],
    says: str,
    constants: dict[str, np.ndarray] | None = None,
    *,
    shape: Sequence[int | str] = (1, 2),
    change: Callable[[onnx.ModelProto], None] | None = None,
    opset: int = 13,
    **options: Any,
) -> None:
    """A network of some nodes; the result is y."""

    def write(folder: Path) -> list[str]:
        args = _files(folder)
        save(folder / "net.onnx", list(nodes()), shape, constants=constants, opset=opset)
        if change is not None:
            model = onnx.load_model_from_string((folder / "net.onnx").read_bytes())
            change(model)
            (folder / "net.onnx").write_bytes(model.SerializeToString())
        return args

    CASES.append(Case(name=name, why=why, write=write, says=says, **options))


def constant(name: str, why: str, nodes: Sequence[onnx.NodeProto], says: str, **options: Any) -> None:
    """A network that adds to its input the sum of "big", which some nodes make of constants."""
    constants = options.pop("constants", {})
    tail = [node("Cast", ["big"], ["real"], to=1), node("ReduceMax", ["real"], ["one"], keepdims=0)]
    graph(name, why, lambda: [*nodes, *tail, node("Add", [X, "one"], ["y"])], says, constants, **options)


def change(name: str, why: str, f: Callable[[onnx.ModelProto], Any], says: str, **options: Any) -> None:
    """A good network of one matrix product and a ReLU, changed."""
    nodes = [node("MatMul", [X, "w"], ["h"], name="product"), node("Relu", ["h"], ["y"], name="relu")]
    graph(name, why, lambda: nodes, says, {"w": f32(2, 2)}, change=f, **options)


# ---- files that are no networks, or too much of one

ZEROS = bytes(2**26)
raw("gzip-bomb", "10 MB that unpack to 10 GB", lambda: bomb(b"", ZEROS, 160), "MiB", file="net.onnx.gz", slow=True)
raw("gzip-bomb-plain-name", "the same without .gz", lambda: bomb(b"", ZEROS, 160), "MiB", slow=True)
raw("gzip-twice", "packed twice", lambda: gzip.compress(gzip.compress(b"x" * 99)), "not an ONNX file")
raw("gzip-cut", "half a gzip file", lambda: gzip.compress(os.urandom(999))[:500], "damaged gzip file")
raw("gzip-tail", "something behind the gzip data", lambda: gzip.compress(b"x" * 99) + b"tail", "damaged gzip file")
raw("gzip-sum", "a wrong checksum", lambda: gzip.compress(b"x" * 99)[:-8] + bytes(8), "damaged gzip file")
raw("one-byte", "almost nothing", lambda: b"\x08", "not an ONNX file")
raw("ones", "nothing but set bits", lambda: b"\xff" * 4096, "not an ONNX file")
raw("noise", "random bytes", lambda: np.random.default_rng(0).bytes(100_000), "not an ONNX file")
raw("groups", "protobuf groups within each other", lambda: b"\x0b" * 100_000, "not an ONNX file")
raw("text", "an ONNX file in its other, readable form", lambda: b"ir_version: 8\ngraph { }\n", "not an ONNX file")


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in protobuf's wire format."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def _packed_nodes(field: bytes, megabytes: int) -> bytes:
    block = field * (2**20 // len(field))
    size = len(block) * megabytes
    return bomb(_varint(7 << 3 | 2) + _varint(size), block, megabytes)


raw("empty-nodes", "two bytes a node, 150 bytes when read", lambda: _field(7, b"\x0a\x00" * 2**22), "parts")
raw(
    "empty-nodes-bomb",
    "a gigabyte of empty nodes in a megabyte",
    lambda: _packed_nodes(b"\x0a\x00", 1000),
    "parts",
    file="net.onnx.gz",
    slow=True,
)
raw("empty-weights", "millions of empty tensors", lambda: _field(7, b"\x2a\x00" * 2**22), "parts")
raw("empty-names", "millions of empty inputs of a node", lambda: _field(7, _field(1, b"\x0a\x00" * 2**22)), "parts")
raw("empty-strings", "millions of strings", lambda: _field(7, _field(5, b"\x32\x00" * 2**22)), "parts")
raw("unknown-fields", "millions of fields nobody knows", lambda: b"\xf8\x7f\x00" * 2**22, "parts")


def _sparse(folder: Path) -> list[str]:
    with (folder / "net.onnx").open("wb") as file:
        file.truncate(2**36)
    return _files(folder)


def _pipe(folder: Path) -> list[str]:
    os.mkfifo(folder / "net.onnx")
    return _files(folder)


def _folder(folder: Path) -> list[str]:
    (folder / "net.onnx").mkdir()
    return _files(folder)


CASES += [
    Case(name="64-gigabytes", why="a file of 64 GiB of zeros", write=_sparse, says="MiB"),
    Case(name="pipe", why="a pipe into which nobody writes", write=_pipe, says="not a regular file"),
    Case(name="folder", why="a folder", write=_folder, says="is a folder"),
]

# ---- too many of something


def _chain(n: int, op: str = "Relu") -> Iterable[onnx.NodeProto]:
    names = [X, *(f"v{k}" for k in range(n - 1)), "y"]
    return (node(op, [a], [b]) for a, b in zip(names[:-1], names[1:], strict=True))


graph("nodes", "300,000 nodes", lambda: _chain(300_000), "300,000 nodes", slow=True)
graph(
    "nodes-constant",
    "300,000 nodes that lead nowhere",
    lambda: [*(node("Neg", ["c"], [f"c{k}"]) for k in range(300_000)), *_chain(2)],
    "300,002 nodes",
    {"c": f32(1)},
    slow=True,
)
graph(
    "nodes-many",
    "60,000 sums, one after the other",
    lambda: (
        node("Add", [a, X], [b])
        for a, b in zip([X, *(f"v{k}" for k in range(59_999))], [*(f"v{k}" for k in range(59_999)), "y"], strict=True)
    ),
    "",
    ends=("timeout", "unknown", "sat"),
    slow=True,
)
graph(
    "inputs",
    "one node reads two million tensors",
    lambda: [node("Sum", [X] * 2**21, ["y"])],
    "read and write",
    slow=True,
)
graph(
    "maximum-of-many",
    "the maximum of 100,000 tensors",
    lambda: [node("Max", [X] * 100_000, ["y"])],
    "nodes",
    ends=(REFUSED, "timeout"),
    slow=True,
)
graph(
    "concat-of-many",
    "65,536 copies of the input, then their sum",
    lambda: [
        node("Concat", [X] * 65_536, ["a"], axis=1),
        node("ReduceSum", ["a"], ["b"]),
        node("Add", [X, "b"], ["y"]),
    ],
    "",
    ends=("sat", "timeout", "unknown"),
    slow=True,
)

# ---- code that would run on loading


def _loop(trips: str, body_input: bool = True) -> onnx.NodeProto:
    body = helper.make_graph(
        [node("Identity", ["go"], ["go_on"]), node("Add", ["v", "v"], ["w"])],
        "body",
        [
            helper.make_tensor_value_info("k", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("v", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("w", TensorProto.INT64, [1]),
        ],
    )
    return node("Loop", [trips, "true", "zero"], ["big"], body=body)


_LOOP = {"trips": np.int64(2**50), "true": np.bool_(True), "zero": i64(0)}
constant("loop", "a loop of 2^50 trips over constants", [_loop("trips")], "Loop", constants=_LOOP)
constant("loop-forever", "a loop without a number of trips", [_loop("")], "Loop", constants=_LOOP)


def _nested(depth: int) -> onnx.NodeProto:
    inner = _loop("trips")
    for _ in range(depth):
        branch = helper.make_graph(
            [inner], "branch", [], [helper.make_tensor_value_info("big", TensorProto.INT64, [1])]
        )
        inner = node(
            "If",
            ["true"],
            ["big"],
            then_branch=branch,
            else_branch=branch if depth < 3 else helper.make_graph([], "e", [], []),
        )
    return inner


constant("loop-in-if", "the loop within an If", [_nested(1)], "If", constants=_LOOP)
graph("nested-25", "graphs 25 deep", lambda: [_nested(25), node("Relu", [X], ["y"])], "If", _LOOP)
raw("nested-10000", "graphs 10,000 deep", lambda: _field(7, _deep(10_000)), "not an ONNX file")


def _deep(depth: int) -> bytes:
    content = b""
    for _ in range(depth):
        content = _field(1, _field(5, _field(6, content)))  # a node with an attribute that is a graph
    return content


def _scan() -> onnx.NodeProto:
    body = helper.make_graph(
        [node("Identity", ["a"], ["b"])],
        "body",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, [1])],
    )
    return node("Scan", ["c"], ["big"], body=body, num_scan_inputs=1)


constant("scan", "a scan over a constant", [_scan()], "Scan", constants={"c": f32(2**20, 1)})
constant(
    "string-doubling",
    "a text that doubles 60 times",
    [
        node(
            "StringConcat",
            ["t" if k == 0 else f"t{k}", "t" if k == 0 else f"t{k}"],
            ["big" if k == 59 else f"t{k + 1}"],
        )
        for k in range(60)
    ],
    "StringConcat",
    constants={"t": np.array(["a"], dtype=object)},
    opset=20,
)
constant(
    "add-strings",
    "the same by Add",
    [
        node("Add", ["t" if k == 0 else f"t{k}", "t" if k == 0 else f"t{k}"], ["big" if k == 59 else f"t{k + 1}"])
        for k in range(60)
    ],
    "text",
    constants={"t": np.array(["a"], dtype=object)},
)
constant(
    "regex",
    "an expression that backtracks",
    [node("RegexFullMatch", ["t"], ["big"], pattern="(a*)*(a*)*(a*)*b")],
    "RegexFullMatch",
    constants={"t": np.array(["a" * 5000], dtype=object)},
    opset=20,
)
constant(
    "random", "constants that differ on every run", [node("RandomNormal", [], ["big"], shape=[2**40])], "RandomNormal"
)
constant(
    "einsum",
    "a sum over 2^60 terms",
    [node("Einsum", ["c", "c", "c"], ["big"], equation="a,b,c->abc")],
    "Einsum",
    constants={"c": f32(2**20)},
)
constant(
    "int-min",
    "-2^63 / -1, a trap of the processor",
    [node("Div", ["m", "n"], ["big"])],
    "overflow",
    constants={"m": i64(NO_INT), "n": i64(-1)},
)
constant(
    "int-min-mod",
    "-2^63 mod -1, another",
    [node("Mod", ["m", "n"], ["big"])],
    "overflow",
    constants={"m": i64(NO_INT), "n": i64(-1)},
)
constant(
    "int-min-32",
    "the same in 32 bits",
    [node("Div", ["m", "n"], ["big"])],
    "overflow",
    constants={"m": np.array([-(2**31)], np.int32), "n": np.array([-1], np.int32)},
)
constant(
    "int-zero",
    "a whole number divided by zero",
    [node("Div", ["m", "n"], ["big"])],
    "zero",
    constants={"m": i64(1), "n": i64(0)},
)

# ---- tensors of absurd sizes, of constants

HUGE = 2**40
_MANY = [
    (
        "range",
        "2^40 numbers counted out",
        [node("Range", ["a", "b", "one_"], ["big"])],
        {"a": np.int64(0), "b": np.int64(HUGE), "one_": np.int64(1)},
    ),
    (
        "range-real",
        "1e30 numbers counted out",
        [node("Range", ["a", "b", "one_"], ["big"])],
        {"a": np.float32(0), "b": np.float32(1e30), "one_": np.float32(1)},
    ),
    (
        "range-nan",
        "numbers counted out up to infinity",
        [node("Range", ["a", "b", "one_"], ["big"])],
        {"a": np.float32(0), "b": np.float32("inf"), "one_": np.float32(1)},
    ),
    ("constant-of-shape", "2^40 zeros", [node("ConstantOfShape", ["n"], ["big"])], {"n": i64(HUGE)}),
    (
        "constant-of-shape-2",
        "2^32 x 2^32 zeros, which is 0 in 64 bits",
        [node("ConstantOfShape", ["n"], ["big"])],
        {"n": i64(2**32, 2**32)},
    ),
    (
        "expand",
        "a number spread over 2^40 places",
        [node("Expand", ["c", "n"], ["big"])],
        {"c": f32(1), "n": i64(HUGE)},
    ),
    ("tile", "a number repeated 2^40 times", [node("Tile", ["c", "n"], ["big"])], {"c": f32(1), "n": i64(HUGE)}),
    ("pad", "2^40 zeros around a number", [node("Pad", ["c", "n"], ["big"])], {"c": f32(1), "n": i64(0, HUGE)}),
    (
        "one-hot",
        "2^40 classes",
        [node("OneHot", ["c", "n", "v"], ["big"])],
        {"c": i64(1), "n": np.int64(HUGE), "v": f32(2)},
    ),
    (
        "gather",
        "one row taken 2^20 x 2^10 times",
        [node("Gather", ["c", "n"], ["big"])],
        {"c": f32(1, 2**15), "n": np.zeros(2**15, np.int64)},
    ),
    (
        "outer-sum",
        "2^16 numbers plus 2^16 numbers, each with each",
        [node("Add", ["c", "d"], ["big"])],
        {"c": f32(2**16, 1), "d": f32(1, 2**16)},
    ),
    (
        "outer-product",
        "the same as a matrix product",
        [node("MatMul", ["c", "d"], ["big"])],
        {"c": f32(2**16, 1), "d": f32(1, 2**16)},
    ),
    (
        "where",
        "the same as a choice",
        [node("Where", ["t", "c", "d"], ["big"])],
        {"t": np.bool_(True), "c": f32(2**16, 1), "d": f32(1, 2**16)},
    ),
    (
        "max-broadcast",
        "the same as a maximum",
        [node("Max", ["c", "d"], ["big"])],
        {"c": f32(2**16, 1), "d": f32(1, 2**16)},
    ),
    (
        "doubling",
        "a constant joined with itself 40 times over",
        [
            node("Concat", ["c" if k == 0 else f"c{k}"] * 2, ["big" if k == 39 else f"c{k + 1}"], axis=0)
            for k in range(40)
        ],
        {"c": f32(1)},
    ),
    (
        "hidden-size",
        "the size comes out of other constants",
        [
            node("Mul", ["h", "h"], ["hh"]),
            node("Mul", ["hh", "hh"], ["n"]),
            node("ConstantOfShape", ["n"], ["big"]),
        ],
        {"h": i64(2**10)},
    ),
]
for _name, _why, _nodes, _constants in _MANY:
    constant(_name, _why, _nodes, "elements", constants=_constants)
constant(
    "several",
    "500 tensors, each of them of a moderate size",
    [*(node("ConstantOfShape", ["n"], ["big" if k == 499 else f"c{k}"]) for k in range(500))],
    "MiB",
    constants={"n": i64(2**23)},
    slow=True,
)
constant(
    "resize",
    "a picture stretched by 2^20",
    [node("Resize", ["c", "", "n"], ["big"])],
    "Resize",
    constants={"c": f32(1, 1, 2, 2), "n": f32(4) * 2**20},
)
constant(
    "upsample",
    "the same in an old opset",
    [node("Upsample", ["c", "n"], ["big"])],
    "Upsample",
    constants={"c": f32(1, 1, 2, 2), "n": f32(4) * 2**20},
    opset=9,
)
constant(
    "matrix-work",
    "two whole-number matrices of 4,096 x 4,096",
    [node("MatMul", ["c", "c"], ["big"])],
    "multiplications",
    constants={"c": np.ones((4096, 4096), np.int64)},
    slow=True,
)
constant(
    "constant-convolution",
    "a convolution of constants",
    [node("Conv", ["c", "w"], ["big"])],
    "Conv",
    constants={"c": f32(1, 1, 64, 64), "w": f32(1, 1, 9, 9)},
)

# ---- tensors of absurd sizes, of what depends on the input

IMAGE = (1, 1, 8, 8)
_DATA: list[tuple[str, str, list[onnx.NodeProto], dict[str, np.ndarray], Sequence[int], str]] = [
    (
        "data-expand",
        "the input spread over 2^40 places",
        [node("Expand", [X, "n"], ["y"])],
        {"n": i64(2**39, 2)},
        (1, 2),
        "elements",
    ),
    (
        "data-tile",
        "the input repeated 2^40 times",
        [node("Tile", [X, "n"], ["y"])],
        {"n": i64(1, HUGE)},
        (1, 2),
        "elements",
    ),
    (
        "data-pad",
        "2^40 zeros around the input",
        [node("Pad", [X, "n"], ["y"])],
        {"n": i64(0, 0, 0, HUGE)},
        (1, 2),
        "elements",
    ),
    (
        "data-pad-reflect",
        "the input reflected 2^40 times",
        [node("Pad", [X, "n"], ["y"], mode="reflect")],
        {"n": i64(0, 0, 0, HUGE)},
        (1, 2),
        "elements",
    ),
    (
        "data-pad-pair",
        "a pad and a cut that cancel",
        [node("Pad", [X, "n"], ["y"])],
        {"n": i64(0, -HUGE, 0, HUGE)},
        (1, 2),
        "elements",
    ),
    (
        "data-gather",
        "the input taken 2^25 times",
        [node("Gather", [X, "n"], ["y"], axis=1)],
        {"n": np.zeros(2**24 + 1, np.int8).astype(np.int32)},
        (1, 2),
        "elements",
    ),
    (
        "data-outer",
        "each input plus 2^24 numbers",
        [node("Add", [X, "n"], ["y"])],
        {"n": f32(2**24, 1)},
        (1, 2),
        "elements",
    ),
    (
        "data-matmul",
        "2^24 rows",
        [node("Expand", [X, "n"], ["r"]), node("MatMul", ["r", "w"], ["y"])],
        {"n": i64(2**22, 2), "w": f32(2, 64)},
        (1, 2),
        "elements",
    ),
    (
        "data-tiles",
        "the input doubled 40 times",
        [node("Tile", [X if k == 0 else f"v{k}", "n"], ["y" if k == 39 else f"v{k + 1}"]) for k in range(40)],
        {"n": i64(1, 2)},
        (1, 2),
        "elements",
    ),
    (
        "data-concat",
        "joined with itself 40 times over",
        [node("Concat", [X if k == 0 else f"v{k}"] * 2, ["y" if k == 39 else f"v{k + 1}"], axis=1) for k in range(40)],
        {},
        (1, 2),
        "elements",
    ),
    (
        "conv-pads",
        "2^40 zeros around an image",
        [node("Conv", [X, "w"], ["y"], pads=[HUGE] * 4)],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "elements",
    ),
    (
        "conv-pads-one",
        "pads on one side only",
        [node("Conv", [X, "w"], ["y"], pads=[0, 0, HUGE, 0])],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "elements",
    ),
    (
        "conv-pads-stride",
        "2^40 zeros, of which two are read",
        [node("Conv", [X, "w"], ["y"], pads=[HUGE] * 4, strides=[HUGE] * 2)],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "elements",
    ),
    (
        "conv-dilation",
        "a kernel that reaches 2^60 far",
        [node("Conv", [X, "w"], ["y"], dilations=[2**60] * 2)],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "shape",
    ),
    (
        "conv-dilation-same",
        "and pads to match",
        [node("Conv", [X, "w"], ["y"], dilations=[2**60] * 2, auto_pad="SAME_UPPER")],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "elements",
    ),
    (
        "conv-columns",
        "an image of 16 million pixels under a kernel of 1,024",
        [node("Conv", [X, "w"], ["y"])],
        {"w": f32(1, 1, 32, 32)},
        (1, 1, 4096, 4096),
        "windows",
    ),
    (
        "conv-channels",
        "2^20 channels",
        [node("Conv", [X, "w"], ["y"], pads=[16] * 4)],
        {"w": f32(2**20, 1, 3, 3)},
        IMAGE,
        "elements",
    ),
    (
        "conv-groups",
        "2^40 groups",
        [node("Conv", [X, "w"], ["y"], group=HUGE)],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "groups",
    ),
    ("conv-groups-0", "no group", [node("Conv", [X, "w"], ["y"], group=0)], {"w": f32(1, 1, 3, 3)}, IMAGE, "groups"),
    (
        "conv-kernel",
        "a kernel's shape that is not the kernel's",
        [node("Conv", [X, "w"], ["y"], kernel_shape=[5, 5])],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "kernel",
    ),
    (
        "conv-stride-0",
        "a stride of 0",
        [node("Conv", [X, "w"], ["y"], strides=[0, 0])],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "stride",
    ),
    (
        "conv-pads-negative",
        "pads below zero",
        [node("Conv", [X, "w"], ["y"], pads=[-3] * 4)],
        {"w": f32(1, 1, 3, 3)},
        IMAGE,
        "below 0",
    ),
    (
        "max-pool",
        "a window of 2^40 pixels",
        [node("MaxPool", [X], ["y"], kernel_shape=[HUGE] * 2, pads=[HUGE - 1] * 4)],
        {},
        IMAGE,
        "elements",
    ),
    (
        "max-pool-padding",
        "a window within the padding",
        [node("MaxPool", [X], ["y"], kernel_shape=[2, 2], pads=[5] * 4)],
        {},
        IMAGE,
        "padding",
    ),
    (
        "max-pool-stride",
        "a stride of 2^60",
        [node("MaxPool", [X], ["y"], kernel_shape=[9, 9], strides=[2**60] * 2)],
        {},
        IMAGE,
        "does not fit",
    ),
    (
        "average-pool",
        "a mean over 2^40 pixels",
        [node("AveragePool", [X], ["y"], kernel_shape=[HUGE] * 2, pads=[HUGE - 1] * 4)],
        {},
        IMAGE,
        "elements",
    ),
    (
        "average-pool-wide",
        "a mean over a million pixels, at a million places",
        [node("AveragePool", [X], ["y"], kernel_shape=[1025] * 2, pads=[512] * 4)],
        {},
        (1, 1, 1024, 1024),
        "windows",
    ),
    ("blocks", "blocks of 2^40 pixels", [node("DepthToSpace", [X], ["y"], blocksize=HUGE)], {}, IMAGE, "DepthToSpace"),
    ("blocks-0", "blocks of no pixel", [node("SpaceToDepth", [X], ["y"], blocksize=0)], {}, IMAGE, "SpaceToDepth"),
    ("split", "2^40 parts", [node("Split", [X], ["y"], num_outputs=HUGE, axis=1)], {}, (1, 2), "Split"),
    ("reshape", "a negative size", [node("Reshape", [X, "n"], ["y"])], {"n": i64(-HUGE, 2)}, (1, 2), "Reshape"),
    (
        "unsqueeze",
        "a thousand axes",
        [node("Unsqueeze", [X, "n"], ["y"])],
        {"n": i64(*range(1000))},
        (1, 2),
        "Unsqueeze",
    ),
    (
        "slice-0",
        "a step of 0",
        [node("Slice", [X, "n", "m", "o", "n"], ["y"])],
        {"n": i64(0), "m": i64(2), "o": i64(1)},
        (1, 2),
        "Slice",
    ),
    (
        "slice-min",
        "a step of -2^63",
        [node("Slice", [X, "m", "n", "o", "m"], ["y"])],
        {"n": i64(2), "m": i64(NO_INT), "o": i64(1)},
        (1, 2),
        "Slice",
    ),
    (
        "transpose",
        "an axis that is not there",
        [node("Transpose", [X], ["y"], perm=[HUGE, 0])],
        {},
        (1, 2),
        "Transpose",
    ),
    ("concat-axis", "an axis that is not there", [node("Concat", [X, X], ["y"], axis=2**40)], {}, (1, 2), "axis"),
    (
        "pad-axes",
        "an axis that is not there",
        [node("Pad", [X, "n", "", "n"], ["y"])],
        {"n": i64(HUGE, 1)},
        (1, 2),
        "Pad",
    ),
    (
        "reduce-axes",
        "an axis that is not there",
        [node("ReduceSum", [X, "n"], ["y"])],
        {"n": i64(HUGE)},
        (1, 2),
        "axes",
    ),
]
for _name, _why, _nodes, _constants, _shape, _says in _DATA:
    graph(
        _name,
        _why,
        lambda nodes=_nodes: nodes,
        _says,
        _constants,
        shape=_shape,
        opset=18 if _name in ("split", "pad-axes") else 13,
        slow=_name in ("conv-columns",),
    )  # type: ignore[misc]

graph(
    "max-axis",
    "the maximum of 16 million numbers",
    lambda: [node("Expand", [X, "n"], ["e"]), node("ReduceMax", ["e"], ["m"], axes=[0]), node("Add", [X, "m"], ["y"])],
    "elements",
    {"n": i64(2**22, 2)},
    ends=(REFUSED, "timeout", "unknown", "sat"),
    slow=True,
)
graph(
    "conv-heavy",
    "a convolution of 2^33 multiplications",
    lambda: [node("Conv", [X, "w"], ["y"], pads=[1] * 4)],
    "multiplications",
    {"w": f32(256, 256, 3, 3)},
    shape=(1, 256, 128, 128),
    ends=(REFUSED, "timeout", "unknown", "sat"),
    slow=True,
)
graph(
    "wide",
    "layers of 4,096 neurons, ten of them",
    lambda: [
        *(
            n
            for k in range(10)
            for n in (
                node("MatMul", [X if k == 0 else f"r{k - 1}", "v" if k == 0 else "w"], [f"h{k}"]),
                node("Relu", [f"h{k}"], [f"r{k}"]),
            )
        ),
        node("MatMul", ["r9", "o"], ["y"]),
    ],
    "",
    {
        "v": np.random.default_rng(0).normal(size=(2, 4096)).astype(np.float32),
        "w": (np.random.default_rng(1).normal(size=(4096, 4096)) / 64).astype(np.float32),
        "o": np.random.default_rng(2).normal(size=(4096, 2)).astype(np.float32),
    },
    ends=("sat", "timeout", "unknown"),
    slow=True,
)
graph(
    "wide-image",
    "16 million ReLUs",
    lambda: [
        node("Expand", [X, "n"], ["e"]),
        node("Relu", ["e"], ["r"]),
        node("ReduceMean", ["r"], ["m"], axes=[0]),
        node("Relu", ["m"], ["y"]),
    ],
    "memory",
    {"n": i64(2**23, 2)},
    ends=(REFUSED, "sat", "timeout", "unknown"),
    slow=True,
)

# ---- numbers that are none


def _weights(value: float) -> np.ndarray:
    return np.full((2, 2), value, np.float32)


for _name, _value in (("nan", np.nan), ("inf", np.inf), ("minus-inf", -np.inf)):
    graph(
        f"weight-{_name}",
        f"a weight of {_value}",
        lambda: [node("MatMul", [X, "w"], ["y"])],
        "NaN or infinite",
        {"w": _weights(_value)},
    )
    graph(
        f"alpha-{_name}",
        f"a factor of {_value}",
        lambda v=_value: [node("Gemm", [X, "w"], ["y"], alpha=float(v))],
        "NaN or infinite",
        {"w": _weights(1)},
    )  # type: ignore[misc]
graph("clip-nan", "a clip at NaN", lambda: [node("Clip", [X, "n"], ["y"])], "NaN or infinite", {"n": np.float32("nan")})
graph(
    "variance",
    "a variance below zero",
    lambda: [node("BatchNormalization", [X, "c", "c", "c", "m"], ["y"])],
    "not positive",
    {"c": f32(2), "m": -f32(2)},
)
graph(
    "overflow",
    "a product beyond float32",
    lambda: [node("MatMul", [X, "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])],
    "overflows",
    {"w": _weights(3e38)},
)

"""Networks whose parts contradict each other: weights, names, attributes, versions, types, files beside the file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from hostile_case import REFUSED, Case
from hostile_networks import change, f32, graph, node
from onnx import AttributeProto, TensorProto, helper
from onnx_models import X

RIGHT_TO_LEFT = "\u202e"

NAME = f"evil\x1b[31m\x07{RIGHT_TO_LEFT}name\u2028\n\x9b\u200b"  # colours, a bell, text backwards, two lines


_GOOD = change("good", "nothing is wrong with it", lambda model: None, "", ends=("sat",))


def _weight(f: Callable[[TensorProto], Any]) -> Callable[[onnx.ModelProto], None]:
    return lambda model: f(model.graph.initializer[0])


def _dims(*dims: int) -> Callable[[onnx.ModelProto], None]:
    return _weight(lambda w: (w.ClearField("dims"), w.dims.extend(dims)))


def _outside(
    location: str, make: Callable[[Path], Any] = lambda folder: None, copies: int = 1, **entries: int
) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        make(folder)
        args = _GOOD.write(folder)
        model = onnx.load_model_from_string((folder / "net.onnx").read_bytes())
        w = model.graph.initializer[0]
        w.ClearField("raw_data")
        w.data_location = TensorProto.EXTERNAL
        for key, value in {"location": location, **entries}.items():
            w.external_data.add(key=key, value=str(value))
        for k in range(1, copies):
            model.graph.initializer.add().CopyFrom(w)
            model.graph.initializer[k].name = f"w{k}"
        (folder / "net.onnx").write_bytes(model.SerializeToString())
        return args

    return write


def _grow(name: str, size: int) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return make


def _input(f: Callable[[onnx.ValueInfoProto], Any]) -> Callable[[onnx.ModelProto], None]:
    return lambda model: f(model.graph.input[0])


def _shape(*dims: int | str) -> Callable[[onnx.ModelProto], None]:
    def apply(model: onnx.ModelProto) -> None:
        model.graph.input[0].CopyFrom(helper.make_tensor_value_info(X, TensorProto.FLOAT, list(dims)))

    return apply


def _renamed(name: str) -> Callable[[onnx.ModelProto], None]:
    def apply(model: onnx.ModelProto) -> None:
        model.graph.node[1].name = name
        model.graph.node[1].op_type = "Sin"

    return apply


_NAMED = change("named", "a name to be shown", _renamed(NAME), r"evil\x1b[31m\x07\u202ename")


def _negation() -> onnx.FunctionProto:
    nodes = [node("Neg", ["a"], ["b"])]
    return helper.make_function("", "Relu", ["a"], ["b"], nodes, [helper.make_opsetid("", 13)])


_K = f32(1, 1, 3, 3)


def _attribute(f: Callable[[onnx.NodeProto], Any]) -> Callable[[onnx.ModelProto], None]:
    return lambda model: f(model.graph.node[0])


def _conv(name: str, why: str, f: Callable[[onnx.NodeProto], Any], says: str, **options: Any) -> Case:
    return graph(
        name,
        why,
        lambda: [node("Conv", [X, "w"], ["y"], strides=[2, 2])],
        says,
        {"w": _K},
        shape=(1, 1, 8, 8),
        change=_attribute(f),
        **options,
    )


def _opset(*versions: int, domain: str = "") -> Callable[[onnx.ModelProto], None]:
    def apply(model: onnx.ModelProto) -> None:
        model.ClearField("opset_import")
        for version in versions:
            model.opset_import.append(helper.make_opsetid(domain, version))

    return apply


def _bad_utf8(folder: Path) -> list[str]:
    args = _NAMED.write(folder)
    content = (folder / "net.onnx").read_bytes()
    (folder / "net.onnx").write_bytes(content.replace(b"evil", b"\xff\xfe\xc0\x80"))
    return args


CASES = [
    *(
        change(f"dims-{name}", f"weights of shape {dims[:3]} and data for 2 x 2", _dims(*dims), "damaged")
        for name, dims in (
            ("short", (2, 3)),
            ("huge", (2**40, 2**40)),
            ("wrap", (2**32, 2**32)),  # 0 in 64 bits
            ("negative", (-2, -2)),
            ("minus-one", (-1, 2)),
            ("many", (1,) * 100),
        )
    ),
    change(
        "dims-zero",
        "weights of shape 0 x 2",
        _weight(lambda w: (w.ClearField("raw_data"), w.dims.__setitem__(0, 0))),
        "shape",
    ),
    change(
        "dims-zero-huge",
        "weights of shape 0 x 2^62",
        _weight(lambda w: (w.ClearField("raw_data"), w.dims.__setitem__(slice(2), [0, 2**62]))),
        "weights",
    ),
    change("no-data", "weights without numbers", _weight(lambda w: w.ClearField("raw_data")), "damaged"),
    change(
        "type-99", "weights of a type that does not exist", _weight(lambda w: setattr(w, "data_type", 99)), "damaged"
    ),
    change(
        "type-text",
        "weights that are text",
        _weight(
            lambda w: (
                setattr(w, "data_type", TensorProto.STRING),
                w.ClearField("raw_data"),
                w.string_data.extend([b"a"] * 4),
            )
        ),
        "Mat",
    ),
    change(
        "type-complex",
        "weights that are complex",
        _weight(lambda w: (setattr(w, "data_type", TensorProto.COMPLEX64), setattr(w, "raw_data", bytes(32)))),
        "complex",
    ),
    change(
        "two-datas",
        "weights given twice",
        _weight(lambda w: w.float_data.extend([0.0] * 4)),
        "w",
        ends=("sat", REFUSED),
    ),
    change("segment", "a part of weights", _weight(lambda w: setattr(w.segment, "end", 2**60)), "w"),
    # ---- weights in other files
    *(
        Case(name=f"outside-{name}", why=f"weights in {why}", write=write, says="net.onnx")
        for name, why, write in (
            ("absent", "a file that is not there", _outside("nowhere.bin")),
            ("above", "a file in another folder", _outside("../../../../etc/passwd")),
            ("absolute", "a file with an absolute path", _outside("/etc/passwd")),
            ("device", "a device that never ends", _outside("/dev/zero")),
            (
                "link",
                "a link to such a device",
                _outside("w.bin", lambda folder: os.symlink("/dev/zero", folder / "w.bin")),
            ),
            ("pipe", "a pipe into which nobody writes", _outside("w.bin", lambda folder: os.mkfifo(folder / "w.bin"))),
            ("folder", "a folder", _outside(".")),
            ("nameless", "no name", _outside("")),
            ("terabyte", "a file of a terabyte", _outside("w.bin", _grow("w.bin", 2**40))),
            ("shared", "100 tensors in one file of a gigabyte", _outside("w.bin", _grow("w.bin", 2**30), copies=100)),
            ("offset", "an offset of 2^60", _outside("w.bin", _grow("w.bin", 16), offset=2**60, length=16)),
            ("offset-negative", "an offset below zero", _outside("w.bin", _grow("w.bin", 16), offset=-16, length=16)),
            ("length", "a length of 2^60", _outside("w.bin", _grow("w.bin", 16), offset=0, length=2**60)),
            ("itself", "the network's own file", _outside("net.onnx")),
        )
    ),
    # ---- inputs and outputs
    change("input-huge", "2^40 inputs", _shape(1, 2**40), "elements"),
    change("input-batch", "a batch of 2^40", _shape(2**40, 2), "elements"),
    change("input-wrap", "2^32 x 2^32 inputs", _shape(1, 2**32, 2**32), "elements"),
    change("input-negative", "-5 inputs", _shape(1, -5), "open dimension"),
    change("input-axes", "a thousand axes", _shape(*[1] * 1000), "axes"),
    change(
        "input-sequence",
        "a sequence",
        _input(lambda v: v.CopyFrom(helper.make_tensor_sequence_value_info(X, 1, [2]))),
        "floating point",
    ),
    change("input-none", "no type", _input(lambda v: v.ClearField("type")), "floating point"),
    change(
        "output-shape",
        "another shape than the result has",
        lambda m: m.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, [7, 7, 7])),
        "net.onnx",
        ends=("sat", REFUSED),
    ),
    change("output-none", "no output", lambda m: m.graph.ClearField("output"), "no network"),
    change(
        "output-nowhere",
        "an output that nothing computes",
        lambda m: setattr(m.graph.output[0], "name", "z"),
        "computes the output",
    ),
    # ---- names
    _NAMED,
    change("name-long", "a name of a million letters", _renamed("n" * 10**6), "nnn…nnn"),
    change("cycle", "two nodes that read each other", lambda m: m.graph.node[0].input.__setitem__(0, "y"), "reads 'y'"),
    change("self", "a node that reads itself", lambda m: m.graph.node[0].input.__setitem__(0, "h"), "reads 'h'"),
    change("output-twice", "two nodes that compute one tensor", lambda m: m.graph.node[1].output.append("h"), "'h'"),
    change("output-weight", "a node that computes a weight", lambda m: m.graph.node[1].output.append("w"), "'w'"),
    change("output-input", "a node that computes the input", lambda m: m.graph.node[1].output.append(X), "'x'"),
    change(
        "weight-twice",
        "two weights of one name",
        lambda m: m.graph.initializer.add().CopyFrom(m.graph.initializer[0]),
        "'w'",
    ),
    change("no-outputs", "a node that computes nothing", lambda m: m.graph.node[1].ClearField("output"), "output"),
    change("no-inputs", "a ReLU of nothing", lambda m: m.graph.node[1].ClearField("input"), "Relu"),
    change("no-operation", "a node without an operation", lambda m: m.graph.node[1].ClearField("op_type"), "relu"),
    change(
        "domain",
        "an operation of somebody else",
        lambda m: setattr(m.graph.node[1], "domain", "evil\u202e.example"),
        "not supported",
    ),
    change("function", "a function that calls itself Relu", lambda m: m.functions.append(_negation()), "function"),
    change("sparse", "sparse weights", lambda m: m.graph.sparse_initializer.add(), "sparse"),
    # ---- attributes
    _conv(
        "attribute-twice",
        "two different strides",
        lambda n: n.attribute.append(helper.make_attribute("strides", [1, 1])),
        "strides",
    ),
    _conv(
        "attribute-float",
        "strides that are no whole numbers",
        lambda n: n.attribute[0].CopyFrom(helper.make_attribute("strides", [1.5, 1.5])),
        "net.onnx",
    ),
    _conv(
        "attribute-text",
        "strides that are text",
        lambda n: n.attribute[0].CopyFrom(helper.make_attribute("strides", "two")),
        "net.onnx",
    ),
    _conv(
        "attribute-short",
        "one stride for two axes",
        lambda n: n.attribute[0].CopyFrom(helper.make_attribute("strides", [2])),
        "axes",
    ),
    _conv(
        "attribute-long",
        "many strides",
        lambda n: n.attribute[0].CopyFrom(helper.make_attribute("strides", [2] * 10**5)),
        "axes",
    ),
    _conv("attribute-none", "strides without a value", lambda n: n.attribute[0].ClearField("ints"), "net.onnx"),
    _conv("attribute-untyped", "strides without a type", lambda n: n.attribute[0].ClearField("type"), "net.onnx"),
    _conv(
        "attribute-reference",
        "strides given elsewhere",
        lambda n: setattr(n.attribute[0], "ref_attr_name", "s"),
        "net.onnx",
    ),
    _conv(
        "attribute-unknown",
        "an attribute nobody knows",
        lambda n: n.attribute.append(AttributeProto(name="evil", type=AttributeProto.INT, i=1)),
        "net.onnx",
    ),
    _conv(
        "attribute-nameless",
        "an attribute without a name",
        lambda n: n.attribute.append(AttributeProto(type=AttributeProto.INT, i=1)),
        "net.onnx",
    ),
    # ---- versions
    change("opset-none", "no opset", _opset(), "opset 1;"),
    change("opset-0", "opset 0", _opset(0), "opset 0;"),
    change("opset-negative", "opset -1", _opset(-1), "opset -1;"),
    change("opset-huge", "opset 2^62", _opset(2**62), "onnxruntime"),
    change("opset-two", "two opsets", _opset(7, 13), "opset"),
    change("opset-other", "an opset of somebody else only", _opset(13, domain="evil.example"), "opset"),
    change("ir-0", "version 0 of the format", lambda m: setattr(m, "ir_version", 0), "net.onnx", ends=(REFUSED, "sat")),
    change("ir-huge", "version 2^60 of the format", lambda m: setattr(m, "ir_version", 2**60), "net.onnx"),
    Case(name="name-utf8", why="a name that is not UTF-8", write=_bad_utf8, says="net.onnx"),
    Case(
        name="inspect-control",
        why="the same names, printed by inspect",
        write=lambda folder: ["inspect", *_NAMED.write(folder)[1:2]],
        ends=("printed",),
    ),
]

"""The checker reads networks as onnxruntime and surebound's own loader do, and properties as surebound's own reader."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from graphs import Graph, rational, values

from surebound.check.arithmetic import Arithmetic, CheckError
from surebound.check.file import read_bytes
from surebound.check.network import read_network
from surebound.check.ops import Relu
from surebound.check.vnnlib import read_property
from surebound.errors import UsageError
from surebound.load.onnx import load_onnx
from surebound.load.vnnlib import read_property as other_reader
from surebound.proof.checkable import expect_checkable

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def _image(g: Graph) -> str:
    return g.add("Relu", g.add("Conv", "x", normal(2, 2, 1, 1), normal(2)))


MODELS = {
    "gemm": lambda g: g.add("Gemm", "x", normal(3, 5), normal(5)),
    "gemm turned": lambda g: g.add("Gemm", "x", normal(5, 3), normal(1, 5), transB=1),
    "matmul": lambda g: g.add("MatMul", "x", normal(3, 4)),
    "matmul of rows": lambda g: g.add("MatMul", g.add("Reshape", "x", [3, 1]), normal(1, 2)),
    "sums": lambda g: g.add("Sub", g.add("Add", g.add("Relu", "x"), normal(1, 3)), "x"),
    "constant minus x": lambda g: g.add("Sub", normal(3), "x"),
    "x minus a constant": lambda g: g.add("Sub", "x", normal(3)),
    "broadcast": lambda g: g.add("Add", g.add("Reshape", "x", [3, 1]), "x"),
    "scalars": lambda g: g.add("Sub", np.float32(0.5), g.add("Div", g.add("Mul", "x", np.float32(3)), np.float32(-7))),
    "products": lambda g: g.add("Div", g.add("Mul", normal(1, 3), "x"), normal(3)),
    "relu after a shape": lambda g: g.add("Relu", g.add("Reshape", g.add("Relu", "x"), [3, 1])),
    "a constant of another name": lambda g: g.add("Add", "x", g.add("Identity", normal(3))),
    "gather": lambda g: g.add("MatMul", g.add("Gather", "x", [0, 2, 2, 1], axis=1), normal(4, 2)),
    "gather of one": lambda g: g.add("Sub", g.add("Gather", "x", g.constant(1, np.int64), axis=1), "x"),
    "dropout": lambda g: g.add("Dropout", g.add("Relu", "x")),
    "weights in half precision": lambda g: g.add(
        "MatMul", "x", g.add("Cast", g.constant(normal(3, 4), np.float16), to=1)
    ),
    "unused": lambda g: (g.add("Relu", "x"), g.add("Relu", g.add("Mul", "x", np.float32(2))))[1],
}

IMAGES = {
    "conv": lambda g: g.add("Conv", "x", normal(4, 2, 3, 3), normal(4), pads=[1, 0, 2, 1], strides=[2, 1]),
    "conv by groups": lambda g: g.add("Conv", "x", normal(4, 1, 2, 3), group=2, dilations=[1, 1]),
    "max pool": lambda g: g.add("MaxPool", _image(g), kernel_shape=[2, 2], strides=[2, 2]),
    "max pool that overlaps": lambda g: g.add("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 1]),
    "max pool with gaps": lambda g: g.add("MaxPool", "x", kernel_shape=[2, 1], strides=[3, 2]),
    "average pool": lambda g: g.add("AveragePool", _image(g), kernel_shape=[3, 2], strides=[2, 1]),
    "average pool with pads": lambda g: g.add(
        "AveragePool", "x", kernel_shape=[3, 2], pads=[1, 0, 1, 1], count_include_pad=1
    ),
    "global average": lambda g: g.add("Relu", g.add("GlobalAveragePool", "x")),
    "batch norm": lambda g: g.add("BatchNormalization", "x", normal(2), normal(2), normal(2), np.abs(normal(2)) + 0.1),
    "pad": lambda g: g.add("Conv", g.add("Pad", "x", [0, 0, 1, 2, 0, 0, 0, 1]), normal(1, 2, 3, 3)),
    "turned": lambda g: g.add("Conv", g.add("Transpose", "x", perm=[0, 1, 3, 2]), normal(1, 2, 3, 3)),
    "residual": lambda g: g.add(
        "Relu", g.add("Add", g.add("Conv", _image(g), normal(2, 2, 3, 3), pads=[1, 1, 1, 1]), "x")
    ),
    "flattened": lambda g: g.add("Gemm", g.add("Flatten", _image(g)), normal(60, 2)),
}

CASES = [
    *((f"{name} of a vector", (1, 3), make) for name, make in MODELS.items()),
    *((f"{name} of an image", (1, 2, 5, 6), make) for name, make in IMAGES.items()),
]


@pytest.mark.parametrize(("shape", "make"), [pytest.param(s, m, id=name) for name, s, m in CASES])
def test_a_network_is_read_as_others_read_it(tmp_path: Path, shape: tuple[int, ...], make) -> None:  # type: ignore[no-untyped-def]
    graph = Graph(shape)
    make(graph)
    compare(graph.bytes(), tmp_path)


def compare(content: bytes, folder: Path | None) -> None:
    """The same outputs as onnxruntime, the same layers as surebound's loader, the same values in exact arithmetic."""
    session = onnxruntime.InferenceSession(content, _options())
    source = session.get_inputs()[0]
    shape = [d if isinstance(d, int) and d > 0 else 1 for d in source.shape]
    network = read_network(content, int(np.prod(shape)), Arithmetic())
    for seed in range(3):
        x = np.random.default_rng(seed).uniform(-1, 1, size=shape).astype(np.float32)
        expected = session.run(None, {source.name: x})[0].reshape(-1)
        found = values(network, x.astype(np.float64).reshape(-1))[network.output][0]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * (1 + np.abs(expected).max()))
    if folder is None:
        return
    (folder / "net.onnx").write_bytes(content)
    other = load_onnx(folder / "net.onnx", check=False)
    assert network.widths == [other.width(k) for k in range(len(other.layers))]
    if b"BatchNorm" not in content:
        exact = read_network(content, int(np.prod(shape)), Arithmetic(exact=True))
        found = values(exact, rational(x.reshape(-1)))[exact.output][0].astype(float)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * (1 + np.abs(expected).max()))


def _options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 3, 1
    return options


def test_neurons_have_the_values_of_surebounds_own_network(tmp_path: Path) -> None:
    """Max pooling's ReLUs are numbered in the same order, layer by layer."""
    import torch

    graph = Graph((1, 2, 5, 6))
    graph.add("MaxPool", _image(graph), kernel_shape=[3, 2], strides=[2, 1])
    (tmp_path / "net.onnx").write_bytes(graph.bytes())
    network = read_network(graph.bytes(), 60, Arithmetic())
    x = np.random.default_rng(1).normal(size=60)
    found = values(network, x)
    seen: list[np.ndarray] = []

    def watch(layer: int, xhat: torch.Tensor) -> torch.Tensor:
        seen.append(xhat.reshape(-1).numpy())
        return xhat.clamp_min(0)

    load_onnx(tmp_path / "net.onnx", check=False).to(torch.float64).trace(
        torch.from_numpy(x).reshape(1, 2, 5, 6), watch
    )
    assert len(seen) == len(network.layers) == 4
    for node, other in zip(network.layers, seen, strict=True):
        np.testing.assert_allclose(found[network.reads[node][0]][0], other, atol=1e-12)


REFUSED = {
    "an unknown operation": (lambda g: g.add("Sigmoid", "x"), "no proofs for such an operation"),
    "two tensors multiplied": (lambda g: g.add("Mul", "x", "x"), "is missing or computed"),
    "a NaN": (lambda g: g.add("Add", "x", np.array([0, np.nan, 0])), "NaN"),
    "a huge weight": (lambda g: g.add("Mul", g.add("Mul", "x", np.float32(3e38)), np.float32(3e38)), None),
    "a division by zero": (lambda g: g.add("Div", "x", np.array([1, 0, 1])), "divisor"),
    "a shape below -1": (lambda g: g.add("Reshape", "x", [-2, 3]), "shape"),
    "a scalar product": (lambda g: g.add("MatMul", "x", normal(4, 2)), "cannot multiply"),
    "a forward read": (lambda g: g.add("Add", "x", "t9"), "nothing before it"),
    "a constant network": (lambda g: g.add("Identity", normal(3)), "does not depend"),
    "a concatenation": (lambda g: g.add("Concat", "x", "x", axis=1), "no proofs for such an operation"),
    "a product from the left": (lambda g: g.add("MatMul", normal(4, 1), "x"), "is missing or computed"),
    "a scaled product": (lambda g: g.add("Gemm", "x", normal(3, 2), alpha=0.5), "without factors"),
    "a scaled constant": (lambda g: g.add("Gemm", "x", normal(3, 2), normal(2), beta=0.5), "without factors"),
    "a turned tensor": (lambda g: g.add("Gemm", "x", normal(1, 2), transA=1), "not turned"),
    "a product of three axes": (lambda g: g.add("Gemm", g.add("Reshape", "x", [1, 1, 3]), normal(3, 2)), "two axes"),
    "a cast of what is computed": (lambda g: g.add("Cast", "x", to=1), "is missing or computed"),
    "a cast to whole numbers": (lambda g: g.add("Add", "x", g.add("Cast", normal(3), to=7)), "Cast"),
    "dropout in training": (lambda g: g.add("Dropout", "x", np.float32(0.5), g.constant(True, bool)), "training"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_covered_is_refused(name: str) -> None:
    make, words = REFUSED[name]
    graph = Graph((1, 3))
    make(graph)
    if words is None:
        read_network(graph.bytes(), 3, Arithmetic())
        return
    with pytest.raises(CheckError, match=words):
        read_network(graph.bytes(), 3, Arithmetic())


def test_a_constant_is_cast_as_onnxruntime_casts_it() -> None:
    """0.1 as a double is not 0.1 as a float32."""
    graph = Graph((1, 3))
    graph.add("Add", "x", graph.add("Cast", graph.constant(np.full(3, 0.1), np.float64), to=1))
    network = read_network(graph.bytes(), 3, Arithmetic())
    found = values(network, np.zeros(3))[network.output][0]
    (expected,) = onnxruntime.InferenceSession(graph.bytes(), _options()).run(None, {"x": np.zeros((1, 3), np.float32)})
    assert found.tolist() == expected[0].astype(np.float64).tolist() == [float(np.float32(0.1))] * 3


def test_a_network_defined_twice_or_of_another_size_is_refused() -> None:
    graph = Graph((1, 3))
    graph.add("Relu", "x")
    graph.nodes.append(graph.nodes[0])
    with pytest.raises(CheckError, match="twice"):
        read_network(graph.bytes("t0"), 3, Arithmetic())
    del graph.nodes[1]
    with pytest.raises(CheckError, match="expected 4"):
        read_network(graph.bytes(), 4, Arithmetic())
    with pytest.raises(CheckError, match="the network: Error parsing message"):
        read_network(b"\x00\x01nonsense", 3, Arithmetic())


def test_batch_norm_has_no_exact_value() -> None:
    graph = Graph((1, 2, 5, 6))
    IMAGES["batch norm"](graph)
    with pytest.raises(CheckError, match="exact"):
        read_network(graph.bytes(), 60, Arithmetic(exact=True))


# ---- published files


def test_published_networks_are_read_as_others_read_them(shared: Path) -> None:
    files = sorted((shared / "vnncomp").glob("*/onnx/*"))
    assert len(files) > 30
    for file in files:
        content = read_bytes(file)
        compare(content, None)
        session = onnxruntime.InferenceSession(content, _options()).get_inputs()[0]
        count = int(np.prod([d if isinstance(d, int) and d > 0 else 1 for d in session.shape]))
        other = load_onnx(file, check=False)
        assert read_network(content, count, Arithmetic()).widths == [other.width(k) for k in range(len(other.layers))]


def test_published_properties_are_read_as_others_read_them(shared: Path) -> None:
    files = sorted((shared / "vnncomp").glob("*/vnnlib/*"))
    assert len(files) > 80
    for file in files:
        agree(file)


def agree(file: Path) -> None:
    """Our regions are the other reader's."""
    ours, theirs = read_property(read_bytes(file)), other_reader(file)
    assert (ours.inputs, ours.outputs) == (theirs.inputs, theirs.outputs)
    regions = [region for region in ours.regions if not region.empty]
    assert len(regions) == len(theirs.regions)
    boxes: dict[tuple[bytes, bytes], int] = {}
    for a, b in zip(regions, theirs.regions, strict=True):
        lower, upper = ours.boxes[a.box]
        np.testing.assert_array_equal(lower, b.box.lower)
        np.testing.assert_array_equal(upper, b.box.upper)
        assert boxes.setdefault(b.box.key, a.box) == a.box
        assert [row.strict for row in a.rows] == b.strict.tolist()
        for r, row in enumerate(a.rows):
            terms = {~i: v for i, v in enumerate(b.on_output[r].tolist()) if v}
            terms |= {} if b.on_input is None else {i: v for i, v in enumerate(b.on_input[r].tolist()) if v}
            assert {v: float(c) for v, c in row.terms.items()} == terms
            assert float(row.constant) == b.constant[r]


HEAD = "(declare-const X_0 Real)(declare-const X_1 Real)(declare-fun Y_0 () Real)(declare-const Y_1 Real)"
BOX = "(assert (>= X_0 -0.1))(assert (<= X_0 0.3))(assert (and (>= X_1 0)(<= X_1 1e-1)))"
HEAD_2 = "(vnnlib-version <2.0>)(declare-network N (declare-input X float32 [1,2])(declare-output Y float32 [2]))"

TEXTS = {
    "two cases": HEAD + BOX + "(assert (or (<= Y_0 Y_1) (and (>= (* 0.1 Y_0) 3) (< Y_1 2))))",
    "cases multiply": HEAD
    + BOX
    + "(assert (or (<= Y_0 1) (<= Y_0 2)))(assert (or (<= Y_1 1) (<= Y_1 2)))(assert (<= Y_0 Y_1))",
    "boxes of cases": HEAD
    + BOX
    + "(assert (or (and (<= X_0 0.2) (<= Y_0 0)) (and (>= X_0 0.4) (<= Y_0 1)) (<= Y_1 0)))",
    "rows on inputs": HEAD + BOX + "(assert (<= (+ X_0 (* -2 X_1) Y_0 (- Y_1)) (* 0.3 -2)))(assert (<= X_0 X_1))",
    "strict bounds": HEAD + BOX + "(assert (< X_0 0.25))(assert (> 1 Y_0))",
    "decided at once": HEAD + BOX + "(assert (or (<= 1 0) (<= Y_0 Y_1) (<= (- Y_0 Y_0) 0)))",
    "comments": "; (assert\n" + HEAD + BOX + "(assert (<= Y_0 Y_1)) ; end",
    "a box that rounds": HEAD + BOX + "(assert (<= X_0 0.10000000000000000001))(assert (<= Y_0 0))",
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_property_is_read_as_others_read_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "p.vnnlib").write_text(TEXTS[name])
    agree(tmp_path / "p.vnnlib")


def empty(text: str) -> list[bool]:
    """Which regions have a box without a point."""
    return [region.empty for region in read_property(text.encode()).regions]


def test_regions_with_empty_boxes_are_listed() -> None:
    assert empty(TEXTS["boxes of cases"]) == [False, True, False]
    assert [region.box for region in read_property(TEXTS["boxes of cases"].encode()).regions] == [0, 1, 2]
    assert empty(HEAD + BOX + "(assert (<= X_0 -1))(assert (or (<= Y_0 0) (<= Y_1 0)))") == [True, True]
    assert empty(HEAD + BOX + "(assert (<= X_0 -0.1))(assert (<= Y_0 0))") == [False]
    assert empty(HEAD + BOX + "(assert (<= X_1 -0.0))(assert (>= X_0 0.3))(assert (<= Y_0 0))") == [False]


def test_a_zero_is_a_zero() -> None:
    """-0 and 0 are the end of one box, not of two."""
    text = HEAD + BOX + "(assert (or (and (<= X_1 0) (<= Y_0 0)) (and (<= X_1 -0.0) (<= Y_1 0))))"
    assert [region.box for region in read_property(text.encode()).regions] == [0, 0]
    text = HEAD + BOX + "(assert (or (and (<= X_0 0) (<= Y_0 0)) (and (<= X_0 -1e-400) (<= Y_1 0))))"
    assert [region.box for region in read_property(text.encode()).regions] == [0, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no inputs"),
        ("(declare-const X_0 Real)", "no outputs"),
        (HEAD + BOX + "(assert (<= Y_0 Y_1)", "ends too early"),
        (HEAD + BOX + "(assert (<= Y_0 (* Y_0 Y_1)))", "linear"),
        (HEAD + BOX + "(assert (<= Y_0 (/ 1 2)))", "linear"),
        (HEAD + BOX + "(assert (<= Y_0 (-)))", "linear"),
        (HEAD + BOX + "(assert (= Y_0 1))", "expected a formula"),
        (HEAD + BOX + "(<= Y_0 Y_1)", "expected a command"),
        (HEAD + BOX + "(set-info (assert (<= Y_0 Y_1)))", "expected a command"),
        (HEAD + BOX + "(assert (<= Y_0 Y_1)))", "expected a command"),
        (HEAD + BOX + "assert (assert (<= Y_0 Y_1))", "expected a command"),
        (HEAD + BOX + "(assert (<= Y_0 Y_1) (<= Y_0 1))", "expected a command"),
        (HEAD + BOX + "(assert (and (<= Y_0 Y_1) (assert (<= Y_0 1))))", "expected a formula"),
        (HEAD + BOX + "(assert (<= Y_0 ()))", "numbers"),
        (HEAD + BOX + "(assert (<= Y_2 0))", "not declared"),
        (HEAD + BOX + "(assert (<= Y_0 nan))", "numbers"),
        (HEAD + BOX + f"(assert (<= Y_0 {'1' * 5000}))", "numbers"),
        (HEAD + BOX + "(assert (not (<= Y_0 1)))", "expected a formula"),
        (HEAD + BOX + "(assert (and))", "expected a formula"),
        (HEAD + BOX + "(assert (<= Y_0 0 1))", "expected a formula"),
        (HEAD + BOX + "(assert Y_0)", "expected a formula"),
        (HEAD + BOX + "(assert " + "(" * 100_000, "nested too deeply"),
        (HEAD + "(assert (<= X_0 1))(assert (<= Y_0 1))", "two bounds"),
        (HEAD + BOX + "(assert (<= X_0 1e99))(assert (<= X_1 -1e99))", "beyond"),
        (HEAD + HEAD, "X_0 is declared"),
        ("(declare-const X_1 Real)(declare-const Y_0 Real)", "X_1 is declared"),
        ("(declare-const Z_0 Real)", "Z_0 is declared"),
        ("(declare-const X_0 Int)", "expected a command"),
        ("(eval X)", "expected a command"),
        (HEAD_2 + "(assert (<= X[0,0] 1))", "VNN-LIB 1.0"),
        (HEAD + "".join(f"(assert (or {'(<= Y_0 1)' * 600}))" for _ in range(2)), "disjunctive"),
    ],
)
def test_other_texts_are_refused(text: str, words: str) -> None:
    with pytest.raises(CheckError, match=words):
        read_property(text.encode())


def test_a_case_with_a_fixed_input_is_not_empty() -> None:
    text = HEAD + BOX + "(assert (or (and (<= X_0 -0.1) (<= Y_0 0)) (and (>= X_0 0.3) (<= Y_0 1))))"
    assert empty(text) == [False, False]


@pytest.mark.parametrize(("shape", "make"), [pytest.param(s, m, id=name) for name, s, m in CASES])
def test_adjoints_belong_to_their_operations(shape: tuple[int, ...], make) -> None:  # type: ignore[no-untyped-def]
    """g · A x = Aᵀ g · x, for each operation of each network."""
    graph = Graph(shape)
    make(graph)
    rng = np.random.default_rng(0)
    network = read_network(graph.bytes(), int(np.prod(shape)), Arithmetic())
    for op, reads in zip(network.ops[1:], network.reads[1:], strict=True):
        if not isinstance(op, Relu):
            xs = [rng.normal(size=(2, network.sizes[j])) for j in reads]
            last = np.arange(op.size) == op.size - 1
            for some in (*(rng.random(op.size) < share for share in (0.0, 0.1, 1.0)), last):
                g = rng.normal(size=(2, op.size)) * some
                forward = (g * op.apply(xs)).sum(1)
                back = sum((x * y).sum(1) for x, y in zip(xs, op.adjoint(g), strict=True))
                np.testing.assert_allclose(forward, back, atol=1e-12)
            np.testing.assert_array_less(np.abs(op.apply(xs)) - 1e-9, op.apply([np.abs(x) for x in xs], absolute=True))


def test_weights_beyond_the_limit_are_refused() -> None:
    for value in (1e61, -1e61, np.inf):
        graph = Graph((1, 3), dtype=np.float64)
        graph.add("Mul", "x", np.full(3, value))
        with pytest.raises(CheckError, match="beyond"):
            read_network(graph.bytes(), 3, Arithmetic())


WINDOWS = {
    "gaps": {"dilations": [2, 1]},
    "automatic pads": {"auto_pad": "SAME_UPPER"},
    "windows that hang over": {"ceil_mode": 1},
    "one axis": {"strides": [2]},
    "another kernel": {"kernel_shape": [2, 3]},
    "pads on one side": {"pads": [1, 1]},
    "a stride of zero": {"strides": [0, 1]},
    "negative pads": {"pads": [0, -1, 0, 0]},
}


@pytest.mark.parametrize("name", WINDOWS)
def test_other_windows_are_refused(name: str) -> None:
    graph = Graph((1, 2, 5, 6))
    graph.add("Conv", "x", normal(4, 2, 3, 3), **WINDOWS[name])
    with pytest.raises(CheckError, match="expected windows"):
        read_network(graph.bytes(), 60, Arithmetic())


@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
def test_pools_with_pads_are_refused(kind: str) -> None:
    graph = Graph((1, 2, 5, 6))
    graph.add(kind, "x", kernel_shape=[2, 2], pads=[1, 0, 0, 1])
    with pytest.raises(CheckError, match="pads"):
        read_network(graph.bytes(), 60, Arithmetic())


@pytest.mark.parametrize(
    ("pads", "options"),
    [([0, 0, 0, 0, 0, 0, -1, 0], {}), ([0, 0, 1, 1, 0, 0, 0, 0], {"mode": "reflect"}), ([0, 0, 1, 1], {})],
)
def test_other_pads_are_refused(pads: list[int], options: dict[str, str]) -> None:
    graph = Graph((1, 2, 5, 6))
    graph.add("Pad", "x", pads, **options)
    with pytest.raises(CheckError, match="Pad"):
        read_network(graph.bytes(), 60, Arithmetic())
    graph = Graph((1, 2, 5, 6))
    graph.add("Pad", "x", [0, 0, 1, 1, 0, 0, 0, 0], np.float32(1))
    with pytest.raises(CheckError, match="zeros"):
        read_network(graph.bytes(), 60, Arithmetic())


def test_a_relu_of_a_relu_is_counted_in_two_ways(tmp_path: Path) -> None:
    """surebound's own network has one of both: there are no proofs, and verify --proof says so."""
    graph = Graph((1, 3))
    graph.add("Relu", graph.add("Relu", "x"))
    (tmp_path / "net.onnx").write_bytes(graph.bytes())
    with pytest.raises(UsageError, match="counted in two ways"):
        expect_checkable(tmp_path / "net.onnx", load_onnx(tmp_path / "net.onnx", check=False))


def test_weights_in_other_files_are_refused(tmp_path: Path) -> None:
    graph = Graph((1, 3))
    graph.add("Mul", "x", np.ones(3))
    graph.weights[0].data_location = 1
    entry = graph.weights[0].external_data.add()
    entry.key, entry.value = "location", "weights.bin"
    with pytest.raises(CheckError, match="other files"):
        read_network(graph.bytes(), 3, Arithmetic())

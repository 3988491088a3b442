"""Every supported ONNX operation, in every form its opsets gave it, against onnxruntime."""

import gzip
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from exact import exact_output
from onnx import TensorProto, helper, numpy_helper
from onnx_models import X, run, save, save_op
from operations import CASES, floats, integers

from surebound.errors import MissingFileError, NetworkError, SureboundError, UnsupportedOpError
from surebound.load.onnx import (
    load_model,
    load_onnx,
    operations,
    survey,
)
from surebound.load.onnx_ops import SUPPORTED
from surebound.load.replay import replay
from surebound.network.agreement import check_agreement
from surebound.network.graph import Network


def _cases() -> Iterator[Any]:
    for number, (opsets, op, shape, inputs, attributes) in enumerate(CASES):
        for opset in opsets:
            for output in range(2 if op == "Split" else 1):
                yield pytest.param(opset, op, shape, inputs, attributes, output, id=f"{op}-{opset}-{number}-{output}")


def _forward(network: Network, x: np.ndarray) -> np.ndarray:
    samples = torch.from_numpy(x.astype(np.float64)).reshape(-1, *network.input_shape)
    return network.forward(samples).numpy()


@pytest.mark.parametrize(("opset", "op", "shape", "inputs", "attributes", "output"), list(_cases()))
def test_operation(
    tmp_path: Path,
    rng: np.random.Generator,
    opset: int,
    op: str,
    shape: tuple[int, ...],
    inputs: list[Any],
    attributes: dict[str, Any],
    output: int,
) -> None:
    outputs = 2 if op == "Split" else 1
    path = save_op(tmp_path / "op.onnx", op, shape, inputs, opset=opset, output=output, outputs=outputs, **attributes)
    network = load_onnx(path)
    for _ in range(3):
        x = rng.normal(size=shape).astype(np.float32)
        expected = run(path, x)
        full = expected.shape
        assert network.output_shape == (full[1:] if len(full) > 1 and full[0] == 1 else full or (1,))
        np.testing.assert_allclose(_forward(network, x).reshape(-1), expected.reshape(-1), rtol=2e-6, atol=2e-6)


def test_every_supported_operation_is_tested_here() -> None:
    assert set(SUPPORTED) - {case[1] for case in CASES} == {"Constant", "ConstantOfShape", "Shape", "Size"}


# ---- activations that are written as products


def _product(path: Path, nodes: list[tuple[str, list[str], str]], constants: dict[str, float]) -> Path:
    made = [helper.make_node(op, inputs, [output]) for op, inputs, output in nodes]
    return save(path, made, (1, 9), constants={k: np.float32(v) for k, v in constants.items()})


@pytest.mark.parametrize(
    ("nodes", "constants", "name"),
    [
        ([("Sigmoid", [X], "s"), ("Mul", [X, "s"], "y")], {}, "silu"),
        ([("Mul", [X, "b"], "t"), ("Sigmoid", ["t"], "s"), ("Mul", ["s", X], "y")], {"b": 1.702}, "silu"),
        (
            [
                ("Div", [X, "r"], "d"),
                ("Erf", ["d"], "e"),
                ("Add", ["e", "one"], "a"),
                ("Mul", [X, "a"], "m"),
                ("Mul", ["m", "h"], "y"),
            ],
            {"r": 2**0.5, "one": 1.0, "h": 0.5},
            "gelu",
        ),
        (
            [
                ("Mul", [X, "r"], "d"),
                ("Erf", ["d"], "e"),
                ("Add", ["one", "e"], "a"),
                ("Mul", ["a", "h"], "b"),
                ("Mul", ["b", X], "y"),
            ],
            {"r": 0.5**0.5, "one": 1.0, "h": 0.5},
            "gelu",
        ),
        (
            [
                ("Mul", [X, X], "q"),
                ("Mul", [X, "q"], "u"),
                ("Mul", ["u", "c"], "v"),
                ("Add", [X, "v"], "w"),
                ("Mul", ["w", "k"], "z"),
                ("Tanh", ["z"], "t"),
                ("Add", ["t", "one"], "a"),
                ("Mul", [X, "a"], "m"),
                ("Mul", ["m", "h"], "y"),
            ],
            {"c": 0.044715, "k": 0.7978845608, "one": 1.0, "h": 0.5},
            "gelu-tanh",
        ),
        (
            [("Mul", [X, "h"], "d"), ("Tanh", ["d"], "t"), ("Add", ["t", "one"], "a"), ("Mul", ["d", "a"], "y")],
            {"one": 1.0, "h": 0.5},
            "silu",
        ),
    ],
)
def test_products_that_are_activations(
    tmp_path: Path, rng: np.random.Generator, nodes: list[Any], constants: dict[str, float], name: str
) -> None:
    path = _product(tmp_path / "product.onnx", nodes, constants)
    network = load_onnx(path)
    assert [function.name for function in network.functions if function is not None] == [name]
    x = (rng.normal(size=(1, 9)) * 3).astype(np.float32)
    np.testing.assert_allclose(_forward(network, x), run(path, x), rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(
    "nodes",
    [
        [("Add", [X, "c"], "a"), ("Mul", [X, "a"], "y")],
        [("Sigmoid", [X], "s"), ("Tanh", [X], "t"), ("Mul", ["s", "t"], "y")],
        [("Add", [X, "c"], "a"), ("Sigmoid", ["a"], "s"), ("Mul", [X, "s"], "y")],
        [("Erf", [X], "e"), ("Add", ["e", "c"], "a"), ("Mul", [X, "a"], "y")],
        [("Mul", [X, X], "q"), ("Mul", ["q", "c"], "a"), ("Mul", ["q", "a"], "y")],
        [("Mul", [X, X], "q"), ("Add", ["q", "c"], "a"), ("Mul", ["a", "q"], "y")],
    ],
)
def test_other_products_are_refused(tmp_path: Path, nodes: list[Any]) -> None:
    with pytest.raises(UnsupportedOpError, match="both factors depend"):
        load_onnx(_product(tmp_path / "product.onnx", nodes, {"c": 0.5}))


# ---- whole graphs


def _mlp(path: Path, shape: list[int | str], output_shape: list[int | str] | None = None) -> Path:
    """Two matrix products with a ReLU between them, on the last of the input's axes."""
    nodes = [
        helper.make_node("MatMul", [X, "w"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    rng = np.random.default_rng(2)
    constants = {k: rng.normal(size=s).astype(np.float32) for k, s in (("w", (5, 8)), ("v", (8, 3)))}
    return save(path, nodes, shape, constants=constants, output_shape=output_shape)


@pytest.mark.parametrize(
    ("inner", "constants"),
    [
        ([("Div", ["e", "three"], "d"), ("Mul", ["d", "three"], "s")], {"three": 3.0}),
        ([("Mul", ["e", "a"], "d"), ("Mul", ["d", "b"], "s")], {"a": 1 + 2.0**-30, "b": 1 - 2.0**-30}),
    ],
)
def test_gates_that_are_centred_only_up_to_rounding(
    tmp_path: Path, inner: list[tuple[str, list[str], str]], constants: dict[str, float]
) -> None:
    """x (s erf(x) + 1), where s rounds to 1: that is no GELU where erf(x) is −1, and x (1 − s) is what remains."""
    nodes = [("Erf", [X], "e"), *inner, ("Add", ["s", "one"], "g"), ("Mul", [X, "g"], "y")]
    made = [helper.make_node(op, inputs, [output]) for op, inputs, output in nodes]
    doubles = {name: np.float64(value) for name, value in {**constants, "one": 1.0}.items()}
    path = save(tmp_path / "net.onnx", made, (1, 2), constants=doubles, dtype=TensorProto.DOUBLE)
    with pytest.raises(UnsupportedOpError, match="both factors depend"):
        load_onnx(path)


def test_a_gate_behind_a_batch_norm_is_not_centred(tmp_path: Path) -> None:
    """Its scale 1 / √(1 + 10⁻¹⁸) is 1 in float64."""
    nodes = [
        helper.make_node("Erf", [X], ["e"]),
        helper.make_node("BatchNormalization", ["e", "one", "zero", "zero", "one"], ["s"], epsilon=1e-18),
        helper.make_node("Add", ["s", "one"], ["g"]),
        helper.make_node("Mul", [X, "g"], ["y"]),
    ]
    constants = {"one": np.ones(2, dtype=np.float32), "zero": np.zeros(2, dtype=np.float32)}
    with pytest.raises(UnsupportedOpError, match="both factors depend"):
        load_onnx(save(tmp_path / "net.onnx", nodes, (1, 2), constants=constants))


def test_shapes_computed_in_the_graph(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Shape", [X], ["s"]),
        helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.array(0))),
        helper.make_node("Gather", ["s", "zero"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch", "axis"], ["batches"]),
        helper.make_node("Size", [X], ["size"]),
        helper.make_node("Div", ["size", "batches"], ["features"]),
        helper.make_node("Concat", ["batches", "features"], ["target"], axis=0),
        helper.make_node("Reshape", [X, "target"], ["flat"]),
        helper.make_node("ConstantOfShape", ["s"], ["twos"], value=numpy_helper.from_array(floats(1) * 0 + 2)),
        helper.make_node("Reshape", ["twos", "target"], ["flat_twos"]),
        helper.make_node("Mul", ["flat", "flat_twos"], ["y"]),
    ]
    path = save(tmp_path / "shapes.onnx", nodes, ["N", 2, 3, 4], constants={"axis": integers(0)}, opset=13)
    network = load_onnx(path)
    assert (network.input_shape, network.output_shape) == ((2, 3, 4), (24,))
    x = rng.normal(size=(1, 2, 3, 4)).astype(np.float32)
    np.testing.assert_array_equal(_forward(network, x), 2.0 * x.reshape(1, 24))


def test_residual_block_with_broadcasting_and_subtraction(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [
        helper.make_node("Conv", [X, "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Add", ["b", X], ["c"]),
        helper.make_node("GlobalAveragePool", ["c"], ["m"]),
        helper.make_node("Sub", ["m", "c"], ["d"]),
        helper.make_node("Max", ["d", "c", "half"], ["e"]),
        helper.make_node("Min", ["e", "a"], ["y"]),
    ]
    constants = {"w": floats(2, 2, 3, 3), "half": np.float32(0.5)}
    path = save(tmp_path / "skip.onnx", nodes, [1, 2, 4, 4], constants=constants, opset=13)
    network = load_onnx(path)
    x = rng.normal(size=(1, 2, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(_forward(network, x), run(path, x), rtol=1e-5, atol=1e-6)


def test_one_element_of_an_axis_that_runs_backwards(tmp_path: Path) -> None:
    """NumPy has it as an array whose steps are negative, which torch takes none of."""
    inputs = [X, integers(2), integers(-3), integers(0), integers(-2)]
    path = save_op(tmp_path / "net.onnx", "Slice", (2,), inputs, opset=13)
    assert load_onnx(path).forward(torch.tensor([[3.0, 5.0]])).tolist() == [[5.0]]


def test_a_constant_output_still_is_a_network(tmp_path: Path) -> None:
    nodes = [helper.make_node("Shape", [X], ["s"]), helper.make_node("Cast", ["s"], ["y"], to=TensorProto.FLOAT)]
    network = load_onnx(save(tmp_path / "c.onnx", nodes, [1, 3]))
    np.testing.assert_array_equal(_forward(network, np.ones((2, 3))), [[1.0, 3.0]] * 2)


@pytest.mark.parametrize(
    ("shape", "output_shape", "input_shape", "result_shape"),
    [
        ([1, 5], [1, 3], (5,), (3,)),
        (["N", 5], ["N", 3], (5,), (3,)),
        ([0, 5], [0, 3], (5,), (3,)),
        ([-1, 5], [-1, 3], (5,), (3,)),
        ([1, 1, 1, 5], None, (1, 1, 5), (1, 1, 3)),
        ([5], [3], (5,), (3,)),
        ([20, 5], [20, 3], (5,), (3,)),
        ([20, 5], None, (5,), (3,)),
    ],
)
def test_batch_axis(
    tmp_path: Path,
    rng: np.random.Generator,
    shape: list[int | str],
    output_shape: list[int | str] | None,
    input_shape: tuple[int, ...],
    result_shape: tuple[int, ...],
) -> None:
    path = _mlp(tmp_path / "mlp.onnx", shape, output_shape)
    network = load_onnx(path)
    assert (network.input_shape, network.output_shape) == (input_shape, result_shape)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    np.testing.assert_allclose(_forward(network, x).reshape(6, 3), replay(path)(x), rtol=1e-5, atol=1e-6)


def test_a_first_axis_that_the_output_does_not_share_is_not_a_batch(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["w", X], ["y"])]
    path = save(tmp_path / "column.onnx", nodes, [4, 1], constants={"w": floats(3, 4)}, output_shape=[3, 1])
    network = load_onnx(path)
    assert (network.input_shape, network.output_shape) == ((4, 1), (3, 1))


def _whole(path: Path, output_shape: list[int] | None = None) -> Path:
    """An image of 3 x 4 x 5 without a batch, of which all pixels are summed with weights."""
    nodes = [
        helper.make_node("Mul", [X, "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["y"], keepdims=0),
    ]
    return save(path, nodes, [3, 4, 5], constants={"w": floats(3, 4, 5)}, output_shape=output_shape)


@pytest.mark.parametrize("output_shape", [None, []])
def test_a_first_axis_that_cannot_be_a_batch_counts_features(
    tmp_path: Path, rng: np.random.Generator, output_shape: list[int] | None
) -> None:
    """Read as a batch of 3, the graph is a network that onnxruntime does not compute."""
    path = _whole(tmp_path / "image.onnx", output_shape)
    network = load_onnx(path)
    assert (network.input_shape, network.output_shape) == ((3, 4, 5), (1,))
    x = rng.normal(size=(3, 4, 5)).astype(np.float32)
    np.testing.assert_allclose(_forward(network, x[None]).reshape(-1), run(path, x).reshape(-1), rtol=1e-5)


def test_a_first_axis_that_mixes_its_rows_counts_features(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [helper.make_node("ReduceSum", [X, "axis"], ["a"]), helper.make_node("Add", [X, "a"], ["y"])]
    path = save(tmp_path / "mix.onnx", nodes, [4, 3], constants={"axis": integers(0)}, output_shape=[4, 3])
    network = load_onnx(path)
    assert (network.input_shape, network.output_shape) == ((4, 3), (4, 3))
    x = rng.normal(size=(4, 3)).astype(np.float32)
    np.testing.assert_allclose(_forward(network, x[None])[0], run(path, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("inputs", "shape"), [(None, (5,)), (5, (5,)), (20, (4, 5)), (7, (5,))])
def test_a_first_axis_that_may_be_either_is_what_the_property_needs(
    tmp_path: Path, inputs: int | None, shape: tuple[int, ...]
) -> None:
    path = _mlp(tmp_path / "mlp.onnx", [4, 5], [4, 3])
    network = load_model(path, inputs=inputs).network
    assert (network.input_shape, network.output_shape) == (shape, (*shape[:-1], 3))


@pytest.mark.parametrize("batch", [1, "N", 0, 4])
def test_a_model_has_one_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int | str) -> None:
    made = []
    monkeypatch.setattr(
        ort, "InferenceSession", lambda *a, real=ort.InferenceSession, **k: made.append(1) or real(*a, **k)
    )
    model = load_model(_mlp(tmp_path / "mlp.onnx", [batch, 5], [batch, 3]))
    fixed = batch == 4  # whose shapes, and whose operations, are asked for, too
    assert model.replay(np.zeros((2, 5), np.float32)).shape == (2, 3) and len(made) == (3 if fixed else 1)


def test_onnxruntime_never_sees_what_was_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "InferenceSession", lambda *a, **k: pytest.fail("a session"))
    path = save(tmp_path / "net.onnx", [helper.make_node("Sin", [X], ["y"])], [1, 2])
    with pytest.raises(UnsupportedOpError):
        load_onnx(path)


def test_replay_runs_rows_alone_when_a_reshape_would_mix_them(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [helper.make_node("Reshape", [X, "flat"], ["y"])]
    path = save(tmp_path / "mix.onnx", nodes, ["N", 2, 3], constants={"flat": integers(1, -1)})
    x = rng.normal(size=(3, 6)).astype(np.float32)
    np.testing.assert_array_equal(replay(path)(x), x)
    with pytest.raises(NetworkError, match="rows of 5 numbers"):
        replay(path)(x[:, :5])


def test_gzipped_files(tmp_path: Path, rng: np.random.Generator) -> None:
    plain = _mlp(tmp_path / "mlp.onnx", [1, 5])
    packed = tmp_path / "mlp.onnx.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    x = rng.normal(size=(2, 5)).astype(np.float32)
    np.testing.assert_array_equal(_forward(load_onnx(packed), x), _forward(load_onnx(plain), x))
    np.testing.assert_array_equal(replay(packed)(x), replay(plain)(x))


def test_weights_in_a_separate_file(tmp_path: Path) -> None:
    model = onnx.load(_mlp(tmp_path / "mlp.onnx", [1, 5]))
    path = tmp_path / "split.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert load_onnx(path).outputs == 3
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(NetworkError, match="other files"):
        load_onnx(path)


def test_double_precision_networks(tmp_path: Path, rng: np.random.Generator) -> None:
    nodes = [helper.make_node("Gemm", [X, "w", "b"], ["y"], alpha=0.5, beta=0.25)]
    constants = {"w": rng.normal(size=(4, 2)), "b": rng.normal(size=2)}
    path = save(tmp_path / "double.onnx", nodes, [1, 4], constants=constants, dtype=TensorProto.DOUBLE)
    x = rng.normal(size=(1, 4)).astype(np.float32)
    expected = 0.5 * x.astype(np.float64) @ constants["w"] + 0.25 * constants["b"]
    np.testing.assert_allclose(_forward(load_onnx(path), x), expected, rtol=1e-14)


def test_constants_of_operations_are_not_rounded(tmp_path: Path) -> None:
    """In rational arithmetic: defaults are float32 numbers, and a product with a float64 bias is not rounded first."""
    leaky = load_onnx(save_op(tmp_path / "leaky.onnx", "LeakyRelu", (1, 1), [X], opset=13))
    assert exact_output(leaky, [-1]) == [-Fraction(float(np.float32(0.01)))]
    numbers = [np.float32([c]) for c in (1.0, 0.0, 0.0, 1e-6)]
    norm = load_onnx(save_op(tmp_path / "norm.onnx", "BatchNormalization", (1, 1, 2), [X, *numbers], opset=13))
    square = exact_output(norm, [1, 1])[0] ** 2 * (Fraction(float(numbers[3][0])) + Fraction(float(np.float32(1e-5))))
    assert abs(square - 1) < Fraction(1, 2**49)
    constants = {"w": np.array([[1.0]]), "c": np.array([0.1])}
    node = helper.make_node("Gemm", [X, "w", "c"], ["y"], beta=0.3)
    path = save(
        tmp_path / "gemm.onnx", [node], (1, 1), constants=constants, output_shape=(1, 1), dtype=TensorProto.DOUBLE
    )
    assert exact_output(load_onnx(path), [0]) == [Fraction(0.1) * Fraction(float(np.float32(0.3)))]


def test_weights_are_the_stored_numbers_exactly(tmp_path: Path) -> None:
    network = load_onnx(_mlp(tmp_path / "mlp.onnx", [1, 5]))
    stored = np.random.default_rng(2).normal(size=(5, 8)).astype(np.float32)
    np.testing.assert_array_equal(network.nodes[1].op.weight.numpy(), stored.T.astype(np.float64))
    assert [type(n.op).__name__ for n in network.nodes] == ["Input", "Linear", "Relu", "Linear"]
    assert network.nodes[1].name == "first"


# ---- errors


@pytest.mark.parametrize("op", ["Softsign", "Mish", "Softmax", "LogSoftmax", "Sin"])
def test_unsupported_operations_are_named(tmp_path: Path, op: str) -> None:
    path = save(tmp_path / "net.onnx", [helper.make_node(op, [X], ["y"], name="the_node")], [1, 4])
    with pytest.raises(UnsupportedOpError) as caught:
        load_onnx(path)
    message = str(caught.value)
    assert "the_node" in message and op in message and "net.onnx" in message and "LeakyRelu" in message
    assert ("the scores before it have the same order" in message) == (op in ("Softmax", "LogSoftmax"))


@pytest.mark.parametrize(
    ("nodes", "complaint"),
    [
        ([helper.make_node("Add", [X, "one"], ["a"]), helper.make_node("Mul", [X, "a"], ["y"])], "constant factor"),
        ([helper.make_node("Div", ["one", X], ["y"])], "divisor"),
        ([helper.make_node("Div", [X, "zero"], ["y"])], "zero"),
        ([helper.make_node("MatMul", [X, X], ["y"])], "constant matrix"),
        ([helper.make_node("Cast", [X], ["y"], to=TensorProto.INT64)], "float32"),
        ([helper.make_node("Relu", ["nowhere"], ["y"])], "'nowhere'"),
        ([helper.make_node("Relu", [X], ["z"])], "computes the output 'y'"),
        ([helper.make_node("Add", [X, "nan"], ["y"])], "NaN"),
        ([helper.make_node("Add", [X, "three"], ["y"])], "cannot be broadcast"),
        ([helper.make_node("Pad", [X, "pads"], ["y"], mode="constant")], "at least 0"),
        ([helper.make_node("Conv", [X, "matrix"], ["y"])], "Conv"),
        ([helper.make_node("Frobnicate", [X], ["y"], domain="com.example")], "not supported"),
        ([helper.make_node("Reshape", [X, "five"], ["y"])], "Reshape"),
        ([helper.make_node("Split", [X], ["y", ""], axis=1)], "an output has no name"),
    ],
)
def test_networks_that_cannot_be_read(tmp_path: Path, nodes: list[onnx.NodeProto], complaint: str) -> None:
    constants = {
        "one": np.float32(1),
        "zero": np.float32(0),
        "nan": np.float32("nan"),
        "three": floats(3),
        "five": integers(5),
        "pads": integers(0, -1, 0, 0),
        "matrix": floats(2, 4),
    }
    path = save(tmp_path / "net.onnx", nodes, [1, 4], constants=constants)
    with pytest.raises(NetworkError, match=complaint) as caught:
        load_onnx(path)
    assert "net.onnx" in str(caught.value) and "\n" not in str(caught.value)


def test_a_survey_tells_what_is_not_supported(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sigmoid", ["three"], ["constant"]),  # folded: no complaint
        helper.make_node("Shape", [X], ["shape"]),
        helper.make_node("Exp", ["shape"], ["other"]),  # a shape is a constant, too
        helper.make_node("Add", [X, "constant"], ["sum"]),
        helper.make_node("Sin", ["sum"], ["h"], name="first"),
        helper.make_node("Sin", ["h"], ["g"]),
        helper.make_node("Frobnicate", ["g"], ["y"], domain="com.example"),
    ]
    path = save(tmp_path / "net.onnx", nodes, ["n", 3], constants={"three": floats(3)})
    assert operations(path) == {"Sigmoid": 1, "Shape": 1, "Exp": 1, "Add": 1, "Sin": 2, "com.example.Frobnicate": 1}
    found = survey(path)
    assert found.unsupported == (("Sin", "first"), ("Sin", "g"), ("com.example.Frobnicate", "y"))
    assert (found.inputs, found.outputs, found.parameters) == (((X, "n x 3"),), (("y", "?"),), 3)


def test_files_that_are_not_networks(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"absent\.onnx"):
        load_onnx(tmp_path / "absent.onnx")
    with pytest.raises(MissingFileError, match="cannot read the network"):
        load_onnx(tmp_path)
    for name, content in (("empty", b""), ("text", b"this is not a network"), ("gz", gzip.compress(b"x" * 99)[:20])):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(content)
        with pytest.raises(NetworkError, match=f"{name}.onnx"):
            load_onnx(path)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda m: m.graph.input.pop(), "0 inputs"),
        (
            lambda m: m.graph.input.extend([helper.make_tensor_value_info(f"z{i}", 1, [1]) for i in range(1024)]),
            "1,025",
        ),
        (lambda m: m.graph.input.append(helper.make_tensor_value_info("z", 7, [1])), "'z'.*floating point"),
        (lambda m: m.graph.input.append(helper.make_tensor_value_info("z", 1, [2**24])), "in all"),
        (lambda m: m.graph.output.append(helper.make_tensor_value_info("q", 1, [1, 8])), "computes the output 'q'"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.INT64), "floating point"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", TensorProto.STRING), "floating point"),
        (lambda m: m.graph.input[0].type.tensor_type.ClearField("shape"), "no shape"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_param", "K"), "open dimension"),
        (lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 2**40), "elements"),
        (lambda m: setattr(m.opset_import[0], "version", 6), "opset 6"),
        (lambda m: m.graph.sparse_initializer.add(), "sparse"),
        (lambda m: setattr(m.graph.initializer[0], "raw_data", b"123"), "damaged"),
        (lambda m: m.ClearField("graph"), "no network"),
    ],
)
def test_models_that_cannot_be_read(tmp_path: Path, change: Any, complaint: str) -> None:
    path = _mlp(tmp_path / "net.onnx", [1, 5])
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())
    with pytest.raises(NetworkError, match=complaint) as caught:
        load_onnx(path)
    assert "net.onnx" in str(caught.value)


def test_damaged_files_raise_only_our_errors(tmp_path: Path, rng: np.random.Generator) -> None:
    source = save_op(
        tmp_path / "good.onnx", "Conv", (1, 1, 3, 3), [X, floats(1, 1, 2, 2), floats(1)], opset=13, pads=[1] * 4
    )
    good = source.read_bytes()
    path = tmp_path / "bad.onnx"
    refused = 0
    for trial in range(300):
        if trial < 100:
            content = good[: int(rng.integers(len(good)))]
        else:
            damaged = bytearray(good)
            for at in rng.integers(len(good), size=rng.integers(1, 4)):
                damaged[at] = rng.integers(256)
            content = bytes(damaged)
        path.write_bytes(content)
        try:
            load_onnx(path)
        except SureboundError:
            refused += 1
    assert refused > 150


def test_a_network_that_differs_from_the_file_is_refused(tmp_path: Path) -> None:
    path = _mlp(tmp_path / "mlp.onnx", [1, 5])
    other = save_op(tmp_path / "other.onnx", "MatMul", (1, 5), [X, floats(5, 3)], opset=13)
    wider = save_op(tmp_path / "wider.onnx", "MatMul", (1, 5), [X, floats(5, 4)], opset=13)
    network = load_onnx(path)
    check_agreement(network, replay(path), "onnxruntime", "it")
    with pytest.raises(NetworkError, match="differs from onnxruntime by"):
        check_agreement(network, replay(other), "onnxruntime", "it")
    with pytest.raises(NetworkError, match=r"shape \[6, 4\] in onnxruntime"):
        check_agreement(network, replay(wider), "onnxruntime", "it")


def test_overflow_on_the_way_is_reported(tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", [X, "c"], ["a"]), helper.make_node("Mul", ["a", "c"], ["y"])]
    path = save(tmp_path / "net.onnx", nodes, [1, 2], constants={"c": np.float32(3e38)})
    with pytest.raises(NetworkError, match="overflows float32"):
        load_onnx(path)


@pytest.mark.slow
def test_importing_the_loader_is_cheap() -> None:
    code = "import sys, surebound.load.onnx; print(sorted({'onnx', 'onnxruntime'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---- published networks


def test_published_networks_agree_with_onnxruntime(shared: Path, rng: np.random.Generator) -> None:
    paths = sorted([*shared.glob("vnncomp/*/onnx/*.onnx*"), *shared.glob("models/*.onnx*")])
    assert len(paths) >= 41
    for path in paths:
        network = load_onnx(path)
        x = rng.random((3, network.inputs)).astype(np.float32)
        expected = replay(path)(x)
        error = np.abs(_forward(network, x).reshape(3, -1) - expected)
        assert error.max() <= 1e-4 * (1 + np.abs(expected).max()), path.name


@pytest.mark.parametrize(
    ("name", "shape", "relus"),
    [
        ("acasxu/onnx/ACASXU_run2a_1_1_batch_2000.onnx", (1, 1, 5), 300),
        ("cifar10_resnet/onnx/resnet_2b.onnx", (3, 32, 32), 6244),
        ("oval21/onnx/cifar_base_kw.onnx", (3, 32, 32), 3172),
        ("mnistfc/onnx/mnist-net_256x4.onnx", (784, 1), 1024),
        ("marabou-cifar10/onnx/cifar10_small.onnx", (32, 32, 3), 2568),
    ],
)
def test_sizes_of_published_networks(shared: Path, name: str, shape: tuple[int, ...], relus: int) -> None:
    network = load_onnx(shared / "vnncomp" / name)
    assert network.input_shape == shape
    assert sum(network.width(k) for k in range(len(network.layers))) == relus

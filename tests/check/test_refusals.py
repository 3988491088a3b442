"""Models that the checker must not read as something else: it reads them as onnxruntime does, or refuses them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from graphs import Graph, values
from onnx import TensorProto, helper, numpy_helper

from surebound.check.arithmetic import Arithmetic, CheckError
from surebound.check.network import read_network
from surebound.check.ops import Conv

Change = Callable[[onnx.ModelProto], Any]


def simple() -> onnx.ModelProto:
    """Twice the input, by two nodes."""
    graph = Graph((1, 3))
    graph.add("Mul", graph.add("Identity", "x"), np.full(3, 2.0))
    return onnx.load_model_from_string(graph.bytes())


def _function(model: onnx.ModelProto) -> None:
    node = helper.make_node("Relu", ["a"], ["b"])
    model.functions.append(helper.make_function("", "Mul", ["a", "c"], ["b"], [node], [helper.make_opsetid("", 13)]))


def _sparse(model: onnx.ModelProto) -> None:
    numbers = numpy_helper.from_array(np.ones(1, dtype=np.float32), "s")
    places = numpy_helper.from_array(np.zeros(1, dtype=np.int64), "i")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(numbers, places, [3]))


def _input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, [1, 3]))


OTHERS: dict[str, tuple[Change, str]] = {
    "an old opset": (lambda m: setattr(m.opset_import[0], "version", 6), "one opset, 7 or later"),
    "two opsets": (lambda m: m.opset_import.append(helper.make_opsetid("ai.onnx", 14)), "one opset"),
    "a function": (_function, "plain nodes"),
    "a sparse weight": (_sparse, "plain nodes"),
    "a second input": (_input, "several inputs"),
    "a second output": (lambda m: m.graph.output.append(m.graph.output[0]), "several inputs or outputs"),
    "half precision": (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 10), "real numbers"),
    "whole numbers": (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 7), "real numbers"),
    "another domain": (lambda m: setattr(m.graph.node[1], "domain", "com.microsoft"), "no proofs for such"),
    "two outputs of a node": (lambda m: m.graph.node[1].output.append("second"), "no proofs for such"),
    "an attribute twice": (
        lambda m: m.graph.node[1].attribute.extend(helper.make_attribute("axis", i) for i in (0, 1)),
        "no proofs for such",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_refused(name: str) -> None:
    change, words = OTHERS[name]
    model = simple()
    read_network(model.SerializeToString(), 3, Arithmetic())
    change(model)
    with pytest.raises(CheckError, match=words):
        read_network(model.SerializeToString(), 3, Arithmetic())


def test_a_batch_that_the_file_fixes_counts_as_inputs() -> None:
    """With a batch of two equal rows, onnxruntime computes means over both; read with one row, there would be none."""
    graph = Graph((2, 4))
    graph.add("GlobalAveragePool", graph.add("Reshape", "x", [1, 4, -1, 1]))
    content, rows = graph.bytes(), np.tile(np.arange(4.0), 2)
    with pytest.raises(CheckError, match=r"shape \[2, 4\]; expected 4 real numbers"):
        read_network(content, 4, Arithmetic())
    network = read_network(content, 8, Arithmetic())
    np.testing.assert_array_equal(values(network, rows)[network.output], [[0.5, 2.5, 0.5, 2.5]])


@pytest.mark.parametrize("kind", ["Relu", "Flatten", "Transpose", "GlobalAveragePool"])
def test_constants_in_the_place_of_data_are_refused(kind: str) -> None:
    graph = Graph((1, 1, 1, 3))
    graph.add("Add", "x", graph.add(kind, np.ones((1, 1, 1, 3))))
    with pytest.raises(CheckError, match="input 0 is missing or constant"):
        read_network(graph.bytes(), 3, Arithmetic())


def test_weights_of_whole_numbers_are_refused() -> None:
    graph = Graph((1, 3))
    graph.add("Div", "x", [2, 2, 2])
    with pytest.raises(CheckError, match="a constant of int64"):
        read_network(graph.bytes(), 3, Arithmetic())


def test_divisors_below_the_limit_are_refused() -> None:
    graph = Graph((1, 1), dtype=np.float64)
    graph.add("Div", "x", np.array([[1e-61]]))
    with pytest.raises(CheckError, match="a divisor is below"):
        read_network(graph.bytes(), 1, Arithmetic())


@pytest.mark.parametrize(
    ("weight", "bias", "groups"),
    [
        ((4, 1, 3, 3), None, 1),  # for one channel
        ((4, 3, 3, 3), None, 1),
        ((3, 1, 3, 3), None, 2),  # three channels in two groups
        ((4, 2, 3, 3), (1,), 1),
        ((4, 2, 3, 3), (2,), 1),
        ((4, 2, 3, 3), (4, 1), 1),
        ((4, 2, 9, 3), None, 1),  # larger than the image
        ((4, 2, 3, 3), None, 0),
    ],
)
def test_kernels_that_do_not_fit_are_refused(weight: Any, bias: Any, groups: int) -> None:
    graph = Graph((1, 2, 5, 6))
    graph.add("Conv", "x", np.ones(weight), *([] if bias is None else [np.ones(bias)]), group=groups)
    with pytest.raises(CheckError, match=r"does not fit|do not fit"):
        read_network(graph.bytes(), 60, Arithmetic())


@pytest.mark.parametrize("kind", ["Conv", "MaxPool", "AveragePool"])
def test_windows_over_several_images_are_refused(kind: str) -> None:
    graph = Graph((2, 1, 4, 4))
    graph.add(kind, "x", *([np.ones((1, 1, 2, 2))] * (kind == "Conv")), kernel_shape=[2, 2])
    with pytest.raises(CheckError, match="expected windows"):
        read_network(graph.bytes(), 32, Arithmetic())


def norm(lengths: Any = (2, 2, 2, 2), variance: float = 0.5, scale: float = 1.0, **attributes: Any) -> Graph:
    graph = Graph((1, 2, 2, 1), dtype=np.float64)
    fill = (scale, 0.5, 0.25, variance)
    graph.add("BatchNormalization", "x", *(np.full(n, v) for n, v in zip(lengths, fill, strict=True)), **attributes)
    return graph


@pytest.mark.parametrize("attributes", [{}, {"epsilon": 0.5}])
def test_batch_norms_are_read_as_others_read_them(attributes: Any) -> None:
    """With a variance so small that epsilon matters."""
    content = norm(variance=1e-6, **attributes).bytes()
    x = np.arange(4.0).reshape(1, 2, 2, 1)
    expected = onnxruntime.InferenceSession(content).run(None, {"x": x})[0].reshape(-1)
    network = read_network(content, 4, Arithmetic())
    np.testing.assert_allclose(values(network, x.reshape(-1))[network.output][0], expected, rtol=1e-12)


@pytest.mark.parametrize(
    "graph",
    [
        norm(variance=-1.0),
        norm(variance=-float(np.float32(1e-5))),
        norm(scale=1e59, variance=0.0),
        norm((1, 2, 2, 2)),
        norm((2, 1, 2, 2)),
        norm((2, 2, 1, 2)),
        norm((2, 2, 2, 1)),
        norm(training_mode=1),
        norm(spatial=0),
    ],
)
def test_batch_norms_that_do_not_fit_are_refused(graph: Graph) -> None:
    with pytest.raises(CheckError, match="a batch norm"):
        read_network(graph.bytes(), 4, Arithmetic())


def test_pads_of_some_axes_are_refused() -> None:
    graph = Graph((1, 1, 2, 3), opset=18)
    graph.add("Pad", "x", [0, 1, 2, 3, 0, 0, 0, 0], np.float32(0), [3, 2, 1, 0])
    with pytest.raises(CheckError, match="all axes"):
        read_network(graph.bytes(), 6, Arithmetic())


def test_shapes_with_a_zero_keep_the_length() -> None:
    graph = Graph((1, 2, 3))
    graph.add("Relu", graph.add("Reshape", graph.add("Transpose", "x", perm=[2, 1, 0]), [0, -1]))
    network = read_network(graph.bytes(), 6, Arithmetic())
    expected = np.arange(6.0).reshape(2, 3).T.reshape(-1)
    assert values(network, np.arange(6.0))[network.output][0].tolist() == expected.tolist()
    graph = Graph((1, 2, 3), opset=14)
    graph.add("Relu", graph.add("Reshape", "x", [0, 6], allowzero=1))
    with pytest.raises(CheckError, match="Reshape"):
        read_network(graph.bytes(), 6, Arithmetic())


def test_adjoints_of_rows_that_reach_other_places() -> None:
    """One row at the first place of an image and one at the last."""
    rng = np.random.default_rng(0)
    op = Conv((2, 4, 5), rng.normal(size=(3, 2, 3, 2)), (1, 2), [(1, 0), (0, 1)], 1)
    g = np.zeros((2, op.size))
    g[0, 0] = g[1, -1] = 1.0
    for row, back in zip(g, op.adjoint(g)[0], strict=True):
        np.testing.assert_allclose(op.adjoint(row[None])[0][0], back)

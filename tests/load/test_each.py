"""Each operation is compared with its runtime by itself, also where no point lets its result through to the outputs.

The networks below have a bump at their end that is 0 at all points at which a network is compared with its source.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnx_models import X, save
from operations import integers
from torch import Tensor, nn

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load import fold, onnx_check, onnx_ops, torch_ops
from surebound.load.algebra import Algebra, Data, Value
from surebound.load.onnx import load_model, load_onnx
from surebound.load.onnx_call import Call
from surebound.load.torch import load_torch

FAR = np.float32(1e6)  # beyond what any of the points reaches


def _hidden(
    path: Path, nodes: list[onnx.NodeProto], shape: list[int], *, opset: int = 13, **constants: NDArray[Any]
) -> Path:
    """A network that computes "h", and then max(h − 10⁶, 0)."""
    bump = [helper.make_node("Sub", ["h", "far"], ["d"]), helper.make_node("Relu", ["d"], ["y"])]
    return save(path, [*nodes, *bump], shape, constants={"far": FAR, **constants}, opset=opset)


def _node(op: str, inputs: list[str], output: str = "h", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, [output], **attributes)


# ---- what was misread, and is refused


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_a_softmax_of_constants_before_opset_13(tmp_path: Path, op: str) -> None:
    """The reference implementation has only that of opset 13, which runs over one axis."""
    nodes = [_node(op, ["z"], "p"), _node("ReduceMax", ["p"], "c", keepdims=0), _node("Add", [X, "c"])]
    zeros = np.zeros((1, 2, 2), dtype=np.float32)
    with pytest.raises(UnsupportedOpError, match="before opset 13"):
        load_onnx(_hidden(tmp_path / "net.onnx", nodes, [1, 4], opset=12, z=zeros), check=False)
    load_model(_hidden(tmp_path / "net.onnx", nodes, [1, 4], opset=13, z=zeros))


def test_casts_of_constants_to_less_than_8_bits(tmp_path: Path) -> None:
    nodes = [_node("Cast", ["z"], "q", to=TensorProto.UINT4), _node("Cast", ["q"], "f", to=1), _node("Add", [X, "f"])]
    path = _hidden(tmp_path / "net.onnx", nodes, [1, 3], opset=21, z=np.float32([0.5, 1.5, 20]))
    with pytest.raises(UnsupportedOpError, match="8 bits"):
        load_onnx(path, check=False)


@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Pow", "Mean"])
def test_arithmetic_on_constants_of_float16(tmp_path: Path, op: str) -> None:
    nodes = [_node(op, ["a", "b"], "q"), _node("Cast", ["q"], "f", to=1), _node("Add", [X, "f"])]
    half = np.float16([0.1, 0.2, 0.3])
    with pytest.raises(UnsupportedOpError, match="float16"):
        load_onnx(_hidden(tmp_path / "net.onnx", nodes, [1, 3], a=half, b=half), check=False)
    cast = [_node("Reshape", ["a", "s"], "r"), _node("Cast", ["r"], "f", to=1), _node("Add", [X, "f"])]
    load_model(_hidden(tmp_path / "net.onnx", cast, [1, 3], a=half, s=integers(1, 3)))


def test_a_batch_norm_in_training_mode_as_opsets_before_14_say_it(tmp_path: Path) -> None:
    """By its further outputs. onnxruntime then normalises with the statistics of what it reads."""
    ones = {name: np.ones(2, dtype=np.float32) for name in "gbmv"}
    for outputs in (["h", "mean", "variance", "saved_mean", "saved_variance"], ["h", "", "", "", ""]):
        nodes = [helper.make_node("BatchNormalization", [X, *"gbmv"], outputs)]
        with pytest.raises(UnsupportedOpError, match="training mode"):
            load_onnx(_hidden(tmp_path / "net.onnx", nodes, [1, 2, 3], opset=9, **ones), check=False)


def test_truth_values_that_are_neither_0_nor_1(tmp_path: Path) -> None:
    path = _hidden(tmp_path / "net.onnx", [_node("Where", ["c", X, "far"])], [1, 3])
    model = onnx.load(path)
    model.graph.initializer.append(TensorProto(name="c", data_type=TensorProto.BOOL, dims=[3], int32_data=[0, 1, 256]))
    onnx.save(model, path)
    with pytest.raises(NetworkError, match=r"weights 'c' .* neither 0 nor 1"):
        load_onnx(path, check=False)


@pytest.mark.parametrize("op", ["Shape", "Size"])
def test_the_size_of_a_fixed_batch(tmp_path: Path, op: str) -> None:
    """A batch of 4 is read with one row; what is computed from its size would be that of a batch of 1."""
    nodes = [_node(op, [X], "s"), _node("Cast", ["s"], "f", to=1), _node("ReduceMax", ["f"], "m", keepdims=0)]
    path = _hidden(tmp_path / "net.onnx", [*nodes, _node("Add", [X, "m"])], [4, 3])
    assert load_model(path, inputs=3).network.inputs == 12
    with pytest.raises(UnsupportedOpError, match="size of a batch of 4"):
        load_onnx(path, check=False)


@pytest.mark.parametrize(
    "nodes",
    [
        [_node("ReduceSum", [X, "zero"], "t", keepdims=1), _node("Add", [X, "t"])],
        [_node("ReduceSum", [X], "t", keepdims=1), _node("Add", [X, "t"])],
        [_node("Reshape", [X, "flat"], "r"), _node("ReduceSum", ["r"], "t", keepdims=0), _node("Add", [X, "t"])],
    ],
)
def test_sums_over_a_fixed_batch(tmp_path: Path, nodes: list[onnx.NodeProto]) -> None:
    path = _hidden(tmp_path / "net.onnx", nodes, [4, 3], zero=integers(0), flat=integers(-1))
    assert load_model(path, inputs=3).network.inputs == 12


def test_a_fixed_batch_is_still_read_with_one_row(tmp_path: Path) -> None:
    nodes = [_node("MatMul", [X, "w"], "a"), _node("ReduceMax", ["a"], "m", axes=[1]), _node("Sub", ["a", "m"])]
    path = _hidden(tmp_path / "net.onnx", nodes, [4, 3], w=np.eye(3, dtype=np.float32))
    assert load_model(path).network.inputs == 3


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("AveragePool", {"kernel_shape": [1], "strides": [4], "ceil_mode": 1, "count_include_pad": 1}),
        ("AveragePool", {"kernel_shape": [1], "strides": [4]}),
        ("MaxPool", {"kernel_shape": [3], "strides": [3], "dilations": [2]}),
        ("MaxPool", {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}),
    ],
)
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_automatic_pads_that_runtimes_read_differently(
    tmp_path: Path, op: str, attributes: dict[str, Any], mode: str
) -> None:
    path = _hidden(tmp_path / "net.onnx", [_node(op, [X], auto_pad=mode, **attributes)], [1, 1, 8])
    with pytest.raises(UnsupportedOpError, match="expected pads"):
        load_onnx(path, check=False)


class Of(nn.Module):
    """A function as a module, behind which 10⁶ are taken off and what is left below 0."""

    def __init__(self, f: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        """max(f(x) − 10⁶, 0)."""
        return torch.relu(self.f(x) - 1e6)


@pytest.mark.parametrize("kind", [torch.float32, torch.int32, torch.float64])
def test_a_view_as_another_type(kind: torch.dtype) -> None:
    for f in (lambda x: x.view(kind), lambda x: x.view(dtype=kind)):
        with pytest.raises(NetworkError, match="another type"):
            load_torch(Of(f), (4,))


# ---- what nobody knows to be misread


def test_a_misreading_of_a_node_is_found_behind_a_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [_node("MaxPool", [X], "p", kernel_shape=[2]), _node("LeakyRelu", ["p"])]
    path = _hidden(tmp_path / "net.onnx", nodes, [1, 1, 5])
    load_model(path)

    def off(call: Call) -> Value:
        read = onnx_ops._max_pool(call)
        return call.algebra.move(read, lambda at: np.flip(at, -1))

    monkeypatch.setitem(onnx_ops.HANDLERS, "MaxPool", off)
    load_onnx(path, check=False)
    with pytest.raises(NetworkError, match=r"\(MaxPool\) of .* by itself, differs by"):
        load_model(path)


def test_large_constants_do_not_hide_a_misreading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _hidden(tmp_path / "net.onnx", [_node("Concat", ["large", X], axis=1)], [1, 5], large=np.float32([[1e12]]))
    load_model(path)
    off = lambda call: call.algebra.concat([call.value(0), call.algebra.scale(call.data(1), np.array(1.01))], 1)  # noqa: E731
    monkeypatch.setitem(onnx_ops.HANDLERS, "Concat", off)
    with pytest.raises(NetworkError, match="by itself"):
        load_model(path)


@pytest.mark.parametrize(("op", "by"), [("Exp", 1.001), ("ReduceSum", 1.001), ("Shape", 2)])
def test_another_constant_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, op: str, by: float) -> None:
    nodes = [_node(op, [X if op == "Shape" else "c"], "e"), _node("Cast", ["e"], "f", to=1)]
    nodes += [_node("ReduceMax", ["f"], "m", keepdims=0), _node("Add", [X, "m"])]
    path = _hidden(tmp_path / "net.onnx", nodes, [1, 3], c=np.float32([1.0, 2.0, 3.0]))
    load_model(path)
    evaluate, shape = fold.evaluate, onnx_ops.HANDLERS["Shape"]
    monkeypatch.setattr(
        "surebound.load.onnx.evaluate",
        lambda node, *rest: [y * y.dtype.type(by) if node.op_type == op else y for y in evaluate(node, *rest)],
    )
    monkeypatch.setitem(onnx_ops.HANDLERS, "Shape", lambda call: shape(call) * int(by))
    with pytest.raises(NetworkError, match="by itself, is another constant"):
        load_model(path)


def test_sums_of_constants_that_cancel_may_be_off(tmp_path: Path, rng: np.random.Generator) -> None:
    """A sum of 4,096 numbers that cancel is another one in another order, and not misread."""
    half = rng.normal(size=(2048, 1)).astype(np.float32) * 1000
    nodes = [_node("MatMul", ["ones", "c"], "m"), _node("Add", [X, "m"])]
    ones = np.ones((1, 4096), dtype=np.float32)
    load_model(_hidden(tmp_path / "net.onnx", nodes, [1, 3], ones=ones, c=np.concatenate([half, -half[::-1]])))


def test_plain_networks_need_no_second_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_check, "_Part", None)
    nodes = [_node("Conv", [X, "w"], "c", auto_pad="NOTSET"), _node("Relu", ["c"], "r"), _node("Flatten", ["r"])]
    load_model(_hidden(tmp_path / "net.onnx", nodes, [1, 1, 4, 4], w=np.ones((2, 1, 3, 3), dtype=np.float32)))
    for node in (_node("MaxPool", [X], kernel_shape=[2]), _node("Flatten", [X], axis=-1)):
        with pytest.raises(NetworkError, match="cut out"):
            load_model(_hidden(tmp_path / "net.onnx", [node], [1, 1, 4]))


def test_what_no_output_depends_on_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_check, "_Part", None)
    load_model(_hidden(tmp_path / "net.onnx", [_node("Abs", [X], "unused"), _node("Neg", [X])], [1, 4]))


def test_casts_that_round_are_compared_and_others_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_check, "_Part", None)
    nodes = [_node("Cast", ["c"], "w", to=TensorProto.FLOAT), _node("Add", [X, "w"])]
    load_model(_hidden(tmp_path / "net.onnx", nodes, [1, 3], c=np.float16([1, 2, 3])))
    for constant in (integers(1, 2, 3), np.array([1.0, 2.0, 3.0])):
        with pytest.raises(NetworkError, match="cut out"):
            load_model(_hidden(tmp_path / "net.onnx", nodes, [1, 3], c=constant))


def test_many_numbers_take_several_sessions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts, real = [], onnx_check._Part
    monkeypatch.setattr(onnx_check, "ELEMENTS", 20)
    monkeypatch.setattr(onnx_check, "_Part", lambda *a: parts.append(1) or real(*a))
    nodes = [_node("Abs", [X], "a"), _node("Abs", ["a"], "b"), _node("LeakyRelu", ["b"])]
    load_model(_hidden(tmp_path / "net.onnx", nodes, [1, 5]))
    assert len(parts) == 2


def test_a_misreading_of_a_call_of_torch_is_found_behind_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    pool, pooled = torch_ops.FUNCTIONS["max_pool1d"], Of(lambda x: F.max_pool1d(x, 2))
    load_torch(pooled, (1, 6))

    def off(a: Algebra, x: Data, *args: Any, **kwargs: Any) -> Data:
        return a.move(pool(a, x, *args, **kwargs), lambda at: np.flip(at, -1))

    monkeypatch.setitem(torch_ops.FUNCTIONS, "max_pool1d", off)
    load_torch(pooled, (1, 6), check=False)
    with pytest.raises(NetworkError, match=r"max_pool1d.*by itself, it differs by"):
        load_torch(pooled, (1, 6))


def test_a_misreading_of_a_function_of_torch_is_found_behind_a_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Of(lambda x: torch.maximum(x[:, :2], x[:, 2:]))
    load_torch(module, (4,))
    monkeypatch.setitem(torch_ops.FUNCTIONS, "maximum", torch_ops.FUNCTIONS["minimum"])
    load_torch(module, (4,), check=False)
    with pytest.raises(NetworkError, match=r"maximum.*by itself, it differs by"):
        load_torch(module, (4,))


def test_calls_on_float64_and_on_several_tensors_are_compared() -> None:
    table = torch.from_numpy(np.arange(4.0))
    load_torch(Of(lambda x: torch.maximum(x.chunk(2, 1)[0], x.chunk(2, 1)[1]) + table[:2]).double(), (4,))
    load_torch(Of(lambda x: torch.cat([torch.maximum(x, table.float()), x * torch.sigmoid(x)], 1)), (4,))
    load_torch(nn.Sequential(nn.Conv1d(2, 3, 3, padding="same"), nn.PReLU(3), nn.AvgPool1d(2)).double(), (2, 6))


def test_an_operation_within_rounding_is_read(tmp_path: Path, rng: np.random.Generator) -> None:
    weights = rng.normal(size=(64, 32, 5, 5)).astype(np.float32) * 100
    bias = rng.normal(size=32).astype(np.float32) * 1e4
    nodes = [_node("ConvTranspose", [X, "w", "b"], "c"), _node("Elu", ["c"], alpha=1.5)]
    load_model(_hidden(tmp_path / "net.onnx", nodes, [1, 64, 6, 6], w=weights, b=bias))

"""Evaluates the nodes of an ONNX graph whose inputs are all known, as ONNX defines them: shape arithmetic, weights.

Whatever is evaluated here runs on loading, before anything is known about the file. So only operations that take time
and memory in proportion to their inputs and outputs are evaluated, and their outputs' sizes are checked beforehand: no
loops, no branches, no random numbers, no text, nothing whose size shows only at the end.
"""

import warnings
from collections.abc import Callable, Mapping
from math import ceil, isfinite, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.limits import AXES, Tally, check_elements, check_work
from surebound.load.algebra import Array, check_real, joint_shape
from surebound.load.onnx_file import array
from surebound.network.op import Shape

if TYPE_CHECKING:
    from onnx import NodeProto

Attributes = Mapping[str, Any]
Size = Callable[[Attributes, list[Array]], Shape]

_NO_LARGER = frozenset(  # than the largest of their inputs
    """Abs Acos Acosh ArgMax ArgMin Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh CumSum
    DepthToSpace DequantizeLinear Dropout Elu Erf Exp EyeLike Flatten Floor Gelu HardSigmoid HardSwish Identity
    IsInf IsNaN LeakyRelu Log LogSoftmax Mish Neg Not QuantizeLinear Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round ScatterND
    Selu Shape Shrink Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Tan
    Tanh ThresholdedRelu Transpose Trilu Unsqueeze""".split()  # noqa: SIM905
)
_BROADCAST = frozenset(
    """Add And BitShift BitwiseAnd BitwiseOr BitwiseXor Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min
    Mod Mul Or PRelu Pow Sub Sum Where Xor""".split()  # noqa: SIM905
)
_EXACT = frozenset(  # what rounds nothing, in whatever type
    """Abs Cast CastLike Concat Constant ConstantOfShape DepthToSpace Dropout Equal Expand Flatten Gather GatherND
    Greater GreaterOrEqual Identity IsInf IsNaN Less LessOrEqual Max Min Neg NonZero Pad ReduceMax ReduceMin Relu
    Reshape Shape Sign Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu Unsqueeze Where""".split()  # noqa: SIM905
)
_WIDE = (
    "bool",
    "float16",
    "bfloat16",
    *(f"{kind}{bits}" for kind in ("int", "uint", "float") for bits in (8, 16, 32, 64)),
)
_TEXT = 8  # onnx.TensorProto's number


def _concat(attributes: Attributes, arrays: list[Array]) -> Shape:
    return (sum(a.size for a in arrays),)


def _expand(attributes: Attributes, arrays: list[Array]) -> Shape:
    return joint_shape(arrays[0].shape, tuple(arrays[1].reshape(-1).tolist()))


def _gather(attributes: Attributes, arrays: list[Array]) -> Shape:
    data, indices = arrays
    axis = int(attributes.get("axis", 0))
    return (*data.shape[:axis], *indices.shape, *data.shape[axis:][1:])


def _gather_nd(attributes: Attributes, arrays: list[Array]) -> Shape:
    data, indices = arrays
    batch = int(attributes.get("batch_dims", 0))
    return (*indices.shape[:-1], *data.shape[batch + indices.shape[-1] :])


def _listed(attributes: Attributes, arrays: list[Array]) -> Shape:
    return tuple(arrays[0].reshape(-1).tolist())


def _matmul(attributes: Attributes, arrays: list[Array]) -> Shape:
    a, b = arrays
    rows, columns = a.shape[:-1][-1:], b.shape[1:] if b.ndim == 1 else b.shape[-1:]
    shape = (*joint_shape(a.shape[:-2], b.shape[:-2]), *rows, *columns)
    check_work(prod(shape) * a.shape[-1])
    return shape


def _gemm(attributes: Attributes, arrays: list[Array]) -> Shape:
    turned = [a.T if attributes.get(flag, 0) else a for a, flag in zip(arrays, ("transA", "transB"), strict=False)]
    return _matmul(attributes, turned)


def _one_hot(attributes: Attributes, arrays: list[Array]) -> Shape:
    return (*arrays[0].shape, int(arrays[1].reshape(-1)[0]))


def _pad(attributes: Attributes, arrays: list[Array]) -> Shape:
    pads = arrays[1].reshape(-1).tolist() if len(arrays) > 1 else list(attributes["pads"])
    rank, positive = arrays[0].ndim, [max(p, 0) for p in pads]
    if len(pads) != 2 * rank:  # for some of the axes
        return tuple(n + sum(positive) for n in arrays[0].shape)
    return tuple(n + sum(positive[axis::rank]) for axis, n in enumerate(arrays[0].shape))


def _range(attributes: Attributes, arrays: list[Array]) -> Shape:
    start, limit, delta = (a.reshape(-1)[0].item() for a in arrays)
    if not delta or not all(map(isfinite, (start, limit, delta))):
        raise NetworkError(f"a range from {start} to {limit} in steps of {delta} has no end")
    return (max(ceil((limit - start) / delta), 0),)


def _rank(attributes: Attributes, arrays: list[Array]) -> Shape:
    return (arrays[0].ndim, arrays[0].size)


def _tile(attributes: Attributes, arrays: list[Array]) -> Shape:
    return (*arrays[0].shape, *arrays[1].reshape(-1).tolist())


_SIZES: dict[str, Size] = {
    "Concat": _concat,
    "ConstantOfShape": _listed,
    "Expand": _expand,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "NonZero": _rank,
    "OneHot": _one_hot,
    "Pad": _pad,
    "Range": _range,
    "Tile": _tile,
}
"""A shape with at least as many elements as the output."""

EVALUATED = frozenset({"Constant", *_NO_LARGER, *_BROADCAST, *_SIZES})
"""The operations that are evaluated where all of their inputs are known."""


def evaluate(node: "NodeProto", attributes: Attributes, arrays: list[Array], opset: int, tally: Tally) -> list[Array]:
    """The outputs of a node, for inputs that are all known."""
    if node.op_type not in EVALUATED:
        raise UnsupportedOpError("this operation is not supported on constants")
    if "" in node.output:  # onnxruntime crashes on some of those
        raise NetworkError("an output has no name; expected one for each output")
    for a in arrays:
        check_real(a)
        if not a.size:  # over an axis of none, there are as many sums as the other axes say
            check_elements(max(d, 1) for d in a.shape)
    _check_size(node.op_type, attributes, arrays, tally)
    if node.op_type == "ConstantOfShape" and "value" in attributes:
        check_real(array(attributes["value"]))
    if node.op_type in ("Div", "Mod"):
        _check_division(*arrays)
    if node.op_type == "Split" and attributes.get("num_outputs", len(node.output)) != len(node.output):
        raise NetworkError(f"it has {len(node.output)} outputs; expected {attributes['num_outputs']:,}")
    if node.op_type == "Reshape" and len(arrays) > 1 and bool((arrays[1] < -1).any()):  # which NumPy takes for −1
        raise NetworkError(f"a shape of {arrays[1].reshape(-1)[:AXES].tolist()}; expected no dimension below -1")
    if node.op_type == "Dropout" and any(a.dtype == np.bool_ and a.any() for a in arrays):
        raise UnsupportedOpError("a dropout in training mode is not supported; expected a network for inference")
    if node.op_type == "Cast" and attributes.get("to") == _TEXT:
        raise UnsupportedOpError("a cast to text is not supported")
    if node.op_type in ("Softmax", "LogSoftmax") and opset < 13:  # the reference has only what they became then
        raise UnsupportedOpError("a softmax of constants before opset 13 is not supported; expected opset 13 or later")
    if node.op_type not in _EXACT and any(a.dtype.itemsize < 4 and a.dtype.kind in "fV" for a in arrays):
        raise UnsupportedOpError(
            "arithmetic on constants of float16 or less is not supported: runtimes round it in float32; expected a Cast"
        )
    quick = _quick(node.op_type, attributes, arrays)
    found = [quick] if quick is not None else _by_reference(node, arrays, opset)
    if any(a.dtype.name not in _WIDE for a in (*arrays, *found)):
        raise UnsupportedOpError("constants of less than 8 bits are not supported; expected 8 or more")
    return found


def _check_size(op: str, attributes: Attributes, arrays: list[Array], tally: Tally) -> None:
    """Refuse an output with more elements than a tensor may have, unless an input has as many."""
    if op == "Constant":
        return
    given = max((a.size for a in arrays), default=0)
    if op in _NO_LARGER:
        count = given
    else:
        shape = joint_shape(*(a.shape for a in arrays)) if op in _BROADCAST else _SIZES[op](attributes, arrays)
        count = prod(shape)
        if count > given:
            check_elements(shape)
    tally.add(max(count, 0))


def _check_division(a: Array, b: Array) -> None:
    """Refuse quotients of whole numbers that do not exist. onnxruntime computes constants, too, and traps on some."""
    if a.dtype != b.dtype:
        raise NetworkError(f"{a.dtype} is divided by {b.dtype}; expected one type")
    if b.dtype.kind not in "iu":
        return
    if not b.all():
        raise NetworkError("a whole number is divided by zero; expected divisors other than 0")
    if b.dtype.kind == "i" and bool((a == np.iinfo(b.dtype).min).any()) and bool((b == -1).any()):
        raise NetworkError("a quotient of whole numbers overflows; expected one that its type can hold")


def _quick(op: str, attributes: Attributes, arrays: list[Array]) -> Array | None:
    """The output of a constant or a reshape, which most networks have, without loading the reference implementation."""
    if op == "Constant" and set(attributes) == {"value"}:
        return array(attributes["value"])
    if op == "Flatten" and 0 <= attributes.get("axis", 1) <= arrays[0].ndim:
        lead = arrays[0].shape[: attributes.get("axis", 1)]
        return arrays[0].reshape(int(np.prod(lead, dtype=np.int64)), -1) if arrays[0].size else None
    if op == "Reshape" and len(arrays) == 2 and arrays[1].ndim == 1 and ((arrays[1] > 0) | (arrays[1] == -1)).all():
        return arrays[0].reshape(arrays[1].astype(np.int64))
    return None


def _by_reference(node: "NodeProto", arrays: list[Array], opset: int) -> list[Array]:
    """The outputs by ONNX's reference implementation."""
    from onnx import TypeProto, helper
    from onnx.reference import ReferenceEvaluator

    feeds = dict(zip((name for name in node.input if name), arrays, strict=True))
    graph = helper.make_graph(
        [node],
        "node",
        [helper.make_value_info(name, TypeProto()) for name in feeds],
        [helper.make_value_info(name, TypeProto()) for name in node.output if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a mean of no numbers, say, which is NaN and refused where it is used
        return [np.asarray(y) for y in ReferenceEvaluator(model).run(None, feeds)]

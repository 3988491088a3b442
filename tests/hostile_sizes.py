"""Networks with tensors of absurd sizes, and with numbers that are none."""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import onnx
from hostile_case import REFUSED
from hostile_networks import ANY, after_constants, doubled, f32, graph, i64, node, of_constants, of_input
from onnx import TensorProto, helper
from onnx_models import X

HUGE = 2**40

NO_INT = -(2**63)

MANY = "elements"


def _several(n: int) -> Iterable[onnx.NodeProto]:
    return (node("ConstantOfShape", ["n"], ["big" if k == n - 1 else f"c{k}"]) for k in range(n))


def _hidden() -> list[onnx.NodeProto]:
    return [*doubled("Mul", "n", "nn", 2), node("ConstantOfShape", ["nn"], ["big"])]


def _tiles(times: int) -> list[onnx.NodeProto]:
    names = [X, *(f"v{k}" for k in range(times - 1)), "y"]
    return [node("Tile", [a, "n"], [b]) for a, b in pairwise(names)]


def _rows() -> list[onnx.NodeProto]:
    return [node("Expand", [X, "n"], ["rows"]), node("MatMul", ["rows", "w"], ["y"])]


IMAGE = (1, 1, 8, 8)

K = f32(1, 1, 3, 3)


def _wide() -> list[onnx.NodeProto]:
    layers = [node("MatMul", [X, "v"], ["h0"])]
    for k in range(9):
        layers += [node("Relu", [f"h{k}"], [f"r{k}"]), node("MatMul", [f"r{k}", "w"], [f"h{k + 1}"])]
    return [*layers, node("MatMul", ["h9", "o"], ["y"])]


def _normal(seed: int, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).normal(size=shape) / 64).astype(np.float32)


def _over(op: str, n: str, **attributes: object) -> list[onnx.NodeProto]:
    """The input, repeated, under a ReLU and some reduction."""
    spread = [node("Expand", [X, n], ["e"]), node("Relu", ["e"], ["r"])]
    return [*spread, node(op, ["r"], ["m"], axes=[0], **attributes), node("Add", [X, "m"], ["y"])]


def _weights() -> dict[str, np.ndarray]:
    return {"v": _normal(0, 2, 4096), "w": _normal(1, 4096, 4096), "o": _normal(2, 4096, 2)}


_LONG = (REFUSED, *ANY)


_TEXT = helper.make_tensor("value", TensorProto.STRING, [1], [b"a" * 1000])

CASES = [
    # ---- of constants
    of_constants("range", "2^40 numbers counted out", "Range", [np.int64(0), np.int64(HUGE), np.int64(1)], MANY),
    of_constants("range-real", "1e30 numbers", "Range", [np.float32(0), np.float32(1e30), np.float32(1)], MANY),
    of_constants(
        "range-infinite", "without an end", "Range", [np.float32(0), np.float32("inf"), np.float32(1)], "no end"
    ),
    of_constants("range-still", "in steps of 0", "Range", [np.int64(0), np.int64(1), np.int64(0)], "no end"),
    of_constants("zeros", "2^40 zeros", "ConstantOfShape", [i64(HUGE)], MANY),
    of_constants("zeros-wrap", "2^32 x 2^32 zeros, none in 64 bits", "ConstantOfShape", [i64(2**32, 2**32)], MANY),
    of_constants("zeros-negative", "-2^20 x -2^20 zeros", "ConstantOfShape", [i64(-(2**20), -(2**20))], MANY),
    of_constants("zeros-text", "a text, many times", "ConstantOfShape", [i64(2**20)], "text", value=_TEXT),
    of_constants("sums-of-none", "2^32 sums of no number", "ReduceSum", [np.zeros((0, 2**32)), i64(0)], MANY),
    of_constants("expand", "a number spread over 2^40 places", "Expand", [f32(1), i64(HUGE)], MANY),
    of_constants("tile", "a number repeated 2^40 times", "Tile", [f32(1), i64(HUGE)], MANY),
    of_constants("pad", "2^40 zeros around a number", "Pad", [f32(1), i64(0, HUGE)], MANY),
    of_constants(
        "pad-axes", "around a part of the axes", "Pad", [f32(1, 1), i64(0, HUGE), None, i64(1)], MANY, opset=18
    ),
    of_constants("one-hot", "2^40 classes", "OneHot", [i64(1), np.int64(HUGE), f32(2)], MANY),
    of_constants("gather", "a long row taken 2^15 times", "Gather", [f32(1, 2**15), np.zeros(2**15, np.int64)], MANY),
    of_constants("gather-nd", "the same", "GatherND", [f32(1, 2**15), np.zeros((2**15, 1), np.int64)], MANY),
    of_constants("outer-sum", "2^16 numbers and 2^16 numbers", "Add", [f32(2**16, 1), f32(1, 2**16)], MANY),
    of_constants("outer-product", "the same as a matrix", "MatMul", [f32(2**16, 1), f32(1, 2**16)], MANY),
    of_constants("outer-gemm", "the same, turned", "Gemm", [f32(1, 2**16), f32(1, 2**16)], MANY, transA=1),
    of_constants("where", "the same as a choice", "Where", [np.bool_(True), f32(2**16, 1), f32(1, 2**16)], MANY),
    of_constants("equal", "the same as a comparison", "Equal", [f32(2**16, 1), f32(1, 2**16)], MANY),
    of_constants("resize", "a picture stretched", "Resize", [f32(1, 1, 2, 2), None, f32(4) * 2**20], "Resize"),
    of_constants("upsample", "in an old opset", "Upsample", [f32(1, 1, 2, 2), f32(4) * 2**20], "Upsample", opset=9),
    of_constants("split", "2^40 parts", "Split", [f32(2)], "outputs", opset=18, num_outputs=HUGE),
    of_constants(
        "matrices", "of 4,096 x 4,096", "MatMul", [np.broadcast_to(np.int64(1), (4096, 4096))] * 2, "multipl", slow=True
    ),
    after_constants(
        "doubling", "joined with itself", lambda: doubled("Concat", "c", "big", 40, axis=0), MANY, {"c": f32(1)}
    ),
    after_constants(
        "several", "500 tensors of a moderate size", lambda: _several(500), "MiB", {"n": i64(2**23)}, slow=True
    ),
    after_constants("hidden", "a size that comes out of others", _hidden, MANY, {"n": i64(2**10)}),
    # ---- of what depends on the input
    of_input("data-expand", "spread over 2^40 places", "Expand", [X, i64(HUGE // 2, 2)], MANY),
    of_input("data-tile", "repeated 2^40 times", "Tile", [X, i64(1, HUGE)], MANY),
    of_input("data-pad", "2^40 zeros around it", "Pad", [X, i64(0, 0, 0, HUGE)], MANY),
    of_input("data-pad-reflect", "reflected 2^40 times", "Pad", [X, i64(0, 0, 0, HUGE)], MANY, mode="reflect"),
    of_input("data-pad-cut", "pads that cancel", "Pad", [X, i64(0, -HUGE, 0, HUGE)], MANY),
    of_input("data-pad-axes", "an axis that is not there", "Pad", [X, i64(1, 1), None, i64(9)], "axes", opset=18),
    of_input("data-gather", "taken 2^24 times", "Gather", [X, np.zeros(2**24, np.int32)], MANY, axis=0),
    of_input("data-outer", "plus each of 2^24 numbers", "Add", [X, f32(2**24, 1)], MANY),
    of_input("data-split", "2^40 parts", "Split", [X], "outputs", num_outputs=HUGE, axis=1, opset=18),
    of_input("data-reshape", "a negative size", "Reshape", [X, i64(-HUGE, 2)], "Reshape"),
    of_input("data-unsqueeze", "a thousand axes", "Unsqueeze", [X, i64(*range(1000))], "Unsqueeze"),
    of_input("data-slice", "a step of 0", "Slice", [X, i64(0), i64(2), i64(1), i64(0)], "Slice"),
    of_input("data-slice-min", "a step of -2^63", "Slice", [X, i64(NO_INT), i64(2), i64(1), i64(NO_INT)], "Slice"),
    of_input("data-transpose", "an axis that is not there", "Transpose", [X], "Transpose", perm=[HUGE, 0]),
    of_input("data-concat", "an axis that is not there", "Concat", [X, X], "axis", axis=HUGE),
    of_input("data-sum", "an axis that is not there", "ReduceSum", [X, i64(HUGE)], "axes"),
    graph("data-doubling", "joined with itself", lambda: doubled("Concat", X, "y", 40, axis=1), MANY),
    graph("data-tiles", "tiled 40 times over", lambda: _tiles(40), MANY, {"n": i64(1, 2)}),
    graph("data-rows", "2^22 rows times 64", lambda: _rows(), MANY, {"n": i64(2**22, 2), "w": f32(2, 64)}),
    # ---- windows
    of_input("conv-pads", "2^40 zeros around an image", "Conv", [X, K], MANY, shape=IMAGE, pads=[HUGE] * 4),
    of_input("conv-pads-one", "on one side", "Conv", [X, K], MANY, shape=IMAGE, pads=[0, 0, HUGE, 0]),
    of_input("conv-pads-few", "few are read", "Conv", [X, K], MANY, shape=IMAGE, pads=[HUGE] * 4, strides=[HUGE] * 2),
    of_input("conv-pads-below", "pads below 0", "Conv", [X, K], "below 0", shape=IMAGE, pads=[-3] * 4),
    of_input("conv-far", "a kernel that reaches 2^60 far", "Conv", [X, K], "shape", shape=IMAGE, dilations=[2**60] * 2),
    of_input("conv-same", "and pads", "Conv", [X, K], MANY, shape=IMAGE, dilations=[2**60] * 2, auto_pad="SAME_UPPER"),
    of_input("conv-wide", "16 million pixels", "Conv", [X, f32(1, 1, 32, 32)], "windows", shape=(1, 1, 4096, 4096)),
    of_input("conv-channels", "2^20 channels", "Conv", [X, f32(2**20, 1, 3, 3)], MANY, shape=IMAGE, pads=[16] * 4),
    of_input("conv-groups", "2^40 groups", "Conv", [X, K], "groups", shape=IMAGE, group=HUGE),
    of_input("conv-groups-0", "no group", "Conv", [X, K], "groups", shape=IMAGE, group=0),
    of_input("conv-kernel", "another kernel's shape", "Conv", [X, K], "kernel", shape=IMAGE, kernel_shape=[5, 5]),
    of_input("conv-stride-0", "a stride of 0", "Conv", [X, K], "stride", shape=IMAGE, strides=[0, 0]),
    of_input("conv-stride", "a stride of 2^60", "Conv", [X, K], "outputs", shape=IMAGE, strides=[2**60] * 2),
    of_input("max-pool", "2^40", "MaxPool", [X], MANY, shape=IMAGE, kernel_shape=[HUGE] * 2, pads=[HUGE - 1] * 4),
    of_input(
        "max-pool-pads", "padding only", "MaxPool", [X], "padding", shape=IMAGE, kernel_shape=[2, 2], pads=[5] * 4
    ),
    of_input("max-pool-large", "9 on 8 pixels", "MaxPool", [X], "does not fit", shape=IMAGE, kernel_shape=[9, 9]),
    of_input("mean-pool", "2^40", "AveragePool", [X], MANY, shape=IMAGE, kernel_shape=[HUGE] * 2, pads=[HUGE - 1] * 4),
    of_input(
        "mean-pool-wide",
        "a mean over a million pixels, at a million places",
        "AveragePool",
        [X],
        "windows",
        shape=(1, 1, 1024, 1024),
        kernel_shape=[1025] * 2,
        pads=[512] * 4,
    ),
    of_input("blocks", "of 2^40 pixels", "DepthToSpace", [X], "DepthToSpace", shape=IMAGE, blocksize=HUGE),
    of_input("blocks-0", "of no pixel", "SpaceToDepth", [X], "SpaceToDepth", shape=IMAGE, blocksize=0),
    # ---- sizes that are allowed, and take long
    graph("wide", "nine layers of 4,096 ReLUs", _wide, "", _weights, ends=ANY, slow=True),
    graph(
        "maximum-all",
        "of 8 million numbers",
        lambda: _over("ReduceMax", "n"),
        "memory",
        {"n": i64(2**22, 2)},
        ends=_LONG,
        slow=True,
    ),
    graph(
        "mean-all",
        "of 16 million ReLUs",
        lambda: _over("ReduceMean", "n"),
        "memory",
        {"n": i64(2**23, 2)},
        ends=_LONG,
        slow=True,
    ),
    of_input(
        "conv-heavy",
        "2^33 multiplications",
        "Conv",
        [X, f32(256, 256, 3, 3)],
        "outputs",
        shape=(1, 256, 128, 128),
        pads=[1] * 4,
        ends=_LONG,
        slow=True,
    ),
    # ---- numbers that are none
    *(
        of_input(f"weight-{v}", f"a weight of {v}", "MatMul", [X, f32(2, 2) * float(v)], "NaN or infinite")
        for v in ("nan", "inf", "-inf")
    ),
    *(
        of_input(f"factor-{v}", f"a factor of {v}", "Gemm", [X, f32(2, 2)], "NaN or infinite", alpha=float(v))
        for v in ("nan", "inf", "-inf")
    ),
    of_input("clip-nan", "a clip at NaN", "Clip", [X, np.float32("nan")], "NaN or infinite"),
    of_input("variance", "below zero", "BatchNormalization", [X, f32(2), f32(2), f32(2), -f32(2)], "not positive"),
    graph(
        "overflow",
        "a product beyond float32",
        lambda: [node("MatMul", [X, "w"], ["h"]), node("MatMul", ["h", "w"], ["y"])],
        "overflows",
        {"w": f32(2, 2) * np.float32(3e38)},
    ),
]

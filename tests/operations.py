"""Every supported ONNX operation, in every form that its opsets gave it: what tests of operations share."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto
from onnx_models import X

from surebound.network import ACTIVATIONS

_RNG = np.random.default_rng(1)
ALL = (7, 9, 11, 13, 18, 21)


def floats(*shape: int) -> NDArray[Any]:
    return _RNG.normal(size=shape).astype(np.float32)


def integers(*values: int) -> NDArray[Any]:
    return np.array(values, dtype=np.int64)


_IMAGE = (1, 2, 6, 5)
_POSITIVE = np.abs(floats(2)) + np.float32(0.1)

_NONE = np.zeros(0, dtype=np.float32)
_RESIZE = (11, 13, 18, 21)

# (opsets, op, input shape, inputs, attributes)
CASES: list[tuple[tuple[int, ...], str, tuple[int, ...], list[Any], dict[str, Any]]] = [
    (ALL, "Abs", (1, 4), [X], {}),
    (ALL, "Add", (1, 3, 2), [X, floats(2)], {}),
    (ALL, "Add", (1, 3), [floats(3), X], {}),
    (ALL, "Add", (1, 1), [X, floats(1, 4)], {}),
    (ALL, "Add", (1, 4), [X, X], {}),
    (ALL, "Add", (1, 3), [X, np.float32(2.5)], {}),
    (ALL, "Sub", (1, 3), [X, floats(1, 3)], {}),
    (ALL, "Sub", (1, 3), [floats(2, 3), X], {}),
    (ALL, "Mul", (1, 2, 3), [X, floats(2, 1)], {}),
    (ALL, "Mul", (1, 3), [floats(3), X], {}),
    (ALL, "Div", (1, 2, 2), [X, floats(2, 1, 2)], {}),
    (ALL, "Neg", (1, 4), [X], {}),
    (ALL, "Relu", (1, 4), [X], {}),
    (ALL, "LeakyRelu", (1, 9), [X], {"alpha": 0.1}),
    (ALL, "LeakyRelu", (1, 9), [X], {}),
    (ALL, "LeakyRelu", (1, 9), [X], {"alpha": 1.75}),
    (ALL, "LeakyRelu", (1, 9), [X], {"alpha": -0.5}),
    (ALL, "PRelu", (1, 2, 3, 3), [X, floats(2, 1, 1)], {}),
    ((7, 9), "Clip", (1, 9), [X], {"min": -0.3, "max": 0.7}),
    ((7, 9), "Clip", (1, 9), [X], {"min": 0.1}),
    ((7, 9), "Clip", (1, 9), [X], {}),
    ((11, 13, 18, 21), "Clip", (1, 9), [X, np.float32(-0.3), np.float32(0.7)], {}),
    ((11, 13, 18, 21), "Clip", (1, 9), [X, None, np.float32(0.2)], {}),
    ((11, 13), "Clip", (1, 9), [X, np.float32(-0.1)], {}),
    ((13,), "Clip", (1, 9), [X, np.finfo(np.float32).min, np.finfo(np.float32).max], {}),
    ((11, 13, 18), "Clip", (1, 9), [X, np.float32(0.5), np.float32(-0.5)], {}),
    (ALL, "MatMul", (1, 4), [X, floats(4, 3)], {}),
    (ALL, "MatMul", (1, 2, 4), [X, floats(4, 3)], {}),
    (ALL, "MatMul", (1, 4), [X, floats(4)], {}),
    (ALL, "MatMul", (4,), [X, floats(4, 3)], {}),
    (ALL, "MatMul", (4,), [floats(3, 4), X], {}),
    (ALL, "MatMul", (4, 1), [floats(3, 4), X], {}),
    (ALL, "MatMul", (4, 2), [floats(4), X], {}),
    (ALL, "MatMul", (1, 4, 3), [floats(2, 4), X], {}),
    (ALL, "Gemm", (1, 4), [X, floats(4, 3), floats(3)], {}),
    (ALL, "Gemm", (1, 4), [X, floats(3, 4), floats(1, 3)], {"transB": 1, "alpha": 0.3, "beta": 0.7}),
    (ALL, "Gemm", (4, 1), [X, floats(4, 3), np.float32(0.5)], {"transA": 1}),
    (ALL, "Gemm", (4, 1), [floats(3, 4), X, floats(3, 1)], {"alpha": 2.0}),
    ((11, 13), "Gemm", (1, 4), [floats(3, 4), X], {"transB": 1}),
    (ALL, "Gemm", (1, 3), [X, floats(3, 3), X], {"beta": 0.5}),
    (ALL, "Conv", _IMAGE, [X, floats(3, 2, 3, 2), floats(3)], {}),
    (ALL, "Conv", _IMAGE, [X, floats(3, 2, 3, 3)], {"strides": [2, 1], "pads": [1, 1, 1, 1]}),
    (ALL, "Conv", _IMAGE, [X, floats(3, 2, 3, 2), floats(3)], {"pads": [0, 1, 2, 0], "strides": [2, 2]}),
    (ALL, "Conv", _IMAGE, [X, floats(4, 1, 2, 2), floats(4)], {"group": 2, "dilations": [2, 1]}),
    (ALL, "Conv", _IMAGE, [X, floats(3, 2, 2, 2)], {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    (ALL, "Conv", _IMAGE, [X, floats(3, 2, 2, 4)], {"auto_pad": "SAME_LOWER"}),
    (ALL, "Conv", _IMAGE, [X, floats(3, 2, 2, 4)], {"auto_pad": "VALID"}),
    (ALL, "Conv", (1, 2, 7), [X, floats(3, 2, 3), floats(3)], {"strides": [2], "pads": [1, 0]}),
    (ALL, "Conv", (1, 2, 7), [X, floats(3, 2, 3)], {"strides": [2], "pads": [2, 2], "dilations": [2]}),
    (ALL, "BatchNormalization", _IMAGE, [X, floats(2), floats(2), floats(2), _POSITIVE], {"epsilon": 0.01}),
    (ALL, "BatchNormalization", (1, 2), [X, floats(2), floats(2), floats(2), _POSITIVE], {}),
    (ALL, "MaxPool", _IMAGE, [X], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    (ALL, "MaxPool", _IMAGE, [X], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    (ALL, "MaxPool", _IMAGE, [X], {"kernel_shape": [3, 2], "pads": [0, 1, 2, 0], "strides": [2, 1]}),
    (ALL, "MaxPool", _IMAGE, [X], {"kernel_shape": [1, 2], "strides": [3, 3]}),
    (ALL, "MaxPool", _IMAGE, [X], {"kernel_shape": [3, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    (ALL, "MaxPool", (1, 2, 7), [X], {"kernel_shape": [5]}),
    ((11, 13, 18, 21), "MaxPool", _IMAGE, [X], {"kernel_shape": [2, 3], "strides": [4, 4], "ceil_mode": 1}),
    ((11, 13, 18, 21), "MaxPool", _IMAGE, [X], {"kernel_shape": [2, 2], "dilations": [3, 2], "pads": [1, 0, 0, 1]}),
    (ALL, "AveragePool", _IMAGE, [X], {"kernel_shape": [2, 2], "strides": [2, 2]}),
    (ALL, "AveragePool", _IMAGE, [X], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    (ALL, "AveragePool", _IMAGE, [X], {"kernel_shape": [3, 2], "pads": [0, 1, 2, 0], "count_include_pad": 1}),
    (ALL, "AveragePool", _IMAGE, [X], {"kernel_shape": [3, 3], "auto_pad": "SAME_LOWER", "strides": [2, 2]}),
    (ALL, "AveragePool", (1, 2, 7), [X], {"kernel_shape": [3], "strides": [2]}),
    ((11, 13, 19), "AveragePool", _IMAGE, [X], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ((19, 21), "AveragePool", _IMAGE, [X], {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    (ALL, "GlobalAveragePool", _IMAGE, [X], {}),
    (ALL, "GlobalMaxPool", _IMAGE, [X], {}),
    (ALL[1:], "Max", (1, 3), [X, floats(2, 3), X, floats(3)], {}),
    (ALL, "Max", (1, 3), [X, floats(1, 3), X], {}),
    (ALL, "Min", (1, 3), [floats(1, 3), X], {}),
    (ALL, "Max", (1, 3), [X], {}),
    (ALL[1:], "Sum", (1, 3), [floats(1, 3), X, floats(3), X], {}),
    (ALL, "Sum", (1, 3), [floats(1, 3), X], {}),
    ((7, 11, 13), "ReduceMean", _IMAGE, [X], {"axes": [2, 3], "keepdims": 0}),
    ((7, 11, 13), "ReduceMean", _IMAGE, [X], {}),
    ((11, 13), "ReduceMean", _IMAGE, [X], {"axes": [-1, 1]}),
    ((18, 21), "ReduceMean", _IMAGE, [X, integers(1)], {}),
    ((18, 21), "ReduceMean", _IMAGE, [X], {"noop_with_empty_axes": 1}),
    ((7, 11), "ReduceSum", _IMAGE, [X], {"axes": [3]}),
    ((13, 18, 21), "ReduceSum", _IMAGE, [X, integers(1, -1)], {"keepdims": 0}),
    ((7, 11, 13), "ReduceMax", _IMAGE, [X], {"axes": [1, 3], "keepdims": 0}),
    ((18, 21), "ReduceMax", _IMAGE, [X, integers(2)], {}),
    ((7, 13), "ReduceMin", _IMAGE, [X], {"axes": [3]}),
    (ALL, "Flatten", _IMAGE, [X], {}),
    (ALL, "Flatten", _IMAGE, [X], {"axis": 2}),
    ((11, 13), "Flatten", _IMAGE, [X], {"axis": -1}),
    (ALL, "Reshape", _IMAGE, [X, integers(0, -1)], {}),
    (ALL, "Reshape", _IMAGE, [X, integers(-1)], {}),
    (ALL, "Reshape", _IMAGE, [X, integers(-1, 5, 12)], {}),
    (ALL, "Reshape", _IMAGE, [X, integers(1, 3, 4, 5)], {}),
    (ALL, "Transpose", _IMAGE, [X], {"perm": [0, 2, 3, 1]}),
    (ALL, "Transpose", _IMAGE, [X], {"perm": [3, 0, 1, 2]}),
    (ALL, "Transpose", _IMAGE, [X], {}),
    ((7, 9, 11), "Squeeze", (1, 3, 1), [X], {"axes": [2]}),
    ((13, 18, 21), "Squeeze", (1, 3, 1), [X, integers(0)], {}),
    (ALL, "Squeeze", (1, 3, 1), [X], {}),
    ((7, 9, 11), "Unsqueeze", (1, 3), [X], {"axes": [0, 3]}),
    ((13, 18, 21), "Unsqueeze", (1, 3), [X, integers(-1)], {}),
    (ALL, "Concat", (1, 3), [X, floats(1, 2), X], {"axis": 1}),
    (ALL, "Concat", (1, 3), [X, floats(2, 3)], {"axis": 0}),
    ((11, 13), "Concat", (1, 3, 2), [X, X], {"axis": -1}),
    ((7, 9), "Slice", _IMAGE, [X], {"starts": [1, -3], "ends": [4, 100], "axes": [2, 3]}),
    ((11, 13, 18, 21), "Slice", _IMAGE, [X, integers(5, 0), integers(-100, 4), integers(2, 3), integers(-2, 2)], {}),
    ((11, 13, 18, 21), "Slice", _IMAGE, [X, integers(0, 1), integers(1, 2)], {}),
    ((7, 9, 11), "Split", (1, 5), [X], {"axis": 1, "split": [2, 3]}),
    ((7, 9, 11), "Split", (1, 6), [X], {"axis": -1}),
    ((13, 18, 21), "Split", (1, 5), [X, integers(2, 3)], {"axis": 1}),
    ((13,), "Split", (1, 6), [X], {"axis": 1}),
    ((18, 21), "Split", (1, 5), [X], {"axis": 1, "num_outputs": 2}),
    (ALL, "Gather", _IMAGE, [X, np.array([[0, 2], [4, 0]])], {"axis": 3}),
    (ALL, "Gather", (1, 4), [X, np.array(2)], {"axis": 1}),
    ((11, 13), "Gather", (1, 4), [X, integers(-1, 0)], {"axis": 1}),
    ((7, 9), "Pad", _IMAGE, [X], {"pads": [0, 0, 1, 0, 0, 0, 0, 2], "value": 0.5}),
    ((7, 9), "Pad", _IMAGE, [X], {"pads": [0, 0, 1, 0, 0, 0, 0, 2]}),
    ((7, 9), "Pad", _IMAGE, [X], {"pads": [0, 0, 1, 2, 0, 0, 2, 0], "mode": "reflect"}),
    ((11, 13, 18, 21), "Pad", _IMAGE, [X, integers(0, 1, 1, 0, 0, 0, 0, 2), np.float32(-0.5)], {}),
    ((11, 13, 18, 21), "Pad", _IMAGE, [X, integers(0, 0, 1, 0, 0, 0, 0, 2)], {"mode": "edge"}),
    ((18, 21), "Pad", _IMAGE, [X, integers(1, 2), None, integers(-1)], {}),
    ((9, 11, 13, 21), "Expand", (1, 3, 1), [X, integers(2, 1, 4)], {}),
    (ALL, "Tile", (1, 3), [X, integers(2, 2)], {}),
    (ALL, "Identity", (1, 3), [X], {}),
    ((7, 9, 11), "Dropout", (1, 3), [X], {"ratio": 0.3}),
    ((13, 18, 21), "Dropout", (1, 3), [X, np.float32(0.3)], {}),
    (ALL, "Cast", (1, 3), [X], {"to": TensorProto.FLOAT}),
    (ALL, "DepthToSpace", (1, 8, 2, 2), [X], {"blocksize": 2}),
    (ALL, "SpaceToDepth", (1, 2, 4, 4), [X], {"blocksize": 2}),
    (ALL, "Sigmoid", (1, 9), [X], {}),
    (ALL, "Tanh", (1, 9), [X], {}),
    (ALL, "Softplus", (1, 9), [X], {}),
    (ALL, "Elu", (1, 9), [X], {}),
    (ALL, "Elu", (1, 9), [X], {"alpha": 1.7}),
    (ALL, "Elu", (1, 9), [X], {"alpha": 0.0}),
    (ALL, "Selu", (1, 9), [X], {}),
    (ALL, "Selu", (1, 9), [X], {"alpha": 1.3, "gamma": 0.8}),
    (ALL, "HardSigmoid", (1, 9), [X], {"alpha": 0.4}),
    ((13, 18, 21), "Celu", (1, 9), [X], {"alpha": 0.6}),
    (ALL[1:], "Erf", (1, 9), [X], {}),
    (ALL[1:], "Sign", (1, 9), [X], {}),
    (ALL, "Mul", (1, 4), [X, X], {}),
    (ALL, "Pow", (1, 4), [X, np.float32(2)], {}),
    (ALL, "Pow", (1, 4), [X, np.float32([3])], {}),
    ((20, 21), "Gelu", (1, 9), [X], {}),
    ((20, 21), "Gelu", (1, 9), [X], {"approximate": "tanh"}),
    (ALL, "ConvTranspose", _IMAGE, [X, floats(2, 3, 3, 2), floats(3)], {}),
    (ALL, "ConvTranspose", _IMAGE, [X, floats(2, 3, 3, 2)], {"strides": [2, 3], "pads": [1, 0, 1, 0]}),
    (
        ALL,
        "ConvTranspose",
        _IMAGE,
        [X, floats(2, 1, 3, 2), floats(2)],
        {"group": 2, "strides": [2, 2], "pads": [1, 0, 0, 1]},
    ),
    (ALL, "ConvTranspose", _IMAGE, [X, floats(2, 3, 2, 2)], {"strides": [3, 2], "output_padding": [2, 1]}),
    (ALL, "ConvTranspose", _IMAGE, [X, floats(2, 3, 2, 2)], {"dilations": [2, 1], "strides": [1, 2]}),
    (ALL, "ConvTranspose", (1, 2, 7), [X, floats(2, 3, 4), floats(3)], {"strides": [2], "pads": [1, 2]}),
    ((7,), "Upsample", _IMAGE, [X], {"scales": [1.0, 1.0, 2.0, 3.0]}),
    ((7,), "Upsample", _IMAGE, [X], {"scales": [1.0, 1.0, 2.0, 2.0], "mode": "linear"}),
    ((9,), "Upsample", _IMAGE, [X, np.float32([1, 1, 2, 3])], {}),
    ((10,), "Resize", _IMAGE, [X, np.float32([1, 1, 2, 3])], {}),
    (_RESIZE, "Resize", _IMAGE, [X, _NONE, np.float32([1, 1, 2, 2.4])], {}),
    (_RESIZE, "Resize", _IMAGE, [X, _NONE, np.float32([1, 1, 0.5, 0.5])], {"mode": "linear"}),
    (_RESIZE, "Resize", _IMAGE, [X, _NONE, _NONE, integers(1, 2, 9, 7)], {"mode": "linear"}),
    *(
        (
            _RESIZE,
            "Resize",
            _IMAGE,
            [X, _NONE, _NONE, integers(1, 2, 9, 3)],
            {"coordinate_transformation_mode": kind} | how,
        )
        for kind in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
        for how in ({"mode": "linear"}, {"nearest_mode": "floor"}, {"nearest_mode": "round_prefer_ceil"})
    ),
    ((18, 21), "Resize", _IMAGE, [X, None, np.float32([2, 3])], {"axes": [2, 3]}),
    (ALL[1:], "Where", (1, 4), [np.array([[True, False, True, False]]), X, floats(4)], {}),
    (ALL[1:], "Where", (1, 4), [np.array([[True], [False]]), X, X], {}),
]

# and the rows of the table of activations that are operations by themselves
_KNOWN = {case[1] for case in CASES}
CASES += [
    ((13, 18, 21), row.onnx, (1, 9), [X], {}) for row in ACTIVATIONS.values() if row.onnx and row.onnx not in _KNOWN
]

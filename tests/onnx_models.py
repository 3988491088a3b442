"""Small ONNX files for tests."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

X = "x"
"""Stands for the network's input among a node's inputs."""


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    shape: Sequence[int | str] | None,
    *,
    constants: dict[str, NDArray[Any]] | None = None,
    opset: int = 13,
    output: str = "y",
    output_shape: Sequence[int | str] | None = None,
    dtype: int = TensorProto.FLOAT,
) -> Path:
    """A model with input `x`, written to a path."""
    graph = helper.make_graph(
        list(nodes),
        "test",
        [helper.make_tensor_value_info(X, dtype, shape)],
        [helper.make_tensor_value_info(output, dtype, output_shape)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return path


def save_op(
    path: Path,
    op: str,
    shape: Sequence[int | str],
    inputs: Sequence[Any],
    *,
    opset: int,
    output: int = 0,
    outputs: int = 1,
    **attributes: Any,
) -> Path:
    """A model of one node. Inputs are `X`, constants, or None where one is left out; `output` is the result."""
    constants = {f"c{i}": np.asarray(c) for i, c in enumerate(inputs) if c is not None and not isinstance(c, str)}
    names = ["" if c is None else X if isinstance(c, str) else f"c{i}" for i, c in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    return save(path, [node], shape, constants=constants, opset=opset, output=f"y{output}")


def run(path: Path, x: NDArray[np.float32]) -> NDArray[Any]:
    """onnxruntime's answer for one input of the declared shape, with every optimisation of the graph switched off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {X: x})[0])

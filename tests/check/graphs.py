"""ONNX graphs, node by node, and their values: by onnxruntime, and by the checker's own operations."""

from fractions import Fraction
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from surebound.check.network import Network
from surebound.check.ops import Relu


class Graph:
    """A network under construction: methods take and return names of tensors."""

    def __init__(self, shape: tuple[int, ...], *, opset: int = 13, dtype: Any = np.float32) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.shape, self.opset, self.dtype = shape, opset, dtype

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(value, dtype=dtype or self.dtype), name))
        return name

    def add(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """Append a node; numbers and arrays among its inputs become constants, lists of whole numbers int64."""
        names = []
        for value in inputs:
            if isinstance(value, list):
                value = self.constant(value, np.int64)
            names.append(value if isinstance(value, str) else self.constant(value))
        name = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, names, [name], name=f"{kind}{len(self.nodes)}", **attributes))
        return name

    def bytes(self, output: str | None = None) -> bytes:
        kind = TensorProto.FLOAT if self.dtype == np.float32 else TensorProto.DOUBLE
        graph = helper.make_graph(
            self.nodes,
            "graph",
            [helper.make_tensor_value_info("x", kind, self.shape)],
            [helper.make_tensor_value_info(output or f"t{len(self.nodes) - 1}", kind, None)],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        return bytes(model.SerializeToString(deterministic=True))


def values(network: Network, x: np.ndarray) -> list[np.ndarray]:
    """The values of all nodes, for one point. # x (inputs,)"""
    found = [x.reshape(1, -1)]
    for i in range(1, len(network.ops)):
        op, read = network.ops[i], [found[j] for j in network.reads[i]]
        if isinstance(op, Relu):
            found.append(np.maximum(read[0], 0))
            continue
        found.append(op.apply(read) + op.bias)
    return found


def rational(x: Any) -> np.ndarray:
    """An array of fractions."""
    return np.array([Fraction(float(v)) for v in np.ravel(x)], dtype=object).reshape(np.shape(x))

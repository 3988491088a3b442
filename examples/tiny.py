"""Write a tiny ReLU network and two properties of it, one that holds and one that does not.

    python examples/tiny.py DIRECTORY

The network maps (x₀, x₁) to

    y₀ = |x₀| + |x₁| + ¼        y₁ = ||x₀| - |x₁||

with two layers of ReLUs: |x| = [x]₊ + [-x]₊. On the box [-1, 1]², y₁ never reaches y₀ (their distance is at least ¼),
but y₁ comes above 0.9 where one input is near 0 and the other near ±1.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

WEIGHTS = {
    "w1": [[1, 0], [-1, 0], [0, 1], [0, -1]],  # [x₀]₊, [-x₀]₊, [x₁]₊, [-x₁]₊
    "b1": [0, 0, 0, 0],
    "w2": [[1, 1, 1, 1], [1, 1, -1, -1], [-1, -1, 1, 1]],  # |x₀| + |x₁|, |x₀| - |x₁|, |x₁| - |x₀|
    "b2": [0, 0, 0],
    "w3": [[1, 0, 0], [0, 1, 1]],
    "b3": [0.25, 0],
}

# In VNN-LIB the assertions describe a counterexample: a property holds if nothing satisfies them all.
HEADER = """\
(declare-const X_0 Real)
(declare-const X_1 Real)
(declare-const Y_0 Real)
(declare-const Y_1 Real)
(assert (>= X_0 -1.0))
(assert (<= X_0 1.0))
(assert (>= X_1 -1.0))
(assert (<= X_1 1.0))
"""
HOLDS = "; y_1 never reaches y_0: this holds\n" + HEADER + "(assert (>= Y_1 Y_0))\n"
FAILS = "; y_1 stays below 0.9: this does not hold\n" + HEADER + "(assert (>= Y_1 0.9))\n"


def network() -> onnx.ModelProto:
    """The network of the module's docstring."""
    nodes = []
    value = "x"
    for k in (1, 2, 3):
        affine = "y" if k == 3 else f"affine{k}"
        nodes.append(helper.make_node("Gemm", [value, f"w{k}", f"b{k}"], [affine], transB=1))
        if k < 3:
            value = f"relu{k}"
            nodes.append(helper.make_node("Relu", [affine], [value]))
    graph = helper.make_graph(
        nodes,
        "tiny",
        inputs=[helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        outputs=[helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        initializer=[numpy_helper.from_array(np.array(w, dtype=np.float32), name) for name, w in WEIGHTS.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def write(directory: Path) -> None:
    """Write tiny.onnx, holds.vnnlib and fails.vnnlib into the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    onnx.save(network(), directory / "tiny.onnx")
    (directory / "holds.vnnlib").write_text(HOLDS)
    (directory / "fails.vnnlib").write_text(FAILS)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python examples/tiny.py DIRECTORY")
    write(Path(sys.argv[1]))

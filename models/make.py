"""Writes the network of a training run in half the bytes: weights in float16, which the file casts to float32.

    python models/make.py RUN/model.onnx models/NAME.onnx

Rounding the weights makes it another network, if only by a little: the accuracies in README.md are of the file itself.
"""

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_LEAST = 1000  # elements of a tensor that is worth a cast


def halved(model: onnx.ModelProto) -> onnx.ModelProto:
    """The network with its large weights rounded to float16 and cast back."""
    graph, casts = model.graph, []
    for weight in graph.initializer:
        values = numpy_helper.to_array(weight)
        if values.dtype == np.float32 and values.size >= _LEAST:
            name, half = weight.name, f"{weight.name}.half"
            rounded = values.astype(np.float16)
            if not np.isfinite(rounded).all():
                raise SystemExit(f"the weight '{name}' has numbers beyond those of float16")
            weight.CopyFrom(numpy_helper.from_array(rounded, half))
            casts.append(helper.make_node("Cast", [half], [name], name=f"{name}.cast", to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.checker.check_model(model)
    return model


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_bytes(halved(onnx.load(source)).SerializeToString(deterministic=True))

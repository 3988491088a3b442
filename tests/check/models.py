"""Random ONNX models of the operations that the checker reads, with attributes of every kind, for onnxruntime to judge.

    python tests/check/models.py --minutes 10 --seed 1

Weights and inputs are small whole numbers, so that float32 is exact but for means and batch norms. A model that
onnxruntime runs and the checker reads must have the same values in both; what the checker refuses is refused with a
sentence. Of models that onnxruntime refuses, nothing is asked.
"""

import argparse
import copy
import sys
import time
from collections import Counter
from typing import Any

import numpy as np
import onnxruntime
from graphs import Graph, values
from onnx import TensorProto, helper

from surebound.check.arithmetic import Arithmetic, CheckError
from surebound.check.network import read_network

Rng = np.random.Generator
OPSETS = [7, 8, 9, 10, 11, 12, 13, 14, 15, 18, 19, 20]


def whole(rng: Rng, *shape: int) -> np.ndarray:
    return rng.integers(-2, 3, size=shape).astype(np.float32)


def maybe(rng: Rng, chance: float, **attributes: Any) -> dict[str, Any]:
    """Each of these attributes, now and then."""
    return {name: value for name, value in attributes.items() if rng.random() < chance}


def some(rng: Rng, *choices: Any) -> Any:
    return choices[int(rng.integers(len(choices)))]


def broadcast(rng: Rng, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that goes with another: lengths of 1, axes left out or put before, or just any shape."""
    cut = shape[int(rng.integers(len(shape) + 1)) :]
    found = [1 if rng.random() < 0.4 else n if n > 1 or rng.random() < 0.8 else int(rng.integers(1, 4)) for n in cut]
    return (*([int(rng.integers(1, 3))] if rng.random() < 0.1 else []), *found)


def windows(rng: Rng, kernel: tuple[int, ...]) -> dict[str, Any]:
    """Attributes of a window over two axes."""
    return {
        **maybe(rng, 0.6, strides=rng.integers(1, 4, size=2).tolist()),
        **maybe(rng, 0.3, pads=rng.integers(0, 3, size=4).tolist()),
        **maybe(rng, 0.1, dilations=rng.integers(1, 3, size=2).tolist()),
        **maybe(rng, 0.1, auto_pad=some(rng, "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID")),
    }


def arithmetic(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    kind = some(rng, "Add", "Sub", "Mul", "Div")
    other: Any = whole(rng, *broadcast(rng, shape)) if rng.random() < 0.7 else str(rng.choice(earlier))
    if kind == "Div":
        other = 2.0 ** rng.integers(-1, 2, size=broadcast(rng, shape)) * rng.choice([-1, 1])
    pair = (x, other) if kind == "Div" or rng.random() < 0.7 else (other, x)
    return g.add(kind, *pair)


def gemm(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    n, m = shape[-1] if shape else 1, int(rng.integers(1, 4))
    turned = int(rng.random() < 0.5)
    c = [whole(rng, *some(rng, (m,), (1, m), (1,), (), (shape[0] if shape else 1, m), (1, 1)))] * (rng.random() < 0.6)
    options = maybe(rng, 0.1, alpha=some(rng, 1.0, 0.5), beta=some(rng, 1.0, 0.0, 2.0), transA=some(rng, 0, 1))
    return g.add("Gemm", x, whole(rng, *((m, n) if turned else (n, m))), *c, transB=turned, **options)


def matmul(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    n, m = shape[-1] if shape else 1, int(rng.integers(1, 4))
    matrix = whole(rng, *some(rng, (n, m), (n, m), (n, m), (n,), (1, n, m), (2, n, m)))
    return g.add("MatMul", x, matrix) if rng.random() < 0.95 else g.add("MatMul", whole(rng, 2, n), x)


def conv(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    channels = shape[1] if len(shape) > 1 else 1
    group = some(rng, 1, 1, channels, 2)
    kernel = tuple(rng.integers(1, 4, size=max(len(shape) - 2, 1)).tolist())
    out = int(rng.integers(1, 3)) * group
    bias = [whole(rng, out)] * (rng.random() < 0.5)
    options = {**windows(rng, kernel), **maybe(rng, 0.5, kernel_shape=kernel)}
    options |= {"group": group} if group > 1 or rng.random() < 0.3 else {}
    return g.add("Conv", x, whole(rng, out, max(channels // group, 1), *kernel), *bias, **options)


def pool(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    kind = some(rng, "MaxPool", "AveragePool", "GlobalAveragePool")
    if kind == "GlobalAveragePool":
        return g.add(kind, x)
    kernel = tuple(rng.integers(1, 4, size=max(len(shape) - 2, 1)).tolist())
    options = {**windows(rng, kernel), **maybe(rng, 0.1, ceil_mode=some(rng, 0, 1))}
    if kind == "AveragePool":
        options |= maybe(rng, 0.5, count_include_pad=some(rng, 0, 1))
    else:
        options |= maybe(rng, 0.1, storage_order=some(rng, 0, 1))
    return g.add(kind, x, kernel_shape=kernel, **options)


def norm(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    n = shape[1] if len(shape) > 1 else 1
    numbers = [whole(rng, n), whole(rng, n), whole(rng, n), np.abs(whole(rng, n)) * 4]
    options = maybe(rng, 0.2, epsilon=some(rng, 1e-3, 0.5), momentum=0.5)
    options |= maybe(rng, 0.1, spatial=some(rng, 0, 1)) | maybe(rng, 0.05, training_mode=some(rng, 0, 1))
    return g.add("BatchNormalization", x, *numbers, **options)


def shaped(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    kind, rank = some(rng, "Reshape", "Flatten", "Transpose", "Gather"), len(shape)
    if kind == "Flatten":
        return g.add(kind, x, **maybe(rng, 0.6, axis=int(rng.integers(-rank - 1, rank + 2))))
    if kind == "Transpose":
        return g.add(kind, x, **maybe(rng, 0.8, perm=rng.permutation(rank).tolist()))
    if kind == "Gather":
        axis = int(rng.integers(-rank, max(rank, 1)))
        n = shape[axis] if rank else 1
        size = some(rng, (), (1,), (3,), (n,), (2, 2))
        index = g.constant(rng.integers(-n, n, size=size), some(rng, np.int64, np.int32))
        return g.add(kind, x, index, **({"axis": axis} if axis or rng.random() < 0.5 else {}))
    count = int(np.prod(shape))
    first = some(rng, *(d for d in range(1, count + 1) if count % d == 0))
    target = some(rng, [first, count // first], [first, -1], [-1], [0, -1], [1, -1], [1, first, -1], [-1, 1, 1, first])
    return g.add(kind, x, target, **maybe(rng, 0.05, allowzero=some(rng, 0, 1)))


def pad(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    pads = [int(p) for p in rng.choice([0, 0, 1, 2, -1], size=2 * len(shape), p=[0.4, 0.1, 0.3, 0.15, 0.05])]
    options = maybe(rng, 0.15, mode=some(rng, "constant", "reflect", "edge"))
    if g.opset < 11:
        return g.add("Pad", x, pads=pads, **options, **maybe(rng, 0.2, value=some(rng, 0.0, 1.0)))
    return g.add("Pad", x, pads, *([np.float32(some(rng, 0, 0, 1))] * (rng.random() < 0.4)), **options)


def plain(rng: Rng, g: Graph, x: str, shape: tuple[int, ...], earlier: list[str]) -> str:
    if rng.random() < 0.7:
        return g.add("Relu", x)
    if rng.random() < 0.5:
        return g.add("Identity", x)
    if g.opset < 12:
        return g.add("Dropout", x, **maybe(rng, 0.5, ratio=0.25))
    return g.add("Dropout", x, *[np.float32(0.25), g.constant(some(rng, False, True), bool)][: int(rng.integers(3))])


KINDS = [arithmetic, gemm, matmul, conv, pool, norm, shaped, pad, plain]


def finished(rng: Rng, g: Graph, output: str) -> bytes:
    """The model, with constants as nodes and open batches now and then."""
    nodes, weights, shape = list(g.nodes), list(g.weights), list(g.shape)
    if rng.random() < 0.3:
        nodes = [helper.make_node("Constant", [], [w.name], value=w) for w in weights] + nodes
        weights = []
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if shape and shape[0] == 1 and rng.random() < 0.3:
        inputs[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    inputs += [helper.make_tensor_value_info(w.name, w.data_type, list(w.dims)) for w in weights if rng.random() < 0.1]
    result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "random", inputs, [result], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", g.opset)], ir_version=8)
    return bytes(model.SerializeToString(deterministic=True))


def runtime(content: bytes, x: np.ndarray) -> np.ndarray | None:
    """What onnxruntime computes, or None if it refuses."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        return np.asarray(onnxruntime.InferenceSession(content, options).run(None, {"x": x})[0])
    except Exception:
        return None


def compare(content: bytes, x: np.ndarray, expected: np.ndarray | None, tally: Counter[str]) -> bool:
    """Whether the checker reads a model; raises if it does so otherwise than onnxruntime."""
    try:
        network = read_network(content, x.size, Arithmetic())
    except CheckError:
        tally["refused by the checker" if expected is not None else "refused by both"] += 1
        return False
    if expected is None:
        tally["read by the checker only"] += 1
        return False
    found = values(network, x.astype(np.float64).reshape(-1))[network.output][0]
    np.testing.assert_allclose(found, expected.reshape(-1), rtol=1e-4, atol=1e-4 * (1 + np.abs(expected).max()))
    tally["read alike"] += 1
    return True


def attempt(seed: int, tally: Counter[str]) -> None:
    """A model of a few operations, compared after each of them."""
    rng = np.random.default_rng(seed)
    shapes = [(1, 3), (4,), (1, 2, 4, 5), (1, 4, 6, 3), (2, 3), (1, 2, 3), (1, 1, 5, 5), (3, 1), ()]
    g = Graph(shapes[int(rng.choice(len(shapes), p=[0.15, 0.05, 0.3, 0.2, 0.05, 0.05, 0.1, 0.05, 0.05]))])
    g.opset = int(rng.choice(OPSETS))
    x, names, shape = whole(rng, *g.shape), ["x"], g.shape
    for _ in range(int(rng.integers(1, 7))):
        before = copy.copy(g.nodes), copy.copy(g.weights)
        kind = KINDS[int(rng.integers(len(KINDS)))]
        source = names[-1] if rng.random() < 0.85 else str(rng.choice(names))
        try:
            name = kind(rng, g, source, shape if source == names[-1] else g.shape, names)
        except (ValueError, IndexError, ZeroDivisionError):  # a kind of operation for tensors of other shapes
            g.nodes, g.weights = before
            continue
        content = finished(rng, g, name)
        expected = runtime(content, x)
        if expected is not None and not (np.abs(expected) < 1e5).all():
            expected = None
        if compare(content, x, expected, tally):
            assert expected is not None
            names, shape = [*names, name], expected.shape
        else:
            g.nodes, g.weights = before


def run(seconds: float, first: int) -> Counter[str]:
    tally: Counter[str] = Counter()
    end, seed = time.monotonic() + seconds, first
    while time.monotonic() < end:
        try:
            attempt(seed, tally)
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        tally["models"] += 1
        seed += 1
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts = run(60 * given.minutes, given.seed)
    sys.stdout.write(", ".join(f"{count:,} {name}" for name, count in counts.items()) + "\n")

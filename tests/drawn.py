"""Random ONNX networks and properties with an evaluator of their own, for whoever looks for a wrong verdict.

`Graph` draws a small ONNX graph and, beside every node, a float64 function of torch that does the same by other means.
Thresholds are placed around the lowest value that sampling finds, where a wrong bound would show.
"""

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx_models
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from onnx import NodeProto, helper
from torch import Tensor

from surebound.problem import Box, Region

Array = NDArray[Any]
Function = Callable[..., Tensor]
Op = Callable[["Graph", str], bool]

VIOLATING = (-0.1, -1e-2, -1e-4, -1e-6)
OFFSETS = (-0.1, -1e-2, -1e-4, -1e-10, 0.0, 1e-10, 1e-4, 1e-2, 0.1)
"""The value of the worst sample: up to 0 it is a counterexample."""


class Graph:
    """An ONNX graph under construction, and what each of its tensors is."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        self.rng = rng
        self.nodes: list[NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.shapes = {onnx_models.X: shape}  # without the batch
        self.functions: list[tuple[str, Function, tuple[str, ...]]] = []

    @property
    def last(self) -> str:
        return list(self.shapes)[-1]

    def weight(self, *shape: int) -> NDArray[np.float32]:
        return self.rng.normal(size=shape).astype(np.float32)

    def constant(self, value: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def add(self, op: str, inputs: list[str], function: Function, *sources: str, **attributes: Any) -> bool:
        """Append a node whose tensor is function(*sources)."""
        zeros = [torch.zeros(1, *self.shapes[s], dtype=torch.float64) for s in sources]
        name = f"t{len(self.shapes)}"
        self.shapes[name] = tuple(function(*zeros).shape[1:])
        self.functions.append((name, function, sources))
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return True

    def evaluate(self, x: Array) -> tuple[Array, float]:
        """The last tensor at some inputs, and the largest number on the way. # (points, inputs) -> (points, outputs)"""
        values = {onnx_models.X: exact(x).reshape(-1, *self.shapes[onnx_models.X])}
        for name, function, sources in self.functions:
            values[name] = function(*(values[s] for s in sources))
        return values[self.last].flatten(1).numpy(), max(float(v.abs().max()) for v in values.values())

    def save(self, path: Path) -> Path:
        ends = ((1, *self.shapes[name]) for name in (onnx_models.X, self.last))
        shape, output_shape = ends
        return onnx_models.save(
            path, self.nodes, shape, constants=self.constants, output=self.last, output_shape=output_shape
        )


def exact(value: Array) -> Tensor:
    return torch.from_numpy(np.asarray(value, dtype=np.float64))


def relu(g: Graph, t: str) -> bool:
    return g.add("Relu", [t], lambda a: torch.where(a > 0, a, 0.0), t)


def leaky_relu(g: Graph, t: str) -> bool:
    alpha = float(np.float32(g.rng.choice([-0.5, 0.0, 0.1, 1.0, 1.5])))
    return g.add("LeakyRelu", [t], lambda a: torch.where(a > 0, a, alpha * a), t, alpha=alpha)


def clip(g: Graph, t: str) -> bool:
    """With its ends in either order, equal, or one of them left out."""
    ends = g.weight(2)
    kind = g.rng.integers(5)
    ends = np.sort(ends) if kind else ends
    ends[1] = ends[0] if kind == 1 else ends[1]
    names = [g.constant(np.asarray(end)) for end in ends]
    if kind == 2:
        return g.add("Clip", [t, names[0]], lambda a: a.clamp_min(float(ends[0])), t)
    if kind == 3:
        return g.add("Clip", [t, "", names[1]], lambda a: a.clamp_max(float(ends[1])), t)
    return g.add("Clip", [t, *names], lambda a: a.clamp_min(float(ends[0])).clamp_max(float(ends[1])), t)


def absolute(g: Graph, t: str) -> bool:
    return g.add("Abs", [t], torch.abs, t)


def pair(op: str, function: Function) -> Op:
    """An operation on two tensors of one shape, which may be the same."""

    def build(g: Graph, t: str) -> bool:
        others = [name for name, shape in g.shapes.items() if shape == g.shapes[t]]
        other = others[g.rng.integers(len(others))]
        return g.add(op, [t, other], function, t, other)

    return build


def by_constant(op: str, function: Function) -> Op:
    def build(g: Graph, t: str) -> bool:
        c = g.weight(1, *g.shapes[t])
        return g.add(op, [t, g.constant(c)], lambda a: function(a, exact(c).expand_as(a)), t)

    return build


def two_relus(g: Graph, t: str) -> bool:
    """relu(t) − w relu(t), by two nodes."""
    w = g.weight(1, *g.shapes[t])
    relu(g, t)
    first = g.last
    relu(g, t)
    second = g.last
    g.add("Mul", [second, g.constant(w)], lambda a: a * exact(w), second)
    return g.add("Sub", [first, g.last], torch.sub, first, g.last)


def matmul(g: Graph, t: str) -> bool:
    w = g.weight(g.shapes[t][-1], int(g.rng.integers(1, 6)))
    return g.add("MatMul", [t, g.constant(w)], lambda a: a @ exact(w), t)


def head(g: Graph, t: str) -> bool:
    """To two outputs."""
    w, b = g.weight(2, prod(g.shapes[t])), g.weight(2)
    g.add("Flatten", [t], lambda a: a.flatten(1), t)
    t = g.last
    inputs = [t, g.constant(w), g.constant(b)]
    return g.add("Gemm", inputs, lambda a: 0.5 * a @ exact(w).T - 2.0 * exact(b), t, transB=1, alpha=0.5, beta=-2.0)


def windows(n: int, kernel: int, stride: int, before: int, after: int) -> list[range]:
    return [range(i, i + kernel) for i in range(-before, n + after - kernel + 1, stride)]


def conv(g: Graph, t: str) -> bool:
    """One spatial axis, summed position by position."""
    shape = g.shapes[t]
    if len(shape) != 2:
        return False
    kernel, stride = int(g.rng.integers(1, 4)), int(g.rng.integers(1, 3))
    before, after = (int(p) for p in g.rng.integers(0, 2, size=2))
    places = windows(shape[1], kernel, stride, before, after)
    if not places:
        return False
    w, b = g.weight(2, shape[0], kernel), g.weight(2)

    def function(a: Tensor) -> Tensor:
        padded = F.pad(a, (before, after))
        columns = [padded[:, :, p.start + before : p.stop + before].flatten(1) @ exact(w).flatten(1).T for p in places]
        return torch.stack(columns, dim=2) + exact(b)[:, None]

    inputs = [t, g.constant(w), g.constant(b)]
    return g.add("Conv", inputs, function, t, kernel_shape=[kernel], strides=[stride], pads=[before, after])


def pool(op: str) -> Op:
    """Overlapping windows that may reach into the padding."""

    def build(g: Graph, t: str) -> bool:
        shape = g.shapes[t]
        if len(shape) != 2:
            return False
        kernel, stride = int(g.rng.integers(1, 4)), int(g.rng.integers(1, 3))
        before, after = (int(p) for p in g.rng.integers(0, kernel, size=2))
        places = windows(shape[1], kernel, stride, before, after)
        inside = [[i for i in place if 0 <= i < shape[1]] for place in places]
        if not inside or not all(inside):
            return False
        attributes: dict[str, Any] = {"kernel_shape": [kernel], "strides": [stride], "pads": [before, after]}
        if op == "MaxPool":
            return g.add(op, [t], lambda a: torch.stack([a[:, :, i].amax(2) for i in inside], dim=2), t, **attributes)
        whole = bool(g.rng.integers(2))

        def mean(a: Tensor) -> Tensor:
            return torch.stack([a[:, :, i].sum(2) / (kernel if whole else len(i)) for i in inside], dim=2)

        return g.add(op, [t], mean, t, count_include_pad=int(whole), **attributes)

    return build


def batch_norm(g: Graph, t: str) -> bool:
    """With a variance that may be tiny."""
    shape = g.shapes[t]
    gamma, beta, mean = (g.weight(shape[0]) for _ in range(3))
    variance = (10.0 ** g.rng.uniform(-6, 1, size=shape[0])).astype(np.float32)
    epsilon = float(np.float32(1e-5))
    column = (-1, *[1] * (len(shape) - 1))

    def function(a: Tensor) -> Tensor:
        m, v, s, b = (exact(c).reshape(column) for c in (mean, variance, gamma, beta))
        return s * (a - m) / torch.sqrt(v + epsilon) + b

    inputs = [t, *(g.constant(c) for c in (gamma, beta, mean, variance))]
    return g.add("BatchNormalization", inputs, function, t, epsilon=epsilon)


def concat(g: Graph, t: str) -> bool:
    """With a constant in between."""
    c = g.weight(1, *g.shapes[t])
    return g.add("Concat", [t, g.constant(c), t], lambda a: torch.cat([a, exact(c).expand_as(a), a], dim=1), t, axis=1)


def pad(g: Graph, t: str) -> bool:
    pads = np.array([0] * len(g.shapes[t]) + [1] + [0] * len(g.shapes[t]) + [1], dtype=np.int64)
    value = g.weight(1)[0]
    inputs = [t, g.constant(pads), g.constant(np.asarray(value))]
    return g.add("Pad", inputs, lambda a: F.pad(a, (1, 1), value=float(value)), t)


def reverse(g: Graph, t: str) -> bool:
    """A slice with a negative step."""
    names = [g.constant(np.array([v])) for v in (-1, -(2**40), 1, -1)]
    return g.add("Slice", [t, *names], lambda a: a.flip(1), t)


def gather(g: Graph, t: str) -> bool:
    index = g.rng.integers(0, g.shapes[t][-1], size=3)
    return g.add("Gather", [t, g.constant(index)], lambda a: a[..., index], t, axis=-1)


def reduction(op: str, function: Function) -> Op:
    def build(g: Graph, t: str) -> bool:
        return g.add(op, [t], function, t, axes=[-1], keepdims=1)

    return build


OPS: tuple[Op, ...] = (
    *(
        relu,
        relu,
        leaky_relu,
        clip,
        absolute,
        two_relus,
        matmul,
        matmul,
        conv,
        batch_norm,
        concat,
        pad,
        reverse,
        gather,
    ),
    *(pair("Add", torch.add), pair("Sub", torch.sub), pair("Max", torch.maximum), pair("Min", torch.minimum)),
    *(by_constant("Mul", torch.mul), by_constant("Div", torch.div), by_constant("Max", torch.maximum)),
    *(by_constant("Min", torch.minimum), pool("MaxPool"), pool("AveragePool")),
    reduction("ReduceMax", lambda a: a.amax(-1, keepdim=True)),
    reduction("ReduceMean", lambda a: a.mean(-1, keepdim=True)),
)


def draw(rng: np.random.Generator) -> Graph:
    """A network of two to ten operations, any of which may read any tensor before it."""
    shapes = ((1,), (3,), (5,), (1, 4), (2, 3))
    g = Graph(rng, shapes[rng.integers(len(shapes))])
    for _ in range(rng.integers(2, 11)):
        names = list(g.shapes)
        t = g.last if rng.random() < 0.7 else names[rng.integers(len(names))]
        if prod(g.shapes[t]) <= 24:
            OPS[rng.integers(len(OPS))](g, t)
    head(g, g.last)
    return g


def draw_box(rng: np.random.Generator, inputs: int) -> Box:
    """A point, or a thin, ordinary or wide box."""
    centre = rng.normal(size=inputs)
    radius = rng.choice([0.0, 1e-3, 1.0, 5.0]) * rng.random(inputs)
    lower, upper = (end.astype(np.float32).astype(np.float64) for end in (centre - radius, centre + radius))
    return Box(lower, upper)


def samples(rng: np.random.Generator, box: Box) -> Array:
    """Random points and all corners."""
    inside = box.lower + (box.upper - box.lower) * rng.random((2000, len(box.lower)))
    corners = np.array(list(product(*zip(box.lower, box.upper, strict=True))))
    return np.concatenate([inside, corners])


def draw_region(rng: np.random.Generator, g: Graph, offsets: Sequence[float] = OFFSETS) -> tuple[Region, bool]:
    """A region of one or two rows, and whether some sample violates it by more than rounding explains."""
    box = draw_box(rng, prod(g.shapes[onnx_models.X]))
    x = samples(rng, box)
    y, largest = g.evaluate(x)
    rows = int(rng.integers(1, 3))
    on_output = rng.normal(size=(rows, y.shape[1]))
    on_input = rng.normal(size=(rows, x.shape[1])) if rng.random() < 0.3 else None
    values = y @ on_output.T + (0.0 if on_input is None else x @ on_input.T)
    constant = -values[values[:, 0].argmin()]
    scale = float(np.abs(values).max())
    constant += rng.choice(offsets) * scale - (values + constant).max(axis=1).min()
    tolerance = 1e-9 * scale + 1e-12 * largest
    region = Region(box=box, on_output=on_output, on_input=on_input, constant=constant, strict=rng.random(rows) < 0.3)
    return region, bool(((values + constant).max(axis=1) < -tolerance).any())

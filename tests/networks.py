"""Small random networks, boxes and samples for the tests: float64, with weights that float32 represents exactly."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np
import torch
from torch import Tensor

from surebound.network.conv import Conv
from surebound.network.graph import Input, Network, Node, Pointwise, Relu
from surebound.network.linear import Linear, Scale, Shift, Sum
from surebound.network.op import Affine, Shape, held
from surebound.network.shape import Pick, Reshape

Maker = Callable[[np.random.Generator], Network]


class Builder:
    """Nodes in topological order; every method appends one and returns its index."""

    def __init__(self, rng: np.random.Generator, input_shape: Shape) -> None:
        self.rng = rng
        self.nodes = [Node(Input(input_shape), (), "input")]

    def add(self, op: Affine | Relu, *inputs: int) -> int:
        self.nodes.append(Node(op, inputs, f"{type(op).__name__}_{len(self.nodes)}"))
        return len(self.nodes) - 1

    def shape(self, node: int) -> Shape:
        return self.nodes[node].shape

    def draw(self, *shape: int, fan_in: int) -> Tensor:
        """Normal weights of variance 2 / fan_in, so that about half of the neurons stay in play."""
        values = self.rng.normal(size=shape) * np.sqrt(2.0 / fan_in)
        return torch.from_numpy(values.astype(np.float32).astype(np.float64))

    def linear(self, node: int, out: int) -> int:
        (wide,) = self.shape(node)
        return self.add(Linear(self.draw(out, wide, fan_in=wide), self.draw(out, fan_in=10)), node)

    def conv(self, node: int, out: int, kernel: int = 3, stride: int = 1, padding: int = 1) -> int:
        shape = self.shape(node)
        weight = self.draw(out, shape[0], kernel, kernel, fan_in=shape[0] * kernel**2)
        bias = self.draw(out, 1, 1, fan_in=10)
        return self.add(Conv(weight, shape, bias, (stride, stride), (padding, padding)), node)

    def relu(self, node: int) -> int:
        return self.add(Relu(self.shape(node)), node)

    def flatten(self, node: int) -> int:
        shape = self.shape(node)
        return self.add(Reshape((prod(shape),), shape), node)

    def plus(self, a: int, b: int, sign: float = 1.0) -> int:
        """a + sign · b."""
        return self.add(Sum(torch.tensor([1.0, sign], dtype=torch.float64), self.shape(a)), a, b)

    def maximum(self, node: int, axis: int) -> int:
        """The larger of every two neighbours a, b along an axis (without the batch): b + relu(a − b)."""
        shape = self.shape(node)
        index = torch.arange(prod(shape)).reshape(shape)
        even = self.add(Pick(index.unflatten(axis, (-1, 2)).select(axis + 1, 0), shape), node)
        odd = self.add(Pick(index.unflatten(axis, (-1, 2)).select(axis + 1, 1), shape), node)
        return self.plus(odd, self.relu(self.plus(even, odd, -1.0)))

    def network(self) -> Network:
        return Network(tuple(self.nodes), len(self.nodes) - 1)


def random_fc(rng: np.random.Generator, sizes: Sequence[int]) -> Network:
    """Fully connected, ReLU after all layers but the last; sizes = (inputs, hidden …, outputs)."""
    build = Builder(rng, (sizes[0],))
    node = 0
    for k, out in enumerate(sizes[1:]):
        node = build.linear(node if k == 0 else build.relu(node), out)
    return build.network()


def random_conv(rng: np.random.Generator) -> Network:
    """(2, 5, 5) → shift → conv s2 → ReLU → conv → ReLU → FC 6 → ReLU → FC 3; 27 + 27 + 6 neurons."""
    build = Builder(rng, (2, 5, 5))
    node = build.add(Shift(build.draw(2, 5, 5, fan_in=20)), 0)
    node = build.relu(build.conv(node, 3, stride=2))
    node = build.relu(build.conv(node, 3))
    node = build.relu(build.linear(build.flatten(node), 6))
    build.linear(node, 3)
    return build.network()


def random_residual(rng: np.random.Generator) -> Network:
    """(2, 4, 4) → conv s2 → ReLU → [conv → ReLU → conv, + skip] → ReLU → FC 3; skips from a ReLU and from the input."""
    build = Builder(rng, (2, 4, 4))
    stem = build.relu(build.conv(0, 3, stride=2))
    branch = build.conv(build.relu(build.conv(stem, 3)), 3)
    joined = build.relu(build.plus(branch, stem))
    last = build.linear(build.flatten(joined), 3)
    build.plus(last, build.linear(build.flatten(0), 3), -1.0)
    return build.network()


def random_pool(rng: np.random.Generator) -> Network:
    """(1, 6, 6) → conv → ReLU → 2×2 max pooling written as ReLUs → FC 5 → ReLU → FC 2."""
    build = Builder(rng, (1, 6, 6))
    node = build.relu(build.conv(0, 2, kernel=3, padding=0))
    node = build.maximum(build.maximum(node, axis=2), axis=1)
    node = build.relu(build.linear(build.flatten(node), 5))
    build.linear(node, 2)
    return build.network()


def random_box(
    rng: np.random.Generator, network: Network, boxes: int = 1, radius: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Boxes around standard normal centres, with radii uniform in [0, radius]. # (boxes, *input_shape) each"""
    centre = torch.from_numpy(rng.normal(size=(boxes, *network.input_shape)))
    reach = torch.from_numpy(rng.uniform(0.0, radius, size=(boxes, *network.input_shape)))
    return centre - reach, centre + reach


def sample(rng: np.random.Generator, lower: Tensor, upper: Tensor, count: int) -> Tensor:
    """Points of one box: half of them uniform, half of them corners. # (*input_shape) twice -> (count, *input_shape)"""
    unit = rng.uniform(size=(count, *lower.shape))
    unit[count // 2 :] = unit[count // 2 :].round()
    points = lower + torch.from_numpy(unit) * (upper - lower)
    return torch.minimum(torch.maximum(points, lower), upper)


def pre_activations(network: Network, x: Tensor) -> list[Tensor]:
    """Every ReLU layer's x̂_k and, last, the output, flattened. # (batch, *input_shape) -> (batch, neurons) …"""
    recorded: list[Tensor] = []

    def activate(_: int, xhat: Tensor) -> Tensor:
        recorded.append(xhat.flatten(1))
        return xhat.clamp_min(0.0)

    output = network.trace(x, activate)
    return [*recorded, output.flatten(1)]


def random_strides(rng: np.random.Generator) -> Network:
    """(4, 7, 9) → grouped, dilated conv with uneven strides and pads → ReLU → depthwise conv → ReLU → FC 3."""
    build = Builder(rng, (4, 7, 9))
    node = build.add(Scale(build.draw(4, 7, 9, fan_in=2), build.draw(4, 7, 9, fan_in=20)), 0)
    weight = build.draw(6, 2, 3, 2, fan_in=12)
    op = Conv(weight, (4, 7, 9), build.draw(6, 1, 1, fan_in=10), (2, 3), (2, 1), (1, 2), groups=2)
    node = build.relu(build.add(op, node))
    shape = build.shape(node)
    op = Conv(build.draw(6, 1, 2, 2, fan_in=4), shape, None, (1, 1), (0, 1), (1, 1), groups=6)
    node = build.relu(build.add(op, node))
    build.linear(build.flatten(node), 3)
    return build.network()


def random_sequence(rng: np.random.Generator) -> Network:
    """(3, 11) → 1-d conv with stride 2 → ReLU → 1-d conv → ReLU → FC 4 → ReLU → FC 2."""
    build = Builder(rng, (3, 11))
    node = 0
    for out, stride, pad in ((4, 2, 1), (5, 1, 0)):
        shape = build.shape(node)
        weight = build.draw(out, shape[0], 3, fan_in=3 * shape[0])
        op = Conv(weight, shape, build.draw(out, 1, fan_in=10), (stride,), (pad,), (1,))
        node = build.relu(build.add(op, node))
    node = build.relu(build.linear(build.flatten(node), 4))
    build.linear(node, 2)
    return build.network()


def random_twice(rng: np.random.Generator) -> Network:
    """A tensor that two ReLUs read, a ReLU of a ReLU, a ReLU of the input, two linear ops in a row."""
    build = Builder(rng, (2, 4, 4))
    first = build.conv(build.conv(build.relu(0), 3), 3)
    again = build.relu(build.relu(first))
    joined = build.plus(again, build.relu(first), -1.0)
    joined = build.plus(build.conv(joined, 3), first)
    node = build.relu(build.linear(build.flatten(build.relu(joined)), 5))
    build.linear(node, 2)
    return build.network()


def over_arrays(network: Network) -> Network:
    """The same network over NumPy arrays."""
    nodes = [
        n if isinstance(n.op, Relu | Pointwise | Input) else replace(n, op=op_over_arrays(n.op))  # type: ignore[type-var]
        for n in network.nodes
    ]
    return replace(network, nodes=tuple(nodes), numpy=True)


def op_over_arrays(op: Affine) -> Affine:
    return replace(op, **{name: value.numpy() for name, value in held(op).items()})  # type: ignore[type-var]


def makers(*sizes: int) -> dict[str, Maker]:
    """One maker of each common kind, the fully connected one with these sizes."""
    return {
        "fc": lambda rng: random_fc(rng, sizes),
        "conv": random_conv,
        "residual": random_residual,
        "pool": random_pool,
    }


NETWORKS = {
    **makers(6, 12, 10, 8, 3),
    "strides": random_strides,
    "sequence": random_sequence,
    "twice": random_twice,
}

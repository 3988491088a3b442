"""Networks with weights from 1e-6 to 1e6 over boxes a few roundings wide, and their values in rational arithmetic."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import torch
from networks import Builder
from numpy.typing import NDArray

from surebound.network.graph import Network, Relu
from surebound.network.linear import Linear, Sum

Rational = list[Fraction]


def exact_nodes(network: Network, x: Sequence[float | Fraction]) -> list[Rational]:
    """Every node's value at a point, in rational arithmetic."""
    values: list[Rational] = [[Fraction(v) for v in x]]
    for node in network.nodes[1:]:
        op, read = node.op, [values[j] for j in node.inputs]
        if isinstance(op, Relu):
            values.append([max(v, Fraction(0)) for v in read[0]])
        elif isinstance(op, Sum):
            signs = [Fraction(s) for s in op.signs.tolist()]
            columns = zip(*read, strict=True)
            values.append([sum(s * v for s, v in zip(signs, column, strict=True)) for column in columns])
        else:
            assert isinstance(op, Linear)
            bias = [0.0] * len(op.weight) if op.bias is None else op.bias.tolist()
            values.append(
                [
                    sum((Fraction(w) * v for w, v in zip(row, read[0], strict=True)), Fraction(b))
                    for row, b in zip(op.weight.tolist(), bias, strict=True)
                ]
            )
    return values


def exact_layers(network: Network, x: Sequence[float | Fraction]) -> list[Rational]:
    """Every ReLU layer's pre-activation and, last, the output."""
    values = exact_nodes(network, x)
    return [*(values[network.before(k)] for k in range(len(network.layers))), values[network.output]]


def float32(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values.astype(np.float32).astype(np.float64)


def wild(rng: np.random.Generator, *shape: int) -> NDArray[np.float64]:
    """Float32 numbers of either sign with magnitudes from 1e-6 to 1e6."""
    return float32(rng.choice([-1.0, 1.0], size=shape) * 10.0 ** rng.uniform(-6, 6, size=shape))


def wild_network(rng: np.random.Generator, centre: NDArray[np.float64], *, relus: bool = True) -> Network:
    """3 → 4 → 4 (+ skip) → 2 with such weights, whose large terms cancel at `centre` in every second neuron."""
    build = Builder(rng, (3,))
    value = centre

    def linear(node: int, out: int, at: NDArray[np.float64]) -> tuple[int, NDArray[np.float64]]:
        weight, bias = wild(rng, out, at.size), wild(rng, out)
        bias[::2] = float32(-(weight @ at))[::2]
        return build.add(Linear(torch.from_numpy(weight), torch.from_numpy(bias)), node), weight @ at + bias

    node, value = linear(0, 4, value)
    skip, kept = node, value
    if relus:
        node, value = build.relu(node), np.maximum(value, 0.0)
    node, value = linear(node, 4, value)
    node, value = build.plus(node, skip, -1.0), value - kept
    if relus:
        node, value = build.relu(node), np.maximum(value, 0.0)
    linear(node, 2, value)
    return build.network()


def boxes(rng: np.random.Generator, kind: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Boxes on which rounding is most of what there is."""
    centre = rng.normal(size=3)
    radius = {
        "point": np.zeros(3),
        "some fixed": rng.uniform(0, 1e-3, 3) * np.array([1.0, 0.0, 1.0]),
        "few roundings wide": np.spacing(np.abs(centre)) * 3,
        "tiny": rng.uniform(0, 1e-11, 3),
        "far away": rng.uniform(0, 1e-2, 3),
    }[kind]
    if kind == "far away":
        centre = centre * 1e6
    return centre - radius, centre + radius


KINDS = ("point", "some fixed", "few roundings wide", "tiny", "far away")


def points(rng: np.random.Generator, lower: NDArray[np.float64], upper: NDArray[np.float64]) -> list[list[float]]:
    """All corners, the centre and random points of a box."""
    corners = [
        [ends[c][i] for i, c in enumerate(choice)] for choice in product((0, 1), repeat=3) for ends in [(lower, upper)]
    ]
    inside = [np.clip(v, lower, upper).tolist() for v in ((lower + upper) / 2, *rng.uniform(lower, upper, size=(3, 3)))]
    return [list(map(float, p)) for p in corners] + inside

"""No float64 bound exceeds the exact one, where all roundings go the same way: tiny equal summands against a large one.

Each network stresses one error term: a bound without that term exceeds what the same code computes with fractions.
"""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from graphs import Graph, rational

from surebound.check.arithmetic import Arithmetic
from surebound.check.bounds import Enclosure, Splits, Way, relax
from surebound.check.network import read_network

FLOAT, EXACT = Arithmetic(), Arithmetic(exact=True)
HALF = 2.0**-53  # of 1's last place: one of it is lost, and every one of many if they come one by one
TINY = [HALF, -HALF, HALF * 1.75, -HALF * 1.75, HALF / 2, -HALF / 2]


def tiny_row(rng: np.random.Generator, n: int) -> np.ndarray:
    row = np.full(n, rng.choice(TINY))
    row[rng.integers(n)] = rng.choice([1.0, -1.0, 1.5])
    return row


KINDS: dict[str, Callable[[np.random.Generator, Graph, str, int], str]] = {}


def kind(make: Any) -> Any:
    KINDS[make.__name__] = make
    return make


# Each reads a tensor of shape (1, 1) and returns another.


@kind
def summed(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """Many equal entries with tiny weights: long sums forward."""
    return g.add("MatMul", g.add("Gather", x, [0] * n, axis=1), tiny_row(rng, n)[:, None])


@kind
def fanned(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """One entry that many rows read: long sums backward."""
    return g.add("MatMul", g.add("MatMul", x, tiny_row(rng, n)[None]), np.ones((n, 1)))


@kind
def convolved(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    image = g.add("Reshape", x, [1, 1, 1])
    wide = g.add("Conv", image, tiny_row(rng, n)[:, None, None])
    return g.add("Reshape", g.add("Conv", wide, np.ones((1, n, 1))), [1, 1])


@kind
def picked(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """One entry that is moved to many places: sums in the adjoint of a move."""
    row = tiny_row(rng, n)
    return g.add("MatMul", g.add("Mul", g.add("Gather", x, [0] * n, axis=1), row[None]), np.ones((n, 1)))


@kind
def biased(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """Many tiny biases, added up by a row of ones."""
    wide = g.add("Add", g.add("MatMul", x, np.ones((1, n)) * rng.choice(TINY)), tiny_row(rng, n)[None])
    return g.add("MatMul", wide, np.ones((n, 1)))


@kind
def joined(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """One tensor with many readers."""
    total = x
    for _ in range(min(n, 60)):
        total = g.add("Add", total, g.add("Mul", x, np.array([[rng.choice(TINY)]])))
    return total


@kind
def shifted(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """Many additions, one after the other."""
    for _ in range(min(n, 60)):
        x = g.add("MatMul", g.add("Add", x, np.array([[rng.choice(TINY)]])), np.ones((1, 1)))
    return x


@kind
def divided(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """Quotients: the weights themselves are rounded."""
    wide = g.add("Div", g.add("Gather", x, [0] * n, axis=1), np.full((1, n), rng.choice([3.0, 7.0, -49.0])))
    return g.add("MatMul", wide, np.ones((n, 1)))


@kind
def averaged(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    image = g.add("Reshape", g.add("Gather", x, [0] * (7 * n), axis=1), [1, 1, n, 7])
    pooled = g.add("AveragePool", image, kernel_shape=[1, 7])
    return g.add("MatMul", g.add("Reshape", pooled, [1, n]), np.ones((n, 1)))


@kind
def rectified(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """Neurons that are active, inactive or open over a box around 1."""
    weight = rng.choice([1.0, -1.0, 3.0, 0.1], size=(1, n))
    wide = g.add("Add", g.add("MatMul", x, weight), -weight * rng.choice([0.5, 1.0, 1.0 + 2.0**-30], size=(1, n)))
    return g.add("MatMul", g.add("Relu", wide), rng.choice([-1.0, -1 / 3, 0.1, 1.0, *TINY], size=(n, 1)))


@kind
def leaky(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    return g.add("LeakyRelu", x, alpha=0.1)


def network_of(seed: int, names: list[str]) -> tuple[bytes, int]:
    """An ONNX file over one input and, sometimes, many pinned ones with tiny weights; and its number of inputs."""
    rng = np.random.default_rng(seed)
    inputs = int(rng.choice([1, 1, 40, 300]))
    g = Graph((1, inputs), dtype=np.float64)
    x = "x"
    if inputs > 1:
        x = g.add("MatMul", "x", np.r_[1.0, np.full(inputs - 1, rng.choice(TINY))][:, None])
    for name in names:
        x = KINDS[name](rng, g, x, int(np.exp(rng.uniform(np.log(3), np.log(300)))))
    outputs = int(rng.choice([1, 1, 100]))
    if outputs > 1:
        g.add("MatMul", x, tiny_row(rng, outputs)[None])
    elif not g.nodes:
        g.add("Identity", x)
    return g.bytes(), inputs


def box_of(rng: np.random.Generator, inputs: int) -> tuple[np.ndarray, np.ndarray]:
    low = np.r_[rng.choice([1.0, 0.1, 1.0 + 2.0**-40]), np.full(inputs - 1, rng.choice([1.0, 0.1]))]
    high = low.copy()
    high[0] *= 1 + rng.choice([0.0, 1e-15, 1e-9, 1e-4, 0.5])
    return low, high


def enclosures(content: bytes, low: np.ndarray, high: np.ndarray) -> tuple[Enclosure, Enclosure]:
    """Intervals in both arithmetics; those of layers are the float64 ones in both, so that all lines are the same."""
    made = []
    for arithmetic in (FLOAT, EXACT):
        made.append(Enclosure(read_network(content, low.size, arithmetic), arithmetic, low[None], high[None]))
    rounded, exact = made
    for layer in range(len(rounded.network.layers)):
        rounded.extend(layer)
        exact.extend(layer)
        exact.layers[layer] = tuple(rational(end) for end in rounded.layers[layer])  # type: ignore[assignment]
    for enclosure in made:
        enclosure.extend(len(enclosure.network.layers))
    return rounded, exact


def ways(rng: np.random.Generator, rounded: Enclosure, exact: Enclosure) -> tuple[Way, Way]:
    """The same lines, splits and multipliers in both arithmetics, for three rows."""
    lines = str(rng.choice(["flat", "crown", "fastlin", "stored"]))
    splits: tuple[dict[int, Splits], dict[int, Splits]] = ({}, {})
    alpha: dict[int, np.ndarray] = {}
    for layer, width in enumerate(rounded.network.widths):
        alpha[layer] = rng.uniform(size=(3, width))
        if rng.random() < 0.5:
            row, neuron = np.array([0, 2]), rng.integers(width, size=2)
            sign, beta = rng.choice([-1, 1], size=2), rng.choice([0.0, 0.1, 1 / 3, HALF, 10.0], size=2)
            splits[0][layer] = Splits(row, neuron, sign, beta)
            splits[1][layer] = Splits(row, neuron, sign, rational(beta))

    def of(enclosure: Enclosure, convert: Any) -> Any:
        def line(layer: int) -> Any:
            low, high = enclosure.layers[layer]
            made = relax(enclosure.arithmetic, low, high, lines)
            if lines != "stored":
                return made
            free = (low[0] < 0) & (high[0] > 0)
            lower = np.where(free, convert(alpha[layer]), np.repeat(made.lower, 3, 0))
            return made._replace(lower=lower)

        return line

    return Way(of(rounded, np.asarray), splits[0], None), Way(of(exact, rational), splits[1], None)


def compare(seed: int, names: list[str]) -> None:
    """Intervals hold the exact ones, and bounds are not above the exact ones."""
    rng = np.random.default_rng(seed)
    content, inputs = network_of(seed, names)
    low, high = box_of(rng, inputs)
    rounded, exact = enclosures(content, low, high)
    for i in range(len(rounded.network.ops)):
        assert all(Fraction(a) <= b for a, b in zip(rounded.low[i].flat, exact.low[i].flat, strict=True)), f"node {i}"
        assert all(Fraction(a) >= b for a, b in zip(rounded.high[i].flat, exact.high[i].flat, strict=True)), f"node {i}"
    way, same = ways(rng, rounded, exact)
    output = rounded.network.output
    start = rng.choice([1.0, -1.0, 0.1, *TINY], size=(3, rounded.network.sizes[output]))
    constant = rng.choice([0.0, 1.0, -0.1, 1e3], size=3)
    value = rounded.backward({output: start}, constant, np.zeros(3), way)
    truth = exact.backward({output: rational(start)}, rational(constant), rational(np.zeros(3)), same)
    assert np.isfinite(value).all()
    for a, b in zip(value, truth, strict=True):
        assert Fraction(a) <= b, f"{names} seed {seed}: {float(Fraction(a) - b):.3g} too high"
    scale = max(float(v.max()) for v in rounded.size) + 1e3
    assert all(float(b - Fraction(a)) <= 1e-7 * scale for a, b in zip(value, truth, strict=True))


@pytest.mark.parametrize("name", KINDS)
def test_bounds_in_float64_are_not_above_exact_ones(name: str) -> None:
    for seed in range(12):
        compare(seed, [name])


def test_bounds_of_several_kinds_in_a_row() -> None:
    for seed in range(100, 130):
        rng = np.random.default_rng(seed)
        compare(seed, [str(n) for n in rng.choice(list(KINDS), size=3)])

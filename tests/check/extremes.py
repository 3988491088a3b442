"""Bounds over networks of denormal and huge numbers do not exceed what a point of the box has, in exact arithmetic.

    python tests/check/extremes.py --minutes 10 --seed 1

Weights, boxes, rows, multipliers and planes are drawn from all of float64, up to the checker's limit; coefficients of
passes beyond it. Splits are those that the point satisfies, and bounds on layers are made as claims are shown.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from graphs import Graph, rational, values

from surebound.check.arithmetic import Arithmetic, CheckError
from surebound.check.bounds import Enclosure, Planes, Way
from surebound.check.network import read_network
from surebound.check.steps import Steps, bound

FLOAT, EXACT = Arithmetic(), Arithmetic(exact=True)
ROWS = 3
Draw = Callable[..., np.ndarray]


def drawer(rng: np.random.Generator) -> Draw:
    """Draws numbers: of all magnitudes, of one, or at the ends of a range."""
    low = float(rng.choice([-323, -320, -160, -30, -3]))
    high = max(low + 2, float(rng.choice([59, 30, 10, 2, -100])))
    style = int(rng.integers(3))

    def draw(*shape: int, most: float | None = None) -> np.ndarray:
        top = high if most is None else most
        powers = [
            rng.uniform(low, top, size=shape),
            rng.uniform(low, top) + rng.uniform(-1, 1, size=shape),
            rng.choice([low, low + 1, -160, -150, 0, top - 1, top], size=shape),
        ][style]
        root = 10.0 ** (np.minimum(powers, top) / 2)  # 10 ** -323 by itself would be rounded away
        found = rng.choice([-1, 1], size=shape) * rng.uniform(0.1, 0.99, size=shape) * root * root
        found = np.where(rng.random(shape) < 0.05, 0, found)
        return np.where(rng.random(shape) < 0.05, rng.choice([5e-324, -5e-324, 2.3e-308, 1.0], size=shape), found)

    return draw


def network(rng: np.random.Generator, draw: Draw, inputs: int) -> Graph:
    """A few operations, some of which read earlier ones."""
    graph, x, width = Graph((1, inputs), dtype=np.float64), "x", inputs
    known = [("x", inputs)]
    for _ in range(int(rng.integers(1, 7))):
        kind = str(rng.choice(["MatMul", "Add", "Relu", "Relu", "Mul", "Div", "Join", "Gather"]))
        if kind == "MatMul":
            width = int(rng.integers(1, 5))
            x = graph.add(kind, x, draw(known[-1][1], width))
        elif kind == "Relu":
            x = graph.add(kind, x)
        elif kind == "Div":
            x = graph.add(kind, x, 10.0 ** rng.uniform(-59, 59, size=(1, width)))
        elif kind == "Join":
            others = [name for name, size in known if size == width]
            x = graph.add(str(rng.choice(["Add", "Sub"])), x, str(rng.choice(others)))
        elif kind == "Gather":
            index = rng.integers(width, size=int(rng.integers(1, 6))).tolist()
            x, width = graph.add(kind, x, index, axis=1), len(index)
        else:
            x = graph.add(kind, x, draw(1, width))
        known.append((x, width))
    return graph


def splits(rng: np.random.Generator, net: Any, found: list[np.ndarray], draw: Draw) -> Way:
    """Lines, slopes, and the signs of some neurons at a point, with multipliers."""
    shape = (ROWS, net.neurons)
    before = [v for node in net.layers for v in found[net.reads[node][0]][0]]
    signs = np.array([int(rng.choice([-1, 1])) if v == 0 else 1 if v > 0 else -1 for v in before], dtype=int)
    sign = signs[None] * (rng.random(shape) < 0.4)
    special = rng.choice([0, 1, 5e-324, 1e-200], size=shape)
    alpha = np.where(rng.random(shape) < 0.3, special, rng.uniform(size=shape))
    lines = str(rng.choice(["flat", "crown", "fastlin", "stored"]))
    return Way(lines, alpha, sign, abs(draw(*shape)) * (sign != 0))


def claims(rng: np.random.Generator, enclosure: Enclosure) -> None:
    """Bounds on some layers by passes over those before."""
    net = enclosure.network
    for layer in range(len(net.layers)):
        enclosure.extend(layer)
        if rng.random() < 0.5:
            everyone, way = np.arange(net.widths[layer]), Way(str(rng.choice(["flat", "crown", "fastlin"])))
            low, high = enclosure.layers[layer]
            below, above = (enclosure.neurons(layer, everyone, side, way) for side in (1, -1))
            enclosure.learn(layer, np.maximum(low, below), np.minimum(high, -above))
    enclosure.extend(len(net.layers))


def planes(rng: np.random.Generator, enclosure: Enclosure, draw: Draw) -> dict[int, Planes]:
    """Planes above some neurons, as the checker makes them of what a file says."""
    net = enclosure.network
    chosen = [rng.permutation(width)[: int(rng.integers(width + 1))] for width in net.widths]

    def read(name: str, *_: Any) -> np.ndarray:
        layer, kind = int(name[1 : name.index("/")]), name[name.index("/") + 1 :]
        count = len(chosen[layer])
        if kind == "kappa":
            return rng.choice([0, 1, 5e-324, 0.5, rng.random()], size=(2, count))
        shape = count, int(net.sizes[0] + net.first[layer])
        weight = draw(*shape) if rng.random() < 0.5 else rng.normal(size=shape)
        return chosen[layer] if kind == "neuron" else weight * (rng.random(shape) < 0.6)

    class Said(Steps):
        def __init__(self) -> None:
            self.network, self.arithmetic, self.batch = net, enclosure.arithmetic, int(rng.integers(1, 4))

        def has(self, name: str) -> bool:
            return len(chosen[int(name[1 : name.index("/")])]) > 0

        def read(self, *given: Any) -> np.ndarray:
            return read(*given)

    return Said().planes(enclosure)


def expect_below(bounds: np.ndarray, truth: Any, tally: Counter[str]) -> None:
    for value, most in zip(bounds.tolist(), truth, strict=True):
        tally["bounds"] += 1
        if np.isfinite(value):
            tally["finite"] += 1
            tally["tight to 1e-9"] += abs(most - Fraction(value)) <= abs(most) / 10**9
            assert Fraction(value) <= most, f"{value} exceeds {most}"


def attempt(seed: int, tally: Counter[str]) -> None:
    """One network, one box, one point, and bounds of six rows."""
    rng = np.random.default_rng(seed)
    draw, inputs = drawer(rng), int(rng.integers(1, 4))
    graph, centre = network(rng, draw, inputs), draw(inputs)
    other = centre + draw(inputs) * rng.choice([0, 1], size=inputs)
    low, high = np.minimum(centre, other), np.maximum(centre, other)
    net, exact = (read_network(graph.bytes(), inputs, arithmetic) for arithmetic in (FLOAT, EXACT))
    try:
        enclosure = Enclosure(net, low[None], high[None])
        claims(rng, enclosure)
    except CheckError:
        tally["beyond the limit"] += 1
        return
    share = rational(rng.choice([0, 0, 1, 1, 0.25, 0.5], size=inputs))
    x = rational(low) + share * (rational(high) - rational(low))
    found = values(exact, x)
    for a, v, b in zip(enclosure.low, found, enclosure.high, strict=True):
        assert ((rational(a) <= v) & (v <= rational(b))).all()
    output, way = found[net.output][0], splits(rng, net, found, draw)
    if rng.random() < 0.5:
        way = way._replace(planes=planes(rng, enclosure, draw))
        tally["with planes"] += 1
    rows = rational(draw(2, len(output) + inputs + 1, most=59))
    rows = rows * (1 + rational(rng.integers(-99, 99, size=rows.shape)) / 10**18)  # decimals that float64 has not
    pi = abs(draw(ROWS, 2, most=59))
    everything = np.concatenate([output, x, [Fraction(1)]])
    expect_below(bound(enclosure, FLOAT.array(rows), pi, way), rational(pi) @ (rows @ everything), tally)
    if net.output:
        most = float(rng.choice([59, 300]))
        c, d = draw(ROWS, len(output), most=most), draw(ROWS, inputs, most=most)
        value = rational(c) @ output + rational(d) @ x
        constant = np.array([float(-v) if abs(v) < 1e300 and rng.random() < 0.5 else 1.0 for v in value])
        passed = enclosure.backward({0: d, net.output: c}, constant, np.zeros(ROWS), way)
        expect_below(passed, value + rational(constant), tally)


def run(seconds: float, first: int) -> Counter[str]:
    tally: Counter[str] = Counter()
    end, seed = time.monotonic() + seconds, first
    with np.errstate(all="ignore"):
        while time.monotonic() < end:
            try:
                attempt(seed, tally)
            except Exception as error:
                error.add_note(f"seed {seed}")
                raise
            tally["networks"] += 1
            seed += 1
    return tally


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    counts = run(60 * given.minutes, given.seed)
    sys.stdout.write(", ".join(f"{count:,} {name}" for name, count in counts.items()) + ": none too high\n")

"""Networks whose kinks lie on corners of their boxes, with weights of every size, and properties that a corner, or a
rational point of a ball, violates by less than one rounding."""

from fractions import Fraction

import numpy as np
from exact import exact_output
from verifications import region

from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.problem import Ball, Box, Domain, Region, round_down

Rng = np.random.Generator
Point = list[Fraction]
_ROUND = (0.0, 1.0, -1.0, 0.5)  # where kinks and ends of boxes meet
_SIZES = ((0, 0), (-20, 3), (-5, 60), (-320, -100))  # of weights, as powers of 10


def knot(rng: Rng) -> tuple[Network, Region]:
    """A network, and a region of which a point violates the only row by a hair."""
    inputs, size = int(rng.integers(1, 4)), _SIZES[rng.integers(len(_SIZES))]
    network = _network(rng, inputs, size)
    domain = _domain(rng, inputs)
    row = _numbers(rng, (network.outputs,), size)
    points = [_point(rng, domain) for _ in range(12)]
    values = [exact_output(network, np.array(x, dtype=object)) for x in points]
    least = min(sum((Fraction(c) * y for c, y in zip(row.tolist(), v, strict=True)), Fraction(0)) for v in values)
    return network, region(domain, row, round_down(-least))


def _numbers(rng: Rng, shape: tuple[int, ...], size: tuple[int, int]) -> np.ndarray:
    wild = rng.normal(size=shape) * 10.0 ** rng.uniform(*size, size=shape)
    return np.where(rng.random(shape) < 0.5, wild, rng.choice(_ROUND, size=shape))


def _network(rng: Rng, inputs: int, size: tuple[int, int]) -> Network:
    build = Builder((inputs,))
    node = 0
    for _ in range(int(rng.integers(0, 4))):
        read = build.shape(node)[0]
        weight = _numbers(rng, (int(rng.integers(1, 5)), read), size)
        weight[-1] = weight[0] * rng.choice([1, -1]) if rng.random() < 0.3 else weight[-1]
        knots = -(weight @ rng.choice(_ROUND, size=read))
        before = build.linear(node, weight, knots if rng.random() < 0.5 else _numbers(rng, knots.shape, size))
        after = build.leaky_relu(before, float(rng.choice([0.0, 0.0, 0.0, 0.1, -1.0, 1e-20, 1e10])))
        same = build.shape(after) == build.shape(node) and rng.random() < 0.3
        node = build.sum(node, after, signs=(1, -1)) if same else after
    if node == 0 and rng.random() < 0.2:
        return build.build(0)
    return build.build(build.linear(node, _numbers(rng, (int(rng.integers(1, 4)), build.shape(node)[0]), size)))


def _domain(rng: Rng, inputs: int) -> Domain:
    """Boxes of any width, down to none, and balls in them, around points on their borders, too."""
    start = rng.choice([*_ROUND, rng.normal(), 1e-300, 1e6], size=inputs)
    widths = [0.0, 5e-324, 1e-9, 0.5, 1.0, float(rng.random())]
    lower = start - np.where(rng.random(inputs) < 0.5, rng.choice(widths, size=inputs), 0.0)
    box = Box(lower, start + rng.choice(widths, size=inputs))
    if rng.random() < 0.6:
        return box
    centre = np.clip(
        box.lower + (box.upper - box.lower) * rng.choice([0.0, 0.5, 1.0], size=inputs), *(box.lower, box.upper)
    )
    radius = Fraction(float(rng.choice([0.0, 5e-324, 1e-160, 1e-9, 0.5, 1.0]))) / int(rng.choice([1, 3]))
    low, high = rng.choice([-np.inf, box.lower.min()]), rng.choice([np.inf, box.upper.max()])
    return Ball.around(centre, radius, "1" if rng.random() < 0.5 else "2", low=float(low), high=float(high))


def _point(rng: Rng, domain: Domain) -> Point:
    """A corner, a point at which kinks meet, or one on a ball's border, cut to its box: exactly in the domain."""
    ends = list(zip(domain.lower.tolist(), domain.upper.tolist(), strict=True))
    if isinstance(domain, Box):
        chosen = [float(rng.choice([low, high, *_ROUND])) for low, high in ends]
        return [
            min(max(Fraction(v), Fraction(low)), Fraction(high)) for v, (low, high) in zip(chosen, ends, strict=True)
        ]
    way = [Fraction(int(k), 6) for k in rng.integers(-6, 7, size=len(ends))]
    if domain.norm == "1":
        way = [v / max(sum(map(abs, way)), Fraction(1)) for v in way]
    else:  # a rational point of the sphere, seen from its pole
        square = sum((v * v for v in way[1:]), Fraction(0))
        way = [(1 - square) / (1 + square), *(2 * v / (1 + square) for v in way[1:])]
    moved = [Fraction(m) + domain.radius * v for m, v in zip(domain.centre.tolist(), way, strict=True)]
    return [min(max(v, Fraction(low)), Fraction(high)) for v, (low, high) in zip(moved, ends, strict=True)]

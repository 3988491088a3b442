"""Activations in arbitrary precision, and small networks of them with claims about them that are known to be true or
false: what tests of the table of activations share.

    python tests/curves.py --minutes 10

draws such networks for some time and asks about them.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import mpmath as mp
import numpy as np
import torch
from numpy.typing import NDArray

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.root import settle_layers
from surebound.network import ACTIVATIONS
from surebound.network.activation import Activation
from surebound.network.activations import elu, gelu_tanh
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Box, Property, Region, Verdict
from surebound.verify.clock import Clock
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.queue import Queue
from surebound.verify.spaces.inputs import InputSpace
from surebound.verify.spaces.points import PointSpace
from surebound.verify.strategy import default
from surebound.verify.tree import Tree

Number = Any  # mpmath's
CONTEXT = mp.mp.clone()
CONTEXT.dps = 60


def _elu(alpha: float) -> Callable[[Number], Number]:
    return lambda x: x if x >= 0 else alpha * CONTEXT.expm1(x)


def _gelu_tanh(k: Number, c: Number) -> Callable[[Number], Number]:
    return lambda x: x / (1 + CONTEXT.exp(-2 * k * (x + c * x**3)))


_K, _C = np.float32(0.7978845608), np.float32(0.044715)
ROWS: dict[str, Activation] = {
    **ACTIVATIONS,
    "elu-3": elu(3.0),
    "elu-negative": elu(-0.5),
    "gelu-tanh-32": gelu_tanh(float(_K), float(_C)),
}
EXACT: dict[str, Callable[[Number], Number]] = {
    "relu": lambda x: max(x, CONTEXT.mpf(0)),
    "sigmoid": lambda x: 1 / (1 + CONTEXT.exp(-x)),
    "tanh": CONTEXT.tanh,
    "erf": CONTEXT.erf,
    "softplus": lambda x: CONTEXT.log1p(CONTEXT.exp(x)) if x < 0 else x + CONTEXT.log1p(CONTEXT.exp(-x)),
    "elu": _elu(1.0),
    "elu-3": _elu(3.0),
    "elu-negative": _elu(-0.5),
    "silu": lambda x: x / (1 + CONTEXT.exp(-x)),
    "gelu": lambda x: x * CONTEXT.erfc(-x / CONTEXT.sqrt(2)) / 2,
    "gelu-tanh": _gelu_tanh(CONTEXT.sqrt(2 / CONTEXT.pi), CONTEXT.mpf("0.044715")),
    "gelu-tanh-32": _gelu_tanh(CONTEXT.mpf(float(_K)), CONTEXT.mpf(float(_C))),
    "square": lambda x: x * x,
    "cube": lambda x: x**3,
    "sign": CONTEXT.sign,
}
SLOPES: dict[str, Callable[[Number], Number]] = {
    "relu": lambda x: CONTEXT.mpf(x >= 0),
    "sigmoid": lambda x: 1 / (2 + CONTEXT.exp(x) + CONTEXT.exp(-x)),
    "tanh": lambda x: CONTEXT.sech(x) ** 2,
    "erf": lambda x: 2 / CONTEXT.sqrt(CONTEXT.pi) * CONTEXT.exp(-x * x),
    "softplus": EXACT["sigmoid"],
    "square": lambda x: 2 * x,
    "cube": lambda x: 3 * x * x,
    "sign": lambda x: CONTEXT.mpf(0),
}
"""Derivatives in closed form; those of the others are taken numerically, from 60 digits."""


def exact(name: str, x: float) -> Number:
    """f(x) to 60 digits."""
    return EXACT[name](CONTEXT.mpf(x))


def exact_slope(name: str, x: float) -> Number:
    """f'(x); at a kink, that of the right."""
    if name in SLOPES:
        return SLOPES[name](CONTEXT.mpf(x))
    if name.startswith("elu") and x >= 0:
        return CONTEXT.mpf(1)
    step = CONTEXT.mpf(10) ** -20
    return (EXACT[name](CONTEXT.mpf(x) + step) - EXACT[name](CONTEXT.mpf(x) - step)) / (2 * step)


def intervals(rng: np.random.Generator, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of widths from 1e-12 to 100, about kinks, inflection points and anywhere; some are points."""
    centre = rng.choice([0.0, 1.4142135623730951, -1.4185, 2.3994, -0.7518, *rng.normal(size=20) * 4], size=count)
    width = 10.0 ** rng.uniform(-12, 2, size=count) * (rng.random(count) > 0.05)
    share = rng.random(count)
    return torch.from_numpy(centre - share * width), torch.from_numpy(centre + (1 - share) * width)


# ---- networks


def network(rng: np.random.Generator, function: Activation, sizes: tuple[int, ...] = (2, 4, 1)) -> Network:
    """Fully connected, with an activation after all layers but the last."""
    builder, node = Builder(sizes[:1]), 0
    for k, (before, after) in enumerate(pairwise(sizes)):
        if k:
            node = builder.relu(node) if function.name == "relu" else builder.apply(node, function)
        weight = (rng.normal(size=(after, before)) * 2.0 / np.sqrt(before)).astype(np.float32)
        node = builder.linear(node, weight, (rng.normal(size=after) * 0.5).astype(np.float32))
    return builder.build(node)


@dataclass(frozen=True, eq=False)
class Case:
    """A network of two inputs and one output over a box, and the least value that an exhaustive grid finds."""

    network: Network
    box: Box
    least: float

    @staticmethod
    def drawn(
        rng: np.random.Generator, function: Activation, sizes: tuple[int, ...] = (2, 4, 1), grid: int = 65
    ) -> "Case":
        """The grid is refined around its lowest points until it does not matter any more."""
        net = network(rng, function, sizes)
        centre, width = rng.uniform(-1, 1, size=2), rng.uniform(0.2, 1.5, size=2)
        box = Box(centre - width / 2, centre + width / 2)
        low, high, least = box.lower, box.upper, np.inf
        for _ in range(6):
            axes = np.meshgrid(*(np.linspace(a, b, grid) for a, b in zip(low, high, strict=True)))
            points = np.stack(axes, -1).reshape(-1, 2)
            values = net.forward(torch.from_numpy(points)).numpy()[:, 0]
            best, reach = points[values.argmin()], (high - low) * 4 / grid
            least = min(least, float(values.min()))
            low, high = np.maximum(best - reach, box.lower), np.minimum(best + reach, box.upper)
        return Case(net, box, least)

    def region(self, margin: float) -> Region:
        """Values of at most the least one plus a margin."""
        return Region(
            box=self.box,
            on_output=np.array([[1.0]]),
            constant=np.array([-(self.least + margin)]),
            strict=np.array([False]),
        )

    def ask(self, margin: float, **options: Any) -> Verdict:
        """Whether there are such values, without any attack: bounds alone must answer."""
        model = Model(self.network, self._nothing, "test")
        return verify(model, Property((self.region(margin),), 2, 1), Options(quick_attack=None, **options))

    def proves(self, margin: float, branching: str, subproblems: int) -> bool:
        """Whether a search proves that there are none, by inputs or by neurons, with so many subproblems or a few more.

        Layers are bounded by CROWN first.
        """
        regions, strategy, clock = [self.region(margin)], default(), Clock(None)
        space: InputSpace | PointSpace
        if branching == "input":
            space = InputSpace(self.network, regions, strategy, clock)
        else:
            ends = (torch.from_numpy(end)[None] for end in (self.box.lower, self.box.upper))
            enclosure = Enclosure(self.network, *ends)
            settle_layers(enclosure, clock.check)
            space = PointSpace(enclosure, regions, strategy, clock)
        queue = Queue(2**24)
        tree = Tree(space, queue, clock, lambda points: None)
        tree.grow(lambda tree: "enough" if tree.subproblems >= subproblems else None)
        queue.close()
        return tree.proved

    def _nothing(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """A runtime that confirms no counterexample, so that `unsat` is the only way to end early."""
        return np.full((len(x), 1), np.inf, dtype=np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask about networks with all activations.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    end, seed, holds, proved = time.monotonic() + 60 * arguments.minutes, arguments.seed, 0, 0
    while time.monotonic() < end:
        for name, function in ROWS.items():
            rng = np.random.default_rng([seed, list(ROWS).index(name)])
            sizes = ((2, 4, 1), (2, 5, 5, 1), (2, 3, 3, 3, 1))[seed % 3]
            case = Case.drawn(rng, function, sizes, grid=257)
            branching = str(rng.choice(["input", "upb"]))
            if case.proves(1e-3, branching, 2000):
                raise SystemExit(f"false: {name}, seed {seed}, {sizes}, {branching}")
            holds += 1
            proved += case.ask(-1e-3, timeout=2, branching=branching).status == "unsat"
        seed += 1
    raise SystemExit(f"{holds} false claims, none proved; {proved} of as many true ones proved")


if __name__ == "__main__":
    main()

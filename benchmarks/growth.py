"""How the time of root bounds and of a bounding grows with a network: its depth, its width, its ambiguous neurons.

The networks are random, made on the spot. `run.py` runs this.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from bounding import bound, prepare
from common import markdown_table
from numpy.typing import NDArray

if TYPE_CHECKING:
    from surebound.network.model import Model

INPUTS = 64
WIDTH, DEPTH, EPS = 128, 4, 0.02
DEPTHS = (2, 4, 8, 16)
WIDTHS = (64, 128, 256, 512)
RADII = (0.005, 0.01, 0.02, 0.04)  # for ambiguous neurons; on a wider network than WIDTH
WIDE = 256
SERIES = ("depth", "width", "ambiguous neurons")


@dataclass(frozen=True, eq=False, kw_only=True)
class RandomNetwork:
    """A random network, a random point, and its class there."""

    name: str
    model: "Model"
    x: NDArray[np.float64]
    label: int


@dataclass(frozen=True, kw_only=True)
class Point:
    """What one network took."""

    series: str
    size: int  # what grows
    ambiguous: int
    root: float  # seconds
    bounding: float


def random_network(*, inputs: int, width: int, depth: int, steady: bool = False) -> RandomNetwork:
    """A network of `depth` hidden layers with three outputs. `steady`: signals keep their size from layer to layer."""
    import torch
    from torch import nn

    import surebound

    torch.manual_seed(0)
    sizes = [inputs, *[width] * depth]
    hidden = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    module = nn.Sequential(*(m for layer in hidden for m in (layer, nn.ReLU())), nn.Linear(width, 3)).eval()
    if steady:
        for layer in hidden:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    x = np.random.default_rng(0).random(inputs)
    with torch.no_grad():
        label = int(module(torch.from_numpy(x).float()).argmax())
    name = f"random {'-'.join(map(str, sizes))}-3"
    return RandomNetwork(name=name, model=surebound.load(module, input_shape=(inputs,)), x=x, label=label)


def points(rounds: int) -> Iterator[Point]:
    """All three series."""
    for depth in DEPTHS:
        yield _point("depth", depth, width=WIDTH, depth=depth, eps=EPS, rounds=rounds)
    for width in WIDTHS:
        yield _point("width", width, width=width, depth=DEPTH, eps=EPS, rounds=rounds)
    for eps in RADII:
        yield _point("ambiguous neurons", None, width=WIDE, depth=DEPTH, eps=eps, rounds=rounds)


def _point(series: str, size: int | None, *, width: int, depth: int, eps: float, rounds: int) -> Point:
    """Measure one network; without a size, it is the number of ambiguous neurons."""
    import surebound

    network = random_network(inputs=INPUTS, width=width, depth=depth, steady=True)
    problem = surebound.Robustness(network.x, network.label, eps)
    pairs = [prepare(network.name, network.model, problem) for _ in range(rounds)]
    subject, nodes = pairs[0].folded, pairs[0].folded_nodes
    bound(subject, nodes, 1)  # not counted
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        bound(subject, nodes)
        seconds.append(time.perf_counter() - begin)
    ambiguous = subject.form.neurons
    return Point(
        series=series,
        size=ambiguous if size is None else size,
        ambiguous=ambiguous,
        root=min(pair.root for pair in pairs),
        bounding=min(seconds),
    )


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """The slope of log(seconds) over log(size): the time grows as size to this power.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    slope = np.polyfit([math.log(s) for s in sizes], [math.log(t) for t in seconds], 1)[0]
    return float(slope)


def exponents(found: Sequence[Point]) -> dict[str, tuple[float, float]]:
    """Series -> the exponents of root bounds and of a bounding."""
    result = {}
    for series in dict.fromkeys(p.series for p in found):
        some = [p for p in found if p.series == series]
        sizes = [p.size for p in some]
        result[series] = exponent(sizes, [p.root for p in some]), exponent(sizes, [p.bounding for p in some])
    return result


def growth_table(found: Sequence[Point]) -> str:
    """Every network, and the exponents after each series."""
    rows: list[list[str]] = []
    for series, powers in exponents(found).items():
        for p in (p for p in found if p.series == series):
            times = [f"{1e3 * p.root:.0f}", f"{1e3 * p.bounding:.0f}"]
            rows.append([series, f"{p.size:,}", f"{p.ambiguous:,}", *times])
        rows.append([f"**{series}**", "**exponent**", "", *(f"**{power:.2f}**" for power in powers)])
    return markdown_table(["what grows", "size", "ambiguous", "root bounds ms", "bounding ms"], rows)

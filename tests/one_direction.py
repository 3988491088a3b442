"""A fuzzer of roundings that all go one way: many tiny equal summands against one large one, at every kind of node.

    python tests/one_direction.py --minutes 30 --seed 1

Each network comes with a box and a property that an end of the box violates by a hair. Bounds on its layers and on the
property, in both forms, with any splits and multipliers, are computed again in rational arithmetic
(`surebound.bounds.audit`), and the verdict must not be `unsat`.
"""

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from networks import over_arrays

from surebound.bounds.audit import auditing
from surebound.bounds.beta_crown import Duals, Splits
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import LayerBounding, fold_network, settle_layers
from surebound.bounds.zonotope import Forward
from surebound.network.build import Builder
from surebound.network.conv import Conv
from surebound.network.graph import Network, Relu
from surebound.network.linear import Linear, Scale, Shift, Sum
from surebound.network.model import Model
from surebound.network.shape import Concat, Pick, Reshape
from surebound.problem import Box, Property, Region, Verdict
from surebound.verify.clock import Clock
from surebound.verify.first import first_attempt
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.subject import Subject, specify

NODES = 3  # with splits, for each form
Rational = list[Fraction]
KINDS: dict[str, "Kind"] = {}
Kind = Callable[["Draw", Builder, int], int]
"""Appends to a network, reading a node with one element, a node with one element."""


@dataclass(frozen=True)
class Draw:
    """The random choices of one case."""

    rng: np.random.Generator

    def count(self) -> int:
        return int(np.exp(self.rng.uniform(np.log(3), np.log(400))))

    def tiny(self) -> float:
        """About half an ulp of 1, of either sign; a float32."""
        size = 2.0 ** -float(self.rng.integers(50, 58)) * (1 + self.rng.integers(0, 4) / 8)
        return float(size * self.rng.choice([-1, 1]))

    def large(self) -> float:
        return float(np.float32(self.rng.choice([1.0, -1.0, 1.5, self.rng.normal()])))

    def row(self, n: int) -> np.ndarray:
        """n equal tiny numbers, half of the time with a large one among them."""
        row = np.full(n, self.tiny())
        if self.rng.random() < 0.5:
            row[self.rng.integers(n)] = self.large()
        return row


def kind(make: Kind) -> Kind:
    KINDS[make.__name__] = make
    return make


@kind
def concat(draw: Draw, build: Builder, x: int) -> int:
    n = draw.count()
    return build.linear(build.concat([x] * n, 0), draw.row(n)[None])


@kind
def added(draw: Draw, build: Builder, x: int) -> int:
    order = [build.scale(x, draw.tiny())] * draw.count()
    if draw.rng.random() < 0.5:
        order.insert(int(draw.rng.integers(len(order) + 1)), x)
    return build.sum(*order)


@kind
def fan_out(draw: Draw, build: Builder, x: int) -> int:
    small = [build.linear(x, [[draw.tiny()]]) for _ in range(min(draw.count(), 60))]
    return build.sum(x, *small)


@kind
def picked(draw: Draw, build: Builder, x: int) -> int:
    n = draw.count()
    return build.linear(build.pick(x, np.zeros(n, dtype=np.int64)), draw.row(n)[None])


@kind
def convolved(draw: Draw, build: Builder, x: int) -> int:
    n = draw.count()
    image = build.reshape(build.pick(x, np.zeros(n, dtype=np.int64)), (1, n))
    return build.reshape(build.conv(image, draw.row(n)[None, None]), (1,))


@kind
def channels(draw: Draw, build: Builder, x: int) -> int:
    n = draw.count()
    image = build.reshape(x, (1, 1))
    return build.reshape(build.conv(build.conv(image, draw.row(n)[:, None, None]), np.ones((1, n, 1))), (1,))


@kind
def wide(draw: Draw, build: Builder, x: int) -> int:
    n = draw.count()
    return build.linear(build.linear(x, draw.row(n)[:, None]), np.ones((1, n)))


@kind
def biased(draw: Draw, build: Builder, x: int) -> int:
    n = draw.count()
    first = np.zeros((n, 1))
    first[0] = 1.0
    return build.linear(build.linear(x, first, draw.row(n)), np.ones((1, n)), [draw.large()])


@kind
def shifted(draw: Draw, build: Builder, x: int) -> int:
    for _ in range(min(draw.count(), 40)):
        x = build.linear(build.shift(x, [draw.tiny()]), [[1.0]])
    return x


@kind
def rectified(draw: Draw, build: Builder, x: int) -> int:
    """Neurons that may be active, inactive or ambiguous over a box around 1."""
    n = draw.count()
    weight = np.full((n, 1), draw.large())
    bias = -weight[:, 0] * draw.rng.choice([0.5, 1.0, 1.0, 2.0], n)
    return build.linear(build.relu(build.linear(x, weight, bias)), draw.row(n)[None])


def exact_output(network: Network, x: Rational) -> Rational:
    """f(x) in rational arithmetic."""
    values = [x]
    for node in network.nodes[1:]:
        op, read = node.op, [values[j] for j in node.inputs]
        if isinstance(op, Relu):
            out = [max(v, Fraction(0)) for v in read[0]]
        elif isinstance(op, Sum):
            signs = [Fraction(s) for s in op.signs.tolist()]
            columns = zip(*read, strict=True)
            out = [sum((s * v for s, v in zip(signs, column, strict=True)), Fraction(0)) for column in columns]
        elif isinstance(op, Concat):
            out = [v for part in read for v in part]
        elif isinstance(op, Reshape | Shift):
            out = list(read[0])
        elif isinstance(op, Pick):
            out = [Fraction(0) if i < 0 else read[0][i] for i in op.index.reshape(-1).tolist()]
        elif isinstance(op, Scale):
            out = [Fraction(w) * v for w, v in zip(op.weight.reshape(-1).tolist(), read[0], strict=True)]
        else:
            assert isinstance(op, Linear | Conv)
            out = _product(op, read[0])
        if not isinstance(op, Relu) and op.bias is not None:
            bias = op.bias.expand(op.shape).reshape(-1).tolist()
            out = [v + Fraction(b) for v, b in zip(out, bias, strict=True)]
        values.append(out)
    return values[network.output]


def _product(op: Linear | Conv, x: Rational) -> Rational:
    if isinstance(op, Linear):
        matrix = op.weight
    else:
        matrix = op.apply(torch.eye(len(x), dtype=torch.float64).reshape(-1, *op.in_shape)).flatten(1).T
    return [sum((Fraction(w) * v for w, v in zip(row, x, strict=True) if w), Fraction(0)) for row in matrix.tolist()]


@dataclass(frozen=True)
class Case:
    """A network and a property that it violates."""

    name: str
    network: Network
    region: Region


def draw_case(seed: int) -> Case:
    """Several kinds of nodes one after the other, over one varying input and sometimes many fixed ones."""
    rng = np.random.default_rng(seed)
    draw = Draw(rng)
    names = [list(KINDS)[seed % len(KINDS)], *map(str, rng.choice(list(KINDS), size=int(rng.choice([0, 0, 0, 1, 2]))))]
    pinned = draw.count() if rng.random() < 0.2 else 0
    build = Builder((1 + pinned,))
    x = build.pick(0, np.zeros(1, dtype=np.int64)) if pinned else 0
    for name in names:
        x = KINDS[name](draw, build, x)
    if pinned:
        weight = np.full((1, pinned), draw.tiny())
        x = build.sum(x, build.linear(build.pick(0, np.arange(1, pinned + 1)), weight))
    outputs = 1
    if rng.random() < 0.3:  # many outputs, most of which a row multiplies with something tiny
        outputs = draw.count()
        x = build.linear(x, np.full((outputs, 1), draw.large()))
    network = build.build(x)
    start = float(rng.choice([1.0, 1.0000000001, 0.1, 3.0]))
    lower = np.r_[start, np.full(pinned, rng.choice([1.0, 0.1]))]
    upper = lower.copy()
    upper[0] = start * (1 + rng.choice([1e-15, 1e-9, 1e-4, 0.5]))
    if pinned and rng.random() < 0.5:
        upper[1:] *= 1 + 2.0**-50
    on_output = draw.row(outputs)[None] if outputs > 1 else np.array([[draw.large()]])
    on_input = np.zeros((1, 1 + pinned))
    on_input[0, 0] = draw.large() if rng.random() < 0.8 else 0.0
    return Case("+".join(names), network, _violated(network, Box(lower, upper), on_output, on_input))


def _violated(network: Network, box: Box, on_output: np.ndarray, on_input: np.ndarray) -> Region:
    """The row with the largest constant for which some end of the box violates it."""
    values = []
    for end in (box.lower, box.upper):
        x = [Fraction(v) for v in end.tolist()]
        row = zip([*on_output[0].tolist(), *on_input[0].tolist()], [*exact_output(network, x), *x], strict=True)
        values.append(sum((Fraction(c) * v for c, v in row), Fraction(0)))
    constant = float(-min(values))
    if Fraction(constant) > -min(values):
        constant = float(np.nextafter(constant, -np.inf))
    return Region(
        box=box, on_output=on_output, on_input=on_input, constant=np.array([constant]), strict=np.array([False])
    )


def attempt(case: Case, seed: int) -> int:
    """Raises if a bound is wrong; the number of bounds that were confirmed."""
    network, region = case.network, case.region
    shape = (1, *network.input_shape)
    ends = [torch.from_numpy(end).reshape(shape) for end in (region.box.lower, region.box.upper)]
    generator = torch.Generator().manual_seed(seed)
    with auditing() as audit:
        first, second = Enclosure(network, *ends), Enclosure(network, *ends)
        settle_layers(first, lambda: None)
        folded = fold_network(second, LayerBounding(), lambda: None, known=first)
        assert folded is not None
        arrays = over_arrays(network)
        for dtype in ("float32", "float64"):
            Forward(network, dtype).tighten(Enclosure(network, *ends), until=network.output)
            thin = Enclosure(arrays, *(end.numpy() for end in ends))
            Forward(arrays, dtype).tighten(thin, until=network.output)
        for form in (GraphForm.at(first, network.output), folded):
            subject = Subject(network, form, specify(form, [region]))
            bound = subject.sound_bounds(*_drawn_nodes(subject, generator))
            if bool((bound[0] > 0).any()):
                raise AssertionError("the property is claimed to hold, but an end of the box violates it")
        silent = Model(arrays, lambda x: np.full((len(x), network.outputs), np.nan), case.name)
        prop = Property((region,), network.inputs, network.outputs)
        if isinstance(first_attempt(silent, prop, Clock(None), seconds=0.0), Verdict):
            raise AssertionError("the first attempt claims that the property holds")
    return audit.claims


def _drawn_nodes(subject: Subject, generator: torch.Generator) -> tuple[Splits, Duals]:
    """A node without splits, then some with any splits and multipliers."""
    shape = (1 + NODES, subject.form.neurons)
    signs = torch.randint(-1, 2, shape, generator=generator).to(torch.int8) * subject.relaxation.ambiguous
    signs[0] = 0
    beta = torch.rand(shape, generator=generator) * 10 ** torch.randint(-6, 7, shape, generator=generator)
    return Splits(torch.zeros(len(signs), dtype=torch.int64), signs), Duals(
        torch.rand(shape, generator=generator), beta, None
    )


def decide(case: Case, branching: str) -> None:
    """Raises if the verdict is wrong."""
    network = case.network
    model = Model(network, lambda x: network.forward(torch.from_numpy(x).double()).flatten(1).numpy(), case.name)
    options = Options(branching=branching, quick_attack=None, timeout=0.1)
    if verify(model, Property((case.region,), network.inputs, network.outputs), options).status == "unsat":
        raise AssertionError("unsat, but an end of the box violates the property")


def run(seconds: float, first_seed: int) -> tuple[int, int]:
    """Cases tried and bounds confirmed."""
    end, seed, claims = time.monotonic() + seconds, first_seed, 0
    while time.monotonic() < end:
        case = draw_case(seed)
        try:
            claims += attempt(case, seed)
            if seed % 8 == 0:
                decide(case, ("auto", "upb", "input")[seed // 8 % 3])
        except Exception as error:
            error.add_note(f"seed {seed}: {case.name}")
            raise
        seed += 1
    return seed - first_seed, claims


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases, confirmed = run(60 * given.minutes, given.seed)
    sys.stdout.write(f"{cases} cases, {confirmed} bounds confirmed, none wrong\n")

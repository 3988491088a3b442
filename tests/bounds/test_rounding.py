"""Soundness down to the last rounding: bounds and verdicts against rational arithmetic over the stored weights."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from networks import Builder, random_fc
from torch import Tensor
from verifications import model
from wild import KINDS, Rational, boxes, exact_layers, exact_nodes, points, wild_network

from surebound.attacks.pgd import PGD
from surebound.bounds import BOUNDS
from surebound.bounds.beta_crown import Duals, Slopes, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form, Rows
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.layerwise import collect
from surebound.bounds.relaxation import relax
from surebound.bounds.result import LayerBounds
from surebound.bounds.root import LayerBounding, fold_network
from surebound.network.graph import Input, Network, Node
from surebound.network.linear import Linear, Sum
from surebound.problem import Box, Property, Region
from surebound.verify.options import Options
from surebound.verify.pipeline import verify

SOUND = [name for name in BOUNDS if name != "milp"]  # which is exact up to its solver's tolerances only
BRANCHING = ("input", "upb")


def folded_layers(network: Network, lower: Tensor, upper: Tensor) -> LayerBounds:
    """The bounds on layers that a search starts from."""
    enclosure = Enclosure(network, lower, upper)
    fold_network(enclosure, LayerBounding(), lambda: None)
    return collect(enclosure)


METHODS: dict[str, Callable[[Network, Tensor, Tensor], LayerBounds]] = {
    **{name: BOUNDS[name] for name in SOUND},
    "folded": folded_layers,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", METHODS)
def test_bounds_contain_the_exact_values(method: str, kind: str, rng: np.random.Generator) -> None:
    for _ in range(6):
        low, high = boxes(rng, kind)
        network = wild_network(rng, (low + high) / 2)
        bounds = METHODS[method](network, torch.from_numpy(low)[None], torch.from_numpy(high)[None])
        for x in points(rng, low, high):
            for k, values in enumerate(exact_layers(network, x)):
                for i, value in enumerate(values):
                    assert Fraction(bounds.lower[k][0, i].item()) <= value <= Fraction(bounds.upper[k][0, i].item())


def rows_over(form: Form, network: Network, c: Tensor) -> Rows:
    """c · output as a row of either form, its error filled in."""
    if isinstance(form, FoldedForm):
        rows = form.fold({network.output: c})
    else:
        assert isinstance(form, GraphForm)
        rows = form.rows(c)
    return replace(rows, error=form.start_error(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_dual_bound_of_a_linear_network_is_its_minimum_less_rounding(kind: str, rng: np.random.Generator) -> None:
    """Over a box a linear network is least at a corner, coordinate by coordinate: Σ_i min(a_i l_i, a_i u_i) + b."""
    for _ in range(6):
        low, high = boxes(rng, kind)
        network = wild_network(rng, (low + high) / 2, relus=False)
        enclosure = Enclosure(network, torch.from_numpy(low)[None], torch.from_numpy(high)[None])
        folded = fold_network(enclosure, LayerBounding(), lambda: None)
        for form in (folded, GraphForm.at(enclosure, network.output)):
            start = rows_over(form, network, torch.eye(2, dtype=torch.float64))
            slopes = Slopes.of(relax(form.lower, form.upper), None)
            bound = evaluate(form, start, slopes, Duals(torch.zeros(2, 0, dtype=torch.float64), None, None)).bound
            offset = exact_nodes(network, [0.0] * 3)[-1]
            unit = [exact_nodes(network, np.eye(3)[i])[-1] for i in range(3)]
            sizes = exact_nodes(_bold(network), np.maximum(np.abs(low), np.abs(high)))[-1]
            for r in range(2):
                slope = [unit[i][r] - offset[r] for i in range(3)]
                ends = [(a * Fraction(v), a * Fraction(w)) for a, v, w in zip(slope, low, high, strict=True)]
                least = offset[r] + sum(min(pair) for pair in ends)
                assert Fraction(bound[r].item()) <= least
                assert float(least - Fraction(bound[r].item())) <= 1e-13 * float(sizes[r])


def _bold(network: Network) -> Network:
    """The network with absolute values of all weights."""
    nodes = []
    for node in network.nodes:
        op = node.op
        if isinstance(op, Linear):
            op = Linear(op.weight.abs(), None if op.bias is None else op.bias.abs())
        elif isinstance(op, Sum):
            op = Sum(op.signs.abs(), op.shape)
        nodes.append(replace(node, op=op))
    return Network(tuple(nodes), network.output)


@pytest.mark.parametrize(("kind", "least"), [("some fixed", 20), ("few roundings wide", 1), ("far away", 20)])
def test_folded_rows_are_exact_within_their_error(kind: str, least: int, rng: np.random.Generator) -> None:
    neurons = drawn = 0
    while drawn < 10 or neurons < least:  # so that folding meets ambiguous neurons, however a processor rounds
        assert drawn < 100
        drawn += 1
        low, high = boxes(rng, kind)
        network = wild_network(rng, (low + high) / 2)
        enclosure = Enclosure(network, torch.from_numpy(low)[None], torch.from_numpy(high)[None])
        form = fold_network(enclosure, LayerBounding(), lambda: None)
        out = form.fold({network.output: torch.eye(2, dtype=torch.float64)})
        neurons += form.neurons
        for x in points(rng, low, high):
            values = exact_layers(network, x)
            columns = [Fraction(x[i]) for i in form.free.tolist()]
            for block, layer in zip(form.blocks, values, strict=False):
                _close(Rows(block.weight, block.bias, block.error), columns, [layer[i] for i in block.index.tolist()])
                columns += [max(layer[i], Fraction(0)) for i in block.index.tolist()]
            _close(out, columns, values[-1])


def _close(rows: Rows, columns: Rational, expected: Rational) -> None:
    for c, d, error, value in zip(rows.coefficients, rows.constant, rows.error, expected, strict=True):
        terms = (Fraction(a) * v for a, v in zip(c.tolist(), columns, strict=False))
        assert abs(sum(terms, Fraction(d.item())) - value) <= Fraction(error.item())


def at_most(
    network: Network, low: Sequence[float], high: Sequence[float], constant: float, strict: bool = False
) -> Property:
    """Violated where the first output plus a constant is ≤ 0 (< 0 if strict)."""
    row = np.zeros((1, network.outputs))
    row[0, 0] = 1.0
    box = Box(np.array(low, dtype=np.float64), np.array(high, dtype=np.float64))
    region = Region(box=box, on_output=row, constant=np.array([constant]), strict=np.array([strict]))
    return Property((region,), network.inputs, network.outputs)


def status(network: Network, problem: Property, branching: str, timeout: float = 1.0) -> str:
    quick = PGD(steps=2, restarts=1)
    return verify(model(network), problem, Options(branching=branching, timeout=timeout, quick_attack=quick)).status


@pytest.mark.slow
@pytest.mark.parametrize("branching", BRANCHING)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("part", ["weight", "bias"])
@pytest.mark.parametrize("layer", [1, 3, 5])
def test_a_weight_that_is_no_number_proves_nothing(
    layer: int, part: str, value: float, branching: str, rng: np.random.Generator
) -> None:
    network = random_fc(rng, (2, 4, 3, 1))
    getattr(network.nodes[layer].op, part).view(-1)[0] = value
    problem = at_most(network, [-1.0, -1.0], [1.0, 1.0], 100.0)
    assert status(network, problem, branching, timeout=0.2) in ("unknown", "timeout")


def chain(*layers: tuple[float, float]) -> Network:
    """1 → 1 → … → 1 with the given (weight, bias)."""
    build = Builder(np.random.default_rng(0), (1,))
    node = 0
    for k, (weight, bias) in enumerate(layers):
        op = Linear(torch.tensor([[weight]], dtype=torch.float64), torch.tensor([bias], dtype=torch.float64))
        node = build.add(op, node if k == 0 else build.relu(node))
    return build.network()


@pytest.mark.parametrize("branching", BRANCHING)
def test_overflow_proves_nothing(branching: str) -> None:
    """10 layers of 1e38 exceed float64; −y + 1 ≤ 0 holds for y = 1e380."""
    network = chain(*[(2.0**126, 0.0)] * 9, (-(2.0**126), 1.0))
    assert exact_nodes(network, [1.0])[-1][0] < 0
    assert status(network, at_most(network, [1.0], [2.0], 0.0), branching, timeout=0.2) != "unsat"


@pytest.mark.parametrize("branching", BRANCHING)
def test_underflow_proves_nothing(branching: str) -> None:
    """2⁻¹¹³⁴ x is 0 in float64, but not when nine more layers multiply it by 2¹¹³⁴: y = 1 − 2¹¹⁰ (x − 2⁻¹⁰⁰) < 0."""
    network = chain(*[(2.0**-126, 0.0)] * 9, *[(2.0**126, 0.0)] * 8, (2.0**126, -(2.0**-100)), (-(2.0**110), 1.0))
    assert exact_nodes(network, [1.0])[-1][0] < 0
    assert status(network, at_most(network, [1.0], [2.0], 0.0), branching, timeout=0.2) != "unsat"


@pytest.mark.slow
@pytest.mark.parametrize("branching", BRANCHING)
@pytest.mark.parametrize("size", [2.0**30, 2.0**60, 2.0**100])
def test_cancellation_proves_nothing(size: float, branching: str, rng: np.random.Generator) -> None:
    """y = relu(s x₀ − x₁) − relu(s x₀) + ½ is −½ at (1, 1); in float32, and in float64 for the larger s, it is +½."""
    build = Builder(rng, (2,))
    hidden = build.relu(build.add(Linear(torch.tensor([[size, -1.0], [size, 0.0]], dtype=torch.float64)), 0))
    out = Linear(torch.tensor([[1.0, -1.0]], dtype=torch.float64), torch.tensor([0.5], dtype=torch.float64))
    build.add(out, hidden)
    network = build.network()
    assert model(network).replay(np.ones((1, 2), dtype=np.float32))[0, 0] == 0.5
    assert exact_nodes(network, [1.0, 1.0])[-1] == [Fraction(-1, 2)]
    assert status(network, at_most(network, [1.0, 0.9], [1.0, 1.1], 0.0), branching) != "unsat"


@pytest.mark.parametrize("branching", BRANCHING)
def test_a_threshold_at_the_optimum_is_met_unless_strict(branching: str, rng: np.random.Generator) -> None:
    """y = relu(x₀) − relu(−x₀) is least, −1, at x₀ = −1: y ≤ −1 has a counterexample and y < −1 has none."""
    build = Builder(rng, (1,))
    hidden = build.relu(build.add(Linear(torch.tensor([[1.0], [-1.0]], dtype=torch.float64)), 0))
    build.add(Linear(torch.tensor([[1.0, -1.0]], dtype=torch.float64)), hidden)
    network = build.network()
    assert status(network, at_most(network, [-1.0], [1.0], 1.0), branching) == "sat"
    assert status(network, at_most(network, [-1.0], [1.0], 1.0, strict=True), branching) != "sat"
    assert status(network, at_most(network, [-1.0], [1.0], np.nextafter(1.0, 0.0)), branching) == "sat"
    assert status(network, at_most(network, [-1.0], [1.0], 1.0 + 1e-6), branching) == "unsat"


@pytest.mark.slow
@pytest.mark.parametrize("branching", BRANCHING)
def test_thresholds_within_a_rounding_of_the_exact_value(branching: str, rng: np.random.Generator) -> None:
    """On a point the property is y(x) + c ≤ 0: proved never when it holds, whatever happens to the last bits of c."""
    proved = 0
    for _ in range(12):
        x = rng.normal(size=3)
        network = wild_network(rng, x)
        value = exact_nodes(network, x)[-1][0]
        size = float(exact_nodes(_bold(network), np.abs(x))[-1][0])
        nearest = -float(value)
        for constant in (nearest, np.nextafter(nearest, -np.inf), nearest - 1e-14 * size):
            if value + Fraction(constant) <= 0:
                assert status(network, at_most(network, x, x, float(constant)), branching, timeout=0.5) != "unsat"
        proved += status(network, at_most(network, x, x, nearest + 1e-11 * size), branching, timeout=0.5) == "unsat"
    assert proved == 12


@pytest.mark.parametrize("branching", BRANCHING)
def test_a_network_without_operations_keeps_its_rows(branching: str) -> None:
    """y = x: rows over the output and rows over the input meet at one node. −0.7331 ≤ y₀ ≤ −0.7330 can be reached."""
    network = Network((Node(Input((2,)), (), "input"),), 0)
    rows, constant = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([0.7330, -0.7331])
    box = Box(-np.ones(2), np.ones(2))
    region = Region(box=box, on_output=rows, constant=constant, strict=np.zeros(2, dtype=bool))
    assert status(network, Property((region,), 2, 2), branching) != "unsat"
    apart = replace(region, constant=np.array([0.7331, -0.7330]))
    assert status(network, Property((apart,), 2, 2), branching, timeout=60.0) == "unsat"

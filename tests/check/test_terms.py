"""How long the sums behind each error term are, and that they are paid for where nothing else would cover them."""

from fractions import Fraction

import numpy as np
import pytest
from graphs import Graph

from surebound.check.arithmetic import Arithmetic
from surebound.check.bounds import Enclosure, Way, relax
from surebound.check.network import Network, read_network
from surebound.check.ops import Conv, Linear, Mix, Op
from surebound.check.steps import bound, numbers
from surebound.check.vnnlib import read_property

FLOAT, EXACT = Arithmetic(), Arithmetic(exact=True)
CROWN = Way("crown")


def only(graph: Graph, inputs: int, kind: type[Op]) -> Op:
    (op,) = (op for op in read_network(graph.bytes(), inputs, FLOAT).ops if type(op) is kind)
    return op


def test_terms_are_the_lengths_of_sums() -> None:
    graph = Graph((1, 3))
    graph.add("MatMul", "x", np.ones((3, 50)))
    op = only(graph, 3, Linear)
    assert (op.terms, op.back) == (3, 50)
    graph = Graph((1, 4, 5, 5))
    graph.add("Conv", "x", np.ones((6, 2, 3, 2)), group=2)
    op = only(graph, 100, Conv)
    assert (op.terms, op.back) == (2 * 6, 3 * 6)
    graph = Graph((1, 3))
    graph.add("Add", graph.add("Reshape", "x", [3, 1]), np.zeros((1, 3)))
    op = only(graph, 3, Mix)
    assert (op.terms, op.back, op.moves) == (1, 3, True)
    graph = Graph((1, 3))
    graph.add("Div", "x", np.full(3, 3.0))
    op = only(graph, 3, Mix)
    assert (op.terms, op.back) == (2, 2)
    graph = Graph((1, 3))
    graph.add("Sub", "x", graph.add("Mul", "x", np.full(3, 3.0)))
    product, difference = read_network(graph.bytes(), 3, FLOAT).ops[1:]
    assert (product.terms, product.back, difference.terms, difference.back) == (1, 1, 2, 0)


def test_the_cost_of_adjoints() -> None:
    """γ |A| M, of both factors."""
    graph = Graph((1, 2))
    graph.add("MatMul", "x", np.array([[1.0, -2.0, 4.0], [-3.0, 0.0, 0.0]]))
    enclosure = Enclosure(read_network(graph.bytes(), 2, FLOAT), np.array([[-5.0, 1.0]]), np.array([[1.0, 2.0]]))
    enclosure.extend(0)
    assert enclosure.error[1] is not None
    np.testing.assert_allclose(enclosure.error[1], 3 * 2.0**-53 * np.array([[11.0, 10.0, 20.0]]), rtol=1e-6)


def chain(count: int, factor: float, kind: str) -> Graph:
    """x times a factor, many times over."""
    graph, x = Graph((1, 1), dtype=np.float64), "x"
    for _ in range(count):
        x = (
            graph.add("MatMul", x, np.array([[factor]]))
            if kind == "matmul"
            else graph.add("Mul", x, np.array([[factor]]))
        )
    return graph


def both(graph: Graph, low: float, high: float) -> list[tuple[Enclosure, Network]]:
    found = []
    for arithmetic in (FLOAT, EXACT):
        network = read_network(graph.bytes(), 1, arithmetic)
        enclosure = Enclosure(network, np.array([[low]]), np.array([[high]]))
        enclosure.extend(0)
        found.append((enclosure, network))
    return found


FACTORS = (1 + 2.0**-30 + 2.0**-50, 1 - 2.0**-31 + 2.0**-52, 1 + 3 * 2.0**-28, 1 - 5 * 2.0**-27)


def cancelled(rounded: Enclosure, exact: Enclosure, start: np.ndarray, own: np.ndarray) -> list[Fraction]:
    """How far the bounds of start·z + own·x are below the exact ones, which they must not exceed.

    The input's own coefficients cancel all but the roundings of the others: nothing is paid for what is left of them.
    """
    found = []
    for enclosure in (rounded, exact):
        ar = enclosure.arithmetic
        held, zero = {enclosure.network.output: ar.array(start), 0: ar.array(own)}, ar.array(np.zeros(len(start)))
        found.append(enclosure.backward(held, zero, zero, CROWN))
    gaps = [b - Fraction(a) for a, b in zip(*found, strict=True)]
    assert min(gaps) >= 0
    return gaps


@pytest.mark.parametrize("kind", ["matmul", "mul"])
def test_products_that_are_all_rounded_the_same_way(kind: str) -> None:
    """A factor near 1 whose powers are rounded up, or down, and again: 300 roundings of coefficients alone."""
    worst = Fraction(0)
    for factor in FACTORS:
        (rounded, _), (exact, _) = both(chain(300, factor, kind), 1.0, 1.0)
        power = 1.0
        for _ in range(300):
            power *= factor
        for sign in (1.0, -1.0):
            cancelled(rounded, exact, np.array([[sign]]), np.array([[-sign * power]]))
            worst = max(worst, sign * (Fraction(power) - Fraction(factor) ** 300))
    assert worst > 30 * Fraction(2) ** -53  # by so much it would be above without error terms


def test_joins_that_are_all_rounded_the_same_way() -> None:
    """1 + t + t + … − 1, of which each t disappears: what 200 readers of one tensor contribute."""
    graph = Graph((1, 1), dtype=np.float64)
    first = graph.add("Mul", "x", np.array([[1.0]]))  # the last one of which the coefficient is pulled back
    tiny = [graph.add("Mul", "x", np.array([[-0.9 * 2.0**-54]])) for _ in range(200)]
    total = tiny[0]
    for part in tiny[1:]:
        total = graph.add("Add", total, part)
    graph.add("Sub", graph.add("Add", "x", total), first)
    (rounded, _), (exact, _) = both(graph, 1.0, 1.0)
    assert cancelled(rounded, exact, np.ones((1, 1)), np.zeros((1, 1)))[0] < 1e-10


def test_errors_of_different_signs_do_not_cancel() -> None:
    """Two entries with opposite coefficients, both rounded 300 times."""
    for factor in FACTORS:
        graph, x = Graph((1, 2), dtype=np.float64), "x"
        for _ in range(300):
            x = graph.add("Mul", x, np.full((1, 2), factor))
        made = []
        for arithmetic in (FLOAT, EXACT):
            made.append(Enclosure(read_network(graph.bytes(), 2, arithmetic), np.ones((1, 2)), np.ones((1, 2))))
            made[-1].extend(0)
        power = 1.0
        for _ in range(300):
            power *= factor
        start = np.array([[1.0, -1.0], [-1.0, 1.0]])
        gaps = cancelled(*made, start, -power * start)
        assert min(gaps) > 300 * Fraction(2) ** -53


def test_all_readers_count() -> None:
    """y = x + 3 x − 2 x over [1, 2]."""
    graph = Graph((1, 1))
    more = graph.add("Add", "x", graph.add("Mul", "x", np.full((1, 1), 3.0)))
    graph.add("Sub", more, graph.add("Mul", "x", np.full((1, 1), 2.0)))
    for enclosure, network in both(graph, 1.0, 2.0):
        ar = enclosure.arithmetic
        for sign, expected in ((1.0, 2.0), (-1.0, -4.0)):
            value = enclosure.backward(
                {network.output: ar.array([[sign]])}, ar.array(np.zeros(1)), ar.array(np.zeros(1)), CROWN
            )
            assert float(value[0]) == pytest.approx(expected, rel=1e-14)


def test_computed_weights_carry_their_roundings() -> None:
    """Means and batch norms."""
    graph = Graph((1, 2, 4, 4))
    graph.add("AveragePool", "x", kernel_shape=[3, 3])
    assert only(graph, 32, Mix).back == 2
    graph = Graph((1, 2, 4, 4))
    graph.add("BatchNormalization", "x", *(np.full(2, v) for v in (1.0, 2.0, 3.0, 4.0)))
    assert [op.back for op in read_network(graph.bytes(), 32, FLOAT).ops[1:]] == [0, 5]


def test_error_bounds_that_underflow_meet_large_coefficients() -> None:
    """An input of 2⁻¹⁰⁷⁴ that 2000 coefficients of up to 2⁸⁰⁰ are added up for, all but one too small to be seen.

    γ · 2⁻¹⁰⁷⁴ is 0 in float64, and the large coefficient cancels with the input's own.
    """
    n, least, large = 2000, 5e-324, 2.0**800
    graph = Graph((1, 1), dtype=np.float64)
    graph.add("Add", "x", np.zeros((1, n)))
    start = np.full((1, n), -0.4 * 2.0**-53 * large)
    start[0, 0] = large
    found = []
    for enclosure, network in both(graph, least, least):
        ar = enclosure.arithmetic
        held = {network.output: ar.array(start), 0: ar.array([[-large]])}
        found.append(enclosure.backward(held, ar.array(np.zeros(1)), ar.array(np.zeros(1)), CROWN)[0])
    assert found[1] < -1e-100
    assert Fraction(found[0]) <= found[1]


def test_intercepts_of_denormal_intervals_have_room() -> None:
    """s x̂ + t is not below max(x̂, 0) where s low and (1 − s) high underflow."""
    ends = [5e-324, 1e-323, 3e-323, 1e-310, 2.5e-308]
    low, high = (np.array([[sign * end for end in row]]) for sign, row in ((-1, np.repeat(ends, 5)), (1, 5 * ends)))
    for kind in ("flat", "crown"):
        _, slope, intercept = relax(FLOAT, low, high, kind)
        for s, t, u, v in zip(*(map(Fraction, part[0]) for part in (slope, intercept, low, high)), strict=True):
            assert t >= max(-s * u, (1 - s) * v)


@pytest.mark.parametrize("end", [5e-324, 1e-200, 1e-12])
def test_neurons_that_are_open_by_little_are_open(end: float) -> None:
    for low, high in ((-end, 1.0), (-1.0, end)):
        _, slope, intercept = relax(FLOAT, np.array([[low]]), np.array([[high]]), "crown")
        assert all(slope * x + intercept >= max(x, 0.0) for x in (low, high))


def test_rows_on_an_output_that_is_the_input() -> None:
    """y − 2 x + 1.5 with y = x over [0, 1] is at least 0.5."""
    head = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))"
    problem = read_property((head + "(assert (<= (+ Y_0 (* -2 X_0) 1.5) 0))").encode())
    graph = Graph((1, 1))
    graph.add("Identity", "x")
    for enclosure, network in both(graph, 0.0, 1.0):
        ar = enclosure.arithmetic
        assert network.output == 0
        value = bound(enclosure, numbers(problem, problem.regions[0], ar), ar.array([[1.0]]), CROWN)
        assert float(value[0]) == pytest.approx(0.5, abs=1e-14)


def test_magnitudes_of_rows_are_those_of_their_box() -> None:
    """Rows ± 0.1 y that cancel but for their roundings, which are those of a large y: over the second box only."""
    head = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 1))"
    rows = "".join(f"(assert (<= (* {sign}0.1 Y_0) 0))" for sign in ("", "-") * 50)
    problem = read_property((head + rows).encode())
    graph = Graph((1, 1))
    graph.add("Mul", "x", np.float32(1))
    network = read_network(graph.bytes(), 1, FLOAT)
    enclosure = Enclosure(network, np.array([[0.0], [1e6]]), np.array([[0.0], [1e6]]))
    enclosure.extend(0)
    given = numbers(problem, problem.regions[0], FLOAT)
    small, large = bound(enclosure, given, np.ones((2, 100)), Way("crown", which=np.array([0, 1])))
    assert -1e-100 < small < 0
    assert large < -100 * 1e6 * 2.0**-53

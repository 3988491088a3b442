"""How long the sums behind each error term are, and that they are paid for where nothing else would cover them."""

from fractions import Fraction

import numpy as np
import pytest
from graphs import Graph, rational

from surebound.check.arithmetic import Arithmetic
from surebound.check.bounds import Enclosure, Way
from surebound.check.network import Network, read_network
from surebound.check.ops import Conv, Linear, Mix, Op

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
    graph.add("MatMul", "x", np.array([[1.0, -2.0, 4.0], [3.0, 0.0, 0.0]]))
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


@pytest.mark.parametrize("kind", ["matmul", "mul"])
def test_products_that_are_all_rounded_the_same_way(kind: str) -> None:
    """A factor just above 1 whose powers are rounded up again and again: 300 roundings, in the coefficients alone."""
    worst = Fraction(0)
    for factor in (1 + 2.0**-30 + 2.0**-50, 1 - 2.0**-31 + 2.0**-52, 1 + 3 * 2.0**-28, 1 - 5 * 2.0**-27):
        (rounded, network), (exact, _) = both(chain(300, factor, kind), 1.0, 1.0)
        for sign in (1.0, -1.0):
            start, zero = np.array([[sign]]), np.zeros(1)
            value = rounded.backward({network.output: start}, zero, zero, CROWN)[0]
            truth = exact.backward({network.output: rational(start)}, rational(zero), rational(zero), CROWN)[0]
            assert Fraction(value) <= truth
            plain = sign
            for _ in range(300):
                plain *= factor
            worst = max(worst, Fraction(plain) - truth)
    assert worst > 30 * Fraction(2) ** -53  # without any error term it would be above


def test_joins_that_are_all_rounded_the_same_way() -> None:
    """1 + t + t + …, of which each t disappears: what 200 readers of one tensor contribute."""
    graph = Graph((1, 1), dtype=np.float64)
    tiny = [graph.add("Mul", "x", np.array([[-0.9 * 2.0**-54]])) for _ in range(200)]
    total = tiny[0]
    for part in tiny[1:]:
        total = graph.add("Add", total, part)
    graph.add("Add", "x", total)
    (rounded, network), (exact, _) = both(graph, 1.0, 1.0)
    start, zero = np.array([[1.0]]), np.zeros(1)
    value = rounded.backward({network.output: start}, zero, zero, CROWN)[0]
    truth = exact.backward({network.output: rational(start)}, rational(zero), rational(zero), CROWN)[0]
    assert Fraction(value) <= truth


def test_errors_of_different_signs_do_not_cancel() -> None:
    """Two entries with opposite coefficients, one rounded up and one rounded down 300 times."""
    up, down = 1 + 2.0**-30 + 2.0**-50, 1 - 5 * 2.0**-27
    for factors in ((up, down), (down, up), (up, up), (down, down)):
        graph, x = Graph((1, 2), dtype=np.float64), "x"
        for _ in range(300):
            x = graph.add("Mul", x, np.array([factors]))
        found = []
        for arithmetic in (FLOAT, EXACT):
            network = read_network(graph.bytes(), 2, arithmetic)
            enclosure = Enclosure(network, np.ones((1, 2)), np.ones((1, 2)))
            enclosure.extend(0)
            start = arithmetic.array(np.array([[1.0, -1.0], [-1.0, 1.0]]))
            zero = arithmetic.zeros(2)
            found.append(enclosure.backward({network.output: start}, zero, zero, CROWN))
        assert all(Fraction(a) <= b for a, b in zip(*found, strict=True))
        assert enclosure.network.sizes[0] == 2
        cost = 300 * 2 * 2.0**-53
        assert all(float(b - Fraction(a)) > cost / 2 for a, b in zip(*found, strict=True))


def test_all_readers_count() -> None:
    """y = x + 3 x − 2 x over [1, 2]."""
    graph = Graph((1, 1))
    more = graph.add("Add", "x", graph.add("Mul", "x", np.full((1, 1), 3.0)))
    graph.add("Sub", more, graph.add("Mul", "x", np.full((1, 1), 2.0)))
    for enclosure, network in both(graph, 1.0, 2.0):
        ar = enclosure.arithmetic
        for sign, expected in ((1.0, 2.0), (-1.0, -4.0)):
            value = enclosure.backward({network.output: ar.array([[sign]])}, ar.zeros(1), ar.zeros(1), CROWN)
            assert float(value[0]) == pytest.approx(expected, rel=1e-14)


def test_computed_weights_carry_their_roundings() -> None:
    """Means and batch norms."""
    graph = Graph((1, 2, 4, 4))
    graph.add("AveragePool", "x", kernel_shape=[3, 3])
    assert only(graph, 32, Mix).back == 2
    graph = Graph((1, 2, 4, 4))
    graph.add("BatchNormalization", "x", *(np.full(2, v) for v in (1.0, 2.0, 3.0, 4.0)))
    assert [op.back for op in read_network(graph.bytes(), 32, FLOAT).ops[1:]] == [0, 5]

"""No float64 bound exceeds the exact one, where all roundings go the same way: tiny equal summands against a large one.

Each network stresses one error term: a bound without that term exceeds what the same code computes with fractions.
"""

from collections.abc import Callable
from decimal import Decimal, getcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from graphs import Graph, rational

from surebound.check.arithmetic import LIMIT, Arithmetic, CheckError
from surebound.check.bounds import Enclosure, Way, relax
from surebound.check.network import Network, read_network
from surebound.check.steps import bound, numbers
from surebound.check.vnnlib import Property, read_property

FLOAT, EXACT = Arithmetic(), Arithmetic(exact=True)
HALF = 2.0**-53  # of 1's last place: one of it is lost, and every one of many if they come one by one
CROWN = Way("crown")
TINY = [HALF, -HALF, HALF * 1.75, -HALF * 1.75, HALF / 2, -HALF / 2]


def tiny_row(rng: np.random.Generator, n: int) -> np.ndarray:
    row = np.full(n, rng.choice(TINY))
    row[rng.integers(n)] = rng.choice([1.0, -1.0, 1.5])
    return row


def repeated(g: Graph, x: str, n: int) -> str:
    """One entry in many places."""
    return g.add("Add", x, np.zeros((1, n)))


KINDS: dict[str, Callable[[np.random.Generator, Graph, str, int], str]] = {}


def kind(make: Any) -> Any:
    KINDS[make.__name__] = make
    return make


# Each reads a tensor of shape (1, 1) and returns another.


@kind
def summed(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """Many equal entries with tiny weights: long sums forward."""
    return g.add("MatMul", repeated(g, x, n), tiny_row(rng, n)[:, None])


@kind
def fanned(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """One entry that many rows read: long sums backward."""
    return g.add("MatMul", g.add("MatMul", x, tiny_row(rng, n)[None]), np.ones((n, 1)))


@kind
def convolved(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    image = g.add("Reshape", x, [1, 1, 1, 1])
    wide = g.add("Conv", image, tiny_row(rng, n)[:, None, None, None])
    return g.add("Reshape", g.add("Conv", wide, np.ones((1, n, 1, 1))), [1, 1])


@kind
def picked(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """One entry that is moved to many places: sums in the adjoint of a move."""
    row = tiny_row(rng, n)
    return g.add("MatMul", g.add("Mul", repeated(g, x, n), row[None]), np.ones((n, 1)))


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
    wide = g.add("Div", repeated(g, x, n), np.full((1, n), rng.choice([3.0, 7.0, -49.0])))
    return g.add("MatMul", wide, np.ones((n, 1)))


@kind
def averaged(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    image = g.add("Reshape", repeated(g, x, (7 * n)), [1, 1, n, 7])
    pooled = g.add("AveragePool", image, kernel_shape=[1, 7])
    return g.add("MatMul", g.add("Reshape", pooled, [1, n]), np.ones((n, 1)))


@kind
def rectified(rng: np.random.Generator, g: Graph, x: str, n: int) -> str:
    """Neurons that are active, inactive or open over a box around 1."""
    weight = rng.choice([1.0, -1.0, 3.0, 0.1], size=(1, n))
    wide = g.add("Add", g.add("MatMul", x, weight), -weight * rng.choice([0.5, 1.0, 1.0 + 2.0**-30], size=(1, n)))
    return g.add("MatMul", g.add("Relu", wide), rng.choice([-1.0, -1 / 3, 0.1, 1.0, *TINY], size=(n, 1)))


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
        made.append(Enclosure(read_network(content, low.size, arithmetic), low[None], high[None]))
    rounded, exact = made
    for layer in range(len(rounded.network.layers)):
        rounded.extend(layer)
        exact.extend(layer)
        exact.layers[layer] = tuple(rational(end) for end in rounded.layers[layer])  # type: ignore[assignment]
    for enclosure in made:
        enclosure.extend(len(enclosure.network.layers))
    return rounded, exact


def ways(rng: np.random.Generator, rounded: Enclosure) -> tuple[Way, Way]:
    """The same lines, splits and multipliers in both arithmetics, for three rows."""
    shape = (3, rounded.network.neurons)
    alpha, sign, beta = rng.uniform(size=shape), np.zeros(shape, dtype=int), np.zeros(shape)
    for first, width in zip(rounded.network.first, rounded.network.widths, strict=False):
        if rng.random() < 0.5:
            row, neuron = np.array([0, 2]), first + rng.integers(width, size=2)
            sign[row, neuron] = rng.choice([-1, 1], size=2)
            beta[row, neuron] = rng.choice([0.0, 0.1, 1 / 3, HALF, 10.0], size=2)
    lines = str(rng.choice(["flat", "crown", "fastlin", "stored"]))
    return Way(lines, alpha, sign, beta), Way(lines, rational(alpha), sign, rational(beta))


def compare(seed: int, names: list[str]) -> None:
    """Intervals hold the exact ones, and bounds are not above the exact ones."""
    rng = np.random.default_rng(seed)
    content, inputs = network_of(seed, names)
    low, high = box_of(rng, inputs)
    rounded, exact = enclosures(content, low, high)
    for i in range(len(rounded.network.ops)):
        assert all(Fraction(a) <= b for a, b in zip(rounded.low[i].flat, exact.low[i].flat, strict=True)), f"node {i}"
        assert all(Fraction(a) >= b for a, b in zip(rounded.high[i].flat, exact.high[i].flat, strict=True)), f"node {i}"
    way, same = ways(rng, rounded)
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


# ---- the parts


def test_error_terms_have_room_for_their_own_rounding() -> None:
    assert FLOAT.loss(1.0) >= 1.001
    assert FLOAT.loss(0.0) >= 2.0**-1022 * LIMIT**2 * 2**60
    assert (EXACT.loss(Fraction(1, 3)), EXACT.unit, EXACT.tiny) == (Fraction(1, 3), 0, 0)
    assert FLOAT.gamma(7) == 7 * 2.0**-53


def test_differences_are_rounded_down() -> None:
    values = np.array([1.0, 1.0, 0.1, -1e16, 0.0, np.nan, np.inf, -np.inf, 1.0, 1.0])
    errors = np.array([0.0, 2.0**-55, 1e-17, 0.3, 0.0, 0.0, 0.0, 0.0, np.inf, np.nan])
    found = FLOAT.below(values, errors)
    for value, error, low in zip(values[:5], errors[:5], found[:5], strict=True):
        assert Fraction(low) < Fraction(value) - Fraction(error)
    assert (found[5:] == -np.inf).all()


def test_intercepts_have_room_for_a_rounded_slope() -> None:
    rng = np.random.default_rng(0)
    low, high = -(10.0 ** rng.uniform(-8, 8, 3000)), 10.0 ** rng.uniform(-8, 8, 3000)
    low[:1000], high[:1000] = -rng.uniform(1, 1 + 1e-6, 1000), rng.uniform(1, 1 + 1e-6, 1000)
    for kind in ("crown", "flat"):
        _, slope, intercept = relax(FLOAT, low[None], high[None], kind)
        for i in range(len(low)):
            s, t, u, v = (Fraction(a) for a in (slope[0, i], intercept[0, i], low[i], high[i]))
            for turned in (s, min(s * (1 + Fraction(2) ** -53), Fraction(1)), s * (1 - Fraction(2) ** -53)):
                assert t >= max(-turned * u, (1 - turned) * v)


def test_the_intercept_of_exact_lines_is_tight() -> None:
    _, slope, intercept = relax(EXACT, rational([[-1.0, -0.5]]), rational([[1.0, 0.25]]), "crown")
    assert slope.tolist() == [[Fraction(1, 2), Fraction(1, 3)]]
    assert intercept.tolist() == [[Fraction(1, 2), Fraction(1, 6)]]


@pytest.mark.parametrize("arithmetic", [FLOAT, EXACT])
def test_stable_neurons_are_the_identity_or_zero(arithmetic: Arithmetic) -> None:
    low, high = arithmetic.array([[0.0, -1.0, 2.0, -2.0, 0.0]]), arithmetic.array([[1.0, 0.0, 3.0, -1.0, 0.0]])
    for kind in ("flat", "crown", "fastlin", "stored"):
        lower, slope, intercept = relax(arithmetic, low, high, kind, arithmetic.array(np.full((1, 5), 0.5)))
        assert lower.astype(float).tolist() == slope.astype(float).tolist() == [[1, 0, 1, 0, 1]]
        assert not intercept.any()


def test_the_kinds_of_lines() -> None:
    low, high, alpha = np.array([[-1.0, -1.0, -1.0]]), np.array([[1.0, 2.0, 0.5]]), np.array([[0.0, 0.25, 1.0]])
    lower, slope, intercept = (
        {kind: relax(FLOAT, low, high, kind, alpha)[i].tolist() for kind in ("flat", "crown", "fastlin", "stored")}
        for i in range(3)
    )
    line = [[0.5, 2 / 3, 0.5 / 1.5]]
    assert lower == {"flat": [[0, 0, 0]], "crown": [[0, 1, 0]], "fastlin": line, "stored": alpha.tolist()}
    assert slope == {"flat": [[0, 0, 0]], "crown": line, "fastlin": line, "stored": line}
    np.testing.assert_allclose(intercept["flat"], high, rtol=1e-14)
    np.testing.assert_allclose(intercept["crown"], line, rtol=1e-14)


def rows_of(decimals: list[str], constants: list[str]) -> tuple[Property, Network, Network]:
    """Rows with decimals that float64 does not hold, on the outputs and inputs of the identity."""
    head = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 1))(assert (<= X_0 1.5))"
    for number, constant in zip(decimals, constants, strict=True):
        head += f"(assert (<= (+ (* {number} Y_0) (* {number} X_0) {constant}) 0))"
    g = Graph((1, 1))
    g.add("Mul", "x", np.float32(-1.0))
    return read_property(head.encode()), *(read_network(g.bytes(), 1, a) for a in (FLOAT, EXACT))


def test_decimals_of_rows_are_paid_for() -> None:
    """Σ π_j (c_j y + c_j x + e_j) with y = −x, whose terms cancel but for their roundings."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        count = int(rng.integers(1, 40))
        decimals = [f"{rng.uniform(0.05, 0.2):.25f}" for _ in range(count)]
        constants = [f"{rng.choice([-1, 1]) * rng.uniform(0.05, 0.2):.25f}" for _ in range(count)]
        problem, *networks = rows_of(decimals, constants)
        pi = rng.choice([1.0, 0.1, 1 / 3, 2.0**-53], size=(4, count))
        found = []
        for arithmetic, network in zip((FLOAT, EXACT), networks, strict=True):
            lower, upper = problem.boxes[0]
            enclosure = Enclosure(network, lower[None], upper[None])
            enclosure.extend(0)
            rows = numbers(problem, problem.regions[0], arithmetic)
            found.append(bound(enclosure, rows, arithmetic.array(pi), CROWN))
        assert all(Fraction(a) <= b for a, b in zip(*found, strict=True))
        assert all(float(b) - a < 1e-12 for a, b in zip(*found, strict=True))


def test_a_row_beyond_the_limit_is_refused() -> None:
    problem, *_ = rows_of(["1" + "0" * 80], ["0"])
    with pytest.raises(CheckError, match="beyond"):
        numbers(problem, problem.regions[0], FLOAT)


@pytest.mark.parametrize("name", ["summed", "joined", "rectified", "picked"])
def test_several_boxes_at_once_give_the_bounds_of_each(name: str) -> None:
    for seed in range(4):
        rng = np.random.default_rng(seed)
        content, inputs = network_of(seed, [name, "rectified"])
        low, high = box_of(rng, inputs)
        lows, highs = np.stack([low, low * 1.5, low * 0.5]), np.stack([high + 0.5, high * 1.5, high])
        network = read_network(content, inputs, FLOAT)
        which = np.array([2, 0, 1, 0])
        start = rng.normal(size=(4, network.sizes[network.output]))
        several = Enclosure(network, lows, highs)
        several.extend(len(network.layers))
        found = several.backward({network.output: start}, np.zeros(4), np.zeros(4), Way("crown", which=which))
        for r, box in enumerate(which):
            alone = Enclosure(network, lows[[box]], highs[[box]])
            alone.extend(len(network.layers))
            expected = alone.backward({network.output: start[[r]]}, np.zeros(1), np.zeros(1), CROWN)
            assert found[r] == pytest.approx(expected[0], rel=1e-12, abs=1e-12)


def test_the_roundings_of_a_batch_norm_are_paid_for() -> None:
    """Against the same network with square roots of 60 digits."""
    getcontext().prec = 60
    n, rng = 40, np.random.default_rng(0)
    for seed in range(20):
        g = Graph((1, 1), dtype=np.float64)
        wide = g.add("Reshape", repeated(g, "x", n), [1, n, 1])
        variance = np.full(n, rng.choice([2.0, 3.0, 0.7, rng.uniform(0.1, 9)]))
        gamma = np.full(n, rng.choice([1.0, -1.0, 3.0]))
        normed = g.add("BatchNormalization", wide, gamma, np.zeros(n), np.zeros(n), variance, epsilon=1e-5)
        g.add("MatMul", g.add("Reshape", normed, [1, n]), np.ones((n, 1)))
        network = read_network(g.bytes(), 1, FLOAT)
        spread = Decimal(float(np.float32(1e-5))) + Decimal(float(variance[0]))
        truth = Fraction(Decimal(float(gamma[0])) / spread.sqrt()) * n
        enclosure = Enclosure(network, np.ones((1, 1)), np.ones((1, 1)))
        enclosure.extend(0)
        assert Fraction(enclosure.low[-1][0, 0]) <= truth <= Fraction(enclosure.high[-1][0, 0]), seed
        for sign in (1, -1):
            zero = np.zeros(1)
            value = enclosure.backward({network.output: np.array([[float(sign)]])}, zero, zero, CROWN)
            assert Fraction(value[0]) <= sign * truth


def bounded(graph: Graph, low: Any, high: Any) -> tuple[Enclosure, Enclosure]:
    """Intervals over a box in both arithmetics."""
    return enclosures(
        graph.bytes(), np.atleast_1d(np.asarray(low, dtype=float)), np.atleast_1d(np.asarray(high, dtype=float))
    )


def not_above(
    rounded: Enclosure, exact: Enclosure, start: Any, constant: float = 0.0, lines: str = "crown"
) -> Fraction:
    """The float64 bound is not above the exact one; returns how far it is below."""
    row, output = np.atleast_2d(np.asarray(start, dtype=float)), rounded.network.output
    value = rounded.backward({output: row}, np.array([constant]), np.zeros(1), Way(lines))[0]
    truth = exact.backward({output: rational(row)}, rational([constant]), rational([0.0]), Way(lines))[0]
    assert Fraction(value) <= truth
    return truth - Fraction(value)


def test_given_errors_are_subtracted() -> None:
    graph = Graph((1, 1))
    graph.add("Mul", "x", np.float32(2))
    rounded, exact = bounded(graph, 1.0, 2.0)
    start, error = np.ones((1, 1)), np.array([0.5])
    assert rounded.backward({1: start}, np.zeros(1), error, CROWN)[0] == pytest.approx(1.5, abs=0.01)
    assert exact.backward({1: rational(start)}, rational([0.0]), rational(error), CROWN)[0] == Fraction(3, 2)


def test_intervals_are_tight() -> None:
    """In exact arithmetic, the intervals of a small network by hand."""
    graph = Graph((1, 2))
    x = graph.add("Relu", graph.add("Gemm", "x", np.array([[1.0, -1.0], [2.0, 1.0]]), np.array([0.5, -3.0])))
    graph.add("Sub", graph.add("Gather", x, [1, 0], axis=1), x)
    low, high = np.array([[-1.0, 0.0]]), np.array([[1.0, 2.0]])
    rounded, exact = (Enclosure(read_network(graph.bytes(), 2, a), low, high) for a in (FLOAT, EXACT))
    rounded.extend(1)
    exact.extend(1)
    before = exact.network.reads[exact.network.layers[0]][0]
    assert [exact.low[before].tolist(), exact.high[before].tolist()] == [[[-0.5, -4]], [[5.5, 0]]]
    assert [exact.low[-1].tolist(), exact.high[-1].tolist()] == [[[-5.5, 0]], [[0, 5.5]]]
    np.testing.assert_allclose(rounded.low[-1], [[-5.5, 0]], atol=1e-12)
    np.testing.assert_allclose(rounded.high[-1], [[0, 5.5]], atol=1e-12)


def test_magnitudes_are_of_both_ends() -> None:
    graph = Graph((1, 1))
    graph.add("Mul", "x", np.float32(2))
    rounded, _ = bounded(graph, -8.0, 1.0)
    assert [float(size[0, 0]) for size in rounded.size] == [8.0, pytest.approx(16.0)]


def test_long_sums_forward() -> None:
    """1 + n tiny summands, which disappear one by one."""
    n = 400
    for row in (np.r_[1.0, np.full(n, HALF)], np.r_[1.0, np.full(n, -HALF / 2)]):
        graph = Graph((1, n + 1), dtype=np.float64)
        graph.add("MatMul", "x", row[:, None])
        bounded_by_exact(*bounded(graph, np.ones(n + 1), np.ones(n + 1)))
        graph = Graph((1, n + 1, 1, 1), dtype=np.float64)
        graph.add("Conv", "x", row[None, :, None, None])
        bounded_by_exact(*bounded(graph, np.ones(n + 1), np.ones(n + 1)))


def bounded_by_exact(rounded: Enclosure, exact: Enclosure) -> None:
    """The widening of an interval is in proportion to the length of its sums, and holds the exact one."""
    assert Fraction(rounded.low[-1][0, 0]) <= exact.low[-1][0, 0]
    assert Fraction(rounded.high[-1][0, 0]) >= exact.high[-1][0, 0]
    assert rounded.high[-1][0, 0] - rounded.low[-1][0, 0] > 2 * 400 * HALF


def test_a_large_constant_is_paid_for() -> None:
    """A constant of 1 onto which tiny numbers are added one by one."""
    graph, x = Graph((1, 1), dtype=np.float64), "x"
    for _ in range(50):
        x = graph.add("MatMul", graph.add("Add", x, np.array([[-HALF * 0.4]])), np.ones((1, 1)))
    rounded, exact = bounded(graph, 0.0, 0.0)
    assert not_above(rounded, exact, [1.0], 1.0) > 0


def test_many_inputs_are_added_up_with_their_rounding() -> None:
    """Some ones, and many tiny numbers that disappear in whatever order they are added up."""
    n, large = 4000, 64
    graph = Graph((1, n + large))
    graph.add("Identity", "x")
    low = np.r_[np.ones(large), np.full(n, -HALF * 0.4)]
    rounded, exact = bounded(graph, low, low)
    assert not_above(rounded, exact, np.ones(n + large)) > 0


def test_intercepts_are_added_up_with_their_rounding() -> None:
    """Some neurons with the intercept 1, and many with tiny ones that disappear in whatever order they are added up."""
    n, large = 4000, 64
    graph = Graph((1, n + large))
    graph.add("MatMul", graph.add("Relu", "x"), np.ones((n + large, 1)))
    high = np.r_[np.ones(large), np.full(n, HALF * 0.9)]
    rounded, exact = bounded(graph, -high, high)
    assert not_above(rounded, exact, [-1.0], lines="flat") > n * HALF


def test_repeated_entries_are_added_up() -> None:
    """An entry that is read 2000 times, by coefficients of which all but one are tiny."""
    n = 2000
    graph = Graph((1, 1), dtype=np.float64)
    repeated(graph, "x", n)
    rounded, exact = bounded(graph, 1.0, 1.0)
    for tiny in (HALF * 0.9, -HALF * 0.9):
        start = np.full(n, tiny)
        start[0] = 1.0
        assert not_above(rounded, exact, start) > 0
    pick = rounded.network.ops[1]
    assert pick.back == n
    assert rounded.error[1] is not None and float(rounded.error[1].max()) >= n * 2.0**-53


def test_a_split_counts_where_no_coefficient_arrives() -> None:
    """−β x̂ of an active neuron that the bounded output does not read."""
    graph = Graph((1, 2))
    x = graph.add("Relu", "x")
    graph.add("MatMul", x, np.array([[1.0], [0.0]]))
    for enclosure in bounded(graph, [1.0, -1.0], [2.0, 3.0]):
        ar = enclosure.arithmetic
        way = Way("crown", sign=np.array([[0, 1]]), beta=ar.array([[0.0, 2.0]]))
        value = enclosure.backward({0: ar.array([[1.0, 0.0]])}, ar.array(np.zeros(1)), ar.array(np.zeros(1)), way)
        assert float(value[0]) == pytest.approx(1 - 2 * 3)


def test_decimals_of_rows_that_cancel_are_paid_for() -> None:
    """1500 rows ± c y on an output of 1, whose sum is about 0: each c is rounded, and so is each addition."""
    head = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 1))(assert (<= X_0 1))"
    signs = ["", "-"] * 750
    rows = "".join(f"(assert (<= (+ (* {sign}0.1{i:04d} Y_0) X_0) 0))" for i, sign in enumerate(signs))
    problem = read_property((head + rows).encode())
    graph = Graph((1, 1))
    graph.add("Mul", "x", np.float32(1.5))
    found = []
    for enclosure in bounded(graph, 1.0, 1.0):
        ar = enclosure.arithmetic
        pi = ar.array(np.ones((1, 1500)))
        found.append(bound(enclosure, numbers(problem, problem.regions[0], ar), pi, CROWN)[0])
    assert Fraction(found[0]) <= found[1]
    # 1500 · (0.1 · 1.5 + 1) is the sum of all magnitudes, with and without the first part
    assert found[1] - Fraction(found[0]) > 1500 * Fraction(1500 * 1.1) * Fraction(2) ** -53


def test_decimals_of_constants_are_paid_for() -> None:
    """Thousands of constants that are all rounded up, over an output of zero."""
    up = [
        text
        for text in (f"0.{i:025d}" for i in range(10**24, 10**24 + 4000 * 7, 7))
        if Fraction(float(text)) > Fraction(text)
    ]
    rows = "".join(f"(assert (<= (+ Y_0 {text}) 0))" for text in up[:1500])
    head = "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 0))(assert (<= X_0 0))"
    problem = read_property((head + rows).encode())
    graph = Graph((1, 1))
    graph.add("Mul", "x", np.float32(2))
    found = []
    for enclosure in bounded(graph, 0.0, 0.0):
        ar = enclosure.arithmetic
        pi = ar.array(np.ones((1, len(problem.regions[0].rows))))
        found.append(bound(enclosure, numbers(problem, problem.regions[0], ar), pi, CROWN)[0])
    assert Fraction(found[0]) <= found[1]
    assert found[1] - Fraction(found[0]) > 1000 * found[1] * Fraction(2) ** -53


def test_new_bounds_tighten_what_comes_after() -> None:
    """Intervals after a layer are computed anew, and known bounds are kept where they are better."""
    graph = Graph((1, 1))
    x = graph.add("Relu", graph.add("Mul", "x", np.float32(2)))
    graph.add("Relu", graph.add("Sub", x, np.float32(1)))
    enclosure = Enclosure(read_network(graph.bytes(), 1, EXACT), -np.ones((1, 1)), np.ones((1, 1)))
    enclosure.extend(2)
    assert [[float(end[0, 0]) for end in layer] for layer in enclosure.layers] == [[-2, 2], [-1, 1]]
    enclosure.learn(1, rational([[-0.5]]), rational([[1.0]]))
    enclosure.learn(0, rational([[-2.0]]), rational([[1.5]]))
    enclosure.extend(2)
    assert [[float(end[0, 0]) for end in layer] for layer in enclosure.layers] == [[-2, 1.5], [-0.5, 0.5]]
    assert [float(enclosure.low[-1][0, 0]), float(enclosure.high[-1][0, 0])] == [0.0, 0.5]

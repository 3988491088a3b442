"""VNN-LIB reading, against a naive evaluator of formulas, exact fractions and hostile input."""

import gzip
import math
import operator
import os
import random
import re
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from surebound import limits
from surebound.errors import MissingFileError, PropertyError
from surebound.load import vnnlib1, vnnlib2
from surebound.load.vnnlib import read_property, to_property
from surebound.problem import Port, Property

SHARED = Path(os.environ.get("SUREBOUND_SHARED", Path(__file__).resolve().parents[3] / "shared"))
BENCHMARKS = SHARED / "vnncomp"
needs_benchmarks = pytest.mark.skipif(not BENCHMARKS.is_dir(), reason=f"no VNN-COMP files in {BENCHMARKS}")

DECLARED = "".join(f"(declare-const {name} Real)\n" for name in ("X_0", "X_1", "Y_0", "Y_1", "Y_2"))
UNIT_BOX = "".join(f"(assert (<= X_{i} 1.0))\n(assert (>= X_{i} -1))\n" for i in range(2))
NETWORK = (
    "(vnnlib-version <2.0>)\n(declare-network N\n(declare-input X float32 [1, 2])\n(declare-output Y float32 [3]))\n"
)
UNIT_BOX_2 = "".join(f"(assert (<= X[0,{i}] 1.0))\n(assert (>= X[0,{i}] -1.0))\n" for i in range(2))


def read(text: str, *, fast: bool = True, waiting: int = vnnlib1.WAITING, most: int = limits.NUMBERS) -> Property:
    return to_property(vnnlib1.parse(text, fast=fast, waiting=waiting), source="text", most=most)


def read_2(text: str) -> Property:
    return to_property(vnnlib2.parse(text), source="text")


def rows_of(body: str) -> tuple[list[float], list[float] | None, float, bool, bool]:
    """The only row of the only region of a body over the unit box."""
    (region,) = read(DECLARED + UNIT_BOX + body).regions
    (y,), (constant,), (strict,) = region.on_output.tolist(), region.constant.tolist(), region.strict.tolist()
    return y, None if region.on_input is None else region.on_input[0].tolist(), constant, strict, region.rounded


def assert_same(a: Property, b: Property) -> None:
    assert (a.inputs, a.outputs, len(a.regions)) == (b.inputs, b.outputs, len(b.regions))
    for p, q in zip(a.regions, b.regions, strict=True):
        assert p.rounded == q.rounded and (p.on_input is None) == (q.on_input is None)
        for name in ("on_output", "constant", "strict"):
            assert np.array_equal(getattr(p, name), getattr(q, name))
        assert p.on_input is None or np.array_equal(p.on_input, q.on_input)  # type: ignore[arg-type]
        assert p.box.lower.tobytes() == q.box.lower.tobytes() and p.box.upper.tobytes() == q.box.upper.tobytes()
    first = {id(r.box): i for i, r in reversed(list(enumerate(a.regions)))}
    second = {id(r.box): i for i, r in reversed(list(enumerate(b.regions)))}
    assert [first[id(r.box)] for r in a.regions] == [second[id(r.box)] for r in b.regions]


# ---- Rows, in the sign convention of Region ----


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("(assert (>= Y_0 Y_1))", ([-1, 1, 0], None, 0, False, False)),
        ("(assert (<= Y_2 0.5))", ([0, 0, 1], None, -0.5, False, False)),
        ("(assert (< 0.5 Y_2))", ([0, 0, -1], None, 0.5, True, False)),
        ("(assert (> Y_0 (+ Y_1 Y_2 1.5)))", ([-1, 1, 1], None, 1.5, True, False)),
        ("(assert (<= (- Y_0) (- 1 2 3)))", ([-1, 0, 0], None, 4, False, False)),
        ("(assert (<= (* 2 Y_0 3) (/ Y_1 4)))", ([6, -0.25, 0], None, 0, False, False)),
        ("(assert (<= (* -2.5e-1 (- Y_0 (* 4 X_1))) 1E1))", ([-0.25, 0, 0], [0, 1], -10, False, False)),
        ("(assert (<= (+ X_0 X_1) 1))", ([0, 0, 0], [1, 1], -1, False, False)),
        ("(assert (< X_1 0.5))", ([0, 0, 0], [0, 1], -0.5, True, False)),
        ("(assert (not (<= Y_0 Y_1)))", ([-1, 1, 0], None, 0, True, False)),
        ("(assert (not (and (< Y_0 Y_1))))", ([-1, 1, 0], None, 0, False, False)),
        ("(assert (<= Y_0 0.1))", ([1, 0, 0], None, -0.1, False, True)),
        ("(assert (<= (/ Y_0 3) 1))", ([1 / 3, 0, 0], None, -1, False, True)),
        ("(assert (<= (* 9007199254740993 Y_0) 1))", ([2.0**53, 0, 0], None, -1, False, True)),
        ("(assert (<= (+ Y_0 0.1 0.2) (+ 0.3 Y_1)))", ([1, -1, 0], None, 0, False, False)),
        ("(assert (<= (+ Y_0 Y_1 (- Y_1)) Y_2))", ([1, 0, -1], None, 0, False, False)),
    ],
)
def test_row(body: str, expected: tuple[Any, ...]) -> None:
    assert rows_of(body) == expected


def test_equality_is_two_rows_and_chains_are_pairs() -> None:
    (region,) = read(DECLARED + UNIT_BOX + "(assert (= Y_0 2))(assert (<= Y_0 Y_1 Y_2))").regions
    assert region.on_output.tolist() == [[1, 0, 0], [-1, 0, 0], [1, -1, 0], [0, 1, -1]]
    assert region.constant.tolist() == [-2, 2, 0, 0]


def test_bounds_are_intersected_and_scaled() -> None:
    text = (
        DECLARED
        + UNIT_BOX
        + "(assert (<= (* 2 X_0) 1))(assert (>= (- X_0) -0.75))(assert (= X_1 0.25))(assert (<= 0 X_0))"
    )
    (region,) = read(text).regions
    assert region.box.lower.tolist() == [0, 0.25] and region.box.upper.tolist() == [0.5, 0.25]
    assert region.on_output.shape == (0, 3) and region.on_input is None


def test_strict_bound_is_kept_as_a_row_beside_the_closed_box() -> None:
    (region,) = read(DECLARED + UNIT_BOX + "(assert (< X_0 0.5))").regions
    assert region.box.upper.tolist() == [0.5, 1]
    assert not region.holds(np.array([0.5, 0.0]), np.zeros(3))
    assert region.holds(np.array([np.nextafter(0.5, 0), 0.0]), np.zeros(3))


def test_regions_share_a_box_unless_they_bound_inputs() -> None:
    cases = "(and (<= Y_0 Y_1)) (<= Y_0 Y_2) (and (<= X_0 0.5) (<= Y_0 0)) (and (<= X_0 0.5) (>= X_0 -7) (<= Y_1 0))"
    regions = read(DECLARED + UNIT_BOX + f"(assert (or {cases} (<= X_0 2)))").regions
    assert [r.box.upper[0] for r in regions] == [1, 1, 0.5, 0.5, 1]
    assert regions[0].box is regions[1].box is regions[4].box
    assert regions[2].box is regions[3].box is not regions[0].box


def test_boxes_by_case_times_outputs_by_case() -> None:
    boxes = "(assert (or (and (>= X_0 0) (<= X_0 1) (>= X_1 0) (<= X_1 1)) (and (= X_0 3) (= X_1 4))))"
    regions = read(DECLARED + boxes + "(assert (or (<= Y_0 Y_1) (<= Y_0 Y_2)))(assert (<= Y_0 5))").regions
    assert [(r.box.lower.tolist(), r.on_output.tolist()) for r in regions] == [
        (low, [[1, 0, 0], row]) for low in ([0, 0], [3, 4]) for row in ([1, -1, 0], [1, 0, -1])
    ]
    assert len({id(r.box) for r in regions}) == 2


@pytest.mark.parametrize(
    ("body", "regions"),
    [
        ("(assert (<= X_0 -2))", 0),
        ("(assert (or (<= X_0 -2) (<= Y_0 0)))", 1),
        ("(assert (or (and (<= X_0 0) (>= X_0 0.1)) (>= X_1 3)))", 0),
        ("(assert (>= X_0 0.10000000000000000001))(assert (<= X_0 0.1))", 0),  # empty only before rounding
        ("(assert (>= X_0 0.1))(assert (<= X_0 0.1))", 1),
        ("(assert (<= 1 0))", 0),
        ("(assert (or (< 1 1) (<= Y_0 Y_0) (and (<= Y_0 0) (= 0.3 (+ 0.1 0.2)))))", 2),
        ("(assert (or false true))", 1),
    ],
)
def test_empty_and_constant_cases_are_decided_exactly(body: str, regions: int) -> None:
    assert len(read(DECLARED + UNIT_BOX + body).regions) == regions


def test_a_property_that_nothing_can_violate_says_why() -> None:
    slip = read(DECLARED + UNIT_BOX + "(assert (>= X_1 2.50))")
    assert slip.regions == () and slip.vacuous == "it asks for X_1 to be at least 2.50 and at most 1.0"
    assert read(DECLARED + UNIT_BOX + "(assert (or (<= X_0 -2) (>= X_0 3)))").vacuous == "no input keeps to any case"


@given(
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-1000, max_value=1000, places=22), st.integers(-30, 30)
)
@settings(max_examples=100, deadline=None)
def test_box_is_the_tightest_that_contains_the_decimals(decimal: Any, exponent: int) -> None:
    token = f"{decimal:f}e{exponent}"
    exact = Fraction(decimal) * Fraction(10) ** exponent
    text = f"(declare-const X_0 Real)(declare-const Y_0 Real)\n(assert (<= X_0 {token}))\n(assert (>= X_0 {token}))"
    for fast in (True, False):
        (region,) = read(text, fast=fast).regions
        low, high = float(region.box.lower[0]), float(region.box.upper[0])
        assert Fraction(math.nextafter(low, math.inf)) > exact >= Fraction(low)
        assert Fraction(math.nextafter(high, -math.inf)) < exact <= Fraction(high)


# ---- Against a naive evaluator ----

Tree = tuple[Any, ...] | str
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
    "==": operator.eq,
    "!=": operator.ne,
}
NAMES = ("X_0", "X_1", "Y_0", "Y_1", "Y_2")
NAMES_2 = dict(zip(NAMES, ("X[0,0]", "X[0,1]", "Y[0]", "Y[1]", "Y[2]"), strict=True))


def random_number(rng: random.Random) -> str:
    return rng.choice(("{:.3f}", "{:.3e}")).format(rng.randint(-8, 8) / 8)


def random_term(rng: random.Random, depth: int, division: bool = True) -> Tree:
    if depth == 0 or rng.random() < 0.4:
        return rng.choice(NAMES) if rng.random() < 0.7 else random_number(rng)
    kind = rng.choice("+-*/" if division else "+-*")
    if kind == "*":
        return (kind, *rng.sample([random_number(rng), random_term(rng, depth - 1, division)], 2))
    if kind == "/":
        return (kind, random_term(rng, depth - 1), rng.choice(("2", "-4.0", "0.5")))
    return (kind, *(random_term(rng, depth - 1, division) for _ in range(rng.randint(1 if division else 2, 3))))


def random_formula(rng: random.Random, depth: int, version: int = 1) -> Tree:
    if depth == 0 or rng.random() < 0.2:
        comparison = rng.choice(("<=", ">=", "<", ">", "=") if version == 1 else ("<=", ">=", "<", ">", "==", "!="))
        if rng.random() < 0.3:
            return (comparison, *rng.sample([rng.choice(NAMES), random_number(rng)], 2))
        return (comparison, random_term(rng, 2, version == 1), random_term(rng, 2, version == 1))
    if version == 1 and rng.random() < 0.15:
        return ("not", random_formula(rng, depth - 1))
    parts = (random_formula(rng, depth - 1, version) for _ in range(rng.randint(1, 3)))
    return (rng.choice(("and", "or")), *parts)


def evaluate(tree: Tree, values: dict[str, Fraction]) -> Any:
    """The obvious recursive meaning of an expression."""
    if isinstance(tree, str):
        return values[tree] if tree in values else Fraction(tree)
    args = [evaluate(part, values) for part in tree[1:]]
    match tree[0]:
        case "and":
            return all(args)
        case "or":
            return any(args)
        case "not":
            return not args[0]
        case "+":
            return sum(args)
        case "-":
            return args[0] - sum(args[1:]) if len(args) > 1 else -args[0]
        case "*":
            return math.prod(args)
        case "/":
            return args[0] / args[1]
    return COMPARE[tree[0]](*args)


def written(tree: Tree, names: dict[str, str] | None = None) -> str:
    if isinstance(tree, str):
        return (names or {}).get(tree, tree)
    return f"({' '.join((tree[0], *(written(part, names) for part in tree[1:])))})"


def check_against_evaluator(prop: Property, formulas: list[Tree], rng: random.Random) -> int:
    """Compare at random points, many of them on the boundaries, and count those where the formulas hold."""
    satisfied = 0
    for _ in range(25):
        point = {name: Fraction(rng.randint(-10, 10), 8) for name in NAMES}
        inside = all(abs(point[name]) <= 1 for name in NAMES[:2])
        expected = inside and all(evaluate(tree, point) for tree in formulas)
        x, y = (np.array([float(point[name]) for name in part]) for part in (NAMES[:2], NAMES[2:]))
        assert any(region.holds(x, y) for region in prop.regions) == expected
        satisfied += expected
    return satisfied


def test_formulas_mean_what_a_naive_evaluator_says() -> None:
    rng = random.Random(1)
    satisfied = 0
    for _ in range(150):
        formulas = [random_formula(rng, rng.randint(0, 3)) for _ in range(rng.randint(1, 2))]
        text = DECLARED + UNIT_BOX + "".join(f"(assert {written(tree)})\n" for tree in formulas)
        prop = read(text)
        assert not any(region.rounded for region in prop.regions)
        satisfied += check_against_evaluator(prop, formulas, rng)
        assert_same(prop, read(text, fast=False))
    assert 300 < satisfied < 3000  # both outcomes were tried


def test_long_lists_are_folded_piece_by_piece() -> None:
    """In pieces of two everything is folded, and must mean what it means when a list is applied as a whole."""
    rng = random.Random(3)
    texts = ["(<= (- Y_0 Y_1) 0)", "(<= (- Y_0 Y_1 1 X_0) (- Y_2))", "(<= (/ Y_0 2 4 8) (* 2 Y_1 3))"]
    texts += [written(random_formula(rng, 3)) for _ in range(100)]
    for text in texts:
        whole = read(f"{DECLARED}{UNIT_BOX}(assert {text})")
        assert_same(whole, read(f"{DECLARED}{UNIT_BOX}(assert {text})", waiting=2))


def test_a_difference_that_fills_its_pieces_is_not_negated() -> None:
    for count in (4095, 4096, 4097, 8191):
        y, _, constant, *_ = rows_of(f"(assert (<= (- Y_0 {'1 ' * count}) 0))")
        assert (y, constant) == ([1, 0, 0], -count)


def test_version_2_formulas_mean_what_a_naive_evaluator_says() -> None:
    pytest.importorskip("vnnlib")
    rng = random.Random(2)
    satisfied = 0
    for _ in range(100):
        formulas = [random_formula(rng, rng.randint(0, 3), version=2) for _ in range(rng.randint(1, 2))]
        text = NETWORK + UNIT_BOX_2 + "".join(f"(assert {written(tree, NAMES_2)})\n" for tree in formulas)
        satisfied += check_against_evaluator(read_2(text), formulas, rng)
    assert 200 < satisfied < 2000


def test_distribution_agrees_where_every_assert_is_a_disjunction() -> None:
    rng = random.Random(3)
    formulas: list[Tree] = [
        ("or", random_formula(rng, 0), random_formula(rng, 0), random_formula(rng, 1)) for _ in range(4)
    ]
    text = DECLARED + UNIT_BOX + "".join(f"(assert {written(tree)})" for tree in formulas)
    prop = read(text)
    assert len(prop.regions) > 27
    assert sum(check_against_evaluator(prop, formulas, rng) for _ in range(5)) > 10


# ---- The fast path ----


@pytest.mark.parametrize(
    "line",
    [
        "(assert (<= X_0 0.5))",
        "(assert (<= X_0 0.5)) ; (assert (<= X_0 0.25))",
        "; é (assert (<= X_0 0.5))\r(assert (<= X_1 0.5))",
        "(assert(<= X_0 .5))",
        "( assert ( >= X_0 -5e-1 ) )",
        "(assert (<= X_0 1e-99))(assert (>= X_0 -1E-100))",
        "(assert (<= X_0 0.5)))",
        "(assert (<= X_0 0.5)",
        "(assert (<= X_2 0.5))",
        "(assert (<= X_00 0.5))",
        "(assert (<= X_0 0.5.5))",
        "(assert (<= X_0 1e400))",
        "(assert (<= X_0 \u0661))",
        "(assert (<= X_0 1_0))",
        "(declare-const X_0 Real)",
        "(declare-const X_3 Real)",
        "(declare-const X_2 Int)",
        "(declare-fun X_2 () Real)(assert (= X_2 0))",
        "(assert (or\n(assert (<= X_0 0.5))\n))",
        "(assert (<= Y_0 0.5))",
    ],
)
def test_fast_path_is_indistinguishable(line: str) -> None:
    text = DECLARED + UNIT_BOX + line
    outcomes: list[Property | str] = []
    for fast in (True, False):
        try:
            outcomes.append(read(text, fast=fast))
        except PropertyError as error:
            outcomes.append(str(error))
    first, second = outcomes
    if isinstance(first, Property) and isinstance(second, Property):
        assert_same(first, second)
    else:
        assert first == second


# ---- Version 2.0 ----


def test_version_2_flattens_in_c_order_and_reads_exponents() -> None:
    pytest.importorskip("vnnlib")
    bounds = "".join(
        f"(assert (<= X[{i},{j},{k}] 1.5e1)) (assert (>= X[{i},{j},{k}] {i}{j}{k}e-2)); 1e2 (\n"
        for i in range(2)
        for j in range(2)
        for k in range(3)
    )
    declarations = "(declare-input X float64 [2,2,3])(declare-output Y float64 [2,1,2])"
    (region,) = read_2(network_2(declarations, bounds + "(assert (<= Y[1,0,0] 2.5))")).regions
    expected = [0, 0.01, 0.02, 0.1, 0.11, 0.12, 1, 1.01, 1.02, 1.1, 1.11, 1.12]
    assert np.allclose(region.box.lower, expected, rtol=3e-16, atol=0)
    assert region.box.upper.tolist() == [15] * 12
    assert region.on_output.tolist() == [[0, 0, 1, 0]] and region.constant.tolist() == [-2.5]


def network_2(declarations: str, body: str) -> str:
    return f"(vnnlib-version <2.0>)\n(declare-network N {declarations})\n{body}"


X2, Y3 = "(declare-input X float32 [2])", "(declare-output Y float32 [3])"
UNIT_X2 = "".join(f"(assert (<= X[{i}] 1.0))(assert (>= X[{i}] -1.0))" for i in range(2))


def test_version_2_numbers_several_inputs_and_outputs_as_they_are_declared() -> None:
    pytest.importorskip("vnnlib")
    declarations = (
        "(declare-input B float32 [2, 2])(declare-input A real [])(declare-input C float64 [3])"
        "(declare-output Z float32 [2])(declare-output Y float32 [1, 3])"
    )
    names = [*(f"B[{i},{j}]" for i in range(2) for j in range(2)), "A", *(f"C[{i}]" for i in range(3))]
    bounds = "".join(f"(assert (<= {name} {i}.5))(assert (>= {name} -{i}.0))" for i, name in enumerate(names))
    rows = "(assert (<= Z[1] 7.0))(assert (<= (+ Y[0,2] (* 2.0 B[1,0])) Z[0]))"
    prop = read_2(network_2(declarations, bounds + rows))
    (region,) = prop.regions
    assert (prop.inputs, prop.outputs) == (8, 5)
    assert region.box.lower.tolist() == [-i for i in range(8)]
    assert region.box.upper.tolist() == [i + 0.5 for i in range(8)]
    assert region.on_output.tolist() == [[0, 1, 0, 0, 0], [-1, 0, 0, 0, 1]] and region.constant.tolist() == [-7, 0]
    assert region.on_input is not None and region.on_input.tolist() == [[0.0] * 8, [0, 0, 2, 0, 0, 0, 0, 0]]
    assert prop.ports is not None
    assert prop.ports.inputs == (Port("B", (2, 2), "float32"), Port("A", (), "real"), Port("C", (3,), "float64"))
    assert prop.ports.outputs == (Port("Z", (2,), "float32"), Port("Y", (1, 3), "float32"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NETWORK, "line 4: expected VNN-LIB 2.0, got the end of the file"),
        (NETWORK + "(assert (<= Y[3] 1.0))", "line 5.*Index 3 is out of bounds"),
        (NETWORK + "(assert (<= Z[0] 1.0))", "line 5: Undeclared variable 'Z"),
        (NETWORK + "(assert (<= Y[0] 1))", "line 5.*1"),
        (NETWORK + "(assert (<= (* Y[0] Y[1]) 1.0))", "line 5: .*product of variables"),
        (NETWORK + "\n(assert (<= Y[0] 1.0e400))", "line 6: .*range of float64"),
        (NETWORK + "(assert (<= Y[0] 1e999999999))", "range of float64"),
        (NETWORK + f"(assert (<= Y[0] {'9' * 500}.0))", "cannot read"),
        (NETWORK + f"(assert (<= Y[0] {'9' * 30}))", "cannot read"),
        (NETWORK + "(assert (<= Y[0] é))", "cannot read|got"),
        (NETWORK + f"(assert {'(and ' * 300_000}(<= Y[0] 1.0){')' * 300_000})", "line 5: .*1000 nested"),
        (NETWORK + "(assert (<= Y[0] 1.0))", r"X\[0, 0\] has no lower bound"),
        (NETWORK + "(assert (<= Y[0] 1.0)) )", r"line 5: .*got '\)'"),
        ("(vnnlib-version <3.0>)" + NETWORK[22:] + "(assert (<= Y[0] 1.0))", "version"),
        (network_2(X2 + X2.replace("X", "Z") + Y3, "(assert (<= Y[0] 1.0))"), r"X\[0\] has no lower bound"),
        (network_2(X2 + X2.replace("X", "Z") + Y3, UNIT_X2 + "(assert (<= Y[0] 1.0))"), r"Z\[0\] has no lower bound"),
        (network_2(X2.replace("]", '] "x"') + Y3, "(assert (<= Y[0] 1.0))"), "line 2: expected VNN-LIB 2.0"),
        (network_2("".join(X2.replace("X", f"X{i}") for i in range(1025)) + Y3, "(assert (<= Y[0] 1.0))"), "1,024"),
        (network_2(X2 + '(declare-hidden H float32 [2] "h")' + Y3, "(assert (<= H[0] 1.0))"), "hidden node H"),
        (network_2(X2.replace("float32", "int8") + Y3, "(assert (<= Y[0] 1.0))"), "real type, got I8"),
        (network_2(X2.replace("2]", "99999,99999]") + Y3, "(assert (<= Y[0] 1.0))"), "at most 16,777,216"),
        *((NETWORK + f"(assert (<= X[0,{i}] 1.0))", "line 5: .*indices") for i in ("-1", "0.5", "1e0", "-0", "+1", "")),
        (NETWORK + "(assert (<= Y[-1] 1.0))", r"line 5: .*indices, got '\[-1\]'"),
        (NETWORK + "(assert (<= Y[0", r"line 5: .*indices, got '\[0'"),
        (network_2(X2.replace("2", "2.5") + Y3, "(assert (<= Y[0] 1.0))"), "line 2: .*indices"),
        ("(vnnlib-version", "."),
    ],
)
def test_version_2_errors(text: str, message: str) -> None:
    pytest.importorskip("vnnlib")
    with pytest.raises(PropertyError, match=message):
        read_2(text)


def test_version_2_keeps_all_digits() -> None:
    """With an exponent, too, which its package does not read."""
    number = "-1.23456789012345678901234567890e-5"
    (first,) = read(DECLARED + UNIT_BOX + f"(assert (<= (+ X_0 Y_0) {number}))(assert (<= X_1 {number}))").regions
    (second,) = read_2(
        NETWORK + UNIT_BOX_2 + f"(assert (<= (+ X[0,0] Y[0]) {number}))(assert (<= X[0,1] {number}))"
    ).regions
    assert first.box.upper.tolist() == second.box.upper.tolist() == [1.0, float(number)]
    assert Fraction(number) <= Fraction(float(number))
    assert first.constant.tolist() == second.constant.tolist() == [-float(number)]


def test_several_networks_are_refused() -> None:
    pytest.importorskip("vnnlib")
    second = NETWORK[22:].replace("N\n", "M\n").replace("X", "V").replace("Y", "W")
    with pytest.raises(PropertyError, match="one network, got 2"):
        read_2(NETWORK + second + "(assert (<= Y[0] 1.0))")


# ---- Errors ----


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no variable X_0 is declared"),
        ("; only a comment", "no variable X_0 is declared"),
        ("(declare-const X_0 Real)", "no variable Y_0"),
        ("hello", r"line 1: expected '\(', got 'hello'"),
        (DECLARED, "X_0 has no lower bound"),
        (DECLARED + UNIT_BOX.replace("(assert (>= X_1 -1))", ""), "X_1 has no lower bound"),
        (DECLARED + "(assert (= X_0 0))(assert (or (= X_1 0) (<= X_1 1)))", "X_1 has no lower bound"),
        (DECLARED + "\n(assert (<= Y_7 0))", "line 7: Y_7 is used but not declared"),
        (DECLARED + "(declare-const X_3 Real)", "X_3 is declared, but X_2 is not"),
        (DECLARED + "(declare-const Y_999999999 Real)", "Y_999999999 is declared, but Y_3 is not"),
        (DECLARED + "(declare-const X_1 Real)", "line 6: X_1 is declared twice"),
        (DECLARED + "(declare-const Z_1 Real)", "line 6: expected a variable such as X_0"),
        (DECLARED + "(declare-const X_2 Int)", "line 6: expected 'Real', got 'Int'"),
        (DECLARED + "(define-fun f)", "line 6: expected declare-const, declare-fun or assert, got 'define-fun'"),
        (DECLARED + "\n(assert (<= X_0 1.0)", r"line 7: expected '\)', got the end of the file"),
        (DECLARED + "\n(assert (<= X_0 ", "line 7: expected an expression, got the end"),
        (DECLARED + "(assert (<= X_0 1.0))\n)", r"line 7: expected '\(', got '\)'"),
        (DECLARED + "(assert)", "line 6: expected an expression"),
        (DECLARED + "(assert ())", "line 6: expected an operator"),
        (DECLARED + "(assert 1.0)", "line 6: expected a formula"),
        (DECLARED + "(assert (and 1.0))", "line 6: 'and' takes formulas"),
        (DECLARED + "(assert (+ 1.0 (<= 1 2)))", r"line 6: '\+' takes numbers"),
        (DECLARED + "(assert (<= 1.0))", "line 6: '<=' takes 2 or more arguments, got 1"),
        (DECLARED + "(assert (not (<= 1 2) (<= 1 2)))", "line 6: 'not' takes 1 arguments, got 2"),
        (DECLARED + "(assert (and))", "line 6: 'and' takes 1 or more arguments, got 0"),
        (DECLARED + "(assert (=> (<= 1 2) (<= 1 2)))", "line 6: expected an operator out of .*got '=>'"),
        (DECLARED + "(assert (<= X_0 abc))", "line 6: expected a number or a declared variable, got 'abc'"),
        (DECLARED + "(assert (<= X_0 nan))", "line 6: expected a number"),
        (DECLARED + "(assert (<= X_0 Infinity))", "line 6: expected a number"),
        (DECLARED + "(assert (<= X_0 0x10))", "line 6: expected a number"),
        (DECLARED + "(assert (<= X_0 1e400))", "line 6: expected a number in the range of float64, got '1e400'"),
        (DECLARED + "(assert (<= X_0 1e999999999))", "range of float64, got '1e999999999'"),
        (DECLARED + "(assert (<= X_0 1e-99999999999999999999))", "range of float64"),
        (DECLARED + f"(assert (<= X_0 0.{'1' * 5000}))", "at most 1200 digits"),
        (DECLARED + "(assert (<= X_0 1.8e308))(assert (>= X_0 0))", "outside the range of float64"),
        (DECLARED + UNIT_BOX + "(assert (<= (* 1e300 Y_0 1e300) 1))", "outside the range of float64"),
        (DECLARED + UNIT_BOX + "(assert (<= Y_0 1e-350))", "too small for float64"),
        (DECLARED + f"(assert (<= (* Y_0 {'1e300 ' * 1000}) 1))", "line 6: .*more than 8192 bits"),
        (DECLARED + "(assert (<= (* Y_0 Y_1) 1))", "line 6: .*product of variables"),
        (DECLARED + "(assert (<= (/ 1 Y_1) 1))", "line 6: .*division by a variable"),
        (DECLARED + "(assert (<= (/ Y_1 (- 1 1)) 1))", "line 6: division by zero"),
        (DECLARED + f"(assert {'(and ' * 5000}", "line 6: expected at most 1000 nested"),
        (DECLARED + "(assert (or (<= Y_0 0) (<= Y_1 0)))" * 30, "more than 1,000,000 rows"),
        (DECLARED + f"(assert (not (or {'(= Y_0 Y_1)' * 40})))", "line 6: .*more than 1,000,000 rows"),
        (DECLARED + UNIT_BOX + "(assert (<= Y_0 0))" * 2000 + f"(assert (or {'(<= Y_1 0)' * 2000}))", "1,000,000 rows"),
    ],
)
def test_errors_name_the_line_and_what_was_expected(text: str, message: str) -> None:
    for fast in (True, False):
        with pytest.raises(PropertyError, match=message):
            read(text, fast=fast)


def test_nesting_up_to_the_limit_is_fine() -> None:
    text = DECLARED + UNIT_BOX + f"(assert {'(and (<= Y_0 0) ' * 999}(<= Y_1 {'(- ' * 500}2{')' * 500}){')' * 999})"
    with pytest.raises(PropertyError, match="nested"):
        read(text)
    text = DECLARED + UNIT_BOX + f"(assert {'(and (<= Y_0 0) ' * 600}(<= Y_1 {'(- ' * 99}2{')' * 99}){')' * 600})"
    (region,) = read(text).regions
    assert region.on_output.shape == (601, 3) and region.constant[-1] == 2


# ---- Files ----


def test_file_forms(tmp_path: Path) -> None:
    text = DECLARED + UNIT_BOX + "(assert (<= Y_0 Y_1))"
    expected = read(text)
    plain, unpacked = tmp_path / "p.vnnlib", "﻿" + text.replace("\n", "\r\n")
    for data in (
        text.encode(),
        unpacked.encode(),
        gzip.compress(text.encode()),
        f"; caf\xe9\n{text}".encode("latin-1"),
    ):
        plain.write_bytes(data)  # gzip is recognised by its content
        assert_same(read_property(plain), expected)
        assert read_property(str(plain)).source == str(plain)
    plain.write_bytes(gzip.compress(text[:100].encode()) + gzip.compress(text[100:].encode()))
    assert_same(read_property(plain), expected)


def test_version_2_is_recognised_by_its_first_command(tmp_path: Path) -> None:
    pytest.importorskip("vnnlib")
    path = tmp_path / "p.vnnlib"
    path.write_text("; a comment\n" + NETWORK + UNIT_BOX_2 + "(assert (<= Y[0] Y[1]))")
    assert_same(read_property(path), read(DECLARED + UNIT_BOX + "(assert (<= Y_0 Y_1))"))
    path.write_bytes(path.read_bytes() + b"\0(assert (<= Y[0] 0.0))")
    with pytest.raises(PropertyError, match="binary"):
        read_property(path)


def test_unreadable_files(tmp_path: Path) -> None:
    for missing in (tmp_path / "none.vnnlib", tmp_path, "a\0b"):
        with pytest.raises(MissingFileError, match="cannot read the property"):
            read_property(missing)
    path = tmp_path / "p.vnnlib.gz"
    packed = gzip.compress((DECLARED + UNIT_BOX).encode())
    for data, message in (
        (packed[:-20], "cut short"),
        (packed[:5], "cut short"),
        (b"\x00\x01\xff", "binary"),
        (b"", "X_0"),
    ):
        path.write_bytes(data)
        with pytest.raises(PropertyError, match=f"{re.escape(str(path))}.*{message}"):
            read_property(path)


def test_decompression_is_capped(tmp_path: Path) -> None:
    path = tmp_path / "bomb.vnnlib.gz"
    path.write_bytes(gzip.compress(b" " * 2**21))
    with pytest.raises(PropertyError, match="at most 1 MiB"):
        read_property(path, most=2**20)


def test_size_is_capped() -> None:
    read(DECLARED + UNIT_BOX + "(assert (<= Y_0 0))" * 6, most=20)
    for body in ("(assert (<= Y_0 0))" * 7, "(assert (<= (+ Y_0 X_0) 0))" * 5):
        with pytest.raises(PropertyError, match="more than 20 numbers"):
            read(DECLARED + UNIT_BOX + body, most=20)
    with pytest.raises(PropertyError, match="more than 20 numbers"):
        read(DECLARED + UNIT_BOX + f"(assert (or {' '.join(f'(<= X_0 0.{i})' for i in range(9))}))", most=20)


def mutations(data: bytes, rng: random.Random, count: int) -> list[bytes]:
    """Cut at every few bytes, and with random bytes changed, removed or doubled."""
    cuts = [data[:end] for end in range(0, len(data), max(1, len(data) // count))]
    changed = []
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(copy))
            match rng.randrange(4):
                case 0:
                    copy[at] = rng.randrange(256)
                case 1:
                    copy[at] ^= 1 << rng.randrange(8)
                case 2:
                    del copy[at : at + rng.randint(1, 9)]
                case _:
                    copy[at:at] = copy[at : at + rng.randint(1, 30)]
        changed.append(bytes(copy))
    return cuts + changed


@pytest.mark.parametrize("version", [1, 2])
def test_damaged_files_raise_property_errors_only(version: int, tmp_path: Path) -> None:
    if version == 2:
        pytest.importorskip("vnnlib")
    rng = random.Random(version)
    formulas = [random_formula(rng, depth, version) for depth in (0, 1, 2)]
    head, names = (DECLARED + UNIT_BOX, None) if version == 1 else (NETWORK + UNIT_BOX_2, NAMES_2)
    text = head + "".join(f"(assert {written(tree, names)}) ; comment\n" for tree in formulas)
    path = tmp_path / "p.vnnlib"
    packed = [gzip.compress(text.encode()[: 7 * i]) for i in range(20)]
    for data in mutations(text.encode(), rng, 150) + mutations(gzip.compress(text.encode()), rng, 40) + packed:
        path.write_bytes(data)
        try:
            assert isinstance(read_property(path), Property)
        except PropertyError as error:
            assert str(path) in str(error) and "\n" not in str(error)


def test_no_torch_and_no_vnnlib_package_until_needed() -> None:
    code = "import sys, surebound.load.vnnlib; sys.exit('torch' in sys.modules or 'vnnlib' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode == 0


# ---- VNN-COMP benchmarks ----


def benchmark(name: str) -> Path:
    path = BENCHMARKS / name
    if not path.is_file():
        pytest.skip(f"no file {path}")
    return path


@needs_benchmarks
@pytest.mark.parametrize("number", [1, 2, 3])
def test_both_versions_of_acasxu_properties_are_identical(number: int) -> None:
    pytest.importorskip("vnnlib")
    old = read_property(benchmark(f"acasxu/vnnlib/prop_{number}.vnnlib.gz"))
    assert (old.inputs, old.outputs, len(old.regions)) == (5, 5, 1)
    assert_same(old, read_property(benchmark(f"acasxu_vnnlib2/prop_{number}.vnnlib.gz")))


@needs_benchmarks
def test_acasxu_numbers() -> None:
    (region,) = read_property(benchmark("acasxu/vnnlib/prop_1.vnnlib.gz")).regions
    assert region.on_output.tolist() == [[-1, 0, 0, 0, 0]] and region.constant.tolist() == [3.991125645861615]
    assert region.rounded
    assert np.allclose(region.box.lower, [0.6, -0.5, -0.5, 0.45, -0.5], rtol=2e-16, atol=0)
    assert np.allclose(region.box.upper, [0.679857769, 0.5, 0.5, 0.5, -0.45], rtol=2e-16, atol=0)
    pytest.importorskip("vnnlib")
    regions = read_property(benchmark("acasxu_vnnlib2/prop_7.vnnlib.gz")).regions
    assert regions[0].box is regions[1].box
    for region, least in zip(regions, (3, 4), strict=True):
        expected = np.zeros((3, 5))
        expected[:, least] = 1
        expected[range(3), range(3)] = -1
        assert np.array_equal(region.on_output, expected) and not region.constant.any() and not region.rounded


@needs_benchmarks
def test_a_large_file_by_a_naive_line_reader_and_by_both_paths() -> None:
    paths = sorted((BENCHMARKS / "oval21" / "vnnlib").glob("*.gz"))
    if not paths:
        pytest.skip("no oval21 files")
    text = gzip.decompress(paths[0].read_bytes()).decode()
    prop = read_property(paths[0])
    assert (prop.inputs, prop.outputs, len(prop.regions)) == (3072, 10, 9)
    assert len({id(region.box) for region in prop.regions}) == 1
    box = prop.regions[0].box
    seen = 0
    for line in text.splitlines():
        words = line.replace("(", " ").replace(")", " ").split()
        if words[:1] == ["assert"] and len(words) == 4:
            i, exact = int(words[2][2:]), Fraction(words[3])
            if words[1] == "<=":
                assert Fraction(np.nextafter(box.upper[i], -np.inf)) < exact <= Fraction(box.upper[i])
            else:
                assert Fraction(box.lower[i]) <= exact < Fraction(np.nextafter(box.lower[i], np.inf))
            seen += 1
    assert seen == 2 * 3072
    label = int(np.argmax(prop.regions[0].on_output[0]))
    others = [int(np.argmin(region.on_output[0])) for region in prop.regions]
    assert others == [i for i in range(10) if i != label]
    assert_same(prop, read(text, fast=False))


@needs_benchmarks
def test_every_benchmark_reads() -> None:
    paths = sorted(path for folder in BENCHMARKS.glob("*/vnnlib") for path in folder.iterdir())[::4]
    assert paths
    for path in paths:
        prop = read_property(path)
        assert prop.regions and not any(region.box.empty for region in prop.regions)

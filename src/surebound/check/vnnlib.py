"""Reads VNN-LIB 1.0, and of 2.0 what is about one network, as regions: boxes, and rows that must all hold there.

A row (terms, constant, strict) means Σ terms[v] v + constant ≤ 0 (< 0 if strict), over inputs v ≥ 0 and outputs ~v < 0.
Proofs treat a strict row as if it were not: no point satisfies even the weaker one.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from math import inf, nextafter, prod
from typing import NamedTuple

import numpy as np

from surebound.check.arithmetic import LIMIT, Array, CheckError

ROWS = 1_000_000  # in disjunctive normal form
NUMBERS = 2**26  # ends of all boxes
_TOKENS = re.compile(r";[^\r\n]*|([()]|[^ \t\r\n\f();]+)")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_PLAIN = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})", re.ASCII)
_INDEXED = re.compile(r"(\w+)\[([0-9]{1,9}(?:,[0-9]{1,9})*)\]", re.ASCII)

Terms = dict[int, Fraction]


class Row(NamedTuple):
    """See above; as a number, the sum itself."""

    terms: Terms
    constant: Fraction
    strict: bool = False


class Formula(NamedTuple):
    """All rows of common hold, and all rows of at least one case."""

    common: tuple[Row, ...] = ()
    cases: tuple[tuple[Row, ...], ...] = ((),)


class Region(NamedTuple):
    """One way to violate a property. `box` is its number; `empty` says that no input lies between the exact ends."""

    box: int
    empty: bool
    rows: tuple[Row, ...]


class Property(NamedTuple):
    """All the ways to violate it, in the order of the file; the ends of boxes are float64, rounded outward."""

    regions: list[Region]
    boxes: list[tuple[Array, Array]]
    inputs: int
    outputs: int


def read_property(content: bytes) -> Property:
    """The regions of a VNN-LIB file."""
    reader, formulas = _Reader(content.decode("utf-8-sig", "replace")), []
    while reader.tokens:
        reader.expect("(")
        if reader.command():
            formulas.append(reader.formula())
            reader.expect(")")
    return _regions(_all(formulas), *reader.counts())


class _Reader:
    """The words of a text, and the variables it declares."""

    def __init__(self, text: str) -> None:
        self.tokens: list[str] = [token for token in _TOKENS.findall(text) if token][::-1]
        self.declared: dict[str, set[int]] = {"X": set(), "Y": set()}
        self.shapes: dict[str, tuple[str, list[int]]] = {}  # of VNN-LIB 2.0: name → X or Y, shape

    def token(self) -> str:
        if not self.tokens:
            raise CheckError("the property ends too early")
        return self.tokens.pop()

    def expect(self, *words: str) -> None:
        if (found := [self.token() for _ in words]) != list(words):
            raise CheckError(f"expected {' '.join(words)!r} in the property, got {' '.join(found)[:40]!r}")

    def command(self) -> bool:
        """Read a declaration up to its end, or to the formula of an assertion; whether it is one."""
        name = self.token()
        if name in ("declare-const", "declare-fun"):
            match = _PLAIN.fullmatch(self.token())
            if match is None or int(match[2]) in self.declared[match[1]]:
                raise CheckError("expected different variables such as X_0 or Y_0 in the property")
            self.declared[match[1]].add(int(match[2]))
            self.expect(*("(", ")") * (name == "declare-fun"), "Real", ")")
        elif name == "vnnlib-version":
            self.expect("<2.0>", ")")
        elif name == "declare-network":
            self.token()
            for word, letter in (("declare-input", "X"), ("declare-output", "Y")):
                self.expect("(", word)
                self.declare(letter, self.token(), self.token())
            self.expect(")")
        elif name in ("set-logic", "set-info"):
            while self.token() != ")":
                pass
        elif name != "assert":
            raise CheckError(f"expected declarations and assertions in the property, got {name[:40]!r}")
        return name == "assert"

    def declare(self, letter: str, name: str, kind: str) -> None:
        """A tensor of VNN-LIB 2.0."""
        shape = ""
        while (token := self.token()) != ")":
            shape += token
        match = _INDEXED.fullmatch(f"{name}{shape}")
        sizes = [int(n) for n in match[2].split(",")] if match else []
        real = kind.lower() in ("real", "float16", "bfloat16", "float32", "float64")
        if not real or not match or not prod(sizes) <= 2**24 or self.declared[letter] or name in self.shapes:
            raise CheckError(f"expected one input and output such as X float32 [1,5] in the property, got {name[:40]}")
        self.shapes[name], self.declared[letter] = (letter, sizes), set(range(prod(sizes)))

    def counts(self) -> tuple[int, int]:
        """The numbers of inputs and outputs."""
        for letter, numbers in self.declared.items():
            if not numbers or max(numbers) != len(numbers) - 1:
                raise CheckError(f"the property does not declare {letter}_0, {letter}_1, … without a gap")
        return len(self.declared["X"]), len(self.declared["Y"])

    def formula(self) -> Formula:
        """Read one formula, innermost parentheses first."""
        stack: list[tuple[str, list[Row | Formula]]] = [("", [])]
        while True:
            token = self.token()
            if token == "(":
                stack.append((self.token(), []))
                continue
            value = _apply(*stack.pop()) if token == ")" and len(stack) > 1 else self.atom(token)
            if len(stack) == 1 and isinstance(value, Formula):
                return value
            if len(stack) == 1:
                raise CheckError("expected a formula in the property, got a number")
            stack[-1][1].append(value)

    def atom(self, token: str) -> Row | Formula:
        """A number, a variable, true or false."""
        if token in ("true", "false"):
            return Formula() if token == "true" else Formula(cases=())
        while "[" in token and "]" not in token and len(token) < 200:  # X[0, 1] with spaces
            token += self.token()
        plain, indexed = _PLAIN.fullmatch(token), _INDEXED.fullmatch(token)
        if plain and not self.shapes:
            letter, number = plain[1], int(plain[2])
        elif indexed and indexed[1] in self.shapes:
            (letter, shape), index = self.shapes[indexed[1]], [int(i) for i in indexed[2].split(",")]
            inside = len(index) == len(shape) and all(i < n for i, n in zip(index, shape, strict=True))
            number = int(np.ravel_multi_index(index, shape)) if inside else -1
        elif _NUMBER.fullmatch(token) and len(token) <= 1200:
            return Row({}, Fraction(token))
        else:
            raise CheckError(f"expected a number or a variable in the property, got {token[:40]!r}")
        if number not in self.declared[letter]:
            raise CheckError(f"{token[:40]} is used in the property but not declared")
        return Row({number if letter == "X" else ~number: Fraction(1)}, Fraction(0))


# ---- what words mean


def _apply(operator: str, args: Sequence[Row | Formula]) -> Row | Formula:
    formulas = [arg for arg in args if isinstance(arg, Formula)]
    rows = [arg for arg in args if isinstance(arg, Row)]
    if operator in ("and", "or") and formulas and not rows:
        return _all(formulas) if operator == "and" else _any(formulas)
    if operator in ("<=", ">=", "<", ">", "=") and len(rows) == len(args) == 2:
        a, b = rows if operator in ("<=", "<", "=") else rows[::-1]
        below = _below(a, b, operator in ("<", ">"))
        return _all([below, _below(b, a, False)]) if operator == "=" else below
    if operator in ("+", "-", "*", "/") and rows and not formulas:
        return _arithmetic(operator, rows)
    raise CheckError(f"expected formulas and linear terms in the property, got {operator[:40]!r} of {len(args)}")


def _arithmetic(operator: str, rows: Sequence[Row]) -> Row:
    total, zero = rows[0], Row({}, Fraction(0))
    if operator == "-" and len(rows) == 1:
        return _combined(zero, total, Fraction(-1))
    for row in rows[1:]:
        if operator in "+-":
            total = _combined(total, row, Fraction(1 if operator == "+" else -1))
            continue
        a, b = (row, total) if operator == "*" and not total.terms else (total, row)
        if b.terms or (operator == "/" and not b.constant):
            raise CheckError("expected linear terms in the property")
        total = _combined(zero, a, b.constant if operator == "*" else 1 / b.constant)
    return total


def _combined(a: Row, b: Row, factor: Fraction) -> Row:
    """a + factor b."""
    terms, constant = dict(a.terms), a.constant + factor * b.constant
    for v, c in b.terms.items():
        terms[v] = terms.get(v, Fraction(0)) + factor * c
    if max(n.bit_length() for c in (*terms.values(), constant) for n in (c.numerator, c.denominator)) > 2**13:
        raise CheckError("a number in the property is too long")
    return Row({v: c for v, c in terms.items() if c}, constant)


def _below(a: Row, b: Row, strict: bool) -> Formula:
    row = _combined(a, b, Fraction(-1))
    if row.terms:
        return Formula(common=(row._replace(strict=strict),))
    return Formula() if row.constant < 0 or (row.constant == 0 and not strict) else Formula(cases=())


def _all(formulas: Sequence[Formula]) -> Formula:
    cases: tuple[tuple[Row, ...], ...] = ((),)
    for _, more in formulas:
        if more != ((),):
            _check_rows(sum(map(len, cases)) * len(more) + (sum(map(len, more)) + len(more)) * len(cases))
            cases = tuple(a + b for a in cases for b in more)
    return Formula(tuple(row for formula in formulas for row in formula.common), cases)


def _any(formulas: Sequence[Formula]) -> Formula:
    if len(formulas) == 1:
        return formulas[0]
    _check_rows(sum((len(common) + 1) * len(cases) + sum(map(len, cases)) for common, cases in formulas))
    cases = tuple(common + case for common, cases in formulas for case in cases)
    return Formula(cases[0]) if len(cases) == 1 else Formula(cases=cases)


def _check_rows(rows: int) -> None:
    if rows > ROWS:
        raise CheckError(f"the property has more than {ROWS:,} rows in disjunctive normal form")


# ---- regions


def _split(rows: Sequence[Row], low: Terms, high: Terms) -> tuple[Row, ...]:
    """Tighten bounds by the rows that bound a single input, and return the others, and the strict ones."""
    others = []
    for row in rows:
        v, coefficient = next(iter(row.terms.items()))
        if len(row.terms) == 1 and v >= 0:
            end = -row.constant / coefficient
            if coefficient > 0:
                high[v] = min(end, high.get(v, end))
            else:
                low[v] = max(end, low.get(v, end))
        if row.strict or len(row.terms) > 1 or v < 0:
            others.append(row)
    return tuple(others)


def _regions(formula: Formula, inputs: int, outputs: int) -> Property:
    """One region for each case; rows that hold in all cases come first."""
    common: tuple[Terms, Terms] = {}, {}
    rows = _split(formula.common, *common)
    base = [_ends(ends, np.full(inputs, side), side) for ends, side in zip(common, (-inf, inf), strict=True)]
    none = any(common[0].get(i, end) > end for i, end in common[1].items())
    _check_rows(len(formula.cases) * (len(rows) + 1))
    regions, boxes, numbers = list[Region](), list[tuple[Array, Array]](), dict[bytes, int]()
    for case in formula.cases:
        low, high = (dict[int, Fraction](), dict[int, Fraction]())
        more = _split(case, low, high)
        low = {i: max(end, common[0].get(i, end)) for i, end in low.items()}
        high = {i: min(end, common[1].get(i, end)) for i, end in high.items()}
        lower, upper = _ends(low, base[0].copy(), -inf), _ends(high, base[1].copy(), inf)
        if not (np.isfinite(lower).all() and np.isfinite(upper).all()):
            raise CheckError("the property leaves an input without two bounds")
        empty = none or any(
            low.get(i, common[0].get(i, inf)) > high.get(i, common[1].get(i, inf)) for i in {*low, *high}
        )
        key = lower.tobytes() + upper.tobytes()
        if key not in numbers:
            numbers[key] = len(boxes)
            boxes.append((lower, upper))
        if 2 * len(boxes) * inputs > NUMBERS:
            raise CheckError("the property has too many boxes")
        regions.append(Region(numbers[key], empty, (*rows, *more)))
    return Property(regions, boxes, inputs, outputs)


def _ends(exact: Terms, ends: Array, side: float) -> Array:
    """Put exact ends of a box into an array, rounded towards `side` (−∞ or ∞)."""
    for i, end in exact.items():
        if abs(end) > LIMIT:
            raise CheckError(f"an input's bound in the property is beyond {LIMIT:g}")
        near = float(end)
        ends[i] = (nextafter(near, side) if (near > end if side < 0 else near < end) else near) + 0.0  # no −0
    return ends

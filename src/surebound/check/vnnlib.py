"""Reads VNN-LIB 1.0 as regions: boxes, and rows that must all hold there.

A row (terms, constant, strict) means Σ terms[v] v + constant ≤ 0 (< 0 if strict), over inputs v ≥ 0 and outputs ~v < 0.
Proofs treat a strict row as if it were not: no point satisfies even the weaker one.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import reduce
from itertools import product
from math import inf, nextafter, prod
from typing import Any, NamedTuple

import numpy as np

from surebound.check.arithmetic import LIMIT, Array, CheckError, expect

ROWS = 1_000_000  # in disjunctive normal form
_TOKENS = re.compile(r";[^\r\n]*|([()]|[^ \t\r\n\f();]+)")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?", re.ASCII)
_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})", re.ASCII)


class Row(NamedTuple):
    """See above; as a number, the sum itself."""

    terms: dict[int, Fraction]
    constant: Fraction
    strict: bool = False


ZERO = Row({}, Fraction(0))
Formula = Sequence[tuple[Row, ...]]  # all rows of at least one case hold


class Region(NamedTuple):
    """One way to violate a property: an input of the box of this number for which all rows hold."""

    box: int
    rows: tuple[Row, ...]
    empty: bool  # its box has no point, before the ends are rounded


class Property(NamedTuple):
    """All the ways to violate it, in the order of the file; the ends of boxes are float64, rounded outward."""

    regions: list[Region]
    boxes: list[Array]  # (2, inputs) each
    inputs: int
    outputs: int


def read_property(content: bytes) -> Property:
    """The regions of a VNN-LIB file."""
    stack = [list[Any]()]
    for token in _TOKENS.findall(content.decode("utf-8-sig", "replace")):
        if token == "(":
            stack.append([])
            expect(len(stack) < 100, "the property is nested too deeply")
        elif token == ")" and len(stack) > 1:
            stack[-2].append(stack.pop())
        elif token:
            stack[-1].append(token)
    expect(len(stack) == 1, "the property ends too early")
    declared, formulas = {"X": 0, "Y": 0}, list[Formula]()
    for command in stack[0]:
        match command:
            case ["declare-const", str(name), "Real"] | ["declare-fun", str(name), [], "Real"]:
                fits = name == f"{name[:1]}_{declared.get(name[:1])}"
                expect(fits, f"{name[:40]} is declared in the property; expected X_0, X_1, … and Y_0, Y_1, …")
                declared[name[:1]] += 1
            case ["assert", formula]:
                formulas.append(_formula(formula, declared))
            case _:
                raise CheckError(f"expected a command of VNN-LIB 1.0 in the property, got {str(command)[:40]}")
    expect(all(declared.values()), "the property declares no inputs or no outputs")
    return _regions(formulas, declared["X"], declared["Y"])


def _formula(item: Any, declared: dict[str, int]) -> Formula:
    match item:
        case "true" | "false":
            return [()] if item == "true" else []
        case ["and", _, *_]:
            return _all([_formula(part, declared) for part in item[1:]])
        case ["or", _, *_]:
            return [case for part in item[1:] for case in _formula(part, declared)]
        case ["<=" | "<" as word, a, b] | [">=" | ">" as word, b, a]:
            row = _combined(_linear(a, declared), _linear(b, declared), -1)
            strict = word in ("<", ">")
            if row.terms:
                return [(row._replace(strict=strict),)]
            return [()] if row.constant < 0 or (row.constant == 0 and not strict) else []
    raise CheckError(f"expected a formula in the property, got {str(item)[:40]}")


def _linear(item: Any, declared: dict[str, int]) -> Row:
    """A linear term over variables."""
    match item:
        case ["-", part]:
            return _combined(ZERO, _linear(part, declared), -1)
        case ["+" | "-" | "*" as word, _, *_]:
            parts = [_linear(part, declared) for part in item[1:]]
            return reduce(_product if word == "*" else lambda a, b: _combined(a, b, -1 if word == "-" else 1), parts)
        case str() if match := _VARIABLE.fullmatch(item):
            number = int(match[2])
            expect(number < declared[match[1]], f"{item[:40]} is used in the property but not declared")
            return Row({number if match[1] == "X" else ~number: Fraction(1)}, Fraction(0))
        case str() if len(item) <= 1200 and _NUMBER.fullmatch(item):
            return Row({}, Fraction(item))
    raise CheckError(f"expected linear terms, variables and numbers in the property, got {str(item)[:40]}")


def _combined(a: Row, b: Row, factor: Any) -> Row:
    """a + factor b."""
    terms, constant = dict(a.terms), a.constant + factor * b.constant
    for v, c in b.terms.items():
        terms[v] = terms.get(v, 0) + factor * c
    return Row({v: c for v, c in terms.items() if c}, constant)


def _product(a: Row, b: Row) -> Row:
    expect(not a.terms or not b.terms, "expected linear terms in the property")
    return _combined(ZERO, a, b.constant) if a.terms else _combined(ZERO, b, a.constant)


def _all(formulas: Sequence[Formula]) -> Formula:
    """Disjunctive normal form: the cases of the last formula vary fastest."""
    rows = prod(map(len, formulas)) * (1 + sum(max(map(len, formula), default=0) for formula in formulas))
    expect(rows <= ROWS, f"the property has more than {ROWS:,} rows in disjunctive normal form")
    return [tuple(row for case in cases for row in case) for cases in product(*formulas)]


def _split(rows: Sequence[Row], box: Array, ends: dict[int, Fraction]) -> tuple[tuple[Row, ...], bool]:
    """Tighten a box by the rows that bound one input; return the others and the strict ones, and if it is empty."""
    others, empty = list[Row](), False  # `ends` are the exact ones: the upper end of input v, and at ~v that of −v
    for row in rows:
        v, coefficient = next(iter(row.terms.items()))
        bound = len(row.terms) == 1 and v >= 0
        if bound:
            side, end = v if coefficient > 0 else ~v, -row.constant / abs(coefficient)
            expect(abs(end) <= LIMIT, f"an input's bound in the property is beyond {LIMIT:g}")
            end = ends[side] = min(end, ends.get(side, end))
            near = float(end)
            upper = near if near >= end else nextafter(near, inf)
            box[:, v] = (box[0, v], upper) if side >= 0 else (-upper, box[1, v])
            empty = empty or end + ends.get(~side, inf) < 0
        if row.strict or not bound:
            others.append(row)
    return tuple(others), empty


def _regions(formulas: Sequence[Formula], inputs: int, outputs: int) -> Property:
    """One region for each case of all formulas together; rows that hold in all cases come first."""
    shared, ends = np.repeat([[-inf], [inf]], inputs, 1), dict[int, Fraction]()
    rows, none = _split([row for formula in formulas if len(formula) == 1 for row in formula[0]], shared, ends)
    cases = _all([formula for formula in formulas if len(formula) != 1])
    regions, boxes, numbers = list[Region](), list[Array](), dict[bytes, int]()
    for case in cases:
        box = shared.copy()
        more, empty = _split(case, box, dict(ends))
        expect(np.isfinite(box).all(), "the property leaves an input without two bounds")
        number = numbers.setdefault((box + 0.0).tobytes(), len(boxes))  # −0 is 0
        boxes += [box] if number == len(boxes) else []
        regions.append(Region(number, (*rows, *more), none or empty))
    return Property(regions, boxes, inputs, outputs)

"""Properties from VNN-LIB files, versions 1.0 and 2.0, plain or gzipped.

    read_property("prop.vnnlib.gz") -> Property

`vnnlib1` and `vnnlib2` turn text into exact rows; this module reads the file, chooses between them, and makes regions
of the rows. Rounding to float64 happens here, once: boxes outward, rows to nearest.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np

from surebound import limits
from surebound.errors import PropertyError, shortened
from surebound.limits import Deadline
from surebound.load import vnnlib1, vnnlib2
from surebound.load.vnnlib1 import SPACE, Query, Row
from surebound.problem import Box, Property, Region, Vector

_VERSION_2 = re.compile(SPACE + r"\([ \t\r\n\f]*+vnnlib-version")

Exact = Decimal | Fraction
Side = dict[int, tuple[float, Exact]]  # input → its tightest bound, rounded outward and exact


def read_property(path: str | Path, *, deadline: Deadline = Deadline(), most: int = limits.PROPERTY_BYTES) -> Property:
    """Read a property from a VNN-LIB file of at most so many bytes, whichever version it is written in."""
    text = _read_text(Path(path), deadline, most)
    try:
        parse = vnnlib2.parse if _VERSION_2.match(text) else vnnlib1.parse
        return to_property(parse(text, deadline=deadline), source=str(path), deadline=deadline)
    except PropertyError as error:
        raise PropertyError(f"{path}: {error}") from error


def _read_text(path: Path, deadline: Deadline, most: int) -> str:
    data = limits.read_file(
        path,
        "property",
        PropertyError,
        most=most,
        unpacked=most,
        expected="a VNN-LIB file",
        deadline=deadline,
    )
    if b"\0" in data:
        raise PropertyError(f"{path}: expected VNN-LIB text, got binary data")
    return data.decode("utf-8-sig", errors="replace")


@dataclass(frozen=True)
class Bounds:
    """The tightest bounds on single inputs so far."""

    lower: Side = field(default_factory=dict)
    upper: Side = field(default_factory=dict)

    def tighten(self, variable: int, bound: Exact, *, upper: bool) -> None:
        """Intersect with variable <= bound (upper) or variable >= bound."""
        side = self.upper if upper else self.lower
        known = side.get(variable)
        if known is None or (_exceeds(known[1], bound) if upper else _exceeds(bound, known[1])):
            side[variable] = (_outward(bound, upper=upper), bound)

    def is_empty_at(self, variable: int) -> bool:
        """Whether no number lies between the exact bounds on this input."""
        if variable not in self.lower or variable not in self.upper:
            return False
        (low, exact_low), (high, exact_high) = self.lower[variable], self.upper[variable]
        return high <= math.nextafter(low, math.inf) and _exceeds(exact_low, exact_high)


def _exceeds(a: Exact, b: Exact) -> bool:
    if isinstance(a, Decimal) and isinstance(b, Decimal):
        return a > b
    return Fraction(a) > Fraction(b)


def _outward(value: Exact, *, upper: bool) -> float:
    """The float64 next to value that is not below it (upper) or not above it."""
    try:
        nearest = float(value) + 0.0  # no -0.0
    except OverflowError:
        nearest = math.inf
    if math.isfinite(nearest):
        stored = Decimal.from_float(nearest) if isinstance(value, Decimal) else Fraction(nearest)
        if stored != value and (stored < value) == upper:
            nearest = math.nextafter(nearest, math.inf if upper else -math.inf) + 0.0
    if not math.isfinite(nearest):
        raise PropertyError("a bound on an input is outside the range of float64")
    return nearest


def _split(rows: Iterable[Row], bounds: Bounds) -> list[Row]:
    """Put the rows that bound a single input into bounds and return the others, and the strict ones."""
    others = []
    for row in rows:
        variable = next(iter(row.terms))
        is_bound = len(row.terms) == 1 and variable >= 0
        if is_bound:
            coefficient = row.terms[variable]
            bounds.tighten(variable, -row.constant / coefficient, upper=coefficient > 0)
        if row.strict or not is_bound:
            others.append(row)
    return others


@dataclass
class _Boxes:
    """Makes boxes that differ from a common one in a few inputs, and each of them once."""

    common: Bounds
    inputs: int
    name: Callable[[int], str]
    most: int  # numbers in all of them
    made: dict[tuple[tuple[int, float, float], ...], Box] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lower = self._vector(self.common.lower, -np.inf)
        self.upper = self._vector(self.common.upper, np.inf)

    def _vector(self, side: Side, missing: float) -> Vector:
        vector = np.full(self.inputs, missing)
        vector[list(side)] = [number for number, _ in side.values()]
        return vector

    def find(self, own: Bounds) -> tuple[Box | None, bool]:
        """The common box intersected with own, and whether it has a point; no box if it has none and no ends."""
        touched = sorted(own.lower.keys() | own.upper.keys())
        for i in touched:
            if i in self.common.lower:
                own.tighten(i, self.common.lower[i][1], upper=False)
            if i in self.common.upper:
                own.tighten(i, self.common.upper[i][1], upper=True)
        empty = any(own.is_empty_at(i) for i in touched)
        changes = []
        for i in touched:
            low = own.lower[i][0] if i in own.lower else -math.inf
            high = own.upper[i][0] if i in own.upper else math.inf
            if low != self.lower[i] or high != self.upper[i]:
                changes.append((i, low, high))
        key = tuple(changes)
        if key not in self.made:
            _check_numbers((len(self.made) + 1) * 2 * self.inputs, self.most)
            try:
                self.made[key] = self._make(key, own)
            except PropertyError:
                if not empty:
                    raise
                return None, False
        return self.made[key], not empty

    def _make(self, changes: tuple[tuple[int, float, float], ...], own: Bounds) -> Box:
        lower, upper = self.lower.copy(), self.upper.copy()
        for i, low, high in changes:
            lower[i], upper[i] = low, high
        unbounded = ~(np.isfinite(lower) & np.isfinite(upper))
        if unbounded.any():
            i = int(np.argmax(unbounded))
            side = "upper" if np.isfinite(lower[i]) else "lower"
            raise PropertyError(f"expected two bounds on every input, but {self.name(i)} has no {side} bound")
        written = lower / 2 + upper / 2
        for i in np.flatnonzero((lower < upper) & (np.nextafter(lower, np.inf) >= upper)).tolist():
            exact = own.lower[i] if i in own.lower else self.common.lower[i]
            written[i] = float(exact[1])
        return Box(lower, upper, written)


def to_property(query: Query, *, source: str, deadline: Deadline = Deadline(), most: int = limits.NUMBERS) -> Property:
    """One region per case of the query's formula, leaving out those with an empty box; of at most so many numbers."""
    common = Bounds()
    for variable, bound, upper in deadline.over(query.bounds):
        common.tighten(variable, bound, upper=upper)
    common_rows = _split(deadline.over(query.formula.common), common)
    cases = [] if any(common.is_empty_at(i) for i in common.lower) else query.formula.cases
    if len(cases) * (len(common_rows) + 1) > limits.ROWS:
        raise PropertyError(f"the property has more than {limits.ROWS:,} rows in disjunctive normal form")
    boxes = _Boxes(common, query.inputs, query.input_name, most)
    regions, places = [], []
    numbers, known, same = 0, dict[tuple[bytes, bytes], int](), dict[int, int]()
    for number, case in enumerate(deadline.over(cases)):
        own = Bounds()
        rows = [*common_rows, *_split(case, own)]
        box, has_points = boxes.find(own)
        if box is not None and id(box) not in same:  # a large box takes a while to compare
            same[id(box)] = known.setdefault(box.key, len(known))
        if box is not None and has_points:
            places.append((number, same[id(box)]))
            numbers += len(rows) * (query.outputs + query.inputs * _mention_inputs(rows))
            _check_numbers(numbers, most)
            regions.append(_region(box, rows, query.outputs))
    vacuous = _contradiction(common, query.input_name)
    return Property(tuple(regions), query.inputs, query.outputs, source, tuple(places), query.ports, vacuous)


def _contradiction(bounds: Bounds, name: Callable[[int], str]) -> str:
    """Why no input keeps to the bounds of a property, or of any of its cases."""
    for i in bounds.lower:
        if bounds.is_empty_at(i):
            low, high = (shortened(str(side[i][1])) for side in (bounds.lower, bounds.upper))
            return f"it asks for {name(i)} to be at least {low} and at most {high}"
    return "no input keeps to any case"


def _check_numbers(numbers: int, most: int) -> None:
    if numbers > most:
        raise PropertyError(f"the property needs more than {most:,} numbers to write down")


def _mention_inputs(rows: Iterable[Row]) -> bool:
    return any(variable >= 0 for row in rows for variable in row.terms)


def _region(box: Box, rows: Sequence[Row], outputs: int) -> Region:
    """The region of a box and some rows, rounded to nearest."""
    on_output = np.zeros((len(rows), outputs))
    on_input = np.zeros((len(rows), box.lower.size)) if _mention_inputs(rows) else None
    constant = np.zeros(len(rows))
    rounded = False
    for r, row in enumerate(rows):
        constant[r], inexact = _nearest(row.constant)
        rounded |= inexact
        for variable, coefficient in row.terms.items():
            number, inexact = _nearest(coefficient)
            rounded |= inexact
            if variable < 0:
                on_output[r, ~variable] = number
            elif on_input is not None:
                on_input[r, variable] = number
    strict = np.array([row.strict for row in rows], dtype=np.bool_)
    return Region(box=box, on_output=on_output, on_input=on_input, constant=constant, strict=strict, rounded=rounded)


def _nearest(value: Fraction) -> tuple[float, bool]:
    """The float64 nearest to value, and whether it differs; it is then within one relative rounding."""
    if value.denominator == 1 and abs(value.numerator) <= 2**53:  # nearly always 0, 1 or -1
        return float(value.numerator), False
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise PropertyError("a number in a constraint is outside the range of float64")
    inexact = Fraction(number) != value
    if inexact and abs(number) < sys.float_info.min:
        raise PropertyError("a number in a constraint is too small for float64")
    return number, inexact

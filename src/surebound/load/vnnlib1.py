"""VNN-LIB 1.0: from text to linear rows, with exact rational numbers.

    parse("(declare-const X_0 Real) … (assert (<= X_0 0.5)) …") -> Query

Formulas are kept in disjunctive normal form with their unconditional rows apart,

    Formula(common, cases)  means  every row of common holds, and all rows of at least one case hold,

so that the thousands of input bounds of a typical file are stored once, however many ways to fail it lists. A row is
sum(terms[v] * v) + constant <= 0 (< 0 if strict); the variable v is input v for v >= 0 and output ~v for v < 0.

Almost every line of a large file declares a variable or bounds a single input. One regular expression reads those (the
fast path); whatever it does not match, and every error, is left to the general reader. No function here recurses, so
hostile nesting cannot exhaust the stack.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple, NoReturn

from surebound import limits
from surebound.errors import PropertyError, quoted
from surebound.limits import Deadline
from surebound.problem import Ports

SPACE = r"(?:[ \t\r\n\f]++|;[^\r\n]*+)*+"  # with comments
_NUMBER = re.compile(r"[-+]?(?:[0-9]++\.?[0-9]*+|\.[0-9]++)(?:[eE][-+]?([0-9]++))?")
_TOKEN = re.compile(SPACE + r"([()]|[^ \t\r\n\f();]++)?")
_VARIABLE = re.compile(r"([XY])_(0|[1-9][0-9]{0,8})")
_FAST = re.compile(
    SPACE + r"\((?:declare-const ([XY])_(0|[1-9][0-9]{0,8}) Real"
    r"|assert \(([<>])= X_(0|[1-9][0-9]{0,8}) (-?[0-9]{1,40}(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,2})?)\))\)"
)
_FOLDED = frozenset("+-*/") | {"and", "or"}  # what may be applied to the first arguments before the others are read
WAITING = 2**12  # arguments that wait for the others
_OFTEN = 2**12  # tokens between two looks at the clock
_SHOWN = 40  # letters of a token in a sentence
_IGNORED = frozenset({"set-logic", "set-info", "check-sat", "get-model"})


class Linear(NamedTuple):
    """sum(terms[v] * v) + constant, without zero coefficients."""

    terms: dict[int, Fraction]
    constant: Fraction


class Row(NamedTuple):
    """sum(terms[v] * v) + constant <= 0, or < 0 if strict."""

    terms: dict[int, Fraction]
    constant: Fraction
    strict: bool


@dataclass(frozen=True)
class Formula:
    """All of common, and all of at least one of cases."""

    common: tuple[Row, ...] = ()
    cases: tuple[tuple[Row, ...], ...] = ((),)


Value = Linear | Formula
TRUE, FALSE = Formula(), Formula(cases=())
ZERO, ONE = Fraction(0), Fraction(1)


def read_number(token: str) -> Decimal:
    """The exact value of a decimal such as -1.5e-3."""
    match = _NUMBER.fullmatch(token)
    if match is None:
        raise PropertyError(f"expected a number or a declared variable, got {quoted(token, _SHOWN)}")
    if len(token) > limits.DIGITS:
        raise PropertyError(f"expected numbers of at most {limits.DIGITS} digits, got {quoted(token, _SHOWN)}")
    if len(match[1] or "") <= 6:  # longer exponents can make Decimal fail
        value = Decimal(token)
        if not value or -400 <= value.adjusted() <= 308:
            return value
    raise PropertyError(f"expected a number in the range of float64, got {quoted(token, _SHOWN)}")


def apply(operator: str, args: Sequence[Value]) -> Value:
    """The value of one operator on its arguments."""
    if operator not in _ARITY:
        raise PropertyError(f"expected an operator out of {' '.join(_ARITY)}, got {quoted(operator, _SHOWN)}")
    least, most = _ARITY[operator]
    if not least <= len(args) <= (most or len(args)):
        raise PropertyError(f"{operator!r} takes {least}{'' if most else ' or more'} arguments, got {len(args)}")
    formulas = [arg for arg in args if isinstance(arg, Formula)]
    terms = [arg for arg in args if isinstance(arg, Linear)]
    if operator in _ON_FORMULAS:
        if terms:
            raise PropertyError(f"{operator!r} takes formulas such as (<= X_0 1.0), got a number")
        return _ON_FORMULAS[operator](formulas)
    if formulas:
        raise PropertyError(f"{operator!r} takes numbers and variables, got a formula")
    if operator in _ON_NUMBERS:
        return _ON_NUMBERS[operator](terms)
    return conjunction([_COMPARISONS[operator](a, b) for a, b in pairwise(terms)])


def _small(number: Fraction) -> Fraction:
    """The number, unless it is so long that arithmetic with it would take forever."""
    if number.numerator.bit_length() > limits.BITS or number.denominator.bit_length() > limits.BITS:
        raise PropertyError(f"a number in this expression needs more than {limits.BITS} bits")
    return number


def _signed_sum(plus: Sequence[Linear], minus: Sequence[Linear] = ()) -> Linear:
    terms: dict[int, Fraction] = {}
    constant = ZERO
    for linear in plus:
        constant = _small(constant + linear.constant) if linear.constant else constant
        for variable, coefficient in linear.terms.items():
            terms[variable] = _small(terms[variable] + coefficient) if variable in terms else coefficient
    for linear in minus:
        constant = _small(constant - linear.constant) if linear.constant else constant
        for variable, coefficient in linear.terms.items():
            terms[variable] = _small(terms[variable] - coefficient) if variable in terms else -coefficient
    return Linear({variable: c for variable, c in terms.items() if c}, constant)


def _add(args: Sequence[Linear]) -> Linear:
    return _signed_sum(args)


def _subtract(args: Sequence[Linear]) -> Linear:
    return _signed_sum(args[:1], args[1:]) if len(args) > 1 else _signed_sum([], args)


def _scaled(linear: Linear, factor: Fraction) -> Linear:
    return Linear({v: _small(c * factor) for v, c in linear.terms.items() if factor}, _small(linear.constant * factor))


def _multiply(args: Sequence[Linear]) -> Linear:
    product = args[0]
    for arg in args[1:]:
        if product.terms and arg.terms:
            raise PropertyError("expected linear terms, got a product of variables")
        product = _scaled(product, arg.constant) if product.terms else _scaled(arg, product.constant)
    return product


def _divide(args: Sequence[Linear]) -> Linear:
    quotient = args[0]
    for arg in args[1:]:
        if arg.terms:
            raise PropertyError("expected linear terms, got a division by a variable")
        if not arg.constant:
            raise PropertyError("division by zero")
        quotient = _scaled(quotient, 1 / arg.constant)
    return quotient


def _below(a: Linear, b: Linear, strict: bool) -> Formula:
    """a <= b (a < b if strict), decided at once if no variable is left in it."""
    terms, constant = _signed_sum([a], [b])
    if terms:
        return Formula(common=(Row(terms, constant, strict),))
    return TRUE if constant < 0 or (constant == 0 and not strict) else FALSE


def _equal(a: Linear, b: Linear) -> Formula:
    return conjunction([_below(a, b, False), _below(b, a, False)])


def conjunction(formulas: Sequence[Formula]) -> Formula:
    """All of the formulas."""
    common = tuple(row for formula in formulas for row in formula.common)
    cases: tuple[tuple[Row, ...], ...] = ((),)
    for formula in formulas:
        if formula.cases != ((),):
            left, right = sum(map(len, cases)), sum(map(len, formula.cases))
            size = left * len(formula.cases) + right * len(cases) + len(cases) * len(formula.cases)
            _check_rows(size)
            cases = tuple(a + b for a in cases for b in formula.cases)
    return Formula(common, cases)


def disjunction(formulas: Sequence[Formula]) -> Formula:
    """At least one of the formulas."""
    if len(formulas) == 1:
        return formulas[0]
    _check_rows(sum((len(f.common) + 1) * len(f.cases) + sum(map(len, f.cases)) for f in formulas))
    cases = tuple(f.common + case for f in formulas for case in f.cases)
    return Formula(common=cases[0]) if len(cases) == 1 else Formula(cases=cases)


def negation(formula: Formula) -> Formula:
    """Not the formula, by De Morgan's laws."""

    def some_fails(rows: tuple[Row, ...]) -> list[Formula]:
        return [
            Formula(common=(Row({v: -c for v, c in row.terms.items()}, -row.constant, not row.strict),)) for row in rows
        ]

    no_case = conjunction([disjunction(some_fails(case)) for case in formula.cases])
    return disjunction([*some_fails(formula.common), no_case])


def _check_rows(rows: int) -> None:
    if rows > limits.ROWS:
        raise PropertyError(f"the property has more than {limits.ROWS:,} rows in disjunctive normal form")


_ON_FORMULAS: dict[str, Callable[[Sequence[Formula]], Formula]] = {
    "and": conjunction,
    "or": disjunction,
    "not": lambda formulas: negation(formulas[0]),
}
_ON_NUMBERS: dict[str, Callable[[Sequence[Linear]], Linear]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
}
_COMPARISONS: dict[str, Callable[[Linear, Linear], Formula]] = {
    "<=": lambda a, b: _below(a, b, False),
    "<": lambda a, b: _below(a, b, True),
    ">=": lambda a, b: _below(b, a, False),
    ">": lambda a, b: _below(b, a, True),
    "=": _equal,
}
_ARITY: dict[str, tuple[int, int | None]] = {  # least and, if limited, most arguments
    **dict.fromkeys(_ON_FORMULAS, (1, None)),
    **dict.fromkeys(_COMPARISONS, (2, None)),
    **dict.fromkeys(_ON_NUMBERS, (1, None)),
    "not": (1, 1),
    "/": (2, None),
}


# ---- The reader ----


@dataclass
class Query:
    """What a file says: bounds on single inputs (input, bound, is upper) and a formula, over so many variables."""

    bounds: list[tuple[int, Decimal, bool]] = field(default_factory=list)
    formula: Formula = TRUE
    inputs: int = 0
    outputs: int = 0
    input_name: Callable[[int], str] = "X_{}".format
    ports: Ports | None = None  # where the file declares tensors


def parse(text: str, *, fast: bool = True, waiting: int = WAITING, deadline: Deadline = Deadline()) -> Query:
    """Read VNN-LIB 1.0 text; fast=False sends every line through the general reader."""
    reader = _Reader(text, waiting, deadline)
    bounds: list[tuple[int, Decimal, bool]] = []
    formulas: list[Formula] = []
    inputs, outputs = reader.declared["X"], reader.declared["Y"]
    while True:
        reader.count()
        match = _FAST.match(text, reader.end) if fast else None
        if match is not None:
            kind, index, comparison, variable, number = match.groups()
            if kind is not None and int(index) not in reader.declared[kind]:
                reader.add(kind, int(index))
                reader.end = match.end()
                continue
            if comparison is not None and int(variable) in inputs:
                bounds.append((int(variable), Decimal(number), comparison == "<"))
                reader.end = match.end()
                _check_facts(len(bounds))
                continue
        if not reader.command(formulas):
            break
    for letter, indices in reader.declared.items():
        missing = next((i for i in range(len(indices)) if i not in indices), None)
        if missing is not None:
            raise PropertyError(f"{letter}_{max(indices)} is declared, but {letter}_{missing} is not")
        if not indices:
            raise PropertyError(f"expected a VNN-LIB property, but no variable {letter}_0 is declared")
    return Query(bounds, conjunction(formulas), len(inputs), len(outputs))


def _check_facts(rows: int) -> None:
    if rows > limits.FACTS:
        raise PropertyError(f"the property has more than {limits.FACTS:,} rows; expected at most that")


class _Reader:
    """Reads commands of a text one by one."""

    def __init__(self, text: str, waiting: int, deadline: Deadline) -> None:
        self.text = text
        self.start = 0  # of the last token
        self.end = 0
        self.declared: dict[str, set[int]] = {"X": set(), "Y": set()}
        self._waiting = waiting
        self._deadline = deadline
        self._steps = 0
        self._facts = 0

    def count(self) -> None:
        """Look at the clock now and then."""
        self._steps += 1
        if self._steps % _OFTEN == 0:
            self._deadline.check()

    def add(self, letter: str, index: int) -> None:
        """Declare a variable."""
        self.declared[letter].add(index)
        if len(self.declared[letter]) > limits.VARIABLES:
            self.fail(f"expected at most {limits.VARIABLES:,} variables {letter}_0, {letter}_1, …, got more")

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        """Raise an error about the token at this position (the last one)."""
        line = self.text.count("\n", 0, self.start if at is None else at) + 1
        raise PropertyError(f"line {line}: {message}")

    def token(self) -> str:
        """The next token, empty at the end of the text."""
        self.count()
        match = _TOKEN.match(self.text, self.end)
        token = match[1] or "" if match else ""
        self.end = match.end() if match else self.end
        self.start = self.end - len(token)
        return token

    def expect(self, wanted: str) -> None:
        """Skip one token."""
        token = self.token()
        if token != wanted:
            self.fail(f"expected {wanted!r}, got {shown(token)}")

    def command(self, formulas: list[Formula]) -> bool:
        """Read one command and append what it asserts; False at the end of the text."""
        token = self.token()
        if not token:
            return False
        if token != "(":
            self.fail(f"expected '(', got {shown(token)}")
        name = self.token()
        if name == "assert":
            formulas.append(self.formula())
            self._facts += len(formulas[-1].common)
            _check_facts(self._facts)
        elif name in ("declare-const", "declare-fun"):
            self.declare(has_arguments=name == "declare-fun")
        elif name in _IGNORED:
            while (token := self.token()) not in ("(", ")", ""):
                pass
            if token == ")":
                return True
            self.fail(f"expected ')', got {shown(token)}")
        else:
            self.fail(f"expected declare-const, declare-fun or assert, got {shown(name)}")
        self.expect(")")
        return True

    def declare(self, *, has_arguments: bool) -> None:
        """Read the rest of a declaration, up to its closing parenthesis."""
        name = self.token()
        match = _VARIABLE.fullmatch(name)
        if match is None:
            self.fail(f"expected a variable such as X_0 or Y_0, got {shown(name)}")
        letter, index = match[1], int(match[2])
        if index in self.declared[letter]:
            self.fail(f"{name} is declared twice")
        self.add(letter, index)
        for wanted in ("(", ")", "Real") if has_arguments else ("Real",):
            self.expect(wanted)

    def formula(self) -> Formula:
        """Read one formula, innermost parentheses first."""
        value: Value
        open_lists: list[tuple[str, int, list[Value]]] = []  # operator, its position, arguments so far
        while True:
            token = self.token()
            if token == "(":
                operator = self.token()
                if operator in ("(", ")", ""):
                    self.fail(f"expected an operator, got {shown(operator)}")
                if len(open_lists) == limits.NESTING:
                    self.fail(f"expected at most {limits.NESTING} nested parentheses, got more")
                open_lists.append((operator, self.start, []))
                continue
            if token == ")" and open_lists:
                operator, position, args = open_lists.pop()
                value = self.applied(operator, position, args)
            else:
                value = self.atom(token)
            if open_lists:
                operator, position, args = open_lists[-1]
                if (
                    len(args) >= self._waiting and operator in _FOLDED
                ):  # with this one to come, so that (- a b) is never (- c)
                    args[:] = [self.applied(operator, position, args)]
                elif len(args) >= limits.ROWS:
                    self.fail(f"expected at most {limits.ROWS:,} arguments of {shown(operator)}, got more")
                args.append(value)
            elif isinstance(value, Formula):
                return value
            else:
                self.fail("expected a formula such as (<= X_0 1.0), got a number")

    def applied(self, operator: str, position: int, args: Sequence[Value]) -> Value:
        """The value of an operator that stands at a position."""
        try:
            return apply(operator, args)
        except PropertyError as error:
            self.fail(str(error), at=position)

    def atom(self, token: str) -> Value:
        """The value of a number, a declared variable, true or false."""
        if token in ("true", "false"):
            return TRUE if token == "true" else FALSE
        if token in ("(", ")", ""):
            self.fail(f"expected an expression, got {shown(token)}")
        match = _VARIABLE.fullmatch(token)
        if match is None:
            try:
                return Linear({}, Fraction(read_number(token)))
            except PropertyError as error:
                self.fail(str(error))
        letter, index = match[1], int(match[2])
        if index not in self.declared[letter]:
            self.fail(f"{token} is used but not declared")
        return Linear({index if letter == "X" else ~index: ONE}, ZERO)


def shown(token: str) -> str:
    """A token for a sentence."""
    return quoted(token, _SHOWN) if token else "the end of the file"

"""VNN-LIB 2.0: from text to linear rows, through the standard's own parser (the `vnnlib` package).

    parse("(vnnlib-version <2.0>) (declare-network N …) (assert (<= X[0,0] 0.5)) …") -> Query

The package checks syntax, types and indices; its syntax tree is folded with the operators of `vnnlib1`. One network
is supported. Its inputs are numbered one after the other, as they are declared, which is the order of the network's
own; X[i,j,…] is flattened in C order. Outputs likewise.

The package crashes on deep nesting, takes X[-1] and X[1.5] for elements and knows no exponents, so `_prepared` refuses
too much nesting and such indices, and writes 1.5e-3 as 0.0015. The package also stops at a NUL, which
`vnnlib.read_property` refuses. It is imported on use only.
"""

import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import TYPE_CHECKING

from surebound import limits
from surebound.errors import PropertyError, quoted, visible
from surebound.limits import Deadline
from surebound.load.vnnlib1 import (
    ONE,
    ZERO,
    Formula,
    Linear,
    Query,
    Value,
    apply,
    conjunction,
    negation,
    read_number,
    shown,
)
from surebound.problem import Port, Ports

if TYPE_CHECKING:
    from vnnlib import BoolExpr, InputDefinition, Node, OutputDefinition, Var
    from vnnlib import Query as Tree

_OFTEN = 2**12  # steps between two looks at the clock
_REALS = {"Real": "real", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64"}
_PIECE = re.compile(
    r"""(?P<comment>;[^\r\n]*+)|"[^"\r\n]*+"|(?P<open>\()|(?P<close>\))|(?P<index>\[[^\]]*+\]?)"""
    r"|(?<![\w.])(?P<exponent>-?[0-9]++(?:\.[0-9]++)?[eE][-+]?[0-9]++)(?![\w.])",
    re.ASCII,
)
_INDEX = re.compile(r"\[\s*+(?:[0-9]++\s*+(?:,\s*+[0-9]++\s*+)*+)?\]", re.ASCII)
_SYNTAX_ERROR = re.compile(r"Parse error: syntax error at line ([0-9]+), column [0-9]+: '(.*)'\s*", re.DOTALL)


def parse(text: str, *, deadline: Deadline = Deadline()) -> Query:
    """Read VNN-LIB 2.0 text."""
    tree = _parse_tree(text, deadline)
    if len(tree.networks) != 1:
        raise PropertyError(f"expected a property of one network, got {len(tree.networks)} networks")
    network = tree.networks[0]
    inputs, outputs = _ports(network.inputs), _ports(network.outputs)
    first = _starts(inputs) | {name: ~start for name, start in _starts(outputs).items()}
    return Query(
        inputs=sum(port.size for port in inputs),
        outputs=sum(port.size for port in outputs),
        formula=conjunction([_formula(assertion.expr, first, deadline) for assertion in tree.assertions]),
        input_name=lambda i: _element(inputs, i),
        ports=Ports(inputs, outputs),
    )


def _parse_tree(text: str, deadline: Deadline) -> "Tree":
    try:
        import vnnlib
    except ImportError as error:
        raise PropertyError(
            f"VNN-LIB 2.0 is read with the package vnnlib, which cannot be imported ({error}): pip install vnnlib"
        ) from error
    prepared = _prepared(text, deadline)
    deadline.check()
    try:
        return vnnlib.parse_query_string(prepared)
    except vnnlib.VNNLibException as error:
        raise PropertyError(_sentence(str(error))) from error
    except (IndexError, ValueError, RuntimeError) as error:  # numbers beyond 64 bits, letters outside ASCII
        raise PropertyError(f"expected VNN-LIB 2.0, but the package vnnlib cannot read it ({error})") from error


def _prepared(text: str, deadline: Deadline) -> str:
    """The text without comments and exponents, if it is not nested too deeply, and not too long."""
    _check_length(len(text))
    depth = steps = longer = 0

    def replace(match: re.Match[str]) -> str:
        nonlocal depth, steps, longer
        steps += 1
        if steps % _OFTEN == 0:
            deadline.check()
        depth += (match["open"] is not None) - (match["close"] is not None)
        try:
            if depth > limits.NESTING:
                raise PropertyError(f"expected at most {limits.NESTING} nested parentheses, got more")
            if match["index"] is not None and _INDEX.fullmatch(match["index"]) is None:
                raise PropertyError(f"expected whole numbers from 0 up as indices, got {shown(match['index'])}")
            if match["exponent"] is not None:
                plain = format(read_number(match["exponent"]), "f")
                longer += len(plain) + 2 - len(match[0])
                _check_length(len(text) + longer)
                return plain if "." in plain else plain + ".0"
        except PropertyError as error:
            line = text.count("\n", 0, match.start()) + 1
            raise PropertyError(f"line {line}: {error}") from error
        return "" if match["comment"] is not None else match[0]

    return _PIECE.sub(replace, text)


def _check_length(letters: int) -> None:
    if letters > limits.PROPERTY_2_BYTES:
        most = limits.mib(limits.PROPERTY_2_BYTES)
        raise PropertyError(f"expected at most {most} of VNN-LIB 2.0 with numbers written in full, got more")


def _sentence(message: str) -> str:
    """The first complaint of the package, which reports in JSON or in plain text."""
    try:
        first = json.loads(message)["errors"][0]
        symbol, message, hint = quoted(str(first["offendingSymbol"])), first["message"], first["hint"]
        return visible(f"line {first['line']}: {message} {symbol}: {hint}".rstrip(".")[:600])
    except (ValueError, LookupError, TypeError):
        match = _SYNTAX_ERROR.fullmatch(message)
        if match is None:
            return visible(" ".join(message.split())[:300])
        return f"line {match[1]}: expected VNN-LIB 2.0, got {shown(match[2])}"


def _ports(definitions: "Sequence[InputDefinition | OutputDefinition]") -> tuple[Port, ...]:
    """Declared tensors."""
    if len(definitions) > limits.PORTS:
        raise PropertyError(f"expected at most {limits.PORTS:,} inputs, and outputs, got {len(definitions):,}")
    for definition in definitions:
        if definition.dtype.name not in _REALS:
            raise PropertyError(f"expected {definition.name} to be of a real type, got {definition.dtype.name}")
        if definition.onnx_name is not None:  # which the standard had before it was final
            raise PropertyError(f"expected {definition.name} without the name of a node; the order tells which it is")
    ports = tuple(Port(d.name, tuple(d.shape), _REALS[d.dtype.name]) for d in definitions)
    size = sum(port.size for port in ports)
    if size > limits.VARIABLES:
        names = ", ".join(port.name for port in ports[:3])
        raise PropertyError(f"expected at most {limits.VARIABLES:,} variables, but {names} has {size:,}")
    return ports


def _starts(ports: Sequence[Port]) -> dict[str, int]:
    """Where the elements of each tensor begin among all."""
    ends = accumulate(port.size for port in ports)
    return {port.name: end - port.size for port, end in zip(ports, ends, strict=True)}


def _element(ports: Sequence[Port], i: int) -> str:
    """The name of element i of all."""
    for port in ports:
        if i < port.size:
            return f"{port.name}{_indices(i, port.shape)}"
        i -= port.size
    raise IndexError(i)


def _indices(flat: int, shape: Sequence[int]) -> list[int]:
    indices = []
    for size in reversed(shape):
        flat, index = divmod(flat, size)
        indices.append(index)
    return indices[::-1]


def _formula(expression: "BoolExpr", first: Mapping[str, int], deadline: Deadline) -> Formula:
    """Fold a syntax tree, children first and without recursion. `first`: the number of each tensor's first variable."""
    import vnnlib

    operators: dict[type[Node], str] = {
        vnnlib.And: "and",
        vnnlib.Or: "or",
        vnnlib.LessEqual: "<=",
        vnnlib.LessThan: "<",
        vnnlib.GreaterEqual: ">=",
        vnnlib.GreaterThan: ">",
        vnnlib.Equal: "=",
        vnnlib.NotEqual: "!=",
        vnnlib.Plus: "+",
        vnnlib.Minus: "-",
        vnnlib.Negate: "-",
        vnnlib.Multiply: "*",
    }
    line = 0
    values: list[Value] = []
    pending: list[tuple[Node, int | None]] = [(expression, None)]  # a node, and its arity once its children are done
    steps = 0
    while pending:
        steps += 1
        if steps % _OFTEN == 0:
            deadline.check()
        node, arity = pending.pop()
        try:
            if arity is not None:
                args = values[len(values) - arity :]
                del values[len(values) - arity :]
                values.append(_applied(operators[type(node)], args))
            elif type(node) in operators:
                children = node.children()
                pending.append((node, len(children)))
                pending.extend((child, None) for child in reversed(children))
            elif isinstance(node, vnnlib.Literal):
                line = node.line
                values.append(Linear({}, Fraction(read_number(node.lexeme))))
            elif isinstance(node, vnnlib.Var):
                line = node.line
                values.append(Linear({_variable(node, first): ONE}, ZERO))
            else:
                raise PropertyError(f"unsupported expression {quoted(str(node), 40)}")
        except PropertyError as error:
            raise PropertyError(f"line {line}: {error}") from error
    (value,) = values
    if not isinstance(value, Formula):
        raise PropertyError(f"line {line}: expected a formula, got a number")
    return value


def _applied(operator: str, args: Sequence[Value]) -> Value:
    if operator == "!=":
        equal = apply("=", args)
        return negation(equal) if isinstance(equal, Formula) else equal
    return apply(operator, args)


def _variable(var: "Var", first: Mapping[str, int]) -> int:
    """The variable's number: i for element i of all inputs, ~i of all outputs, which count down."""
    if var.name not in first:
        raise PropertyError(f"expected inputs and outputs of the network, got the hidden node {var.name}")
    flat = 0
    for index, size in zip(var.indices, var.shape, strict=True):
        flat = flat * size + index
    start = first[var.name]
    return start + flat if start >= 0 else start - flat

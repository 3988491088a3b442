"""TOML into frozen dataclasses, and back.

    table = override(read_toml(path), ["schedule.epochs=3"])
    config = build(Training, table)
    path.write_text(dump(config))  # reads back as the same config, bit for bit

A config is a dataclass beside the code it configures; its type hints say what a file may hold, and its `__post_init__`
which values make sense. A sub-table changes the keys it names and leaves the rest of that field's default alone.
"""

import difflib
import json
import math
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import MISSING, fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from surebound.errors import MissingFileError, UsageError, reason

T = TypeVar("T")
Table = dict[str, Any]

_RATIO = "a number or a fraction such as '2/255'"
_ONE = {int: "an integer", float: "a number", bool: "true or false", str: "a string", Fraction: _RATIO}
_MANY = {int: "integers", float: "numbers", str: "strings"}
_MISFIT = object()  # in place of a value that does not fit its type hint
_LONGEST = 200  # characters of a value in a message


def read_toml(path: Path) -> Table:
    """The contents of a TOML file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingFileError(
            f"cannot read the config file '{path}' ({reason(error)}); expected a TOML file"
        ) from error
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"config file '{path}' is not valid UTF-8 (at line {line}); expected a TOML file") from error
    except (ValueError, RecursionError) as error:  # tomllib's own error, which names the line, or a value out of range
        raise UsageError(f"config file '{path}' is not valid TOML: {error}") from error


def merge(base: Table, top: Table) -> Table:
    """A new table with the keys of both; where both have a key, `top` wins, and two tables are merged."""
    merged = merge({}, base) if base else {}
    for key, value in top.items():
        below = merged[key] if isinstance(merged.get(key), dict) else {}
        merged[key] = merge(below, value) if isinstance(value, dict) else deepcopy(value)
    return merged


def override(table: Table, assignments: Sequence[str]) -> Table:
    """A new table with each `key=value` applied in turn; what is not a TOML value is taken as a plain string.

    >>> override({"schedule": {"epochs": 160}}, ["schedule.epochs=3", "loss.eps=2/255"])
    {'schedule': {'epochs': 3}, 'loss': {'eps': '2/255'}}
    """
    result = merge({}, table)
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        path = [part.strip() for part in key.split(".")]
        if not equals or not all(path):
            raise UsageError(f"cannot apply the override '{assignment}'; expected key=value, as in schedule.epochs=3")
        inner = result
        for depth, part in enumerate(path[:-1], start=1):
            inner = inner.setdefault(part, {})
            if not isinstance(inner, dict):
                problem = f"{'.'.join(path[:depth])} is {shown(inner)}; expected a table"
                raise UsageError(f"cannot apply the override '{assignment}': {problem}")
        inner[path[-1]] = _parse(text.strip())
    return result


def _parse(text: str) -> Any:
    try:
        # Inside an inline table, neither a comment nor a second line can hide part of the text.
        parsed = tomllib.loads(f"table = {{ value = {text} }}")
    except (ValueError, RecursionError):
        return text
    return parsed["table"]["value"] if len(parsed) == len(parsed["table"]) == 1 else text


def build(
    cls: type[T], table: Mapping[str, Any], where: str = "", built: Mapping[str, Any] = {}, base: T | None = None
) -> T:
    """The dataclass `cls` from a table, by its type hints.

    Fields may be int, float, bool, str, Fraction (a number or a string such as "2/255", exactly), Literal, dataclasses,
    tuples, and unions, of which the first fit is taken. A key left out keeps its value in `base`, or else its default.
    `where` is the table's dotted place in its file, for messages; `built` holds fields that the caller made itself.
    """
    hints, defaults, values = get_type_hints(cls), _defaults(cls, base), dict(built)
    for key in [key for key in table if key not in built]:
        value, name = table[key], _dotted(where, key)
        if key not in defaults:
            raise _unknown(key, cls, list(defaults), where)
        values[key] = _convert(hints[key], value, name, defaults[key])
        if values[key] is _MISFIT:
            raise UsageError(f"{name} is {shown(value)}; expected {_expected(hints[key])}")
    for key in [key for key, default in defaults.items() if default is MISSING and key not in values]:
        raise UsageError(f"{_dotted(where, key)} is missing; expected {_expected(hints[key])}")
    return cls(**values) if base is None else cast(T, replace(cast(Any, base), **values))


def _defaults(config: Any, base: Any = None) -> Table:
    """What each field holds if it is left out: its value in `base`, or else its own default, which may be MISSING."""
    settable = [field for field in fields(config) if field.init]
    if base is not None:
        return {f.name: getattr(base, f.name) for f in settable}
    return {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in settable}


def _convert(hint: Any, value: Any, where: str, default: Any) -> Any:
    """`value` as the type `hint`, or _MISFIT; a sub-table changes the dataclass `default`, if it is of that type."""
    if type(value) is int and not _is_whole(value):
        raise UsageError(f"{where} is {shown(value)}; expected a whole number from -2**63 to 2**63 - 1")
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType) and sum(map(is_dataclass, arguments)) < 2:  # a table cannot say which of two it is
        tried = (_convert(member, value, where, default) for member in arguments if member is not NoneType)
        return next((result for result in tried if result is not _MISFIT), _MISFIT)
    if origin is tuple:
        return _convert_list(arguments, value, where)
    if origin is Literal:  # True is not 1
        return value if any(type(choice) is type(value) and choice == value for choice in arguments) else _MISFIT
    if hint in (float, Fraction):
        return _convert_number(hint, value, where)
    if hint in _ONE:
        return value if type(value) is hint else _MISFIT
    if not is_dataclass(hint):
        raise TypeError(f"{where} has the type {hint}, which cannot be read from TOML; pass it in `built`")
    base = default if type(default) is hint else None
    return build(cast(type[Any], hint), value, where, base=base) if isinstance(value, Mapping) else _MISFIT


def _convert_list(items: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list | tuple) or (items[-1] is not ... and len(items) != len(value)):
        return _MISFIT
    hints = items[:1] * len(value) if items[-1] is ... else items
    result = tuple(_convert(hints[i], item, f"{where}[{i}]", None) for i, item in enumerate(value))
    return _MISFIT if any(item is _MISFIT for item in result) else result


def _convert_number(kind: type[float] | type[Fraction], value: Any, where: str) -> Any:
    """Fractions take 0.1 as 1/10, its shortest decimal, and text without exponents: "1e999999999" would never end."""
    if type(value) in (int, float):
        if not abs(value) <= sys.float_info.max:
            raise UsageError(f"{where} is {value!r}; expected a finite number")
        return kind(repr(value))
    if kind is Fraction and isinstance(value, str) and re.fullmatch(r"[+-]?\d*[./]?\d+", value):
        with suppress(ValueError, ZeroDivisionError):
            return Fraction(value)
    return _MISFIT


def _is_whole(value: int) -> bool:
    """Whether it is one of TOML's integers."""
    return -(2**63) <= value < 2**63


def shown(value: object) -> str:
    """A value as messages show it, cut where it is long.

    >>> shown("2/255"), len(shown("9" * 5000)), shown(16**5000)
    ("'2/255'", 201, 'a number too long to print')
    """
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write integers of more than some thousand digits
        return "a number too long to print"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _dotted(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _unknown(key: str, cls: Any, known: list[str], where: str) -> UsageError:
    below = [path for path in _paths(cls) if path.endswith(f".{key}")]
    close = below or difflib.get_close_matches(key, known, n=1)
    hint = f" (did you mean {' or '.join(repr(_dotted(where, path)) for path in close)}?)" if close else ""
    return UsageError(f"unknown key '{_dotted(where, key)}'{hint}; expected one of: {', '.join(known) or '(no keys)'}")


def _paths(cls: Any) -> Iterator[str]:
    """The dotted names of the fields of a dataclass, and of those that its fields have."""
    for name, hint in get_type_hints(cls).items():
        yield name
        if is_dataclass(hint):
            yield from (f"{name}.{inner}" for inner in _paths(hint))


def _expected(hint: Any) -> str:
    """What a type hint accepts, in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_expected(member) for member in arguments if member is not NoneType)
    if origin is Literal:
        return f"one of: {', '.join(map(repr, arguments))}"
    if origin is tuple and arguments[-1] is ...:
        return f"a list of {_MANY.get(arguments[0]) or f'items, each {_expected(arguments[0])}'}"
    if origin is tuple:
        return f"a list of {len(arguments)} items ({', '.join(map(_expected, arguments))})"
    return _ONE.get(hint, "a table")


def to_table(config: Any) -> Table:
    """The TOML table of a dataclass, or of a mapping that holds some: what `build` turns into an equal one."""
    return cast(Table, _plain(config, "", None))


def _plain(value: Any, where: str, base: Any) -> Any:
    """`value` in the types that tomllib returns; `base` is what a dataclass field holds by default."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain_fields(value, where, base if type(base) is type(value) else None)
    if isinstance(value, Mapping):
        return {key: _plain(inner, _dotted(where, key), None) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item, f"{where}[{index}]", None) for index, item in enumerate(value)]
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 and _is_whole(value.numerator) else str(value)
    if (isinstance(value, int) and _is_whole(value)) or (
        isinstance(value, str) and not re.search("[\ud800-\udfff]", value)
    ):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return float(value)  # NumPy's, too
    raise UsageError(f"{where or 'config'} is {shown(value)}; expected a finite number, UTF-8 text, a list or a table")


def _plain_fields(config: Any, where: str, base: Any) -> Table:
    own, defaults, table = _defaults(config), _defaults(config, base), {}
    for key, default in defaults.items():
        value, name = getattr(config, key), _dotted(where, key)
        if value is not None:
            table[key] = _plain(value, name, default)
        elif default is not None or own[key] is not None:
            raise UsageError(f"{name} is None; expected a value, because TOML has no null and its default is not None")
    return table


def dump(config: Any) -> str:
    """The TOML text of a dataclass (or a table): `build` makes an equal config of it, to the last bit.

    >>> dump({"loss": {"rho": 0.5}, "eps": Fraction(2, 255)})
    'eps = "2/255"\\n\\n[loss]\\nrho = 0.5\\n'
    """
    return "\n".join(_sections(to_table(config), ""))


def _sections(table: Table, path: str) -> Iterator[str]:
    lines = [f"[{path}]\n"] if path else []
    lines += [f"{_key(key)} = {_text(value)}\n" for key, value in table.items() if not isinstance(value, dict)]
    if lines:
        yield "".join(lines)
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _sections(value, _dotted(path, _key(key)))


def _text(value: Any) -> str:
    if isinstance(value, str | bool):  # as in JSON, which leaves only one control character to escape
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_text(inner)}' for key, inner in value.items())} }}"
    return repr(value)


def _key(key: str) -> str:
    return key if re.fullmatch("[A-Za-z0-9_-]+", key) else _text(key)

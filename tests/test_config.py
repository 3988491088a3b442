"""TOML into dataclasses and back: what is accepted, what every error says, and that nothing is lost on the way."""

import math
import tomllib
from copy import deepcopy
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, Optional, Protocol

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surebound.config import Table, build, dump, merge, override, read_toml, to_table
from surebound.errors import MissingFileError, UsageError


class Loss(Protocol):
    @property
    def rho(self) -> float: ...


@dataclass(frozen=True, kw_only=True)
class Attack:
    steps: int = 8
    kind: Literal["pgd", "fgsm"] = "pgd"
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"attack: steps must be at least 1, got {self.steps}")


@dataclass(frozen=True, kw_only=True)
class Mix:
    rho: float
    attack: Attack = field(default_factory=lambda: Attack(steps=20, kind="fgsm"))
    name: str = "mix"


@dataclass(frozen=True, kw_only=True)
class Everything:
    whole: int = 1
    number: float = 0.5
    flag: bool = False
    text: str = ""
    maybe: "int | None" = None  # a hint in quotes, as under `from __future__ import annotations`
    old: Optional[str] = None  # noqa: UP045
    ratio: Fraction = Fraction(2, 255)
    choice: Literal["a", "b", 1] = "a"
    floats: tuple[float, ...] = ()
    ints: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    ratios: tuple[Fraction, ...] = ()
    pair: tuple[int, str] = (1, "x")
    choices: tuple[Literal["x", "y"], ...] = ()
    either: float | tuple[float, ...] = 0.0
    attacks: tuple[Attack, ...] = ()
    optional: Attack | None = None
    mix: Mix = field(default_factory=lambda: Mix(rho=1.0))
    ε: float = 0.25
    derived: int = field(default=7, init=False)


@dataclass(frozen=True, kw_only=True)
class Run:
    loss: Loss
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Empty:
    pass


@dataclass(frozen=True, kw_only=True)
class Ambiguous:
    either: Attack | Mix


@dataclass(frozen=True, kw_only=True)
class OnByDefault:
    lr: float | None = 0.1
    attack: Attack | None = Attack(scale=2.0)


def message(action: Any, *arguments: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        action(*arguments, **options)
    return str(caught.value)


# --- files


def test_read_toml_returns_the_table(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_text('[loss]\nrho = 0.5\nname = "é"\n', encoding="utf-8")
    assert read_toml(path) == {"loss": {"rho": 0.5, "name": "é"}}


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    missing = tmp_path / "no.toml"
    with pytest.raises(MissingFileError) as caught:
        read_toml(missing)
    assert (
        str(caught.value)
        == f"cannot read the config file '{missing}' (no such file or directory); expected a TOML file"
    )
    with pytest.raises(MissingFileError) as caught:
        read_toml(tmp_path)
    assert str(caught.value) == f"cannot read the config file '{tmp_path}' (is a directory); expected a TOML file"


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"a = 1\nb = \n", "is not valid TOML: Invalid value (at line 2, column 5)"),
        (b"a = 1\na = 2\n", "is not valid TOML: Cannot overwrite a value (at line 2, column 6)"),
        (b"a = 1\nb = '\xff'\n", "is not valid UTF-8 (at line 2); expected a TOML file"),
    ],
)
def test_a_file_that_is_not_toml(data: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(data)
    assert message(read_toml, path) == f"config file '{path}' {problem}"


@pytest.mark.parametrize("data", [b"a = " + b"9" * 5000, b"a = " + b"[" * 100_000])
def test_a_file_beyond_the_parser(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(data)
    assert message(read_toml, path).startswith(f"config file '{path}' is not valid TOML: ")


# --- tables


def test_merge_is_deep_and_the_top_wins() -> None:
    base = {"eps": 0.1, "loss": {"rho": 1, "attack": {"steps": 8}}, "list": [1, 2], "was": {"a": 1}, "is": 3}
    top = {"loss": {"attack": {"steps": 9, "kind": "pgd"}}, "list": [3], "was": 2, "is": {"b": 1}}
    merged = merge(base, top)
    assert merged == {
        "eps": 0.1,
        "loss": {"rho": 1, "attack": {"steps": 9, "kind": "pgd"}},
        "list": [3],
        "was": 2,
        "is": {"b": 1},
    }
    merged["loss"]["attack"]["steps"] = 0
    merged["list"].append(0)
    assert base["loss"] == {"rho": 1, "attack": {"steps": 8}} and top["list"] == [3]


@pytest.mark.parametrize(
    ("assignment", "expected"),
    [
        ("schedule.epochs=3", {"schedule": {"epochs": 3, "lr": 0.1}}),
        (" schedule . epochs = 3 ", {"schedule": {"epochs": 3, "lr": 0.1}}),
        ("schedule.lr=5e-4", {"schedule": {"epochs": 160, "lr": 0.0005}}),
        ("schedule=1", {"schedule": 1}),
        ("schedule={ epochs = 2 }", {"schedule": {"epochs": 2}}),
    ],
)
def test_override_replaces(assignment: str, expected: Table) -> None:
    assert override({"schedule": {"epochs": 160, "lr": 0.1}}, [assignment]) == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("'a b'", "a b"),
        ('"tab\\t"', "tab\t"),
        ("pgd", "pgd"),
        ("2/255", "2/255"),
        ("", ""),
        ("a=b", "a=b"),
        ("True", "True"),
        ("[1, 2", "[1, 2"),
        ("3#1", "3#1"),
        ("1, b = 2", "1, b = 2"),
        ("1 }\nb = { c = 2", "1 }\nb = { c = 2"),
        ("9" * 5000, "9" * 5000),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_override_takes_a_toml_value_or_else_the_text(text: str, value: object) -> None:
    result = override({}, [f"a.b={text}"])
    assert result == {"a": {"b": value}}
    assert type(result["a"]["b"]) is type(value)


def test_overrides_apply_in_order() -> None:
    assert override({}, ["a.b.c=1", "a.b.d=2", "a.b.c=3"]) == {"a": {"b": {"c": 3, "d": 2}}}


@pytest.mark.parametrize("assignment", ["epochs", "", "=3", "a.=3", ".a=3", "a..b=3", " =3"])
def test_a_malformed_override(assignment: str) -> None:
    expected = f"cannot apply the override '{assignment}'; expected key=value, as in schedule.epochs=3"
    assert message(override, {}, [assignment]) == expected


def test_an_override_through_a_value() -> None:
    expected = "cannot apply the override 'a.b.c.d=3': a.b is 5; expected a table"
    assert message(override, {"a": {"b": 5}}, ["a.b.c.d=3"]) == expected


KEYS = st.sampled_from(["a", "b", "c"])
TABLES = st.recursive(
    st.dictionaries(KEYS, st.integers() | st.lists(st.integers(), max_size=2), max_size=3),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(TABLES, st.lists(st.lists(KEYS, min_size=1, max_size=3), max_size=3))
def test_override_leaves_its_input_alone(table: Table, paths: list[list[str]]) -> None:
    before = deepcopy(table)
    try:
        result = override(table, [f"{'.'.join(path)}=[-1]" for path in paths])
    except UsageError:  # through a value
        assert table == before
        return
    assert table == before
    if paths:
        inner: Any = result
        for key in paths[-1]:
            inner = inner[key]
        assert inner == [-1]
    assert not _mutables(table) & _mutables(result)


@given(TABLES, TABLES)
def test_merge_leaves_its_inputs_alone(base: Table, top: Table) -> None:
    before = deepcopy((base, top))
    merged = merge(base, top)
    assert (base, top) == before
    assert merged.keys() == base.keys() | top.keys()
    assert merge(merged, top) == merged
    assert not _mutables(merged) & (_mutables(base) | _mutables(top))


def _mutables(value: object) -> set[int]:
    if isinstance(value, dict):
        return {id(value)}.union(*(_mutables(inner) for inner in value.values()))
    return {id(value)} if isinstance(value, list) else set()


def test_override_does_not_follow_a_shared_sub_table() -> None:
    shared = {"steps": 1}
    assert override({"a": shared, "b": shared}, ["a.steps=2"]) == {"a": {"steps": 2}, "b": {"steps": 1}}


# --- build


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("whole", -3, -3),
        ("number", 3, 3.0),
        ("number", 1e-300, 1e-300),
        ("flag", True, True),
        ("text", "a", "a"),
        ("maybe", 4, 4),
        ("old", "x", "x"),
        ("ratio", 0.1, Fraction(1, 10)),
        ("ratio", 1e-05, Fraction(1, 100_000)),
        ("ratio", 1, Fraction(1)),
        ("ratio", str(10**400), Fraction(10**400)),
        ("whole", 2**63 - 1, 2**63 - 1),
        ("ratio", "2/255", Fraction(2, 255)),
        ("ratio", "-0.1", Fraction(-1, 10)),
        ("ratio", ".5", Fraction(1, 2)),
        ("choice", "b", "b"),
        ("choice", 1, 1),
        ("floats", [1, 0.5], (1.0, 0.5)),
        ("floats", [], ()),
        ("ints", [1, 2], (1, 2)),
        ("texts", ["a"], ("a",)),
        ("ratios", ["1/3", 0.2], (Fraction(1, 3), Fraction(1, 5))),
        ("pair", [2, "y"], (2, "y")),
        ("choices", ["y", "x"], ("y", "x")),
        ("either", 2, 2.0),
        ("either", [1, 2.5], (1.0, 2.5)),
        ("attacks", [{"steps": 2}, {}], (Attack(steps=2), Attack())),
        ("optional", {"steps": 2}, Attack(steps=2)),
    ],
)
def test_build_takes(key: str, value: object, expected: object) -> None:
    got = getattr(build(Everything, {key: value}), key)
    assert got == expected
    assert type(got) is type(expected)


def test_build_leaves_defaults() -> None:
    assert build(Everything, {}) == Everything()


def test_a_sub_table_changes_only_the_keys_it_names() -> None:
    # `Mix.attack` holds 20 steps of fgsm by default, `Attack` on its own 8 of pgd.
    attack = build(Mix, {"rho": 1, "attack": {"steps": 5}}).attack
    assert (attack.steps, attack.kind) == (5, "fgsm")
    mix = build(Everything, {"mix": {"attack": {"kind": "pgd"}}}).mix
    assert (mix.rho, mix.attack.steps, mix.attack.kind) == (1.0, 20, "pgd")


def test_build_on_a_base() -> None:
    base = Mix(rho=3.0, attack=Attack(steps=2), name="base")
    assert build(Mix, {"attack": {"kind": "fgsm"}}, base=base) == Mix(
        rho=3.0, attack=Attack(steps=2, kind="fgsm"), name="base"
    )


def test_fields_built_by_the_caller_pass_through() -> None:
    loss = Mix(rho=0.5)
    run = build(Run, {"loss": {"anything": 1}, "seed": 3}, built={"loss": loss})
    assert run.loss is loss
    assert run.seed == 3


WHOLE = "a whole number from -2**63 to 2**63 - 1"
RATIO = "a number or a fraction such as '2/255'"


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({"whole": 1.0}, "whole is 1.0; expected an integer"),
        ({"whole": True}, "whole is True; expected an integer"),
        ({"whole": math.nan}, "whole is nan; expected an integer"),
        ({"number": "a"}, "number is 'a'; expected a number"),
        ({"number": False}, "number is False; expected a number"),
        ({"number": math.nan}, "number is nan; expected a finite number"),
        ({"number": -math.inf}, "number is -inf; expected a finite number"),
        ({"whole": 2**63}, f"whole is {2**63}; expected {WHOLE}"),
        ({"whole": -(10**20)}, f"whole is {-(10**20)}; expected {WHOLE}"),
        ({"number": 10**309}, f"number is 1{'0' * 199}…; expected {WHOLE}"),
        ({"ratio": 16**5000}, f"ratio is a number too long to print; expected {WHOLE}"),
        ({"ints": [1, 10**20]}, f"ints[1] is {10**20}; expected {WHOLE}"),
        ({"text": 16**5000}, f"text is a number too long to print; expected {WHOLE}"),
        ({"whole": "9" * 5000}, f"whole is '{'9' * 199}…; expected an integer"),
        ({"whole": [16**5000]}, "whole is a number too long to print; expected an integer"),
        ({"flag": 1}, "flag is 1; expected true or false"),
        ({"text": 1}, "text is 1; expected a string"),
        ({"text": math.inf}, "text is inf; expected a string"),
        ({"maybe": "a"}, "maybe is 'a'; expected an integer"),
        ({"maybe": None}, "maybe is None; expected an integer"),
        ({"ratio": "a"}, f"ratio is 'a'; expected {RATIO}"),
        ({"ratio": "1/0"}, f"ratio is '1/0'; expected {RATIO}"),
        ({"ratio": "/2"}, f"ratio is '/2'; expected {RATIO}"),
        ({"ratio": "1e999999999"}, f"ratio is '1e999999999'; expected {RATIO}"),
        ({"ratio": True}, f"ratio is True; expected {RATIO}"),
        ({"ratio": math.inf}, "ratio is inf; expected a finite number"),
        ({"choice": "c"}, "choice is 'c'; expected one of: 'a', 'b', 1"),
        ({"choice": True}, "choice is True; expected one of: 'a', 'b', 1"),
        ({"floats": 1.0}, "floats is 1.0; expected a list of numbers"),
        ({"floats": [1.0, "a"]}, "floats is [1.0, 'a']; expected a list of numbers"),
        ({"floats": [1.0, math.nan]}, "floats[1] is nan; expected a finite number"),
        ({"ints": [0.5]}, "ints is [0.5]; expected a list of integers"),
        ({"texts": "ab"}, "texts is 'ab'; expected a list of strings"),
        ({"ratios": ["a"]}, f"ratios is ['a']; expected a list of items, each {RATIO}"),
        ({"pair": [1]}, "pair is [1]; expected a list of 2 items (an integer, a string)"),
        ({"pair": ["x", 1]}, "pair is ['x', 1]; expected a list of 2 items (an integer, a string)"),
        ({"choices": ["z"]}, "choices is ['z']; expected a list of items, each one of: 'x', 'y'"),
        ({"either": "a"}, "either is 'a'; expected a number or a list of numbers"),
        ({"either": [[1.0]]}, "either is [[1.0]]; expected a number or a list of numbers"),
        ({"attacks": [{"steps": "a"}]}, "attacks[0].steps is 'a'; expected an integer"),
        ({"optional": 3}, "optional is 3; expected a table"),
        ({"optional": {"steps": "a"}}, "optional.steps is 'a'; expected an integer"),
        ({"mix": {"attack": {"kind": "x"}}}, "mix.attack.kind is 'x'; expected one of: 'pgd', 'fgsm'"),
        ({"optional": {"steps": 0}}, "attack: steps must be at least 1, got 0"),
        (
            {"mix": {"attack": {"step": 1}}},
            "unknown key 'mix.attack.step' (did you mean 'mix.attack.steps'?); expected one of: steps, kind, scale",
        ),
        ({"mix": {"zzz": 1}}, "unknown key 'mix.zzz'; expected one of: rho, attack, name"),
    ],
)
def test_build_says_what_is_wrong(table: Table, expected: str) -> None:
    assert message(build, Everything, table) == expected


def test_errors_carry_the_place_of_the_table() -> None:
    assert message(build, Mix, {"rho": "a"}, "loss") == "loss.rho is 'a'; expected a number"
    assert message(build, Mix, {}, "loss") == "loss.rho is missing; expected a number"
    assert message(build, Mix, {"rhoo": 1}, "loss") == (
        "unknown key 'loss.rhoo' (did you mean 'loss.rho'?); expected one of: rho, attack, name"
    )
    assert message(build, Mix, {}) == "rho is missing; expected a number"
    assert message(build, Run, {}) == "loss is missing; expected a table"
    assert message(build, Empty, {"a": 1}) == "unknown key 'a'; expected one of: (no keys)"
    assert message(build, Everything, {"derived": 1}).startswith("unknown key 'derived'")


def test_a_type_that_toml_cannot_say_is_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match=r"^loss has the type .*Loss.*, which cannot be read from TOML; pass it in"):
        build(Run, {"loss": {}})
    with pytest.raises(TypeError, match=r"^either has the type .*Attack \| .*Mix, which cannot be read from TOML"):
        build(Ambiguous, {"either": {}})


# --- dump


def test_dump_is_readable() -> None:
    config = Everything(optional=Attack(scale=2.0), floats=(0.1, 1e-05), ratio=Fraction(3), maybe=2)
    assert dump(config) == (
        'whole = 1\nnumber = 0.5\nflag = false\ntext = ""\nmaybe = 2\nratio = 3\nchoice = "a"\nfloats = [0.1, 1e-05]\n'
        'ints = []\ntexts = []\nratios = []\npair = [1, "x"]\nchoices = []\neither = 0.0\nattacks = []\n"ε" = 0.25\n'
        '\n[optional]\nsteps = 8\nkind = "pgd"\nscale = 2.0\n'
        '\n[mix]\nrho = 1.0\nname = "mix"\n'
        '\n[mix.attack]\nsteps = 20\nkind = "fgsm"\n'
    )


def test_dump_escapes() -> None:
    assert dump({"a b": 'é"\\\n\x00\x7f', "c": [{"d.e": True}]}) == (
        '"a b" = "é\\"\\\\\\n\\u0000\\u007f"\nc = [{ "d.e" = true }]\n'
    )


def test_dump_of_an_empty_config() -> None:
    assert dump(Empty()) == ""
    assert dump({"a": Empty()}) == "[a]\n"


def test_dump_goes_by_the_runtime_type() -> None:
    run = Run(loss=Mix(rho=0.5, name="x"), seed=3)
    table = tomllib.loads(dump(run))
    assert table["loss"] == {"rho": 0.5, "name": "x", "attack": {"steps": 20, "kind": "fgsm"}}
    assert build(Run, table, built={"loss": build(Mix, table["loss"], "loss")}) == run


def test_to_table_holds_plain_values() -> None:
    table = to_table({"a": np.float64(0.1), "b": Fraction(1, 3), "c": (1, Fraction(2)), "d": Attack()})
    assert table == {"a": 0.1, "b": "1/3", "c": [1, 2], "d": {"steps": 8, "kind": "pgd"}}
    assert type(table["a"]) is float


@pytest.mark.parametrize(
    ("config", "place"),
    [
        (Attack(scale=math.nan), "scale is nan"),
        (Mix(rho=1.0, attack=Attack(scale=-math.inf)), "attack.scale is -inf"),
        (Everything(floats=(1.0, math.inf)), "floats[1] is inf"),
        (Everything(text="a\ud800"), "text is 'a\\ud800'"),
        ({"a": {"b": None}}, "a.b is None"),
        ({"a": Attack}, f"a is {Attack!r}"),
        (1j, "config is 1j"),
        ({"a": 2**63}, f"a is {2**63}"),
    ],
)
def test_dump_refuses_what_would_not_come_back(config: object, place: str) -> None:
    assert message(dump, config) == f"{place}; expected a finite number, UTF-8 text, a list or a table"


def test_dump_refuses_a_none_that_would_come_back_as_the_default() -> None:
    expected = "is None; expected a value, because TOML has no null and its default is not None"
    assert message(dump, OnByDefault(lr=None)) == f"lr {expected}"
    assert message(dump, OnByDefault(attack=None)) == f"attack {expected}"
    assert message(dump, OnByDefault(attack=Attack())) == f"attack.scale {expected}"


INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=8) | st.sampled_from(
    ['"""', "'''", "\\", "\r\n", "\x7f", "\x85\u2028", "a = 1\n[b]", "\U0001f600"]
)
ATTACKS = st.builds(
    Attack, steps=st.integers(1, 2**63 - 1), kind=st.sampled_from(["pgd", "fgsm"]), scale=st.none() | FLOATS
)
CONFIGS = st.builds(
    Everything,
    whole=INTEGERS,
    number=FLOATS,
    flag=st.booleans(),
    text=TEXTS,
    maybe=st.none() | INTEGERS,
    old=st.none() | TEXTS,
    ratio=st.fractions(),
    choice=st.sampled_from(["a", "b", 1]),
    floats=st.lists(FLOATS, max_size=3).map(tuple),
    ints=st.lists(INTEGERS, max_size=3).map(tuple),
    texts=st.lists(TEXTS, max_size=3).map(tuple),
    ratios=st.lists(st.fractions(), max_size=3).map(tuple),
    pair=st.tuples(INTEGERS, TEXTS),
    choices=st.lists(st.sampled_from(["x", "y"]), max_size=3).map(tuple),
    either=FLOATS | st.lists(FLOATS, max_size=3).map(tuple),
    attacks=st.lists(ATTACKS, max_size=2).map(tuple),
    optional=st.none() | ATTACKS,
    mix=st.builds(Mix, rho=FLOATS, attack=ATTACKS, name=TEXTS),
    ε=FLOATS,
)


@pytest.mark.slow
@given(CONFIGS)
def test_dump_and_build_are_inverse(config: Everything) -> None:
    table = tomllib.loads(dump(config))
    assert table == to_table(config)
    back = build(Everything, table)
    assert back == config
    assert repr(back) == repr(config)  # tells -0.0 from 0.0, and 1 from 1.0


def test_a_dump_on_disk_reads_back(tmp_path: Path) -> None:
    config = Everything(text="\r\n\t\x1b\x7f\x85\u2028é\U0001f600", number=-5e-324, ratio=Fraction(-1, 3), ε=-0.0)
    path = tmp_path / "config.toml"
    path.write_text(dump(config), encoding="utf-8")
    assert repr(build(Everything, read_toml(path))) == repr(config)


@given(st.dictionaries(TEXTS, TEXTS | st.dictionaries(TEXTS, FLOATS, max_size=2), max_size=3))
def test_any_table_dumps_and_reads_back(table: Table) -> None:
    assert tomllib.loads(dump(table)) == table


@given(FLOATS)
def test_a_float_is_the_fraction_it_is_written_as(value: float) -> None:
    assert float(build(Everything, {"ratio": value}).ratio) == value
    assert build(Everything, {"ratio": value}) == build(Everything, tomllib.loads(f"ratio = {value!r}"))

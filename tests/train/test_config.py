"""Configurations of training: what a table may hold, every preset, and that what is written reads back."""

import tomllib
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from surebound.config import dump, merge, override
from surebound.errors import MissingFileError, UsageError
from surebound.network.architectures import ARCHITECTURES
from surebound.train import LOSSES
from surebound.train.config import (
    DataConfig,
    OptimiserConfig,
    Schedule,
    TrainConfig,
    at_stage,
    preset,
    presets,
    read_config,
    train_config,
)
from surebound.train.losses.ibp_r import IBPR
from surebound.train.losses.staps import STAPS

SMALL: dict[str, Any] = {"method": "ibp-r", "eps": "2/255", "data": {"name": "digits"}, "schedule": {"epochs": 4}}


def test_a_small_table_and_its_defaults() -> None:
    config = train_config(SMALL)
    assert config == TrainConfig(
        method="ibp-r",
        eps=Fraction(2, 255),
        data=DataConfig(name="digits", batch=100, augment=True, first=None),
        schedule=Schedule(epochs=4, stages=1, kappa=(0.0, 1.0)),
        loss=IBPR(half_rho=1e-4, l1=2e-5),
    )
    assert (config.seed, config.optimiser.name, config.optimiser.lr, config.validation.every) == (0, "sgd", 0.01, 10)


def test_a_tables_values_reach_the_loss_and_its_attack() -> None:
    extra = {"method": "staps", "loss": {"subselection": 0.3, "taps": {"weight": 2, "latent_attack": {"steps": 3}}}}
    loss = train_config(merge(SMALL, extra)).loss
    assert isinstance(loss, STAPS)
    default = STAPS()
    attack = replace(default.taps.latent_attack, steps=3)
    assert loss == replace(default, subselection=0.3, taps=replace(default.taps, weight=2.0, latent_attack=attack))


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"method": 3}, "method is 3; expected one of: ibp-r, colt"),
        ({"method": "ibpr"}, "unknown training method 'ibpr'; expected one of: ibp-r, colt"),
        ({"loss": 1}, "loss is 1; expected a table"),
        ({"loss": {"rho": 1}}, r"unknown key 'loss.rho'.*; expected one of: half_rho"),
        ({"loss": {"attack": {"step": 1}}}, r"unknown key 'loss.attack.step' \(did you mean 'loss.attack.steps'\?\)"),
        ({"loss": {"half_rho": -1.0}}, "ibp-r: half_rho is -1.0; expected a number at least 0"),
        ({"loss": {"attack": {"step_unit": "ell"}}}, "loss.attack.step_unit is 'ell'; expected one of: 'eps', 'pixel'"),
        ({"epsilon": 1}, r"unknown key 'epsilon'.*; expected one of: method"),
        ({"epochs": 3}, r"unknown key 'epochs' \(did you mean 'schedule.epochs'\?\); expected one of: method"),
        ({"batch": 3}, r"\(did you mean 'data.batch' or 'validation.batch'\?\)"),
        ({"eps": "two"}, "eps is 'two'; expected a number or a fraction such as '2/255'"),
        ({"eps": 8}, "eps is 8; expected a radius from 0 to 1"),
        ({"eps": -0.1}, "eps is -1/10; expected a radius from 0 to 1"),
        ({"seed": -1}, "seed is -1; expected a whole number from 0"),
        ({"seed": 1.5}, "seed is 1.5; expected an integer"),
        ({"data": {"batch": 0}}, "data.batch is 0; expected at least 1"),
        ({"data": {"first": 0}}, "data.first is 0; expected at least 1"),
        ({"schedule": {"epochs": -1}}, "schedule.epochs is -1; expected at least 1"),
        ({"schedule": {"epochs": 2.0}}, "schedule.epochs is 2.0; expected an integer"),
        ({"schedule": {"warmup": 1, "mixing": 4}}, "warmup 1 and mixing 4 exceed epochs 4; expected no more together"),
        ({"schedule": {"kappa": [0, 1.5]}}, r"schedule.kappa is \[0.0, 1.5\]; expected two numbers from 0 to 1"),
        ({"schedule": {"kappa": [1.0]}}, r"schedule.kappa is \[1.0\]; expected a list of 2 items"),
        ({"schedule": {"eps_ramp": "cubic"}}, "schedule.eps_ramp is 'cubic'; expected one of: 'linear'"),
        ({"schedule": {"inflation": [1, 2]}}, "schedule.inflation has 2 values; expected one, or one for each of 1"),
        (
            {"schedule": {"stages": 3}, "optimiser": {"lr": [0.1, 0.2]}},
            "optimiser.lr has 2 values; expected one, or one for each of 3 stages",
        ),
        ({"optimiser": {"lr": 0}}, "optimiser.lr is 0.0; expected positive numbers"),
        ({"optimiser": {"lr": [0.1, -0.1]}}, "optimiser.lr is .* expected positive numbers"),
        ({"optimiser": {"lr": "fast"}}, "optimiser.lr is 'fast'; expected a number or a list of numbers"),
        ({"optimiser": {"decay": 1.1}}, r"optimiser.decay is 1.1; expected a number in \(0, 1\]"),
        ({"optimiser": {"clip": 0}}, "optimiser.clip is 0.0; expected a positive number"),
        ({"optimiser": {"name": "lion"}}, "optimiser.name is 'lion'; expected one of: 'sgd', 'adam', 'adamw'"),
        ({"validation": {"images": 0}}, "validation.images is 0; expected at least 1"),
        ({"run": {"checkpoint_every": -1}}, "run.checkpoint_every is -1.0; expected seconds, 0 or more"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_named(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        train_config(merge(SMALL, extra))


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("ibp-r loss.attack.steps", 10_000),
        ("ibp-r loss.attack.restarts", 1_000),
        ("ibp-r loss.attack.milestones", 10**9),
        ("staps loss.taps.latent_attack.steps", 10_000),
        ("staps loss.taps.classifier_layers", 1_000),
        ("cap loss.projections", 10_000),
        ("colt loss.projections", 10_000),
        ("ibp-r schedule.epochs", 10**6),
        ("ibp-r schedule.stages", 100),
        ("ibp-r data.batch", 10**9),
        ("ibp-r data.first", 10**9),
        ("ibp-r validation.every", 10**9),
        ("ibp-r validation.images", 10**9),
        ("ibp-r validation.attack_steps", 10_000),
        ("ibp-r validation.batch", 10**9),
        ("ibp-r optimiser.decay_every", 10**9),
    ],
)
def test_counts_have_an_end(name: str, most: int) -> None:
    method, _, key = name.partition(" ")
    table = SMALL | {"method": method} | ({"loss": {"rho": [0.1]}} if method == "colt" else {})
    listed = "[{}]" if key.endswith("milestones") else "{}"
    train_config(override(table, [f"{key}={listed.format(most)}"]))
    for value in (most + 1, 10**14, 2**63 - 1):
        with pytest.raises(UsageError, match=rf"^{key} is {value}; expected at most {most}$"):
            train_config(override(table, [f"{key}={listed.format(value)}"]))


def test_every_count_of_every_method_has_an_end() -> None:
    for method, kind in LOSSES.items():
        loss = {"rho": [0.1]} if method == "colt" else {}
        made = train_config(SMALL | {"method": method, "loss": loss})
        assert type(made.loss) is kind
        for key in _counts(made):
            with pytest.raises(UsageError, match=rf"^{key} is {10**14}; expected at most"):
                train_config(override(SMALL | {"method": method, "loss": loss}, [f"{key}={10**14}"]))


def _counts(value: Any, where: str = "") -> list[str]:
    """The dotted names of all whole numbers in a configuration that are counts."""
    if type(value) is int:
        return [] if where in ("seed", "schedule.warmup", "schedule.mixing") else [where]  # the last two fit in epochs
    if not is_dataclass(value):
        return []
    pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
    return [name for key, inner in pairs for name in _counts(inner, f"{where}.{key}" if where else key)]


@pytest.mark.parametrize("key", ["method", "eps", "data", "schedule"])
def test_what_has_no_default_must_be_there(key: str) -> None:
    with pytest.raises(UsageError, match=key):
        train_config({k: v for k, v in SMALL.items() if k != key})


def test_settings_of_a_stage() -> None:
    assert [at_stage(0.5, stage) for stage in range(2)] == [0.5, 0.5]
    assert [at_stage((0.5, 0.25), stage) for stage in range(2)] == [0.5, 0.25]
    table = merge(SMALL, {"schedule": {"stages": 2, "inflation": [1.5, 1]}, "optimiser": {"lr": [0.2, 0.1]}})
    config = train_config(table)
    assert config.schedule.inflation == (1.5, 1.0) and config.optimiser == OptimiserConfig(lr=(0.2, 0.1))


# ── Presets and files ──


@pytest.mark.parametrize("name", presets())
def test_every_preset_builds(name: str) -> None:
    config = read_config(name)
    assert type(config.loss) is LOSSES[config.method]
    assert config.network.name in ARCHITECTURES
    assert config.schedule.epochs > 0 and config.eps > 0
    assert f"-{config.method}" in name
    assert train_config(tomllib.loads(dump(config))) == config


def test_presets_have_a_variant_for_a_cpu_that_is_no_longer() -> None:
    names = presets()
    assert names and not any(name.startswith("_") for name in names) and len(set(names)) == len(names)
    for name in names:
        if not name.endswith(("-cpu", "-day")):
            full, short = read_config(name), read_config(f"{name}-cpu")
            assert short.method == full.method and short.eps == full.eps and short.data.name == full.data.name
            lengths = [c.schedule.epochs * c.schedule.stages for c in (short, full)]
            assert lengths[0] <= lengths[1], name


def test_a_preset_holds_its_base_and_no_more_keys_than_a_config() -> None:
    assert preset("mnist-0.1-ibp-r")["data"]["name"] == "mnist"
    assert "cpu" not in preset("mnist-0.1-ibp-r") and "base" not in preset("mnist-0.1-ibp-r-cpu")
    for variant in ("", "-cpu", "-day"):
        assert not {"cpu", "day", "base"} & preset(f"cifar10-2-255-ibp-r{variant}").keys()
    assert preset("cifar10-2-255-ibp-r-mask-day")["schedule"] == {"epochs": 40, "mixing": 30, "inflation": 2.1}


def test_an_unknown_preset_names_close_ones() -> None:
    with pytest.raises(UsageError, match=r"unknown preset 'digit-ibp-r'; did you mean .*digits-ibp-r.*\? 'surebound"):
        read_config("digit-ibp-r")
    with pytest.raises(UsageError, match=rf"unknown preset 'zzz'; 'surebound train --list' shows all {len(presets())}"):
        read_config("zzz")
    with pytest.raises(UsageError, match="unknown preset '_digits'"):
        read_config("_digits")


def test_overrides_come_last() -> None:
    config = read_config("digits-ibp-r", ["schedule.epochs=3", "schedule.mixing=1", "eps=1/10", "loss.attack.steps=2"])
    assert config.schedule.epochs == 3 and config.eps == Fraction(1, 10)
    assert isinstance(config.loss, IBPR) and config.loss.attack.steps == 2
    assert config.loss.half_rho == read_config("digits-ibp-r").loss.half_rho  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"warmup \d+ and mixing \d+ exceed epochs 1"):
        read_config("digits-ibp-r", ["schedule.epochs=1"])


def test_a_file_is_read_by_its_ending(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(dump(SMALL))
    assert read_config(path) == read_config(str(path)) == train_config(SMALL)
    with pytest.raises(MissingFileError, match=r"nowhere\.toml"):
        read_config("nowhere.toml")


@pytest.mark.parametrize("method", LOSSES)
def test_every_methods_configuration_reads_back(method: str) -> None:
    table = merge(SMALL, {"method": method, "data": {"first": 7}, "optimiser": {"clip": 0.1, "milestones": [1, 2]}})
    if method == "colt":
        with pytest.raises(UsageError, match=r"loss\.rho has 4 values; expected one, or one for each of 1 stages"):
            train_config(table)
        table = merge(table, {"schedule": {"stages": 4}})
    config = train_config(table)
    assert type(config.loss) is LOSSES[method]
    assert train_config(tomllib.loads(dump(config))) == config

"""Presets: the numbers that the papers print, a preset for every method and setting, and that each of them trains."""

from dataclasses import replace
from fractions import Fraction
from math import isfinite
from pathlib import Path
from typing import Any

import onnx
import pytest

from surebound.network.architectures import architecture
from surebound.reproduce.scales import METHODS as TABLE1_METHODS
from surebound.reproduce.scales import SETTINGS as TABLE1_SETTINGS
from surebound.train import LOSSES
from surebound.train.config import TrainConfig, presets, read_config
from surebound.train.learner import Learner
from surebound.train.run import run
from surebound.train.schedules import Plan

SETTINGS = {
    "cifar10-2-255": "2/255",
    "cifar10-8-255": "8/255",
    "mnist-0.1": "1/10",
    "mnist-0.3": "3/10",
    "digits": "1/20",
}
METHODS = [*LOSSES, "ibp-r-mask", "colt-original"]
RESIDUAL = [f"cifar10-2-255-resnet-{method}" for method in ("ibp-r", "ibp-shi", "mtl-ibp")]
SHAPES = {"cifar10": (3, 32, 32), "mnist": (1, 28, 28), "digits": (1, 8, 8)}
SIZES = {"cifar10": 50_000, "mnist": 60_000, "digits": 1437}


def flat(config: Any, prefix: str = "") -> dict[str, Any]:
    """All settings by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in vars(config).items():
        found |= flat(value, f"{prefix}{name}.") if hasattr(value, "__dataclass_fields__") else {prefix + name: value}
    return found


def steps(config: TrainConfig) -> int:
    images = config.data.first or SIZES[config.data.name]
    return config.schedule.stages * config.schedule.epochs * (images // config.data.batch)


def affine_layers(config: TrainConfig) -> int:
    shape = SHAPES[config.data.name]
    module = architecture(config.network.name, in_shape=shape, classes=10, mean=[0.5] * shape[0], std=[0.2] * shape[0])
    return Learner(module, shape).blocks


def test_every_method_has_a_preset_for_every_setting() -> None:
    names = [f"{s}-{m}{cpu}" for s in SETTINGS for m in METHODS for cpu in ("", "-cpu")]
    days = [f"cifar10-{s}-{m}-day" for s in TABLE1_SETTINGS for m in (*TABLE1_METHODS, "colt-original")]
    residual = [f"{name}{cpu}" for name in RESIDUAL for cpu in ("", "-cpu")]
    assert sorted(presets()) == sorted(names + days + residual)
    for setting, eps in SETTINGS.items():
        for method in METHODS:
            config = read_config(f"{setting}-{method}")
            loss = method.removesuffix("-mask").removesuffix("-original")
            assert str(config.eps) == eps and config.method == loss, (setting, method)
            assert config.data.name == setting.split("-")[0] and config.seed == 0
            assert getattr(config.loss, "mask", False) == method.endswith("-mask")


# ── What the papers print ──

IBPR = {
    "optimiser.name": "sgd",
    "optimiser.lr": 1e-2,
    "optimiser.momentum": 0.9,
    "optimiser.weight_decay": 0.0,
    "optimiser.decay": 0.95,
    "optimiser.decay_every": 1,
    "optimiser.milestones": (),
    "optimiser.clip": None,
    "schedule.epochs": 800,
    "schedule.mixing": 600,
    "schedule.warmup": 0,
    "schedule.stages": 1,
    "schedule.eps_ramp": "linear",
    "schedule.kappa": (0.0, 1.0),
    "loss.attack.steps": 8,
    "loss.attack.step_size": 0.25,
    "network.initialisation": "uniform",
    "data.augment": True,
    "data.first": None,
}
IBPR_2 = {
    "network.name": "conv-2-255",
    "data.batch": 100,
    "schedule.inflation": 2.1,
    "loss.l1": 2e-5,
    "loss.half_rho": 1e-4,
}
IBPR_8 = {"network.name": "conv-8-255", "data.batch": 150, "loss.l1": 1e-5}
COLT = {
    "schedule.freeze": True,
    "schedule.epochs": 200,
    "schedule.mixing": 60,
    "schedule.eps_ramp": "constant",
    "schedule.kappa": (0.0, 1.0),
    "optimiser.name": "sgd",
    "optimiser.momentum": 0.9,
    "optimiser.decay": 0.5,
    "optimiser.decay_every": 10,
    "loss.attack.steps": 8,
    "loss.attack.step_size": 0.25,
    "loss.projections": 50,
    "loss.estimator": "geometric-mean",
    "loss.groups": "separate",
    "loss.attack.last_step": "update",
}
SHI = {
    "network.name": "cnn7",
    "network.initialisation": "ibp",
    "data.batch": 128,
    "optimiser.name": "adam",
    "optimiser.lr": 5e-4,
    "optimiser.decay": 0.2,
    "optimiser.clip": 10.0,
    "schedule.warmup": 1,
    "schedule.mixing": 80,
    "schedule.kappa": (1.0, 1.0),
}
PAPERS: dict[str, dict[str, Any]] = {
    "cifar10-2-255-ibp-r": IBPR | IBPR_2,
    "cifar10-2-255-ibp-r-mask": IBPR | IBPR_2,
    "cifar10-8-255-ibp-r": IBPR | IBPR_8 | {"schedule.inflation": 1.7, "loss.half_rho": 5e-3},
    "cifar10-8-255-ibp-r-mask": IBPR | IBPR_8 | {"schedule.inflation": 1.6, "loss.half_rho": 1e-2},
    "cifar10-2-255-colt": COLT
    | {
        "network.name": "conv-2-255",
        "data.batch": 100,
        "schedule.stages": 4,
        "schedule.inflation": (1.398, 1.271, 1.155, 1.05),
        "optimiser.lr": (0.03, 0.0225, 0.01688, 0.01266),
        "loss.rho": (0.005, 0.0075, 0.01125, 0.0),
        "loss.l1": 1e-5,
    },
    "cifar10-8-255-colt": COLT
    | {
        "network.name": "conv-8-255",
        "data.batch": 150,
        "schedule.stages": 3,
        "schedule.inflation": (1.512, 1.26, 1.05),
        "optimiser.lr": (0.03, 0.015, 0.0075),
        "loss.rho": (0.003, 0.0045, 0.0),
        "loss.l1": 5e-6,
    },
    "cifar10-8-255-ibp-shi": SHI
    | {
        "schedule.epochs": 160,
        "optimiser.milestones": (120, 140),
        "loss.regulariser": 0.5,
        "loss.tolerance": 0.5,
    },
    "cifar10-2-255-sabr": SHI | {"loss.subselection": 0.1, "loss.shrinking": 0.8, "loss.l1": 1e-6},
    "cifar10-8-255-sabr": SHI | {"loss.subselection": 0.7, "loss.l1": 0.0, "schedule.epochs": 180},
    "cifar10-2-255-mtl-ibp": SHI | {"loss.alpha": 4e-3, "loss.l1": 3e-6, "loss.attack_inflation": 2.1},
    "cifar10-2-255-cc-ibp": SHI | {"loss.alpha": 1e-2, "loss.l1": 3e-6, "loss.attack_inflation": 2.1},
    "cifar10-2-255-exp-ibp": SHI | {"loss.alpha": 9.5e-2, "loss.l1": 4e-6, "loss.attack_inflation": 2.1},
    "cifar10-8-255-mtl-ibp": SHI | {"loss.alpha": 0.5, "loss.l1": 1e-7, "schedule.epochs": 260, "loss.attack.steps": 1},
    "cifar10-2-255-taps": SHI | {"loss.classifier_layers": 6, "loss.weight": 5.0, "loss.l1": 2e-6},
    "cifar10-8-255-staps": SHI | {"loss.subselection": 0.7, "loss.taps.weight": 5.0, "loss.taps.l1": 2e-6},
    "cifar10-2-255-crown-ibp": {"loss.beta_end": 1.0, "schedule.epochs": 3200, "schedule.inflation": 1.1},
    "cifar10-8-255-crown-ibp": {"loss.beta_end": 0.0, "schedule.epochs": 3200, "schedule.inflation": 1.1},
}


@pytest.mark.parametrize("name", PAPERS)
def test_the_numbers_of_the_papers(name: str) -> None:
    found = flat(read_config(name))
    assert {key: found[key] for key in PAPERS[name]} == PAPERS[name]


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_original_colt_is_the_port_with_another_estimator_and_attack(setting: str) -> None:
    for variant in ("", "-cpu"):
        port, original = (flat(read_config(f"{setting}-{name}{variant}")) for name in ("colt", "colt-original"))
        changed = {key: (port[key], original[key]) for key in port if port[key] != original[key]}
        assert changed == {
            "loss.estimator": ("geometric-mean", "median"),
            "loss.attack.last_step": ("update", "evaluate"),
        }
        assert original["loss.groups"] == "separate"


@pytest.mark.parametrize("name", [name for name in presets() if "colt" in name])
def test_stages_of_colt_fit_the_network(name: str) -> None:
    config = read_config(name)
    stages = config.schedule.stages
    assert config.schedule.freeze and 1 < stages < affine_layers(config)
    rho = flat(config)["loss.rho"]
    assert len(rho) == stages and rho[-1] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in presets() if "taps" in name])
def test_taps_leaves_a_layer_to_intervals(name: str) -> None:
    found = flat(read_config(name))
    layers = found.get("loss.classifier_layers", found.get("loss.taps.classifier_layers"))
    assert layers < affine_layers(read_config(name))


@pytest.mark.parametrize("name", [name for name in presets() if name.endswith("-cpu")])
def test_variants_for_a_cpu_are_short_and_end_with_small_steps(name: str) -> None:
    config = read_config(name)
    small = "resnet-small" if "resnet" in name else "conv-small"
    assert config.network.name == ("fc-small" if config.data.name == "digits" else small)
    assert steps(config) <= {"cifar10": 16_000, "mnist": 13_000, "digits": 1_500}[config.data.name]
    plan = config.optimiser
    over = config.schedule.epochs - config.schedule.warmup - config.schedule.mixing - 1
    falls = len(plan.milestones) if plan.milestones else over // plan.decay_every
    assert plan.decay**falls <= 0.3, "the learning rate should end small"
    if plan.milestones:
        assert max(plan.milestones) < config.schedule.epochs


@pytest.mark.parametrize("method", TABLE1_METHODS)
@pytest.mark.parametrize("setting", TABLE1_SETTINGS)
def test_variants_for_a_day_have_the_papers_network_and_forty_epochs(setting: str, method: str) -> None:
    paper, day = (read_config(f"cifar10-{setting}-{method}{variant}") for variant in ("", "-day"))
    assert day.network.name == f"conv-{setting}" and day.data.first is None
    assert day.schedule.epochs * day.schedule.stages == (30 if (setting, method) == ("8-255", "colt") else 40)
    shares = [Fraction(c.schedule.mixing, c.schedule.epochs) for c in (paper, day)]
    assert shares[0] == shares[1]
    assert day.schedule.inflation == paper.schedule.inflation and day.eps == paper.eps
    if method in ("ibp-r", "ibp-r-mask", "colt"):
        quick = {} if method == "colt" else {"attack": replace(paper.loss.attack, precision="bf16")}
        assert (
            day.loss == replace(paper.loss, **quick)
            and day.data == paper.data
            and day.optimiser.lr == paper.optimiser.lr
        )
    plan = Plan(day.schedule, day.optimiser, float(day.eps), 10)
    last = plan.at(plan.steps - 1)
    assert last.risen == last.ramp == 1.0
    first = plan.at(plan.steps - plan.stage_steps).lr
    assert 0.009 * first < last.lr < 0.05 * first, "the last epochs should still learn, in small steps"


@pytest.mark.parametrize("name", RESIDUAL)
def test_residual_networks_have_the_losses_of_the_methods_own_presets(name: str) -> None:
    residual, own = read_config(name), read_config(name.replace("-resnet", ""))
    assert residual.network.name == "resnet-small" and residual.eps == own.eps
    assert residual.method == own.method and residual.loss == own.loss
    assert residual.schedule.inflation == own.schedule.inflation and residual.schedule.kappa == own.schedule.kappa


# ── Every method trains ──

SHORT = [
    "data.first=100",
    "schedule.epochs=2",
    "schedule.warmup=0",
    "schedule.mixing=1",
    "optimiser.milestones=[]",
    "validation.images=50",
    "validation.attack_steps=2",
]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(tmp_path: Path, method: str) -> None:
    config = read_config(f"digits-{method}-cpu", SHORT)
    result = run(config, tmp_path / "run")
    onnx.checker.check_model(str(tmp_path / "run" / "model.onnx"))
    assert result.validation is not None and result.validation.images == 50
    measured = result.validation
    assert 0 <= measured.ibp <= measured.pgd <= measured.standard <= 1
    assert all(isfinite(count) for count in measured.ambiguous)

"""What a training run is: a preset or TOML file as frozen dataclasses.

    method = "ibp-r"
    eps = "2/255"

    [data]
    name = "cifar10"
    …

The table `[loss]` holds the hyper-parameters of the method, a dataclass of its own in `surebound.train.losses`.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from surebound.config import Table, build, merge, override, read_toml, shown
from surebound.errors import UsageError
from surebound.network.architectures import ARCHITECTURES
from surebound.train import LOSSES
from surebound.train.batch import PER_STAGE, Loss
from surebound.train.initialise import INITIALISATIONS

OWN = "own"
VARIANTS = ("cpu", "day")  # of presets: minutes on two cores, and hours with the networks of the IBP-R paper
_LARGEST = 3.4028234663852886e38  # of float32
_MOST = {  # of counts, by the last part of their name: far beyond what has ever been of use, but not what never ends
    "attack_steps": 10_000,
    "classifier_layers": 1_000,
    "epochs": 10**6,
    "mixing": 10**6,
    "projections": 10_000,
    "restarts": 1_000,
    "stages": 100,
    "steps": 10_000,
    "warmup": 10**6,
}
_MOST_OTHERS = 10**9  # images, epochs between two events
PerStage = float | tuple[float, ...]
"""One value for all stages, or one for each."""


def at_stage(value: PerStage, stage: int) -> float:
    """The value of a setting in a stage."""
    return value[stage] if isinstance(value, tuple) else value


def _check_stages(name: str, value: PerStage, stages: int) -> None:
    if isinstance(value, tuple) and len(value) != stages:
        raise UsageError(f"{name} has {len(value)} values; expected one, or one for each of {stages} stages")


def _values(value: PerStage) -> tuple[float, ...]:
    return value if isinstance(value, tuple) else (value,)


def _at_least(where: str, least: int, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise UsageError(f"{where}.{name} is {value}; expected at least {least}")


def _expect_bounded(value: object, where: str = "") -> None:
    """Refuse numbers that training's arithmetic cannot hold, and counts that no run would ever reach."""
    if isinstance(value, float) and not abs(value) <= _LARGEST:
        raise UsageError(f"{where} is {value:g}; expected a number from {-_LARGEST:g} to {_LARGEST:g}, as in float32")
    most = _MOST.get(where.rpartition(".")[2], _MOST_OTHERS)
    if isinstance(value, int) and value > most and where != "seed":
        raise UsageError(f"{where} is {value}; expected at most {most}")
    if isinstance(value, tuple):
        for item in value:
            _expect_bounded(item, where)
    if is_dataclass(value):
        for field in fields(value):
            _expect_bounded(getattr(value, field.name), f"{where}.{field.name}" if where else field.name)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train on."""

    name: str  # of a data set, or a folder
    batch: int = 100  # samples per step, over all processes; the last partial batch of an epoch is dropped
    augment: bool = True  # vary images as is usual for the data set
    first: int | None = None  # train on the first so many images only

    def __post_init__(self) -> None:
        _at_least("data", 1, batch=self.batch, first=1 if self.first is None else self.first)


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """What to train."""

    name: str = "conv-small"  # or `OWN`, a module handed to `surebound.train`
    initialisation: str = "uniform"

    def __post_init__(self) -> None:
        INITIALISATIONS[self.initialisation]  # an error that lists the names, where it is unknown
        if self.name != OWN:
            ARCHITECTURES[self.name]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long, and how ε and κ rise. All lengths are epochs of one stage; ramps move with every step."""

    epochs: int
    stages: int = 1
    freeze: bool = False  # stage j trains the affine layers from j on
    warmup: int = 0  # epochs at ε = 0 and at the first κ
    mixing: int = 0  # epochs over which ε and κ rise
    eps_ramp: Literal["linear", "smooth", "constant"] = "linear"
    inflation: PerStage = 1.0  # the radius after the ramp, over eps
    kappa: tuple[float, float] = (0.0, 1.0)  # before and after the ramp

    def __post_init__(self) -> None:
        _at_least("schedule", 0, warmup=self.warmup, mixing=self.mixing)
        _at_least("schedule", 1, epochs=self.epochs, stages=self.stages)
        if self.warmup + self.mixing > self.epochs:
            raise UsageError(
                f"schedule: warmup {self.warmup} and mixing {self.mixing} exceed epochs {self.epochs}; expected no "
                "more together (to shorten a run, set schedule.mixing, too)"
            )
        if not all(0 <= k <= 1 for k in self.kappa):
            raise UsageError(f"schedule.kappa is {list(self.kappa)}; expected two numbers from 0 to 1")
        _check_stages("schedule.inflation", self.inflation, self.stages)
        _at_least("schedule", 0, inflation=min(_values(self.inflation)))


@dataclass(frozen=True, kw_only=True)
class OptimiserConfig:
    """How to step. The learning rate is multiplied by `decay` every `decay_every` epochs once the ramp is over, or at
    `milestones` (epochs), where there are any."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    lr: PerStage = 1e-2
    momentum: float = 0.9  # of sgd
    weight_decay: float = 0.0
    decay: float = 1.0
    decay_every: int = 1
    milestones: tuple[int, ...] = ()
    clip: float | None = None  # the largest norm of the gradient

    def __post_init__(self) -> None:
        _at_least("optimiser", 1, decay_every=self.decay_every)
        if not 0 < self.decay <= 1:
            raise UsageError(f"optimiser.decay is {self.decay}; expected a number in (0, 1]")
        if self.clip is not None and not self.clip > 0:
            raise UsageError(f"optimiser.clip is {self.clip}; expected a positive number")
        _at_least("optimiser", 0, momentum=self.momentum, weight_decay=self.weight_decay)
        if not self.lr or not min(_values(self.lr)) > 0:
            raise UsageError(f"optimiser.lr is {self.lr}; expected positive numbers")


@dataclass(frozen=True, kw_only=True)
class ValidationConfig:
    """What to measure on test images along the way, at radius eps. The last epoch is always measured."""

    every: int = 10  # epochs; 0 for the last only
    images: int = 1000
    attack_steps: int = 10
    batch: int = 250

    def __post_init__(self) -> None:
        _at_least("validation", 0, every=self.every)
        _at_least("validation", 1, images=self.images, attack_steps=self.attack_steps, batch=self.batch)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where to run, and what to write."""

    device: str = "cpu"
    checkpoint_every: float = 60.0  # seconds; also at the end of every stage
    tensorboard: bool = False

    def __post_init__(self) -> None:
        if not self.checkpoint_every >= 0:
            raise UsageError(f"run.checkpoint_every is {self.checkpoint_every}; expected seconds, 0 or more")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One training run."""

    method: str
    eps: Fraction  # ε_ver, the radius to be robust at
    seed: int = 0
    data: DataConfig
    network: NetworkConfig = NetworkConfig()
    schedule: Schedule
    optimiser: OptimiserConfig = OptimiserConfig()
    loss: Loss
    validation: ValidationConfig = ValidationConfig()
    run: RunConfig = RunConfig()

    def __post_init__(self) -> None:
        if not 0 <= self.eps <= 1:
            raise UsageError(f"eps is {self.eps}; expected a radius from 0 to 1, in pixels scaled to [0, 1]")
        if not 0 <= self.seed < 2**63:
            raise UsageError(f"seed is {self.seed}; expected a whole number from 0 to 2**63 - 1")
        _expect_bounded(self)
        _check_stages("optimiser.lr", self.optimiser.lr, self.schedule.stages)
        late = [m for m in self.optimiser.milestones if not 0 <= m < self.schedule.epochs]
        if late:
            raise UsageError(
                f"optimiser.milestones holds {late[0]}, which is never reached; "
                f"expected epochs of a stage, from 0 to {self.schedule.epochs - 1}"
            )
        for field in fields(self.loss):
            if PER_STAGE in field.metadata:
                _check_stages(f"loss.{field.name}", getattr(self.loss, field.name), self.schedule.stages)


def train_config(table: Mapping[str, Any]) -> TrainConfig:
    """A run from the table of a TOML file, with its loss as the method says."""
    if not isinstance(table.get("method"), str):
        raise UsageError(f"method is {shown(table.get('method'))}; expected one of: {', '.join(LOSSES)}")
    of_loss = table.get("loss", {})
    if not isinstance(of_loss, Mapping):
        raise UsageError(f"loss is {shown(of_loss)}; expected a table")
    loss = build(LOSSES[table["method"]], of_loss, "loss")
    return build(TrainConfig, {k: v for k, v in table.items() if k != "loss"}, built={"loss": loss})


def read_config(source: str | Path, assignments: Sequence[str] = ()) -> TrainConfig:
    """A run from a TOML file or, if `source` is a string without the ending .toml, a preset."""
    table = preset(source) if isinstance(source, str) and not source.endswith(".toml") else read_toml(Path(source))
    return train_config(override(table, assignments))


def presets() -> list[str]:
    """The names of all presets, each with its variants."""
    return list(_names())


def preset(name: str) -> Table:
    """The table of a preset: its own keys over those of its `base` and, for NAME-cpu, those of their `[cpu]` tables.

    Every preset has a variant for a CPU, the same as itself where it has no such table; NAME-day is where `[day]` is.
    """
    known = presets()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UsageError(f"unknown preset '{name}'; {hint}'surebound train --list' shows all {len(known)}")
    wanted = next((v for v in VARIANTS if name.endswith(f"-{v}")), None)
    table = _read_preset(name if wanted is None else name.removesuffix(f"-{wanted}"))
    changes = {variant: table.pop(variant, {}) for variant in VARIANTS}
    return table if wanted is None else merge(table, changes[wanted])


@cache
def _names() -> tuple[str, ...]:
    found = []
    for name in sorted(f.name.removesuffix(".toml") for f in _folder().iterdir() if f.name.endswith(".toml")):
        if not _is_base(name):
            found += [name, f"{name}-cpu", *([f"{name}-day"] if "day" in _read_preset(name) else [])]
    return tuple(found)


def _folder() -> Any:
    return resources.files("surebound.train") / "presets"


def _is_base(name: str) -> bool:
    return name.startswith("_")


def _read_preset(name: str) -> Table:
    with resources.as_file(_folder() / f"{name}.toml") as path:
        table = read_toml(path)
    base = table.pop("base", None)
    return table if base is None else merge(_read_preset(base), table)

"""Where a reproduction lives: the files of its folder, and what training in it means."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surebound.errors import UsageError
from surebound.reproduce.scales import SCALES, Scale, Training

if TYPE_CHECKING:
    from surebound.train.config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Place:
    """An output folder and what all work in it shares."""

    out: str
    scale_name: str
    data_dir: str | None = None
    device: str = "cpu"  # to train on
    command: str = ""  # for the record

    @property
    def path(self) -> Path:
        return Path(self.out)

    def absolute(self) -> "Place":
        """The same place for processes that work in another folder."""
        data_dir = None if self.data_dir is None else str(Path(self.data_dir).absolute())
        return replace(self, out=str(self.path.absolute()), data_dir=data_dir)

    @property
    def scale(self) -> Scale:
        return SCALES[self.scale_name]

    @property
    def trials(self) -> Path:
        """Where trainings are only tried, for a while."""
        return self.path / ".trials"

    def store(self, experiment: str) -> Path:
        """The results of an experiment."""
        return self.path / f"{experiment}.sqlite"

    def folder(self, training: Training) -> Path:
        """Where a training is trained."""
        return self.path / training.folder

    def config(self, training: Training) -> "TrainConfig":
        """How a training is trained."""
        from surebound.train.config import read_config

        preset, changes = self.scale.preset_of(training)
        config = read_config(preset, changes)
        return replace(config, run=replace(config.run, device=self.device))

    def trained(self, training: Training) -> bool:
        """Whether a training has ended; an error if its folder holds another one."""
        from surebound.config import read_toml, to_table
        from surebound.train.folder import differences

        folder = self.folder(training)
        if not (folder / "config.toml").exists():
            return False
        found = differences(read_toml(folder / "config.toml"), to_table(self.config(training)))
        if found := [name for name in found if not name.startswith("run.")]:
            raise UsageError(
                f"'{folder}' holds a training that is not of scale {self.scale.name} (it differs in "
                f"{', '.join(found)}); expected the scale that this folder began with, or another --out"
            )
        return (folder / "model.onnx").exists()

    def training_seconds(self, training: Training) -> float:
        """How long a training took, over all its interruptions."""
        seconds = 0.0
        for line in (self.folder(training) / "metrics.jsonl").read_text().splitlines():
            record = json.loads(line)
            seconds = record.get("seconds", seconds)
        return float(seconds)

    def notes(self, experiment: str, training: Training, **more: Any) -> dict[str, Any]:
        """What the store keeps about a run, for tables."""
        notes = {"experiment": experiment, "setting": str(training.eps), **more}
        return notes | {"scale": self.scale.name, "folder": training.folder}


def begun(place: Place, trainings: Sequence[Training]) -> bool:
    """Whether any of the trainings has begun."""
    return any((place.folder(training) / "config.toml").exists() for training in trainings)

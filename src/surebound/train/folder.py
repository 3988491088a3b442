"""The output folder of a run.

config.toml              the whole configuration, defaults included
metrics.jsonl            one JSON object per line: {"kind": "epoch", …} and {"kind": "validation", …}
checkpoint.safetensors   all that is needed to go on; written atomically
weights.safetensors      at the end: the weights
model.onnx               at the end: the network, checked against onnxruntime
curves.png               at the end: the metrics as curves
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import rmtree
from typing import Any, final

import torch
from torch import nn

from surebound.config import dump, read_toml, to_table
from surebound.errors import UsageError
from surebound.files import claim, make_folder, replacing
from surebound.network.op import Shape
from surebound.train.checkpoint import Checkpoint, restore_weights, save_weights
from surebound.train.checkpoint import load as load_checkpoint
from surebound.train.checkpoint import save as save_checkpoint
from surebound.train.config import TrainConfig
from surebound.train.metrics import read_metrics, validation_of
from surebound.train.validate import Validation


@final
class Folder:
    """Reads and writes the files of one run."""

    def __init__(self, path: Path, config: TrainConfig) -> None:
        self.path = path
        self._config = config
        self._board: Any = None
        self._before: _Before | None = None
        self._claimed: int | None = None  # a descriptor of the folder, which holds a lock

    def begin(self) -> None:
        """Make the folder, which must hold no run yet."""
        self._before = _Before(self.path)
        taken = ("checkpoint.safetensors", "weights.safetensors")
        if any((self.path / name).exists() for name in taken):  # what failed before its first checkpoint is no run
            raise UsageError(f"'{self.path}' already holds a run; expected a new folder, or --resume to go on with it")
        self._make()
        self._claim()
        (self.path / "metrics.jsonl").write_text("")
        with replacing(self.path / "config.toml") as partial:
            partial.write_text(dump(self._config))
        self._open_board()

    def forget(self) -> None:
        """Undo `begin`, for a run that never made a step."""
        if self._board is not None:
            self._board.close()
            self._board = None
        if self._before is not None:
            self._before.restore()

    def reopen(self) -> None:
        """Check that the folder holds this very run, or begin it."""
        written = self.path / "config.toml"
        if not written.exists():
            self.begin()
            return
        self._claim()
        self._open_board()
        differing = differences(read_toml(written), to_table(self._config))
        if differing := [name for name in differing if not name.startswith("run.")]:
            raise UsageError(
                f"'{self.path}' holds a run with another configuration (it differs in {', '.join(differing)}); "
                "expected the same one to resume"
            )
        self.records()  # here, where all processes learn of what is damaged

    def _make(self) -> None:
        make_folder(self.path)

    def _claim(self) -> None:
        """Keep other processes from training in this folder until `release`, or until this one ends."""
        self._claimed = claim(self.path)
        if self._claimed is None:
            raise UsageError(
                f"another process is training in '{self.path}'; expected it to end first, or another folder"
            )

    def release(self) -> None:
        """Let others train here."""
        if self._claimed is not None:
            os.close(self._claimed)
            self._claimed = None

    def record(self, record: Mapping[str, Any]) -> None:
        """Append a line to the metrics."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")
        if self._board is not None:
            for name, value in _scalars(record, str(record["kind"])):
                self._board.add_scalar(name, value, record["step"])

    def records(self) -> list[dict[str, Any]]:
        """All lines of the metrics; a last one that was cut short by a kill does not count."""
        return read_metrics(self.path / "metrics.jsonl")

    def rewind(self, step: int) -> Validation | None:
        """Drop what was written after a step, which will be written again; the last validation that stays."""
        kept = [r for r in self.records() if r["step"] <= step]
        path = self.path / "metrics.jsonl"
        fresh = path.with_suffix(".tmp")
        fresh.write_text("".join(json.dumps(r) + "\n" for r in kept))
        os.replace(fresh, path)
        last = [r for r in kept if r["kind"] == "validation"]
        return validation_of(last[-1]) if last else None

    def save(
        self, module: nn.Module, optimiser: torch.optim.Optimizer, *, step: int, stage: int, tally: Mapping[str, Any]
    ) -> None:
        """Write the checkpoint after a number of steps."""
        state = Checkpoint(
            weights=dict(module.state_dict()),
            optimiser=optimiser.state_dict(),
            step=step,
            stage=stage,
            meta={"tally": dict(tally)},
        )
        save_checkpoint(self.path / "checkpoint.safetensors", state)

    def restore(self, module: nn.Module) -> Checkpoint | None:
        """Put the checkpoint's weights into the module; the rest of it, or None if the run wrote none yet."""
        path = self.path / "checkpoint.safetensors"
        if not path.exists():
            return None
        found = load_checkpoint(path)
        restore_weights(module, found.weights, source=f"'{path}'")
        return found

    def finish(self, module: nn.Sequential, in_shape: Shape) -> None:
        """Write what others read: weights, network and curves."""
        from surebound.train.curves import draw_curves
        from surebound.train.export import export_onnx

        save_weights(self.path / "weights.safetensors", module)
        export_onnx(module, in_shape, self.path / "model.onnx")
        draw_curves(self.records(), self.path / "curves.png")
        if self._board is not None:
            self._board.close()

    def _open_board(self) -> None:
        """Have the same numbers written for TensorBoard, where they are wanted."""
        if not self._config.run.tensorboard:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise UsageError("run.tensorboard needs the package tensorboard: pip install tensorboard") from error
        self._board = SummaryWriter(str(self.path / "tensorboard"))


@final
class _Before:
    """What a folder held before a run began in it."""

    def __init__(self, path: Path) -> None:
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]  # innermost first
        self._files = {path / name: _content(path / name) for name in ("metrics.jsonl", "config.toml")}
        self._board = None if (path / "tensorboard").exists() else path / "tensorboard"

    def restore(self) -> None:
        """Have it hold that again. What cannot be undone stays: the failure that led here is what matters."""
        with suppress(OSError):
            for file, content in self._files.items():
                file.unlink(missing_ok=True) if content is None else file.write_bytes(content)
            if self._board is not None:
                rmtree(self._board, ignore_errors=True)
            for folder in self._made:
                folder.rmdir()


def _content(file: Path) -> bytes | None:
    try:
        return file.read_bytes()
    except OSError:
        return None


def _scalars(value: Any, name: str) -> list[tuple[str, float]]:
    if isinstance(value, Mapping):
        return [pair for key, inner in value.items() for pair in _scalars(inner, f"{name}/{key}")]
    if isinstance(value, list | tuple):
        return [pair for index, inner in enumerate(value) for pair in _scalars(inner, f"{name}/{index}")]
    return [] if isinstance(value, str) else [(name, float(value))]


def differences(old: Mapping[str, Any], new: Mapping[str, Any], where: str = "") -> list[str]:
    """The dotted keys in which two tables differ.

    >>> differences({"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}})
    ['b.c']
    """
    found = []
    for key in sorted({*old, *new}):
        name, before, after = f"{where}{key}", old.get(key), new.get(key)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            found += differences(before, after, f"{name}.")
        elif before != after:
            found.append(name)
    return found

"""Checkpoints: all that a run needs to continue exactly, in one safetensors file. Nothing is ever unpickled.

Weights and the tensors of the optimiser's state are tensors of the file. Everything else is JSON in its metadata, where
numbers come back exactly as they were, with a checksum over all of it. Tensors are stored in plain order whatever their
layout in memory; `restore_weights` and `restore_optimiser` copy them into the layout of the module's parameters, since
arithmetic in another layout may round differently.
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from surebound.errors import MissingFileError, UsageError
from surebound.files import replacing

FORMAT = "surebound checkpoint 1"
_KEY = "surebound"  # of the metadata: a single one, because safetensors writes several in any order
_WEIGHTS, _OPTIMISER = "weights.", "optimiser."


@dataclass(frozen=True, eq=False, kw_only=True)
class Checkpoint:
    """A run at rest."""

    weights: dict[str, Tensor]  # Module.state_dict()
    optimiser: dict[str, Any]  # Optimizer.state_dict()
    step: int
    stage: int
    meta: dict[str, Any]  # anything JSON can hold


def save(path: str | Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint in place of the last one, which stays until the new one is complete."""
    tensors = {_WEIGHTS + name: _plain(tensor) for name, tensor in checkpoint.weights.items()}
    optimiser = _pack(checkpoint.optimiser, _OPTIMISER, tensors)
    record = {
        "format": FORMAT,
        "step": checkpoint.step,
        "stage": checkpoint.stage,
        "optimiser": optimiser,
        "meta": checkpoint.meta,
    }
    text = json.dumps(record)
    metadata = {_KEY: json.dumps({"checksum": _checksum(text, tensors), "record": text})}
    with replacing(path) as partial:
        _write(partial, tensors, metadata)


def load(path: str | Path) -> Checkpoint:
    """Read a checkpoint; a file that is damaged, or no checkpoint, is a UsageError."""
    tensors, metadata = _read(path)
    if _KEY not in metadata:
        raise UsageError(f"'{path}' is not a checkpoint of surebound; expected a file that a training run saved")
    try:
        outer = json.loads(metadata[_KEY])
        text, checksum = outer["record"], outer["checksum"]
        if _checksum(text, tensors) != checksum:
            raise UsageError(f"checkpoint '{path}' is damaged: its checksum does not match; expected a whole file")
        record = json.loads(text)
        if record["format"] != FORMAT:
            raise UsageError(f"checkpoint '{path}' has the format '{record['format']}'; expected '{FORMAT}'")
        weights = {name.removeprefix(_WEIGHTS): t for name, t in tensors.items() if name.startswith(_WEIGHTS)}
        optimiser = _unpack(record["optimiser"], tensors)
        return Checkpoint(
            weights=weights, optimiser=optimiser, step=record["step"], stage=record["stage"], meta=record["meta"]
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"checkpoint '{path}' is damaged; expected a file that a training run saved") from error


def save_weights(path: str | Path, module: nn.Module) -> None:
    """Write a module's parameters and buffers under their own names."""
    with replacing(path) as partial:
        _write(partial, {name: _plain(t) for name, t in module.state_dict().items()}, {"format": "pt"})


def load_weights(path: str | Path, module: nn.Module) -> None:
    """Read a module's parameters and buffers."""
    restore_weights(module, _read(path)[0], source=f"'{path}'")


def restore_weights(module: nn.Module, weights: Mapping[str, Tensor], *, source: str = "the checkpoint") -> None:
    """Copy weights into a module, all or none; its parameters stay the same tensors, in the same memory layout."""
    own = module.state_dict()
    for name in own | dict(weights):
        if name not in own or name not in weights:
            where = "the network" if name in own else "the file"
            raise UsageError(f"{source} does not fit the network: only {where} has '{name}'; expected the same names")
        _check_fits(weights[name], own[name], f"'{name}' of {source}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def restore_optimiser(
    optimiser: torch.optim.Optimizer, state: Mapping[str, Any], *, source: str = "the checkpoint"
) -> None:
    """Give an optimiser the state it had, in the memory layout of its parameters."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    groups = [len(group["params"]) for group in optimiser.param_groups]
    stored = [len(group["params"]) for group in state["param_groups"]]
    if stored != groups:
        raise UsageError(f"{source} has an optimiser of {stored} parameters; expected {groups}")
    # The file counts parameters through all groups, as torch does.
    placed = {
        index: {
            name: _placed(value, parameters[index], f"'{name}' of parameter {index} of {source}")
            for name, value in entries.items()
        }
        for index, entries in state["state"].items()
    }
    optimiser.load_state_dict({"state": placed, "param_groups": state["param_groups"]})


def _placed(value: Any, parameter: Tensor, what: str) -> Any:
    if not isinstance(value, Tensor):
        return value
    if value.ndim == 0:  # a counter
        return value.clone()
    _check_fits(value, parameter, what)
    return torch.empty_like(parameter, requires_grad=False).copy_(value)


def _check_fits(tensor: Tensor, like: Tensor, what: str) -> None:
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise UsageError(
            f"{what} is {tensor.dtype} of shape {list(tensor.shape)}; expected {like.dtype} of shape {list(like.shape)}"
        )


def _plain(tensor: Tensor) -> Tensor:
    """A copy in plain order, on the CPU, that shares memory with nothing."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """The value as JSON that `_unpack` turns back; its tensors go to `tensors`."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Tensor():
            tensors[name] = _plain(value)
            return {"tensor": name}
        case list():
            return [_pack(v, f"{name}{i}.", tensors) for i, v in enumerate(value)]
        case tuple():
            return {"tuple": [_pack(v, f"{name}{i}.", tensors) for i, v in enumerate(value)]}
        case dict():  # as pairs, because keys may be numbers
            return {"dict": [[key, _pack(v, f"{name}{key}.", tensors)] for key, v in value.items()]}
    raise TypeError(f"{name} is a {type(value).__name__}, which a checkpoint cannot hold")


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(v, tensors) for v in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "tuple":
        return tuple(_unpack(v, tensors) for v in content)
    return {key: _unpack(v, tensors) for key, v in content}


def _checksum(text: str, tensors: Mapping[str, Tensor]) -> int:
    """Of the text, and of the names, types, shapes and bytes of the tensors."""
    value = zlib.crc32(text.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        value = zlib.crc32(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return value


def _write(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # how it reports a disk that is full or a folder that is not there
        raise OSError(str(error)) from error


def _read(path: str | Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors, free of the file, and metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise UsageError(f"'{path}' is damaged or not a safetensors file ({error}); expected a whole one") from error
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise MissingFileError(f"cannot read '{path}' ({reason}); expected a safetensors file") from error

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
from math import inf
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from surebound.config import shown
from surebound.errors import MissingFileError, UsageError, reason
from surebound.files import replacing

FORMAT = "surebound checkpoint 1"
_KEY = "surebound"  # of the metadata: a single one, because safetensors writes several in any order
_WEIGHTS, _OPTIMISER = "weights.", "optimiser."
_COUNTER = "step"  # of an optimiser's state: the one entry that is not shaped like its parameter


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
        step, stage, meta = record["step"], record["stage"], record["meta"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UsageError(f"checkpoint '{path}' is damaged; expected a file that a training run saved") from error
    for name, count in (("step", step), ("stage", stage)):
        if type(count) is not int or count < 0:
            raise UsageError(f"checkpoint '{path}' has {shown(count)} as its {name}; expected a whole number from 0 up")
    for name, table in (("optimiser", optimiser), ("meta", meta)):
        if not isinstance(table, dict):
            raise UsageError(f"checkpoint '{path}' has {shown(table)} as its {name}; expected a table")
    return Checkpoint(weights=weights, optimiser=optimiser, step=step, stage=stage, meta=meta)


def save_weights(path: str | Path, module: nn.Module) -> None:
    """Write a module's parameters and buffers under their own names."""
    with replacing(path) as partial:
        _write(partial, {name: _plain(t) for name, t in module.state_dict().items()}, {"format": "pt"})


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
    """Give an optimiser the state it had, in the memory layout of its parameters.

    Its settings are its own, apart from the learning rates, which change from step to step.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    own, stored = optimiser.state_dict()["param_groups"], _list_of_tables(state.get("param_groups"))
    counts = [len(group["params"]) if isinstance(group.get("params"), list) else 0 for group in stored]
    expected = [len(group["params"]) for group in own]
    if counts != expected:
        raise UsageError(f"{source} has an optimiser of {counts} parameters; expected {expected}")
    groups = [mine | {"lr": _rate(theirs.get("lr"), source)} for mine, theirs in zip(own, stored, strict=True)]
    names = [_state_names(group) for group in own for _ in group["params"]]
    entries = state.get("state")
    if not isinstance(entries, dict) or (any(names) and not entries):
        raise UsageError(f"{source} has {shown(entries)} as its optimiser's state; expected one for each parameter")
    placed = {}
    for index, entry in entries.items():  # the file counts parameters through all groups, as torch does
        if type(index) is not int or not 0 <= index < len(parameters):
            last = len(parameters) - 1
            raise UsageError(f"{source} has a state of parameter {shown(index)}; expected parameters from 0 to {last}")
        placed[index] = _placed(entry, parameters[index], names[index], f"of parameter {index} of {source}")
    optimiser.load_state_dict({"state": placed, "param_groups": groups})


def _list_of_tables(value: object) -> list[dict[str, Any]]:
    return value if isinstance(value, list) and all(isinstance(item, dict) for item in value) else []


def _rate(value: object, source: str) -> float:
    if type(value) not in (float, int) or not 0 < value < inf:  # type: ignore[operator]
        raise UsageError(f"{source} has {shown(value)} as a learning rate; expected a positive number")
    return cast(float, value)


def _state_names(group: Mapping[str, Any]) -> set[str]:
    """What SGD, Adam and AdamW keep for each parameter of a group once they have made a step."""
    if "betas" in group:
        return {_COUNTER, "exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])}
    return {"momentum_buffer"} if group["momentum"] else set()


def _placed(entry: object, parameter: Tensor, names: set[str], what: str) -> dict[str, Tensor]:
    """The optimiser's state of one parameter, in its memory layout."""
    found = {name: value for name, value in entry.items() if value is not None} if isinstance(entry, dict) else {}
    if found.keys() != names:
        has, wanted = (", ".join(sorted(map(str, some))) or "nothing" for some in (found, names))
        raise UsageError(f"the optimiser's state {what} holds {has}; expected {wanted}")
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise UsageError(f"'{name}' {what} is {shown(value)}; expected a tensor")
        like = torch.zeros((), device="cpu") if name == _COUNTER else parameter
        _check_fits(value, like, f"'{name}' {what}")
        if name == _COUNTER and not 0 <= float(value) < inf:
            raise UsageError(f"'{name}' {what} is {float(value)}; expected a count of steps")
        found[name] = torch.empty_like(like, requires_grad=False).copy_(value)
    return found


def _check_fits(tensor: Tensor, like: Tensor, what: str) -> None:
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise UsageError(
            f"{what} is {tensor.dtype} of shape {list(tensor.shape)}; expected {like.dtype} of shape {list(like.shape)}"
        )


def _plain(tensor: Tensor) -> Tensor:
    """A copy in plain order, on the CPU, that shares memory with nothing."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.detach())


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
        raise MissingFileError(f"cannot read '{path}' ({reason(error)}); expected a safetensors file") from error

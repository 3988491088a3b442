"""A run from its configuration to its output folder."""

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from surebound.data import load_dataset
from surebound.data.dataset import Dataset
from surebound.errors import UsageError
from surebound.network.architectures import architecture
from surebound.train.chain import Chain
from surebound.train.config import TrainConfig
from surebound.train.folder import Folder
from surebound.train.initialise import initialise_network
from surebound.train.loop import Loop, OnProgress
from surebound.train.parallel import World, join, leave
from surebound.train.validate import Validation


@dataclass(frozen=True, eq=False, kw_only=True)
class TrainResult:
    """What a run leaves behind."""

    folder: Path
    module: nn.Sequential  # in evaluation mode
    validation: Validation | None  # the last one; None in processes other than the first
    seconds: float  # of this process, since it started or resumed


def run(
    config: TrainConfig,
    out: Path,
    *,
    dataset: Dataset | None = None,
    module: nn.Sequential | None = None,
    data_dir: Path | None = None,
    resume: bool = False,
    on_progress: OnProgress | None = None,
) -> TrainResult:
    """Train, and write the output folder. Under torchrun, all processes call this."""
    begin = time.monotonic()
    device = _device(config.run.device)
    dataset = load_dataset(config.data.name, data_dir) if dataset is None else dataset
    chain = Chain(network(config, dataset) if module is None else module, dataset.shape)
    chain.module.to(device)
    folder = Folder(out, config)
    world = join(device)
    try:
        _share(chain.module, world)
        loop = Loop(config, chain, dataset, folder, world=world, on_progress=on_progress)
        if world.is_main:
            folder.reopen() if resume else folder.begin()
        if world.size > 1:
            dist.barrier()
        chain.module.train()
        validation = loop.run(resume=resume)
        chain.module.eval().requires_grad_(True)
        if world.is_main:
            folder.finish(chain.module.cpu(), chain.in_shape)
        return TrainResult(folder=out, module=chain.module, validation=validation, seconds=time.monotonic() - begin)
    finally:
        leave()


def network(config: TrainConfig, dataset: Dataset) -> nn.Sequential:
    """The network of a run before its first step."""
    torch.manual_seed(config.seed)
    made = architecture(
        config.network.name,
        in_shape=dataset.shape,
        classes=len(dataset.classes),
        mean=dataset.mean,
        std=dataset.std,
    )
    initialise_network(made, config.network.initialisation)
    return made


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"run.device is '{name}', which cannot be used here: {reason}") from error
    return device


def _share(module: nn.Module, world: World) -> None:
    """All processes begin with the weights of the first."""
    if world.size > 1:
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, 0)

"""Several processes that share each batch: `torchrun --nproc-per-node 2 -m surebound train …`.

Every process holds the whole network and a slice of the batch. Gradients are averaged after the backward pass; what a
loss computes over the whole batch that is not a mean of per-sample terms goes through `mean_over_processes`.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from surebound.errors import TrainingError, UsageError
from surebound.train.meeting import meet


@dataclass(frozen=True)
class World:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def share(self, count: int) -> slice:
        """This process's part of a batch of `count` samples."""
        if count % self.size:
            raise UsageError(f"a batch of {count} does not divide into {self.size} processes of equal share")
        each = count // self.size
        return slice(self.rank * each, (self.rank + 1) * each)


def announced() -> World:
    """The processes that torchrun says it started; one, if there is no torchrun."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in os.environ for name in names[:2]):
        return World()
    if missing := [name for name in names if not os.environ.get(name)]:
        raise UsageError(f"RANK and WORLD_SIZE are set, but {' and '.join(missing)} not; expected all four of torchrun")
    rank, size, _, port = (os.environ[name] for name in names)
    if not _is_count(size, 1, 10**6) or not _is_count(rank, 0, int(size) - 1):
        raise UsageError(f"RANK is '{rank}' and WORLD_SIZE '{size}'; expected whole numbers, RANK below WORLD_SIZE")
    if not _is_count(port, 0, 65535):
        raise UsageError(f"MASTER_PORT is '{port}'; expected a port from 0 to 65535")
    return World(int(rank), int(size))


def _is_count(text: str, low: int, high: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high


def join(device: torch.device) -> World:
    """Join the processes that torchrun started, if it did."""
    if dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size())
    world = announced()
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return world
    try:
        store = meet(world.rank, world.size)
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", store=store, rank=world.rank, world_size=world.size
        )
    except (RuntimeError, ValueError, OSError) as error:
        where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"process {world.rank} of {world.size} cannot join the others at {where} ({reason}); "
            "expected all of them to be started, as torchrun does"
        ) from error
    return world


def first_alone(world: World, device: torch.device, action: Callable[[], None]) -> None:
    """Have the first process do something while the others wait for its end; where it fails, all do."""
    failed: Exception | None = None
    if world.is_main:
        try:
            action()
        except Exception as error:  # whatever it is, the others must not wait for ever
            failed = error
    if world.size > 1:
        fine = torch.tensor(float(failed is None), device=device)
        dist.broadcast(fine, 0)
        if failed is None and not fine:
            failed = UsageError("the first process could not go on with this run")
    if failed is not None:
        raise failed


def leave() -> None:
    """Leave the group of processes."""
    if dist.is_initialized():
        dist.destroy_process_group()


class _Mean(torch.autograd.Function):
    """The mean over processes, of values forwards and of gradients backwards.

    Every process back-propagates its own share of the loss, and the mean over processes is what is minimised: its
    gradient with respect to one process's value is the mean of all processes' gradients with respect to the shared one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return _average(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return _average(gradients[0])


def _average(x: Tensor) -> Tensor:
    return _sum(x.clone()) / dist.get_world_size()


def _sum(x: Tensor) -> Tensor:
    """Replace x by its sum over processes. All of them have to be there: where one has died, the others end, too."""
    try:
        dist.all_reduce(x)
    except RuntimeError as error:
        raise TrainingError(
            "another process of this training is gone; --resume goes on from the last checkpoint, and torchrun's "
            "--max-restarts N does so by itself"
        ) from error
    return x


def mean_over_processes(x: Tensor) -> Tensor:
    """The mean of x over all processes, with gradients; x itself where there is one process."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return x
    return cast(Tensor, _Mean.apply(x))  # type: ignore[no-untyped-call]


def average_gradients(parameters: list[torch.nn.Parameter]) -> None:
    """Replace every gradient by its mean over processes, in one message."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    gradients = [p.grad for p in parameters if p.grad is not None]
    flat = _sum(torch.cat([g.flatten() for g in gradients]))
    flat /= dist.get_world_size()
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(part.reshape(g.shape))

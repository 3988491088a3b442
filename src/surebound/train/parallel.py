"""Several processes that share each batch: `torchrun --nproc-per-node 2 -m surebound train …`.

Every process holds the whole network and a slice of the batch. Gradients are averaged after the backward pass; what a
loss computes over the whole batch that is not a mean of per-sample terms goes through `mean_over_processes`.
"""

import os
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from surebound.errors import UsageError


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


def join(device: torch.device) -> World:
    """Join the processes that torchrun started, if it did."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return World()
    if not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return World(dist.get_rank(), dist.get_world_size())


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
    total = x.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


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
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for g, part in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        g.copy_(part.reshape(g.shape))

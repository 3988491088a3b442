"""What a loss is given and what it returns.

A loss is a frozen dataclass of its hyper-parameters that can be called: `loss(learner, batch) -> Terms`. It sees the
network as a `Learner` and everything that changes with time through the `Batch`; it keeps no state of its own.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, final

import numpy as np
import torch
from torch import Tensor

from surebound.train.learner import Learner


@final
class Draws:
    """The random numbers of one step, made from (seed, stream, step) alone.

    A step's numbers do not depend on what was drawn before, so that a run can resume anywhere, nor on how many
    processes share the batch: each draws for the whole batch and keeps its part.
    """

    def __init__(self, *key: int, size: int, part: slice | None = None, device: torch.device | None = None) -> None:
        state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
        self.generator = torch.Generator("cpu").manual_seed(int(state >> np.uint64(1)))
        self._size, self._part, self._device = size, part or slice(None), device

    def uniform(self, *shape: int) -> Tensor:
        """U[0, 1) for every sample of this process. # (batch, *shape)"""
        return torch.rand(self._size, *shape, generator=self.generator, device="cpu")[self._part].to(self._device)

    def shared(self, *shape: int) -> Tensor:
        """U[0, 1), the same in every process. # (*shape)"""
        return torch.rand(*shape, generator=self.generator, device="cpu").to(self._device)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Batch:
    """Samples, and where in the schedule they come."""

    x: Tensor  # (batch, *in_shape) pixels in [0, 1]
    y: Tensor  # (batch,) int64
    eps: float  # the radius of this step
    kappa: float  # κ of this step: the weight of the robust part
    ramp: float  # how much of the ramp is over, from 0 to 1
    risen: float  # eps over the radius that it rises to, from 0 to 1
    stage: int = 0
    draws: Draws

    @property
    def box(self) -> tuple[Tensor, Tensor]:
        """The ends of the box of radius eps, clipped to pixels."""
        return (self.x - self.eps).clamp_min(0.0), (self.x + self.eps).clamp_max(1.0)


@final
@dataclass(frozen=True, eq=False)
class Terms:
    """A loss: what to minimise, and what it is made of, for the log."""

    total: Tensor  # ()
    parts: dict[str, Tensor] = field(default_factory=dict)  # () each, detached


PER_STAGE = "per stage"
"""In the metadata of a loss's field: it has a value for each stage of the schedule."""


class Loss(Protocol):
    """What every entry of `surebound.train.LOSSES` makes: a frozen dataclass of hyper-parameters."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        """The loss of this process's share of a batch, as a mean over samples."""
        ...

"""The attack inside training: projected gradient ascent on the cross-entropy (Madry et al. 2018).

It differs from `surebound.attacks.pgd` in purpose: one start, few steps, a whole batch at once, and gradients to the
inputs only. Nothing here decides a verdict.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import UsageError
from surebound.train.batch import Batch
from surebound.train.learner import Layers


@dataclass(frozen=True, kw_only=True)
class TrainAttack:
    """x ← Π_box(x + η sign ∇ CE(f(x), y)) from a uniform start, and the last point.

    `step_unit` says what η is relative to: ``eps``, the radius, as in COLT, or ``pixel``, as in the released code of
    IBP-R, where 0.25 throws every update to a corner of the box. `last_step` says whether the last of `steps` moves
    (``update``) or, as in that code, only evaluates (``evaluate``: "8 steps" make 7 moves). Before the moves in
    `milestones` the step is multiplied by `decay`; `restarts` keeps the worst point of several searches. `precision`
    bf16 runs the attack alone under autocast, for hardware with bfloat16 units.
    """

    steps: int = 8
    step_size: float = 0.25
    step_unit: Literal["eps", "pixel"] = "eps"
    last_step: Literal["update", "evaluate"] = "update"
    start: Literal["uniform", "centre"] = "uniform"
    restarts: int = 1
    decay: float = 1.0
    milestones: tuple[int, ...] = ()
    precision: Literal["float32", "bf16"] = "float32"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1:
            raise UsageError(f"attack: steps and restarts must be at least 1, got {self.steps} and {self.restarts}")
        if not self.step_size > 0 or not 0 < self.decay <= 1:
            raise UsageError(
                f"attack: step_size must be positive and decay in (0, 1], got {self.step_size} and {self.decay}"
            )

    @property
    def updates(self) -> int:
        return self.steps - (self.last_step == "evaluate")

    def run(self, layers: Layers, batch: Batch) -> Tensor:
        """The points found in the box of the batch. # (batch, *in_shape)"""
        return self.search(layers.detach().logits, *batch.box, batch=batch)

    def search(
        self, f: Callable[[Tensor], Tensor], lower: Tensor, upper: Tensor, *, batch: Batch, unit: Tensor | None = None
    ) -> Tensor:
        """The same over any boxes and any f to logits; `unit` (default: eps) is what steps are relative to.

        # lower, upper: (batch, *shape)
        """
        best, worst = lower, lower.new_full((len(lower),), -torch.inf)
        for _ in range(self.restarts):
            centre = (lower + upper) / 2
            spread = batch.draws.uniform(*lower.shape[1:]).to(lower) if self.start == "uniform" else None
            x = centre if spread is None else torch.lerp(lower, upper, spread)
            x = self._climb(f, x, lower, upper, batch, unit)
            if self.restarts == 1:
                return x
            with torch.no_grad():
                loss = F.cross_entropy(f(x), batch.y, reduction="none")
            better = loss > worst
            worst = torch.where(better, loss, worst)
            best = torch.where(better.reshape(-1, *[1] * (x.ndim - 1)), x, best)
        return best

    def _climb(
        self,
        f: Callable[[Tensor], Tensor],
        x: Tensor,
        lower: Tensor,
        upper: Tensor,
        batch: Batch,
        unit: Tensor | None,
    ) -> Tensor:
        size = self.step_size
        for t in range(self.updates):
            if t in self.milestones:
                size *= self.decay
            x.requires_grad_(True)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                loss = F.cross_entropy(f(x).float() if self.precision == "bf16" else f(x), batch.y, reduction="sum")
            (gradient,) = torch.autograd.grad(loss, x)
            with torch.no_grad():
                step = 1.0 if self.step_unit == "pixel" else batch.eps if unit is None else unit
                x = torch.clamp(x + size * step * gradient.sign(), lower, upper)
        return x.detach()

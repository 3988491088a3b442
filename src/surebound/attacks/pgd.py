"""Projected gradient descent, in ℓ∞ on the sign of the gradient (Madry et al. 2018)."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from surebound.attacks.descent import AttackResult, StopAt, check_counts, descend, starts
from surebound.attacks.objective import Objective
from surebound.errors import UsageError

StepUnit = Literal["eps", "pixel"]


@dataclass(frozen=True, kw_only=True)
class PGD:
    """x ← Π(x − η_t · sign(∇v(x))), η_t = step_size · decay^t, in units of `step_unit`.

    Π is the projection on box or ball. Over a ball, a step is along the way from its centre to where ∇v·x is least, in
    units of the radius: in ℓ2 that is −∇v / ‖∇v‖₂, in ℓ1 the few inputs with the largest entries, both within the box.

    `step_unit="eps"` measures steps in half widths of the box, input by input, as COLT does (its 0.25 is the default
    here); `"pixel"` measures them in the inputs' own units, as the released code of IBP-R does, where 0.25 throws every
    update to a corner of any small box. Reference: Madry et al. 2018, section 2.1.

    Deviations: one of the restarts begins at the centre of the box and half of the others are diversified; steps
    shrink, because a fixed step of a quarter of the box cannot settle between its corners (`decay=1` keeps them);
    `steps` counts updates (the "8 steps" of IBP-R are 7).
    """

    steps: int = 50
    restarts: int = 20
    step_size: float = 0.25
    step_unit: StepUnit = "eps"
    decay: float = 0.95
    diversify: int = 2  # moves along a random output direction before the descent, see `descend`
    stop_at: StopAt = "any"

    def __post_init__(self) -> None:
        check_counts("pgd", steps=self.steps, restarts=self.restarts, diversify=self.diversify, stop_at=self.stop_at)
        if self.step_unit not in get_args(StepUnit):
            raise UsageError(f"pgd: step_unit must be 'eps' or 'pixel', got {self.step_unit!r}")
        if not self.step_size > 0:
            raise UsageError(f"pgd: step_size must be positive, got {self.step_size}")
        if not 0 < self.decay <= 1:
            raise UsageError(f"pgd: decay must lie in (0, 1], got {self.decay}")

    def run(
        self,
        objective: Objective,
        *,
        generator: torch.Generator,
        start: Tensor | None = None,
        deadline: float | None = None,
    ) -> AttackResult:
        """See `surebound.attacks.descent.Attack`."""

        def update(
            iteration: int, gradient: Tensor, momentum: Tensor, objective: Objective, restarts: Tensor
        ) -> tuple[Tensor, Tensor]:
            step = self.step_size * self.decay**iteration
            return objective.along(-gradient, relative=self.step_unit == "eps") * step, momentum

        count = starts(objective, start, self.restarts)
        return descend(
            objective,
            update,
            moves=torch.full((count,), self.steps, device=objective.lower.device),
            diversify=self.diversify,
            stop_at=self.stop_at,
            generator=generator,
            start=start,
            deadline=deadline,
        )

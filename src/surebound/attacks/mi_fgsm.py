"""The momentum iterative fast gradient sign method (Dong et al. 2018)."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import torch
from torch import Tensor

from surebound.attacks.descent import AttackResult, StopAt, check_counts, descend, drawn, starts
from surebound.attacks.objective import Objective
from surebound.errors import UsageError

Range = tuple[float, float]

PUBLISHED: Mapping[str, Any] = {
    "relative": False,
    "lr": (1e-5, 1e-3),
    "mu": (0.0, 1.0),
    "decay": (0.85, 0.99),
    "diversify": 0,
}
"""What the paper draws from."""

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True)
class MIFGSM:
    """g ← μ g + ∇v(x) / ‖∇v(x)‖₁,  x ← Π(x − η_t · sign(g)),  η_t = lr · decay^t.

    Over balls in ℓ2 and ℓ1, steps are along g as in `surebound.attacks.pgd`.

    The ℓ1 norm is each point's own. Every restart draws lr log-uniformly and μ and decay uniformly from the given
    ranges, which spares tuning them to a network. Reference: Dong et al. 2018, eq. 6–7.

    With `relative` (default) the inputs are measured in half widths of the box, x = centre + half_width ⊙ z, |z| ≤ 1:
    the gradient is that in z and lr a step in z, so that the attack does not depend on the scale of any input. Without,
    lr is a step of x. The published runs on images in [0, 1], ε from 2/255 to 8/255, are `MIFGSM(**PUBLISHED)`.

    Deviations: one of the restarts begins at the centre of the box and half of the others are diversified; a restart
    ends when the moves it has left add up to next to nothing.
    """

    steps: int = 500
    restarts: int = 100
    lr: Range = (0.01, 0.5)
    mu: Range = (0.0, 1.0)
    decay: Range = (0.85, 0.99)
    relative: bool = True
    still: float = 1e-3  # a restart ends when it can only move by this many half widths any more
    diversify: int = 2  # moves along a random output direction before the descent, see `descend`
    stop_at: StopAt = "any"

    def __post_init__(self) -> None:
        check_counts(
            "mi-fgsm", steps=self.steps, restarts=self.restarts, diversify=self.diversify, stop_at=self.stop_at
        )
        for name, (low, high) in (("lr", self.lr), ("decay", self.decay)):
            if not 0 < low <= high:
                raise UsageError(f"mi-fgsm: {name} must be a range of positive numbers, got {(low, high)}")
        if not 0 <= self.mu[0] <= self.mu[1]:
            raise UsageError(f"mi-fgsm: mu must be a range of numbers not below 0, got {self.mu}")
        if self.decay[1] > 1:
            raise UsageError(f"mi-fgsm: decay must not exceed 1, got {self.decay}")

    def run(
        self,
        objective: Objective,
        *,
        generator: torch.Generator,
        start: Tensor | None = None,
        deadline: float | None = None,
    ) -> AttackResult:
        """See `surebound.attacks.descent.Attack`."""
        count = starts(objective, start, self.restarts)
        lr = _draw((log(self.lr[0]), log(self.lr[1])), count, generator).exp()
        mu = _draw(self.mu, count, generator)
        decay = _draw(self.decay, count, generator)
        lr, mu, decay = (value.to(objective.lower.device) for value in (lr, mu, decay))
        moves = self._moves(lr, decay, 1.0 if self.relative else _widest(objective))

        def update(
            iteration: int, gradient: Tensor, momentum: Tensor, objective: Objective, restarts: Tensor
        ) -> tuple[Tensor, Tensor]:
            if self.relative and objective.balls is None:  # which measure all inputs alike
                gradient = gradient * objective.half_width[:, None]
            norm = gradient.abs().sum(-1, keepdim=True).clamp_min(_TINY)
            momentum = mu[restarts] * momentum + gradient / norm
            rate = lr[restarts] * decay[restarts] ** iteration
            return objective.along(-momentum, relative=self.relative) * rate, momentum

        return descend(
            objective,
            update,
            moves=moves,
            diversify=self.diversify,
            stop_at=self.stop_at,
            generator=generator,
            start=start,
            deadline=deadline,
        )

    def _moves(self, lr: Tensor, decay: Tensor, width: float) -> Tensor:
        """The t from which all further moves, lr · decay^t / (1 − decay), sum up to less than `still` half widths."""
        reach = lr / (1 - decay).clamp_min(_TINY) / max(width, _TINY)
        moves = (self.still / reach).log() / decay.log().clamp_max(-_TINY)
        return moves.ceil().clamp(0, self.steps).long().reshape(-1)


def _widest(objective: Objective) -> float:
    """The largest half width of any input."""
    return float(objective.half_width.max()) if len(objective) else 0.0


def _draw(bounds: Range, count: int, generator: torch.Generator) -> Tensor:
    """Uniform in the range. # (restarts, 1)"""
    low, high = bounds
    return low + (high - low) * drawn((count, 1), generator)

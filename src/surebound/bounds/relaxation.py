"""The triangle around a ReLU (eq. 13 of the paper): α x̂ ≤ x ≤ ā x̂ + b̄ on [l̂, û]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surebound.bounds.rounding import TINY
from surebound.network.arrays import library, retyped, zeros

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_GUARD = 1.0 + 2.0**-48  # keeps the rounded upper line above the ReLU at both ends of the interval


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Slopes and intercepts of a group of neurons; any leading dimensions broadcast.

    `upper_slope` ā and `intercept` b̄ are the upper line; `lower_slope` is α's starting value; `ambiguous` says where
    the slope α is free in [0, 1].
    """

    upper_slope: Tensor
    intercept: Tensor
    lower_slope: Tensor
    ambiguous: Tensor

    def to(self, dtype: torch.dtype) -> Relaxation:
        return Relaxation(
            self.upper_slope.to(dtype), self.intercept.to(dtype), self.lower_slope.to(dtype), self.ambiguous
        )


def upper_intercept(slope: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """b̄ such that slope · x̂ + b̄ is above the ReLU on [l̂, û] with l̂ < 0 < û, for any slope in [0, 1]; in float64."""
    return library(slope).maximum(-slope * lower, (1.0 - slope) * upper) * _GUARD + TINY


def relax(lower: Tensor, upper: Tensor, slopes: str = "crown") -> Relaxation:
    """The relaxation for bounds l̂, û; `slopes` starts α at CROWN's (0 or 1, whichever has the smaller area) or at
    FastLin's (ā: parallel to the upper line). With ``interval``, both lines are flat: 0 ≤ x ≤ û.

    The upper line is sound in floating point: whatever ā was rounded to, b̄ ≥ max(−ā l̂, (1 − ā) û).
    """
    ambiguous = (lower < 0) & (upper > 0)
    active = retyped(lower >= 0, lower.dtype)
    where = library(lower).where
    width = where(ambiguous, upper - lower, 1.0)
    line = zeros(upper, *upper.shape) if slopes == "interval" else library(upper).clip(upper / width, 0.0, 1.0)
    slope = where(ambiguous, line, active)
    intercept = where(ambiguous, upper_intercept(slope, lower, upper), 0.0)
    free = retyped(upper > -lower, lower.dtype) if slopes == "crown" else slope
    return Relaxation(slope, intercept, where(ambiguous, free, active), ambiguous)

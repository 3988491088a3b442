"""The lines around activations: for a ReLU the triangle α x̂ ≤ x ≤ ā x̂ + b̄ on [l̂, û] (eq. 13 of the paper), for others
a̲ x̂ + b̲ ≤ x ≤ ā x̂ + b̄ with the lines of their row of the table (`surebound.network.activation`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from surebound.bounds.rounding import TINY
from surebound.network.activation import Activation
from surebound.network.activation import Lines as Kind
from surebound.network.arrays import concat, library, retyped, zeros

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from surebound.bounds.form import Form

_GUARD = 1.0 + 2.0**-48  # keeps the rounded upper line above the ReLU at both ends of the interval


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Slopes and intercepts of a group of neurons; any leading dimensions broadcast.

    `upper_slope` ā and `intercept` b̄ are the upper line; `lower_slope` is α's starting value; `ambiguous` says where
    the slope α is free in [0, 1]. Where there are only ReLUs, `floor` is None, and all lower lines pass through 0;
    else it is b̲, and the `lower_slope` of a neuron that is not ambiguous is as fixed as its upper one.
    """

    upper_slope: Tensor
    intercept: Tensor
    lower_slope: Tensor
    ambiguous: Tensor
    floor: Tensor | None = None

    def map(self, f: Callable[[Tensor], Tensor]) -> Relaxation:
        """f of each part."""
        floor = None if self.floor is None else f(self.floor)
        return Relaxation(f(self.upper_slope), f(self.intercept), f(self.lower_slope), f(self.ambiguous), floor)

    def to(self, dtype: torch.dtype) -> Relaxation:
        return self.map(lambda t: t if t is self.ambiguous else t.to(dtype))


def upper_intercept(slope: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """b̄ such that slope · x̂ + b̄ is above the ReLU on [l̂, û] with l̂ < 0 < û, for any slope in [0, 1]; in float64."""
    return library(slope).maximum(-slope * lower, (1.0 - slope) * upper) * _GUARD + TINY


def relax_form(form: Form, slopes: Kind = "crown") -> Relaxation:
    """The relaxation of a form's neurons over its bounds."""
    functions, lower, upper = form.enclosure.network.functions, form.lower, form.upper
    if not any(functions) or not form.layers:
        return relax(lower, upper, slopes)
    parts = [_layer(f, lower[..., at], upper[..., at], slopes) for f, at in zip(functions, form.layers, strict=False)]
    columns = (
        concat([getattr(part, name) for part in parts], -1)
        for name in ("upper_slope", "intercept", "lower_slope", "ambiguous", "floor")
    )
    return Relaxation(*columns)


def _layer(function: Activation | None, lower: Tensor, upper: Tensor, slopes: Kind) -> Relaxation:
    """One layer of a network that has other activations than ReLUs."""
    if function is None:
        return replace(relax(lower, upper, slopes), floor=zeros(lower, *lower.shape))
    lines = function.lines(lower, upper, slopes)
    return Relaxation(lines.above, lines.ceiling, lines.below, zeros(lower, *lower.shape) > 0, lines.floor)


def relax(
    lower: Tensor, upper: Tensor, slopes: Kind = "crown", *, rounded: Callable[[Tensor], Tensor] = lambda slope: slope
) -> Relaxation:
    """The relaxation of ReLUs for bounds l̂, û.

    `slopes` starts α at CROWN's (0 or 1, whichever has the smaller area) or FastLin's (parallel to the upper line).
    With ``interval``, both lines are flat: 0 ≤ x ≤ û.

    The upper line is sound in floating point: whatever ā was `rounded` to, in [0, 1], b̄ ≥ max(−ā l̂, (1 − ā) û).
    """
    ambiguous = (lower < 0) & (upper > 0)
    active = retyped(lower >= 0, lower.dtype)
    where = library(lower).where
    width = where(ambiguous, upper - lower, 1.0)
    line = zeros(upper, *upper.shape) if slopes == "interval" else library(upper).clip(upper / width, 0.0, 1.0)
    slope = where(ambiguous, rounded(line), active)
    intercept = where(ambiguous, upper_intercept(slope, lower, upper), 0.0)
    free = retyped(upper > -lower, lower.dtype) if slopes == "crown" else slope
    return Relaxation(slope, intercept, where(ambiguous, free, active), ambiguous)

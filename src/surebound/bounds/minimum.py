"""The minimum of linear functions over a domain, where every backward pass ends: one place for each kind of domain.

A pass arrives at λ̄₀, minus the coefficients on the input, and the bound needs min over the domain of −λ̄₀·x.

- A box: the corner that the sign of λ̄₀ names. Products and sum round it by γ_n |λ̄₀|·X with X ≥ |x|.
- A ball (`surebound.domain.balls`): for λ̄₀ = p + q, the bound −(p·m + q·x) − r ‖p‖_*, with x the box's corner that q
  names. It holds for the p as computed. Each p_i has the sign of λ̄₀ᵢ and is no larger, so |p| + |q| = |λ̄₀|, and with
  q̂ = fl(λ̄₀ − p) each product goes through n + 4 roundings: γ_n |λ̄₀|·X as for a box, and γ₄ |λ̄₀|·X. The norm adds up n
  squares and is rooted, multiplied and added: γ_{n+4} r ‖p‖_*. Squares that underflow take at most √(n 2⁻¹⁰⁷⁴) off it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from surebound.bounds.rounding import gamma
from surebound.network.arrays import library
from surebound.network.graph import dot

if TYPE_CHECKING:
    from torch import Tensor

    from surebound.domain.balls import Balls

EXTRA = 4
"""Roundings of a product beyond those of a sum of n: of the part q, of adding up both parts, of adding the norm."""
ROOTED = 1e-150
"""What the norm of up to 10²⁰ numbers may lose where their squares underflow."""


@dataclass(frozen=True, eq=False)
class Least:
    """A lower bound of −λ̄₀·x over a domain, but for rounding, and a point that attains it, but for rounding."""

    value: Tensor  # (rows,)
    x: Tensor  # (rows, inputs)
    error: Tensor | float  # (rows,) by how much rounding may have raised it beyond γ_n |λ̄₀|·X; 0 in float32


@dataclass(frozen=True, eq=False)
class BoxMinimum:
    """Over boxes."""

    lower: Tensor  # (inputs,) or (rows, inputs)
    upper: Tensor

    @property
    def balls(self) -> None:
        """None: the domain is all of the box."""

    def minimise(self, lam: Tensor) -> Least:
        """# (rows, inputs)"""
        x = library(lam).where(lam > 0, self.upper, self.lower)
        return Least(-(lam * x).sum(1), x, 0.0)


@dataclass(frozen=True, eq=False)
class BallMinimum:
    """Over balls within boxes."""

    balls: Balls  # (inputs,) or (rows, inputs)

    def minimise(self, lam: Tensor) -> Least:
        """# (rows, inputs)"""
        balls, parted = self.balls, self.balls.parted(lam)
        corner = library(lam).where(parted.box > 0, balls.upper, balls.lower)
        norm = balls.radius[..., 0] * balls.dual_norm(parted.ball)
        value = -((parted.ball * balls.centre + parted.box * corner).sum(1) + norm)
        return Least(value, parted.x, self._error(lam, norm) if lam.dtype == library(lam).float64 else 0.0)

    def _error(self, lam: Tensor, norm: Tensor) -> Tensor:
        balls = self.balls
        reach = library(lam).maximum(abs(balls.lower), abs(balls.upper))
        return gamma(EXTRA) * dot(abs(lam), reach) + gamma(lam.shape[1] + EXTRA) * norm + balls.radius[..., 0] * ROOTED


Minimum = BoxMinimum | BallMinimum

"""Many balls at once, as tensors: where a linear function is largest over them, their nearest points, points of them.

A ball here is B = {x : ‖x − m‖ ≤ r, l ≤ x ≤ u} with m in [l, u] and the norm ℓ2 or ℓ1. For any p + q = λ,

    max over B of λ·x  ≤  p·m + r ‖p‖_* + Σ_i max(q_i l_i, q_i u_i),        ‖·‖_* = ℓ2 or ℓ∞,

since p·x is at most what it is over the ball alone and q·x what it is over the box alone; for the best p both sides are
equal (the support function of an intersection: Rockafellar 1970, corollary 16.4.1). With w_i the way from m_i to that
end of the box that λ_i points to, the best p has one unknown:

    ℓ2:  |p_i| = min(|λ_i|, ν w_i)   with ν such that the maximiser, |x_i − m_i| = min(|λ_i| / ν, w_i), is r from m;
    ℓ1:  |p_i| = min(|λ_i|, τ)       with τ such that the w_i of all |λ_i| > τ add up to no more than r.

No ν and no τ is wrong: they only make the bound better or worse. What rounding does to it is in `surebound.bounds`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor

from surebound.domain.sets import Ball, Norm, round_up

ROUNDS = 30  # in which ν settles, with inputs clipped for good in each; a few as a rule
HALVINGS = 40  # of the interval in which the threshold of a projection lies
_TINY = 1e-30  # in place of a 0 to divide by


@dataclass(frozen=True, eq=False)
class Parted:
    """λ = p + q, and the maximiser of λ·x."""

    ball: Tensor  # (rows, inputs) p
    box: Tensor  # (rows, inputs) q
    x: Tensor  # (rows, inputs)


@final
@dataclass(frozen=True, eq=False)
class Balls:
    """Balls of one norm. Those of a single ball may lack the first axis."""

    centre: Tensor  # (balls, inputs)
    radius: Tensor  # (balls, 1)
    lower: Tensor  # (balls, inputs)
    upper: Tensor  # (balls, inputs)
    norm: Norm

    @staticmethod
    def of(balls: Sequence[Ball], device: str = "cpu") -> "Balls":
        """In float64, radii rounded up."""
        ends = ([b.centre for b in balls], [b.lower for b in balls], [b.upper for b in balls])
        centre, lower, upper = (torch.stack([torch.from_numpy(v) for v in end]).to(device) for end in ends)
        radius = torch.tensor([[round_up(b.radius)] for b in balls], dtype=torch.float64, device=device)
        return Balls(centre, radius, lower, upper, balls[0].norm)

    def map(self, f: Callable[[Tensor], Tensor]) -> "Balls":
        """f of each tensor."""
        return Balls(f(self.centre), f(self.radius), f(self.lower), f(self.upper), self.norm)

    def to(self, dtype: torch.dtype) -> "Balls":
        return self.map(lambda t: t.to(dtype))

    def take(self, index: Tensor) -> "Balls":
        """Some of the balls."""
        return self.map(lambda t: t[index])

    def over(self, inputs: Tensor) -> "Balls":
        """What is seen of the balls on some inputs, or more: balls of the same radius. # index or mask"""
        return replace(self, **{name: getattr(self, name)[..., inputs] for name in ("centre", "lower", "upper")})

    def dual_norm(self, p: Tensor) -> Tensor:
        """# (rows, inputs) -> (rows,)"""
        return p.square().sum(-1).sqrt() if self.norm == "2" else largest(p)

    def parted(self, lam: Tensor) -> Parted:
        """λ in two parts, and where λ·x is largest. # (rows, inputs)"""
        up = lam > 0
        size, way = lam.abs(), torch.where(up, self.upper - self.centre, self.centre - self.lower)
        if self.norm == "2":
            nu = _nu(size, way, self.radius)
            within = torch.minimum(size, nu * way)
            moved = torch.minimum(size / nu.clamp_min(_TINY), way)
        else:
            tau, moved = _tau(size, way, self.radius)
            within = torch.minimum(size, tau)
        p = within.copysign(lam)
        return Parted(p, lam - p, self.centre + torch.where(up, moved, -moved))

    def project(self, x: Tensor) -> Tensor:
        """The nearest points of the balls, up to rounding. # (rows, inputs)"""
        gap = x - self.centre
        size, way = gap.abs(), torch.where(gap > 0, self.upper - self.centre, self.centre - self.lower)
        if self.norm == "2":  # the way to the nearest point is, per input, min(s |gap|, way) for some s ≤ 1
            moved = torch.minimum(size / _nu(size, way, self.radius).clamp_min(1.0), way)
        else:  # max(|gap| − θ, 0) within the way, for some θ ≥ 0
            moved = torch.minimum((size - self._threshold(size, way)).clamp_min(0.0), way)
        return torch.clamp(self.centre + moved.copysign(gap), self.lower, self.upper)

    def _threshold(self, size: Tensor, way: Tensor) -> Tensor:
        low, high = torch.zeros_like(size[..., :1]), largest(size)[..., None]
        far = torch.minimum(size, way).sum(-1, keepdim=True) > self.radius
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            more = torch.minimum((size - middle).clamp_min(0.0), way).sum(-1, keepdim=True) > self.radius
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        return torch.where(far, high, 0.0)

    def sample(self, unit: Tensor) -> Tensor:
        """Points of the balls from numbers in [−1, 1]: these shares of the way from the centre to the ends of the box,
        projected. # (rows, inputs)"""
        way = torch.where(unit > 0, self.upper - self.centre, self.centre - self.lower)
        return self.project(self.centre + unit * way)

    def along(self, direction: Tensor) -> Tensor:
        """The way from the centre to where a linear function with these coefficients is largest. # (rows, inputs)"""
        return self.parted(direction).x - self.centre


def largest(p: Tensor) -> Tensor:
    """max |p_i|, 0 of none. # (rows, inputs) -> (rows,)"""
    return p.abs().amax(-1) if p.shape[-1] else p.sum(-1)


def _nu(size: Tensor, way: Tensor, radius: Tensor) -> Tensor:
    """ν with Σ min(|λ_i| / ν, w_i)² = r², or 0 where the whole box is within r.

    It begins with no input clipped and falls as more of them are: with ν² = Σ_free λ² / (r² − Σ_clipped w²), an input
    that is clipped stays so (as in Michelot 1986, for the simplex). # (rows, inputs) -> (rows, 1)
    """
    squares, ways, room = size.square(), way.square(), radius.square()
    clipped, limits = torch.zeros_like(size, dtype=torch.bool), torch.finfo(size.dtype)
    for _ in range(ROUNDS):
        free = torch.where(clipped, 0.0, squares).sum(-1, keepdim=True)
        left = room - torch.where(clipped, ways, 0.0).sum(-1, keepdim=True)
        nu = torch.where(free > 0, (free / torch.maximum(left, 1e-30 * room + limits.tiny)).sqrt(), 0.0)
        # Where the ball is a point, an infinite ν times no way would be NaN; where λ is infinite, nothing is bounded.
        nu = torch.where(free.isfinite(), nu.clamp_max(limits.max), nu)
        more = (size > nu * way) & ~clipped
        if not bool(more.any()):
            break
        clipped |= more
    return nu


def _tau(size: Tensor, way: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    """τ, and how far each input of the maximiser moves: as far as it can from the largest |λ_i| on, r in all.

    # (rows, inputs) twice -> (rows, 1), (rows, inputs)
    """
    if not size.shape[-1]:
        return torch.zeros_like(radius), size
    ordered, order = size.sort(dim=-1, descending=True)
    ways = way.expand(size.shape).gather(-1, order)
    total = ways.cumsum(-1)
    count = (total < radius).sum(-1, keepdim=True)
    tau = torch.where(count < size.shape[-1], ordered.gather(-1, count.clamp_max(size.shape[-1] - 1)), 0.0)
    moved = torch.minimum((radius - (total - ways)).clamp_min(0.0), ways)
    return tau, torch.zeros_like(size).scatter(-1, order, moved)

"""ℓ1 norms from Cauchy projections (Indyk 2006; Li 2007).

The sum Σ_i g_i R_i with independent standard Cauchy variables R is a Cauchy variable with scale ‖g‖₁: some of them tell
the norm of g without g itself. Estimates, never bounds: for training only.
"""

from dataclasses import dataclass
from functools import cache
from math import cos, log, pi
from typing import Any, Literal, cast

import torch
from torch import Tensor

from surebound.errors import UsageError
from surebound.network.op import Shape
from surebound.train.batch import Draws
from surebound.train.learner import image_layout

_NETWORK = 100  # up to so many projections, medians come from a network of comparisons
_TELLING = 0.3  # of the estimate: projections below it say little about how a geometric mean changes


@dataclass(frozen=True, kw_only=True)
class Projections:
    """How ℓ1 norms are estimated: from `count` Cauchy vectors, clipped to ± `clip`.

    `groups` says what a vector covers: ``separate`` estimates the norm over each layer's error terms and adds them up;
    ``merged`` estimates the norm over all terms from one vector for all, since scales of independent Cauchy variables
    add up by themselves, with as many passes per layer as there are vectors instead of that many per group.
    """

    count: int = 50
    estimator: Literal["median", "geometric-mean"] = "median"
    clip: float | None = None  # default: 1e10 for the median, 1e6 for the geometric mean
    groups: Literal["merged", "separate"] = "merged"

    def __post_init__(self) -> None:
        least = 1 if self.estimator == "median" else 2
        if self.count < least:
            raise UsageError(f"projections must be at least {least} for the {self.estimator}, got {self.count}")
        if self.clip is not None and not self.clip > 0:
            raise UsageError(f"the clip of projections must be positive, got {self.clip}")

    def draw(self, draws: Draws, shape: Shape, like: Tensor) -> Tensor:
        """Cauchy vectors in place of one group of error terms, common to all samples. # (count, *shape)"""
        uniform = draws.shared(self.count, *shape).to(like)
        clip = self.clip if self.clip is not None else 1e10 if self.estimator == "median" else 1e6
        return image_layout((pi * (uniform - 0.5)).tan().clamp(-clip, clip))

    def estimate(self, projected: Tensor) -> Tensor:
        """# (count, samples, *shape) -> (samples, *shape)"""
        if self.estimator == "geometric-mean":
            return cauchy_geometric_mean(projected)
        if len(projected) > _NETWORK:
            return cauchy_median(projected)
        return cast(Tensor, _Median.apply(projected))  # type: ignore[no-untyped-call]


def cauchy_median(projections: Tensor) -> Tensor:
    """Estimate ‖g‖₁ from p_j = Σ_i g_i R_ij, R standard Cauchy: the median of |p_j| (Indyk 2006; Li 2007).

    Each p_j is Cauchy with scale ‖g‖₁, and the median of its absolute value is that scale. An estimate, never a bound.
    # (projections, *shape) -> (*shape)

    >>> cauchy_median(torch.tensor([-3.0, 1.0, 2.0, -8.0]))
    tensor(2.5000)
    """
    k = len(projections)
    ordered = projections.abs().sort(dim=0).values
    return (ordered[(k - 1) // 2] + ordered[k // 2]) / 2


def cauchy_geometric_mean(projections: Tensor, *, telling: float = _TELLING) -> Tensor:
    """Estimate ‖g‖₁ from the same projections without bias: cos^k(π / 2k) Π_j |p_j|^{1/k}, k > 1 (Li 2007).

    An estimate, never a bound. The gradient is not quite its own, which has terms 1/p_j of infinite variance: two draws
    would point in unrelated directions. Projections below `telling` times the estimate have none, and the others share
    the whole, so that, as for a norm, the gradient times g is the estimate.
    # (projections, *shape) -> (*shape)

    >>> round(cauchy_geometric_mean(torch.tensor([2.0, -8.0])).item(), 4)
    2.0
    """
    if len(projections) < 2:
        raise ValueError(f"the geometric-mean estimator needs at least 2 projections, got {len(projections)}")
    return cast(Tensor, _GeometricMean.apply(projections, telling))  # type: ignore[no-untyped-call]


class _GeometricMean(torch.autograd.Function):
    """`cauchy_geometric_mean`."""

    @staticmethod
    def forward(ctx: Any, projected: Tensor, telling: float) -> Tensor:
        k = len(projected)
        logs = projected.abs().clamp_min_(torch.finfo(projected.dtype).tiny).log_()
        norm = (logs.mean(0) + k * log(cos(pi / (2 * k)))).exp()
        ctx.telling = telling
        ctx.save_for_backward(projected, norm)
        return norm

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        projected, norm = ctx.saved_tensors
        telling = projected.abs() > ctx.telling * norm
        share = gradients[0] * norm / telling.sum(0).clamp_min_(1)
        return (share / projected).masked_fill_(~telling, 0.0), None


@cache
def _comparisons(count: int) -> list[tuple[int, int, bool, bool]]:
    """Which rows to compare, in order, to have the middle ones of `count` in their places, and whether the smaller and
    the larger of each pair matter: Batcher's merge-exchange sort (Knuth 5.2.2, algorithm M) without the rest."""
    pairs: list[tuple[int, int]] = []
    top = 1 << max(0, (count - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            pairs += [(i, i + d) for i in range(count - d) if i & p == r]
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    needed = {(count - 1) // 2, count // 2}
    chosen = []
    for i, j in reversed(pairs):
        if i in needed or j in needed:
            chosen.append((i, j, i in needed, j in needed))
            needed |= {i, j}
    return chosen[::-1]


class _Median(torch.autograd.Function):
    """`cauchy_median` by comparing whole rows, 20 times as fast on a CPU as sorting columns. # (count, *shape)"""

    @staticmethod
    def forward(ctx: Any, projected: Tensor) -> Tensor:
        rows = list(projected.abs().unbind())
        spare = torch.empty_like(rows[0])
        for i, j, smaller, larger in _comparisons(len(rows)):
            if smaller and larger:
                torch.minimum(rows[i], rows[j], out=spare)
                torch.maximum(rows[i], rows[j], out=rows[j])
                rows[i], spare = spare, rows[i]
            elif smaller:
                torch.minimum(rows[i], rows[j], out=rows[i])
            else:
                torch.maximum(rows[i], rows[j], out=rows[j])
        below, above = rows[(len(rows) - 1) // 2], rows[len(rows) // 2]
        # Copies, since views would keep all rows alive.
        ctx.save_for_backward(projected, below.clone(), above.clone())
        return (below + above) / 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        projected, below, above = ctx.saved_tensors
        size = projected.abs()
        middle, share = size == below, gradients[0]
        if len(size) % 2 == 0:
            middle |= size == above
            share = share / 2
        torch.mul(projected.sign(), share, out=size)
        return cast(Tensor, size.mul_(middle))

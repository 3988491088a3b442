"""β-CROWN (Wang 2021; the paper's eq. 15): the dual bound d(α, β) and its ascent, with gradients in closed form.

For any α ∈ [0, 1] on ambiguous neurons, β ≥ 0 on split ones and π ≥ 0 over a region's rows,

    λ̄ starts at −Σ_r π_r c_r,      μ̄_k = ā_k ⊙ [λ̄_k]₊ + α_k ⊙ [λ̄_k]₋ + s_k ⊙ β_k,      λ̄_{k−1} = W_kᵀ μ̄_k,
    d = min_{x₀} (−λ̄₀·x₀) + Σ_r π_r d_r − Σ_k ([λ̄_k]₊·b̄_k + [λ̄_k]₋·b̲_k + μ̄_k·b_k),      b̲ = 0 for ReLUs,

is a lower bound of Σ_r π_r (c_r·x + d_r) on the split domain: positive means no counterexample there.

The gradient needs the minimiser x₀ carried forward through the very slopes the backward pass chose: with x̂_k there,
∂d/∂α_k = −[λ̄_k]₋ ⊙ x̂_k, ∂d/∂β_k = −s_k ⊙ x̂_k and ∂d/∂π_r = c_r·x + d_r.

Deviations: rows of one region are mixed by π on the simplex (the paper has a single row); the best iterate of each node
is kept, since the ascent is not monotone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

from surebound.bounds.audit import auditor
from surebound.bounds.form import Form, Pulled, Rows
from surebound.bounds.relaxation import Relaxation
from surebound.bounds.rounding import SLACK, UNDERFLOW, U
from surebound.network.arrays import Lazy, concat, library, positive, zeros
from surebound.network.graph import dot

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Lazy("torch")

COMPACT_AT = 0.75  # the share of nodes still going at which the others leave the batch


@dataclass(frozen=True, kw_only=True)
class Ascent:
    """Adam on the duals."""

    iterations: int = 20
    lr: float = 0.1
    decay: float = 0.98
    betas: tuple[float, float] = (0.9, 0.999)


@dataclass(frozen=True, eq=False)
class Duals:
    """The dual variables of a batch of nodes."""

    alpha: Tensor  # (nodes, neurons) α; on stable or split neurons their slope
    beta: Tensor | None  # (nodes, neurons) β; None without splits
    mix: Tensor | None  # (nodes, rows of a region) π; None where every region has one row

    def map(self, f: Callable[[Tensor], Tensor]) -> Duals:
        """Apply f to each variable that is there."""
        beta, mix = (None if t is None else f(t) for t in (self.beta, self.mix))
        return Duals(f(self.alpha), beta, mix)

    def __getitem__(self, index: Tensor) -> Duals:
        return self.map(lambda t: t[index])

    def to(self, dtype: torch.dtype) -> Duals:
        return self.map(lambda t: t.to(dtype))

    def put(self, index: Tensor, other: Duals) -> None:
        """Replace the variables of some nodes, in place."""
        for mine, new in ((self.alpha, other.alpha), (self.beta, other.beta), (self.mix, other.mix)):
            if mine is not None and new is not None:
                mine[index] = new


@dataclass(frozen=True, eq=False)
class Splits:
    """A batch of subproblems: which region each belongs to, and its splits."""

    region: Tensor  # (nodes,) int64, an index into Specification.starts
    signs: Tensor | None  # (nodes, neurons) int8: s = +1 active, −1 inactive, 0 not split; None without splits

    def __len__(self) -> int:
        return len(self.region)

    def __getitem__(self, index: Tensor) -> Splits:
        return Splits(self.region[index], None if self.signs is None else self.signs[index])


@dataclass(frozen=True, eq=False)
class Specification:
    """Rows grouped by region: region g has rows[starts[g] : starts[g + 1]]."""

    rows: Rows
    starts: tuple[int, ...]
    row_error: Tensor  # (rows,) error per unit of weight

    def only(self, regions: Tensor) -> Specification:
        """Some of the regions. # (regions,) bool"""
        spans = [(a, b) for a, b, kept in zip(self.starts, self.starts[1:], regions.tolist(), strict=False) if kept]
        index = self._numbers([row for a, b in spans for row in range(a, b)])
        starts = [0]
        for a, b in spans:
            starts.append(starts[-1] + b - a)
        return Specification(self.rows[index], tuple(starts), self.row_error[index])

    def _numbers(self, values: Sequence[int]) -> Tensor:
        """To index by, where the rows are."""
        return torch.tensor(values, dtype=torch.int64, device=self.row_error.device)

    def row_scale(self) -> Tensor:
        """The size of each row's coefficients, by which float32 noise is judged. # (rows,)"""
        return torch.cat([self.rows.coefficients, self.rows.constant[:, None]], dim=1).abs().amax(1)

    def count(self, region: int) -> int:
        """The rows of a region."""
        return self.starts[region + 1] - self.starts[region]

    @property
    def most_rows(self) -> int:
        return max(b - a for a, b in pairwise(self.starts))

    def initial_mix(self, region: Tensor) -> Tensor | None:
        """Equal weights, or None when every region has one row. # (nodes, most_rows)"""
        if self.most_rows == 1:
            return None
        counts = self._numbers([b - a for a, b in pairwise(self.starts)])
        valid = torch.arange(self.most_rows, device=region.device) < counts[region][:, None]
        return (valid / counts[region][:, None]).to(self.rows.constant.dtype)

    def mixed(self, region: Tensor, mix: Tensor | None) -> Rows:
        """Σ_r π_r row_r for each node."""
        if mix is None:
            where = self._numbers(self.starts)[region]
            return replace(self.rows[where], error=self.row_error[where])
        n = len(region)
        out = self.rows.coefficients.new_empty(n, self.rows.coefficients.shape[1])
        constant, error = out.new_empty(n), out.new_empty(n)
        for g, at in _groups(region):
            a, b = self.starts[g], self.starts[g + 1]
            weights = mix[at][:, : b - a]
            out[at] = weights @ self.rows.coefficients[a:b]
            constant[at] = weights @ self.rows.constant[a:b]
            error[at] = weights @ self.row_error[a:b]
        meaning = self.rows.meaning
        if meaning is not None:
            first = [self.starts[g] for g in region.tolist()]
            counts = [self.starts[g + 1] - self.starts[g] for g in region.tolist()]
            meaning = meaning.mixed(first, [w[:n] for w, n in zip(mix, counts, strict=True)])
        return Rows(out, constant, error, meaning)

    def values(self, region: Tensor, columns: Tensor) -> Tensor:
        """Each row of each node's region at given columns; −inf where there is none. # (nodes, most_rows)"""
        out = columns.new_full((len(region), self.most_rows), -torch.inf)
        for g, at in _groups(region):
            a, b = self.starts[g], self.starts[g + 1]
            value = columns[at] @ self.rows.coefficients[a:b].T + self.rows.constant[a:b]
            out[at[:, None], torch.arange(b - a, device=at.device)] = value
        return out

    def to(self, dtype: torch.dtype) -> Specification:
        return replace(self, rows=self.rows.to(dtype), row_error=self.row_error.to(dtype))


def _groups(region: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The regions that occur, and where each does."""
    order = region.argsort(stable=True)
    which, counts = region[order].unique_consecutive(return_counts=True)
    yield from zip(which.tolist(), order.split(counts.tolist()), strict=True)


@dataclass(frozen=True, eq=False)
class Bounded:
    """What bounding a batch of nodes yields."""

    bound: Tensor  # (nodes,)
    duals: Duals
    lam: Tensor  # (nodes, neurons) λ̄ at those duals
    x: Tensor  # (nodes, inputs) the relaxation's minimiser

    def put(self, index: Tensor, other: Bounded) -> None:
        """Replace some nodes, in place."""
        self.bound[index], self.lam[index], self.x[index] = other.bound, other.lam, other.x
        self.duals.put(index, other.duals)


@dataclass(frozen=True, eq=False)
class Slopes:
    """ā, b̄ and the free-α mask of each node, splits applied; a̲ and b̲ where there are other activations than ReLUs."""

    upper: Tensor  # (nodes | 1, neurons)
    intercept: Tensor
    free: Tensor  # bool
    sign: Tensor | None  # (nodes, neurons) in the working precision
    lower: Tensor | None = None  # a̲, the slope of lower lines that are not free
    floor: Tensor | None = None  # b̲
    planes: Tensor | None = None  # 1 for neurons whose upper line is a plane (`surebound.bounds.planes`), else 0

    @staticmethod
    def of(relaxation: Relaxation, signs: Tensor | None, *, planes: bool = False) -> Slopes:
        relaxation = relaxation.map(lambda t: t[None]) if relaxation.upper_slope.ndim == 1 else relaxation
        upper, intercept, ambiguous = relaxation.upper_slope, relaxation.intercept, relaxation.ambiguous
        if relaxation.floor is not None:
            assert signs is None  # only ReLUs are split by sign
            return Slopes(upper, intercept, ambiguous, None, relaxation.lower_slope, relaxation.floor)
        if signs is None:
            slopes = Slopes(upper, intercept, ambiguous, None)
        else:
            split = signs != 0
            sign = signs.to(upper.dtype)
            slopes = Slopes(
                torch.where(split, sign.clamp_min(0.0), upper),
                torch.where(split, 0.0, intercept),
                ambiguous & ~split,
                sign,
            )
        return slopes._under_planes() if planes else slopes

    def _under_planes(self) -> Slopes:
        """The same with planes in the place of the open neurons' upper lines."""
        upper, intercept = (torch.where(self.free, 0.0, t) for t in (self.upper, self.intercept))
        return replace(self, upper=upper, intercept=intercept, planes=self.free.to(upper.dtype))

    def fixed(self, alpha: Tensor) -> Tensor:
        """α with the stable and split neurons' slopes put in."""
        return torch.where(self.free, alpha.clamp(0.0, 1.0), self.upper if self.lower is None else self.lower)

    def __getitem__(self, index: Tensor) -> Slopes:
        if len(self.upper) == 1:  # one row shared by all nodes
            return self
        rest = (self.sign, self.lower, self.floor, self.planes)
        return Slopes(
            self.upper[index], self.intercept[index], self.free[index], *(None if t is None else t[index] for t in rest)
        )


@dataclass(frozen=True, eq=False)
class Evaluated:
    """d at given duals, and what its gradient needs."""

    bound: Tensor  # (nodes,) less the rounding error when the form is rigorous
    pulled: Pulled
    x: Tensor  # (nodes, inputs) the minimiser over the domain
    chosen: dict[int, Tensor]  # layer -> the slope that the sign of λ̄ chose, (nodes, neurons of the layer)


def evaluate(form: Form, start: Rows, slopes: Slopes, duals: Duals, *, keep: bool = True) -> Evaluated:
    """d(α, β, π), soundly when the form is rigorous: see `surebound.bounds.enclosure` for the error's derivation.

    Slopes and duals may come once for a group of consecutive nodes (rows over one box, say). Without `keep`, λ̄ and the
    chosen slopes are dropped on the way. Slopes with planes go with a form that has them (`FoldedForm.with_planes`).
    """
    n = len(start)
    alpha, beta, sign = duals.alpha, duals.beta, slopes.sign
    push = None if beta is None or sign is None else sign * beta
    intercepts = zeros(start.constant, n)
    cancelled = zeros(start.constant, n)
    reach = None if push is None or slopes.floor is None else _reach(form)
    held = intercepts if slopes.floor is None else zeros(start.constant, n)  # what they are made of, without signs
    where = library(intercepts).where
    chosen: dict[int, Tensor] = {}
    layers = form.layers
    groups = max(len(slopes.upper), len(alpha))

    def activate(k: int, lam: Tensor) -> Tensor:
        at = layers[k]
        above = (lam > 0).reshape(groups, n // groups, lam.shape[1])
        slope = where(above, slopes.upper[:, None, at], alpha[:, None, at]).reshape(lam.shape)
        mu = slope * lam
        if push is not None:
            if reach is not None:  # the product is rounded, and what is added may cancel it
                cancelled[:] += 2 * U * dot(abs(mu), reach[:, at])
            mu += push[:, at]
        intercepts[:] += dot(positive(lam), slopes.intercept[:, at])
        if slopes.floor is not None:
            intercepts[:] -= dot(positive(-lam), slopes.floor[:, at])
            held[:] += dot(positive(lam), abs(slopes.intercept[:, at])) + dot(positive(-lam), abs(slopes.floor[:, at]))
        if keep:
            chosen[k] = slope
        return mu if slopes.planes is None else concat([mu, positive(lam) * slopes.planes[:, at]], 1)

    pulled = form.backward(-start.coefficients, activate, keep=keep)
    least = form.minimum.minimise(pulled.at_input)
    bound = start.constant + least.value - intercepts + pulled.constant
    if bound.dtype == library(bound).float64:
        error = pulled.error + cancelled + start.error + form.evaluation_error(pulled.at_input, held) + least.error
        magnitude = abs(bound) + abs(start.constant) + abs(pulled.constant) + held
        bound = bound - (error * SLACK + 8 * U * magnitude + UNDERFLOW)
        if (audit := auditor()) is not None:
            audit.dual_bound(form, start, slopes, duals, bound)
    return Evaluated(where(library(bound).isfinite(bound), bound, -inf), pulled, least.x, chosen)


def _reach(form: Form) -> Tensor:
    """|x̂| at most. # (boxes, neurons)"""
    reach = library(form.lower).maximum(abs(form.lower), abs(form.upper))
    return reach[None] if reach.ndim == 1 else reach


def ascend(
    form: Form,
    specification: Specification,
    relaxation: Relaxation,
    nodes: Splits,
    duals: Duals,
    config: Ascent,
    *,
    stop_above: float = inf,
) -> Bounded:
    """Maximise d over the duals of every node, from the given ones. Splits above `stop_above` leave the batch."""
    slopes = Slopes.of(relaxation, nodes.signs)
    duals = replace(duals, alpha=slopes.fixed(duals.alpha))
    state = _Adam(duals.map(torch.zeros_like), duals.map(torch.zeros_like))
    region, start = nodes.region, specification.mixed(nodes.region, duals.mix)
    alive = torch.arange(len(nodes), device=region.device)
    best: Bounded | None = None
    for step in range(config.iterations + 1):
        now = evaluate(form, start, slopes, duals)
        lam, x, chosen = now.pulled.lam, now.x, now.chosen
        if best is None:
            best = Bounded(now.bound.clone(), duals.map(torch.clone), lam.clone(), x.clone())
        else:
            better = now.bound > best.bound[alive]
            best.put(alive[better], Bounded(now.bound[better], duals[better], lam[better], x[better]))
        going = best.bound[alive] <= stop_above
        if step == config.iterations or not bool(going.any()):
            break
        if int(going.sum()) <= COMPACT_AT * len(alive):
            alive, region, duals, state, slopes = alive[going], region[going], duals[going], state[going], slopes[going]
            start, lam, x = start[going], lam[going], x[going]
            chosen = {k: slope[going] for k, slope in chosen.items()}
        gradient = _gradient(form, specification, slopes, duals, region, lam, x, chosen)
        duals = _step(duals, gradient, state, slopes, config, step)
        if duals.mix is not None:
            start = specification.mixed(region, duals.mix)
    assert best is not None
    return best


def _gradient(
    form: Form,
    specification: Specification,
    slopes: Slopes,
    duals: Duals,
    region: Tensor,
    lam: Tensor,
    x: Tensor,
    chosen: dict[int, Tensor],
) -> Duals:
    """∂d/∂(α, β, π) in closed form (see the module's docstring)."""
    layers = form.layers
    offset = slopes.intercept * (lam > 0)
    if slopes.floor is not None:
        offset = torch.where(lam > 0, offset, slopes.floor)

    def activate(k: int, xhat: Tensor) -> Tensor:
        return torch.addcmul(offset[:, layers[k]], chosen[k], xhat) if k in chosen else torch.zeros_like(xhat)

    xhat, columns = form.forward(x, activate)
    for_alpha = (lam.clamp_max(0.0) * xhat).mul_(slopes.free).neg_()
    for_beta = None if slopes.sign is None else (slopes.sign * xhat).neg_()
    for_mix = None if duals.mix is None else specification.values(region, columns)
    return Duals(for_alpha, for_beta, for_mix)


@dataclass(frozen=True, eq=False)
class _Adam:
    """First and second moments of the gradients."""

    first: Duals
    second: Duals

    def __getitem__(self, index: Tensor) -> _Adam:
        return _Adam(self.first[index], self.second[index])


def _step(duals: Duals, gradient: Duals, state: _Adam, slopes: Slopes, config: Ascent, step: int) -> Duals:
    """One projected Adam step upwards, its moments updated in place. α stays in [0, 1], β ≥ 0, π on the simplex."""
    b1, b2 = config.betas
    rate = config.lr * config.decay**step
    correct1, correct2 = 1.0 - b1 ** (step + 1), 1.0 - b2 ** (step + 1)

    def moved(value: Tensor, grad: Tensor, first: Tensor, second: Tensor) -> Tensor:
        first.mul_(b1).add_(grad, alpha=1.0 - b1)
        second.mul_(b2).addcmul_(grad, grad, value=1.0 - b2)
        return value + (rate / correct1) * first / ((second / correct2).sqrt() + 1e-8)

    first, second = state.first, state.second
    alpha = slopes.fixed(moved(duals.alpha, gradient.alpha, first.alpha, second.alpha))
    beta, mix = duals.beta, duals.mix
    if beta is not None and gradient.beta is not None and first.beta is not None and second.beta is not None:
        beta = moved(beta, gradient.beta, first.beta, second.beta).clamp_min(0.0)
    if mix is not None and gradient.mix is not None and first.mix is not None and second.mix is not None:
        valid = torch.isfinite(gradient.mix)
        value = torch.where(valid, gradient.mix, 0.0)
        centred = torch.where(valid, value - value.sum(1, keepdim=True) / valid.sum(1, keepdim=True), 0.0)
        raw = moved(mix, centred, first.mix, second.mix).clamp_min(0.0)
        raw = torch.where(valid, raw, 0.0)
        total = raw.sum(1, keepdim=True)
        mix = torch.where(total > 1e-6, raw / total.clamp_min(1e-6), mix)
    return Duals(alpha, beta, mix)

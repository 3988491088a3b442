"""Planes above a ReLU: tighter than the triangle, whose upper line sees nothing of a neuron but x̂.

A neuron reads columns c, the inputs and neurons before it, each in an interval: x̂ = w·c + b. For **any** coefficients g

    max(x̂, 0) ≤ g·c + h,        h = max((1 − κ) û + κ b + max over the box of (κ w − g)·c,
                                        −κ' l̂ + κ' b + max over the box of (κ' w − g)·c),

whatever κ and κ' in [0, 1] are: where x̂ ≥ 0, x̂ − g·c = (1 − κ) x̂ + κ b + (κ w − g)·c, and x̂ ≤ û; where x̂ ≤ 0,
−g·c = −κ' x̂ + κ' b + (κ' w − g)·c, and x̂ ≥ l̂. With g = ā w and κ = κ' = ā it is the triangle's line. The planes with
g = t ⊙ w, t ∈ [0, 1], κ = 1 and κ' = 0 are, all together, the upper side of the convex hull of the neuron's graph over
the box (Anderson 2020; Tjandraatmadja 2020); other κ make use of l̂ and û that are tighter than the box's own.

A convex combination of planes is a plane, so at any optimum of the dual one plane for each neuron is as good as all of
them. It is found by the ascent of β-CROWN (De Palma 2021 has others), with t and κ as dual variables: where λ̄ > 0,
∂d/∂t = −λ̄ (w ⊙ c + ∂h/∂t) at the same forward pass.

Deviations: the two terms of h are kept equal by moving t, and count half each in the gradient.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.audit import auditor
from surebound.bounds.beta_crown import Ascent, Duals, Specification
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Block
from surebound.bounds.kernel import Kernel, KernelRows
from surebound.bounds.relaxation import Relaxation
from surebound.bounds.rounding import SLACK, TINY, gamma
from surebound.bounds.sparse import rank_in_group
from surebound.bounds.timed import Check

_STEP = 0.2  # the most that t is moved at once to make both terms of h equal


@dataclass(frozen=True, eq=False)
class Planes:
    """x ≤ G c + h for the ambiguous neurons of one layer, over the box of a form."""

    weight: Tensor  # (neurons of the layer, columns before it)  G
    height: Tensor  # (neurons of the layer,)  h
    kappa: Tensor  # (2, neurons of the layer)  κ and κ' that h is for


@dataclass(frozen=True, eq=False)
class Found:
    """The planes that an ascent found for one region, and the bound of its root there, in float32."""

    planes: tuple[Planes, ...]
    bound: float


def sound_planes(form: FoldedForm, slopes: Sequence[Tensor], kappas: Sequence[Tensor]) -> tuple[Planes, ...]:
    """Planes g = t ⊙ w, rounded to float32, with heights that hold, for any t, and any κ in [0, 1].

    # slopes: (neurons of the layer, columns before it) each, kappas: (2, neurons of the layer)
    """
    return tuple(
        _sound(
            form,
            block,
            form.lower[at],
            form.upper[at],
            _short(t.double() * block.weight),
            kappa.double().clamp(0.0, 1.0),
        )
        for block, at, t, kappa in zip(form.blocks, form.layers, slopes, kappas, strict=True)
    )


def _short(g: Tensor) -> Tensor:
    """Rounded to what a proof has room for."""
    return g.float().double()


def _sound(form: FoldedForm, block: Block, lower: Tensor, upper: Tensor, g: Tensor, kappa: Tensor) -> Planes:
    """The height for coefficients g: what rounding may have taken off it is added, and the block's own error."""
    w, b, before = block.weight, block.bias, block.weight.shape[1]
    low, high = (end[:before] for end in column_box(form))

    def most(k: Tensor) -> Tensor:  # of κ b + (κ w − g)·c
        gap = k[:, None] * w - g
        return k * b + torch.maximum(gap * low, gap * high).sum(1)

    active = (1.0 - kappa[0]) * upper + most(kappa[0])
    inactive = most(kappa[1]) - kappa[1] * lower
    size = (w.abs() + g.abs()) @ form.magnitudes()[:before] + b.abs() + torch.maximum(-lower, upper)
    height = torch.maximum(active, inactive) + block.error + (gamma(before + 8) * size) * SLACK + TINY
    if (audit := auditor()) is not None:
        audit.heights(form, block, (lower, upper), g, kappa, height)
    return Planes(g, height, kappa)


def column_box(form: FoldedForm) -> tuple[Tensor, Tensor]:
    """Between which numbers a form's columns are: the inputs that vary, then what ambiguous neurons pass on."""
    return torch.cat([form.box_lower, torch.zeros_like(form.upper)]), torch.cat(
        [form.box_upper, form.upper.clamp_min(0.0)]
    )


def find_planes(
    form: FoldedForm,
    kernel: Kernel,
    specification: Specification,
    relaxation: Relaxation,
    region: int,
    duals: Duals,
    config: Ascent,
    check: Check,
) -> Found:
    """Planes for one region: an ascent at its unsplit root, from the root's duals. All but `form` in float32."""
    rows = KernelRows.of(kernel, specification)
    a, b = specification.starts[region], specification.starts[region + 1]
    mix = torch.ones_like(rows.constant[a:b]) if duals.mix is None else duals.mix[0, : b - a]
    ascent = _Ascent(form, kernel, relaxation, rows.start[:, a:b] @ mix, float(rows.constant[a:b] @ mix))
    ascent.run(duals.alpha[0], config, check)
    return Found(sound_planes(form, *ascent.found()), ascent.best)


@dataclass(eq=False)
class _Layer:
    """The neurons of one layer with what they read, in lists filled up with zeros; columns as in the kernel."""

    at: slice  # among all neurons
    column: Tensor  # (neurons, most read) int64
    weight: Tensor  # (neurons, most read)  w
    low: Tensor  # (neurons, most read)  the least of w ⊙ c
    high: Tensor  # (neurons, most read)  the greatest
    bias: Tensor  # (neurons,)
    lower: Tensor  # (neurons,)  l̂
    upper: Tensor  # (neurons,)  û
    line: Tensor  # (neurons,)  ā
    t: Tensor  # (neurons, most read)
    kappa: Tensor  # (2, neurons)
    alpha: Tensor  # (neurons,)
    terms: Tensor  # (2, neurons)  both terms of h
    ends: list[Tensor]  # (neurons, most read) each: where w ⊙ c is in either of the two maxima, minus ∂h/∂t

    def measure(self) -> None:
        """Compute `terms` and `ends` for the present t and κ."""
        gaps = [k[:, None] - self.t for k in self.kappa]
        self.ends = [torch.where(gap > 0, self.high, self.low) for gap in gaps]
        most = [gap.mul_(end).sum(1) for gap, end in zip(gaps, self.ends, strict=True)]
        k, k_ = self.kappa
        active = (1 - k) * self.upper + k * self.bias + most[0]
        self.terms = torch.stack([active, k_ * (self.bias - self.lower) + most[1]])

    def balance(self) -> None:
        """Move t so that both terms of h are equal: one step of Newton's method."""
        self.measure()
        active, inactive = self.terms
        slope = (self.ends[0] - self.ends[1]).sum(1)
        step = torch.where(slope > 0, (active - inactive) / slope.clamp_min(1e-30), 0.0).clamp(-_STEP, _STEP)
        self.t = (self.t + step[:, None]).clamp_(0.0, 1.0)

    def best_kappa(self) -> Tensor:
        """The κ with the least h for this t: each term is convex in its own, with kinks at the t. # (2, neurons)"""
        t, order = self.t.sort(1)
        width = (self.high - self.low).gather(1, order).cumsum(1)
        base = self.bias + self.low.sum(1)
        target = torch.stack([self.upper - base, self.lower - base], 1)
        place = torch.searchsorted(width, target).clamp_max(max(t.shape[1] - 1, 0))
        return t.gather(1, place).T


class _Ascent:
    """Adam on t, κ and α at the unsplit root of one region, whose best iterate is kept."""

    def __init__(
        self, form: FoldedForm, kernel: Kernel, relaxation: Relaxation, start: Tensor, constant: float
    ) -> None:
        self.form, self.kernel, self.start, self.constant = form, kernel, start, constant
        self.layers = [
            _listed(form, kernel, relaxation, block, at) for block, at in zip(form.blocks, form.layers, strict=True)
        ]
        self.lam, self.corner = start, start  # of the last evaluation
        self.best = -torch.inf
        self._best: list[tuple[Tensor, Tensor]] = []  # (t, λ̄ > 0) of each layer

    def run(self, alpha: Tensor, config: Ascent, check: Check) -> None:
        for layer in self.layers:
            layer.alpha = alpha[layer.at].clone()
        moments = [[(torch.zeros_like(v), torch.zeros_like(v)) for v in (x.t, x.kappa, x.alpha)] for x in self.layers]
        for step in range(config.iterations + 1):
            check()
            bound = self._evaluate()
            if bound > self.best or not self._best:  # in float32 there may be none above −∞
                self.best = max(self.best, bound)
                self._best = [(layer.t.clone(), self._pulled(layer) > 0) for layer in self.layers]
            if step < config.iterations:
                self._step(moments, config, step)

    def found(self) -> tuple[list[Tensor], list[Tensor]]:
        """t and κ of every layer; those of the triangle where λ̄ ≤ 0, whose upper plane the bound does not use."""
        slopes, kappas = [], []
        for layer, block, (t, used) in zip(self.layers, self.form.blocks, self._best, strict=True):
            layer.t = torch.where(used[:, None], t, layer.line[:, None])
            dense, (neuron, place) = layer.t.new_zeros(block.weight.shape), torch.nonzero(layer.weight, as_tuple=True)
            dense[neuron, layer.column[neuron, place]] = layer.t[neuron, place]
            slopes.append(dense)
            kappas.append(torch.where(used, layer.best_kappa(), layer.line) if layer.t.numel() else layer.kappa)
        return slopes, kappas

    def _pulled(self, layer: _Layer) -> Tensor:
        first = self.kernel.inputs
        return self.lam[first + layer.at.start : first + layer.at.stop]

    def _evaluate(self) -> float:
        """d, one backward pass."""
        self.lam, bound = self.start.clone(), self.start.new_tensor(self.constant)
        for layer in reversed(self.layers):
            lam = self._pulled(layer)
            above, below = lam.clamp_min(0.0), lam.clamp_max(0.0) * layer.alpha
            self.lam.index_add_(
                0, layer.column.flatten(), ((above[:, None] * layer.t + below[:, None]) * layer.weight).flatten()
            )
            layer.measure()
            bound = bound - above @ layer.terms.amax(0) - below @ layer.bias
        at_input, balls = self.lam[: self.kernel.inputs], self.kernel.balls
        self.corner = at_input.sign() if balls is None else balls.parted(at_input[None]).x[0]
        return float(bound - at_input @ self.corner)

    def _step(self, moments: list[list[tuple[Tensor, Tensor]]], config: Ascent, step: int) -> None:
        """The minimiser carried forward, and all variables moved."""
        points = torch.cat([self.corner, self.corner.new_zeros(self.kernel.neurons)])
        for layer, moment in zip(self.layers, moments, strict=True):
            lam, read = self._pulled(layer), layer.weight * points[layer.column]
            xhat, ends = read.sum(1) + layer.bias, layer.ends
            plane = (layer.t * read).sum(1) + layer.terms.amax(0)
            first = self.kernel.inputs
            points[first + layer.at.start : first + layer.at.stop] = torch.where(lam > 0, plane, layer.alpha * xhat)
            above = lam.clamp_min(0.0)
            rise = torch.stack([ends[0].sum(1) - layer.upper, ends[1].sum(1) - layer.lower]) + layer.bias
            gradients = (
                -above[:, None] * (read - (ends[0] + ends[1]) / 2),
                -above * rise / 2,
                -lam.clamp_max(0.0) * xhat,
            )
            layer.t, layer.kappa, layer.alpha = (
                _adam(value, gradient, *m, config, step)
                for value, gradient, m in zip((layer.t, layer.kappa, layer.alpha), gradients, moment, strict=True)
            )
            layer.kappa = torch.stack([layer.kappa.amax(0), layer.kappa.amin(0)])
            layer.balance()


def _adam(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, config: Ascent, step: int) -> Tensor:
    """A step upwards, within [0, 1]; the moments are updated in place."""
    b1, b2 = config.betas
    first.lerp_(gradient, 1.0 - b1)
    second.mul_(b2).addcmul_(gradient, gradient, value=1.0 - b2)
    rate = config.lr * config.decay**step / (1.0 - b1 ** (step + 1))
    scale = (second / (1.0 - b2 ** (step + 1))).sqrt_().add_(1e-12)
    return (value + rate * first / scale).clamp_(0.0, 1.0)


def _listed(form: FoldedForm, kernel: Kernel, relaxation: Relaxation, block: Block, at: slice) -> _Layer:
    before, inputs = block.weight.shape[1], kernel.inputs
    scale = torch.cat([kernel.radius.double(), torch.ones_like(form.lower)])[:before]
    neuron, read = torch.nonzero(block.weight, as_tuple=True)
    count = torch.bincount(neuron, minlength=len(block.bias))
    place = rank_in_group(neuron, count)
    shape = len(block.bias), int(count.max()) if len(count) else 0
    column, weight = neuron.new_zeros(shape), kernel.radius.new_zeros(shape)
    column[neuron, place] = read
    weight[neuron, place] = (block.weight * scale)[neuron, read].float()
    one = torch.ones_like(kernel.radius)
    ends = (-one, one) if kernel.balls is None else (kernel.balls.lower, kernel.balls.upper)
    low, high = (
        torch.cat([end, column_end.float()])
        for end, column_end in zip(ends, (torch.zeros_like(form.upper), form.upper.clamp_min(0.0)), strict=True)
    )
    products = weight * low[column], weight * high[column]
    low, high = torch.minimum(*products), torch.maximum(*products)
    bias = (block.bias + block.weight[:, :inputs] @ kernel.centre.double()).float()
    line, lower, upper = relaxation.upper_slope[at], form.lower[at].float(), form.upper[at].float()
    # κ begins apart where the box's own interval is hardly wider than [l̂, û]: there it costs nothing
    own = ((upper - lower) / (high - low).sum(1).clamp_min(1e-30)).clamp(0.0, 1.0) ** 4
    kappa = torch.stack([line + own * (1 - line), line * (1 - own)])
    t = line[:, None].expand(shape).clone()
    return _Layer(at, column, weight, low, high, bias, lower, upper, line, t, kappa, line.clone(), kappa, [])

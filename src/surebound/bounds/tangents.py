"""Bounds with lines of any slope around every activation, found by gradient ascent, and with multipliers for the
intervals of neurons: α-CROWN and β-CROWN for networks that have other activations than ReLUs.

A row is bounded with lower lines a̲ x̂ + b̲(a̲) and upper lines ā x̂ + b̄(ā), where b̲(a) and b̄(a) are the least and the
greatest f(x) − a x over [l̂, û] (`surebound.network.activation`), reached at x̲(a) and x̄(a). Multipliers σ of x̂ ≥ l̂
(where σ ≥ 0) and x̂ ≤ û (where σ < 0) add

    μ̄ = slope ⊙ λ̄ + σ,        d gains Σ σ·e,   e = l̂ where σ ≥ 0, û elsewhere,

to the dual bound of `surebound.bounds.beta_crown`: −σ (x̂ − e) ≤ 0 for all x̂ of the interval, whatever σ is. Intervals
that come from splits thus count beyond the lines that they allow (Shi 2024 has this for general activations). With x̂ at
the minimiser, carried forward through the chosen lines, the gradients are

    ∂d/∂a̲ = −[λ̄]₋ ⊙ (x̂ − x̲),      ∂d/∂ā = −[λ̄]₊ ⊙ (x̂ − x̄),      ∂d/∂σ = e − x̂.

All is float64 and every iterate a sound bound; the best is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Duals, Slopes, evaluate
from surebound.bounds.form import Form, Rows, corners
from surebound.bounds.rounding import SLACK, UNDERFLOW, gamma
from surebound.network.activation import Activation
from surebound.network.activations import RELU

Extreme = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Tangents:
    """The variables of a batch of rows. # (rows, neurons) float64 each"""

    below: Tensor  # a̲
    above: Tensor  # ā
    push: Tensor  # σ

    def parts(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.below, self.above, self.push


@dataclass(frozen=True, eq=False)
class TangentBounds:
    """The best bound of each row, the variables it is reached with, and what it says about the network."""

    bound: Tensor  # (rows,)
    tangents: Tangents
    lam: Tensor  # (rows, neurons)
    x: Tensor  # (rows, inputs)
    gap: Tensor  # (rows, neurons) what each neuron's line costs at the ends or in the middle of its interval, at most


class TangentForm:
    """A form with one row for each of its boxes, or any number of rows for a single box."""

    def __init__(self, form: Form, rows: Rows) -> None:
        count = len(rows)
        self.form, self.rows = form, replace(rows, error=form.start_error(rows))
        self.lower, self.upper = (_per_row(end, count) for end in (form.lower, form.upper))
        nothing = self.lower.new_zeros(0)
        self._known = [(nothing, (nothing, nothing))] * 2  # the last slopes of either side, and what was found for them
        self.functions = tuple(function or RELU for function in form.enclosure.network.functions[: len(form.layers)])

    def start(self) -> Tangents:
        """The lines that leave the least area, and no multipliers."""
        lines = [f.lines(self.lower[:, at], self.upper[:, at]) for f, at in self._layers()]
        below, above = (self._joined([getattr(line, name) for line in lines]) for name in ("below", "above"))
        return Tangents(below, above, torch.zeros_like(below))

    def bounds(self, start: Tangents, ascent: Ascent) -> TangentBounds:
        """The best of the iterates of an ascent."""
        now, best = start, None
        first, second = ([torch.zeros_like(part) for part in start.parts()] for _ in range(2))
        steepest, flattest = self._slope_range() if ascent.iterations else (start.above, start.below)
        for step in range(ascent.iterations + 1):
            found, gradients = self._evaluate(now, last=step == ascent.iterations)
            best = found if best is None else _better(best, found)
            if gradients is None:
                break
            rate = ascent.lr * ascent.decay**step
            b1, b2 = ascent.betas
            moved = []
            for k, (value, gradient) in enumerate(zip(now.parts(), gradients, strict=True)):
                first[k] = b1 * first[k] + (1.0 - b1) * gradient
                second[k] = b2 * second[k] + (1.0 - b2) * gradient * gradient
                size = (second[k] / (1.0 - b2 ** (step + 1))).sqrt() + 1e-12
                direction = first[k] / (1.0 - b1 ** (step + 1)) / size
                span = steepest - flattest if k < 2 else found.lam.abs().amax(1, keepdim=True)
                moved.append(value + rate * span * direction)
            below, above = (m.clamp(flattest, steepest) for m in moved[:2])
            now = Tangents(below, above, moved[2])
        assert best is not None
        return best

    def _evaluate(self, now: Tangents, *, last: bool) -> tuple[TangentBounds, tuple[Tensor, ...] | None]:
        (floor, lowest), (ceiling, highest) = self._below(now.below), self._above(now.above)
        slopes = Slopes(
            now.above,
            ceiling,
            torch.zeros_like(now.above, dtype=torch.bool),
            torch.ones_like(now.push),
            now.below,
            floor,
        )
        edge = torch.where(now.push >= 0, self.lower, self.upper)
        edge = torch.where(now.push == 0, 0.0, edge)
        result = evaluate(self.form, self._pushed(now.push, edge), slopes, Duals(now.below, now.push, None))
        lam = result.pulled.lam
        offset = torch.where(lam > 0, ceiling, floor)
        slope = torch.where(lam > 0, now.above, now.below)
        found = TangentBounds(result.bound, now, lam, result.x, lam.abs() * self._distance(slope, offset))
        if last:
            return found, None
        layers = self.form.layers
        xhat, _ = self.form.forward(result.x, lambda k, v: v * slope[:, layers[k]] + offset[:, layers[k]])
        inside = torch.maximum(torch.minimum(xhat, self.upper), self.lower)
        gradients = (
            -lam.clamp_max(0.0) * (xhat - lowest),
            -lam.clamp_min(0.0) * (xhat - highest),
            torch.where(now.push == 0, inside, edge) - xhat,
        )
        return found, tuple(g.nan_to_num(0.0, 0.0, 0.0) for g in gradients)

    def _distance(self, slope: Tensor, offset: Tensor) -> Tensor:
        """How far lines are from the activations at the ends or in the middle of the intervals, at most."""
        middle = self.lower / 2 + self.upper / 2
        points = torch.stack([self.lower, middle, self.upper])
        values = torch.cat([points[:, :, :0], *(f.value(points[:, :, at]) for f, at in self._layers())], dim=2)
        return (slope * points + offset - values).abs().amax(0).nan_to_num(0.0, 0.0, 0.0)

    def affine(self, now: Tangents) -> tuple[Tensor, Tensor]:
        """x̂ and the columns that rows multiply at the origin, then at each unit vector, with the lines that each row
        chooses. # (rows, inputs + 1, neurons), (rows, inputs + 1, columns)"""
        found, _ = self._evaluate(now, last=True)
        positive = found.lam > 0
        slope = torch.where(positive, now.above, now.below)
        offset = torch.where(positive, self._above(now.above)[0], self._below(now.below)[0])
        count, inputs, layers = len(slope), self.form.inputs, self.form.layers
        x = corners(inputs, slope).repeat(count, 1)
        slope, offset = (t.repeat_interleave(inputs + 1, 0) for t in (slope, offset))
        values = self.form.forward(x, lambda k, v: v * slope[:, layers[k]] + offset[:, layers[k]])
        xhat, columns = (value.unflatten(0, (count, inputs + 1)) for value in values)
        return xhat, columns

    def _pushed(self, push: Tensor, edge: Tensor) -> Rows:
        """The rows with Σ σ·e added to their constants, and its rounding to their errors."""
        rows, terms = self.rows, push * edge
        gain, held = terms.sum(1), terms.abs().sum(1)
        error = gamma(push.shape[1] + 2) * held + gamma(4) * (rows.constant.abs() + held)
        meaning = rows.meaning
        if meaning is not None:
            meaning = meaning.plus_products(push, edge)
        return Rows(rows.coefficients, rows.constant + gain, rows.error + error * SLACK + UNDERFLOW, meaning)

    def _below(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The intercepts of lower lines, and where they touch."""
        return self._touching(slope, 0, [f.least for f in self.functions])

    def _above(self, slope: Tensor) -> tuple[Tensor, Tensor]:
        """The intercepts of upper lines, and where they touch."""
        return self._touching(slope, 1, [f.greatest for f in self.functions])

    def _touching(self, slope: Tensor, side: int, extremes: list[Extreme]) -> tuple[Tensor, Tensor]:
        given, known = self._known[side]
        if given is not slope:
            layers = zip(extremes, self.form.layers, strict=True)
            parts = [f(slope[:, at], self.lower[:, at], self.upper[:, at]) for f, at in layers]
            known = self._joined([part[0] for part in parts]), self._joined([part[1] for part in parts])
            self._known[side] = slope, known
        return known

    def _slope_range(self) -> tuple[Tensor, Tensor]:
        """The steepest and the flattest that lines may be, about."""
        steep, flat = [], []
        for f, at in self._layers():
            low, high = self.lower[:, at].nan_to_num(), self.upper[:, at].nan_to_num()
            slopes = torch.stack([f.slope(low + (high - low) * share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)])
            chord = f.chord(low, high)
            steep.append(torch.maximum(slopes.amax(0), chord))
            flat.append(torch.minimum(slopes.amin(0), chord))
        return self._joined(steep), self._joined(flat)

    def _layers(self) -> list[tuple[Activation, slice]]:
        return list(zip(self.functions, self.form.layers, strict=True))

    def _joined(self, parts: list[Tensor]) -> Tensor:
        return torch.cat([self.lower[:, :0], *parts], dim=1)


def _per_row(end: Tensor, rows: int) -> Tensor:
    """# (neurons,) or (boxes, neurons) -> (rows, neurons)"""
    end = end[None] if end.ndim == 1 else end
    return end.repeat_interleave(rows // len(end), 0)


def _better(a: TangentBounds, b: TangentBounds) -> TangentBounds:
    """The better of two for each row."""
    better = b.bound > a.bound

    def merged(x: Tensor, y: Tensor) -> Tensor:
        return torch.where(better if x.ndim == 1 else better[:, None], y, x)

    tangents = Tangents(*(merged(x, y) for x, y in zip(a.tangents.parts(), b.tangents.parts(), strict=True)))
    return TangentBounds(
        merged(a.bound, b.bound), tangents, merged(a.lam, b.lam), merged(a.x, b.x), merged(a.gap, b.gap)
    )

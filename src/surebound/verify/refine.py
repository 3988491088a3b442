"""Tighter bounds on every layer by splitting the layers before it.

A bound on a neuron is itself a small branch and bound: some neurons before it are split, and the lowest of the parts'
bounds holds for the whole box. By itself that gains some ten percent of a neuron's interval. But narrower intervals
make the relaxations of all later layers tighter, and the gain compounds: on a fully connected network of nine layers,
it is what decides.

Splits are chosen by UPB (eq. 7). Every part's bound is evaluated soundly, as in the search.
"""

import time
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Duals, Nodes, Slopes, Specification, ascend, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Rows
from surebound.bounds.relaxation import Relaxation, relax
from surebound.bounds.root import Check, LayerBounding, fold_network

_PASS = 2**20  # numbers in the largest tensor of a pass
_HELD = 2**24  # numbers in the duals of all parts that are held at once


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """How a layer is bounded."""

    rounds: int = 6  # of splitting the worse half of a bound's parts
    start: Ascent = Ascent(iterations=5, lr=1.0)
    ascent: Ascent = Ascent(iterations=3, lr=0.2)

    @property
    def parts(self) -> int:
        """The most parts that a bound may have: 1, 2, 3, 5, 8, 12, …

        >>> Refinement(rounds=5).parts
        12
        """
        count = 1
        for _ in range(self.rounds):
            count += (count + 1) // 2
        return count


def refine(enclosure: Enclosure, known: Enclosure, refinement: Refinement, check: Check, seconds: float) -> FoldedForm:
    """The folded form over the box of an enclosure, which is tightened, given sound bounds `known` of the same box.

    After some `seconds`, the layers that are left keep the bounds they have.
    """
    end = time.monotonic() + seconds

    def bound(form: FoldedForm, rows: Rows) -> tuple[Tensor, Tensor]:
        lower = torch.full((2 * len(rows),), -torch.inf, dtype=torch.float64)
        both, chunk = rows.both_signs(), max(8, _HELD // (refinement.parts * max(form.columns, 1)))
        for part in torch.arange(2 * len(rows)).split(chunk):
            if time.monotonic() < end:
                lower[part] = lower_by_splits(form, both[part], refinement, check)
        return lower[: len(rows)], -lower[len(rows) :]

    form = fold_network(enclosure, LayerBounding(), check, known=known, bound=bound)
    assert form is not None  # there is no limit to its size
    return form


def lower_by_splits(form: FoldedForm, rows: Rows, refinement: Refinement, check: Check) -> Tensor:
    """Sound lower bounds of rows over the form's box. # (rows,) float64

    A row whose bound is positive is split no further.
    """
    bounding, count = _Bounding(form, rows, check), len(rows)
    parts = bounding.whole(refinement.start)
    for _ in range(refinement.rounds):
        pick = _worse_half(parts.row, parts.bound) & (parts.bound <= 0) & (parts.split >= 0)
        if not bool(pick.any()):
            break
        parts = parts[~pick].joined(bounding.halves(parts[pick], refinement.ascent))
    lowest = torch.full((count,), torch.inf, dtype=torch.float64)
    return lowest.scatter_reduce_(0, parts.row, parts.bound, "amin")


def _worse_half(row: Tensor, bound: Tensor) -> Tensor:
    """Which parts are in the lower half of their row's. # (parts,) bool"""
    order = bound.argsort()
    order = order[row[order].argsort(stable=True)]
    counts = torch.bincount(row)
    rank = torch.arange(len(row)) - (counts.cumsum(0) - counts)[row[order]]
    worse = torch.zeros(len(row), dtype=torch.bool)
    worse[order] = 2 * rank < counts[row[order]]
    return worse


@dataclass(frozen=True, eq=False)
class _Parts:
    """Parts of the box, each for one row; the parts of a row cover the box."""

    row: Tensor  # (parts,) int64
    signs: Tensor  # (parts, neurons) int8
    alpha: Tensor  # (parts, neurons) float32
    beta: Tensor  # (parts, neurons) float32
    bound: Tensor  # (parts,) float64, sound
    split: Tensor  # (parts,) int64: the neuron to split next, −1 if there is none

    def __getitem__(self, index: Tensor) -> "_Parts":
        return _Parts(*(t[index] for t in self.tensors()))

    def joined(self, other: "_Parts") -> "_Parts":
        return _Parts(*(torch.cat(pair) for pair in zip(self.tensors(), other.tensors(), strict=True)))

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


class _Bounding:
    """Bounds parts of a form's box: duals by a short ascent in float32, the bound at these in float64."""

    def __init__(self, form: FoldedForm, rows: Rows, check: Check) -> None:
        self.form, self.check = form, check
        self.rows = replace(rows, error=form.start_error(rows))
        self.relaxation = relax(form.lower, form.upper)
        self.fast = form.to(torch.float32)
        self.fast_relaxation: Relaxation = self.relaxation.to(torch.float32)
        thin = rows.to(torch.float32)
        self.specification = Specification(thin, tuple(range(len(rows) + 1)), thin.error)

    def whole(self, ascent: Ascent) -> _Parts:
        """The box itself, for every row."""
        row = torch.arange(len(self.rows))
        alpha = self.fast_relaxation.lower_slope.repeat(len(row), 1)
        signs = torch.zeros(alpha.shape, dtype=torch.int8)
        return self._bounded(row, signs, alpha, torch.zeros_like(alpha), ascent)

    def halves(self, parts: _Parts, ascent: Ascent) -> _Parts:
        """Both halves of each part.

        What holds on a part holds on its halves, and may be more than a short ascent reaches there.
        """
        both = torch.arange(len(parts.row)).repeat_interleave(2)
        signs, n = parts.signs[both], torch.arange(len(both))
        signs[n, parts.split[both]] = torch.tensor([1, -1], dtype=torch.int8).repeat(len(parts.row))
        halves = self._bounded(parts.row[both], signs, parts.alpha[both], parts.beta[both], ascent)
        return replace(halves, bound=torch.maximum(halves.bound, parts.bound[both]))

    def _bounded(self, row: Tensor, signs: Tensor, alpha: Tensor, beta: Tensor, ascent: Ascent) -> _Parts:
        done: _Parts | None = None
        for at in torch.arange(len(row)).split(max(1, _PASS // max(self.form.columns, 1))):
            self.check()
            nodes, duals = Nodes(row[at], signs[at]), Duals(alpha[at], beta[at], None)
            found = ascend(self.fast, self.specification, self.fast_relaxation, nodes, duals, ascent)
            now = self._part(nodes, signs[at], found.duals, found.lam)
            done = now if done is None else done.joined(now)
        assert done is not None
        return done

    def _part(self, nodes: Nodes, signs: Tensor, duals: Duals, lam: Tensor) -> _Parts:
        """Parts with the sound bound at these duals, and with what UPB splits next."""
        assert duals.beta is not None
        slopes = Slopes.of(self.relaxation, signs)
        wide = Duals(slopes.fixed(duals.alpha.double()), duals.beta.double().clamp_min(0.0), None)
        bound = evaluate(self.form, self.rows[nodes.region], slopes, wide, keep=False).bound
        split = torch.full((len(nodes),), -1)
        if self.form.neurons:
            open_ = self.relaxation.ambiguous & (signs == 0)
            score = torch.where(open_, self.fast_relaxation.intercept * lam.clamp_min(0.0), -1.0)
            best, choice = score.max(1)
            split = torch.where(best >= 0, choice, -1)
        return _Parts(nodes.region, signs, duals.alpha, duals.beta, bound, split)

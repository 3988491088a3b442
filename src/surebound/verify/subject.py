"""What a search works on: a network over one box in some form, in both precisions, and the sound test that decides."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Bounded, Duals, Slopes, Specification, Splits, ascend, evaluate
from surebound.bounds.form import Form, Rows
from surebound.bounds.kernel import Kernel
from surebound.bounds.planes import Planes
from surebound.bounds.relaxation import Relaxation, relax_form
from surebound.bounds.timed import Check, timed
from surebound.branching.bias import biases
from surebound.branching.rule import Context
from surebound.network.graph import Network
from surebound.problem import Region, stack_rows


def never() -> None:
    """Time is not up."""


@dataclass(frozen=True, eq=False)
class Subject:
    """One box, and the regions over it that are still open."""

    network: Network  # float64
    form: Form  # float64
    specification: Specification  # float64
    check: Check = never  # raises when the time is up
    planes: tuple[Planes, ...] | None = None  # above neurons, in the place of lines; not for the multipliers of LPs

    def __getstate__(self) -> dict[str, Any]:
        """Pickle only the fields: cached properties are made again, and each process has its own clock."""
        return {
            "network": self.network,
            "form": self.form,
            "specification": self.specification,
            "check": never,
            "planes": self.planes,
        }

    @cached_property
    def fast_form(self) -> Form:
        return timed(self.form.to(torch.float32), self.check)

    @cached_property
    def _sound_form(self) -> Form:
        return timed(self.form.compressed(), self.check)

    @cached_property
    def _planed_form(self) -> Form:
        folded = self.form.folded()
        assert folded is not None and self.planes is not None
        return timed(folded.with_planes(self.planes).compressed(), self.check)

    @cached_property
    def kernel(self) -> Kernel | None:
        """The folded form, ready for the ascent."""
        folded = self.form.folded()
        if folded is None:
            return None
        return folded.kernel() if self.planes is None else folded.kernel().with_planes(self.planes)

    @cached_property
    def fast_specification(self) -> Specification:
        return self.specification.to(torch.float32)

    @cached_property
    def relaxation(self) -> Relaxation:
        return relax_form(self.form)

    @cached_property
    def fast_relaxation(self) -> Relaxation:
        return self.relaxation.to(torch.float32)

    @cached_property
    def context(self) -> Context:
        """What branching rules see."""
        return Context(
            layers=self.form.layers,
            relaxation=self.fast_relaxation,
            bias=self._biases(),
            bound=self.bound,
            evaluate=self.evaluate,
        )

    @property
    def regions(self) -> int:
        return len(self.specification.starts) - 1

    def _biases(self) -> Tensor:
        """The bias that feeds each relaxed neuron."""
        parts = [b[index] for b, index in zip(biases(self.network), self.form.indices, strict=False)]
        return torch.cat(parts).float() if parts else self.fast_relaxation.intercept.new_zeros(0)

    def only(self, regions: Tensor) -> "Subject":
        """The subject with some of its regions. # (regions,) bool"""
        return replace(self, specification=self.specification.only(regions))

    @cached_property
    def margin(self) -> float:
        """Above this a float32 bound is worth the sound test; the rounding noise around 0 is not."""
        return 1e-6 * float(self.specification.row_scale().max())

    def roots(self) -> tuple[Splits, Duals]:
        """One unsplit node for each region, with the duals to start from."""
        region = torch.arange(self.regions, device=self.network.device)
        alpha = self.fast_relaxation.lower_slope.repeat(len(region), 1)
        return Splits(region, None), Duals(alpha, None, self.fast_specification.initial_mix(region))

    def bound(self, nodes: Splits, duals: Duals, ascent: Ascent, stop_above: float | None = None) -> Bounded:
        """β-CROWN in float32. Splits above `stop_above` (default: `margin`) are done, and may lack λ̄ and x."""
        stop = self.margin if stop_above is None else stop_above
        if duals.beta is None and nodes.signs is not None:
            duals = replace(duals, beta=torch.zeros_like(duals.alpha))
        specification, relaxation = self.fast_specification, self.fast_relaxation
        if self.kernel is not None:
            return self.kernel.ascend(specification, relaxation, nodes, duals, ascent, stop_above=stop)
        return ascend(self.fast_form, specification, relaxation, nodes, duals, ascent, stop_above=stop)

    def evaluate(self, nodes: Splits, duals: Duals) -> tuple[Tensor, Tensor]:
        """The bound and λ̄ at given duals, in float32. # (nodes,), (nodes, neurons)"""
        specification, relaxation = self.fast_specification, self.fast_relaxation
        if self.kernel is not None:
            return self.kernel.evaluate(specification, relaxation, nodes, duals)
        slopes = Slopes.of(relaxation, nodes.signs)
        ready = replace(duals, alpha=slopes.fixed(duals.alpha))
        result = evaluate(self.fast_form, specification.mixed(nodes.region, duals.mix), slopes, ready)
        return result.bound, result.pulled.lam

    def sound_bounds(self, nodes: Splits, duals: Duals) -> Tensor:
        """The bound at given duals in float64, its rounding error taken off. # (nodes,) float64"""
        wide = duals.to(torch.float64)
        wide = replace(wide, mix=_nonnegative(wide.mix))
        start = self.specification.mixed(nodes.region, wide.mix)
        return self._sound(nodes, wide, start, planes=self.planes is not None)

    def sound_leaf_bound(self, region: int, signs: Tensor, duals: dict[str, Tensor]) -> float:
        """The same for one node with an LP's `multipliers`, whose π need not add up to 1."""
        a, b = self.specification.starts[region], self.specification.starts[region + 1]
        rows, weights = self.specification.rows, duals["mix"][0, : b - a].clamp_min(0.0)
        start = Rows(
            (weights @ rows.coefficients[a:b])[None],
            (weights @ rows.constant[a:b])[None],
            (weights @ self.specification.row_error[a:b])[None],
            None if rows.meaning is None else rows.meaning.mixed([a], [weights]),
        )
        nodes = Splits(torch.tensor([region], device=self.network.device), signs[None])
        return float(self._sound(nodes, Duals(duals["alpha"], duals["beta"], None), start))

    def multipliers(self, weights: Tensor, alpha: Tensor, beta: Tensor) -> dict[str, Tensor]:
        """An LP's multipliers as a node's state has them: π of at most 1, for as many rows as any region has."""
        weights = weights.clamp_min(0.0)
        size = float(weights.max()) if len(weights) else 0.0
        scale = 1.0 / size if size > 0 else 1.0
        mix = alpha.new_zeros(1, self.specification.most_rows)
        mix[0, : len(weights)] = weights * scale
        return {"mix": mix, "alpha": alpha.clamp(0.0, 1.0)[None], "beta": beta.clamp_min(0.0)[None] * scale}

    def _sound(self, nodes: Splits, duals: Duals, start: Rows, *, planes: bool = False) -> Tensor:
        slopes = Slopes.of(self.relaxation, nodes.signs, planes=planes)
        ready = replace(duals, alpha=slopes.fixed(duals.alpha), beta=_nonnegative(duals.beta))
        return evaluate(self._planed_form if planes else self._sound_form, start, slopes, ready, keep=False).bound


def _nonnegative(multipliers: Tensor | None) -> Tensor | None:
    return None if multipliers is None else multipliers.clamp_min(0.0)


def specify(form: Form, regions: Sequence[Region]) -> Specification:
    """The regions' rows over the form's columns."""
    rows = form.rows(*map(form.enclosure.network.array, stack_rows(regions)))
    starts = np.concatenate([[0], np.cumsum([len(r.constant) for r in regions])])
    return Specification(rows, tuple(starts.tolist()), form.start_error(rows))

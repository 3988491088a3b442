"""The LP of a subproblem: the Planet relaxation over the folded form, its splits, and the region's rows below t.

    min t   s.t.   x̂ = A [x₀; x] + b,   x ≥ x̂,   x ≥ 0,   x ≤ ā x̂ + b̄,   C [x₀; x] + d ≤ t

with x = x̂ instead on neurons that are split active and x = 0 on inactive ones, which leaves x ≥ 0 and x̂ ≤ 0 to hold.
A positive optimum, or none, means that the subproblem holds no counterexample. The solver's word is not taken for it:
its multipliers are read as the π, α and β of the dual bound (`NodeLP.proof`), and that bound has to prove it.

One solver serves a whole search. A split only changes ends of rows and columns, so it starts from the last basis.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.planet_lp import Assembly
from surebound.network.arrays import to_numpy
from surebound.problem import Vector
from surebound.verify.subject import Subject

Signs = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class Relaxed:
    """An optimum of the relaxation."""

    value: float  # t
    x: Tensor  # (inputs,)
    xhat: Vector  # (neurons,)
    violation: Vector  # (neurons,) |x − max(x̂, 0)|


@dataclass(frozen=True, eq=False)
class Solved:
    """What the LP says of a subproblem: an optimum, multipliers that may prove it empty, both, or nothing."""

    relaxed: Relaxed | None
    multipliers: tuple[Vector, ...] = ()  # of the rows, any of which may do


class NodeLP:
    """The LP of one region over a folded form, with splits that change."""

    def __init__(self, subject: Subject, region: int) -> None:
        self.subject, self.region = subject, region
        form = subject.form.folded()
        assert form is not None
        relaxation, rows = subject.relaxation, subject.specification.rows
        a, b = subject.specification.starts[region], subject.specification.starts[region + 1]
        n, m, count = form.inputs, form.neurons, b - a
        assembly = Assembly(to_numpy(form.box_lower), to_numpy(form.box_upper))
        zero, one, infinite = np.zeros(m), np.ones(m), np.full(m, np.inf)
        x = assembly.columns(zero, infinite)
        xhat = assembly.columns(-infinite, infinite)
        t = assembly.columns(np.array([-np.inf]), np.array([np.inf]))
        bias = np.concatenate([np.zeros(0), *(to_numpy(block.bias) for block in form.blocks)])
        exact = assembly.constrain(bias, bias, zero, (xhat, one))
        for block, where in zip(form.blocks, form.layers, strict=True):
            weight = to_numpy(block.weight)
            i, j = np.nonzero(weight)
            assembly.entries.append((exact[where][i], j, -weight[i, j]))
        self._above = assembly.constrain(zero, infinite, zero, (x, one), (xhat, -one))
        self._line, self._slope = to_numpy(relaxation.intercept), to_numpy(relaxation.lower_slope)
        terms = (x, one), (xhat, -to_numpy(relaxation.upper_slope))
        self._below = assembly.constrain(-infinite, self._line, zero, *terms)
        coefficients = to_numpy(rows.coefficients[a:b])
        ends = np.full(count, -np.inf), -to_numpy(rows.constant[a:b])
        self._rows = assembly.constrain(*ends, np.zeros(count), (np.repeat(t, count), -np.ones(count)))
        i, j = np.nonzero(coefficients)
        assembly.entries.append((self._rows[i], j, coefficients[i, j]))
        self._x, self._xhat = x, xhat
        self._system = assembly.system()
        self._solver = self._system.solver(solver="simplex")
        self._solver.changeColCost(int(t[0]), 1.0)
        self._inputs, self._signs = n, np.zeros(m, dtype=np.int8)

    def solve(self, signs: Signs, seconds: float) -> Solved:
        """The LP with these splits."""
        import highspy

        state = highspy.HighsModelStatus
        infeasible = (state.kInfeasible, state.kUnboundedOrInfeasible)  # t is bounded by the box
        self._split(signs)
        self._solver.setOptionValue("time_limit", self._solver.getRunTime() + max(seconds, 0.1))
        self._solver.run()
        status = self._solver.getModelStatus()
        if status not in (state.kOptimal, state.kTimeLimit, *infeasible):  # the last basis led nowhere
            self._solver.clearSolver()
            self._solver.run()
            status = self._solver.getModelStatus()
        if status in infeasible:
            _, exists, ray = self._solver.getDualRay()  # type: ignore[attr-defined]  # missing from highspy's stubs
            return Solved(None, (np.asarray(ray), -np.asarray(ray)) if exists else ())
        if status != state.kOptimal:
            self._solver.clearSolver()
            return Solved(None)
        solution = self._solver.getSolution()
        columns = np.asarray(solution.col_value)
        x, xhat = columns[self._x], columns[self._xhat]
        value = float(self._solver.getInfo().objective_function_value)
        inputs = self.subject.network.array(columns[: self._inputs])
        relaxed = Relaxed(value, inputs, xhat, np.abs(x - np.maximum(xhat, 0.0)))
        return Solved(relaxed, (np.asarray(solution.row_dual),) if value > 0 else ())

    def proof(self, signs: Signs, answer: Solved) -> dict[str, Tensor] | None:
        """Those of an answer's multipliers that prove, by the sound bound, that there is no counterexample, if any."""
        for y in answer.multipliers:
            duals = self.subject.multipliers(*self._duals(signs, y))
            if self._sound_bound(signs, duals) > 0:
                return duals
        return None

    def _sound_bound(self, signs: Signs, duals: dict[str, Tensor]) -> float:
        return self.subject.sound_leaf_bound(self.region, self.subject.network.array(signs), duals)

    def _duals(self, signs: Signs, y: Vector) -> tuple[Tensor, Tensor, Tensor]:
        """The π, α and β that the multipliers y of this LP's rows are.

        The coefficient of a neuron's x is Σ π C + Σ (coefficients of later x̂) A = p − u + q with p, u and q ≥ 0 the
        multipliers of x ≥ x̂, x ≤ ā x̂ + b̄ and x ≥ 0; that of x̂ is p − ā u. So α = p / (p + q) where the neuron is
        open, and β is q where it is active and p where it is inactive.
        """
        size = np.abs(y).max(initial=0.0)
        y = y / size if 0 < size < np.inf else np.zeros_like(y)  # which proves nothing
        system = self._system
        reduced = -np.bincount(system.column, y[system.row] * system.value, system.lower.size)
        p, q = np.maximum(y[self._above], 0.0), np.maximum(reduced[self._x], 0.0)
        alpha = np.where(p + q > 0, p / np.where(p + q > 0, p + q, 1.0), self._slope)
        beta = np.select([signs > 0, signs < 0], [q, p], 0.0)
        pi = np.maximum(-y[self._rows], 0.0)
        array = self.subject.network.array
        return array(pi), array(alpha), array(beta)

    def _split(self, signs: Signs) -> None:
        """Move the ends of the rows and columns of neurons whose split is another than last time."""
        changed = np.flatnonzero(signs != self._signs)
        sign, count = signs[changed], changed.size
        zero, infinite = np.zeros(count), np.full(count, np.inf)
        if not count:
            return
        x, above, below = (at[changed].astype(np.int32) for at in (self._x, self._above, self._below))
        self._solver.changeColsBounds(count, x, zero, np.where(sign < 0, 0.0, infinite))
        change_rows = self._solver.changeRowsBounds  # type: ignore[attr-defined]  # missing from highspy's stubs
        change_rows(count, above, zero, np.where(sign > 0, 0.0, infinite))
        change_rows(count, below, -infinite, np.where(sign == 0, self._line[changed], infinite))
        self._signs = signs.copy()

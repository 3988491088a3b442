"""The Planet relaxation as a linear program and the network as a mixed-integer one, both solved by HiGHS.

For one box and intermediate bounds l̂_k, û_k the relaxation (eq. 11 of the paper; Ehlers 2017) is an LP over the
inputs, every x̂_k in [l̂_k, û_k], and an x_k for every ambiguous neuron:

    x̂_k = Σ_{j<k} W_{k,j} x_j + b_k,   x_k ≥ x̂_k,   x_k ≥ 0,   x_k ≤ ā_k x̂_k + b̄_k,   ā, b̄ as in eq. 13

with x_k = x̂_k for active and x_k = 0 for inactive neurons. With a binary z_k and x_k ≤ x̂_k − l̂_k (1 − z_k),
x_k ≤ û_k z_k in place of the last inequality, it is exact: the big-M form of Tjeng 2019.

A solver answers up to its tolerances, so the Planet bounds only take the LP's dual variables y from it. Every variable
has finite bounds v ∈ [v̲, v̄], so that for *any* y

    min c·v  ≥  Σ_i min(y_i r̲_i, y_i r̄_i) + Σ_j min over [v̲_j, v̄_j] of (c − Mᵀ y)_j v_j,   r̲ ≤ M v ≤ r̄

(Neumaier & Shcherbina 2004), evaluated here with a bound on its own rounding and on that of the coefficients. The
MILP's answers are *not* made rigorous: they are accurate to the solver's tolerances (1e-9), a reference and no proof.

The coefficients are dense blocks between layers: these methods are for networks of up to a few thousand neurons.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.relaxation import relax
from surebound.bounds.result import LayerBounds, LeafMultipliers, Minima
from surebound.bounds.rounding import SLACK, TINY, UNDERFLOW, gamma
from surebound.errors import UsageError
from surebound.network.graph import Network
from surebound.problem import Matrix, Vector

if TYPE_CHECKING:
    from highspy import Highs

Index = NDArray[np.int64]

_TOLERANCE = 1e-9
LARGEST = 1e10  # the largest number that an LP is given
_LARGE = 200_000  # entries of a dense LP from which on the interior point method beats the simplex method


@dataclass(frozen=True, eq=False)
class AffineRows:
    """rows · v = on_input · x_0 + Σ_k on_layers[k] · x_k + constant, up to ±error for true values of the network."""

    on_input: Matrix  # (rows, inputs)
    on_layers: dict[int, Matrix]  # ReLU layer -> (rows, neurons)
    constant: Vector  # (rows,)
    error: Vector  # (rows,)


def affine_rows(
    network: Network, node: int, rows: Tensor | None = None, errors: dict[int, Tensor] | None = None
) -> AffineRows:
    """Linear functions of a node (all its elements by default) in terms of the input and of earlier ReLUs.

    `errors` is that of an `Enclosure` of one box; without it, no error is computed. # rows: (rows, elements)
    """
    shape = network.nodes[node].shape
    if rows is None:
        rows = torch.eye(int(np.prod(shape)), dtype=torch.float64, device=network.device)
    found: dict[int, Matrix] = {}

    def activate(k: int, lam: Tensor) -> Tensor:
        if bool(lam.any()):
            found[k] = lam.flatten(1).cpu().numpy()
        return torch.zeros_like(lam)

    on_input, constant, error = network.pull({node: rows.reshape(len(rows), *shape)}, activate, errors)
    slack = error.cpu().numpy() if errors is None else error.cpu().numpy() + UNDERFLOW
    return AffineRows(on_input.flatten(1).cpu().numpy(), found, constant.cpu().numpy(), slack)


def _targets(network: Network) -> list[int]:
    """The nodes that get bounds: every layer's pre-activation, and the output."""
    if not network.piecewise_linear:
        raise UsageError(
            "linear programs cover ReLU and its piecewise-linear kin only; expected interval, fastlin, crown, "
            "alpha-crown or deepz"
        )
    return [*(network.before(k) for k in range(len(network.layers))), network.output]


@dataclass(frozen=True, eq=False)
class System:
    """r̲ ≤ M v ≤ r̄ (up to ±slack) and v̲ ≤ v ≤ v̄. `post[k]` holds the columns of x_k, −1 where x_k = 0."""

    lower: Vector  # (columns,) v̲
    upper: Vector  # (columns,) v̄
    row_lower: Vector  # (rows,) r̲
    row_upper: Vector  # (rows,) r̄
    slack: Vector  # (rows,)
    row: Index  # (entries,) ascending
    column: Index  # (entries,)
    value: Vector  # (entries,) of M
    binary: Index  # the columns of binary variables
    post: tuple[Index, ...]

    def costs(self, rows: AffineRows) -> Matrix:
        """Coefficients on the columns. # (rows, columns)"""
        cost = np.zeros((len(rows.constant), self.lower.size))
        cost[:, : rows.on_input.shape[1]] = rows.on_input
        for k, block in rows.on_layers.items():
            kept = self.post[k] >= 0
            cost[:, self.post[k][kept]] = block[:, kept]
        return cost

    def dual_bound(self, cost: Vector, y: Vector) -> float:
        """The module's inequality, rounded downward: the sum's terms, minus what rounding may have done to them."""
        with np.errstate(all="ignore"):  # NaN and infinity prove nothing
            return self._dual_bound(cost, y)

    def _dual_bound(self, cost: Vector, y: Vector) -> float:
        useless = ~np.isfinite(y) | ((y > 0) & np.isinf(self.row_lower)) | ((y < 0) & np.isinf(self.row_upper))
        y = np.where(useless, 0.0, y)
        products = y[self.row] * self.value
        reduced = cost - np.bincount(self.column, products, self.lower.size)
        bold = np.abs(cost) + np.bincount(self.column, np.abs(products), self.lower.size)
        side = np.select([y > 0, y < 0], [self.row_lower, self.row_upper], 0.0)
        terms = np.concatenate([y * side, np.minimum(reduced * self.lower, reduced * self.upper)])
        reach = np.maximum(np.abs(self.lower), np.abs(self.upper))
        entries = np.bincount(self.column, minlength=self.lower.size).max(initial=0)  # of a column
        error = gamma(int(entries) + 4) * (bold @ reach) + gamma(terms.size + 4) * np.abs(terms).sum()
        total = float(terms.sum() - SLACK * (error + np.abs(y) @ self.slack) - UNDERFLOW)
        return -np.inf if np.isnan(total) else float(np.nextafter(total, -np.inf))

    def solver(self, time_limit: float | None = None, **options: str | float) -> "Highs":
        """HiGHS on this system without an objective: silent, single-threaded, with tight tolerances."""
        import highspy

        solver = highspy.Highs()
        solver.setOptionValue("output_flag", False)
        options |= {"parallel": "off", "small_matrix_value": 1e-12, "mip_rel_gap": 0.0, "mip_abs_gap": 0.0}
        options |= {f"{kind}_feasibility_tolerance": _TOLERANCE for kind in ("primal", "dual", "mip")}
        for name, value in options.items():
            solver.setOptionValue(name, value)
        solver.setOptionValue("time_limit", np.inf if time_limit is None else float(time_limit))
        integrality = np.zeros(self.lower.size, dtype=np.int32)
        integrality[self.binary] = int(highspy.HighsVarType.kInteger)
        start = np.searchsorted(self.row, np.arange(self.slack.size)).astype(np.int32)
        solver.passModel(
            self.lower.size, self.slack.size, self.value.size, int(highspy.MatrixFormat.kRowwise),
            int(highspy.ObjSense.kMinimize), 0.0, np.zeros(self.lower.size), self.lower, self.upper,
            self.row_lower, self.row_upper, start, self.column.astype(np.int32), self.value, integrality,
        )  # fmt: skip
        return solver


class Assembly:
    """A `System` in the making."""

    def __init__(self, lower: Vector, upper: Vector) -> None:
        self.bounds = [(lower, upper)]
        self.rows: list[tuple[Vector, Vector, Vector]] = []
        self.entries: list[tuple[Index, Index, Vector]] = []
        self.post: list[Index] = []
        self.binary: list[Index] = []
        self.width, self.height = lower.size, 0

    def columns(self, lower: Vector, upper: Vector) -> Index:
        self.bounds.append((lower, upper))
        self.width += lower.size
        return np.arange(self.width - lower.size, self.width)

    def constrain(self, lower: Vector, upper: Vector, slack: Vector, *terms: tuple[Index, Vector]) -> Index:
        """lower ≤ Σ value ⊙ v[column] ≤ upper over the given (column, value), one row per element."""
        rows = np.arange(self.height, self.height + lower.size)
        self.height += lower.size
        self.rows.append((lower, upper, slack))
        self.entries.extend((rows, column, value) for column, value in terms)
        return rows

    def system(self) -> System:
        nothing, blank = np.zeros(0, dtype=np.int64), np.zeros(0)
        lower, upper = (np.concatenate(part) for part in zip(*self.bounds, strict=True))
        row_lower, row_upper, slack = (np.concatenate([blank, *(r[part] for r in self.rows)]) for part in range(3))
        row, column = (np.concatenate([nothing, *(entry[part] for entry in self.entries)]) for part in range(2))
        value = np.concatenate([blank, *(entry[2] for entry in self.entries)])
        order = np.argsort(row, kind="stable")
        entries = (row[order], column[order], value[order])
        binary = np.concatenate([nothing, *self.binary])
        return System(lower, upper, row_lower, row_upper, slack, *entries, binary, tuple(self.post))


def _system(enclosure: Enclosure, blocks: Sequence[AffineRows], *, exact: bool = False) -> System:
    """The relaxation, or with `exact` the MILP, of the layers in `blocks` over the one box of an enclosure."""
    assembly = Assembly(*(end[0].cpu().numpy().reshape(-1) for end in (enclosure.lower, enclosure.upper)))
    inputs = np.arange(assembly.width)
    for k, block in enumerate(blocks):
        low, high = (bound.cpu().numpy()[0] for bound in enclosure.layer(k))
        before = assembly.columns(low, high)
        rows = assembly.constrain(block.constant, block.constant, block.error, (before, np.ones(low.size)))
        sources = [(inputs, block.on_input), *((assembly.post[j], w) for j, w in block.on_layers.items())]
        for source, weight in sources:  # x̂_k − Σ_j W_{k,j} x_j = b_k
            i, j = np.nonzero(weight * (source >= 0))
            assembly.entries.append((rows[i], source[j], -weight[i, j]))

        free = np.flatnonzero((low < 0) & (high > 0))
        zero, one, infinite = np.zeros(free.size), np.ones(free.size), np.full(free.size, np.inf)
        after = assembly.columns(zero, high[free])
        assembly.constrain(zero, infinite, zero, (after, one), (before[free], -one))
        if exact:
            z = assembly.columns(zero, one)
            assembly.binary.append(z)
            assembly.constrain(-infinite, -low[free], zero, (after, one), (before[free], -one), (z, -low[free]))
            assembly.constrain(-infinite, zero, zero, (after, one), (z, -high[free]))
        else:
            line = relax(torch.from_numpy(low[free]), torch.from_numpy(high[free]))
            terms = (after, one), (before[free], -line.upper_slope.numpy())
            assembly.constrain(-infinite, line.intercept.numpy(), zero, *terms)
        out = np.where(low >= 0, before, -1)
        out[free] = after
        assembly.post.append(out)
    return assembly.system()


def _minimise(system: System, rows: AffineRows, time_limit: float | None = None) -> Minima:
    """One problem per row. LPs start from the previous one's basis; `time_limit` is for each."""
    import highspy

    m, inputs = rows.on_input.shape
    value, bound, x = np.full(m, np.inf), np.full(m, np.inf), np.full((m, inputs), np.nan)
    if m == 0 or (system.lower > system.upper).any():
        return Minima(value, bound, x)
    state, exact = highspy.HighsModelStatus, system.binary.size > 0
    columns = np.arange(system.lower.size, dtype=np.int32)
    solver = system.solver(time_limit)
    for r, cost in enumerate(system.costs(rows)):
        if exact and r:
            solver = system.solver(time_limit)
        solver.changeColsCost(columns.size, columns, cost)
        solver.run()
        status, info, solution = solver.getModelStatus(), solver.getInfo(), solver.getSolution()
        found = exact and info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        infeasible = status in (state.kInfeasible, state.kUnboundedOrInfeasible)  # no variable is unbounded
        if found or status == state.kOptimal:
            value[r] = info.objective_function_value + rows.constant[r]
            x[r] = np.clip(np.asarray(solution.col_value), system.lower, system.upper)[:inputs]
        elif not infeasible:
            value[r] = np.nan
        if exact:
            bound[r] = np.inf if infeasible else info.mip_dual_bound + rows.constant[r]
            continue
        if infeasible and _refuted(system, solver):
            break  # whatever the objective
        duals = [np.zeros(system.slack.size)] + [np.asarray(solution.row_dual)] * (status == state.kOptimal)
        best = max(system.dual_bound(cost, y) for y in duals) + rows.constant[r]
        error = SLACK * rows.error[r] + gamma(4) * (abs(best) + abs(rows.constant[r])) + TINY
        bound[r] = np.nextafter(best - error, -np.inf)
    return Minima(value, bound, x)


def _refuted(system: System, solver: "Highs") -> bool:
    """Whether the solver's dual ray proves, rounding included, that the system has no solution (Farkas)."""
    _, exists, ray = solver.getDualRay()  # type: ignore[attr-defined]  # missing from highspy's stubs
    rays = (sign * np.asarray(ray) for sign in (1.0, -1.0) if exists)
    return any(system.dual_bound(np.zeros(system.lower.size), y) > 0 for y in rays)


def _layer_by_layer(
    network: Network, lower: Tensor, upper: Tensor, exact: bool = False, time_limit: float | None = None
) -> LayerBounds:
    network = network.to(torch.float64)
    targets, found = _targets(network), []

    def tighten(node: int, system: System, chosen: Tensor) -> None:
        low, high = enclosure.lower[node].clone(), enclosure.upper[node].clone()
        unit = torch.eye(low.numel(), dtype=torch.float64, device=low.device)[chosen]
        target = affine_rows(network, node, torch.cat([unit, -unit]), enclosure.errors)
        bound = network.array(_minimise(system, target, time_limit if exact else None).bound)
        low.view(-1)[chosen], high.view(-1)[chosen] = bound[: len(chosen)], -bound[len(chosen) :]
        enclosure.tighten(node, low, high)

    for b in range(len(lower)):
        enclosure = Enclosure(network, lower[b : b + 1].double(), upper[b : b + 1].double())
        blocks: list[AffineRows] = []
        for node in targets:
            enclosure.extend(node)
            ambiguous = ((enclosure.lower[node] < 0) & (enclosure.upper[node] > 0)).flatten()
            tighten(node, _system(enclosure, blocks), torch.nonzero(ambiguous | (node == targets[-1])).flatten())
            blocks.append(affine_rows(network, node, None, enclosure.errors))
        # last to first, so that every MILP is built from the sound bounds of the layers before it
        for k in reversed(range(len(targets) if exact else 0)):
            every = torch.arange(blocks[k].constant.size, device=network.device)
            tighten(targets[k], _system(enclosure, blocks[:k], exact=True), every)
        found.append(enclosure)
    return LayerBounds(
        tuple(torch.cat([e.lower[node].flatten(1) for e in found]) for node in targets),
        tuple(torch.cat([e.upper[node].flatten(1) for e in found]) for node in targets),
    )


def planet_lp(network: Network, lower: Tensor, upper: Tensor) -> LayerBounds:
    """The Planet LP's bounds on every layer in turn (eq. 10), two LPs per ambiguous neuron or output; sound in float64.

    Neurons that intervals prove stable keep their intervals. # lower, upper: (boxes, *input_shape)
    """
    return _layer_by_layer(network, lower, upper)


def milp(network: Network, lower: Tensor, upper: Tensor, *, time_limit: float | None = None) -> LayerBounds:
    """The exact range of every neuron and output, by two MILPs each over the Planet LP's bounds.

    Accurate to the solver's tolerances only: a reference, not a proof. `time_limit` is in seconds per MILP; where it is
    reached the solver's bound so far stands. # lower, upper: (boxes, *input_shape)
    """
    return _layer_by_layer(network, lower, upper, exact=True, time_limit=time_limit)


def solvable(*arrays: NDArray[np.float64]) -> bool:
    """Whether numbers are of a size that HiGHS is made for: it has crashed on larger ones, with the whole process."""
    return all(bool((np.abs(array) <= LARGEST).all()) for array in arrays)


def leaf_multipliers(
    *,
    preactivations: Matrix,
    offsets: Vector,
    signs: Vector,
    rows: Matrix,
    constants: Vector,
    lower: Vector,
    upper: Vector,
    elastic: bool = True,
    time_limit: float | None = None,
) -> LeafMultipliers | None:
    """Decide a leaf, where all neurons are split and so the network is affine: x̂ = A x + b with signs s, r = C x + d.

    Solves  min t  s.t.  C x + d ≤ t,  −s ⊙ (A x + b) ≤ t,  lower ≤ x ≤ upper.  The optimum is positive iff no x of the
    leaf has all r(x) ≤ 0, and its multipliers prove it: π·r(x) − Σ β_i s_i x̂_i ≥ t* on the box, and the second term is
    ≤ 0 on the leaf. Any π, β ≥ 0 give a valid bound, so the solver's tolerances only cost tightness; it is the caller
    who evaluates that bound with rounding accounted for. None if the solver found no optimum in time, or the
    numbers are too large for it.

    That is the `elastic` problem, which is always feasible. Otherwise the splits are hard constraints,
    −s ⊙ (A x + b) ≤ 0: there is an optimum only if the leaf is not empty, and then its x minimises the largest row.
    # preactivations A: (splits, inputs), offsets b, signs s: (splits,), rows C: (rows, inputs), constants d: (rows,)
    """
    import highspy

    n, m = lower.size, constants.size + offsets.size
    matrix = np.concatenate([rows, -signs[:, None] * preactivations])
    offset = np.concatenate([constants, -signs * offsets])
    if not solvable(matrix, offset, lower, upper):
        return None
    assembly = Assembly(np.append(lower, -np.inf), np.append(upper, np.inf))
    assembly.constrain(np.full(m, -np.inf), -offset, np.zeros(m))
    relief = np.full(m, -1.0)
    if not elastic:
        relief[constants.size :] = 0.0
    entries = np.column_stack([matrix, relief])
    assembly.entries.append((np.repeat(np.arange(m), n + 1), np.tile(np.arange(n + 1), m), entries.reshape(-1)))
    solver = assembly.system().solver(time_limit, solver="ipm" if entries.size > _LARGE else "simplex")
    solver.changeColCost(n, 1.0)
    solver.run()
    multipliers = np.maximum(-np.asarray(solver.getSolution().row_dual), 0.0)  # HiGHS has y ≤ 0 on rows of the form ≤
    total = multipliers.sum()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal or not 0 < total < np.inf:
        return None
    multipliers = multipliers / total
    slope = multipliers @ matrix
    t = float(multipliers @ offset + np.minimum(slope * lower, slope * upper).sum())
    x = np.clip(np.asarray(solver.getSolution().col_value)[:n], lower, upper)
    return LeafMultipliers(t, x, multipliers[: constants.size], multipliers[constants.size :])

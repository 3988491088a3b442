"""What a method of bounding returns."""

from dataclasses import dataclass

from torch import Tensor

from surebound.problem import Matrix, Vector


@dataclass(frozen=True, eq=False)
class LayerBounds:
    """Bounds on every ReLU layer's pre-activation x̂_k and, last, on the output, for a batch of boxes."""

    lower: tuple[Tensor, ...]  # (boxes, neurons) each
    upper: tuple[Tensor, ...]  # (boxes, neurons) each


@dataclass(frozen=True, eq=False)
class Minima:
    """For each row of an LP: its optimum up to the solver's tolerances, a sound lower bound on it, and its minimiser.

    Where the problem is infeasible the value is +inf and the minimiser NaN, and a bound of +inf says that this was
    proved; where the solver failed, value and minimiser are NaN and only the bound means something.
    """

    value: Vector  # (rows,)
    bound: Vector  # (rows,)
    x: Matrix  # (rows, inputs)


@dataclass(frozen=True, eq=False)
class LeafMultipliers:
    """π, β ≥ 0 with Σπ + Σβ = 1 and value = min over the box of π·r(x) − Σ β_i s_i x̂_i, evaluated in float64."""

    value: float  # t*
    x: Vector  # (inputs,)
    pi: Vector  # (rows,)
    beta: Vector  # (splits,)

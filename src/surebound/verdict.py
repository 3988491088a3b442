"""How a verification ended; importable without any library, since interrupts while libraries load have verdicts too."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Status = Literal["unsat", "sat", "unknown", "timeout"]


@dataclass(frozen=True, eq=False)
class Counterexample:
    """An input in the box or ball and the network's replayed outputs there.

    Every element of x is a float32, except where the box holds none: those are the float64 in the box, replayed as the
    nearest float32 and confirmed in exact arithmetic besides.
    """

    x: NDArray[np.float64]  # (inputs,)
    y: NDArray[np.floating[Any]]  # (outputs,) float32, or float64 from a network written in float64


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How a verification ended.

    `unsat`: proved, with rounding accounted for. `sat`: `counterexample` was replayed and violates the property.
    `timeout`: the time ran out. `unknown`: it ended otherwise, and `reason` says how.
    """

    status: Status
    counterexample: Counterexample | None = None
    seconds: float = 0.0
    seconds_by_phase: dict[str, float] = field(default_factory=dict)
    subproblems: int = 0
    lower_bound: float | None = None
    branching: str | None = None
    seed: int = 0
    reason: str = ""
    proof: Any = field(default=None, repr=False)  # a `surebound.proof.write.Proof` of `unsat`, if one was asked for
    searched_by: str = ""  # workers or threads, where there was a choice

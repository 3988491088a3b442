"""How a search tries out points: is one of them close to a counterexample?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, final

import numpy as np

from surebound.attacks.objective import Objective
from surebound.bounds.timed import Check
from surebound.network.arrays import concat, retyped, spread, to_numpy
from surebound.network.cost import PASS_PRODUCTS, products
from surebound.network.graph import Network
from surebound.problem import Counterexample, Region
from surebound.verify.confirm import Confirming

if TYPE_CHECKING:
    from torch import Tensor

TryPoints = Callable[["Tensor"], Counterexample | None]
"""Points (n, network inputs) near which a counterexample may lie -> one that was replayed, or None."""
REPLAYED = 16  # points at most, of those that are looked at together


@final
class Look:
    """Evaluates points in float32, and replays those that seem to violate a region."""

    def __init__(self, network: Network, regions: Sequence[Region], confirm: Confirming, check: Check) -> None:
        self._regions, self._confirm, self._check = regions, confirm, check
        self._objective = Objective(network, regions, thin="nearest")
        self._together = max(1, PASS_PRODUCTS // (self._objective.passes * max(products(network, network.output), 1)))

    def inside(self, points: Tensor) -> Tensor:
        """The nearest points of each region. # (n, inputs) -> (regions, n, inputs) float32"""
        return self._objective.clip(spread(retyped(points, "float32")[None], (len(self._regions), *points.shape)))

    def __call__(self, points: Tensor) -> Counterexample | None:
        value = concat([self._values(points[i : i + self._together]) for i in range(0, len(points), self._together)], 1)
        for g, i in np.argwhere(to_numpy(value) <= 0)[:REPLAYED].tolist():
            x = self.inside(points[i : i + 1])[g, 0]
            found = self._confirm(to_numpy(x).astype(np.float64), [self._regions[g]])
            if found is not None:
                return found
        return None

    def _values(self, points: Tensor) -> Tensor:
        self._check()
        return self._objective.nearest_values(retyped(points, "float32"))

"""From a promising point to a counterexample that stands: in the domain, replayed on the original file, violating."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from surebound.bounds.enclosure import enclose
from surebound.bounds.rounding import gamma
from surebound.network.arrays import to_numpy
from surebound.network.graph import Network
from surebound.network.model import Model, Replay
from surebound.problem import Counterexample, Region, Vector, by_box

Confirming = Callable[[Vector, Sequence[Region]], Counterexample | None]
"""A point near which regions may be violated -> a counterexample that stands."""
COMPARED = 4  # boxes in which a network is compared with what it was read from


class Confirm:
    """Replays points and keeps those that violate one of the regions."""

    def __init__(self, network: Network, replay: Replay) -> None:
        """`network` in float64."""
        self._network = network
        self._replay = replay

    def __call__(self, point: Vector, regions: Sequence[Region]) -> Counterexample | None:
        """The counterexample at the point nearest to `point` that float32 can hold in a region's domain, if any."""
        for region in regions:
            x = region.box.nearest(point)
            if x is None:
                continue
            thin = x.astype(np.float32).astype(np.float64) != x
            y = self._replay(x.astype(np.float32)[None])[0].reshape(-1)
            if not region.holds(x, y.astype(np.float64)):
                continue
            if thin.any() and not self._holds_exactly(x, thin, region):
                continue
            return Counterexample(x, y)
        return None

    def _holds_exactly(self, x: Vector, thin: NDArray[np.bool_], region: Region) -> bool:
        """Whether x violates the property in real arithmetic, whatever it is exactly in the thin intervals."""
        ends = (np.where(thin, end, x) for end in (region.box.lower, region.box.upper))
        lower, upper = (self._network.array(end.reshape(1, *self._network.input_shape)) for end in ends)
        with np.errstate(all="ignore"):
            enclosure = enclose(self._network, lower, upper)
        low, high = (to_numpy(t[self._network.output]).reshape(-1) for t in (enclosure.lower, enclosure.upper))
        corners = np.where(region.on_output > 0, high, low)
        worst = (region.on_output * corners).sum(1) + region.constant
        scale = np.abs(region.on_output * corners).sum(1) + np.abs(region.constant)
        if region.on_input is not None:
            worst = (
                worst
                + region.on_input @ x
                + np.abs(region.on_input) @ np.where(thin, region.box.upper - region.box.lower, 0)
            )
            scale = scale + np.abs(region.on_input) @ np.abs(x)
        terms = sum(m.shape[1] for m in (region.on_output, region.on_input) if m is not None) + 4
        return bool((worst + 2 * gamma(terms) * scale < 0).all())


def expect_agreement(model: Model, regions: Sequence[Region]) -> None:
    """Raise NetworkError if the original and the network that was read from it differ in what was proved.

    They were compared at points of all sizes when the network was read; what an activation does only in some range, the
    domains of the property show. Compared at the middle and at a random point of the first few of them.
    """
    rng = np.random.default_rng(0)
    boxes = [regions[group[0]].box for group in by_box(regions)]
    for box in [box for box in boxes if not box.empty][:COMPARED]:
        points = np.stack([box.middle, box.lower + rng.random(box.lower.size) * (box.upper - box.lower)])
        model.check_at(points, "at a point of the property")

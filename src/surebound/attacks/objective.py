"""How far a point is from being a counterexample, and in which direction to move it.

A point x of a region is a counterexample if all the region's rows hold, that is if

    v(x) = max_r (c_r · f(x) + d_r · x + e_r)  <=  0,        c = on_output, d = on_input, e = constant.

With r* a maximising row and D_k the diagonal 0/1 matrix of the ReLUs of layer k that are active at x, f is affine
around x with Jacobian J = A_n D_{n−1} A_{n−1} ⋯ D_1 A_1, and ∇v(x) = Jᵀ c_{r*} + d_{r*}: one forward pass that keeps
the D_k and one backward pass, with no autograd. A ReLU at 0 counts as inactive; of tied rows, one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Literal, final

import numpy as np
from numpy.typing import NDArray

from surebound.domain.sets import round_inward
from surebound.errors import PropertyError
from surebound.network.arrays import concat, counting, library, no_gradients, spread
from surebound.network.graph import Network
from surebound.problem import Ball, Domain, Region

if TYPE_CHECKING:
    from torch import Tensor

    from surebound.domain.balls import Balls

WAVE_BYTES = 1 << 23
"""The largest tensor of a pass. More is no faster once it leaves the cache, and finds nothing sooner."""

_SMALLEST = float(np.finfo(np.float32).smallest_normal)


@final
class Objective:
    """v(x) for all regions of a property at once, in float32.

    `lower` and `upper` are the boxes rounded inward, so that a float32 point between them lies in the float64 box.
    Where that leaves nothing (an interval thinner than the spacing of float32), `attackable` is False; with
    ``thin="nearest"`` the input is fixed at the float32 nearest to the interval's centre instead, just outside of it.

    To demand a distance from the boundary, say after a candidate failed its replay, add it to the regions' constants.
    """

    lower: Tensor  # (regions, inputs)
    upper: Tensor  # (regions, inputs)
    half_width: Tensor  # (regions, inputs) ε of each input: half of upper − lower, without overflow
    balls: Balls | None  # (regions, 1, inputs) of the regions, if they are balls: a little smaller
    attackable: Tensor  # (regions,) bool

    def __init__(
        self,
        network: Network,
        regions: Sequence[Region],
        *,
        thin: Literal["skip", "nearest"] = "skip",
        wave_bytes: int = WAVE_BYTES,
    ) -> None:
        for region in regions:
            inputs, outputs = region.box.lower.size, region.on_output.shape[1]
            if (inputs, outputs) != (network.inputs, network.outputs):
                raise PropertyError(
                    f"an attack on a region over {inputs} inputs and {outputs} outputs needs a network of that size,"
                    f" got {network.inputs} inputs and {network.outputs} outputs"
                )
        self._network = network.single()
        self._wave_bytes = wave_bytes
        boxes: dict[Domain, tuple[NDArray[np.float32], NDArray[np.float32]]] = {}
        for region in regions:
            if region.box not in boxes:
                boxes[region.box] = round_inward(region.box) if thin == "skip" else _round_or_fix(region.box)
        self._shared = len(boxes) == 1
        ends = list(boxes.values()) if self._shared else [boxes[region.box] for region in regions]
        both = np.array(ends, np.float32).reshape(-1, 2, network.inputs)
        lower, upper = network.array(both[:, 0]), network.array(both[:, 1])
        # One for all regions where they share a box: of a thousand regions over a large image, each would take a GiB.
        shape = (len(regions), network.inputs)
        self.lower, self.upper = spread(lower, shape), spread(upper, shape)
        self.half_width = spread(upper / 2 - lower / 2, shape)
        self.attackable = spread((lower <= upper).all(1), shape[:1])
        balls = [region.box for region in regions if isinstance(region.box, Ball)]
        self.balls = _smaller(balls, network.device, self.lower, self.upper) if balls else None

        # Rows that a region does not have are 0 · y − ∞: never the maximum, unless there is no other row.
        rows = max((len(r.constant) for r in regions), default=1) or 1
        on_output = np.zeros((len(regions), rows, network.outputs), np.float32)
        mixed = any(region.on_input is not None for region in regions)
        on_input = np.zeros((len(regions), rows, network.inputs if mixed else 0), np.float32)
        constant = np.full((len(regions), rows), -np.inf, np.float32)
        strict = np.zeros((len(regions), rows), np.bool_)
        with np.errstate(over="ignore"):  # beyond float32 is ±∞
            for i, region in enumerate(regions):
                n = len(region.constant)
                on_output[i, :n], constant[i, :n], strict[i, :n] = region.on_output, region.constant, region.strict
                if region.on_input is not None:
                    on_input[i, :n] = region.on_input
        self._on_output, self._constant = network.array(on_output), network.array(constant)
        self._on_input = network.array(on_input) if mixed else None
        self._strict = network.array(strict) if strict.any() else None

    def __len__(self) -> int:
        """The number of regions."""
        return len(self.lower)

    @property
    def inputs(self) -> int:
        """The number of input elements."""
        return self._network.inputs

    @property
    def outputs(self) -> int:
        """The number of output elements."""
        return self._network.outputs

    @property
    def capacity(self) -> int:
        """How many points to evaluate at once, so that no tensor exceeds `wave_bytes`."""
        return max(1, self._wave_bytes // (4 * self._network.widest))

    def clip(self, x: Tensor) -> Tensor:
        """The nearest points of the domains. # (regions, restarts, inputs)"""
        if self.balls is not None:
            return self.balls.project(x)
        most = library(x).maximum(x, self.lower[:, None])
        return library(x).minimum(most, self.upper[:, None])

    def starts(self, unit: Tensor) -> Tensor:
        """Points of the domains from numbers in [−1, 1]; 0 is the middle. # (restarts, inputs) -> (regions, …)"""
        if self.balls is not None:
            return self.balls.sample(unit[None].expand(len(self), -1, -1))
        return self.clip((self.lower / 2 + self.upper / 2)[:, None] + unit * self.half_width[:, None])

    def along(self, direction: Tensor, *, relative: bool = True) -> Tensor:
        """The way along a direction, as the domain's norm has it: of length 1, or `relative` to the domain's size.

        In ℓ∞ it is the sign of every input, times half the box's width. # (regions, restarts, inputs)
        """
        if self.balls is not None:
            way = self.balls.along(direction)
            return way if relative else way / self.balls.radius.clamp_min(_SMALLEST)
        way = library(direction).sign(direction)
        return way * self.half_width[:, None] if relative else way

    def lowest(self, x: Tensor, gradient: Tensor) -> Tensor:
        """The least of ∇·(y − x) over all y of the domains. # (regions, inputs) twice -> (regions,)"""
        if self.balls is not None:
            y = self.balls.parted(-gradient[:, None]).x[:, 0]
            return (gradient * (y - x)).sum(1)
        return library(x).minimum(gradient * (self.lower - x), gradient * (self.upper - x)).sum(1)

    def take(self, regions: Tensor) -> Objective:
        """The objective of some of the regions only. # index or mask of the regions"""
        part = copy(self)  # with as many domains, if they are shared
        part.lower, part.upper, part.attackable = self.lower[regions], self.upper[regions], self.attackable[regions]
        part.half_width = self.half_width[regions]
        part.balls = None if self.balls is None else self.balls.take(regions)
        part._on_output, part._constant = self._on_output[regions], self._constant[regions]
        part._strict = None if self._strict is None else self._strict[regions]
        part._on_input = None if self._on_input is None else self._on_input[regions]
        return part

    def middle_values(self) -> Tensor | None:
        """v at the middle of the domain, if all regions have the same: one forward pass. # (regions,)"""
        if not self._shared or self.balls is not None:
            return None
        return self._shared_value(self.lower[:1] / 2 + self.upper[:1] / 2)[:, 0]

    def nearest_values(self, points: Tensor) -> Tensor:
        """v at the points of each domain that are nearest to some. # (restarts, inputs) -> (regions, restarts)"""
        if self._shared and self.balls is None:
            return self._shared_value(self.take(counting(self.lower, 1)).clip(points[None])[0])
        return self.value(self.clip(spread(points[None], (len(self), *points.shape))))

    @property
    def passes(self) -> int:
        """How many passes the values of all regions at one point take."""
        return 1 if self._shared and self.balls is None else len(self)

    def _shared_value(self, points: Tensor) -> Tensor:
        """v at points of the only domain, in one pass. # (restarts, inputs) -> (regions, restarts)"""
        x = points[None]
        with no_gradients(x):
            y = self._outputs(x).reshape(1, len(points), -1)
            shape = (len(self), len(points))
            rows = self._rows(spread(x, (*shape, self.inputs)), spread(y, (*shape, self.outputs)))
            return _finite(library(y).amax(rows, -1))

    def value(self, x: Tensor) -> Tensor:
        """v(x); +∞ where the network overflows. # (regions, restarts, inputs) -> (regions, restarts)"""
        with no_gradients(x):
            return _finite(library(x).amax(self._rows(x, self._outputs(x)), -1))

    def _outputs(self, x: Tensor) -> Tensor:
        points, step = self._points(x), self.capacity
        return concat([self._network.forward(points[i : i + step]) for i in range(0, max(len(points), 1), step)], 0)

    def value_and_gradient(self, x: Tensor, *, direction: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """v(x) and ∇v(x) of at most `capacity` points, if memory matters.

        # (regions, restarts, inputs) -> (regions, restarts), (regions, restarts, inputs)

        With a `direction` w (restarts, outputs), the gradient is that of w · f(x) instead.
        """
        slopes: dict[int, Tensor] = {}

        def record(layer: int, xhat: Tensor) -> Tensor:
            slopes[layer] = self._network.slope(layer, xhat)
            return self._network.activate(layer, xhat)

        with no_gradients(x):
            y = self._network.trace(self._points(x), record)
            rows = self._rows(x, y)
            value, row = library(rows).amax(rows, -1), rows.argmax(-1)  # (regions, restarts)
            if direction is None:
                on_y = _gather(self._on_output, row)
                on_x = None if self._on_input is None else _gather(self._on_input, row)
            else:
                on_y, on_x = direction.expand(len(x), -1, -1), None
            start = {self._network.output: on_y.reshape(y.shape)}
            gradient = self._network.pull(start, lambda layer, c: c * slopes.pop(layer))[0].reshape(x.shape)
            if on_x is not None:
                gradient = gradient + on_x
            return _finite(value), library(gradient).nan_to_num(gradient, nan=0.0, posinf=0.0, neginf=0.0)

    def _points(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self._network.input_shape)

    def _rows(self, x: Tensor, y: Tensor) -> Tensor:
        """What must be <= 0. # (regions, restarts, rows)"""
        rows = y.reshape(*x.shape[:2], -1) @ self._on_output.mT + self._constant[:, None]
        if self._on_input is not None:
            rows = rows + x @ self._on_input.mT
        if self._strict is not None:  # 0 is not below 0
            rows = library(rows).where((rows == 0) & self._strict[:, None], _SMALLEST, rows)
        return rows


def _smaller(balls: Sequence[Ball], device: str, lower: Tensor, upper: Tensor) -> Balls:
    """The balls in float32, each by so much smaller that a float32 point of it, as a rule, lies in the exact one."""
    from surebound.domain.balls import Balls

    whole = Balls.of(balls, device)
    radius = (whole.radius * (1 - 1e-6) - 2.0**-22).clamp_min(whole.radius * 0.5)
    low, high = lower[:, None].float(), upper[:, None].float()
    return Balls(whole.centre[:, None].float().clamp(low, high), radius[:, None].float(), low, high, whole.norm)


def _round_or_fix(box: Domain) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    lower, upper = round_inward(box)
    thin = (lower > upper) & (box.lower <= box.upper)
    with np.errstate(over="ignore"):
        centre = np.where(thin, box.lower / 2 + box.upper / 2, 0.0).astype(np.float32)
    return np.where(thin, centre, lower), np.where(thin, centre, upper)


def _gather(rows: Tensor, row: Tensor) -> Tensor:
    """rows[i, row[i, j]]. # (regions, rows, n), (regions, restarts) -> (regions, restarts, n)"""
    return rows[counting(rows, len(rows))[:, None], row]


def _finite(value: Tensor) -> Tensor:
    """+∞ for NaN: no overflow is ever a counterexample."""
    return library(value).nan_to_num(value, nan=np.inf, posinf=np.inf, neginf=-np.inf)

"""Branch and bound over the input box, for networks with few inputs: bisect, bound with CROWN, prune.

Every bound is computed in float64 with its rounding error taken off, so pruning needs no second look. Intermediate
bounds are computed for each box, from its parent's on: they tighten quickly as boxes shrink, which is why this beats
ReLU splits in low dimensions.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Slopes, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.relaxation import relax
from surebound.bounds.root import LayerBounding, tighten_layers
from surebound.network.graph import Network
from surebound.problem import Counterexample, Region
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.early_stop import EarlyStop
from surebound.verify.points import TryPoints
from surebound.verify.search import Outcome

_BOUNDING = LayerBounding(slopes=("crown",), ascent=None)
_FLOOR = 0.2  # of the steepest slope seen, which every input counts with in a split
_REMEMBERED = 4096  # neurons up to which a box keeps its layers' bounds for its parts
_ELEMENTS = 2**19  # of the largest tensor in a batch, which then stays in the cache


@dataclass(frozen=True, eq=False)
class Boxes:
    """A batch of boxes, each with the region it belongs to and its bound so far."""

    lower: Tensor  # (boxes, inputs)
    upper: Tensor  # (boxes, inputs)
    region: Tensor  # (boxes,)
    bound: Tensor  # (boxes,)
    axis: Tensor  # (boxes,) the input to bisect next
    layers_lower: Tensor  # (boxes, neurons) bounds on all layers, valid also for parts of the box
    layers_upper: Tensor  # (boxes, neurons); both (boxes, 0) where that would take too much memory

    def __len__(self) -> int:
        return len(self.region)

    def __getitem__(self, index: Tensor) -> "Boxes":
        return Boxes(*(t[index] for t in self.tensors()))

    def joined(self, other: "Boxes") -> "Boxes":
        pairs = zip(self.tensors(), other.tensors(), strict=True)
        return Boxes(*(torch.cat(pair) for pair in pairs))

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, kw_only=True)
class BoxLimits:
    """What the search may take."""

    memory: int = 2**31  # bytes; beyond, boxes forget their layers' bounds and the deepest come first
    early_stop: bool = False


def input_search(
    network: Network, regions: Sequence[Region], clock: Clock, try_points: TryPoints, limits: BoxLimits
) -> Outcome:
    """Decide all regions by bisecting their boxes. `network` in float64."""
    run = _BoxSearch(network, regions, clock, try_points, limits)
    try:
        return run.loop()
    except OutOfTime:
        return run.outcome(timed_out=True, reason="the time ran out")


class _BoxSearch:
    """The state of one search."""

    def __init__(
        self, network: Network, regions: Sequence[Region], clock: Clock, try_points: TryPoints, limits: BoxLimits
    ) -> None:
        self.network, self.clock, self.try_points, self.limits = network, clock, try_points, limits
        self.in_hand = float("-inf")  # the lowest bound among the boxes taken out of the queue
        self.early = EarlyStop()
        self.coefficients, self.constants = _stack(regions, network)
        count = len(regions)
        neurons = sum(network.width(k) for k in range(len(network.layers)))
        self.remembered = neurons if neurons <= _REMEMBERED else 0
        self.queue = Boxes(
            torch.from_numpy(np.stack([r.box.lower for r in regions])),
            torch.from_numpy(np.stack([r.box.upper for r in regions])),
            torch.arange(count),
            torch.full((count,), -torch.inf, dtype=torch.float64),
            torch.zeros(count, dtype=torch.int64),
            torch.full((count, self.remembered), -torch.inf, dtype=torch.float64),
            torch.full((count, self.remembered), torch.inf, dtype=torch.float64),
        )
        self.batch = max(8, _ELEMENTS // (2 * _widest(network) ** 2))
        self.steepest = torch.zeros(network.inputs, dtype=torch.float64)  # largest slope seen for each input
        self.subproblems = 0
        self.stuck = 0
        self.found: Counterexample | None = None

    def loop(self) -> Outcome:
        fresh = self.queue
        self.queue = fresh[torch.zeros(0, dtype=torch.int64)]
        while True:
            begin, before = time.monotonic(), self.in_hand
            self._process(fresh)
            if self.found is not None:
                return self.outcome()
            if not len(self.queue):
                return self.outcome(proved=self.stuck == 0)
            if self._hopeless(before, len(fresh), time.monotonic() - begin):
                return self.outcome(timed_out=True, reason="stopped early: not expected to end in time")
            with self.clock.phase("queue"):
                parents = self._take()
            self.in_hand = float(parents.bound.min())
            self.clock.report("search", subproblems=self.subproblems, open_=len(self.queue), lowest=self.in_hand)
            fresh = self._bisect(parents)

    def _process(self, fresh: Boxes) -> None:
        """Bound boxes and put those left open into the queue."""
        for part in torch.arange(len(fresh)).split(self.batch):
            begin = time.monotonic()
            rest = self._bound(fresh[part])
            if self.found is not None:
                return
            self.queue = self.queue.joined(rest)
            if self.clock.remaining < 1.1 * (time.monotonic() - begin):
                raise OutOfTime
        self.in_hand = float("inf")

    def _take(self) -> Boxes:
        """The boxes with the lowest bounds, out of the queue.

        When the queue outgrows the memory, boxes forget their layers' bounds; when it still does, those with the
        highest bounds, near their end, come first.
        """
        if self.remembered and self.queue.nbytes > self.limits.memory:
            self.remembered = 0
            none = self.queue.layers_lower[:, :0].clone()
            self.queue = replace(self.queue, layers_lower=none, layers_upper=none)
        full = self.queue.nbytes > self.limits.memory
        picked = self.queue.bound.argsort(descending=full)[: max(1, self.batch // 2)]
        rest = torch.ones(len(self.queue), dtype=torch.bool)
        rest[picked] = False
        parents, self.queue = self.queue[picked], self.queue[torch.nonzero(rest).flatten()]
        return parents

    def _hopeless(self, before: float, batch: int, seconds: float) -> bool:
        """Whether to stop early, after a batch of boxes whose parents' lowest bound was `before`."""
        lowest = float(self.queue.bound.min())
        if np.isfinite(before):
            self.early = self.early.observed(lowest - before)
        return self.limits.early_stop and self.early.hopeless(
            lowest=lowest,
            queue=len(self.queue),
            batch=batch,
            batch_seconds=seconds,
            remaining=self.clock.remaining,
        )

    def outcome(self, *, proved: bool = False, timed_out: bool = False, reason: str = "") -> Outcome:
        if self.stuck and self.found is None:
            reason = reason or f"{self.stuck} boxes cannot be bisected further and are within rounding of the threshold"
        bounds = [self.in_hand, 0.0 if self.stuck else float("inf"), *self.queue.bound.tolist()]
        return Outcome(
            proved=proved,
            counterexample=self.found,
            subproblems=self.subproblems,
            lower_bound=min(bounds),
            timed_out=timed_out,
            reason=reason,
        )

    def _bisect(self, parents: Boxes) -> Boxes:
        n = torch.arange(len(parents))
        middle = (parents.lower[n, parents.axis] + parents.upper[n, parents.axis]) / 2
        left, right = parents.upper.clone(), parents.lower.clone()
        left[n, parents.axis] = middle
        right[n, parents.axis] = middle
        return replace(parents, upper=left).joined(replace(parents, lower=right))

    def _bound(self, boxes: Boxes) -> Boxes:
        """Bound boxes; what is left open, with bounds and axes filled in."""
        self.clock.check()
        with self.clock.phase("bounding"):
            self.subproblems += len(boxes)
            shape = (-1, *self.network.input_shape)
            enclosure = Enclosure(self.network, boxes.lower.reshape(shape), boxes.upper.reshape(shape))
            known = (boxes.layers_lower, boxes.layers_upper) if self.remembered else None
            tighten_layers(enclosure, _BOUNDING, self.clock.check, known)
            if self.remembered:
                layers = [enclosure.layer(k) for k in range(len(self.network.layers))]
                boxes = replace(
                    boxes,
                    layers_lower=torch.cat([low for low, _ in layers], dim=1),
                    layers_upper=torch.cat([high for _, high in layers], dim=1),
                )
            bound, slope, x = self._specifications(enclosure, boxes.region)
            open_ = torch.nonzero(~(bound > 0)).flatten()
        if not len(open_):
            return boxes[open_]
        with self.clock.phase("attack"):
            lowest = open_[bound[open_].argsort()[:64]]
            centre = (boxes.lower[lowest] + boxes.upper[lowest]) / 2
            self.found = self.try_points(torch.cat([x[lowest], centre]))
        with self.clock.phase("branching"):
            width = boxes.upper - boxes.lower
            middle = (boxes.lower + boxes.upper) / 2
            divisible = (middle > boxes.lower) & (middle < boxes.upper)
            steep = slope.abs()
            self.steepest = torch.maximum(self.steepest, steep.nan_to_num().amax(0))
            # An input that hardly enters a box's linear bound may still be what its relaxations suffer from.
            score = torch.where(divisible, (steep + _FLOOR * self.steepest + 1e-9) * width, -1.0)
            best, axis = score.max(1)
        splittable = best[open_] > 0  # not so where an overflow made it NaN
        self.stuck += int((~splittable).sum())
        open_ = open_[splittable]
        bound = torch.maximum(bound, boxes.bound)
        return replace(boxes, bound=bound, axis=axis)[open_]

    def _specifications(self, enclosure: Enclosure, region: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The best row's bound of each box, its coefficient on the input, and its minimiser."""
        form = GraphForm.at(enclosure, self.network.output)
        bound = torch.full((len(region),), -torch.inf, dtype=torch.float64)
        at_input = torch.zeros(len(region), self.network.inputs, dtype=torch.float64)
        x = (form.box_lower + form.box_upper).reshape(len(region), -1) / 2
        shape = (len(region), form.neurons)
        relaxation = relax(form.lower.reshape(shape), form.upper.reshape(shape))
        slopes, duals = Slopes.of(relaxation, None), Duals(relaxation.lower_slope, None, None)
        for r in range(self.coefficients.shape[1]):
            coefficients = self.coefficients[region, r]
            on_output, on_input = coefficients[:, : self.network.outputs], coefficients[:, self.network.outputs :]
            rows = form.rows(on_output, on_input, self.constants[region, r])
            rows = replace(rows, error=form.start_error(rows))
            result = evaluate(form, rows, slopes, duals, keep=False)
            better = result.bound >= bound
            bound = torch.where(better, result.bound, bound)
            at_input = torch.where(better[:, None], result.pulled.at_input, at_input)
            x = torch.where(better[:, None], result.x, x)
        return bound, at_input, x


def _stack(regions: Sequence[Region], network: Network) -> tuple[Tensor, Tensor]:
    """All regions' rows over [output | input], each region's last row repeated so that all have as many.

    # (regions, rows, outputs + inputs), (regions, rows)
    """
    most = max(len(region.constant) for region in regions)
    coefficients = torch.zeros(len(regions), most, network.outputs + network.inputs, dtype=torch.float64)
    constants = torch.zeros(len(regions), most, dtype=torch.float64)
    for g, region in enumerate(regions):
        index = np.minimum(np.arange(most), len(region.constant) - 1)
        coefficients[g, :, : network.outputs] = torch.from_numpy(region.on_output[index])
        if region.on_input is not None:
            coefficients[g, :, network.outputs :] = torch.from_numpy(region.on_input[index])
        constants[g] = torch.from_numpy(region.constant[index])
    return coefficients, constants


def _widest(network: Network) -> int:
    return max([network.width(k) for k in range(len(network.layers))], default=1)

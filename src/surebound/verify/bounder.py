"""Who bounds the nodes of a search over neurons: with the triangle's lines, and with planes where a region is hard.

Planes (`surebound.bounds.planes`) are found for one region, at its root, and hold on the whole box. They cost as much
as some hundred subproblems, and a pass with them twice as much as one without. So a region gets them once its search
has taken a while, and keeps them if they lift its root's bound. A search is shared after that, so that no worker has to
find any.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Bounded, Duals, Splits
from surebound.bounds.planes import Planes, find_planes
from surebound.verify.clock import Clock
from surebound.verify.strategy import Strategy
from surebound.verify.subject import Subject

_BYTES = 40  # that planes take for each number in the matrices of a form

RegionPlanes = Mapping[int, tuple[Planes, ...]]
"""The planes of the regions that have some."""


class Bounder:
    """The bounds of `Subject`, each region's by a subject of its own."""

    def __init__(
        self,
        subject: Subject,
        strategy: Strategy,
        clock: Clock,
        *,
        memory: int = 2**31,
        found: RegionPlanes | None = None,
    ) -> None:
        """With planes that others have `found`, none are looked for."""
        self.subject, self.strategy, self.clock = subject, strategy, clock
        given = found or {}
        self._of = {g: replace(subject, planes=above) for g, above in given.items()}  # a region's, if that has planes
        self._seen = torch.zeros(subject.regions, dtype=torch.int64, device="cpu")
        self._room = 0  # how many regions may still get planes
        folded = subject.form.folded()
        if strategy.planes_after is not None and folded is not None and found is None:
            numbers = min(strategy.planes_limit, memory // 2 // _BYTES)
            self._room = numbers // max(folded.numbers, 1)

    def see(self, region: Tensor) -> None:
        """Count subproblems of regions, before they are bounded. # (nodes,)"""
        if not self._room or self.strategy.planes_after is None:
            return
        before = self._seen.clone()
        self._seen += torch.bincount(region, minlength=len(self._seen)).cpu()
        due = (before < self.strategy.planes_after) & (self._seen >= self.strategy.planes_after)
        for g in torch.nonzero(due).flatten().tolist()[: self._room]:
            self._find(g)

    def settled(self, regions: Sequence[int]) -> bool:
        """Return whether the search for planes is over: every open region, of `regions`, was tried, or memory is full.

        If enough subproblems were bounded in total, the missing planes are found now.
        """
        after = self.strategy.planes_after or 0
        waiting = [g for g in regions if self._seen[g] < after] if self._room else []
        if waiting and int(self._seen.sum()) < after * len(regions):
            return False
        for g in sorted(waiting, key=lambda g: (-int(self._seen[g]), g)):
            if self._room:
                self._find(g)
        self._room = 0
        return True

    @property
    def found(self) -> RegionPlanes:
        """The planes there are."""
        return {g: subject.planes for g, subject in self._of.items() if subject.planes is not None}

    def planed(self, region: Tensor) -> Tensor:
        """Which nodes, of these regions, are bounded with planes. # (nodes,) bool"""
        return torch.isin(region, torch.tensor(list(self._of), dtype=region.dtype, device=region.device))

    def bound(self, nodes: Splits, duals: Duals, ascent: Ascent, stop_above: float | None = None) -> Bounded:
        """As `Subject.bound`."""
        parts = list(self._parts(nodes.region))
        if len(parts) == 1:
            return parts[0][0].bound(nodes, duals, ascent, stop_above)
        bounded = [(at, subject.bound(nodes[at], duals[at], ascent, stop_above)) for subject, at in parts]
        some, first = bounded[0][1], torch.zeros_like(nodes.region)
        out = Bounded(some.bound[first], some.duals[first], some.lam[first], some.x[first])  # all will be replaced
        for at, part in bounded:
            out.put(at, part)
        return out

    def evaluate(self, nodes: Splits, duals: Duals) -> tuple[Tensor, Tensor]:
        """As `Subject.evaluate`."""
        parts = list(self._parts(nodes.region))
        if len(parts) == 1:
            return parts[0][0].evaluate(nodes, duals)
        lam = duals.alpha.new_empty(duals.alpha.shape)
        bound = lam.new_empty(len(nodes))
        for subject, at in parts:
            bound[at], lam[at] = subject.evaluate(nodes[at], duals[at])
        return bound, lam

    def sound_bounds(self, nodes: Splits, duals: Duals) -> Tensor:
        """As `Subject.sound_bounds`."""
        parts = list(self._parts(nodes.region))
        if len(parts) == 1:
            return parts[0][0].sound_bounds(nodes, duals)
        bound = torch.empty_like(nodes.region, dtype=torch.float64)
        for subject, at in parts:
            bound[at] = subject.sound_bounds(nodes[at], duals[at])
        return bound

    def _parts(self, region: Tensor) -> Iterator[tuple[Subject, Tensor]]:
        """The subjects that nodes belong to, and which nodes these are."""
        rest = torch.ones_like(region, dtype=torch.bool)
        for g, subject in self._of.items():
            mine = region == g
            if bool(mine.any()):
                yield subject, torch.nonzero(mine).flatten()
                rest &= ~mine
        if bool(rest.any()) or not self._of:
            yield self.subject, torch.nonzero(rest).flatten()

    def _find(self, region: int) -> None:
        subject, strategy = self.subject, self.strategy
        folded = subject.form.folded()
        assert folded is not None and subject.kernel is not None
        with self.clock.phase("planes"):
            splits, duals = subject.roots()
            at = splits.region[region : region + 1]
            root = subject.bound(splits[at], duals[at], strategy.root, torch.inf)
            found = find_planes(
                folded,
                subject.kernel,
                subject.fast_specification,
                subject.fast_relaxation,
                region,
                root.duals,
                strategy.planes,
                self.clock.check,
            )
        if found.bound - float(root.bound) >= strategy.planes_gain * abs(float(root.bound)):
            self._of[region] = replace(subject, planes=found.planes)
            self._room -= 1

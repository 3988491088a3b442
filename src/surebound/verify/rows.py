"""The stage that bounds rows of many boxes at once, with intervals for the layers: what settles most images."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.around import enclosure_over
from surebound.bounds.bounding import LayerBounding
from surebound.bounds.fixed import fixed_rows
from surebound.bounds.margins import linear_rows
from surebound.bounds.timed import Check
from surebound.network.cost import CHUNK_ELEMENTS, PASS_PRODUCTS, products
from surebound.network.graph import Network
from surebound.problem import Region, padded_rows
from surebound.proof import ROOM
from surebound.verify.cascade import Question, Settled

Lines = Literal["flat", "fastlin", "crown", "either"]
"""Around ReLUs, as proofs name them; or the better of FastLin and CROWN, which is chosen in float32."""


@dataclass(frozen=True)
class Rows:
    """Bounds on the rows of the open regions, with intervals for the layers: one backward pass."""

    name: Literal["ibp", "crown"]
    network: Network
    check: Check = lambda: None  # raises when the time is up
    elements: int = CHUNK_ELEMENTS  # of the largest tensor
    phase: Callable[[], AbstractContextManager[None]] = nullcontext  # that the time is counted towards

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        with self.phase():
            for lines in self._lines(any(question.record is not None for question in open_)):
                for batch in self._batches([question for question in open_ if question.open]):
                    found = self._bounds([question.open for question in batch], lines)
                    for question, bounds in zip(batch, found, strict=True):
                        self._learn(question, bounds, lines)
        return [question.proved(self.name) for question in open_]

    def _lines(self, recorded: bool) -> tuple[Lines, ...]:
        """The lines to try, one after the other: a proof has to name one."""
        if self.name == "ibp":
            return ("flat",)
        return ("fastlin", "crown") if recorded else ("either",)

    def _learn(self, question: Question, bounds: Tensor, lines: Lines) -> None:
        """Take the bounds of all rows of the open regions, one after the other. The best of a region is its bound."""
        regions, recording = question.open, question.recording
        counts = [len(region.constant) for region in regions]
        rows = torch.tensor(counts, device=bounds.device)
        whose = torch.arange(len(regions), device=bounds.device).repeat_interleave(rows)
        best = bounds.new_full((len(regions),), -torch.inf)
        best.scatter_reduce_(0, whose, bounds, "amax")
        if recording is None:
            question.learn(best)
            return
        stays = question.learn(best - ROOM * bounds.new_tensor([_scale(region) for region in regions]))
        for i in torch.nonzero(~stays).flatten().tolist():
            recording.record.by_row(recording.regions[i], lines, int(bounds[whose == i].argmax()), counts[i])

    @property
    def _most(self) -> int:
        """Rows bounded at once: few enough not to run on long after the time is up, as all of a pass are in float64."""
        in_time = PASS_PRODUCTS // 4 // max(products(self.network, self.network.output), 1)
        return max(1, min(self.elements // self.network.widest, in_time))

    def _batches(self, open_: Sequence[Question]) -> Iterator[list[Question]]:
        """Questions with about as many rows each, since all of a batch are given as many as the largest has."""
        batch, most = list[Question](), self._most
        counts, least = [sum(len(region.constant) for region in question.open) for question in open_], 0
        for i in sorted(range(len(open_)), key=counts.__getitem__):
            if batch and (counts[i] > 2 * least or counts[i] * (len(batch) + 1) > most):
                yield batch
                batch = []
            least = least if batch else counts[i]
            batch.append(open_[i])
        if batch:
            yield batch

    def _bounds(self, regions: Sequence[Sequence[Region]], lines: Lines) -> list[Tensor]:
        """A bound on each row of the regions of each box, one region after the other."""
        enclosure = enclosure_over(self.network, [some[0].box for some in regions])
        for node in range(len(self.network.nodes)):
            self.check()
            enclosure.extend(node)
        counts = [sum(len(region.constant) for region in some) for some in regions]
        bounds, step = [], max(1, self._most // len(regions))
        for start in range(0, max(counts), step):
            self.check()
            # Not all at once: of a large image, those over the inputs take more memory than all else.
            rows = tuple(map(self.network.array, padded_rows(regions, slice(start, start + step))))
            if lines == "either":
                bounds.append(linear_rows(enclosure, LayerBounding(ascent=None), *rows, check=self.check))
            else:
                kind = "interval" if lines == "flat" else lines
                bounds.append(fixed_rows(enclosure, kind, *rows, check=self.check))
            if lines == "flat" and not bool((bounds[-1] > 0).any()):
                left = max(max(counts) - start - step, 0)  # bounded by CROWN alone, which has to bound these again
                bounds.append(bounds[-1].new_full((len(regions), left), -torch.inf))
                break
        return [bound[:count] for bound, count in zip(torch.cat(bounds, dim=1), counts, strict=True)]


def _scale(region: Region) -> float:
    parts = (region.on_output, region.constant, region.on_input)
    return max(float(np.abs(part).max(initial=0.0)) for part in parts if part is not None)

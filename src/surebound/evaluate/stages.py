"""How images are certified: standard → attack → IBP → CROWN → α-CROWN → branch and bound.

`Certifier.screen` takes many images at once through the stages that share their work between images, each stage only
those that the one before left open; `Certifier.search` then takes one image to its end. There, bounds for every
ambiguous neuron come first: those neurons differ from image to image and are a batch of their own, over the folded
network that only one image has. Whatever a stage settles is settled for good: "attacked" and "falsified" come with a
counterexample that was replayed on the original network, "verified" with bounds that account for rounding.
"""

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.attacks import ATTACKS
from surebound.attacks.images import attack_images
from surebound.attacks.mi_fgsm import PUBLISHED
from surebound.bounds.enclosure import Enclosure, enclose
from surebound.bounds.margins import interval_rows, linear_rows
from surebound.bounds.root import CHUNK_ELEMENTS, LayerBounding
from surebound.branching import CHOICES
from surebound.errors import UsageError
from surebound.evaluate.store import Counter, Outcome, Row, Stage
from surebound.network.linear import size
from surebound.network.model import Model
from surebound.problem import Box, Robustness, Verdict
from surebound.verify.pipeline import Options, verify
from surebound.verify.strategy import profile

_FIXED_SLOPES = LayerBounding(ascent=None)
_OUTCOMES: dict[str, Outcome] = {"unsat": "verified", "sat": "falsified", "timeout": "timeout", "unknown": "unknown"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What results depend on, beside the network and the images."""

    timeout: float = 60.0  # seconds of search for one image
    branching: str = "auto"
    attack: str = "mi-fgsm"
    steps: int = 40  # of the attack
    restarts: int = 3
    targets: int = 3
    seed: int = 0
    early_stop: bool = True
    radius_search: bool = False
    search: str = "default"

    @staticmethod
    def of(search: str, **more: Any) -> "Settings":
        """A profile's: the paper's draws are for many restarts."""
        effort = {"steps": 100, "restarts": 10} if search == "paper" else {}
        return Settings(search=search, **effort | more)

    def __post_init__(self) -> None:
        if self.branching not in CHOICES:
            raise UsageError(f"unknown branching '{self.branching}'; expected one of: {', '.join(CHOICES)}")
        if not (isinstance(self.timeout, int | float) and 0 < self.timeout < float("inf")):
            raise UsageError(f"timeout must be a positive number of seconds, got {self.timeout!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}")
        if self.targets < 1:
            raise UsageError(f"targets must be at least 1, got {self.targets!r}")
        # both complain about what cannot be
        profile(self.search, self.branching)
        ATTACKS[self.attack](steps=self.steps, restarts=self.restarts)


@dataclass(frozen=True, eq=False)
class Sample:
    """A labelled image."""

    image: int
    x: NDArray[np.float32]  # (inputs,)
    label: int

    def robustness(self, eps: Fraction) -> Robustness:
        """What is asked about it."""
        return Robustness(self.x.astype(np.float64), self.label, eps)

    def rivals(self, outputs: int) -> list[int]:
        """The other classes, in the order of a robustness property's regions."""
        return [j for j in range(outputs) if j != self.label]


@dataclass(frozen=True, eq=False)
class Open:
    """An image that needs a search: `rivals` are the classes not yet proved to stay below its label."""

    sample: Sample
    predicted: int
    rivals: tuple[int, ...]
    phases: dict[str, float] = field(default_factory=dict)


def property_sha256(sample: Sample, eps: Fraction) -> str:
    """A hash of what is asked about an image."""
    digest = hashlib.sha256(sample.x.astype("<f4").tobytes())
    digest.update(f"label {sample.label} eps {eps}".encode())
    return digest.hexdigest()


@final
class Certifier:
    """One network, one radius."""

    def __init__(self, model: Model, eps: Fraction, settings: Settings) -> None:
        self.model, self.eps, self.settings = model, eps, settings

    def screen(self, samples: Sequence[Sample]) -> tuple[list[Row], list[Open]]:
        """The stages that images go through together: rows of those they settle, and the others."""
        batch = _Batch(self.model, samples, self.eps, self.settings)
        batch.attack()
        batch.bound("ibp")
        batch.bound("crown")
        return batch.rows, batch.open()

    def search(self, image: Open, *, branching: str | None = None) -> Row:
        """α-CROWN for what is open, then branch and bound; `branching` instead of the settings' rule.

        All other classes count as subproblems (see `surebound.verify.pipeline`), those that screening settled, too.
        """
        sample, outputs = image.sample, self.model.network.outputs
        whole = sample.robustness(self.eps).to_property(outputs)
        every = zip(whole.regions, sample.rivals(outputs), strict=True)
        regions = tuple(region for region, rival in every if rival in image.rivals)
        options = replace(self._options(branching or self.settings.branching), quick_attack=None)
        verdict = verify(self.model, replace(whole, regions=regions), options)
        phases = image.phases | verdict.seconds_by_phase
        phases["attack"] = image.phases.get("attack", 0.0) + verdict.seconds_by_phase.get("attack", 0.0)
        split = verdict.subproblems > len(regions)
        return _row(
            sample,
            image.predicted,
            self.eps,
            phases,
            outcome=_OUTCOMES[verdict.status],
            stage="search" if split or verdict.status != "unsat" else "alpha-crown",
            seconds=sum(image.phases.values()) + verdict.seconds,
            subproblems=len(whole.regions) + max(verdict.subproblems - len(regions), 0),
            lower_bound=verdict.lower_bound,
            reason=verdict.reason,
            counter=_counter(sample, verdict),
        )

    def decide(self, sample: Sample, eps: Fraction) -> Verdict:
        """Robustness within another radius, by the whole of `surebound.verify`."""
        return verify(self.model, sample.robustness(eps), self._options(self.settings.branching))

    def _options(self, branching: str) -> Options:
        settings = self.settings
        return Options.of(
            settings.search,
            branching=branching,
            timeout=settings.timeout,
            seed=settings.seed,
            early_stop=settings.early_stop,
        )


class _Batch:
    """Images on their way through the stages."""

    def __init__(self, model: Model, samples: Sequence[Sample], eps: Fraction, settings: Settings) -> None:
        self._model, self._samples, self._eps, self._settings = model, samples, eps, settings
        self._x = np.stack([s.x for s in samples])
        self._predicted = model.replay(self._x).argmax(1)
        self._left = list(range(len(samples)))
        self._phases: list[dict[str, float]] = [{} for _ in samples]
        self._best: dict[int, Tensor] = {}  # sample -> the best bounds on its margins, (outputs − 1,)
        self._boxes: dict[int, Box] = {}  # sample -> its box, once it is needed
        self.rows: list[Row] = []

    def attack(self) -> None:
        settings = self._settings
        with self._phase("attack"):
            result = attack_images(
                self._model,
                self._x,
                np.array([s.label for s in self._samples]),
                eps=self._eps,
                method=settings.attack,
                steps=settings.steps,
                restarts=settings.restarts,
                targets=settings.targets,
                seed=settings.seed,
                more=PUBLISHED if (settings.search, settings.attack) == ("paper", "mi-fgsm") else None,
            )
        found = np.flatnonzero(result.found)
        logits = dict(zip(found.tolist(), self._model.replay(result.points[found]), strict=True)) if len(found) else {}
        for i, sample in enumerate(self._samples):
            if not result.correct[i]:
                self._settle(i, "misclassified", "standard")
            elif result.found[i]:
                self._settle(i, "attacked", "attack", _point(sample, result.points[i], logits[i]))

    def bound(self, stage: Literal["ibp", "crown"]) -> None:
        """Try to prove what is left, with intervals for the layers."""
        if not self._left:
            return
        with self._phase(stage):
            for k in range(0, len(self._left), self._capacity):
                part = self._left[k : k + self._capacity]
                for i, new in zip(part, self._bounds(stage, part), strict=True):
                    self._best[i] = torch.maximum(self._best.get(i, new), new)
        for i in list(self._left):
            if bool((self._best[i] > 0).all()):
                self._settle(i, "verified", stage)

    def _bounds(self, stage: str, part: list[int]) -> Tensor:
        """Lower bounds on the margins of images. # (images, outputs − 1)"""
        rows = torch.stack([_margins(self._model.network.outputs, self._samples[i].label) for i in part])
        enclosure = self._enclose(part)
        return interval_rows(enclosure, rows) if stage == "ibp" else linear_rows(enclosure, rows, _FIXED_SLOPES)

    @cached_property
    def _capacity(self) -> int:
        """Images bounded at once: the widest layer of a pass over all their margins stays within a chunk."""
        network = self._model.network
        return max(1, CHUNK_ELEMENTS // (network.outputs * max(size(node.shape) for node in network.nodes)))

    def _enclose(self, left: list[int]) -> Enclosure:
        """Intervals for all nodes over the boxes of images."""
        shape = (-1, *self._model.network.input_shape)
        for i in left:
            if i not in self._boxes:
                self._boxes[i] = self._samples[i].robustness(self._eps).box()
        boxes = [self._boxes[i] for i in left]
        lower, upper = (
            torch.from_numpy(np.stack(ends)).reshape(shape)
            for ends in ([box.lower for box in boxes], [box.upper for box in boxes])
        )
        return enclose(self._model.network, lower, upper)

    def _settle(self, i: int, outcome: Outcome, stage: Stage, counter: Counter | None = None) -> None:
        self._left.remove(i)
        self.rows.append(
            _row(
                self._samples[i],
                int(self._predicted[i]),
                self._eps,
                self._phases[i],
                outcome=outcome,
                stage=stage,
                seconds=sum(self._phases[i].values()),
                subproblems=len(self._best[i]) if outcome == "verified" else 0,
                lower_bound=float(self._best[i].min()) if i in self._best else None,
                counter=counter,
            )
        )

    def open(self) -> list[Open]:
        """The images that are left."""
        found = []
        for i in self._left:
            sample, best = self._samples[i], self._best.get(i)
            others = enumerate(sample.rivals(self._model.network.outputs))
            rivals = tuple(j for k, j in others if best is None or not bool(best[k] > 0))
            found.append(Open(sample, int(self._predicted[i]), rivals, dict(self._phases[i])))
        return found

    @contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Share the time spent inside among the images that are in it."""
        begin, inside = time.monotonic(), list(self._left)
        try:
            yield
        finally:
            share = (time.monotonic() - begin) / max(len(inside), 1)
            for i in inside:
                self._phases[i][name] = self._phases[i].get(name, 0.0) + share


def _row(sample: Sample, predicted: int, eps: Fraction, phases: Mapping[str, float], **settled: Any) -> Row:
    """The row of an image, from what is known of it and how it was settled."""
    return Row(
        image=sample.image,
        label=sample.label,
        predicted=predicted,
        phases={name: round(seconds, 6) for name, seconds in phases.items()},
        property_sha256=property_sha256(sample, eps),
        **settled,
    )


def _margins(outputs: int, label: int) -> Tensor:
    """f_label − f_j for every other class j. # (outputs − 1, outputs)"""
    rows = -torch.eye(outputs, dtype=torch.float64)
    rows[:, label] = 1.0
    return torch.cat([rows[:label], rows[label + 1 :]])


def _point(sample: Sample, point: NDArray[np.float32], logits: NDArray[np.floating[Any]]) -> Counter:
    rivals = logits.astype(np.float64)
    rivals[sample.label] = -np.inf
    return Counter(clean=sample.x, point=point, adversarial=int(rivals.argmax()))


def _counter(sample: Sample, verdict: Verdict) -> Counter | None:
    if verdict.counterexample is None:
        return None
    return _point(sample, verdict.counterexample.x.astype(np.float32), verdict.counterexample.y)

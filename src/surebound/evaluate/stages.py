"""How images are certified: standard → IBP → CROWN → attack → α-CROWN → branch and bound.

The stages are those of `surebound.verify.stages`, but for the attack, which takes the most promising classes of many
images at once. It comes after the bounds that cost a pass for each class, since it takes hundreds of passes itself, and
what is proved needs none. `Certifier.screen` takes many images through the stages that share their work between images;
`Certifier.search` then takes one image to its end. Whatever a stage settles is settled for good: "attacked" and
"falsified" come with a counterexample that was replayed on the original network, "verified" with bounds that account
for rounding.
"""

import hashlib
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.attacks import ATTACKS
from surebound.attacks.images import attack_images, margins
from surebound.attacks.mi_fgsm import PUBLISHED
from surebound.domain.sets import Norm, exact_norm
from surebound.errors import UsageError
from surebound.evaluate.proofs import ProofWriter
from surebound.evaluate.room import Room
from surebound.evaluate.store import STAGES, Counter, Outcome, Row, Stage
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Counterexample, Property, Robustness, Verdict
from surebound.proof.record import BoxRecord
from surebound.verify.cascade import Question, Settled, run
from surebound.verify.clock import Clock
from surebound.verify.engine import Engine
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.rows import Rows
from surebound.verify.stages import closing

_OUTCOMES: dict[str, Outcome] = {"proved": "verified", "time": "timeout", "undecided": "unknown"}
_FOUND: dict[str, Outcome] = {"standard": "misclassified", "attack": "attacked", "search": "falsified"}


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
    norm: Norm = "inf"  # in which the radius is measured

    @property
    def passes(self) -> int:
        """How many passes of the attack an image may take, forwards and backwards."""
        return self.steps * self.restarts * self.targets

    @staticmethod
    def of(search: str, **more: Any) -> "Settings":
        """A profile's: the paper's draws are for many restarts."""
        effort = {"steps": 100, "restarts": 10} if search == "paper" else {}
        return Settings(search=search, **effort | more)

    def __post_init__(self) -> None:
        if not (isinstance(self.timeout, int | float) and 0 < self.timeout < float("inf")):
            raise UsageError(f"timeout must be a positive number of seconds, got {self.timeout!r}")
        for name in ("early_stop", "radius_search"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is {getattr(self, name)!r}; expected True or False")
        if self.targets < 1:
            raise UsageError(f"targets must be at least 1, got {self.targets!r}")
        object.__setattr__(self, "norm", exact_norm(self.norm))
        # what follows complains about the other fields
        Options.of(self.search, branching=self.branching, seed=self.seed).check_norm(self.norm)
        ATTACKS[self.attack](steps=self.steps, restarts=self.restarts)


@dataclass(frozen=True, eq=False)
class Sample:
    """A labelled image."""

    image: int
    x: NDArray[np.float32]  # (inputs,)
    label: int

    def robustness(self, eps: Fraction, norm: Norm = "inf") -> Robustness:
        """What is asked about it."""
        return Robustness(self.x.astype(np.float64), self.label, eps, norm=norm)

    def rivals(self, outputs: int) -> list[int]:
        """The other classes, in the order of a robustness property's regions."""
        return [j for j in range(outputs) if j != self.label]


@dataclass(frozen=True, eq=False)
class Open:
    """An image that needs a search: `rivals` are the classes not yet proved to stay below its label."""

    image: int
    predicted: int
    rivals: tuple[int, ...]
    margin: float = -np.inf  # the least bound so far: the lower, the harder
    phases: dict[str, float] = field(default_factory=dict)
    proved: tuple[tuple[int, str], ...] = ()  # of a proof so far: regions, and the lines around ReLUs that prove each

    @property
    def images(self) -> tuple[int]:
        return (self.image,)


def property_sha256(sample: Sample, eps: Fraction, norm: Norm) -> str:
    """A hash of what is asked about an image."""
    digest = hashlib.sha256(sample.x.astype("<f4").tobytes())
    measured = "" if norm == "inf" else f" norm {norm}"
    digest.update(f"label {sample.label} eps {eps}{measured}".encode())
    return digest.hexdigest()


@final
class Certifier:
    """One network, one radius."""

    def __init__(
        self,
        model: Model,
        eps: Fraction,
        settings: Settings,
        proofs: ProofWriter | None = None,
        room: Room = Room(),
    ) -> None:
        self.model, self.eps, self.settings, self.proofs, self.room = model, eps, settings, proofs, room

    def screen(self, samples: Sequence[Sample]) -> tuple[list[Row], list[Open]]:
        """Take images through the stages that they share. Returns the rows of those that are settled, and the rest."""
        network = self.model.network
        self.model.check_at(samples[0].x[None], f"at image {samples[0].image}")
        scores = self.model.replay(np.stack([sample.x for sample in samples]))
        images = [self._image(s, k) for s, k in zip(samples, scores.argmax(1).tolist(), strict=True)]
        right = [bool((m > 0).all()) for m in margins(scores, np.array([s.label for s in samples]))]
        attack = _Attack(self.model, self.eps, self.settings)
        standard = _Standard({sample.image for sample, kept in zip(samples, right, strict=True) if not kept})
        ibp, crown = (Rows(name, network, elements=self.room.elements) for name in ("ibp", "crown"))
        run([standard, ibp, crown, attack], images)
        rows = [self._row(i, i.settled, i.seconds) for i in images if i.settled is not None]
        return rows, [i.left() for i in images if i.settled is None]

    def search(self, sample: Sample, left: Open, *, branching: str | None = None) -> Row:
        """α-CROWN for what screening left open, then branch and bound; `branching` instead of the settings' rule.

        All other classes count as subproblems (see `surebound.verify.cascade`), those that screening settled, too.
        """
        options = self._options(branching or self.settings.branching)
        engine = Engine(self.model, options, Clock(options.timeout))
        asked = self._image(sample, left.predicted)
        asked.resume(left)
        run(closing(engine), [asked])
        assert asked.settled is not None  # the last stage settles everything
        phases = left.phases | engine.clock.phases
        phases["attack"] = left.phases.get("attack", 0.0) + engine.clock.phases.get("attack", 0.0)
        seconds = sum(left.phases.values()) + asked.settled.seconds
        return self._row(asked, replace(asked.settled, seconds=seconds), phases)

    def give_up(self, sample: Sample, reason: str, seconds: float) -> Row:
        """The row of an image that is not decided for another reason than a stage's."""
        predicted = int(self.model.replay(sample.x[None])[0].argmax())
        settled = (
            Settled(stage="search", end="undecided", lower_bound=-np.inf, reason=reason, seconds=seconds)
            if predicted == sample.label
            else Settled(stage="standard", end="violated", seconds=seconds)
        )
        return self._row(self._image(sample, predicted), settled, {})

    def decide(self, sample: Sample, eps: Fraction) -> Verdict:
        """Robustness within another radius, by the whole of `surebound.verify`."""
        return verify(self.model, sample.robustness(eps, self.settings.norm), self._options(self.settings.branching))

    def _options(self, branching: str) -> Options:
        settings = self.settings
        return Options.of(
            settings.search,
            branching=branching,
            timeout=settings.timeout,
            seed=settings.seed,
            early_stop=settings.early_stop,
            memory=self.room.queue,
            device=self.model.network.device,
        )

    def _image(self, sample: Sample, predicted: int) -> "_Image":
        asked = sample.robustness(self.eps, self.settings.norm)
        return _Image(sample, predicted, asked, self.model.network, recorded=self.proofs is not None)

    def _row(self, image: "_Image", settled: Settled, phases: Mapping[str, float]) -> Row:
        """The row of an image that is settled."""
        stage = _counted_as(settled)
        outcome = _FOUND[stage] if settled.end == "violated" else _OUTCOMES[settled.end]
        row = Row(
            image=image.sample.image,
            label=image.sample.label,
            predicted=image.predicted,
            outcome=outcome,
            stage=stage,
            seconds=settled.seconds,
            phases={name: round(seconds, 6) for name, seconds in phases.items()},
            property_sha256=property_sha256(image.sample, self.eps, self.settings.norm),
            subproblems=settled.subproblems,
            lower_bound=settled.lower_bound if np.isfinite(settled.lower_bound) else None,
            reason=settled.reason,
            counter=_counter(image.sample, settled.counterexample),
        )
        return self._proved(row, image) if row.verified and self.proofs is not None else row

    def _proved(self, row: Row, image: "_Image") -> Row:
        """The row with its proof. Nothing is verified whose proof the checker refuses."""
        assert self.proofs is not None and image.record is not None
        proof = self.proofs.write(row.image, self.model.network, image.property, [image.record])
        if proof.checked is False:
            reason = f"the checker did not accept the proof: {proof.refused}"
            return replace(row, outcome="unknown", reason=reason, proof=proof)
        return replace(row, proof=proof)


class _Image(Question):
    """What is asked about an image: no other class scores as high as its label."""

    def __init__(
        self, sample: Sample, predicted: int, asked: Robustness, network: Network, recorded: bool = False
    ) -> None:
        super().__init__(lambda: self.property.regions)
        self.sample, self.predicted, self.rivals = sample, predicted, sample.rivals(network.outputs)
        self._asked, self._outputs = asked, network.outputs
        self.record = BoxRecord(network, 0, range(len(self.rivals))) if recorded else None

    @cached_property
    def property(self) -> Property:
        return self._asked.to_property(self._outputs)

    def left(self) -> Open:
        """What screening leaves for a search."""
        pairs = zip(self.rivals, self.bounds.tolist(), strict=True)
        rivals = tuple(j for j, bound in pairs if not bound > 0)
        steps = [] if self.record is None else [step.about for step in self.record.steps]
        proved = tuple((about["region"], about["lines"]) for about in steps)
        return Open(self.sample.image, self.predicted, rivals, float(self.bounds.min()), self.seconds, proved)

    def resume(self, left: Open) -> None:
        """After screening."""
        known = [-torch.inf if j in left.rivals else torch.inf for j in self.rivals]
        self.learn(torch.tensor(known, dtype=torch.float64, device="cpu"))
        if self.record is not None:
            for region, lines in left.proved:
                self.record.by_row(region, lines, row=0, rows=1)


@dataclass(frozen=True)
class _Standard:
    """Settles images that are wrong as they are: another class scores at least as high as their label."""

    wrong: Set[int]
    name: str = "standard"

    def run(self, open_: Sequence[_Image]) -> Sequence[Settled | None]:
        wrong = Settled(stage=self.name, end="violated")
        return [wrong if image.sample.image in self.wrong else None for image in open_]


@dataclass(frozen=True, eq=False)
class _Attack:
    """Settles images that are wrong near them."""

    model: Model
    eps: Fraction
    settings: Settings
    name: str = "attack"

    def run(self, open_: Sequence[_Image]) -> Sequence[Settled | None]:
        settings = self.settings
        result = attack_images(
            self.model,
            np.stack([image.sample.x for image in open_]),
            np.array([image.sample.label for image in open_]),
            eps=self.eps,
            norm=settings.norm,
            method=settings.attack,
            steps=settings.steps,
            restarts=settings.restarts,
            targets=settings.targets,
            seed=settings.seed,
            more=PUBLISHED if (settings.search, settings.attack) == ("paper", "mi-fgsm") else None,
        )
        settled: list[Settled | None] = [None] * len(open_)
        found = np.flatnonzero(result.found)
        for i, y in zip(found.tolist(), self.model.replay(result.points[found]), strict=True) if len(found) else ():
            point = Counterexample(result.points[i].astype(np.float64), y)
            settled[i] = Settled(stage=self.name, end="violated", counterexample=point)
        return settled


def _counted_as(settled: Settled) -> Stage:
    """The stage as the store knows it. What bounds alone did not prove was not settled by them, and stages that the
    store has no name for are parts of the search."""
    named: dict[str, Stage] = {stage: stage for stage in STAGES}
    stage = named.get(settled.stage, "search")
    return "search" if stage == "alpha-crown" and settled.end != "proved" else stage


def _counter(sample: Sample, found: Counterexample | None) -> Counter | None:
    if found is None:
        return None
    rivals = found.y.astype(np.float64)
    rivals[sample.label] = -np.inf
    return Counter(clean=sample.x, point=found.x.astype(np.float32), adversarial=int(rivals.argmax()))

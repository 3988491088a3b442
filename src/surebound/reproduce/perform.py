"""What workers do for an experiment: trainings, trials of trainings, images, and comparisons of branching rules."""

import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, final

from surebound.data import load_dataset
from surebound.errors import SureboundError
from surebound.evaluate.stages import Certifier, Open, Sample, Settings
from surebound.evaluate.store import Row
from surebound.evaluate.task import Task
from surebound.evaluate.worker import CertifySetup, Work
from surebound.evaluate.worker import Result as Answer
from surebound.load.onnx import load_model
from surebound.load.portable import PortableNetwork
from surebound.reproduce.job import Job
from surebound.reproduce.place import Place
from surebound.reproduce.scales import RULES, Training
from surebound.train.loop import TrainProgress
from surebound.train.run import run
from surebound.work import Call, Do

if TYPE_CHECKING:
    from surebound.data.dataset import Dataset

_EVERY = 0.25  # seconds between two words on progress
_WARM_UP = 0.5  # seconds for each rule
_TRIAL_IMAGES = 20  # that a trial validates on: a validation would take longer than its steps


class StoppedError(Exception):
    """The job was left, its training saved."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of a certification."""

    job: Job
    work: Work


Part = Job | Piece
"""What a worker is given: a job, or a part of one."""


@final
@dataclass(frozen=True)
class ExperimentSetup:
    """All that workers need to know."""

    place: Place

    def __call__(self) -> Do[Part, Any]:
        performer = Performer(self.place)

        def do(part: Part, call: Call) -> Any:
            try:
                return performer.perform(part, call)
            except (SureboundError, StoppedError):
                raise
            except Exception:  # a bug, or the memory ran out
                traceback.print_exc(file=sys.stderr)
                raise

        return do


@final
class Performer:
    """Does one part after the other, keeping what they share."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.dataset = load_dataset(place.scale.dataset, place.data_dir)
        self._bench: _Bench | None = None
        self._images: tuple[Job, Do[Work, Answer]] | None = None

    def perform(self, part: Part, call: Call) -> Any:
        """Do a part; what came out of it."""
        if isinstance(part, Piece):
            return self._certify(part, call)
        match part.kind:
            case "train":
                return self._train(part.training, call)
            case "try":
                return self._try(part.training, part.steps, call)
            case "branch":
                self._bench = self._bench or _Bench(self._place, self.dataset)
                return self._bench.compare(part)
            case "certify":
                raise TypeError("a certification is done in pieces")

    def _train(self, training: Training, call: Call) -> dict[str, Any]:
        said = time.monotonic()

        def report(progress: TrainProgress) -> None:
            nonlocal said
            if call.stopping():
                raise KeyboardInterrupt
            if time.monotonic() - said >= _EVERY:
                said = time.monotonic()
                call.say((progress.step / progress.steps, f"epoch {progress.epoch} of {progress.epochs}"))

        try:
            result = run(
                self._place.config(training),
                self._place.folder(training),
                dataset=self.dataset,
                resume=True,
                on_progress=report,
            )
        except KeyboardInterrupt:
            raise StoppedError from None
        assert result.validation is not None
        shares = {name: getattr(result.validation, name) for name in ("standard", "pgd", "ibp")}
        return {"seconds": self._place.training_seconds(training), **shares}

    def _try(self, training: Training, steps: int, call: Call) -> dict[str, Any]:
        """The first steps of a training, in a folder that whoever asked throws away."""
        config = self._place.config(training)
        config = replace(config, validation=replace(config.validation, images=_TRIAL_IMAGES))
        times: list[float] = []
        last: TrainProgress | None = None

        def report(progress: TrainProgress) -> None:
            nonlocal last
            times.append(time.monotonic())
            last = progress
            call.say((progress.step / steps, f"step {progress.step} of {steps}"))
            if progress.step >= steps or call.stopping():
                raise KeyboardInterrupt

        begin = time.monotonic()
        try:
            run(config, self._place.trials / training.folder, dataset=self.dataset, on_progress=report)
        except KeyboardInterrupt:
            if call.stopping():
                raise StoppedError from None
        assert last is not None
        # The first step also pays for all that happens once.
        pace = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else times[0] - begin
        return {"steps": last.step, "loss": last.loss, "pace": pace, "whole": pace * last.steps}

    def _certify(self, piece: Piece, call: Call) -> Answer:
        """Some images of a network, which is kept for the next ones."""
        job = piece.job
        if self._images is None or (self._images[0].training, self._images[0].search) != (job.training, job.search):
            task = table1_task(self._place, job.training, self.dataset, job.search, {})
            setup = CertifySetup(
                network=PortableNetwork(task.file),
                eps=task.eps,
                settings=task.settings,
                samples=task.samples,
                proofs=None,
                remote=False,
            )
            self._images = job, setup()
        return self._images[1](piece.work, call)


def _settings(place: Place, search: str, **more: Any) -> Settings:
    """With the first attack of a profile at the place's scale."""
    if search == "paper":
        steps, restarts, targets = place.scale.attack
        more |= {"steps": steps, "restarts": restarts, "targets": targets}
    return Settings(search=search, **more)


def table1_task(place: Place, training: Training, dataset: "Dataset", search: str, notes: Mapping[str, Any]) -> Task:
    """How a network is certified for table 1."""
    return Task(
        model=place.folder(training),
        dataset=dataset,
        eps=training.eps,
        images=range(min(place.scale.images, len(dataset.test))),
        settings=_settings(place, search, timeout=place.scale.timeout, branching="upb"),
        notes=notes,
        command=place.command,
    )


def branching_task(place: Place, training: Training, dataset: "Dataset", rule: str, search: str) -> Task:
    """How a network is verified with a branching rule and a profile."""
    return Task(
        model=place.folder(training),
        dataset=dataset,
        eps=training.eps,
        images=range(min(place.scale.branching_images, len(dataset.test))),
        settings=_settings(place, search, timeout=place.scale.branching_timeout, branching=rule, early_stop=False),
        notes=place.notes("branching", training, network=training.method, branching=rule),
        command=place.command,
    )


@final
class _Bench:
    """Where branching rules are timed side by side, one network after the other."""

    def __init__(self, place: Place, dataset: "Dataset") -> None:
        self._place, self._dataset = place, dataset
        self._subject: tuple[tuple[Training, str], Task, Certifier] | None = None
        self._warm = False

    def compare(self, job: Job) -> dict[str, Row]:
        """Verify an image once per rule.

        What happens before the search is done once and counts for every rule. Who goes first changes from image to
        image, so that whatever else the machine does falls on all rules alike.
        """
        if self._subject is None or self._subject[0] != (job.training, job.search):
            self._subject = self._load(job.training, job.search)
        _, task, certifier = self._subject
        sample = task.samples[job.image]
        rows, open_ = certifier.screen([sample])
        if open_ and not self._warm:
            self._warm_up(certifier, sample, open_[0])
        return {
            rule: rows[0] if rows else certifier.search(sample, open_[0], branching=rule)
            for rule in (*RULES[job.first :], *RULES[: job.first])
            if rule in job.runs
        }

    def _load(self, training: Training, search: str) -> tuple[tuple[Training, str], Task, Certifier]:
        task = branching_task(self._place, training, self._dataset, RULES[0], search)
        return (training, search), task, Certifier(load_model(task.file), training.eps, task.settings)

    def _warm_up(self, certifier: Certifier, sample: Sample, left: Open) -> None:
        """The first search of a process also imports and allocates, which is no rule's fault."""
        brief = replace(certifier.settings, timeout=min(_WARM_UP, certifier.settings.timeout))
        for rule in RULES:
            Certifier(certifier.model, certifier.eps, brief).search(sample, left, branching=rule)
        self._warm = True

"""The work itself: trainings, trials of trainings, certifications, and comparisons of branching rules."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, final

from surebound.data import load_dataset
from surebound.evaluate.certify import CertifyProgress, certify
from surebound.evaluate.stages import Certifier, Open, Sample, Settings
from surebound.evaluate.store import Row, Store
from surebound.evaluate.task import Task
from surebound.load.onnx import load_model
from surebound.reproduce.job import Job
from surebound.reproduce.place import Place
from surebound.reproduce.scales import RULES, Cell
from surebound.train.loop import TrainProgress
from surebound.train.run import run

if TYPE_CHECKING:
    from surebound.data.dataset import Dataset

Say = Callable[[float, str], None]
"""Told the share of a job that is done, and a few words."""
Result = dict[str, Any]

_WARM_UP = 0.5  # seconds for each rule
_TRIAL_IMAGES = 20  # that a trial validates on: a validation would take longer than its steps


class StoppedError(Exception):
    """The job was left, its training saved."""


@final
class Performer:
    """Does one job after the other, keeping what they share."""

    def __init__(self, place: Place, stopping: Callable[[], bool]) -> None:
        self._place, self._stopping = place, stopping
        self.dataset = load_dataset(place.scale.dataset, place.data_dir)
        self._bench: _Bench | None = None

    def perform(self, job: Job, say: Say) -> Result:
        """Do a job; what came out of it."""
        match job.kind:
            case "train":
                return self._train(job.cell, say)
            case "try":
                return self._try(job.cell, job.steps, say)
            case "certify":
                return self._certify(job.cell, job.search, say)
            case "branch":
                return self._branch(job)

    def _train(self, cell: Cell, say: Say) -> Result:
        def report(progress: TrainProgress) -> None:
            if self._stopping():
                raise KeyboardInterrupt
            say(progress.step / progress.steps, f"epoch {progress.epoch} of {progress.epochs}")

        try:
            result = run(
                self._place.config(cell),
                self._place.folder(cell),
                dataset=self.dataset,
                resume=True,
                on_progress=report,
            )
        except KeyboardInterrupt:
            raise StoppedError from None
        assert result.validation is not None
        shares = {name: getattr(result.validation, name) for name in ("standard", "pgd", "ibp")}
        return {"seconds": self._place.training_seconds(cell), **shares}

    def _try(self, cell: Cell, steps: int, say: Say) -> Result:
        """The first steps of a training, in a folder that whoever asked throws away."""
        config = self._place.config(cell)
        config = replace(config, validation=replace(config.validation, images=_TRIAL_IMAGES))
        times: list[float] = []
        last: TrainProgress | None = None

        def report(progress: TrainProgress) -> None:
            nonlocal last
            times.append(time.monotonic())
            last = progress
            say(progress.step / steps, f"step {progress.step} of {steps}")
            if progress.step >= steps or self._stopping():
                raise KeyboardInterrupt

        begin = time.monotonic()
        try:
            run(config, self._place.trials / cell.folder, dataset=self.dataset, on_progress=report)
        except KeyboardInterrupt:
            if self._stopping():
                raise StoppedError from None
        assert last is not None
        # The first step also pays for all that happens once.
        pace = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else times[0] - begin
        return {"steps": last.step, "loss": last.loss, "pace": pace, "whole": pace * last.steps}

    def _certify(self, cell: Cell, search: str, say: Say) -> Result:
        def report(progress: CertifyProgress) -> None:
            say(progress.share, f"{progress.done:,} of {progress.total:,} images")

        notes = self._place.notes(
            "table1",
            cell,
            method=cell.method,
            seed=cell.seed,
            training_seconds=self._place.training_seconds(cell),
        )
        task = table1_task(self._place, cell, self.dataset, search, notes)
        found = certify(task, self._place.store("table1"), resume=True, on_progress=report).accuracies
        return {"images": found.images, **{n: getattr(found, n) for n in ("standard", "robust", "verified")}}

    def _branch(self, job: Job) -> Result:
        if self._bench is None:
            self._bench = _Bench(self._place, self.dataset)
        return self._bench.compare(job)


def _settings(place: Place, search: str, **more: Any) -> Settings:
    """With the first attack of a profile at the place's scale."""
    if search == "paper":
        steps, restarts, targets = place.scale.attack
        more |= {"steps": steps, "restarts": restarts, "targets": targets}
    return Settings(search=search, **more)


def table1_task(place: Place, cell: Cell, dataset: "Dataset", search: str, notes: Mapping[str, Any]) -> Task:
    """How a network is certified for table 1."""
    return Task(
        model=place.folder(cell),
        dataset=dataset,
        eps=cell.eps,
        images=range(min(place.scale.images, len(dataset.test))),
        settings=_settings(place, search, timeout=place.scale.timeout, branching="upb"),
        notes=notes,
        command=place.command,
    )


def branching_task(place: Place, cell: Cell, dataset: "Dataset", rule: str, search: str) -> Task:
    """How a network is verified with a branching rule and a profile."""
    return Task(
        model=place.folder(cell),
        dataset=dataset,
        eps=cell.eps,
        images=range(min(place.scale.branching_images, len(dataset.test))),
        settings=_settings(place, search, timeout=place.scale.branching_timeout, branching=rule, early_stop=False),
        notes=place.notes("branching", cell, network=cell.method, branching=rule),
        command=place.command,
    )


@final
class _Bench:
    """Where branching rules are timed side by side, one network after the other."""

    def __init__(self, place: Place, dataset: "Dataset") -> None:
        self._place, self._dataset = place, dataset
        self._store = Store(place.store("branching"))
        self._subject: tuple[tuple[Cell, str], Task, Certifier] | None = None
        self._warm = False

    def compare(self, job: Job) -> Result:
        """Verify an image once per rule and write each result as soon as it is there.

        What happens before the search is done once and counts for every rule. Who goes first changes from image to
        image, so that whatever else the machine does falls on all rules alike.
        """
        if self._subject is None or self._subject[0] != (job.cell, job.search):
            self._subject = self._load(job.cell, job.search)
        _, task, certifier = self._subject
        sample = task.samples[job.image]
        rows, open_ = certifier.screen([sample])
        if open_ and not self._warm:
            self._warm_up(certifier, sample, open_[0])
        found: dict[str, Row] = {}
        for rule in (*RULES[job.first :], *RULES[: job.first]):
            if rule in job.runs:
                found[rule] = rows[0] if rows else certifier.search(sample, open_[0], branching=rule)
                self._store.add(job.runs[rule], found[rule])
        return {rule: [row.outcome, round(row.seconds, 3)] for rule, row in found.items()}

    def _load(self, cell: Cell, search: str) -> tuple[tuple[Cell, str], Task, Certifier]:
        task = branching_task(self._place, cell, self._dataset, RULES[0], search)
        return (cell, search), task, Certifier(load_model(task.file), cell.eps, task.settings)

    def _warm_up(self, certifier: Certifier, sample: Sample, left: Open) -> None:
        """The first search of a process also imports and allocates, which is no rule's fault."""
        brief = replace(certifier.settings, timeout=min(_WARM_UP, certifier.settings.timeout))
        for rule in RULES:
            Certifier(certifier.model, certifier.eps, brief).search(sample, left, branching=rule)
        self._warm = True

"""The training loop: every method, one process or several, from the start or from a checkpoint.

    surebound train --preset mnist-0.1-ibp-r-cpu --out runs/mnist
    torchrun --nproc-per-node 2 -m surebound train --preset mnist-0.1-ibp-r-cpu --out runs/mnist

A step is a function of the weights, the optimiser's state and the step's number alone: data order, augmentation and
attacks draw from (seed, purpose, step). So a run that is killed and resumed from its last checkpoint repeats the steps
since then exactly, and ends with the weights of an undisturbed one, bit for bit (same machine, same number of threads).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, final

import torch
from torch import nn

from surebound.config import shown
from surebound.data.dataset import Augmentation, Dataset
from surebound.errors import TrainingError, UsageError
from surebound.train.batch import Batch, Draws
from surebound.train.checkpoint import Checkpoint, restore_optimiser
from surebound.train.config import TrainConfig
from surebound.train.folder import Folder
from surebound.train.learner import Learner
from surebound.train.parallel import World, average_gradients, mean_over_processes
from surebound.train.schedules import Moment, Plan
from surebound.train.validate import Validation, validate

_ORDER, _AUGMENT, _LOSS, _VALIDATE = range(4)  # what random numbers are for


@dataclass(frozen=True, kw_only=True)
class TrainProgress:
    """Where a run is."""

    step: int
    steps: int
    epoch: int  # over all stages
    epochs: int
    loss: float
    rate: float  # samples per second
    remaining: float  # seconds, at this rate
    validation: Validation | None = None  # the last one


OnProgress = Callable[[TrainProgress], None]
"""Called after every step. A KeyboardInterrupt from it ends the run with a checkpoint of just that step."""


@final
@dataclass
class _Tally:
    """Sums of the loss's terms over the epoch so far, and the seconds of the whole run."""

    seconds: float = 0.0
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)  # and how many

    @staticmethod
    def read(stored: object, source: str) -> "_Tally":
        """The tally of a checkpoint."""
        if isinstance(stored, dict) and stored.keys() == {"seconds", "sums"} and isinstance(stored["sums"], dict):
            seconds, sums = stored["seconds"], stored["sums"]
            if type(seconds) in (float, int) and 0 <= seconds < inf and all(map(_is_sum, sums.values())):
                return _Tally(seconds, {name: (total, count) for name, (total, count) in sums.items()})
        raise UsageError(f"{source} has {shown(stored)} as its tally; expected seconds, and sums with their counts")

    def add(self, values: dict[str, float]) -> None:
        for name, value in values.items():
            total, count = self.sums.get(name, (0.0, 0))
            self.sums[name] = total + value, count + 1

    def mean(self, name: str) -> float:
        total, count = self.sums.get(name, (0.0, 0))
        return total / max(count, 1)

    def take(self) -> dict[str, float]:
        means = {name: self.mean(name) for name in self.sums}
        self.sums = {}
        return means


def _is_sum(pair: object) -> bool:
    """Whether it is a sum, and of how many."""
    return isinstance(pair, list | tuple) and [*map(type, pair)] == [float, int] and pair[1] > 0


@final
class Loop:
    """One run: `Loop(config, learner, dataset, folder, world).run()`."""

    def __init__(
        self,
        config: TrainConfig,
        learner: Learner,
        dataset: Dataset,
        folder: Folder,
        *,
        world: World = World(),
        on_progress: OnProgress | None = None,
    ) -> None:
        self._config, self._learner, self._folder, self._world = config, learner, folder, world
        self._on_progress = on_progress
        self._device = torch.device(config.run.device)
        self._images = dataset.train if config.data.first is None else dataset.train.first(config.data.first)
        self._augmentation = dataset.augmentation if config.data.augment else Augmentation()
        self._test = dataset.test.first(min(config.validation.images, len(dataset.test)))
        self._share = world.share(config.data.batch)
        if config.schedule.freeze and config.schedule.stages > learner.blocks:
            raise UsageError(
                f"schedule.stages is {config.schedule.stages}, of which each freezes another block; "
                f"expected at most {learner.blocks}, the network's blocks"
            )
        epoch_steps = len(self._images) // config.data.batch
        if epoch_steps == 0:
            raise UsageError(f"data.batch is {config.data.batch}; expected at most the {len(self._images)} images")
        self.plan = Plan(config.schedule, config.optimiser, float(config.eps), epoch_steps)
        self._tally = _Tally()
        self._order = (-1, torch.empty(0, dtype=torch.int64, device="cpu"))  # the epoch, and its order
        self._pace: float | None = None  # seconds per step, lately
        self.validation: Validation | None = None
        self.steps_made = 0  # by this process

    def run(self, *, resume: bool = False) -> Validation | None:
        """Train to the end; the last validation."""
        start, optimiser = self._restore() if resume else (0, None)
        if start == 0 and self.validation is None:
            self._record_validation(0)
        saved = last = time.monotonic()
        for step in range(start, self.plan.steps):
            moment = self.plan.at(step)
            if optimiser is None or step % self.plan.stage_steps == 0:
                optimiser = self._begin_stage(moment.stage)
            self._step(step, moment, optimiser)
            self.steps_made += 1
            done, now = step + 1, time.monotonic()
            self._pace = now - last if self._pace is None else 0.95 * self._pace + 0.05 * (now - last)
            self._tally.seconds += now - last
            interrupted = self._report(done)
            if done % self.plan.epoch_steps == 0:
                self._end_epoch(done, moment)
            due = now - saved >= self._config.run.checkpoint_every
            if done % self.plan.stage_steps == 0 or due or interrupted:
                self._save(done, moment.stage, optimiser)
                saved = now
            if interrupted:
                raise KeyboardInterrupt
            last = time.monotonic()
        return self.validation

    def _begin_stage(self, stage: int) -> torch.optim.Optimizer:
        """A fresh optimiser over what this stage trains."""
        frozen = stage if self._config.schedule.freeze else 0
        trained = self._learner.parameters(start=frozen)
        if not trained:
            raise UsageError(f"stage {stage} has no parameters to train; expected some whose requires_grad is True")
        for parameter in self._learner.module.parameters():
            parameter.requires_grad_(False)
        for parameter in trained:
            parameter.requires_grad_(True)
        settings, lr = self._config.optimiser, self.plan.at(stage * self.plan.stage_steps).lr
        if settings.name == "sgd":
            return torch.optim.SGD(trained, lr=lr, momentum=settings.momentum, weight_decay=settings.weight_decay)
        kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
        return kind(trained, lr=lr, weight_decay=settings.weight_decay)

    def _step(self, step: int, moment: Moment, optimiser: torch.optim.Optimizer) -> None:
        """One update of the weights."""
        for group in optimiser.param_groups:
            group["lr"] = moment.lr
        terms = self._config.loss(self._learner, self._batch(step, moment))
        optimiser.zero_grad(set_to_none=True)
        terms.total.backward()
        trained = [p for group in optimiser.param_groups for p in group["params"]]
        average_gradients(trained)
        if self._config.optimiser.clip is not None:
            nn.utils.clip_grad_norm_(trained, self._config.optimiser.clip)
        values = {"loss": terms.total.detach(), **terms.parts}
        means = mean_over_processes(torch.stack(list(values.values()))).tolist()
        problem = "" if isfinite(means[0]) else f"the loss became {means[0]}"
        if not problem and not all(bool(p.grad.isfinite().all()) for p in trained if p.grad is not None):
            problem = "a gradient became infinite or NaN"
        if problem:
            raise TrainingError(
                f"{problem} at step {step} (epoch {step // self.plan.epoch_steps + 1}); "
                "a lower optimiser.lr, optimiser.clip or a longer schedule.mixing may help"
            )
        optimiser.step()
        self._tally.add(dict(zip(values, means, strict=True)))

    def _batch(self, step: int, moment: Moment) -> Batch:
        epoch, within = divmod(step, self.plan.epoch_steps)
        if self._order[0] != epoch:
            draws = Draws(self._config.seed, _ORDER, epoch, size=0)
            self._order = epoch, torch.randperm(len(self._images), generator=draws.generator, device="cpu")
        size = self._config.data.batch
        x, y = self._images.take(self._order[1][within * size : (within + 1) * size][self._share])
        augment = Draws(self._config.seed, _AUGMENT, step, size=size)
        moves = self._augmentation.draw(size, augment.generator)
        x = self._augmentation.apply(x.to(self._device), moves[self._share])
        return Batch(
            x=x,
            y=y.to(self._device),
            eps=moment.eps,
            kappa=moment.kappa,
            ramp=moment.ramp,
            risen=moment.risen,
            stage=moment.stage,
            draws=Draws(self._config.seed, _LOSS, step, size=size, part=self._share, device=self._device),
        )

    def _end_epoch(self, done: int, moment: Moment) -> None:
        """Write the epoch's means, and validate when it is time to."""
        epoch = done // self.plan.epoch_steps
        means = self._tally.take()
        if not self._world.is_main:
            return
        record: dict[str, Any] = {
            "kind": "epoch",
            "epoch": epoch,
            "step": done,
            "stage": moment.stage,
            "loss": means.pop("loss"),
            "parts": means,
            "lr": moment.lr,
            "eps": moment.eps,
            "kappa": moment.kappa,
            "seconds": round(self._tally.seconds, 3),
        }
        self._folder.record(record)
        every = self._config.validation.every
        if done == self.plan.steps or (every and epoch % every == 0):
            self._record_validation(done)

    def _record_validation(self, done: int) -> None:
        """Validate after so many steps; with 0, what training starts from."""
        if self._world.is_main:
            self.validation = self._validate()
            epoch = done // self.plan.epoch_steps
            self._folder.record({"kind": "validation", "epoch": epoch, "step": done, **vars(self.validation)})

    def _validate(self) -> Validation:
        settings = self._config.validation
        x, y = self._test.take(range(len(self._test)))
        return validate(
            self._learner,
            x,
            y,
            eps=float(self._config.eps),
            steps=settings.attack_steps,
            batch=settings.batch,
            key=(self._config.seed, _VALIDATE),
            device=self._device,
        )

    def _save(self, done: int, stage: int, optimiser: torch.optim.Optimizer) -> None:
        if self._world.is_main:
            self._folder.save(self._learner.module, optimiser, step=done, stage=stage, tally=vars(self._tally))

    def _restore(self) -> tuple[int, torch.optim.Optimizer | None]:
        """The step to go on with, and the optimiser as it was."""
        found = self._folder.restore(self._learner.module)
        optimiser = None
        if found is not None:
            source = f"the checkpoint in '{self._folder.path}'"
            self._expect_within_plan(found, source)
            optimiser = self._begin_stage(found.stage)
            restore_optimiser(optimiser, found.optimiser, source=source)
            self._tally = _Tally.read(found.meta.get("tally"), source)
        step = 0 if found is None else found.step
        if self._world.is_main:
            self.validation = self._folder.rewind(step)
        return step, optimiser

    def _expect_within_plan(self, found: Checkpoint, source: str) -> None:
        """Refuse a checkpoint that this run cannot have saved."""
        if not 1 <= found.step <= self.plan.steps:
            raise UsageError(
                f"{source} has step {found.step}; expected one from 1 to {self.plan.steps}, the run's last"
            )
        stage = self.plan.at(found.step - 1).stage
        if found.stage != stage:
            raise UsageError(f"{source} has stage {found.stage}; expected {stage}, in which step {found.step} ends")

    def _report(self, done: int) -> bool:
        """Say where the run is; whether whoever listens wants it to stop, by a KeyboardInterrupt."""
        if self._on_progress is None or self._pace is None or not self._world.is_main:
            return False
        progress = TrainProgress(
            step=done,
            steps=self.plan.steps,
            epoch=(done - 1) // self.plan.epoch_steps + 1,
            epochs=self._config.schedule.epochs * self._config.schedule.stages,
            loss=self._tally.mean("loss"),
            rate=self._config.data.batch / self._pace,
            remaining=self._pace * (self.plan.steps - done),
            validation=self.validation,
        )
        try:
            self._on_progress(progress)
        except KeyboardInterrupt:
            return True
        return False

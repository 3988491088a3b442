"""Where in a run a step is: its stage, radius, κ and learning rate."""

from dataclasses import dataclass

from surebound.train.config import OptimiserConfig, Schedule, at_stage

_MID = 0.25  # of the smooth ramp, up to which it is a power
_POWER = 4


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A step's place in the schedule."""

    stage: int
    epoch: int  # of the stage
    ramp: float  # the share of the ramp that is over
    risen: float  # eps over the radius after the ramp
    eps: float
    kappa: float
    lr: float


def smooth(t: float) -> float:
    """A ramp from 0 to 1 that starts as a t⁴ and goes on straight from t = 1/4, with no corner there (Zhang 2020).

    >>> smooth(0.0), smooth(1.0)
    (0.0, 1.0)
    """
    scale = _MID**_POWER + _POWER * _MID ** (_POWER - 1) * (1 - _MID)
    power = min(t, _MID) ** _POWER
    return (power + _POWER * _MID ** (_POWER - 1) * max(t - _MID, 0.0)) / scale


@dataclass(frozen=True)
class Plan:
    """The whole schedule of a run, as a function of the step."""

    schedule: Schedule
    optimiser: OptimiserConfig
    eps: float
    epoch_steps: int

    @property
    def stage_steps(self) -> int:
        return self.schedule.epochs * self.epoch_steps

    @property
    def steps(self) -> int:
        return self.stage_steps * self.schedule.stages

    def at(self, step: int) -> Moment:
        """The moment of a step, counted from 0 over all stages."""
        stage, within = divmod(step, self.stage_steps)
        epoch = within // self.epoch_steps
        ramp = self._ramp(within)
        risen = self._risen(within, ramp)
        low, high = self.schedule.kappa
        return Moment(
            stage=stage,
            epoch=epoch,
            ramp=ramp,
            risen=risen,
            eps=self.eps * at_stage(self.schedule.inflation, stage) * risen,
            kappa=low + (high - low) * ramp,
            lr=self._lr(stage, epoch),
        )

    def _ramp(self, within: int) -> float:
        since = within - self.schedule.warmup * self.epoch_steps
        length = self.schedule.mixing * self.epoch_steps
        if since < 0:
            return 0.0
        return min(since / length, 1.0) if length else 1.0

    def _risen(self, within: int, ramp: float) -> float:
        if within < self.schedule.warmup * self.epoch_steps:
            return 0.0
        shape = {"linear": ramp, "smooth": smooth(ramp), "constant": 1.0}
        return shape[self.schedule.eps_ramp]

    def _lr(self, stage: int, epoch: int) -> float:
        lr, settings = at_stage(self.optimiser.lr, stage), self.optimiser
        if settings.milestones:
            return lr * settings.decay ** sum(epoch >= m for m in settings.milestones)
        after = epoch - self.schedule.warmup - self.schedule.mixing
        return lr * settings.decay ** (max(after, 0) // settings.decay_every)

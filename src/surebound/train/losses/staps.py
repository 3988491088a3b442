"""STAPS: TAPS over the small boxes of SABR."""

from dataclasses import dataclass

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.learner import Learner
from surebound.train.losses.sabr import AttackBox, small_box
from surebound.train.losses.taps import TAPS
from surebound.train.mixture import expect_within, mix
from surebound.train.warmup import with_radius


@dataclass(frozen=True, kw_only=True)
class STAPS:
    """Mao et al. 2023: the loss of `TAPS`, with its settings in `taps`, over the box of radius τ = λ ε
    around x' in place of that of radius ε, λ = `subselection` and x' as in `SABR`. While ε rises, this is SABR's loss.

    `attack` finds x' from pixels, `taps.latent_attack` the estimates from the latent box.
    """

    subselection: float = 0.7  # λ
    shrinking: float = 1.0
    attack_box: AttackBox = "full"
    attack: TrainAttack = TrainAttack(steps=10, step_size=0.2)
    taps: TAPS = TAPS()

    def __post_init__(self) -> None:
        expect_within("staps", 0.0, 1.0, subselection=self.subselection, shrinking=self.shrinking)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        regularises = self.taps.regularises(batch)
        if batch.kappa <= 0 and not regularises:
            return mix(learner, layers, batch, None, l1=self.taps.l1)
        outer = with_radius(batch) if regularises else batch
        box = small_box(layers, outer, self.attack, self.subselection, self.attack_box)
        return self.taps.over(learner, layers, batch, box, shrinking=self.shrinking)

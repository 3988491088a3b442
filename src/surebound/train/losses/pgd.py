"""Adversarial training."""

from dataclasses import dataclass

import torch.nn.functional as F

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.learner import Learner
from surebound.train.mixture import expect_within, natural_part


@dataclass(frozen=True, kw_only=True)
class PGDTraining:
    """κ CE(f(x̃), y) + (1 − κ) CE(f(x), y) + λ ‖θ‖₁ with x̃ the attack's point (Madry et al. 2018, eq. 2.1, at κ = 1)."""

    l1: float = 0.0  # λ
    attack: TrainAttack = TrainAttack()

    def __post_init__(self) -> None:
        expect_within("pgd", l1=self.l1)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        total, parts = natural_part(learner, layers, batch, self.l1)
        if batch.kappa > 0:
            adversarial = F.cross_entropy(layers.logits(self.attack.run(layers, batch)), batch.y)
            parts["adversarial"] = adversarial.detach()
            total = total + batch.kappa * adversarial
        return Terms(total, parts)

"""What MTL-IBP, CC-IBP and Exp-IBP share: an attack's logits and interval bounds on the same batch, to be combined."""

from dataclasses import replace
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.interval import propagate, worst_logits
from surebound.train.learner import Learner
from surebound.train.mixture import expect_within, mix
from surebound.train.warmup import strength, warmup_penalties, with_radius


class Expressive(Protocol):
    """A loss between an attack's and that of interval bounds."""

    @property
    def alpha(self) -> float: ...
    @property
    def attack(self) -> TrainAttack: ...
    @property
    def attack_inflation(self) -> float: ...
    @property
    def regulariser(self) -> float: ...
    @property
    def l1(self) -> float: ...

    def combine(self, attacked: Tensor, worst: Tensor, y: Tensor) -> Tensor:
        """The robust loss from z_j − z_y at the attack's points and upper bounds on them.

        # (batch, classes), (batch, classes), (batch,) -> ()
        """
        ...


def check(name: str, loss: Expressive) -> None:
    """Refuse hyper-parameters that make no sense."""
    expect_within(name, 0.0, 1.0, alpha=loss.alpha)
    expect_within(name, attack_inflation=loss.attack_inflation, regulariser=loss.regulariser, l1=loss.l1)


def expressive(learner: Learner, batch: Batch, loss: Expressive) -> Terms:
    """κ combine(…) + (1 − κ) CE(f(x), y) + λ₀ (1 − ε/ε_max) (L_tightness + L_relu) + λ ‖θ‖₁.

    The attack runs over the box of radius `attack_inflation` · ε, the bounds over that of radius ε.
    """
    layers = learner.layers(batch.x)
    weight = strength(loss.regulariser, batch)
    if batch.kappa <= 0 and weight <= 0:
        return mix(learner, layers, batch, None, l1=loss.l1)
    box = with_radius(batch).box if weight > 0 else batch.box
    boxes = propagate(layers, *box)
    penalties = warmup_penalties(layers, box, boxes, weight)
    if batch.kappa <= 0:
        return mix(learner, layers, batch, None, l1=loss.l1, penalties=penalties)
    worst = worst_logits(layers, boxes, batch.y)
    attacked = layers.logits(loss.attack.run(layers, replace(batch, eps=loss.attack_inflation * batch.eps)))
    attacked = attacked - attacked.gather(1, batch.y[:, None])
    parts = {
        "adversarial": F.cross_entropy(attacked.detach(), batch.y),
        "interval": F.cross_entropy(worst.detach(), batch.y),
    }
    robust = loss.combine(attacked, worst, batch.y)
    return mix(learner, layers, batch, robust, l1=loss.l1, penalties=penalties, parts=parts)

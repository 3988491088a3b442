"""SABR: interval bounds over a small box around an attack's point, inside the box to be robust on."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.interval import Interval, propagate, worst_logits
from surebound.train.learner import Layers, Learner
from surebound.train.mixture import expect_within, mix
from surebound.train.warmup import strength, warmup_penalties, with_radius

AttackBox = Literal["full", "inner"]


def small_box(
    layers: Layers, batch: Batch, attack: TrainAttack, subselection: float, attack_box: AttackBox = "full"
) -> Interval:
    """The box of radius τ = λ ε around x', the attack's point projected to where that box stays in the box of radius ε.

    With ``inner``, the attack itself searches the centres x' that need no projection. Where pixels end, τ is at most
    half of what is left of the box. # (batch, *in_shape)
    """
    lower, upper = batch.box
    tau = ((upper - lower) / 2).clamp_max(subselection * batch.eps)
    first, last = lower + tau, upper - tau
    if attack_box == "full":
        point = attack.run(layers, batch)
    else:
        unit = lower.new_tensor((1 - subselection) * batch.eps)
        point = attack.search(layers.detach().logits, first, last, batch=batch, unit=unit)
    centre = torch.clamp(point, first, last)
    return torch.maximum(centre - tau, lower), torch.minimum(centre + tau, upper)


@dataclass(frozen=True, kw_only=True)
class SABR:
    """Müller et al. 2023, section 3, with ẑ the worst logits over the box of radius τ = λ ε around x':

        κ CE(ẑ, y) + (1 − κ) CE(f(x), y) + λ₀ (1 − ε/ε_max) (L_tightness + L_relu) + λ₁ ‖θ‖₁,

    where λ = `subselection` and x' is the attack's point in the box of radius ε, projected to the box of radius ε − τ.
    The regularisers are those of Shi et al. 2021 on the small box, as the authors trained. Options: `attack_box`
    ``inner`` attacks the box of radius ε − τ itself; `shrinking` scales boxes after every ReLU (0.8 in the paper for
    CIFAR-10 at 2/255).

    Deviations: batch norms use the statistics of the clean batch; the attack keeps its last point, not its best; next
    to the ends of the pixels' range τ is at most half of the clipped box's width.
    """

    subselection: float = 0.1  # λ
    shrinking: float = 1.0
    attack_box: AttackBox = "full"
    attack: TrainAttack = TrainAttack(steps=8, step_size=0.5, decay=0.1, milestones=(4, 7))
    regulariser: float = 0.5  # λ₀
    l1: float = 1e-6  # λ₁

    def __post_init__(self) -> None:
        expect_within("sabr", 0.0, 1.0, subselection=self.subselection, shrinking=self.shrinking)
        expect_within("sabr", regulariser=self.regulariser, l1=self.l1)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        weight = strength(self.regulariser, batch)
        if batch.kappa <= 0 and weight <= 0:
            return mix(learner, layers, batch, None, l1=self.l1)
        outer = with_radius(batch) if weight > 0 else batch
        box = small_box(layers, outer, self.attack, self.subselection, self.attack_box)
        boxes = propagate(layers, *box, shrinking=self.shrinking)
        worst = worst_logits(layers, boxes, batch.y)
        penalties = warmup_penalties(layers, box, boxes, weight)
        return mix(learner, layers, batch, F.cross_entropy(worst, batch.y), l1=self.l1, penalties=penalties)

"""IBP-R: adversarial training on enlarged boxes with the area of the ReLUs' convex hulls as a regulariser."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.interval import Interval, propagate
from surebound.train.learner import Learner
from surebound.train.mixture import expect_within, natural_part


def hull_areas(bounds: list[Interval]) -> Tensor:
    """Σ_j [−l̂_j]₊ᵀ [û_j]₊ of every sample, over the given layers. # (batch,)"""
    # l̂ ≤ û, so that l̂ û < 0 just where l̂ < 0 < û
    areas = [(lower * upper).clamp_max(0).flatten(1).sum(1) for lower, upper in bounds]
    return -torch.stack(areas).sum(0)


@dataclass(frozen=True, kw_only=True)
class IBPR:
    """Eq. 6 of the paper, with CE for ℒ, x̃ the attack's point in 𝒞₊(x) and bounds by intervals over 𝒞₊(x):

        κ (CE(f(x̃), y) + ρ/2 Σ_{j=1}^{n} [−l̂_j]₊ᵀ [û_j]₊) + (1 − κ) CE(f(x), y) + λ ‖θ‖₁,

    means over the batch, the sum over all ReLU layers and the logits, ‖θ‖₁ over weights without biases. With `mask`,
    the regulariser is dropped for samples that x̃ misclassifies (the paragraph on masking).

    The released code differs from the paper in two places, each an option: `layer_mean` divides the regulariser by the
    number of layers, and `mask_by` ``clean`` masks by the clean input instead of x̃. The attack's own two are options of
    `TrainAttack`. The radius α ε_ver belongs to the schedule (`inflation`).
    """

    half_rho: float = 1e-4  # ρ/2
    l1: float = 2e-5  # λ
    mask: bool = False
    mask_by: Literal["attack", "clean"] = "attack"
    layer_mean: bool = False
    attack: TrainAttack = TrainAttack()

    def __post_init__(self) -> None:
        expect_within("ibp-r", half_rho=self.half_rho, l1=self.l1)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        total, parts = natural_part(learner, layers, batch, self.l1)
        if batch.kappa > 0:
            logits = layers.logits(self.attack.run(layers, batch))
            adversarial = F.cross_entropy(logits, batch.y)
            boxes = propagate(layers, *batch.box)
            bounds = [*boxes.relus(layers), boxes.output(layers)]
            areas = hull_areas(bounds) / (len(bounds) if self.layer_mean else 1)
            if self.mask:
                judge = logits if self.mask_by == "attack" else layers.detach().clean_logits(batch.x)
                areas = areas * (judge.argmax(1) == batch.y)
            hull = self.half_rho * areas.mean()
            parts |= {"adversarial": adversarial.detach(), "hull": hull.detach()}
            total = total + batch.kappa * (adversarial + hull)
        return Terms(total, parts)

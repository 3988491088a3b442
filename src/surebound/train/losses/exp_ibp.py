"""Exp-IBP: a geometric mean of the adversarial and the interval loss."""

from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.expressive import check, expressive
from surebound.train.learner import Learner
from surebound.train.parallel import mean_over_processes

_TINY = 1e-12  # of a cross-entropy, so that its powers have gradients


@dataclass(frozen=True, kw_only=True)
class ExpIBP:
    """De Palma et al. 2024, section 4.3, with x̃ the attack's point and ẑ the worst logits over the box of radius ε:

        κ CE(f(x̃), y)^(1 − α) CE(ẑ, y)^α + (1 − κ) CE(f(x), y) + λ₀ (1 − ε/ε_max) (L_tightness + L_relu) + λ ‖θ‖₁,

    the product taken for every sample, as the paper defines it. The released code multiplies powers of the batch's mean
    losses instead: `product` ``batch``. The attack's radius, the regularisers and the deviations are those of `MTLIBP`.
    """

    alpha: float = 9.5e-2  # α
    product: Literal["samples", "batch"] = "samples"
    attack_inflation: float = 1.0
    attack: TrainAttack = TrainAttack()
    regulariser: float = 0.5  # λ₀
    l1: float = 4e-6  # λ

    def __post_init__(self) -> None:
        check("exp-ibp", self)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        return expressive(learner, batch, self)

    def combine(self, attacked: Tensor, worst: Tensor, y: Tensor) -> Tensor:
        adversarial, interval = (F.cross_entropy(z, y, reduction="none") for z in (attacked, worst))
        if self.product == "batch":
            adversarial, interval = (mean_over_processes(loss.mean()) for loss in (adversarial, interval))
        product = adversarial.clamp_min(_TINY) ** (1 - self.alpha) * interval.clamp_min(_TINY) ** self.alpha
        return product.mean()

"""CC-IBP: convex combinations of an attack's margins and their interval bounds, inside the loss."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.expressive import check, expressive
from surebound.train.learner import Learner


@dataclass(frozen=True, kw_only=True)
class CCIBP:
    """De Palma et al. 2024, section 4.1, with z̃_j = f(x̃)_j − f(x̃)_y at the attack's point x̃ and ẑ_j ≥ z_j − z_y the
    worst logits over the box of radius ε:

        κ CE((1 − α) z̃ + α ẑ, y) + (1 − κ) CE(f(x), y) + λ₀ (1 − ε/ε_max) (L_tightness + L_relu) + λ ‖θ‖₁.

    The attack's radius, the regularisers and the deviations are those of `MTLIBP`.
    """

    alpha: float = 1e-2  # α
    attack_inflation: float = 1.0
    attack: TrainAttack = TrainAttack()
    regulariser: float = 0.5  # λ₀
    l1: float = 3e-6  # λ

    def __post_init__(self) -> None:
        check("cc-ibp", self)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        return expressive(learner, batch, self)

    def combine(self, attacked: Tensor, worst: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(torch.lerp(attacked, worst, self.alpha), y)

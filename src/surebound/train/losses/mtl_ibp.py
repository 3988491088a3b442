"""MTL-IBP: the adversarial and the interval loss as two tasks."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.expressive import check, expressive
from surebound.train.learner import Learner


@dataclass(frozen=True, kw_only=True)
class MTLIBP:
    """De Palma et al. 2024, section 4.2, with x̃ the attack's point and ẑ the worst logits over the box of radius ε:

        κ ((1 − α) CE(f(x̃), y) + α CE(ẑ, y)) + (1 − κ) CE(f(x), y) + λ₀ (1 − ε/ε_max) (L_tightness + L_relu) + λ ‖θ‖₁.

    The attack runs over the box of radius `attack_inflation` · ε (2.1 in the paper for CIFAR-10 at 2/255). The
    regularisers are those of Shi et al. 2021, as the authors trained; they have κ = 1.

    Deviations: batch norms use the statistics of the clean batch, in the attack (theirs: running averages) and in the
    bounds (theirs: of the attack's points); the attack keeps its last point, not its best.
    """

    alpha: float = 4e-3  # α
    attack_inflation: float = 1.0
    attack: TrainAttack = TrainAttack()
    regulariser: float = 0.5  # λ₀
    l1: float = 3e-6  # λ

    def __post_init__(self) -> None:
        check("mtl-ibp", self)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        return expressive(learner, batch, self)

    def combine(self, attacked: Tensor, worst: Tensor, y: Tensor) -> Tensor:
        return (1 - self.alpha) * F.cross_entropy(attacked, y) + self.alpha * F.cross_entropy(worst, y)

"""What MTL-IBP, CC-IBP and Exp-IBP share: an attack's logits and interval bounds on the same batch, to be combined."""

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.chain import Chain
from surebound.train.interval import propagate, worst_logits
from surebound.train.mixture import mix
from surebound.train.warmup import strength, warmup_penalties, with_radius

Combine = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(z_j − z_y at the attack's points, upper bounds on them, y) → the robust loss.

# (batch, classes), (batch, classes), (batch,) -> ()
"""


def expressive(
    chain: Chain,
    batch: Batch,
    combine: Combine,
    *,
    attack: TrainAttack,
    attack_inflation: float,
    regulariser: float,
    l1: float,
) -> Terms:
    """κ combine(…) + (1 − κ) CE(f(x), y) + λ₀ (1 − ramp) (L_tightness + L_relu) + λ ‖θ‖₁.

    The attack runs over the box of radius `attack_inflation` · ε, the bounds over that of radius ε.
    """
    layers = chain.layers(batch.x)
    weight = strength(regulariser, batch)
    if batch.kappa <= 0 and weight <= 0:
        return mix(chain, layers, batch, None, l1=l1)
    box = with_radius(batch).box if weight > 0 else batch.box
    bounds = propagate(layers, *box, stop=len(layers.affine) - 1)
    penalties = warmup_penalties(layers, box, bounds, weight)
    if batch.kappa <= 0:
        return mix(chain, layers, batch, None, l1=l1, penalties=penalties)
    worst = worst_logits(layers, (bounds[-1][0].relu(), bounds[-1][1].relu()), batch.y)
    attacked = layers.logits(attack.run(layers, replace(batch, eps=attack_inflation * batch.eps)))
    attacked = attacked - attacked.gather(1, batch.y[:, None])
    parts = {
        "adversarial": F.cross_entropy(attacked.detach(), batch.y),
        "interval": F.cross_entropy(worst.detach(), batch.y),
    }
    robust = combine(attacked, worst, batch.y)
    return mix(chain, layers, batch, robust, l1=l1, penalties=penalties, parts=parts)

"""IBP with a short warm-up: regularisers that keep bounds tight and ReLUs balanced while ε rises."""

from dataclasses import dataclass

from surebound.train.batch import Batch, Terms
from surebound.train.interval import robust_loss
from surebound.train.learner import Learner
from surebound.train.mixture import expect_within, mix
from surebound.train.warmup import strength, warmup_penalties, with_radius


@dataclass(frozen=True, kw_only=True)
class IBPShi:
    """IBP with the warm-up of Shi et al. 2021, with ẑ the worst logits over the box of radius ε:

        κ CE(ẑ, y) + (1 − κ) CE(f(x), y) + λ₀ (1 − ε/ε_max) (L_tightness + L_relu) + λ ‖θ‖₁,

    the two regularisers as in `surebound.train.warmup.shi_regularisers`. The paper has κ = 1 throughout, networks with
    a batch norm after every layer but the last, and the initialisation ``ibp`` of `surebound.train.initialise`.

    Deviations: As in the released code, the regularisers see boxes of radius 1e-6 before ε starts to rise; here the
    robust loss of those steps does too. A layer whose stable neurons are all of one kind costs its full penalty, as the
    paper's formula says; the released code drops such a layer when the inactive kind is the missing one.
    """

    regulariser: float = 0.5  # λ₀
    tolerance: float = 0.5  # τ
    l1: float = 0.0  # λ; not in the paper

    def __post_init__(self) -> None:
        expect_within("ibp-shi", regulariser=self.regulariser, l1=self.l1)
        expect_within("ibp-shi", 1e-6, 1.0, tolerance=self.tolerance)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        weight = strength(self.regulariser, batch)
        if batch.kappa <= 0 and weight <= 0:
            return mix(learner, layers, batch, None, l1=self.l1)
        box = with_radius(batch).box if weight > 0 else batch.box
        robust, boxes = robust_loss(layers, *box, batch.y)
        penalties = warmup_penalties(layers, box, boxes, weight, tolerance=self.tolerance)
        return mix(learner, layers, batch, robust, l1=self.l1, penalties=penalties)

"""COLT: layer after layer, adversarial training in latent spaces enclosed by zonotopes."""

from dataclasses import dataclass, field
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from surebound.errors import UsageError
from surebound.train.attack import TrainAttack
from surebound.train.batch import PER_STAGE, Batch, Terms
from surebound.train.cauchy import Projections
from surebound.train.learner import Learner, l1_norm
from surebound.train.mixture import expect_within
from surebound.train.zonotope import enclose


@dataclass(frozen=True, kw_only=True)
class COLT:
    """Balunović & Vechev 2020; eq. 5 of the IBP-R paper, at stage j with the first j affine layers frozen or, in
    general, the first j blocks (`Learner.blocks`: what ends where a single tensor carries everything):

        κ (CE(f^j(x′_j), y) + ρ_j [−l̂_{j+1}]₊ᵀ [û_{j+1}]₊) + (1 − κ) CE(f^{j−1}(x′_{j−1}), y) + λ ‖θ^j‖₁,

    means over the batch, with f^j the layers after the first j, θ^j their weights, and x′_j an attack's point in the
    zonotope ℂ_j(x) around their input: the attack moves its error terms in [−1, 1], in steps relative to these. At
    stage 0, ℂ_0 is the input's box, and the natural loss stands for the one of stage −1. l̂ and û are estimated from
    Cauchy projections (`surebound.train.cauchy`) and have gradients to layer j + 1 alone; of a block with several
    layers, all are summed up.

    By default this is the IBP-R paper's port (its appendix): norms by the ``geometric-mean`` of clipped variables.
    The authors' own has the ``median`` and an attack whose last step only evaluates (`TrainAttack.last_step`). Both
    project the error terms of each layer separately; `groups` ``merged``, our own, projects all together, at less cost.

    Deviations: norms over the error terms that come up just before a layer are exact, all samples share the Cauchy
    vectors of a step, and projections near zero have no gradient (`surebound.train.cauchy.cauchy_geometric_mean`). The
    paper does not say where it clips.
    """

    rho: tuple[float, ...] = field(default=(0.005, 0.0075, 0.01125, 0.0), metadata={PER_STAGE: True})  # ρ_j
    l1: float = 1e-5  # λ
    attack: TrainAttack = TrainAttack()
    projections: int = 50
    estimator: Literal["median", "geometric-mean"] = "geometric-mean"
    clip: float | None = None  # of the Cauchy variables; default: 1e10 for the median, 1e6 for the geometric mean
    groups: Literal["merged", "separate"] = "separate"

    def __post_init__(self) -> None:
        expect_within("colt", l1=self.l1)
        if not self.rho or min(self.rho) < 0:
            raise UsageError(f"colt: rho must hold one number ≥ 0 per stage, got {list(self.rho)}")
        if self.attack.step_unit != "eps":
            raise UsageError(
                "colt: the attack moves error terms in [−1, 1], so that its step_unit must be eps, "
                f"got {self.attack.step_unit}"
            )
        self._projections()

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        j, kappa = batch.stage, batch.kappa
        if not 0 <= j < min(len(self.rho), learner.blocks):
            raise UsageError(
                f"colt: got stage {j} of a network of {learner.blocks} blocks with rho for {len(self.rho)} "
                "stages; expected a stage below both numbers"
            )
        layers = learner.layers(batch.x).detach(blocks=j)
        total = self.l1 * l1_norm(learner.weights(start=j))
        parts: dict[str, Tensor] = {"l1": total.detach()}
        regularise = kappa > 0 and self.rho[j] > 0
        enclosure = enclose(layers, batch, depth=j, projections=self._projections(), regularise=regularise)
        if kappa < 1:
            if j == 0:
                logits = layers.clean_logits(batch.x)
            else:
                logits = layers.logits(enclosure.zonotope.attack(self.attack, batch, j - 1), start=j - 1)
            previous = F.cross_entropy(logits, batch.y)
            parts["previous"] = previous.detach()
            total = total + (1 - kappa) * previous
        if kappa > 0:
            logits = layers.logits(enclosure.zonotope.attack(self.attack, batch, j), start=j)
            adversarial = F.cross_entropy(logits, batch.y)
            parts["adversarial"] = adversarial.detach()
            total = total + kappa * adversarial
        if enclosure.area is not None:
            area = self.rho[j] * enclosure.area
            parts["area"] = area.detach()
            total = total + kappa * area
        return Terms(total, parts)

    def _projections(self) -> Projections:
        return Projections(count=self.projections, estimator=self.estimator, clip=self.clip, groups=self.groups)

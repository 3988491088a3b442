"""Training without any thought of robustness: the baseline."""

from dataclasses import dataclass

import torch.nn.functional as F

from surebound.train.batch import Batch, Terms
from surebound.train.learner import Learner, l1_norm
from surebound.train.mixture import expect_within


@dataclass(frozen=True, kw_only=True)
class Standard:
    """CE(f(x), y) + λ ‖θ‖₁."""

    l1: float = 0.0  # λ

    def __post_init__(self) -> None:
        expect_within("standard", l1=self.l1)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        natural = F.cross_entropy(learner.layers(batch.x).clean_logits(batch.x), batch.y)
        l1 = self.l1 * l1_norm(learner.weights())
        return Terms(natural + l1, {"l1": l1.detach(), "natural": natural.detach()})

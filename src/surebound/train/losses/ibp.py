"""Interval bound propagation: the worst case of every sample, bounded by intervals, as the loss."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.train.batch import Batch, Terms
from surebound.train.interval import propagate, robust_loss
from surebound.train.learner import Layers, Learner
from surebound.train.mixture import expect_within, mix


def separate_loss(layers: Layers, lower: Tensor, upper: Tensor, y: Tensor) -> Tensor:
    """The mean cross-entropy of the lower bound on z_y against the upper bounds on all other z_j."""
    low, high = propagate(layers, lower, upper).output(layers)
    true = torch.arange(low.shape[1], device=y.device) == y[:, None]
    return F.cross_entropy(torch.where(true, low, high), y)


@dataclass(frozen=True, kw_only=True)
class IBP:
    """The training loss of Gowal et al. 2018, section 3, with ẑ the worst logits over the box of radius ε:

        κ CE(ẑ, y) + (1 − κ) CE(f(x), y) + λ ‖θ‖₁.

    Their κ is our 1 − κ: the usual ramp is κ from 0 to 1/2. By default the last layer is fused with the margins
    z_y − z_j, so that what z_y and z_j share cancels (their "elision of the last layer"); `last_layer` ``separate``
    bounds every logit on its own, which is looser.
    """

    l1: float = 0.0  # λ; not in the paper
    last_layer: Literal["fused", "separate"] = "fused"

    def __post_init__(self) -> None:
        expect_within("ibp", l1=self.l1)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        robust = None
        if batch.kappa > 0 and self.last_layer == "fused":
            robust, _ = robust_loss(layers, *batch.box, batch.y)
        elif batch.kappa > 0:
            robust = separate_loss(layers, *batch.box, batch.y)
        return mix(learner, layers, batch, robust, l1=self.l1)

"""TAPS: intervals through the first layers, attacks through the last, joined by a connector for gradients."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import UsageError
from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Terms
from surebound.train.interval import Interval, ends, propagate, worst_logits
from surebound.train.learner import Layers, Learner, image_layout
from surebound.train.mixture import expect_within, mix
from surebound.train.parallel import mean_over_processes
from surebound.train.warmup import strength, warmup_penalties, with_radius

_FLAT = 1e-5  # the width up to which a neuron's interval counts as a point


@dataclass(frozen=True, eq=False)
class Estimators:
    """One point of the latent box for every margin z_j − z_y, j ≠ y (the paper's multi-estimator PGD)."""

    layers: Layers
    start: int  # the classifier's first block
    y: Tensor  # (batch,)
    classes: int

    @property
    def others(self) -> Tensor:
        """All classes but y, in order. # (batch, classes − 1)"""
        j = torch.arange(self.classes - 1, device=self.y.device)
        return j + (j >= self.y[:, None]).to(j)

    def margins(self, points: Tensor) -> Tensor:
        """z_j − z_y at the point for j. # (batch, classes − 1, *shape) -> (batch, classes − 1)"""
        flat = self.layers.logits(image_layout(points.flatten(0, 1)), start=self.start)
        logits = flat.reshape(*points.shape[:2], self.classes)
        true = self.y[:, None, None].expand(-1, self.classes - 1, 1)
        return (logits.gather(2, self.others[..., None]) - logits.gather(2, true)).squeeze(2)

    def worst_logits(self, points: Tensor) -> Tensor:
        """The margins as logits, 0 at y. # (batch, classes)"""
        margins = self.margins(points)
        return margins.new_zeros(len(margins), self.classes).scatter(1, self.others, margins)


def latent_attack(attack: TrainAttack, estimators: Estimators, box: Interval, batch: Batch) -> Tensor:
    """The points that maximise each margin over the latent box: sign steps relative to every neuron's radius, and the
    best point on the way. # box: (batch, *shape) -> (batch, classes − 1, *shape)"""
    lower, upper = box[0].detach()[:, None], box[1].detach()[:, None]
    frozen = Estimators(estimators.layers.detach(), estimators.start, estimators.y, estimators.classes)
    radius = (upper - lower) / 2
    best, height = lower, lower.new_full((len(lower), estimators.classes - 1), -torch.inf)
    for _ in range(attack.restarts):
        x = (lower + upper) / 2
        if attack.start == "uniform":
            x = torch.lerp(lower, upper, batch.draws.uniform(*lower.shape[2:]).to(lower)[:, None])
        x, size = x.expand(-1, estimators.classes - 1, *x.shape[2:]), attack.step_size
        for t in range(attack.updates + 1):
            last = t == attack.updates
            size *= attack.decay if t in attack.milestones else 1.0
            x = x.detach().requires_grad_(not last)
            with torch.autocast(x.device.type, torch.bfloat16, enabled=attack.precision == "bf16"):
                margins = frozen.margins(x).to(x)
            better = margins.detach() > height
            height = torch.where(better, margins.detach(), height)
            best = torch.where(better.reshape(*better.shape, *[1] * (x.ndim - 2)), x.detach(), best)
            if not last:
                (gradient,) = torch.autograd.grad(margins.sum(), x)
                x = torch.clamp(x.detach() + size * radius * gradient.sign(), lower, upper)
    return best


def connect(points: Tensor, box: Interval, c: float) -> Tensor:
    """The same points with gradients to the ends l and u of their box: the rectified linear connector.

    ∂x/∂u rises from 0 at u − c (u − l) to 1 at u, ∂x/∂l from 0 at l + c (u − l) to 1 at l; in a box without a width,
    both are 1/2. # points: (batch, classes − 1, *shape); box: (batch, *shape)
    """
    lower, upper = box[0][:, None], box[1][:, None]
    with torch.no_grad():
        width = upper - lower
        place = (points - lower) / width.clamp_min(_FLAT)  # 0 at l, 1 at u
        to_lower = torch.where(width > _FLAT, (1 - place / c).clamp(0, 1), 0.5)
        to_upper = torch.where(width > _FLAT, (1 - (1 - place) / c).clamp(0, 1), 0.5)
    return points.detach() + to_lower * (lower - lower.detach()) + to_upper * (upper - upper.detach())


@dataclass(frozen=True, kw_only=True)
class TAPS:
    """Mao et al. 2023, section 3, with L_IBP = CE(ẑ, y) on interval bounds and L_TAPS = CE(ž, y) on estimates of them:

        κ L_TAPS L_IBP + (1 − κ) CE(f(x), y) + λ₀ (1 − ε/ε_max) (L_tightness + L_relu) + λ ‖θ‖₁.

    Intervals bound the input of the last `classifier_layers` affine layers or, in general, blocks of the network
    (`Learner.blocks`): a block ends where a single tensor carries everything. For every class j ≠ y an attack maximises
    z_j − z_y over that latent box, and ž_j is its value there. The points have gradients to the ends of the box by
    `connect` with c = `gradient_connector`. The product's gradient is w ∇L_TAPS · L_IBP + L_TAPS · ∇L_IBP with
    w = `weight`, as in the released code; its value is that of the plain product. While ε rises, the robust loss is
    L_IBP alone (`warmup` ``taps``: the product from the start). The regularisers are those of Shi et al. 2021, as the
    authors trained; they have κ = 1.

    Options and deviations: the product is taken for every sample; the released code multiplies the batch's mean losses
    (`product` ``batch``). Steps of `latent_attack` are relative to every neuron's radius: their 0.2 of the width is our
    0.4. The attacks on one sample's margins start from the same random point. Batch norms use the statistics of the
    clean batch. ‖θ‖₁ covers weights and is a sum (theirs: biases too, and a mean over layers).
    """

    classifier_layers: int = 2
    weight: float = 5.0  # w
    gradient_connector: float = 0.5  # c
    product: Literal["samples", "batch"] = "samples"
    warmup: Literal["ibp", "taps"] = "ibp"
    latent_attack: TrainAttack = TrainAttack(steps=20, step_size=0.4, decay=0.1, milestones=(14,))
    regulariser: float = 0.5  # λ₀
    l1: float = 2e-6  # λ

    def __post_init__(self) -> None:
        expect_within("taps", weight=self.weight, regulariser=self.regulariser, l1=self.l1)
        expect_within("taps", 1e-6, 1.0, gradient_connector=self.gradient_connector)
        if self.classifier_layers < 1:
            raise UsageError(f"taps: classifier_layers is {self.classifier_layers}; expected at least 1")
        if self.latent_attack.step_unit != "eps":
            raise UsageError(
                f"taps: latent_attack.step_unit is '{self.latent_attack.step_unit}'; expected 'eps': "
                "latent boxes have radii, but no pixels"
            )

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        return self.over(learner, layers, batch, (with_radius(batch) if self.regularises(batch) else batch).box)

    def regularises(self, batch: Batch) -> bool:
        """Whether the regularisers of the warm-up are on."""
        return strength(self.regulariser, batch) > 0

    def over(self, learner: Learner, layers: Layers, batch: Batch, box: Interval, *, shrinking: float = 1.0) -> Terms:
        """The loss with given boxes of pixels in place of those of radius ε."""
        count = learner.blocks
        if count < 2:
            raise UsageError("taps: no single tensor cuts the network in two; expected one between its layers")
        if self.classifier_layers >= count:
            raise UsageError(
                f"taps: classifier_layers is {self.classifier_layers}; expected from 1 to {count - 1}, "
                f"for a network of {count} blocks"
            )
        weight = strength(self.regulariser, batch)
        if batch.kappa <= 0 and weight <= 0:
            return mix(learner, layers, batch, None, l1=self.l1)
        boxes = propagate(layers, *box, shrinking=shrinking)
        penalties = warmup_penalties(layers, box, boxes, weight)
        worst = worst_logits(layers, boxes, batch.y)
        interval = F.cross_entropy(worst, batch.y, reduction="none")
        if batch.kappa <= 0 or (self.warmup == "ibp" and batch.ramp < 1):
            return mix(learner, layers, batch, interval.mean(), l1=self.l1, penalties=penalties)
        start = count - self.classifier_layers
        estimators = Estimators(layers, start, batch.y, worst.shape[1])
        latent = ends(*boxes.at[layers.cuts[start]])
        points = connect(latent_attack(self.latent_attack, estimators, latent, batch), latent, self.gradient_connector)
        estimate = F.cross_entropy(estimators.worst_logits(points), batch.y, reduction="none")
        parts = {"interval": interval.mean(), "latent": estimate.mean()}
        if self.product == "batch":
            interval, estimate = (mean_over_processes(loss.mean()) for loss in (interval, estimate))
        scaled = self.weight * estimate + (1 - self.weight) * estimate.detach()
        robust = (scaled * interval).mean()
        return mix(learner, layers, batch, robust, l1=self.l1, penalties=penalties, parts=parts)

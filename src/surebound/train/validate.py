"""How a network does on test images during training: three accuracies and the ambiguous neurons.

The IBP-verified share is computed in float32 without outward rounding: it guides training and claims nothing. What is
proved is what `surebound verify` proves.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Draws
from surebound.train.interval import propagate, worst_logits
from surebound.train.learner import Layers, Learner


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Shares of the images, and mean numbers of neurons."""

    images: int
    standard: float
    pgd: float
    ibp: float
    ambiguous: tuple[float, ...]  # of each ReLU layer, under intervals


def validate(
    learner: Learner,
    x: Tensor,
    y: Tensor,
    *,
    eps: float,
    steps: int,
    batch: int,
    key: tuple[int, ...],  # what its random numbers are made from
    device: torch.device,
) -> Validation:
    """Measure on images x (n, *in_shape) with labels y (n,)."""
    with torch.no_grad():
        layers = learner.layers().detach()
    sums = torch.zeros(3 + len(learner.relus), dtype=torch.float64, device="cpu")
    for part, (px, py) in enumerate(zip(x.split(batch), y.split(batch), strict=True)):
        draws = Draws(*key, part, size=len(px), device=device)
        point = Batch(x=px.to(device), y=py.to(device), eps=eps, kappa=1.0, ramp=1.0, risen=1.0, draws=draws)
        sums += _measure(layers, point, steps)
    shares = (sums / len(x)).tolist()
    return Validation(
        images=len(x),
        standard=shares[0],
        pgd=shares[1],
        ibp=shares[2],
        ambiguous=tuple(round(s, 3) for s in shares[3:]),
    )


def _measure(layers: Layers, batch: Batch, steps: int) -> Tensor:
    """Numbers of images that are right, resist, are verified, and of ambiguous neurons in each layer."""
    with torch.no_grad():
        right = _right(layers, batch.x, batch.y)
        boxes = propagate(layers, *batch.box)
        worst = worst_logits(layers, boxes, batch.y)
        others = torch.ones_like(worst, dtype=torch.bool).scatter_(1, batch.y[:, None], False)
        verified = ((worst < 0) | ~others).all(1) & right
        ambiguous = [((lower < 0) & (upper > 0)).sum() for lower, upper in boxes.relus(layers)]
    reach = 2.5  # radii that the steps add up to: more than the box's width, so that every point of it is in reach
    found = TrainAttack(steps=steps, step_size=max(0.25, reach / steps)).run(layers, batch)
    with torch.no_grad():
        resists = _right(layers, found, batch.y) & right
    return torch.stack([right.sum(), resists.sum(), verified.sum(), *ambiguous]).double().cpu()


def _right(layers: Layers, x: Tensor, y: Tensor) -> Tensor:
    """Whether the label's logit is the largest; a NaN is never right. # (batch,)"""
    logits = layers.logits(x)
    return (logits.argmax(1) == y) & logits.isfinite().all(1)

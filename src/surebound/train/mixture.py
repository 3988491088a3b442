"""How a robust loss, the natural loss and regularisers make up a total, in the losses that train on intervals."""

from collections.abc import Mapping
from math import inf, isinf

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.errors import UsageError
from surebound.train.batch import Batch, Terms
from surebound.train.learner import Layers, Learner, l1_norm


def mix(
    learner: Learner,
    layers: Layers,
    batch: Batch,
    robust: Tensor | None,
    *,
    l1: float = 0.0,
    penalties: Mapping[str, Tensor] = {},
    parts: Mapping[str, Tensor] = {},
) -> Terms:
    """κ robust + (1 − κ) CE(f(x), y) + Σ penalties + λ ‖θ‖₁; `robust` may be missing at κ = 0. `parts` only go into the
    log. # robust and each penalty: ()"""
    summands: dict[str, tuple[float, Tensor]] = {name: (1.0, value) for name, value in penalties.items()}
    if batch.kappa < 1:
        summands["natural"] = 1 - batch.kappa, F.cross_entropy(layers.clean_logits(batch.x), batch.y)
    if batch.kappa > 0 and robust is not None:
        summands["robust"] = batch.kappa, robust
    if l1 > 0:
        summands["l1"] = 1.0, l1 * l1_norm(learner.weights())
    total = torch.stack([weight * value for weight, value in summands.values()]).sum()
    log = {name: value.detach() for name, (_, value) in summands.items()}
    return Terms(total, log | {name: value.detach() for name, value in parts.items()})


def natural_part(learner: Learner, layers: Layers, batch: Batch, l1: float) -> tuple[Tensor, dict[str, Tensor]]:
    """(1 − κ) CE(f(x), y) + λ ‖θ‖₁, which a loss adds its robust part to, and both for the log."""
    total = l1 * l1_norm(learner.weights())
    parts = {"l1": total.detach()}
    if batch.kappa < 1:
        natural = F.cross_entropy(layers.clean_logits(batch.x), batch.y)
        parts["natural"] = natural.detach()
        total = total + (1 - batch.kappa) * natural
    return total, parts


def expect_within(loss: str, low: float = 0.0, high: float = inf, **values: float) -> None:
    """Refuse hyper-parameters outside [low, high]."""
    for name, value in values.items():
        if not low <= value <= high:
            wanted = f"at least {low:g}" if isinf(high) else f"from {low:g} to {high:g}"
            raise UsageError(f"{loss}: {name} is {value}; expected a number {wanted}")

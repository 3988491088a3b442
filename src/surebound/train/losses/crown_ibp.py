"""CROWN-IBP: intervals forwards, one linear bound backwards, blended into plain intervals as training goes on."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from surebound.train.batch import Batch, Terms
from surebound.train.interval import Boxes, Interval, Middle, propagate, worst_logits
from surebound.train.learner import Layers, Learner, flatten
from surebound.train.linear_bounds import Slopes, as_logits, lower_bounds, rival_rows
from surebound.train.mixture import expect_within, mix


@dataclass(frozen=True, kw_only=True)
class CROWNIBP:
    """κ CE(−m, y) + (1 − κ) CE(f(x), y) + λ ‖θ‖₁ with lower bounds m_j on the margins z_y − z_j over the box

        m = β m_CROWN-IBP + (1 − β) m_IBP,   β = 1 − (1 − β_end) · ramp

    (Zhang et al. 2020, whose κ is the weight of the natural loss, 1 − κ here). Both take their intermediate bounds from
    intervals; m_CROWN-IBP then pulls the margins back to the input through linear bounds of the ReLUs, with the lower
    slopes `slopes`: CROWN's ``adaptive`` choice, or always ``zero``, ``one`` or ``parallel`` to the upper line. Where
    β = 0 there is no backward pass, and the loss is that of IBP.

    `fusion` ``loss`` bounds the loss instead of the margins (Xu et al. 2020, "loss fusion"): with d_j = z_j − z_y in
    [l_j, u_j] by intervals, exp lies under its chord there,

        S = Σ_j exp(d_j) ≤ 1 + Σ_{j≠y} (s_j (d_j − l_j) + e^{l_j}),   s_j = (e^{u_j} − e^{l_j}) / (u_j − l_j),

    one row to pull back for a sample instead of one for each class. The loss is log(β S_CROWN-IBP + (1 − β) S_IBP) with
    S_IBP = 1 + Σ_{j≠y} e^{u_j}, blended before the logarithm, as in auto_LiRPA. Being linear in exp, it is worthwhile
    where the intervals on d are short; where they are long, S_CROWN-IBP is hardly below S_IBP.

    Deviations: auto_LiRPA does not fuse the last layer with the intervals on d; here it is, which is only tighter.
    """

    beta_end: float = 0.0  # β once the ramp is over
    slopes: Slopes = "adaptive"
    fusion: Literal["none", "loss"] = "none"
    l1: float = 0.0  # λ

    def __post_init__(self) -> None:
        expect_within("crown-ibp", 0.0, 1.0, beta_end=self.beta_end)
        expect_within("crown-ibp", l1=self.l1)

    def __call__(self, learner: Learner, batch: Batch) -> Terms:
        layers = learner.layers(batch.x)
        beta = 1 - (1 - self.beta_end) * batch.ramp
        robust = self._robust(layers, batch, beta) if batch.kappa > 0 else None
        return mix(learner, layers, batch, robust, l1=self.l1)

    def _robust(self, layers: Layers, batch: Batch, beta: float) -> Tensor:
        boxes = propagate(layers, *batch.box)
        if beta > 0 and self.fusion == "loss":
            return fused_loss(layers, boxes, batch.box, batch.y, beta=beta, slopes=self.slopes).mean()
        if beta == 1:  # nothing of the intervals' own margins is left
            return F.cross_entropy(self._crown_logits(layers, boxes, batch), batch.y)
        logits = worst_logits(layers, boxes, batch.y)
        if beta > 0:
            logits = beta * self._crown_logits(layers, boxes, batch) + (1 - beta) * logits
        return F.cross_entropy(logits, batch.y)

    def _crown_logits(self, layers: Layers, boxes: Boxes, batch: Batch) -> Tensor:
        rows, constant, rivals = rival_rows(layers, batch.y)
        return as_logits(lower_bounds(layers, boxes.before, batch.box, rows, constant, slopes=self.slopes), rivals)


def fused_loss(layers: Layers, boxes: Boxes, box: Interval, y: Tensor, *, beta: float, slopes: Slopes) -> Tensor:
    """An upper bound on every sample's cross-entropy over its box, by loss fusion. # -> (batch,)"""
    rows, constant, _ = rival_rows(layers, y)
    low, high = _differences(rows, constant, boxes.at[layers.before_last])
    # All of S is scaled by e^−m, so that nothing overflows; m cancels, and so does its gradient.
    m = high.detach().amax(1, keepdim=True).clamp_min(0.0)
    one, top, bottom = (-m).exp().squeeze(1), (high - m).exp(), (low - m).exp()
    # The chord's slope e^l (e^w − 1)/w, from whichever form does not cancel.
    width = high - low
    narrow = width < 1e-3
    w = torch.where(narrow, 1.0, width)
    chord = torch.where(narrow, bottom * (1 + width / 2 + width.square() / 6), (top - bottom) / w)
    # Σ s_j d_j ≤ −min Σ s_j (z_y − z_j): one row.
    row = torch.einsum("bj,bj...->b...", chord, rows).unsqueeze(1)
    shift = (chord * constant).sum(1, keepdim=True)
    linear = lower_bounds(layers, boxes.before, box, row, shift, slopes=slopes).squeeze(1)
    intercepts = (bottom - chord * low).sum(1)
    # S ≥ 1 by itself, so this only acts where rounding has eaten a bound that is far below e^m.
    crown = torch.maximum(one + intercepts - linear, one)
    interval = one + top.sum(1)
    return (beta * crown + (1 - beta) * interval).clamp_min(torch.finfo(top.dtype).tiny).log() + m.squeeze(1)


def _differences(rows: Tensor, constant: Tensor, hidden: Middle) -> Interval:
    """Intervals on z_j − z_y from the rows of z_y − z_j over the last operation's input. # (batch, classes − 1) each"""
    flat = rows.flatten(2)
    centre = torch.einsum("bri,bi->br", flat, flatten(hidden[0])) + constant
    radius = torch.einsum("bri,bi->br", flat.abs(), flatten(hidden[1]))
    return -centre - radius, -centre + radius

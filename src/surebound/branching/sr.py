"""SR, smart ReLU branching (Bunel 2020): estimate from FastLin duals how a split would move the bound.

With λ̄ of the FastLin dual, b the bias that feeds a neuron, and ā, b̄ its upper line,

    s = | max(0, λ̄ b) − ā λ̄ b − b̄ [λ̄]₊ |

on ambiguous neurons.
"""

import torch
from torch import Tensor

from surebound.branching.rule import Bounding, Context, deepest_intercept, fixed_slope_dual, open_neurons, upper_cost


def sensitivity(context: Context, lam: Tensor, *, worst: bool) -> Tensor:
    """|opt(0, λ̄b) − ā λ̄ b − b̄[λ̄]₊| with opt = max for SR, min (`worst`) for FSB. # (nodes, neurons)"""
    relaxation = context.relaxation
    product = lam * context.bias
    split = product.clamp_max(0.0) if worst else product.clamp_min(0.0)
    return (split - relaxation.upper_slope * product - upper_cost(relaxation, lam)).abs()


class SR:
    """The largest score; where it does not exceed `threshold` or lies in the first layer, `deepest_intercept`."""

    threshold = 1e-3

    def __init__(self, context: Context) -> None:
        self.context = context

    def _scored(self, batch: Bounding) -> tuple[Tensor, Tensor]:
        _, lam = fixed_slope_dual(self.context, batch, self.context.relaxation.upper_slope)
        score = sensitivity(self.context, lam, worst=False)
        return torch.where(open_neurons(self.context, batch.nodes), score, 0.0), lam

    def scores(self, batch: Bounding) -> Tensor:
        return self._scored(batch)[0]

    def choose(self, batch: Bounding) -> Tensor:
        score, lam = self._scored(batch)
        best, choice = score.max(1)
        layers = self.context.layers
        weak = (best <= self.threshold) | ((choice < layers[0].stop) & (len(layers) > 1))
        fallback = deepest_intercept(self.context, lam, open_neurons(self.context, batch.nodes))
        return torch.where(weak, fallback, choice)

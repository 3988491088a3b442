"""UPB, upper Planet bias (the paper's eq. 7): split where the upper line's intercept costs the bound most.

    s_k = (−l̂_k û_k) / (û_k − l̂_k) ⊙ [λ̄_k]₊

with λ̄ from the duals of the last bounding step. It is the term of the dual objective that vanishes with the split.
"""

import torch
from torch import Tensor

from surebound.branching.fsb import FSB
from surebound.branching.rule import Bounding, Context, open_neurons, take, upper_cost


class UPB:
    """The largest score in the network; FSB's choice where no score exceeds `threshold`."""

    threshold = 1e-4

    def __init__(self, context: Context) -> None:
        self.context = context
        self.fallback = FSB(context)

    def scores(self, batch: Bounding) -> Tensor:
        cost = upper_cost(self.context.relaxation, batch.lam)
        return torch.where(open_neurons(self.context, batch.nodes), cost, 0.0)

    def choose(self, batch: Bounding) -> Tensor:
        best, choice = self.scores(batch).max(1)
        weak = torch.nonzero(best <= self.threshold).flatten()
        if len(weak):
            choice[weak] = self.fallback.choose(take(batch, weak))
        return choice

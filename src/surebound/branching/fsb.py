"""FSB, filtered smart branching (De Palma 2021): SR-like scores propose, cheap bounds decide.

Per layer two candidates: the best by the sensitivity score with min(0, ·), and the best by the intercept term b̄[λ̄]₊.
Both children of every candidate are bounded with fixed slopes (best of FastLin and CROWN); the candidate whose worse
child gains most is split.
"""

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Splits
from surebound.branching.rule import Bounding, Context, fixed_slope_dual, open_neurons, upper_cost
from surebound.branching.sr import sensitivity


class FSB:
    """Two candidates a layer, each judged by bounds on its children."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def scores(self, batch: Bounding) -> Tensor:
        """Sensitivity scores, before filtering."""
        _, lam = fixed_slope_dual(self.context, batch, self.context.relaxation.upper_slope)
        score = sensitivity(self.context, lam, worst=True)
        return torch.where(open_neurons(self.context, batch.nodes), score, 0.0)

    def choose(self, batch: Bounding) -> Tensor:
        open_ = open_neurons(self.context, batch.nodes)
        candidates, valid = self._candidates(batch, open_)
        worse = torch.stack([self._worse_child(batch, c) for c in candidates.T], dim=1)
        worse = worse.clamp_min(torch.finfo(worse.dtype).min)  # an overflow is the worst, but better than not open
        best = torch.where(valid, worse, -torch.inf).argmax(1)
        return candidates.gather(1, best[:, None])[:, 0]

    def _candidates(self, batch: Bounding, open_: Tensor) -> tuple[Tensor, Tensor]:
        """# (nodes, candidates) neurons and whether each is open"""
        _, lam = fixed_slope_dual(self.context, batch, self.context.relaxation.upper_slope)
        sensitive = sensitivity(self.context, lam, worst=True)
        cost = upper_cost(self.context.relaxation, lam)
        found, valid = [], []
        for where in self.context.layers:
            if where.start == where.stop:
                continue
            for score in (sensitive, cost):
                best, index = torch.where(open_[:, where], score[:, where], -1.0).max(1)
                found.append(index + where.start)
                valid.append(best >= 0)
        return torch.stack(found, dim=1), torch.stack(valid, dim=1)

    def _worse_child(self, batch: Bounding, neuron: Tensor) -> Tensor:
        """The lower of the two children's bounds when `neuron` of each node is split. # (nodes,)"""
        children = []
        signs = batch.nodes.signs
        if signs is None:
            signs = torch.zeros_like(batch.lam, dtype=torch.int8)
        for sign in (1, -1):
            split = signs.scatter(1, neuron[:, None], sign)
            child = Bounding(Splits(batch.nodes.region, split), batch.duals, batch.lam, batch.bound)
            bounds = [
                fixed_slope_dual(self.context, child, slope)[0]
                for slope in (self.context.relaxation.upper_slope, self.context.relaxation.lower_slope)
            ]
            children.append(torch.maximum(*bounds))
        return torch.minimum(*children)

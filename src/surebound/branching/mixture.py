"""What `auto` splits by: UPB or SR, whichever has had the better children lately.

Neither rule is best everywhere: UPB on convolutional networks and those trained to be verifiable, SR where most of the
relaxation error sits in layers whose intercepts hardly reach the bound. So both are asked on a sample of the nodes, at
first in every batch and then ever more rarely. Both children of either choice are bounded from the parent's duals, and
the product of what the two gain is the score, as in the strong branching of integer programming (Achterberg 2007,
section 5.4). Splits outside of the sample follow the rule that is ahead.

Full strong branching, many candidates at every node near the root, visits a tenth to a quarter fewer nodes but takes
longer than it saves: docs/decisions.md.
"""

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Splits
from surebound.branching.rule import Bounding, Context, open_neurons, take
from surebound.branching.sr import SR
from surebound.branching.upb import UPB

_LEAST = 1e-3  # of what the bound lacks, added to each gain: one hopeless child must not hide what the other gains


class Mixture:
    """UPB and SR, compared on samples."""

    sample = 16  # nodes on which the rules are compared
    often = 4  # batches that are compared before the comparisons become rare
    memory = 0.5  # the weight of earlier comparisons
    ascent = Ascent(iterations=3)

    def __init__(self, context: Context) -> None:
        self.context = context
        self.rules = (UPB(context), SR(context))
        self.record = context.bias.new_zeros(len(self.rules))
        self.batches = 0

    @property
    def leader(self) -> UPB | SR:
        """The rule that is ahead."""
        return self.rules[int(self.record.argmax())]

    def scores(self, batch: Bounding) -> Tensor:
        return self.leader.scores(batch)

    def choose(self, batch: Bounding) -> Tensor:
        self.batches += 1
        if self.batches > self.often and self.batches & (self.batches - 1):  # then only the powers of two
            return self.leader.choose(batch)
        every = max(1, len(batch.nodes) // self.sample)
        some = torch.arange(0, len(batch.nodes), every, device=batch.bound.device)
        better = self._compare(take(batch, some))
        if len(some) == len(batch.nodes):
            return better
        choice = self.leader.choose(batch)
        choice[some] = better
        return choice

    def _compare(self, batch: Bounding) -> Tensor:
        """The better of the rules' choices for each node; the record is updated."""
        choices = torch.stack([rule.choose(batch) for rule in self.rules], dim=1)
        gain = self._gain(batch, choices)
        self.record = self.memory * self.record + (1 - self.memory) * gain.mean(0)
        return choices.gather(1, gain.argmax(1, keepdim=True))[:, 0]

    def _gain(self, batch: Bounding, choices: Tensor) -> Tensor:
        """The product of both children's gains, each as a share of what the bound lacks. # (nodes, choices)"""
        count, width = choices.shape
        index = torch.arange(count, device=choices.device).repeat_interleave(2 * width)
        signs = torch.zeros_like(batch.lam, dtype=torch.int8) if batch.nodes.signs is None else batch.nodes.signs
        signs = signs[index]
        side = signs.new_tensor([1, -1]).repeat(count * width)
        signs.scatter_(1, choices.reshape(-1).repeat_interleave(2)[:, None], side[:, None])
        children = self.context.bound(Splits(batch.nodes.region[index], signs), batch.duals[index], self.ascent)
        lacking = (-batch.bound[index]).clamp_min(1e-30)
        share = ((children.bound.clamp_max(0.0) - batch.bound[index]) / lacking).nan_to_num(0.0).clamp(0.0, 1.0)
        product = (share.reshape(count, width, 2) + _LEAST).prod(2)
        return torch.where(open_neurons(self.context, batch.nodes).gather(1, choices), product, 0.0)

"""Splits of ReLUs, with a linear program for every subproblem: for a search that has come to a standstill.

Where the rows of a region can each just be met, the dual bound of almost every subproblem is 0, until its splits leave
no point that meets all of them: bounds tie, and neither an ascent nor a score made from duals has a direction. An LP
tells which subproblems have no solution, with the multipliers that prove it: the sound bound at those decides.

The tree goes deep first, into the half that holds the LP's optimum.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.planet_lp import solvable
from surebound.branching.alignment import alignment
from surebound.network.arrays import to_numpy
from surebound.verify.clock import Clock
from surebound.verify.leaf import decide_leaf
from surebound.verify.node import Nodes, halves_by_sign
from surebound.verify.node_lp import NodeLP, Relaxed
from surebound.verify.strategy import Strategy
from surebound.verify.subject import Subject
from surebound.verify.tree import Bounded, Leaf

_VIOLATED = 1e-7


def suits(subject: Subject, strategy: Strategy) -> bool:
    """Whether the LPs of a subject are small, and so are the numbers in them."""
    form, rows = subject.form.folded(), subject.specification.rows
    if form is None or form.minimum.balls is not None:  # a ball in ℓ2 is no linear program's
        return False
    if sum(int(b.weight.count_nonzero()) for b in form.blocks) > strategy.program_entries:
        return False
    numbers = [form.box_lower, form.box_upper, form.lower, form.upper, rows.coefficients, rows.constant]
    numbers += [part for block in form.blocks for part in (block.weight, block.bias)]
    return solvable(*map(to_numpy, numbers))


class ProgramSpace:
    """The regions of a subject that `suits`."""

    batch = 2

    def __init__(self, subject: Subject, clock: Clock) -> None:
        self.subject, self.clock = subject, clock
        self.violated = torch.zeros_like(subject.form.lower, dtype=torch.bool)  # by the optimum of some LP so far
        self.program: NodeLP | None = None

    def roots(self) -> Nodes:
        region = torch.arange(self.subject.regions, device=self.subject.network.device)
        first = torch.ones_like(region, dtype=torch.int8)
        return Nodes.roots(region, {"signs": first.new_zeros(len(region), self.subject.form.neurons), "first": first})

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        """The half that holds the LP's optimum comes last, and so out of the queue first."""
        return halves_by_sign(parents, -parents.state["first"])

    def bound(self, nodes: Nodes) -> Bounded:
        with self.clock.phase("linear programs"):
            solved = [self._solve(node) for node in _one_by_one(nodes)]
        relaxed, proofs = [r for _, r in solved], [p for p, _ in solved]
        form, array = self.subject.form, self.subject.network.array
        if any(proofs):
            none = self.subject.multipliers(form.lower[:0], *form.lower.new_zeros(2, form.neurons))
            duals = [p or none for p in proofs]
            nodes = replace(nodes, state=nodes.state | {name: torch.cat([d[name] for d in duals]) for name in none})
        unknown, nothing = (form.lower.new_full((count,), torch.nan) for count in (form.neurons, form.inputs))
        hints = {
            "x": torch.stack([nothing if r is None else r.x for r in relaxed]),
            "xhat": torch.stack([unknown if r is None else array(r.xhat) for r in relaxed]),
        }
        proved = torch.tensor([proof is not None for proof in proofs], device=nodes.region.device)
        return Bounded(nodes, proved, hints)

    def _solve(self, node: Nodes) -> tuple[dict[str, Tensor] | None, Relaxed | None]:
        """The LP's multipliers if they prove the subproblem, and if not, its optimum, if it has one."""
        self.clock.check()
        region, signs = int(node.region), to_numpy(node.state["signs"][0])
        if self.program is None or self.program.region != region:
            self.program = NodeLP(self.subject, region)
        answer = self.program.solve(signs, self.clock.remaining)
        proof = self.program.proof(signs, answer)
        if proof is not None:
            return proof, None
        if answer.relaxed is not None:
            self.violated |= self.subject.network.array(answer.relaxed.violation > _VIOLATED)
        return None, answer.relaxed

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        x = open_.hints["x"]
        x = x[~x.isnan().any(1)]
        if len(x):
            yield self.subject.form.full_input(x)

    def choose(self, open_: Bounded) -> Nodes:
        """Prefer neurons whose ReLU some LP's optimum has violated: no optimum so far needed the others."""
        with self.clock.phase("branching"):
            nodes = open_.nodes
            split = nodes.split.new_tensor([self._choice(node) for node in _one_by_one(nodes)])
            xhat = open_.hints["xhat"].gather(1, split.clamp_min(0)[:, None])[:, 0]
        first = torch.where(xhat.isnan() | (xhat > 0), 1, -1).to(torch.int8)
        signs = open_.nodes.state["signs"]
        return replace(open_.nodes, split=split, state={"signs": signs, "first": first})

    def _choice(self, node: Nodes) -> int:
        subject, signs = self.subject, node.state["signs"][0]
        free = subject.relaxation.ambiguous & (signs == 0)
        if not bool(free.any()):
            return -1
        score = alignment(subject.form, subject.specification, subject.relaxation, int(node.region), signs)
        for candidates in (free & self.violated & (score > 0), free & self.violated, free):
            if bool(candidates.any()):
                break
        return int(torch.where(candidates, score, -1.0).argmax())

    def decide(self, leaf: Nodes) -> Leaf:
        return decide_leaf(self.subject, int(leaf.region), leaf.state["signs"][0], self.clock.remaining)


def _one_by_one(nodes: Nodes) -> Iterator[Nodes]:
    """Each node by itself."""
    return (nodes[i] for i in torch.arange(len(nodes), device=nodes.region.device).split(1))


class Standstill:
    """Notices when the lowest bound has not risen since the first, or while the number of subproblems doubled."""

    def __init__(self, patience: int, share: float, margin: float) -> None:
        """`margin` is what counts as 0."""
        self.patience, self.share, self.margin = patience, share, margin
        self.next, self.lowest = 0, -np.inf

    def reached(self, subproblems: int, lowest: float) -> bool:
        if subproblems < self.next:
            return False
        stands = lowest - self.lowest <= self.share * max(-lowest, self.margin)
        self.next, self.lowest = max(self.patience, 2 * subproblems), lowest
        return bool(stands)

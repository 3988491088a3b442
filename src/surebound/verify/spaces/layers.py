"""A bound on a neuron as a little tree: some neurons before it are split, and the lowest of the parts' bounds holds.

By itself that gains some ten percent of a neuron's interval. But narrower intervals make the relaxations of all later
layers tighter, and the gain compounds: on a fully connected network of nine layers, it is what decides.

Splits are chosen by UPB (eq. 7). Every part's bound is evaluated soundly, as in the search.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Slopes, Specification, Splits, evaluate
from surebound.bounds.bounding import LayerBounding
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Rows
from surebound.bounds.relaxation import relax
from surebound.bounds.root import fold_network
from surebound.bounds.sparse import rank_in_group
from surebound.bounds.witness import NOBODY, Reason, by_trees, on_grid
from surebound.branching.rule import upper_cost
from surebound.network.arrays import to_numpy
from surebound.proof.forest import Forest, Leaves
from surebound.proof.record import BoxRecord
from surebound.verify.clock import Clock
from surebound.verify.node import Nodes, halves_by_sign, joined
from surebound.verify.strategy import Refinement
from surebound.verify.tree import Bounded, How, Leaf, Tree

_PASS = 2**20  # numbers in the largest tensor of a pass
_HELD = 2**24  # numbers in the duals of all parts that are held at once


def refine(
    enclosure: Enclosure,
    known: Enclosure,
    refinement: Refinement,
    clock: Clock,
    seconds: float,
    record: BoxRecord | None = None,
) -> FoldedForm:
    """The folded form over the box of an enclosure, which is tightened, given sound bounds `known` of the same box.

    After some `seconds`, the layers that are left keep the bounds they have.
    """
    end = clock.elapsed + seconds

    def bound(form: FoldedForm, rows: Rows) -> tuple[Tensor, Tensor, Reason]:
        lower = rows.constant.new_full((2 * len(rows),), -torch.inf)
        both, chunk = rows.both_signs(), max(8, _HELD // (refinement.parts * max(form.columns, 1)))
        trees: list[tuple[Tensor, Forest]] = []
        for part in torch.arange(len(lower), device=lower.device).split(chunk):
            if clock.elapsed < end:
                sink = (Parts if record is None else RecordedParts)(len(part), lower)
                lower[part] = lower_by_splits(form, both[part], refinement, clock, sink)
                if record is not None and isinstance(sink, RecordedParts):
                    trees.append((part, sink.forest(record.neurons(form))))
        return lower[: len(rows)], -lower[len(rows) :], by_trees(trees)

    witness = NOBODY if record is None else record
    form = fold_network(enclosure, LayerBounding(), clock.check, known=known, bound=bound, witness=witness)
    assert form is not None  # there is no limit to its size
    return form


def lower_by_splits(form: FoldedForm, rows: Rows, refinement: Refinement, clock: Clock, parts: "Parts") -> Tensor:
    """Sound lower bounds of rows over the form's box. # (rows,) float64

    A row whose bound is positive is split no further.
    """
    rounds = Rounds(refinement.rounds)
    Tree(LayerSpace(form, rows, refinement), rounds, clock.quiet(), lambda _: None, parts).grow()
    parts.closed(rounds.nodes, "undecided")
    return parts.lowest


class LayerSpace:
    """Rows over a folded form, whose splits are those of the neurons before them."""

    def __init__(self, form: FoldedForm, rows: Rows, refinement: Refinement) -> None:
        self.form, self.refinement = form, refinement
        self.rows = replace(rows, error=form.start_error(rows))
        self.relaxation = relax(form.lower, form.upper)
        self.kernel, self.fast_relaxation = form.kernel(), self.relaxation.to(torch.float32)
        thin = rows.to(torch.float32)
        self.specification = Specification(thin, tuple(range(len(rows) + 1)), thin.error)
        self.batch = max(1, _PASS // max(form.columns, 1))

    def roots(self) -> Nodes:
        """The whole box, for every row."""
        alpha = self.fast_relaxation.lower_slope.repeat(len(self.rows), 1)
        own = torch.full_like(self.rows.constant, -torch.inf)
        state = {"signs": torch.zeros_like(alpha, dtype=torch.int8), "alpha": alpha, "beta": torch.zeros_like(alpha)}
        state["own"] = own
        return Nodes.roots(torch.arange(len(self.rows), device=own.device), state, torch.float64)

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        return halves_by_sign(parents)

    def bound(self, nodes: Nodes) -> Bounded:
        """Duals by a short ascent in float32, the bound at these in float64.

        What holds on a part holds on its halves, and may be more than a short ascent reaches there.
        """
        state, signs = nodes.state, nodes.state["signs"]
        ascent = self.refinement.start if bool((nodes.depth == 0).all()) else self.refinement.ascent
        splits, duals = Splits(nodes.region, signs), Duals(state["alpha"], state["beta"], None)
        found = self.kernel.ascend(self.specification, self.fast_relaxation, splits, duals, ascent)
        assert found.duals.beta is not None
        slopes = Slopes.of(self.relaxation, signs)
        alpha = on_grid(found.duals.alpha)
        wide = Duals(slopes.fixed(alpha.double()), found.duals.beta.double().clamp_min(0.0), None)
        bound = evaluate(self.form, self.rows[nodes.region], slopes, wide, keep=False).bound
        state = {"signs": signs, "alpha": alpha, "beta": found.duals.beta, "own": bound}
        known = replace(nodes, bound=torch.maximum(bound, nodes.bound), state=state)
        return Bounded(known, known.bound > 0, {"lam": found.lam})

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        yield from ()

    def choose(self, open_: Bounded) -> Nodes:
        split = torch.full_like(open_.nodes.region, -1)
        if self.form.neurons:
            free = self.relaxation.ambiguous & (open_.nodes.state["signs"] == 0)
            cost = upper_cost(self.fast_relaxation, open_.hints["lam"])
            best, choice = torch.where(free, cost, -1.0).max(1)
            split = torch.where(best >= 0, choice, -1)
        return replace(open_.nodes, split=split)

    def decide(self, leaf: Nodes) -> Leaf:
        return Leaf(False)


class Rounds:
    """Parts that are open: the worse half of each row's are split at once, for some rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds
        self.parts: list[Nodes] = []

    @property
    def nodes(self) -> Nodes | None:
        """All that were not split."""
        return joined(self.parts) if self.parts else None

    def __len__(self) -> int:
        return sum(map(len, self.parts)) if self.rounds else 0

    @property
    def lowest(self) -> float:
        return min((bound for part in self.parts for bound in part.bound.tolist()), default=float("inf"))

    def push(self, nodes: Nodes) -> None:
        self.parts.append(nodes)

    def pop(self, count: int) -> Nodes:
        nodes = joined(self.parts)
        worse = _worse_half(nodes.region, nodes.bound)
        self.rounds, self.parts = self.rounds - 1, [nodes[~worse]]
        return nodes[worse]


class Parts:
    """A sink that keeps the lowest bound of each row's parts, which cover the box."""

    def __init__(self, rows: int, like: Tensor) -> None:
        """Of so many rows, whose bounds are of the kind of `like`."""
        self.lowest = like.new_full((rows,), torch.inf)

    def split(self, parents: Nodes, halves: Nodes) -> None:
        """Nothing to do: every half is closed in its turn, or halved."""

    def closed(self, nodes: Nodes | None, how: How) -> None:
        if nodes is not None:
            self.lowest.scatter_reduce_(0, nodes.region, nodes.bound, "amin")


class RecordedParts(Parts):
    """One that also keeps the parts themselves."""

    def __init__(self, rows: int, like: Tensor) -> None:
        super().__init__(rows, like)
        self._rows = rows
        self._nodes: list[Nodes] = []
        self._splits: list[Tensor] = []  # (splits, 4): parent, neuron, active half, inactive half

    def split(self, parents: Nodes, halves: Nodes) -> None:
        self._nodes.append(parents)
        self._splits.append(torch.stack([parents.number, parents.split, *halves.number.reshape(-1, 2).T], dim=1))

    def closed(self, nodes: Nodes | None, how: How) -> None:
        super().closed(nodes, how)
        if nodes is not None:
            self._nodes.append(nodes)

    def forest(self, neurons: NDArray[np.int64]) -> Forest:
        """The trees. A part is not split where its own bound is as good as those of its halves.

        Halves inherit their parent's bound where it is higher, so that each root's bound is `lowest`.
        """
        nodes = joined(self._nodes)
        number = to_numpy(nodes.number)
        splits = np.concatenate([np.zeros((0, 4), np.int64), *map(to_numpy, self._splits)])
        best = np.full(number.max() + 1, -np.inf)
        best[number] = to_numpy(nodes.state["own"])
        kept = []
        for split in splits[np.argsort(-splits[:, 0])].tolist():
            parent, _, first, second = split
            both = min(best[first], best[second])
            if both > best[parent]:
                best[parent] = both
                kept.append(split)
        forest = Forest(self._rows, neurons)
        inner, reached = {split[0]: split for split in kept}, list(range(self._rows))
        for node in reached:  # grows as it goes
            if node in inner:
                reached += inner[node][2:]
        chosen = np.array([inner[n] for n in reached if n in inner], dtype=np.int64).reshape(-1, 4)
        forest.split(chosen[:, 0], neurons[chosen[:, 1]] if len(chosen) else chosen[:, 1], chosen[:, 2], chosen[:, 3])
        leaf = np.isin(number, [n for n in reached if n not in inner])
        signs, alpha, beta = (to_numpy(nodes.state[name])[leaf] for name in ("signs", "alpha", "beta"))
        forest.close(Leaves(number[leaf], signs, alpha, beta))
        return forest


def _worse_half(row: Tensor, bound: Tensor) -> Tensor:
    """Which parts are in the lower half of their row's. # (parts,) bool"""
    order = bound.argsort()
    order = order[row[order].argsort(stable=True)]
    counts = torch.bincount(row)
    rank = rank_in_group(row[order], counts)
    worse = torch.zeros_like(row, dtype=torch.bool)
    worse[order] = 2 * rank < counts[row[order]]
    return worse

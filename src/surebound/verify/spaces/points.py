"""Splits of neurons at points, for activations other than ReLUs: x̂ ≤ p and x̂ ≥ p, both halves relaxed anew.

A node is an interval for every neuron. It is bounded by `surebound.bounds.tangents`, in float64 with rounding taken
off, from its parent's lines and multipliers on; in small networks, a linear program finds better multipliers. What is
split is the neuron whose line costs the bound most, which is UPB's choice (eq. 7) where lines touch at both ends, at a
kink or jump of the activation or in the middle. Intervals of later layers are propagated anew; a node with an empty one
is empty.

A neuron whose lines are as close as rounding lets them be is not split any more. A node that has no other, and that no
linear program proves, stays open, and the search ends as `unknown`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent
from surebound.bounds.enclosure import Enclosure, enclose
from surebound.bounds.form import consecutive
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.planet_lp import leaf_multipliers
from surebound.bounds.tangents import TangentBounds, TangentForm, Tangents
from surebound.bounds.timed import timed
from surebound.network.activation import ERROR
from surebound.network.activations import RELU, SIGN_GAP
from surebound.network.arrays import to_numpy
from surebound.network.cost import PASS_PRODUCTS, products
from surebound.problem import Region, padded_rows
from surebound.verify.clock import Clock
from surebound.verify.node import Nodes
from surebound.verify.strategy import Strategy
from surebound.verify.tree import Bounded, Leaf

_FEW = 64  # inputs and neurons, up to which every node that the ascent leaves open gets a linear program
_EMPTY = 1e-6  # the weight of a row in a program's multipliers, below which it counts for nothing
_THIN = 4 * SIGN_GAP  # an interval, for each unit of 1 + |x̂|, that is not split any more
_CLOSE = 64 * ERROR  # a gap between lines, for each unit of 1 + |x̂|, that splits do not make smaller


class PointSpace:
    """The regions over one box, whose layers are bounded."""

    def __init__(self, enclosure: Enclosure, regions: Sequence[Region], strategy: Strategy, clock: Clock) -> None:
        self.network, self.strategy, self.clock = enclosure.network, strategy, clock
        self.box = enclosure.lower[0], enclosure.upper[0]  # (1, *input_shape)
        self.around = enclosure.around
        self.rows, self.regions = [*map(self.network.array, padded_rows([[r] for r in regions]))], len(regions)
        self.layers = consecutive(self.network.widths)
        self.functions = [function or RELU for function in self.network.functions]
        self.low, self.high = enclosure.neurons()
        in_cache = strategy.box_elements // (self.network.widest + self.network.neurons)
        in_time = PASS_PRODUCTS // (16 * max(products(self.network, self.network.output), 1))
        self.programs = self.network.inputs <= _FEW and self.network.neurons <= _FEW  # which then take a millisecond
        self.batch = max(2, min(512, in_cache, in_time))

    def roots(self) -> Nodes:
        region = torch.arange(self.regions, device=self.network.device)
        low, high = (end.expand(self.regions, -1) for end in (self.low, self.high))
        none = torch.full_like(low, torch.nan).float()  # lines are chosen when the node is bounded
        state = {"lower": low, "upper": high, "below": none, "above": none, "push": torch.zeros_like(none)}
        state["row"] = torch.zeros_like(region)
        return Nodes.roots(region, {k: v.clone() for k, v in state.items()}, torch.float64)

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        halves = parents.halved()
        n = torch.arange(len(parents), device=parents.split.device)
        at = self._points(parents.state["lower"], parents.state["upper"])[n, parents.split]
        halves.state["upper"][2 * n, parents.split] = at
        halves.state["lower"][2 * n + 1, parents.split] = at
        for lines in ("below", "above"):  # those of the neuron are chosen anew
            for half in (2 * n, 2 * n + 1):
                halves.state[lines][half, parents.split] = torch.nan
        return halves

    def bound(self, nodes: Nodes) -> Bounded:
        with self.clock.phase("bounding"):
            form, low, high = self._form_of(self._enclosure(nodes))
            best, row = self._best(nodes, form)
        proved, x = (low > high).any(1) | (best.bound > 0), best.x  # without a point, or without a violation
        variables = {
            name: part.float() for name, part in zip(("below", "above", "push"), best.tangents.parts(), strict=True)
        }
        state = nodes.state | {"lower": low, "upper": high, "row": row} | variables
        open_ = torch.nonzero(~proved & (nodes.depth > 0)).flatten()
        if self.programs and len(open_):
            with self.clock.phase("linear programs"):
                proved[open_], found = self._solved(replace(nodes, state=state)[open_])
                x[open_] = torch.where(found.isnan(), x[open_], found)
        known = replace(nodes, bound=torch.maximum(best.bound, nodes.bound), state=state)
        return Bounded(known, proved, {"bound": best.bound, "gap": best.gap, "lam": best.lam, "x": x})

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        """The relaxations' minimisers."""
        yield open_.hints["x"][open_.hints["bound"].argsort()[: self.strategy.points]]

    def choose(self, open_: Bounded) -> Nodes:
        with self.clock.phase("branching"):
            low, high = open_.nodes.state["lower"], open_.nodes.state["upper"]
            reach = 1.0 + torch.maximum(low.abs(), high.abs())
            gap = open_.hints["gap"]
            close = gap <= _CLOSE * reach * open_.hints["lam"].abs()
            best, split = torch.where((high - low > _THIN * reach) & ~close, gap, -1.0).max(1)
        return replace(open_.nodes, split=torch.where(best > 0, split, -1))

    def decide(self, leaf: Nodes) -> Leaf:
        """A node whose lines cannot come any closer: a linear program over the inputs decides, as far as lines do."""
        proved, x = self._solved(leaf)
        return Leaf(bool(proved), None if bool(x.isnan().any()) else x[0])

    def _solved(self, nodes: Nodes) -> tuple[Tensor, Tensor]:
        """Minimise the row of each node over its inputs and splits, its lines as they are. The multipliers of these
        programs, put into the dual bound, have to prove what they say; or there is a minimiser.

        # (nodes,) bool, (nodes, inputs) NaN where there is none
        """
        form, low, high = self._form_of(self._enclosure(nodes))
        row = [part[nodes.region, nodes.state["row"]] for part in self.rows]
        tangents = TangentForm(timed(form, self.clock.check), form.rows(*row))
        start = self._start(tangents, nodes)
        xhat, columns = tangents.affine(start)
        value = (columns @ tangents.rows.coefficients[:, :, None])[:, :, 0] + tangents.rows.constant[:, None]
        push, weight = torch.zeros_like(low), low.new_ones(len(nodes))
        x = low.new_full((len(nodes), self.network.inputs), torch.nan)
        lower, upper = (to_numpy(end.flatten()) for end in self.box)
        for i in range(len(nodes)):
            self.clock.check()
            least = torch.nonzero(low[i] > self.low[0]).flatten()
            most = torch.nonzero(high[i] < self.high[0]).flatten()
            split, ends = torch.cat([least, most]), torch.cat([low[i, least], high[i, most]])
            signs = torch.cat([low.new_ones(len(least)), -low.new_ones(len(most))])
            solution = leaf_multipliers(
                preactivations=to_numpy((xhat[i, 1:, split] - xhat[i, 0, split]).T),
                offsets=to_numpy(xhat[i, 0, split] - ends),
                signs=to_numpy(signs),
                rows=to_numpy((value[i, 1:] - value[i, 0])[None]),
                constants=to_numpy(value[i, :1]),
                lower=lower,
                upper=upper,
                time_limit=max(self.clock.remaining, 0.1),
            )
            if solution is None:
                continue
            if solution.value <= 0:
                x[i] = self.network.array(solution.x)
                continue
            share = float(solution.pi[0])
            weight[i] = share > _EMPTY  # else the splits alone contradict each other
            beta = self.network.array(solution.beta) / (share if share > _EMPTY else 1.0)
            push[i].index_add_(0, split, signs * beta)
        weighted = form.rows(*(part * weight.reshape(-1, *(1 for _ in part.shape[1:])) for part in row))
        final = TangentForm(timed(form, self.clock.check), weighted)
        found = final.bounds(replace(start, push=push), Ascent(iterations=0))
        return found.bound > 0, x

    def _enclosure(self, nodes: Nodes) -> Enclosure:
        lower, upper = (end.expand(len(nodes), *end.shape[1:]) for end in self.box)
        layers = [(nodes.state["lower"][:, at], nodes.state["upper"][:, at]) for at in self.layers]
        around = None if self.around is None else self.around.repeated(len(nodes))
        return enclose(self.network, lower, upper, layers, around=around)

    def _form_of(self, enclosure: Enclosure) -> tuple[GraphForm, Tensor, Tensor]:
        """The form of nodes, and the intervals of their neurons as they came out, empty ones included."""
        low, high = enclosure.neurons()
        form = GraphForm.at(enclosure, self.network.output)
        return replace(form, lower=low, upper=torch.maximum(low, high)), low, high

    def _best(self, nodes: Nodes, form: GraphForm) -> tuple[TangentBounds, Tensor]:
        """Bounds by the best row of each node's region: the one that is best before the ascent, and which it is."""
        parts = [part[nodes.region] for part in self.rows]  # (nodes, rows, …)
        count, row = parts[2].shape[1], torch.zeros_like(nodes.region)
        start: Tangents | None = None
        if count > 1:
            first = []
            for r in range(count):
                tangents = self._form(form, [part[:, r] for part in parts])
                start = start or self._start(tangents, nodes)
                first.append(tangents.bounds(start, Ascent(iterations=0)).bound)
            row = torch.stack(first, 1).argmax(1)
        n = torch.arange(len(nodes), device=row.device)
        tangents = self._form(form, [part[n, row] for part in parts])
        at_root = bool((nodes.depth == 0).all())
        ascent = (
            self.strategy.root if at_root else replace(self.strategy.ascent, iterations=self.strategy.iterations.count)
        )
        return tangents.bounds(start or self._start(tangents, nodes), ascent), row

    def _form(self, form: GraphForm, rows: list[Tensor]) -> TangentForm:
        return TangentForm(timed(form, self.clock.check), form.rows(*rows))

    @staticmethod
    def _start(tangents: TangentForm, nodes: Nodes) -> Tangents:
        """The parents' lines and multipliers, and lines of their own for neurons that have none."""
        own = tangents.start()
        below, above = (nodes.state[name].double() for name in ("below", "above"))
        return Tangents(
            torch.where(below.isnan(), own.below, below),
            torch.where(above.isnan(), own.above, above),
            nodes.state["push"].double(),
        )

    def _points(self, low: Tensor, high: Tensor) -> Tensor:
        """Where each neuron would be split. # (nodes, neurons) each"""
        at = low / 2 + high / 2
        for function, where in zip(self.functions, self.layers, strict=True):
            for cut in function.cuts:
                inside = (low[:, where] < cut) & (cut < high[:, where])
                at[:, where] = torch.where(inside, cut, at[:, where])
        return at

"""Splits of ReLUs, bounded by β-CROWN: on the folded network, or on the graph where that is cheaper."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from surebound.attacks.descent import drawn
from surebound.bounds import beta_crown
from surebound.bounds.beta_crown import Ascent, Duals, Splits
from surebound.bounds.witness import on_grid
from surebound.branching import RULES
from surebound.branching.rule import Bounding, Rule, open_neurons, upper_cost
from surebound.verify.bounder import Bounder, RegionPlanes
from surebound.verify.clock import Budget, Clock
from surebound.verify.folded_attack import descend_folded
from surebound.verify.iterations import Iteration
from surebound.verify.leaf import decide_leaf
from surebound.verify.node import Nodes, halves_by_sign
from surebound.verify.strategy import Strategy
from surebound.verify.subject import Subject
from surebound.verify.tree import Bounded, Leaf

_BETA_LIMIT = 6e4  # float16, in which the queue keeps duals, ends at 65,504


class NeuronSpace:
    """The regions of a subject, split by a branching rule."""

    def __init__(
        self,
        subject: Subject,
        rule: str,
        strategy: Strategy,
        clock: Clock,
        *,
        memory: int = 2**31,
        seed: int = 0,
        least: float | None = None,
        planes: RegionPlanes | None = None,
    ) -> None:
        """`least` is given if a proof is recorded: bounds must exceed it, and duals rounded to bytes are tried first.
        `planes` are those of others who share the search."""
        self.least = least
        self.subject, self.strategy, self.clock = subject, strategy, clock
        self.bounder = Bounder(subject, strategy, clock, memory=memory, found=planes)
        context = replace(subject.context, bound=self.bounder.bound, evaluate=self.bounder.evaluate)
        self.rule: Rule = RULES[rule](context)
        self.iteration = Iteration(strategy.iterations, strategy.iterations.count)
        self.batch = strategy.batch or batch_size(subject, memory)
        self.descents = Budget(strategy.descents)
        self.generator = torch.Generator("cpu").manual_seed(seed)

    def roots(self) -> Nodes:
        splits, duals = self.subject.roots()
        return Nodes.roots(splits.region, state_of(splits, duals))

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        self._probe(parents, gain)
        return halves_by_sign(parents)

    def bound(self, nodes: Nodes) -> Bounded:
        """β-CROWN in float32; where that is positive, its duals in float64 decide."""
        with self.clock.phase("bounding"):
            at_root = bool((nodes.depth == 0).all())
            splits, duals = _splits(nodes, at_root), _duals(nodes, at_root)
            ascent = self.strategy.root if at_root else self._ascent(self.iteration.count)
            self.bounder.see(nodes.region)
            bounded = self.bounder.bound(splits, duals, ascent)
            if self.strategy.polish > 1 and not at_root:
                self._polish(splits, bounded, ascent)
            proved = self._proved(splits, bounded)
            self.iteration = self.iteration.rested()
        state = state_of(splits, bounded.duals) | {"planes": self.bounder.planed(nodes.region)}
        known = replace(nodes, bound=torch.maximum(bounded.bound, nodes.bound), state=state)
        return Bounded(known, proved, {"bound": bounded.bound, "lam": bounded.lam, "x": bounded.x})

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        """The relaxations' minimisers and, for a share of the time, what a descent finds from them."""
        lowest = open_.hints["bound"].argsort()[: self.strategy.points]
        region, x = open_.nodes.region[lowest], open_.hints["x"][lowest]
        complete = self.subject.form.full_input
        yield complete(x.double())
        if self.subject.kernel is not None and self.descents.allows(seconds):
            with self.descents.spent():
                region, x = self._with_random_points(region, x)
                x = descend_folded(self.subject.kernel, self.subject.fast_specification, region, x)
                yield complete(x.double())

    def choose(self, open_: Bounded) -> Nodes:
        nodes, context = open_.nodes, self.subject.context
        splits = _splits(nodes)
        free = open_neurons(context, splits)
        split = torch.full_like(nodes.region, -1)
        left = torch.nonzero(free.any(1)).flatten()
        if len(left):
            with self.clock.phase("branching"):
                hints = {name: value[left] for name, value in open_.hints.items()}
                choice = self.rule.choose(Bounding(splits[left], _duals(nodes[left]), hints["lam"], hints["bound"]))
                split[left] = torch.where(
                    free[left].gather(1, choice[:, None])[:, 0], choice, free[left].int().argmax(1)
                )
        return replace(nodes, split=split, state=_packed(nodes.state))

    def decide(self, leaf: Nodes) -> Leaf:
        return decide_leaf(self.subject, int(leaf.region), leaf.state["signs"][0], self.clock.remaining)

    def _ascent(self, iterations: int) -> Ascent:
        return replace(self.strategy.ascent, iterations=iterations)

    def _polish(self, splits: Splits, bounded: beta_crown.Bounded, ascent: Ascent) -> None:
        """More iterations for nodes that splitting cannot help.

        Splitting removes intercept terms from the dual bound. Where all of them together would not lift it above 0, the
        duals are what is far from optimal.
        """
        assert splits.signs is not None
        gap = upper_cost(self.subject.fast_relaxation, bounded.lam) * (splits.signs == 0)
        stuck = torch.nonzero(bounded.bound + gap.sum(1) < 0).flatten()
        if len(stuck):
            more = self._ascent(self.strategy.polish * ascent.iterations)
            bounded.put(stuck, self.bounder.bound(splits[stuck], bounded.duals[stuck], more))

    def _proved(self, splits: Splits, bounded: beta_crown.Bounded) -> Tensor:
        """Soundly positive. # (nodes,) bool"""
        proved = torch.zeros_like(splits.region, dtype=torch.bool)
        hopeful = torch.nonzero(bounded.bound > 0).flatten()
        if len(hopeful):
            proved[hopeful] = self._sound(splits[hopeful], bounded.duals, hopeful)
        refused = hopeful[~proved[hopeful]]
        if len(refused):  # the ascent did not fill in λ̄ and x of nodes that it took for proved
            again = self.bounder.bound(splits[refused], bounded.duals[refused], Ascent(iterations=0), torch.inf)
            bounded.put(refused, again)
        return proved

    def _sound(self, splits: Splits, duals: Duals, where: Tensor) -> Tensor:
        """Which of some nodes their duals prove; those that do are left in place."""
        if self.least is None:
            return self.bounder.sound_bounds(splits, duals[where]) > 0
        short = replace(duals[where], alpha=on_grid(duals.alpha[where]))
        proved = self.bounder.sound_bounds(splits, short) > self.least
        duals.put(where[proved], short[proved])
        rest = torch.nonzero(~proved).flatten()
        if len(rest):
            proved[rest] = self.bounder.sound_bounds(splits[rest], duals[where[rest]]) > self.least
        return proved

    def _with_random_points(self, region: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where there are few minimisers, as near the root, points drawn from the box as well."""
        form = self.subject.fast_form
        count = max(0, self.strategy.points - len(x))
        share = drawn((count, form.inputs), self.generator).to(x.device)
        more = form.box_lower + (form.box_upper - form.box_lower) * share
        again = region[torch.arange(count, device=region.device) % len(region)]
        return torch.cat([region, again]), torch.cat([x, more])

    def _probe(self, parents: Nodes, gain: float) -> None:
        """Try more iterations on the first of the parents."""
        if not self.iteration.wants_probe(int(parents.depth[0])):
            return
        with self.clock.phase("bounding"):
            first = parents[torch.zeros_like(parents.region[:1])]
            counts = (self.iteration.count, self.iteration.next_count)
            few, many = (
                float(self.bounder.bound(_splits(first), _duals(first), self._ascent(count)).bound) for count in counts
            )
            self.iteration = self.iteration.probed(more_gain=many - few, branch_gain=max(gain, 0.0))


def _splits(nodes: Nodes, unsplit: bool = False) -> Splits:
    return Splits(nodes.region, None if unsplit else nodes.state["signs"])


def _duals(nodes: Nodes, unsplit: bool = False) -> Duals:
    state = nodes.state
    return Duals(state["alpha"].float(), None if unsplit else state["beta"].float(), state.get("mix"))


def state_of(splits: Splits, duals: Duals) -> dict[str, Tensor]:
    """The state of nodes: signs, alpha and beta of all neurons, and mix where regions have several rows."""
    signs = torch.zeros_like(duals.alpha, dtype=torch.int8) if splits.signs is None else splits.signs
    beta = torch.zeros_like(duals.alpha) if duals.beta is None else duals.beta
    return {"signs": signs, "alpha": duals.alpha, "beta": beta} | ({} if duals.mix is None else {"mix": duals.mix})


def _packed(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Duals in half precision: they are a starting point, and every bound is evaluated anew from them."""
    rest = {name: value for name, value in state.items() if name != "planes"}
    return rest | {"alpha": state["alpha"].half(), "beta": state["beta"].clamp_max(_BETA_LIMIT).half()}


def batch_size(subject: Subject, memory: int) -> int:
    """Nodes bounded at once: the working set of a pass in the outer cache, all of it in an eighth of the memory,
    but not so few that most of the time is spent between them."""
    width = subject.form.inputs + subject.form.neurons
    in_cache = 2**22 // max(width, 1)
    in_memory = memory // 8 // (64 * max(width, 1))
    return max(2, min(1024, in_cache, max(64, in_memory)))

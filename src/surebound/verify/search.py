"""Branch and bound over ReLU splits: pick the lowest bounds, split, bound, prune, repeat.

A node is pruned only by a bound evaluated soundly (float64, rounding error taken off). A node with nothing left to
split is decided by a linear program, and the program's multipliers are checked by the same sound evaluation.
"""

import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Bounded, Duals, Nodes
from surebound.branching import RULES
from surebound.branching.rule import Bounding, Rule, open_neurons
from surebound.errors import ResourceError
from surebound.problem import Counterexample
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.early_stop import EarlyStop
from surebound.verify.folded_attack import descend
from surebound.verify.iterations import IterationPolicy
from surebound.verify.leaf import decide_leaf
from surebound.verify.lp_search import LPSearch, Standstill
from surebound.verify.points import TryPoints
from surebound.verify.queue import Batch, Queue
from surebound.verify.subject import Subject

ATTACK_POINTS = 64  # at once
POLISH = 4  # times as many iterations for a node whose duals are the bottleneck


@dataclass(frozen=True, kw_only=True)
class SearchConfig:
    """Options of the search."""

    branching: str = "upb"
    root: Ascent = Ascent(iterations=20)
    ascent: Ascent = Ascent()  # its iteration count is replaced by the policy's
    iterations: IterationPolicy = field(default_factory=IterationPolicy)
    batch: int | None = None  # nodes bounded at once; None: by memory and cache
    memory: int = 2**31  # bytes for the queue
    early_stop: bool = False
    attack_share: float = 0.1  # of the time, for attacks around the relaxations' minimisers
    seed: int = 0  # for these attacks
    patience: float = float("inf")  # seconds: a search that is expected to take longer ends as `slow`


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a search ended: `proved`, or with a counterexample, or neither and a reason."""

    proved: bool = False
    counterexample: Counterexample | None = None
    subproblems: int = 0
    lower_bound: float = float("-inf")
    timed_out: bool = False
    slow: bool = False
    reason: str = ""


def search(subject: Subject, config: SearchConfig, clock: Clock, try_points: TryPoints) -> Outcome:
    """Decide whether any open region of the subject holds a counterexample."""
    run = _NeuronSearch(subject, config, clock, try_points)
    try:
        return run.loop()
    except OutOfTime:
        return run.outcome(timed_out=True, reason="the time ran out")
    except ResourceError as error:
        return run.outcome(reason=str(error))
    finally:
        run.queue.close()


class _NeuronSearch:
    """The state of one search."""

    def __init__(self, subject: Subject, config: SearchConfig, clock: Clock, try_points: TryPoints) -> None:
        self.subject, self.config, self.clock, self.try_points = subject, config, clock, try_points
        self.rule: Rule = RULES[config.branching](subject.context)
        self.queue = Queue(subject.form.neurons, subject.specification.most_rows, config.memory)
        self.policy = config.iterations
        self.early = EarlyStop()
        self.begin, self.attacking = time.monotonic(), 0.0
        self.generator = torch.Generator().manual_seed(config.seed)
        self.batch = config.batch or batch_size(subject, config.memory)
        self.standstill = Standstill()
        self.linear = LPSearch(subject, clock, try_points)
        self.subproblems = 0
        self.undecided = 0
        self.in_hand = float("inf")  # the lowest bound among the nodes taken out of the queue
        self.found: Counterexample | None = None

    def loop(self) -> Outcome:
        nodes, duals = self.subject.roots()
        self._process(nodes, duals, torch.zeros(len(nodes), dtype=torch.int64), self.config.root)
        each = 0.0  # seconds for a parent of the last batch
        while len(self.queue) and self.found is None:
            begin = time.monotonic()
            size = min(len(self.queue), max(1, self.batch // 2))
            self.clock.check()
            in_time = self.clock.remaining / (1.1 * each) if each else size
            if in_time < 1:
                raise OutOfTime
            size = int(min(size, in_time))
            parents = self.queue.pop(size)
            self.in_hand = float(parents.bound[0])
            self._probe(parents)
            worst = self._expand(parents)
            self.in_hand = float("inf")
            last = time.monotonic() - begin
            each = last / size
            self.clock.report("search", subproblems=self.subproblems, open_=len(self.queue), lowest=self.queue.lowest)
            self.early = self.early.observed(worst - float(parents.bound[0]))
            if not len(self.queue) or self.found is not None:
                break
            if self._proved_by_programs():
                return Outcome(proved=True, subproblems=self.subproblems, lower_bound=float("inf"))
            if self.found is not None:
                break
            if self.config.patience < float("inf") and self._takes_longer(self.config.patience, size, last):
                return replace(self.outcome(), slow=True)
            if self.config.early_stop and self._takes_longer(self.clock.remaining, size, last):
                return self.outcome(timed_out=True, reason="stopped early: not expected to end in time")
        return self.outcome(proved=self.found is None and not self.undecided and not len(self.queue))

    def outcome(self, *, proved: bool = False, timed_out: bool = False, reason: str = "") -> Outcome:
        if self.undecided and not (timed_out or self.found):
            reason = f"{self.undecided} fully split subproblems are within rounding of the threshold"
        return Outcome(
            proved=proved,
            counterexample=self.found,
            subproblems=self.subproblems,
            lower_bound=min(self.queue.lowest, self.in_hand, 0.0 if self.undecided else float("inf")),
            timed_out=timed_out,
            reason=reason,
        )

    def _proved_by_programs(self) -> bool:
        """At a standstill, search by linear programs instead, for as long again as the search has taken so far.

        These begin at the root, so that their proof does not need what this search has proved or left undecided.
        """
        if not self.standstill.due(self.subproblems):
            return False
        lowest, begin, before = self.queue.lowest, time.monotonic(), self.linear.subproblems
        stands = self.standstill.reached(lowest, self.subject.margin)
        self.standstill = self.standstill.observed(self.subproblems, lowest)
        if not (stands and self.linear.suits()):
            return False
        try:
            self.linear.run(max(1.0, begin - self.begin))
        finally:
            self.begin += time.monotonic() - begin
            self.subproblems += self.linear.subproblems - before
        self.found = self.linear.found
        return self.linear.proved

    def _expand(self, parents: Batch) -> float:
        """Split, bound and requeue; the lowest bound among the children of the worst parent."""
        n = len(parents)
        signs = parents.nodes.signs
        assert signs is not None
        both = torch.arange(n).repeat_interleave(2)
        signs = signs[both]
        signs[torch.arange(2 * n), parents.split[both]] = torch.tensor([1, -1], dtype=torch.int8).repeat(n)
        nodes = Nodes(parents.nodes.region[both], signs)
        ascent = replace(self.config.ascent, iterations=self.policy.count)
        bound = self._process(nodes, parents.duals[both], parents.depth[both] + 1, ascent, parents.bound[both])
        self.policy = self.policy.rested()
        return float(bound[:2].min())

    def _process(
        self, nodes: Nodes, duals: Duals, depth: Tensor, ascent: Ascent, floor: Tensor | None = None
    ) -> Tensor:
        """Bound nodes, drop the proved ones, decide leaves, look for counterexamples, requeue the rest."""
        self.clock.check()
        with self.clock.phase("bounding"):
            bounded = self._polish(nodes, self.subject.bound(nodes, duals, ascent), ascent)
            bound = bounded.bound if floor is None else torch.maximum(bounded.bound, floor)
            self.subproblems += len(nodes)
            proved = self._proved(nodes, bounded)
        rest = torch.nonzero(~proved).flatten()
        if not len(rest):
            return bound
        with self.clock.phase("attack"):
            lowest = rest[bounded.bound[rest].argsort()[:ATTACK_POINTS]]
            self.found = self._attack(nodes.region[lowest], bounded.x[lowest])
        if self.found is not None:
            return bound
        open_ = open_neurons(self.subject.context, nodes[rest]).any(1)
        for i in rest[~open_].tolist():
            if self.found is None:
                self._decide_leaf(nodes, i)
        rest = rest[open_]
        if len(rest) and self.found is None:
            self._requeue(nodes[rest], bounded, rest, bound, depth)
        return bound

    def _attack(self, region: Tensor, x: Tensor) -> Counterexample | None:
        """Look for a counterexample at the relaxations' minimisers and, for a share of the time, around them."""
        complete = self.subject.form.full_input
        found = self.try_points(complete(x.double()))
        begin = time.monotonic()
        if (
            found is not None
            or self.subject.kernel is None
            or self.attacking >= self.config.attack_share * (begin - self.begin)
        ):
            return found
        region, x = self._with_random_points(region, x)
        x = descend(self.subject.kernel, self.subject.fast_specification, region, x)
        found = self.try_points(complete(x.double()))
        self.attacking += time.monotonic() - begin
        return found

    def _with_random_points(self, region: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Where there are few minimisers, as near the root, points drawn from the box as well."""
        form = self.subject.fast_form
        count = max(0, ATTACK_POINTS - len(x))
        drawn = torch.rand(count, form.inputs, generator=self.generator)
        more = form.box_lower + (form.box_upper - form.box_lower) * drawn
        return torch.cat([region, region[torch.arange(count) % len(region)]]), torch.cat([x, more])

    def _polish(self, nodes: Nodes, bounded: Bounded, ascent: Ascent) -> Bounded:
        """More iterations for nodes that splitting cannot help.

        Splitting removes intercept terms from the dual bound. Where all of them together would not lift it above 0, the
        duals are what is far from optimal.
        """
        if nodes.signs is None:
            return bounded
        gap = self.subject.fast_relaxation.intercept * bounded.lam.clamp_min(0.0) * (nodes.signs == 0)
        stuck = torch.nonzero(bounded.bound + gap.sum(1) < 0).flatten()
        if not len(stuck):
            return bounded
        more = replace(ascent, iterations=POLISH * ascent.iterations)
        bounded.put(stuck, self.subject.bound(nodes[stuck], bounded.duals[stuck], more))
        return bounded

    def _proved(self, nodes: Nodes, bounded: Bounded) -> Tensor:
        """Soundly positive. # (nodes,) bool"""
        proved = torch.zeros(len(nodes), dtype=torch.bool)
        hopeful = torch.nonzero(bounded.bound > 0).flatten()
        if len(hopeful):
            proved[hopeful] = self.subject.sound_bounds(nodes[hopeful], bounded.duals[hopeful]) > 0
        refused = hopeful[~proved[hopeful]]
        if len(refused):  # the ascent did not fill in λ̄ and x of nodes that it took for proved
            again = self.subject.bound(nodes[refused], bounded.duals[refused], Ascent(iterations=0), torch.inf)
            bounded.put(refused, again)
        return proved

    def _decide_leaf(self, nodes: Nodes, i: int) -> None:
        self.clock.check()
        with self.clock.phase("leaves"):
            signs = None if nodes.signs is None else nodes.signs[i]
            decision = decide_leaf(self.subject, int(nodes.region[i]), signs, self.clock.remaining)
            if decision.proved:
                return
            if decision.point is not None:
                self.found = self.try_points(decision.point[None])
            self.undecided += self.found is None

    def _requeue(self, nodes: Nodes, bounded: Bounded, rest: Tensor, bound: Tensor, depth: Tensor) -> None:
        with self.clock.phase("branching"):
            duals = bounded.duals[rest]
            split = self.rule.choose(Bounding(nodes, duals, bounded.lam[rest], bounded.bound[rest]))
            open_ = open_neurons(self.subject.context, nodes)
            split = torch.where(open_.gather(1, split[:, None])[:, 0], split, open_.int().argmax(1))
        with self.clock.phase("queue"):
            self.queue.push(Batch(nodes, duals, bound[rest], depth[rest], split))

    def _probe(self, parents: Batch) -> None:
        """Ask the policy whether more iterations would pay, on the first picked node."""
        policy = self.policy
        if not policy.wants_probe(int(parents.depth[0])):
            return
        with self.clock.phase("bounding"):
            first = torch.tensor([0])
            nodes, duals = parents.nodes[first], parents.duals[first]
            counts = (policy.count, policy.next_count)
            few, many = (
                float(self.subject.bound(nodes, duals, replace(self.config.ascent, iterations=c)).bound) for c in counts
            )
            gain = self.early.gain or 0.0
            self.policy = policy.probed(more_gain=many - few, branch_gain=max(gain, 0.0))

    def _takes_longer(self, remaining: float, size: int, seconds: float) -> bool:
        """Whether the search is expected to need more than some seconds, by its last batch."""
        return self.early.hopeless(
            lowest=self.queue.lowest,
            queue=len(self.queue),
            batch=size,
            batch_seconds=seconds,
            remaining=remaining,
        )


def batch_size(subject: Subject, memory: int) -> int:
    """Nodes bounded at once: the working set of a pass in the outer cache, all of it in an eighth of the memory,
    but not so few that most of the time is spent between them."""
    width = subject.form.inputs + subject.form.neurons
    in_cache = 2**22 // max(width, 1)
    in_memory = memory // 8 // (64 * max(width, 1))
    return max(2, min(1024, in_cache, max(64, in_memory)))

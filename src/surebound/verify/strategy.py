"""How a verification goes about it: every number that was chosen by measuring, in one frozen value.

`default()` is what `surebound.verify` does, `paper()` what the paper did; `profile` has them by name. No verdict
depends on these numbers, only the time until it is there. They were chosen on the instances of benchmarks/
(docs/decisions.md says which and how).
"""

from dataclasses import dataclass, field

from surebound.bounds.beta_crown import Ascent
from surebound.bounds.bounding import LayerBounding
from surebound.errors import UsageError
from surebound.verify import SEARCHES


@dataclass(frozen=True, kw_only=True)
class Iterations:
    """How many dual iterations a node gets: more while they pay (De Palma 2021, section 5.1.2)."""

    count: int = 5  # to begin with
    cap: int = 100
    probe_depth: int = 4  # of the node on which more are tried
    rest: int = 20  # batches to wait after more did not pay


@dataclass(frozen=True, kw_only=True)
class Refinement:
    """How a layer is bounded by splitting those before it."""

    rounds: int = 6  # of splitting the worse half of a bound's parts
    start: Ascent = Ascent(iterations=5, lr=1.0)
    ascent: Ascent = Ascent(iterations=3, lr=0.2)

    @property
    def parts(self) -> int:
        """The most parts that a bound may have: 1, 2, 3, 5, 8, 12, …

        >>> Refinement(rounds=5).parts
        12
        """
        count = 1
        for _ in range(self.rounds):
            count += (count + 1) // 2
        return count


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """Everything that may be tuned."""

    # The root
    layers: LayerBounding = field(default_factory=LayerBounding)  # bounds on the layers, once for a box
    root: Ascent = Ascent(iterations=20)  # and on the property, before any split
    matter_shares: tuple[float, ...] = (0.8, 0.9)  # of the cost: large networks first bound the neurons that make it up
    matter_time: float = 0.3  # of the remaining time: no more layers are bounded if that would take longer
    order_time: float = 0.8  # of the remaining time, for layers in their order where learning what matters costs more
    folded_limit: int = 2**27  # numbers in a folded form's matrices, 1 GiB in float64; beyond, the graph form is used

    # What is split
    input_limit: int = 20  # varying inputs up to which `auto` may bisect the input box
    neuron_limit: int = 64  # ambiguous neurons beyond which it does so
    mixture: bool = True  # `auto` splits neurons by the mixture of rules, else by UPB

    # The search over neurons
    ascent: Ascent = Ascent()  # of every node; `iterations` says how often
    iterations: Iterations = Iterations()
    planes_after: int | None = 500  # subproblems of a region before it gets planes above its neurons; None: no planes
    planes: Ascent = Ascent(iterations=40)  # by which they are found
    planes_gain: float = 0.05  # the share of what the root's bound lacks that they must gain to be kept
    planes_limit: int = 2**24  # numbers in the forms of all regions that have planes
    polish: int = 4  # times as many iterations for a node whose duals are the bottleneck; 1: none
    batch: int | None = None  # nodes bounded at once; None: by memory and cache

    # Looking for counterexamples
    first_attack: float = 0.05  # share of the time for the attack before anything else
    first_attack_seconds: tuple[float, float] = (1.0, 10.0)  # its least and most seconds
    later_attacks: float = 0.05  # share of the time for attacks on the network during the search
    later_attacks_after: float = 5.0  # seconds of the search before they begin
    from_minimisers: bool = False  # whether they start at the relaxations' minimisers, else anywhere in the box
    descents: float = 0.1  # of the search, for attacks on the folded network from the relaxations' minimisers
    points: int = 64  # looked at, of a batch
    looks: float = 0.1  # of a search over inputs, for looking at them

    # A search that is slow
    patience: float = 10.0  # seconds that it may be expected to take before layers are bounded more tightly
    refinements: tuple[Refinement, ...] = (Refinement(rounds=2), Refinement(rounds=6), Refinement(rounds=10))
    refine_share: float = 0.4  # of the remaining time, for one of them
    refine_gain: float = 0.2  # a refinement that gains a smaller share of the root bound's distance to 0 is the last

    # A search that stands still
    programs: bool = True  # linear programs take turns with it
    standstill: int = 500  # subproblems before it is asked, then again whenever they have doubled
    standstill_share: float = 0.01  # a rise of the lowest bound by less than this share of its distance to 0 is none
    program_entries: int = 2**16  # in the matrices of a folded form, up to which its programs take milliseconds

    # A search that others take part in
    alone: float = 2.0  # seconds that it goes on alone first; starting a worker takes one
    alone_batches: int = 6  # batches that it goes on alone at least, after which it is known whether it is slow
    trial: float = 1.0  # seconds with all threads, and then with one, to see whether workers may be faster
    trial_gain: float = 1.1  # times as fast as threads that workers must be expected to be
    trial_workers: float = 3.0  # seconds with workers, to see whether they are faster

    # Proofs
    merging: float = 0.05  # the share of nodes that are bounded again, to write one leaf in place of two

    # The search over inputs
    remembered: int = 4096  # neurons up to which a box keeps its layers' bounds for its parts
    symbols: int = 256  # of a zonotope, up to which it is not asked whether fewer would do
    symbol_trial: int = 4  # times as many or as few are tried, on the lowest box
    symbols_of_a_box: float = 100.0  # as many cost what the rest of bounding a box does
    symbol_wait: int = 4  # boxes between two trials, doubled by each that changes nothing
    box_elements: int = 2**19  # of the largest tensor in a batch of boxes, which then stays in the cache


def default() -> Strategy:
    """What surebound does."""
    return Strategy()


def paper(branching: str = "upb") -> Strategy:
    """What the paper did with a branching rule (its appendix on the experimental setting), and nothing that came later.

    600 subproblems are split and 1,200 bounded at once, with FSB 500 and 1,000.
    """
    return Strategy(
        layers=LayerBounding(slopes=("fastlin", "crown"), ascent=Ascent(iterations=5, lr=1.0, decay=0.98)),
        ascent=Ascent(lr=0.1, decay=0.98),
        iterations=Iterations(count=2, cap=100, probe_depth=4),
        polish=1,
        batch=1000 if branching == "fsb" else 1200,
        mixture=False,
        input_limit=-1,
        from_minimisers=True,
        descents=0.0,
        refinements=(),
        programs=False,
        planes_after=None,
    )


def profile(search: str, branching: str = "auto") -> Strategy:
    """A profile by its name."""
    if search not in SEARCHES:
        raise UsageError(f"unknown search '{search}'; expected one of: {', '.join(SEARCHES)}")
    if search == "default":
        return default()
    if branching == "mixture":
        raise UsageError("the paper's search has no branching 'mixture'; expected auto, upb, fsb, sr or input")
    return paper(branching)

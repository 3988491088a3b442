"""Verifiers with a bug each, asked about properties that are violated at a known point: no proof of theirs may pass.

    python tests/lying.py --minutes 10

Attacks are off and no counterexample is ever confirmed, so nothing but its bounds keeps a verifier from answering
`unsat`. For each bug it is counted how often that came out, with a proof; the checker has to refuse every one.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exact import exact_output
from networks import Builder, random_fc
from proving import known, prove
from verifications import ALONE, prop, region

from surebound.bounds.beta_crown import Slopes
from surebound.check import check
from surebound.network.graph import Network
from surebound.network.linear import Linear, Shift
from surebound.problem import Box, Property, round_down
from surebound.verify.confirm import Confirm
from surebound.verify.strategy import Iterations, Refinement, Strategy
from surebound.verify.subject import Subject
from surebound.verify.tree import Leaf, Tree

Patch = pytest.MonkeyPatch
SMALL, LARGE = 1e-6, 1e-1  # by how much a property is violated, at least
LAZY = replace(
    ALONE, patience=-1.0, iterations=Iterations(count=1), batch=2, refinements=(Refinement(rounds=2),), refine_gain=-9.0
)


# ---- false claims


def violated(seed: int, depth: float) -> tuple[Network, Property]:
    """A row of a small network, whose value at a point of the box is below 0 by a depth, in exact arithmetic."""
    network, box, row, _, x = known("fc" if seed % 2 else "wide", seed)
    return network, false_at(network, box, row, np.clip(x, box.lower, box.upper), depth)


def cancelling(seed: int) -> tuple[Network, Property]:
    """Large terms that cancel, at one point: any answer is a matter of rounding."""
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (3, 8, 8, 2))
    big = tuple(
        replace(node, op=replace(node.op, weight=node.op.weight * 2.0**24)) if isinstance(node.op, Linear) else node
        for node in network.nodes
    )
    network = replace(network, nodes=big)
    x = rng.normal(size=3)
    return network, false_at(network, Box(x, x), rng.normal(size=2), x, 0.0)


def grazing(seed: int) -> tuple[Network, Property]:
    """x̂ = |x₁| + … + |xₙ| − n + δ reaches above 0 by δ < 1e-9, and y = −K relu(x̂) shows it."""
    inputs, delta, gain = 1 + seed % 3, 2.0 ** -(31 + seed % 2), 2.0 ** (21 + seed % 4)
    build = Builder(np.random.default_rng(seed), (inputs,))
    both = torch.cat([torch.eye(inputs), -torch.eye(inputs)]).double()
    node = build.relu(build.add(Linear(both), 0))
    one = torch.ones(1, 2 * inputs, dtype=torch.float64)
    node = build.add(Linear(one, torch.tensor([-float(inputs)], dtype=torch.float64)), node)
    node = build.relu(build.add(Shift(torch.tensor([delta], dtype=torch.float64)), node))  # −n + δ is no float32
    build.add(Linear(torch.tensor([[-gain]], dtype=torch.float64)), node)
    network, ends = build.network(), np.ones(inputs)
    return network, false_at(network, Box(-ends, ends), np.ones(1), ends, delta * gain / 2)


def false_at(network: Network, box: Box, row: Any, x: Any, depth: float) -> Property:
    value = sum(Fraction(c) * y for c, y in zip(row.tolist(), exact_output(network, x), strict=True))
    constant = round_down(-value - Fraction(depth))
    assert value + Fraction(constant) <= -Fraction(depth) and (box.lower <= x).all() and (x <= box.upper).all()
    return prop(network, region(box, row, constant))


# ---- bugs


def _modules(*names: str) -> list[Any]:
    return [import_module(f"surebound.{name}") for name in names]


def no_error_terms(patch: Patch) -> None:
    """γₙ = u = 0, and no room for the checker's own."""
    for module in _modules("bounds.centred", "bounds.graph_form", "bounds.enclosure", "bounds.folded"):
        patch.setattr(module, "gamma", lambda n: 0.0)
    patch.setattr("surebound.bounds.enclosure.U", 0.0)
    for module in _modules("verify.rows", "verify.record", "verify.spaces.inputs", "proof.record"):
        patch.setattr(module, "ROOM", 0.0)


def beta_turned(patch: Patch) -> None:
    """x̂ ≥ 0 is taken for x̂ ≤ 0 and the other way round, where multipliers are chosen and where they prove."""
    true = Slopes.of

    def of(relaxation: Any, signs: Any, **more: Any) -> Slopes:
        found = true(relaxation, signs, **more)
        return found if found.sign is None else replace(found, sign=-found.sign)

    patch.setattr(Slopes, "of", staticmethod(of))
    patch.setattr(Subject, "kernel", property(lambda self: None))  # which has formulas of its own


def child_dropped(patch: Patch) -> None:
    """The second half of what is split is not looked at."""
    take = Tree._take
    patch.setattr(Tree, "_take", lambda self, fresh: take(self, fresh[::2] if _split(fresh) else fresh))


def child_taken_for_proved(patch: Patch) -> None:
    """The second half is not looked at, and written down as proved by the duals that it began with."""
    take = Tree._take

    def taken(self: Tree, fresh: Any) -> float:
        if not _split(fresh):
            return take(self, fresh)
        if self.sink is not None:
            self.sink.closed(replace(fresh[1::2], state=_wide(fresh[1::2].state)), "bound")
        return take(self, fresh[::2])

    patch.setattr(Tree, "_take", taken)


def _split(fresh: Any) -> bool:
    return bool((fresh.depth > 0).any())


def _wide(state: dict[str, Any]) -> dict[str, Any]:
    row = {"row": torch.zeros(len(next(iter(state.values()))), dtype=torch.int64)}
    return row | {k: v if k == "signs" else v.float() if v.dtype == torch.float16 else v for k, v in state.items()}


def layers_too_tight(amount: float) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        (module,) = _modules("proof.record")

        def less(found: Any, known: Any, room: float) -> Any:
            low, high = found[0] + amount, found[1] - amount
            return (low, high), (low > known[0], high < known[1])

        patch.setattr(module, "_less", less)

    return apply


def sound_bounds_are_one(patch: Patch) -> None:
    patch.setattr(Subject, "sound_bounds", lambda self, nodes, duals: torch.ones(len(nodes), dtype=torch.float64))


def leaves_always_proved(patch: Patch) -> None:
    (module,) = _modules("verify.spaces.neurons")

    def decide(subject: Any, region: int, sign: Any, seconds: float) -> Leaf:
        beta = torch.zeros_like(sign, dtype=torch.float64)
        return Leaf(True, duals=subject.multipliers(torch.ones(1).double(), subject.relaxation.lower_slope, beta))

    patch.setattr(module, "decide_leaf", decide)


def rows_too_high(patch: Patch) -> None:
    """Screening adds 1 to every bound."""
    (module,) = _modules("verify.rows")
    for name in ("fixed_rows", "linear_rows"):
        true = getattr(module, name)
        patch.setattr(module, name, lambda *args, true=true, **more: true(*args, **more) + 1.0)


def boxes_too_high(patch: Patch) -> None:
    """Bounds over parts of a box are too high by 1."""
    (module,) = _modules("verify.spaces.inputs")
    best = module.InputSpace._best_rows

    def higher(self: Any, enclosure: Any, regions: Any) -> Any:
        found = best(self, enclosure, regions)
        return replace(found, bound=found.bound + 1.0)

    patch.setattr(module.InputSpace, "_best_rows", higher)


class Bug:
    """How to make it, and what it is asked."""

    def __init__(
        self, make: Callable[[Patch], None], ask: Callable[[int], tuple[Network, Property]], **more: Any
    ) -> None:
        self.make, self.ask = make, ask
        self.branching: str = more.get("branching", "upb")
        self.strategy: Strategy = more.get("strategy", ALONE)


BUGS = {
    "no error terms": Bug(no_error_terms, cancelling),
    "β's sign turned": Bug(beta_turned, lambda seed: violated(seed, SMALL)),
    "a child dropped": Bug(child_dropped, lambda seed: violated(seed, LARGE)),
    "a child taken for proved": Bug(child_taken_for_proved, lambda seed: violated(seed, SMALL)),
    "a child taken for proved, boxes bisected": Bug(
        child_taken_for_proved, lambda seed: violated(seed, SMALL), branching="input"
    ),
    "layers' bounds too tight by 1e-9": Bug(layers_too_tight(1e-9), grazing),
    "layers' bounds too tight by 1e-3": Bug(layers_too_tight(1e-3), grazing),
    "refined layers' bounds too tight by 1e-1": Bug(
        layers_too_tight(1e-1), lambda seed: violated(seed, SMALL), branching="auto", strategy=LAZY
    ),
    "every sound bound is 1": Bug(sound_bounds_are_one, lambda seed: violated(seed, LARGE)),
    "every leaf is proved": Bug(leaves_always_proved, lambda seed: violated(seed, SMALL)),
    "screening's bounds too high by 1": Bug(rows_too_high, lambda seed: violated(seed, LARGE)),
    "bounds of boxes too high by 1": Bug(boxes_too_high, lambda seed: violated(seed, LARGE), branching="input"),
}


def offer(folder: Path, name: str, seed: int, seconds: float = 10.0) -> str:
    """What came of one false claim: nothing, or a proof that the checker refused. None may be accepted."""
    bug = BUGS[name]
    network, question = bug.ask(seed)
    with Patch.context() as patch:
        patch.setattr(Confirm, "__call__", lambda *_: None)
        bug.make(patch)
        try:
            done = prove(folder, network, question, bug.branching, bug.strategy, timeout=seconds)
        except ValueError as error:  # a tree that is not whole is not written
            assert "neither split nor closed" in str(error)
            return "not written"
    if done.verdict.status != "unsat":
        return "no answer"
    found = check(*done.files)
    assert not found.valid, f"{name}, seed {seed}: a proof of a false claim was accepted ({folder})"
    return "refused"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tallies = {name: Counter[str]() for name in BUGS}
    end, seed = time.monotonic() + 60 * args.minutes, args.first
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for name in BUGS:
                tallies[name][offer(Path(folder), name, seed, 2.0)] += 1
            seed += 1
    fates = ("no answer", "not written", "refused", "accepted")
    print(f"| bug | false claims | {' | '.join(fates)} |\n|---{'|--:' * (1 + len(fates))}|")
    for name, tally in tallies.items():
        print(f"| {name} | {tally.total()} | {' | '.join(str(tally[fate]) for fate in fates)} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Bounds on layers by splitting: samples, exact ranges by MILPs, and whole verifications that refine on the way."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from forms import folded
from minima import milp_minimum
from networks import Builder, pre_activations, random_box, random_conv, random_fc, random_pool, random_residual, sample
from one_by_one import U, add_one_by_one, losing_network
from verifications import model

from surebound.attacks.pgd import PGD
from surebound.bounds.beta_crown import Ascent
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.planet_lp import milp
from surebound.bounds.root import LayerBounding
from surebound.network.graph import Network
from surebound.network.linear import Linear
from surebound.network.model import Model
from surebound.problem import Box, Property, Region
from surebound.verify import search_stages
from surebound.verify.clock import Clock
from surebound.verify.confirm import Confirm
from surebound.verify.node import Nodes
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.spaces.layers import Rounds, refine
from surebound.verify.strategy import Iterations, Refinement, Strategy

MAKERS: dict[str, tuple[Callable[[np.random.Generator], Network], float]] = {
    "fc": (lambda rng: random_fc(rng, (4, 10, 10, 8, 3)), 1.0),
    "conv": (random_conv, 0.5),
    "residual": (random_residual, 0.5),
    "pool": (random_pool, 0.5),
}


def bounded(network: Network, lower: torch.Tensor, upper: torch.Tensor) -> Enclosure:
    """With the bounds that refinement starts from."""
    return folded(network, lower, upper, LayerBounding()).enclosure


def refined(
    network: Network, lower: torch.Tensor, upper: torch.Tensor, rounds: int, seconds: float = 60.0
) -> Enclosure:
    known = bounded(network, lower, upper)
    enclosure = Enclosure(network, lower, upper)
    refine(enclosure, known, Refinement(rounds=rounds), Clock(None), seconds)
    return enclosure


@pytest.mark.parametrize("rounds", [0, 1, 4])
@pytest.mark.parametrize("name", MAKERS)
def test_layers_hold_all_samples_and_are_tighter(name: str, rounds: int, rng: np.random.Generator) -> None:
    make, radius = MAKERS[name]
    network = make(rng)
    lower, upper = random_box(rng, network, radius=radius)
    before, after = bounded(network, lower, upper), refined(network, lower, upper, rounds)
    widths = []
    for k, values in enumerate(pre_activations(network, sample(rng, lower[0], upper[0], 4000))[:-1]):
        low, high = after.layer(k)
        assert (values >= low).all()
        assert (values <= high).all()
        coarse_low, coarse_high = before.layer(k)
        assert (low >= coarse_low).all()
        assert (high <= coarse_high).all()
        widths.append(float((high - low).sum() / (coarse_high - coarse_low).sum()))
    assert min(widths) < (0.98 if rounds == 4 else 1.0 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_exact_ranges_lie_inside_and_many_splits_reach_them(seed: int) -> None:
    """With more splits than neurons, every part is linear but for its last few; a narrow gap is left by the ascent."""
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (3, 5, 5, 4, 2))
    lower, upper = random_box(rng, network, radius=1.5)
    exact = milp(network, lower, upper)
    coarse = bounded(network, lower, upper)
    gaps = {}
    for name, enclosure in {
        "none": coarse,
        "some": refined(network, lower, upper, 2),
        "all": refined(network, lower, upper, 9),
    }.items():
        gap = 0.0
        for k in range(len(network.layers)):
            low, high = enclosure.layer(k)
            assert (low <= exact.lower[k] + 1e-6).all()
            assert (high >= exact.upper[k] - 1e-6).all()
            both = (exact.lower[k] < 0) & (exact.upper[k] > 0)  # others are bounded no further once that is known
            gap += float((exact.lower[k] - low + high - exact.upper[k])[both].sum())
        gaps[name] = gap
    assert gaps["all"] <= gaps["some"] <= gaps["none"]
    assert gaps["all"] <= 0.5 * gaps["none"] + 1e-9


def test_every_part_is_split_or_kept() -> None:
    """Of two rows with three and two parts, the lower half of each row's are split; the others stay."""
    row, bound = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([-3.0, -1.0, -2.0, -5.0, -4.0], dtype=torch.float64)
    rounds = Rounds(2)
    rounds.push(replace(Nodes.roots(row, {}, torch.float64), bound=bound))
    assert rounds.pop(1).bound.tolist() == [-3.0, -2.0, -5.0]
    assert len(rounds) == 2
    assert rounds.lowest == -4.0
    assert rounds.nodes is not None
    assert rounds.nodes.bound.tolist() == [-1.0, -4.0]


def test_without_time_the_bounds_stay(rng: np.random.Generator) -> None:
    network = random_fc(rng, (4, 10, 10, 3))
    lower, upper = random_box(rng, network, radius=1.0)
    before, after = bounded(network, lower, upper), refined(network, lower, upper, 3, seconds=-1.0)
    for k in range(len(network.layers)):
        assert all(torch.equal(a, b) for a, b in zip(before.layer(k), after.layer(k), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_verdicts_equal_the_milp_when_every_search_is_slow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counted(*args: object) -> FoldedForm:
        calls.append(1)
        return refine(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(search_stages, "refine", counted)
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (4, 10, 10, 2))
    lower, upper = random_box(rng, network, radius=2.0)
    box, row = Box(lower.flatten().numpy(), upper.flatten().numpy()), rng.normal(size=2)
    least = milp_minimum(network, box, row, 0.0).value
    lazy = Strategy(
        root=Ascent(iterations=0),
        iterations=Iterations(count=1),
        batch=2,
        patience=-1.0,
        refinements=(Refinement(rounds=1), Refinement(rounds=2)),
    )
    options = Options(timeout=60.0, quick_attack=PGD(steps=1, restarts=1), strategy=lazy)
    for offset, status in ((1e-3, "unsat"), (-1e-3, "sat")):
        part = Region(box=box, on_output=row[None], constant=np.array([offset - least]), strict=np.zeros(1, dtype=bool))
        verdict = verify(model(network), Property((part,), 4, 2), options)
        assert verdict.status == status
    assert calls


@pytest.mark.parametrize("rounds", [0, 2])
def test_refined_layers_contain_the_exact_values(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """∓ (x + 1024 u x − 1) for x from 1 on: added up one by one, float64 loses all but x − 1."""
    count, width = 2**10, 2.0**-30
    network = losing_network(count)
    ends = torch.ones(1, 1, dtype=torch.float64), torch.full((1, 1), 1.0 + width, dtype=torch.float64)
    known = Enclosure(network, *ends)
    known.extend(len(network.nodes) - 1)
    add_one_by_one(monkeypatch)
    enclosure = Enclosure(network, *ends)
    refine(enclosure, known, Refinement(rounds=rounds), Clock(None), 60.0)
    low, high = (end[0].tolist() for end in enclosure.layer(1))
    least = count * Fraction(U)
    most = Fraction(1 + width) * (1 + least) - 1
    assert Fraction(low[0]) <= -most < -least <= Fraction(high[0])
    assert Fraction(low[1]) <= least < most <= Fraction(high[1])
    assert high[0] - low[0] < 2 * width


def test_a_refined_bound_just_below_zero_settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a counterexample that is never replayed."""
    monkeypatch.setattr(Confirm, "__call__", lambda *_: None)
    rng = np.random.default_rng(0)
    network = random_fc(rng, (4, 10, 10, 2))
    lower, upper = random_box(rng, network, radius=2.0)
    box, row = Box(lower.flatten().numpy(), upper.flatten().numpy()), rng.normal(size=2)
    least = milp_minimum(network, box, row, 0.0).value
    lazy = Strategy(batch=2, patience=-1.0, refinements=(Refinement(rounds=6),))
    options = Options(timeout=3.0, quick_attack=None, strategy=lazy)  # time to be slow in, also on a busy machine
    part = Region(box=box, on_output=row[None], constant=np.array([-1e-6 - least]), strict=np.zeros(1, dtype=bool))
    silent = Model(network, lambda x: np.full((len(x), 2), np.nan, dtype=np.float32), "silent")
    assert verify(silent, Property((part,), 4, 2), options).status != "unsat"


def test_parts_that_cannot_be_split_count() -> None:
    """½ − relu(x) over [−1, 1]: once the one neuron is split, both halves are all there is, and hold −½ and ½."""
    build = Builder(np.random.default_rng(0), (1,))
    one = torch.ones(1, 1, dtype=torch.float64)
    hidden = build.relu(build.add(Linear(one), 0))
    node = build.relu(build.add(Linear(-one, torch.tensor([0.5], dtype=torch.float64)), hidden))
    build.add(Linear(one), node)
    low, high = refined(build.network(), -one, one, 3).layer(1)
    assert -0.5 - 1e-12 <= low.item() <= -0.5
    assert 0.5 <= high.item() <= 0.5 + 1e-12

"""Bounds computed again in rational arithmetic: claims are confirmed, and a claim that is too high is caught."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import one_direction
import pytest
import torch
from networks import random_conv, random_fc, random_residual
from one_by_one import add_one_by_one

from surebound.bounds import BOUNDS
from surebound.bounds.audit import WrongBound, auditing
from surebound.bounds.beta_crown import Duals, Splits
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import LayerBounding, fold_network
from surebound.bounds.rounding import Counts
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Box, Property, Region, Verdict
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.subject import Subject, specify


def repeated_input(n: int) -> Network:
    """f(x) = −n·2⁻⁵⁴·x, by a node that reads the input n times."""
    build = Builder((1,))
    return build.build(build.linear(build.concat([0] * n, 0), -np.full((1, n), 2.0**-54)))


def region_of(n: int) -> Region:
    """x + f(x) ≤ T, which is so at the lower end of the box, by less than adding a coefficient n times rounds off."""
    low = Fraction("1.0000000001")
    bound = low * (1 - Fraction(3, 4) * n * Fraction(1, 2**54))
    return Region(
        box=Box(np.array([np.nextafter(float(low), 0)]), np.array([1.0001])),
        on_output=np.array([[1.0]]),
        constant=np.array([-float(bound)]),
        on_input=np.array([[1.0]]),
        strict=np.array([False]),
    )


def decide_repeated_input(n: int, branching: str) -> Verdict:
    network = repeated_input(n)
    model = Model(network, lambda x: network.forward(torch.from_numpy(x).double()).numpy(), "repeated input")
    timeout = 1.0 if branching == "input" else 60.0  # bisecting goes on until then
    options = Options(branching=branching, quick_attack=None, timeout=timeout)
    return verify(model, Property((region_of(n),), 1, 1), options)


@pytest.mark.slow
@pytest.mark.parametrize("n", [512, 4096])
@pytest.mark.parametrize("branching", ["auto", "input"])
def test_a_coefficient_that_is_added_to_many_times(n: int, branching: str) -> None:
    with auditing() as audit:
        assert decide_repeated_input(n, branching).status != "unsat"
    assert audit.claims > 0


@pytest.mark.slow
@pytest.mark.parametrize("n", [1024, 30_000, 2**16])
def test_a_coefficient_that_is_added_to_in_both_forms(n: int) -> None:
    network, region = repeated_input(n), region_of(n)
    enclosure = Enclosure(network, *(torch.from_numpy(end)[None] for end in (region.box.lower, region.box.upper)))
    folded = fold_network(enclosure, LayerBounding(), lambda: None)
    assert folded is not None
    for form in (folded, GraphForm.at(enclosure, network.output)):
        subject = Subject(network, form, specify(form, [region]))
        assert float(subject.sound_bounds(*subject.roots())) < 0


@pytest.mark.slow
def test_a_claim_that_is_too_high_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Counts, "sums", lambda self, node: 0)
    with auditing(), pytest.raises(WrongBound, match=r"a dual bound of .* was claimed"):
        decide_repeated_input(4096, "auto")


@pytest.mark.parametrize("method", ["interval", "fastlin", "crown", "alpha-crown"])
@pytest.mark.parametrize("make", [lambda rng: random_fc(rng, (3, 6, 5, 2)), random_conv, random_residual])
def test_every_bound_is_confirmed(method: str, make: Callable[[np.random.Generator], Network]) -> None:
    rng = np.random.default_rng(3)
    network = make(rng)
    centre = torch.from_numpy(rng.normal(size=(1, *network.input_shape)))
    with auditing() as audit:
        BOUNDS[method](network, centre - 0.05, centre + 0.05)
    assert audit.claims >= 8 and audit.least >= 0


def test_a_split_counts_where_nothing_reads_the_neuron() -> None:
    """y = 0 relu(1 − x), and 1.25 − x ≥ 0.25 where 1 − x ≥ 0: the multiplier of the split is all of the proof."""
    build = Builder((1,))
    network = build.build(build.linear(build.relu(build.linear(0, -np.ones((1, 1)), np.ones(1))), np.zeros((1, 1))))
    box, one = Box(np.array([0.5]), np.array([2.0])), np.ones(1)
    region = Region(
        box=box, on_output=one[None], on_input=-one[None], constant=1.25 * one, strict=np.zeros(1, dtype=bool)
    )
    enclosure = Enclosure(network, *(torch.from_numpy(end)[None] for end in (box.lower, box.upper)))
    with auditing() as audit:
        form = GraphForm.at(enclosure, network.output)
        subject = Subject(network, form, specify(form, [region]))
        splits = Splits(torch.zeros(1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.int8))
        bound = subject.sound_bounds(splits, Duals(torch.zeros(1, 1), torch.ones(1, 1), None))
    assert 0.2 < float(bound) <= 0.25 and audit.claims > 0


def test_a_large_network_is_not_looked_at() -> None:
    with auditing(limit=10) as audit:
        decide_repeated_input(512, "auto")
    assert audit.claims == 0


@pytest.mark.slow
def test_roundings_that_all_go_one_way() -> None:
    """Twenty seconds of the fuzzer; `python tests/one_direction.py` runs it for longer."""
    cases, claims = one_direction.run(20.0, first_seed=0)
    assert cases > 0 and claims > 100


@pytest.mark.slow
def test_roundings_that_all_go_one_way_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in the order of summation that loses most, which no library chooses."""
    add_one_by_one(monkeypatch)
    cases, claims = one_direction.run(8.0, first_seed=1000)
    assert cases > 0 and claims > 100

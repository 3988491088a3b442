"""The sound test that decides: multipliers of the wrong sign, solvers that are wrong, rows that are mixed."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch
from networks import Builder
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Splits
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.result import LeafMultipliers
from surebound.bounds.root import LayerBounding, fold_network
from surebound.network.graph import Network
from surebound.network.linear import Linear
from surebound.problem import Box, Region
from surebound.verify import leaf
from surebound.verify.subject import Subject, specify

FORMS = ("folded", "graph")


def one_relu() -> Network:
    """y = relu(x)."""
    build = Builder(np.random.default_rng(0), (1,))
    one = Linear(torch.ones(1, 1, dtype=torch.float64))
    build.add(one, build.relu(build.add(one, 0)))
    return build.network()


def subject(key: str, rows: list[tuple[float, float, float]], low: float = -1.0, high: float = 1.0) -> Subject:
    """One region over [low, high] whose rows are a y + b x + c for y = relu(x)."""
    network = one_relu()
    ends = (torch.full((1, 1), end, dtype=torch.float64) for end in (low, high))
    enclosure = Enclosure(network, *ends)
    folded = fold_network(enclosure, LayerBounding(ascent=None), lambda: None)
    assert folded is not None
    form: Form = folded if key == "folded" else GraphForm.at(enclosure, network.output)
    a, b, c = (np.array(part) for part in zip(*rows, strict=True))
    region = Region(
        box=Box(np.array([low]), np.array([high])),
        on_output=a[:, None],
        on_input=b[:, None],
        constant=c,
        strict=np.zeros(len(c), dtype=bool),
    )
    return Subject(network, form, specify(form, [region]))


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def both(s: Subject, sign: int, pi: Tensor, alpha: float, beta: float) -> list[float]:
    """The two sound bounds at these multipliers of a region's rows and of its one neuron."""
    signs = torch.tensor([sign], dtype=torch.int8)
    nodes = Splits(torch.tensor([0]), signs[None])
    mix = pi[None] if len(pi) > 1 else None
    return [
        float(s.sound_bounds(nodes, Duals(double(alpha)[None], double(beta)[None], mix))),
        s.sound_leaf_bound(0, signs, {"mix": pi[None], "alpha": double(alpha)[None], "beta": double(beta)[None]}),
    ]


@pytest.mark.parametrize("key", FORMS)
def test_multipliers_of_the_wrong_sign_prove_nothing(key: str) -> None:
    """Each time some point of the split domain violates all rows, and unprojected multipliers would deny it."""
    # −y − 4 and −y − 5 are below 0 everywhere; their negatives are above it
    for bound in both(subject(key, [(-1.0, 0.0, -4.0), (-1.0, 0.0, -5.0)]), 0, double(-1.0, -1.0), 0.5, 0.0):
        assert bound <= 0
    # y − 2 x + ½ is −½ at x = 1, but 2 x − 2 x + ½ with α = 2
    for bound in both(subject(key, [(1.0, -2.0, 0.5)]), 0, double(1.0), 2.0, 0.0):
        assert bound <= -0.5
    # y + 2 x + 1 is −1 at x = −1, but −2 x + 2 x + 1 with α = −2
    for bound in both(subject(key, [(1.0, 2.0, 1.0)]), 0, double(1.0), -2.0, 0.0):
        assert bound <= -1.0
    # on x ≥ 0, y − 3 x + 1 = −2 x + 1 is −1 at x = 1, but −2 x + 1 − β x with β = −2 is 1
    for bound in both(subject(key, [(1.0, -3.0, 1.0)]), 1, double(1.0), 1.0, -2.0):
        assert bound <= -1.0
    # on x ≤ 0, y + 2 x + 1 = 2 x + 1 is −1 at x = −1, but 2 x + 1 + β x with β = −2 is 1
    for bound in both(subject(key, [(1.0, 2.0, 1.0)]), -1, double(1.0), 0.0, -2.0):
        assert bound <= -1.0


@pytest.mark.parametrize("key", FORMS)
def test_multipliers_of_the_right_sign_prove_what_they_should(key: str) -> None:
    """On x ≥ 0, y + x + ⅛ is at least ⅛, which β = 2 proves; on x ≤ 0, y − x + ⅛ is, which β = 1 proves.

    With the upper line, −y + 1⅛ ≥ ⅛ on x ≥ 0 and −y + ⅛ ≥ ⅛ on x ≤ 0.
    """
    for row, sign, alpha, beta in (
        ((1.0, 1.0, 0.125), 1, 1.0, 2.0),
        ((1.0, -1.0, 0.125), -1, 0.0, 1.0),
        ((-1.0, 0.0, 1.125), 1, 1.0, 0.0),
        ((-1.0, 0.0, 0.125), -1, 0.0, 0.0),
    ):
        for bound in both(subject(key, [row]), sign, double(1.0), alpha, beta):
            assert bound == pytest.approx(0.125, abs=1e-12)
            assert bound <= 0.125


@pytest.mark.parametrize("key", FORMS)
def test_what_is_lost_in_mixing_rows_is_paid_for(key: str) -> None:
    """2⁵³ − ¼ + ⅛ − 2⁵³ is below 0, but ⅛ or more where the quarter is lost in the large number."""
    for order in permutations((2.0**53, -0.25, 0.125, -(2.0**53))):
        for bound in both(subject(key, [(0.0, 0.0, c) for c in order]), 0, double(1.0, 1.0, 1.0, 1.0), 0.5, 0.0):
            assert bound <= -0.125


@pytest.mark.parametrize("key", FORMS)
def test_a_leaf_is_not_decided_by_the_solver(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever value and multipliers it has: on x ≥ 0, y − x ≤ 0 everywhere."""
    s, signs = subject(key, [(1.0, -1.0, 0.0)]), torch.tensor([1], dtype=torch.int8)
    assert not leaf.decide_leaf(s, 0, signs, 10.0).proved
    for pi, beta in ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (-1.0, -1.0), (1e9, 0.0), (np.nan, 0.0), (1.0, np.inf)):
        answer = LeafMultipliers(1.0, np.zeros(1), np.array([pi]), np.array([beta]))
        monkeypatch.setattr(leaf, "leaf_multipliers", lambda answer=answer, **_: answer)
        assert not leaf.decide_leaf(s, 0, signs, 10.0).proved
    right = LeafMultipliers(1.0, np.zeros(1), np.array([1.0]), np.array([2.0]))
    monkeypatch.setattr(leaf, "leaf_multipliers", lambda **_: right)
    assert leaf.decide_leaf(subject(key, [(1.0, 1.0, 0.125)]), 0, signs, 10.0).proved


@pytest.mark.parametrize("key", FORMS)
def test_some_regions_keep_their_own_rows(key: str) -> None:
    """Of three regions with one, two and one rows."""
    rows = subject(key, [(1.0, 0.0, 1.0), (2.0, 0.0, 2.0), (3.0, 0.0, 3.0), (4.0, 0.0, 4.0)])
    three = replace(rows.specification, starts=(0, 1, 3, 4))
    for kept, starts, constants in (
        ((True, False, True), (0, 1, 2), [1.0, 4.0]),
        ((False, True, False), (0, 2), [2.0, 3.0]),
        ((False, True, True), (0, 2, 3), [2.0, 3.0, 4.0]),
    ):
        some = replace(rows, specification=three).only(torch.tensor(kept)).specification
        assert some.starts == starts
        assert some.rows.constant.tolist() == constants
        assert torch.equal(some.row_error, three.row_error[[int(c) - 1 for c in constants]])
        assert torch.equal(some.rows.coefficients, three.rows.coefficients[[int(c) - 1 for c in constants]])


@pytest.mark.parametrize("key", FORMS)
def test_every_region_is_bounded_by_its_own_row(key: str) -> None:
    """Of three regions with one row each, in any order."""
    rows = subject(key, [(1.0, 0.0, 1.0), (2.0, 0.0, 2.0), (3.0, 0.0, 3.0)])
    three = replace(rows, specification=replace(rows.specification, starts=(0, 1, 2, 3)))
    for order in permutations(range(3)):
        flat = torch.zeros(3, 1, dtype=torch.float64)  # y >= 0
        found = three.sound_bounds(Splits(torch.tensor(order), None), Duals(flat, None, None))
        assert [round(bound, 9) for bound in found.tolist()] == [1.0 + region for region in order]

"""Every sum that planes bring, added up one by one with a thousand summands that float64 loses: bounds still hold."""

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from one_by_one import U, add_one_by_one, losing

from surebound.bounds.beta_crown import Duals, Slopes, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Rows
from surebound.bounds.planes import sound_planes
from surebound.bounds.relaxation import relax
from surebound.bounds.root import LayerBounding, fold_network
from surebound.network.build import Builder
from surebound.network.graph import Network

N = 1023
TOTAL = 1 + N * Fraction(0.75 * U)  # of the coefficients below, in rational arithmetic
HULL = torch.tensor([[1.0], [0.0]])  # κ and κ'


@pytest.fixture(autouse=True)
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    add_one_by_one(monkeypatch)


def exact_form(network: Network, low: float, high: float) -> FoldedForm:
    """A folded form whose blocks count as exact, as they are here: their errors would hide those of planes."""
    ends = (torch.full((1, *network.input_shape), end, dtype=torch.float64) for end in (low, high))
    form = fold_network(Enclosure(network, *ends), LayerBounding(ascent=None), lambda: None)
    assert form is not None
    return replace(form, blocks=tuple(replace(b, error=torch.zeros_like(b.error)) for b in form.blocks))


def copies(low: float) -> tuple[FoldedForm, Rows]:
    """−relu(x) − ¾u relu(x) − … over [low, 1]; not u, whose products with numbers just above 1 would be rounded up."""
    build = Builder((1,))
    form = exact_form(build.build(build.relu(build.linear(0, torch.ones(N + 1, 1).double()))), low, 1.0)
    assert form.neurons == N + 1
    zero = torch.zeros(1, dtype=torch.float64)
    return form, Rows(torch.cat([zero, -losing(N, 0.75 * U)])[None], zero, zero)


def claimed(form: FoldedForm, rows: Rows, slope: float) -> tuple[Fraction, Fraction]:
    """The bound with planes of g = slope · w above all neurons, and the height of these."""
    planes = sound_planes(form, [torch.full((N + 1, 1), slope)], [HULL.expand(2, N + 1)])
    slopes = Slopes.of(relax(form.lower, form.upper), None, planes=True)
    duals = Duals(slopes.fixed(torch.zeros(1, N + 1).double()), None, None)
    bound = evaluate(form.with_planes(planes), rows, slopes, duals, keep=False).bound
    heights = {Fraction(h) for h in planes[0].height.tolist()}
    assert len(heights) == 1
    return Fraction(float(bound)), heights.pop()


def test_coefficients_of_planes_are_added_up() -> None:
    """x ≤ x̂ + h with a height of next to nothing: the coefficients on x are what is lost."""
    bound, height = claimed(*copies(-(2.0**-40)), 1.0)
    exact = -TOTAL * (1 + height)
    assert height < 2.0**-39 and exact - 10 * N * Fraction(U) < bound <= exact


def test_heights_are_added_up() -> None:
    """x ≤ h: there are no coefficients."""
    bound, height = claimed(*copies(-1.0), 0.0)
    exact = -TOTAL * height
    assert height >= 1 and exact - 10 * N * Fraction(U) < bound <= exact


def test_the_height_itself_is_a_sum() -> None:
    """relu(x₀ + u x₁ + u x₂ + … − ½) ≤ h over [0, 1]ᴺ⁺¹, and the same turned around over [−1, 0]ᴺ⁺¹."""
    build = Builder((N + 1,))
    form = exact_form(build.build(build.relu(build.linear(0, losing(N)[None], [-0.5]))), 0.0, 1.0)
    plane = sound_planes(form, [torch.zeros(1, N + 1)], [HULL])[0]
    assert Fraction(float(plane.height)) >= Fraction(1, 2) + N * Fraction(U)
    build = Builder((N + 1,))
    form = exact_form(build.build(build.relu(build.linear(0, losing(N)[None], [0.5]))), -1.0, 0.0)
    plane = sound_planes(form, [torch.ones(1, N + 1)], [HULL])[0]
    assert Fraction(float(plane.height)) >= 1 + N * Fraction(U)

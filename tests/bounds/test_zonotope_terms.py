"""Each error term of zonotopes with float32 generators alone: networks over which a pass without it proves a wrong
bound."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from one_by_one import add_one_by_one, losing
from pushing import alone

from surebound.bounds.rounding import FLUSHED, U32
from surebound.bounds.zonotope import Zonotope, affine, box_zonotope, relu, spread_of, upper_line
from surebound.network.build import Builder
from surebound.network.graph import Input, Network, Node, Relu
from surebound.network.linear import Linear
from surebound.network.op import cast

over_both = pytest.mark.parametrize("over", [lambda x: x, torch.Tensor.numpy], ids=["tensors", "arrays"])
Over = Callable[[torch.Tensor], Any]
HALF = 1.0 + 0.998 * U32  # float32 makes 1 of it


def ends(low: float, high: float) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([[low]], dtype=torch.float64), torch.tensor([[high]], dtype=torch.float64)


@over_both
@pytest.mark.parametrize("radius", [HALF, 1e-40, 1e-50])
def test_the_radius_of_an_input_is_not_rounded_down(radius: float, over: Over) -> None:
    """x = c + g ε ± e by itself, also where float32 has flushed g to zero."""
    z, _ = box_zonotope(*map(over, ends(-radius, radius)), "float32")
    kept = 0 if radius < FLUSHED else Fraction(z.generators.item())
    assert kept + Fraction(z.error.item()) >= Fraction(radius)


def test_a_sum_of_generators_is_not_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """1, u, u, … added up one by one in float32 are 1."""
    total = torch.Tensor.sum

    def one_by_one(self: torch.Tensor, *args: int) -> torch.Tensor:
        if self.dtype != torch.float32:
            return total(self, *args)
        return torch.from_numpy(np.cumsum(self.numpy(), axis=0, dtype=np.float32)[-1])

    monkeypatch.setattr(torch.Tensor, "sum", one_by_one)
    generators = losing(1000, U32).float()[:, None]
    assert Fraction(spread_of(generators).item()) >= 1 + 1000 * Fraction(U32)


def test_an_operation_adds_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """x + u x + u x + …, of copies of x over [−1, 1]: in float32 it is x, but its ends are ∓ (1 + 1023 u)."""
    add_one_by_one(monkeypatch)
    build = Builder((1,))
    copies = build.linear(0, torch.ones(1024, 1))
    network = build.build(build.relu(build.linear(copies, losing(1023, U32)[None])))
    low, high = alone(network, *ends(-1.0, 1.0), network.before(0))
    exact = 1 + 1023 * Fraction(U32)
    assert -exact - Fraction(1, 1000) < Fraction(float(low)) <= -exact
    assert exact <= Fraction(float(high)) < exact + Fraction(1, 1000)


def test_a_centre_adds_up_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same at a point, where there are no generators, in float64."""
    add_one_by_one(monkeypatch)
    build = Builder((1,))
    copies = build.linear(0, torch.ones(1024, 1))
    network = build.build(build.relu(build.linear(copies, losing(1023)[None])))
    low, high = alone(network, *ends(1.0, 1.0), network.before(0))
    assert Fraction(float(low)) <= 1 + 1023 * Fraction(2.0**-53) <= Fraction(float(high))


@over_both
def test_the_rounding_of_a_slope_times_a_generator_is_paid_for(over: Over) -> None:
    """[x]₊ = λ x + μ + μ ε over [l, l + 2], of which λ ε₀ − fl(λ g) is lost; c of it in a sum with −c λ x.

    All that is left of c ([x]₊ − λ x) is c [0, 2 μ], but for what fl(λ g) lost: its upper end is met where x = 0.
    """
    rng, lost = np.random.default_rng(0), 0
    for _ in range(300):
        low = -float(rng.integers(1, 2**12)) * 2.0**-22
        g = torch.tensor([[[float(np.float32(rng.uniform(1.0, 2.0)))]]])
        centre = torch.full((1, 1), low + float(g), dtype=torch.float64)
        z = Zonotope(over(centre), over(g), over(torch.zeros_like(centre)), spread_of(over(g)))
        bounds = torch.full_like(centre, low), torch.full_like(centre, low + 2 * float(g))
        out = relu(z, *map(over, bounds), 1)
        slope = Fraction(float(bounds[1] / (bounds[1] - bounds[0])))
        slope = Fraction(float(np.float32(float(slope))))
        missing = abs(slope * Fraction(float(g)) - Fraction(out.generators[0].item()))
        lost += missing > 0
        assert Fraction(out.error.item()) >= missing
    assert lost > 100


@over_both
def test_products_of_slopes_that_underflow_are_paid_for(over: Over) -> None:
    """A thousand generators whose products with λ = 2e-30 are below 2⁻¹²⁶, so that float32 may have flushed them."""
    g, low, high = map(over, (torch.full((1000, 1, 1), 5e-9), *ends(-1.0, 2e-30)))
    out = relu(Zonotope(0 * low, g, 0 * low, spread_of(g)), low, high, len(g))
    assert FLUSHED > 2e-30 * 5e-9
    assert out.error.item() >= 1000 * 2e-30 * 5e-9


@over_both
def test_products_of_weights_that_underflow_are_paid_for(over: Over) -> None:
    """A thousand products of one symbol below 2⁻¹²⁶, so that float32 may have flushed each of them."""
    g, zero = over(torch.full((1, 1, 1000), 5e-9)), over(torch.zeros(1, 1000, dtype=torch.float64))
    op = Linear(over(torch.full((1, 1000), 2e-30, dtype=torch.float64)))
    out = affine(op, cast(op, "float32"), [Zonotope(zero, g, zero, spread_of(g))])
    assert out.error.item() >= 1000 * 2e-30 * 5e-9


def test_the_upper_line_is_that_of_the_slope_in_float32() -> None:
    """c + Σ g ε ± e holds the ReLU at both ends of every interval, in rational arithmetic."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        low, high = -float(rng.uniform(0, 1)), float(rng.uniform(0, 1))
        network = Network((Node(Input((1,)), (), "x"), Node(Relu((1,)), (0,), "r"), Node(Relu((1,)), (1,), "s")), 2)
        least, most = alone(network, *ends(low, high), 1)
        assert Fraction(float(most)) >= Fraction(high)
        assert float(least) <= 0.0


def test_an_upper_line_has_the_intercept_of_its_rounded_slope() -> None:
    rng = np.random.default_rng(1)
    low, high = (torch.from_numpy(rng.uniform(0.0, 1.0, size=1000)) for _ in range(2))
    line = upper_line(-low, high, "float32")
    assert torch.equal(line.upper_slope, line.upper_slope.float().double())
    for least, most, slope, up in zip(
        *(x.tolist() for x in (-low, high, line.upper_slope, line.intercept)), strict=True
    ):
        for end, value in ((least, 0.0), (most, most)):
            assert Fraction(slope) * Fraction(end) + Fraction(up) >= Fraction(value)


def test_a_skip_beside_a_relu_shares_its_symbols() -> None:
    """relu(x) − λ x over [−1, 3] is [0, 2 μ] = [0, ¾]: without the shared symbol of x it would be [−¾, 3]."""
    build = Builder((1,))
    x = build.linear(0, [[0.75]])
    network = build.build(build.relu(build.sum(build.relu(0), build.scale(x, -1.0))))
    low, high = alone(network, *ends(-1.0, 3.0), network.before(1))
    assert (float(low), float(high)) == pytest.approx((0.0, 0.75), abs=1e-5)


def test_symbols_of_two_layers_are_not_one() -> None:
    """relu(x) − relu(y) − (x − y) / 2 = (|x| − |y|) / 2 over [−1, 1]² reaches ± ½; the lines' slopes are ½, too: all of
    it is in the neurons' own symbols."""
    build = Builder((2,))
    first = build.relu(build.linear(0, [[1.0, 0.0]]))
    second = build.relu(build.linear(0, [[0.0, 1.0]]))
    rest = build.linear(0, [[-0.5, 0.5]])
    network = build.build(build.relu(build.sum(first, build.scale(second, -1.0), rest)))
    box = torch.full((1, 2), 1.0, dtype=torch.float64)
    low, high = alone(network, -box, box, network.before(2))
    assert float(low) <= -0.5 < 0.5 <= float(high)


def test_weights_of_the_first_layer(rng: np.random.Generator) -> None:
    """x̂ = w·x is ± |w|·r over a box around 0, and a zonotope says so up to a few roundings of float32."""
    weight = rng.normal(size=(5, 7))
    network = Network(
        (
            Node(Input((7,)), (), "x"),
            Node(Linear(torch.from_numpy(weight)), (0,), "y"),
            Node(Relu((5,)), (1,), "r"),
        ),
        2,
    )
    radius = rng.uniform(0, 1, size=7)
    low, high = alone(network, torch.from_numpy(-radius)[None], torch.from_numpy(radius)[None], 1)
    exact = [sum(abs(Fraction(w)) * Fraction(r) for w, r in zip(row, radius, strict=True)) for row in weight]
    for least, most, value in zip(low.tolist(), high.tolist(), exact, strict=True):
        assert Fraction(least) <= -value < value <= Fraction(most)
        assert most <= float(value) * (1 + 1e-5)

"""DeepZ against samples, hand-computed values and exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from networks import (
    Builder,
    makers,
    over_arrays,
    pre_activations,
    random_box,
    random_fc,
    sample,
)
from one_by_one import U, add_one_by_one, losing

from surebound.bounds.audit import auditing
from surebound.bounds.enclosure import Enclosure, enclose
from surebound.bounds.layerwise import deepz
from surebound.bounds.zonotope import Forward, Zonotope, spread_of
from surebound.network.arrays import Precision, precision
from surebound.network.graph import Input, Network, Node, Relu
from surebound.network.linear import Linear

MAKERS = makers(4, 10, 10, 3)


def fc(*layers: tuple[list[list[float]], list[float]]) -> Network:
    """Fully connected, from (weight, bias) of each layer."""
    nodes = [Node(Input((len(layers[0][0][0]),)), (), "input")]
    for k, (weight, bias) in enumerate(layers):
        if k:
            nodes.append(Node(Relu(nodes[-1].shape), (len(nodes) - 1,), f"relu_{k}"))
        op = Linear(torch.tensor(weight, dtype=torch.float64), torch.tensor(bias, dtype=torch.float64))
        nodes.append(Node(op, (len(nodes) - 1,), f"linear_{k}"))
    return Network(tuple(nodes), len(nodes) - 1)


@pytest.mark.parametrize("name", MAKERS)
def test_contains_samples_and_refines_intervals(name: str, rng: np.random.Generator) -> None:
    network = MAKERS[name](rng)
    lower, upper = random_box(rng, network, boxes=3, radius=0.3)
    bounds = deepz(network, lower, upper)
    intervals = enclose(network, lower, upper)
    assert (bounds.lower[-1] > intervals.lower[network.output].flatten(1) + 1e-3).any()
    for b in range(3):
        values = pre_activations(network, sample(rng, lower[b], upper[b], 10_000))
        for low, high, value in zip(bounds.lower, bounds.upper, values, strict=True):
            assert (low[b] <= value).all()
            assert (value <= high[b]).all()
    for k in range(len(network.layers)):
        node = network.before(k)
        assert (bounds.lower[k] >= intervals.lower[node].flatten(1) - 1e-12).all()
        assert (bounds.upper[k] <= intervals.upper[node].flatten(1) + 1e-12).all()


@pytest.mark.parametrize("name", MAKERS)
def test_boxes_of_a_batch_do_not_mix(name: str, rng: np.random.Generator) -> None:
    network = MAKERS[name](rng)
    lower, upper = random_box(rng, network, boxes=3, radius=0.3)
    together = deepz(network, lower, upper)
    for b in range(3):
        alone = deepz(network, lower[b : b + 1], upper[b : b + 1])
        for k in range(len(alone.lower)):
            torch.testing.assert_close(together.lower[k][b], alone.lower[k][0], rtol=0.0, atol=1e-12)
            torch.testing.assert_close(together.upper[k][b], alone.upper[k][0], rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("most", [None, 4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", MAKERS)
def test_arrays_are_bounded_as_tensors_are(
    name: str, dtype: Precision, most: int | None, rng: np.random.Generator
) -> None:
    """To within rounding, and every bound is confirmed in rational arithmetic."""
    network = MAKERS[name](rng)
    ends = random_box(rng, network, boxes=3, radius=0.3)
    tensors, arrays = Enclosure(network, *ends), Enclosure(over_arrays(network), *(end.numpy() for end in ends))
    Forward(network, dtype, most).tighten(tensors, until=network.output)
    with auditing() as audit:
        pushed = Forward(arrays.network, dtype, most).tighten(arrays, until=network.output)
    assert audit.claims > 2 * network.outputs
    assert all(isinstance(a, np.ndarray) and precision(a) == dtype for a in pushed.moves)
    for low, high, there, here in zip(arrays.lower, arrays.upper, tensors.lower, tensors.upper, strict=True):
        np.testing.assert_allclose(low, there, rtol=0, atol=1e-5 if dtype == "float32" else 1e-12)
        np.testing.assert_allclose(high, here, rtol=0, atol=1e-5 if dtype == "float32" else 1e-12)


def test_two_neurons_by_hand() -> None:
    """x̂ = (x₁ + x₂, x₁ − x₂) on [−1, 1]² has l̂ = −2, û = 2, so λ = ½ and μ = ½.

    x = (½ + ½ε₁ + ½ε₂ + ½ε₃, ½ + ½ε₁ − ½ε₂ + ½ε₄): the sum is 1 + ε₁ + ½ε₃ + ½ε₄ ∈ [−1, 3], which intervals cut off
    at 0, and the difference ε₂ + ½ε₃ − ½ε₄ ∈ [−2, 2].
    """
    network = fc(([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0]), ([[1.0, 1.0], [1.0, -1.0]], [0.0, 0.0]))
    bounds = deepz(network, -torch.ones(1, 2), torch.ones(1, 2))
    expected = [([-2.0, -2.0], [2.0, 2.0]), ([0.0, -2.0], [3.0, 2.0])]
    for k, (low, high) in enumerate(expected):
        np.testing.assert_allclose(bounds.lower[k][0], low, rtol=0, atol=1e-12)
        np.testing.assert_allclose(bounds.upper[k][0], high, rtol=0, atol=1e-12)


def test_asymmetric_neuron_by_hand() -> None:
    """x̂ = x on [−1, 3]: λ = ¾, μ = ⅜, so relu(x̂) − x̂ = −¼(1 + 2ε₁) + ⅜ + ⅜ε₂ ∈ [⅛ − ⅞, ⅛ + ⅞], not just [−3, 4]."""
    network = fc(([[1.0], [1.0]], [0.0, 9.0]), ([[1.0, -1.0]], [9.0]))
    bounds = deepz(network, -torch.ones(1, 1), torch.full((1, 1), 3.0))
    np.testing.assert_allclose([bounds.lower[1].item(), bounds.upper[1].item()], [-0.75, 1.0], rtol=0, atol=1e-12)


def test_exact_without_ambiguous_neurons(rng: np.random.Generator) -> None:
    """There the network is affine, f(x) = f(c) + J (x − c), with range f(c) ± |J| r."""
    for make in MAKERS.values():
        network = make(rng)
        lower, upper = random_box(rng, network, radius=1e-5)
        intervals = enclose(network, lower, upper)
        for k in range(len(network.layers)):
            low, high = intervals.layer(k)
            assert not ((low < -1e-12) & (high > 1e-12)).any()  # 0 − 0 in max pooling is 0 up to rounding
        centre, radius = ((lower + upper) / 2).requires_grad_(), (upper - lower) / 2
        output = network.forward(centre).flatten()
        bounds = deepz(network, lower, upper)
        for j, value in enumerate(output):
            (jacobian,) = torch.autograd.grad(value, centre, retain_graph=True)
            reach = (jacobian.abs() * radius).sum()
            assert bounds.lower[-1][0, j].item() == pytest.approx((value - reach).item(), abs=1e-11)
            assert bounds.upper[-1][0, j].item() == pytest.approx((value + reach).item(), abs=1e-11)


def exact_forward(network: Network, x: list[float]) -> list[Fraction]:
    """f(x) of a fully connected network in rational arithmetic."""
    values = [Fraction(v) for v in x]
    for node in network.nodes[1:]:
        if isinstance(node.op, Relu):
            values = [max(v, Fraction(0)) for v in values]
        else:
            weight, bias = node.op.weight.tolist(), node.op.bias.tolist()
            values = [
                sum((Fraction(w) * v for w, v in zip(row, values, strict=True)), Fraction(b))
                for row, b in zip(weight, bias, strict=True)
            ]
    return values


def test_rounding_is_enclosed(rng: np.random.Generator) -> None:
    """On single points rounding is all there is: the exact rational value lies inside, and the bounds are close."""
    for _ in range(20):
        network = random_fc(rng, (5, 12, 12, 2))
        x = torch.from_numpy(rng.normal(size=(1, 5)) * 1e3)
        bounds = deepz(network, x, x)
        for value, low, high in zip(
            exact_forward(network, x[0].tolist()),
            bounds.lower[-1][0].tolist(),
            bounds.upper[-1][0].tolist(),
            strict=True,
        ):
            assert Fraction(low) <= value <= Fraction(high)
            assert high - low < 1e-8


def test_a_spread_is_not_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators 1, u, u, …: added up one by one their sum is 1."""
    add_one_by_one(monkeypatch)
    zero = torch.zeros(1, dtype=torch.float64)
    low, high = Zonotope(zero, losing(1000)[:, None], zero, spread_of(losing(1000)[:, None])).bounds()
    assert Fraction(low.item()) <= -(1 + 1000 * Fraction(U)) < 1 + 1000 * Fraction(U) <= Fraction(high.item())


def test_sums_that_lose_stay_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """± (x₀ + u x₁ + …), then twice that less 1: what the first operation lost is carried through the second."""
    add_one_by_one(monkeypatch)
    build = Builder(np.random.default_rng(0), (1001,))
    first = build.add(Linear(torch.stack([losing(1000), -losing(1000)])), 0)
    scale = Linear(2 * torch.eye(2, dtype=torch.float64), torch.tensor([-1.0, 1.0], dtype=torch.float64))
    build.add(scale, first)
    x = torch.ones(1, 1001, dtype=torch.float64)
    bounds = deepz(build.network(), x, x)
    value = 2 * (1 + 1000 * Fraction(U)) - 1
    low, high = (end[-1][0].tolist() for end in (bounds.lower, bounds.upper))
    assert Fraction(low[0]) <= value <= Fraction(high[0])
    assert Fraction(low[1]) <= -value <= Fraction(high[1])


def test_a_negligible_generator_is_not_forgotten() -> None:
    """relu(x) − x / 2 over [−1e-200, 1e-200] is 0 at 0 and 5e-201 at both ends: all of that is the ReLU's own width."""
    build = Builder(np.random.default_rng(0), (1,))
    half = build.add(Linear(torch.full((1, 1), 0.5, dtype=torch.float64)), 0)
    build.plus(build.relu(0), half, -1.0)
    ends = torch.full((1, 1), 1e-200, dtype=torch.float64)
    bounds = deepz(build.network(), -ends, ends)
    assert bounds.lower[-1].item() <= 0.0
    assert bounds.upper[-1].item() >= 5e-201


def test_skips_keep_their_correlation() -> None:
    """x − x = 0, and relu(x + 9) − x = 9 on a box where the neuron is active: the shared generators cancel."""
    build = Builder(np.random.default_rng(0), (2,))
    identity = Linear(torch.eye(2, dtype=torch.float64), torch.full((2,), 9.0, dtype=torch.float64))
    build.plus(build.relu(build.add(identity, 0)), 0, -1.0)
    bounds = deepz(build.network(), -torch.ones(1, 2), torch.ones(1, 2))
    np.testing.assert_allclose(bounds.lower[-1], [[9.0, 9.0]], rtol=0, atol=1e-12)
    np.testing.assert_allclose(bounds.upper[-1], [[9.0, 9.0]], rtol=0, atol=1e-12)


@pytest.mark.parametrize("centre", [0.0, torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("spread", [torch.inf, torch.nan])
def test_what_is_not_finite_bounds_nothing(centre: float, spread: float) -> None:
    middle, reach = torch.tensor([[centre]]).double(), torch.tensor([[spread]]).double()
    low, high = Zonotope(middle, torch.zeros(1, 1, 1), 0 * middle.nan_to_num(0, 0, 0), reach).bounds()
    assert low.item() == -torch.inf and high.item() == torch.inf

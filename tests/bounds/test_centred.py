"""Float32 passes, backwards over deviations and forwards with zonotopes: their bounds hold in exact arithmetic and are
nearly those of float64."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from networks import (
    NETWORKS,
    Builder,
    pre_activations,
    random_box,
    random_conv,
    random_fc,
    sample,
)
from pushing import alone
from torch import Tensor
from verifications import without_onednn
from wild import KINDS, boxes, exact_layers, exact_nodes, points, wild_network

from surebound.bounds import root
from surebound.bounds.centred import Centred
from surebound.bounds.device import plain_convolutions
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.precision import float32_is_kept, numpy_keeps_float32
from surebound.bounds.root import LayerBounding, bound_neurons, settle_layers, tighten_layers
from surebound.bounds.zonotope import Forward
from surebound.network.conv import Conv
from surebound.network.graph import Network
from surebound.network.linear import Linear, Scale, Shift


def settled(network: Network, lower: Tensor, upper: Tensor) -> Enclosure:
    enclosure = Enclosure(network, lower, upper)
    settle_layers(enclosure, lambda: None)
    return enclosure


def settled_in_turns(network: Network, lower: Tensor, upper: Tensor) -> Enclosure:
    """Every other neuron of a layer, then those between them."""
    known, even = Enclosure(network, lower, upper), torch.arange(sum(network.widths)) % 2 == 0
    settle_layers(known, lambda: None, only=even)
    enclosure = Enclosure(network, lower, upper)
    settle_layers(enclosure, lambda: None, known=known, only=~even)
    return enclosure


def pushed(network: Network, lower: Tensor, upper: Tensor, most: int | None = None) -> Enclosure:
    enclosure = Enclosure(network, lower, upper)
    Forward(network, "float32", most).tighten(enclosure)
    return enclosure


Passes = Callable[[Network, Tensor, Tensor], Enclosure]
PASSES: dict[str, Passes] = {
    "backwards": settled,
    "backwards, in turns": settled_in_turns,
    "forwards": pushed,
    "forwards, few symbols": lambda network, lower, upper: pushed(network, lower, upper, network.inputs + 3),
    "forwards, no symbols": lambda network, lower, upper: pushed(network, lower, upper, 0),
}


@pytest.mark.parametrize("radius", [1e-7, 0.02, 0.3])
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("passes", PASSES)
def test_layers_contain_samples(passes: str, name: str, radius: float, rng: np.random.Generator) -> None:
    for _ in range(3):
        network = NETWORKS[name](rng)
        lower, upper = random_box(rng, network, radius=radius)
        enclosure = PASSES[passes](network, lower, upper)
        *layers, _ = pre_activations(network, sample(rng, lower[0], upper[0], 400))
        for k, values in enumerate(layers):
            low, high = enclosure.layer(k)
            slack = 1e-12 * values.abs().amax(0)
            assert bool((low <= values + slack).all() & (values - slack <= high).all())


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_are_as_tight_as_in_float64(name: str, rng: np.random.Generator) -> None:
    """Wherever a sign is open, up to a few float32 roundings of the deviations."""
    met = 0
    for _ in range(3):
        network = NETWORKS[name](rng)
        lower, upper = random_box(rng, network, radius=0.3)
        fast, slow = settled(network, lower, upper), Enclosure(network, lower, upper)
        tighten_layers(slow, LayerBounding(ascent=None), lambda: None)
        for k in range(len(network.layers)):
            (low, high), (exact_low, exact_high) = fast.layer(k), slow.layer(k)
            open_ = (exact_low < 0) & (exact_high > 0)
            met += int(open_.sum())
            room = 1e-3 * (exact_high - exact_low)[open_]
            assert bool((low[open_] >= exact_low[open_] - room).all())
            assert bool((high[open_] <= exact_high[open_] + room).all())
    assert met > 10


@pytest.mark.parametrize("name", NETWORKS)
def test_one_pass_is_a_linear_bound(name: str, rng: np.random.Generator) -> None:
    """Each of the two passes, with the layers before it as they are, against float64 on the graph."""
    network = NETWORKS[name](rng)
    lower, upper = random_box(rng, network, radius=0.2)
    enclosure = settled(network, lower, upper)
    centred = Centred(enclosure)
    for k in range(len(network.layers)):
        node, index = network.before(k), torch.arange(network.width(k))
        centred.extend(node)
        for bounds, slopes in ((centred.parallel, "fastlin"), (centred.crossing, "crown")):
            low, high = bounds(node, index)
            only = LayerBounding(slopes=(slopes,), ascent=None)
            exact_low, exact_high = (t[0] for t in bound_neurons(enclosure, node, index, only, lambda: None))
            room = 1e-3 * (exact_high - exact_low) + 1e-12
            assert bool(((low - exact_low).abs() <= room).all() & ((high - exact_high).abs() <= room).all())


@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e12])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("passes", PASSES)
def test_layers_contain_the_exact_values(passes: str, kind: str, scale: float, rng: np.random.Generator) -> None:
    """In rational arithmetic, with weights from 1e-6 to 1e6 times a scale beyond float32's range of products."""
    for _ in range(6):
        low, high = boxes(rng, kind)
        network = scaled(wild_network(rng, (low + high) / 2), scale)
        enclosure = PASSES[passes](network, torch.from_numpy(low)[None], torch.from_numpy(high)[None])
        assert_contains(enclosure, network, points(rng, low, high))


def assert_contains(enclosure: Enclosure, network: Network, at: list[list[float]]) -> None:
    """Every layer at every point, in rational arithmetic."""
    for x in at:
        for k, values in enumerate(exact_layers(network, x)[:-1]):
            low, high = (t[0].tolist() for t in enclosure.layer(k))
            for least, value, most in zip(low, values, high, strict=True):
                assert least == -np.inf or Fraction(least) <= value
                assert most == np.inf or value <= Fraction(most)


@pytest.mark.parametrize("name", NETWORKS)
def test_layers_beyond_a_budget_keep_their_intervals(name: str, rng: np.random.Generator) -> None:
    network = NETWORKS[name](rng)
    box = random_box(rng, network, radius=0.3)
    nothing, everything = Enclosure(network, *box), Enclosure(network, *box)
    open_ = any(bool(((low < 0) & (high > 0)).any()) for low, high in map(nothing.layer, range(1, len(network.layers))))
    assert settle_layers(nothing, lambda: None, budget=0.0) is not open_
    assert settle_layers(everything, lambda: None, budget=1e12)
    whole, intervals = settled(network, *box), Enclosure(network, *box)
    for k in range(len(network.layers)):
        for found, expected in ((nothing.layer(k), intervals.layer(k)), (everything.layer(k), whole.layer(k))):
            assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def scaled(network: Network, factor: float) -> Network:
    nodes = [
        replace(node, op=replace(node.op, weight=node.op.weight * factor, bias=node.op.bias))
        if isinstance(node.op, Linear)
        else node
        for node in network.nodes
    ]
    return Network(tuple(nodes), network.output)


def extreme_chain(rng: np.random.Generator, *sizes: float) -> Network:
    """FC layers of width 3 whose weights have the given sizes."""
    build = Builder(rng, (3,))
    node = 0
    for k, size in enumerate(sizes):
        weight = torch.from_numpy(rng.normal(size=(3, 3)) * size)
        node = build.add(Linear(weight, torch.from_numpy(rng.normal(size=3)) * 0.1), build.relu(node) if k else node)
    build.relu(node)
    return build.network()


@pytest.mark.parametrize(
    "sizes",
    [
        (1e-45, 1e45),  # the first underflows in float32, the second overflows
        (1e-30, 1e-30, 1e30, 1e30),  # only their products do
        (1e30, 1e30, 1e-30, 1e-30),
        (1e-38, 1e38, 1.0),
        (1e60, 1e-60, 1.0),
    ],
)
@pytest.mark.parametrize("passes", PASSES)
def test_what_float32_cannot_hold_is_not_proved_wrongly(
    passes: str, sizes: tuple[float, ...], rng: np.random.Generator
) -> None:
    for _ in range(5):
        network = extreme_chain(rng, *sizes)
        low, high = boxes(rng, "far away")
        low, high = low * 1e-6, high * 1e-6
        enclosure = PASSES[passes](network, torch.from_numpy(low)[None], torch.from_numpy(high)[None])
        assert_contains(enclosure, network, points(rng, low, high))


def cancelling(rng: np.random.Generator) -> Network:
    """W₂(W₁ x) − W₃ x with W₃ = W₂W₁ up to float32: the coefficients on x cancel to what float32 rounds off."""
    build = Builder(rng, (4,))
    first, second = (rng.normal(size=(4, 4)).astype(np.float32) for _ in range(2))
    third = (second.astype(np.float64) @ first).astype(np.float32)
    one, two, three = (build.add(Linear(torch.from_numpy(w.astype(np.float64))), 0) for w in (first, second, third))
    build.nodes[two] = replace(build.nodes[two], inputs=(one,))
    build.relu(build.plus(two, three, -1.0))
    return build.network()


def linear_chain(rng: np.random.Generator, *sizes: float) -> Network:
    build = Builder(rng, (4,))
    node = 0
    for size in sizes:
        node = build.add(Linear(torch.from_numpy(rng.normal(size=(4, 4)) * size)), node)
    build.relu(node)
    return build.network()


LINEAR: dict[str, tuple[Callable[[np.random.Generator], Network], float]] = {
    "cancelling": (cancelling, 1.0),
    "inexact weights": (lambda rng: linear_chain(rng, 1.0, 1.0, 1.0), 1e-3),
    "generators underflow": (lambda rng: linear_chain(rng, 1e-25, 1e-25), 1.0),
    "coefficients underflow": (lambda rng: linear_chain(rng, 1e-25, 1e-25), 1e30),
    "weights underflow": (lambda rng: linear_chain(rng, 1.0, 1e-45), 1e30),
    "weights underflow to nothing": (lambda rng: linear_chain(rng, 1.0, 1e-60), 1e30),
    "weights that underflow meet large coefficients": (lambda rng: linear_chain(rng, 1e-60, 1e30), 1e30),
}


@pytest.mark.parametrize("name", LINEAR)
def test_a_linear_function_lies_within_its_bounds(name: str, rng: np.random.Generator) -> None:
    """Up to its ReLU the network is linear, so that its ends over a box are sums over corners, known exactly."""
    make, radius = LINEAR[name]
    for _ in range(20):
        network = make(rng)
        centre = rng.normal(size=4) * radius if name == "inexact weights" else np.zeros(4)
        low, high = centre - radius, centre + radius
        enclosure = Enclosure(network, torch.from_numpy(low)[None], torch.from_numpy(high)[None])
        node = network.before(0)
        enclosure.extend(node)
        centred = Centred(enclosure)
        centred.extend(node)
        unit = [exact_nodes(network, np.eye(4)[i])[node] for i in range(4)]
        found = [bounds(node, torch.arange(4)) for bounds in (centred.parallel, centred.crossing)]
        for ends in (*found, alone(network, enclosure.lower[0], enclosure.upper[0], node)):
            for r, (least, most) in enumerate(zip(*(t.tolist() for t in ends), strict=True)):
                pairs = [(unit[i][r] * Fraction(low[i]), unit[i][r] * Fraction(high[i])) for i in range(4)]
                assert Fraction(least) <= sum(min(pair) for pair in pairs)
                assert sum(max(pair) for pair in pairs) <= Fraction(most)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e39, 1e200])
def test_coefficients_that_are_no_numbers_bound_nothing(value: float, rng: np.random.Generator) -> None:
    """Behind a weight that is not finite in float32 no pass claims a bound on what it reaches."""
    network = random_fc(rng, (3, 4, 4, 2))
    weight = network.nodes[3].op.weight
    weight[:, 1] = value
    enclosure = Enclosure(network, *random_box(rng, network, radius=0.5))
    enclosure.extend(1)
    enclosure.lower[1].fill_(-1.0)  # all four are ambiguous
    enclosure.upper[1].fill_(1.0)
    centred = Centred(enclosure)
    enclosure.extend(3)
    centred.extend(3)
    for bounds in (centred.parallel, centred.crossing):
        low, high = bounds(3, torch.arange(4))
        assert bool((low == -torch.inf).all() & (high == torch.inf).all())


def test_an_infinite_interval_bounds_nothing(rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 4, 4, 2))
    enclosure = Enclosure(network, *random_box(rng, network, radius=0.5))
    enclosure.extend(3)
    enclosure.lower[1][0, 2], enclosure.upper[1][0, 2] = -torch.inf, torch.inf
    enclosure.lower[2][0, 2], enclosure.upper[2][0, 2] = 0.0, torch.inf
    centred = Centred(enclosure)
    centred.extend(3)
    for bounds in (centred.parallel, centred.crossing):
        low, high = bounds(3, torch.arange(4))
        assert bool((low == -torch.inf).all() & (high == torch.inf).all())


def test_float32_is_probed(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """Products in bfloat16 are noticed, and then layers are bounded in float64."""
    assert float32_is_kept() and numpy_keeps_float32()
    network = random_conv(rng)
    lower, upper = random_box(rng, network)
    slow = Enclosure(network, lower, upper)
    tighten_layers(slow, LayerBounding(ascent=None), lambda: None)
    monkeypatch.setattr(root, "float32_is_kept", lambda _: False)
    fast = settled(network, lower, upper)
    for k in range(len(network.layers)):
        assert torch.equal(torch.stack(fast.layer(k)), torch.stack(slow.layer(k)))
    exact = torch.nn.functional.conv_transpose2d

    def coarse(x: Tensor, weight: Tensor) -> Tensor:
        return exact(x.bfloat16(), weight.bfloat16()).float()

    monkeypatch.setattr(torch.nn.functional, "conv_transpose2d", coarse)
    assert not float32_is_kept()


def test_products_in_bfloat16_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = torch.Tensor.__matmul__
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: exact(a.bfloat16(), b.bfloat16()).float())
    assert not float32_is_kept()


@pytest.mark.parametrize("together", [True, False])
def test_convolutions_in_bfloat16_are_noticed(together: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards, of channels that are mixed and of channels by themselves, which libraries take by other ways."""
    exact = torch.nn.functional.conv2d

    def coarse(x: Tensor, weight: Tensor, groups: int = 1) -> Tensor:
        if (groups == 1) == together:
            return exact(x.bfloat16(), weight.bfloat16(), groups=groups).float()
        return exact(x, weight, groups=groups)

    monkeypatch.setattr(torch.nn.functional, "conv2d", coarse)
    assert not float32_is_kept()


def test_convolutions_by_transforms_are_noticed() -> None:
    if not torch.backends.nnpack.is_available():
        pytest.skip("a torch without NNPACK")
    with without_onednn():
        assert not float32_is_kept()
        with plain_convolutions("cpu"):
            assert float32_is_kept()


def test_single_neurons_stay_in_their_windows(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also behind a batch norm: a pass over whole images takes many times as long."""

    def whole(*_: object) -> None:
        pytest.fail("a pass over whole images")

    network = normed(rng)
    lower, upper = random_box(rng, network, radius=0.1)
    enclosure, node = Enclosure(network, lower, upper), network.before(1)
    centred = Centred(enclosure)
    enclosure.extend(node)
    centred.extend(node)
    index = torch.arange(0, network.width(1), 7)
    expected = bound_neurons(enclosure, node, index, LayerBounding(slopes=("fastlin",), ascent=None), lambda: None)
    monkeypatch.setattr(Conv, "adjoint", whole)
    low, high = centred.parallel(node, index)
    assert torch.allclose(low, expected[0][0], atol=1e-4) and torch.allclose(high, expected[1][0], atol=1e-4)
    assert bool((low <= expected[0][0] + 1e-9).all() & (high >= expected[1][0] - 1e-9).all())


def normed(rng: np.random.Generator) -> Network:
    """(2, 12, 12): two convolutions, each with a scale and a shift behind it as a batch norm leaves them."""
    build, node = Builder(rng, (2, 12, 12)), 0
    for channels in (3, 4):
        node = build.conv(node, channels)
        for make in (Scale, Shift):
            node = build.add(make(torch.from_numpy(rng.uniform(0.5, 1.5, build.shape(node)))), node)
        node = build.relu(node)
    build.linear(build.flatten(node), 3)
    return build.network()

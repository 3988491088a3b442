"""The builder's exact encodings against torch, and its simplifications against what they replace."""

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exact import exact_output
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from surebound.errors import NetworkError
from surebound.network.build import Builder, exact_sum
from surebound.network.graph import Network
from surebound.network.linear import Scale
from surebound.network.op import Shape
from surebound.network.pooling import average_pool, max_pool, reduce_max, reduce_sum


def _x(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def _network(shape: Shape, build: Callable[[Builder], int]) -> Network:
    builder = Builder(shape)
    return builder.build(build(builder))


def _ops(network: Network) -> list[str]:
    return [type(n.op).__name__ for n in network.nodes]


def _close(network: Network, x: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(network.forward(x), expected, rtol=1e-13, atol=1e-13)


def _relus(network: Network) -> int:
    return sum(network.width(k) for k in range(len(network.layers)))


# ---- element-wise functions


def test_maximum_minimum_and_absolute() -> None:
    x = _x(50, 4)
    halves = (np.array([0, 1]), np.array([2, 3]))
    a, b = x[:, :2], x[:, 2:]
    _close(_network((4,), lambda n: n.maximum(*(n.pick(0, h) for h in halves))), x, torch.maximum(a, b))
    _close(_network((4,), lambda n: n.minimum(*(n.pick(0, h) for h in halves))), x, torch.minimum(a, b))
    c = torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64)
    _close(_network((4,), lambda n: n.maximum(0, c)), x, torch.maximum(x, c))
    _close(_network((4,), lambda n: n.minimum(0, c)), x, torch.minimum(x, c))
    _close(_network((4,), lambda n: n.absolute(0)), x, x.abs())


@pytest.mark.parametrize("slope", [0.01, 0.5, 1.0, 0.0, 2.5, -0.75, float(np.float32(0.1)), 1e-12])
def test_leaky_relu(slope: float) -> None:
    x = _x(50, 4)
    _close(_network((4,), lambda n: n.leaky_relu(0, slope)), x, F.leaky_relu(x, slope))


def test_prelu_has_a_slope_for_each_channel() -> None:
    x, slopes = _x(20, 3, 2, 2), torch.tensor([0.1, -0.3, 1.5], dtype=torch.float64)
    _close(_network((3, 2, 2), lambda n: n.leaky_relu(0, slopes.reshape(3, 1, 1))), x, F.prelu(x, slopes))


@pytest.mark.parametrize(
    ("lo", "hi"), [(-0.3, 0.7), (None, 0.2), (-0.1, None), (0.0, 6.0), (0.4, 0.4), (0.5, -0.5), (0.0, float("inf"))]
)
def test_clip(lo: float | None, hi: float | None) -> None:
    x = _x(50, 4)
    _close(_network((4,), lambda n: n.clip(0, lo, hi)), x, x.clamp(lo, hi))


def test_only_infinite_bounds_are_no_bounds() -> None:
    largest = float(np.finfo(np.float32).max)
    assert _ops(_network((4,), lambda n: n.clip(0, -np.inf, np.inf))) == ["Input"]
    assert _ops(_network((4,), lambda n: n.clip(0, -largest, largest))).count("Relu") == 2


def test_batch_norm() -> None:
    x = _x(20, 3, 2, 2)
    gamma, beta, mean = (_x(4, 3)[i] for i in range(3))
    variance = _x(4, 3)[3] ** 2
    network = _network((3, 2, 2), lambda n: n.batch_norm(0, gamma, beta, mean, variance, 1e-5))
    _close(network, x, F.batch_norm(x, mean, variance, gamma, beta, eps=1e-5))
    with pytest.raises(NetworkError, match="variance"):
        _network((3, 2, 2), lambda n: n.batch_norm(0, gamma, beta, mean, -variance, 1e-5))


# ---- pooling


@st.composite
def _windows(draw: st.DrawFn) -> tuple[Shape, Shape, Shape, Shape, Shape, bool]:
    """(size, kernel, stride, padding, dilation, ceil_mode) that torch accepts."""
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    length = tuple(d * (k - 1) + 1 + draw(st.integers(0, 4)) for k, d in zip(kernel, dilation, strict=True))
    stride = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    padding = tuple(draw(st.integers(0, k // 2)) for k in kernel)
    return length, kernel, stride, padding, dilation, draw(st.booleans())


@given(_windows())
def test_max_pool(window: tuple[Shape, Shape, Shape, Shape, Shape, bool]) -> None:
    length, kernel, stride, padding, dilation, ceil_mode = window
    pads = [(p, p) for p in padding]
    network = _network(
        (2, *length),
        lambda n: max_pool(n, 0, kernel, stride=stride, pads=pads, dilation=dilation, ceil_mode=ceil_mode),
    )
    x = _x(5, 2, *length)
    _close(network, x, F.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode))
    _close(network, x - 100.0, F.max_pool2d(x - 100.0, kernel, stride, padding, dilation, ceil_mode))


@given(_windows(), st.booleans())
def test_average_pool(window: tuple[Shape, Shape, Shape, Shape, Shape, bool], include: bool) -> None:
    length, kernel, stride, padding, _, ceil_mode = window
    pads = [(p, p) for p in padding]
    network = _network(
        (2, *length),
        lambda n: average_pool(n, 0, kernel, stride=stride, pads=pads, ceil_mode=ceil_mode, count_include_pad=include),
    )
    x = _x(5, 2, *length)
    _close(network, x, F.avg_pool2d(x, kernel, stride, padding, ceil_mode, include))


def test_pooling_counts_its_comparisons() -> None:
    """k − 1 for each output where windows do not overlap; fewer where they do, since an axis is treated at a time."""
    pads = [(0, 0), (0, 0)]
    apart = _network((3, 4, 4), lambda n: max_pool(n, 0, (2, 2), stride=(2, 2), pads=pads))
    assert _relus(apart) == 3 * 3 * 4
    sparse = _network((3, 8, 8), lambda n: max_pool(n, 0, (2, 2), stride=(4, 4), pads=pads))
    assert _relus(sparse) == 3 * 3 * 4
    overlapping = _network((1, 6, 6), lambda n: max_pool(n, 0, (3, 3), stride=(1, 1), pads=pads))
    assert _relus(overlapping) == 2 * 6 * 4 + 2 * 4 * 4 < 8 * 16


def test_reductions() -> None:
    x = _x(5, 2, 3, 4)
    _close(_network((2, 3, 4), lambda n: reduce_sum(n, 0, [0, 2])), x, x.sum(dim=(1, 3)))
    _close(_network((2, 3, 4), lambda n: reduce_sum(n, 0, [1], mean=True)), x, x.mean(dim=2))
    _close(_network((2, 3, 4), lambda n: reduce_max(n, 0, 1)), x, x.amax(dim=2, keepdim=True))


def test_windows_in_the_padding_are_refused() -> None:
    with pytest.raises(NetworkError, match="padding"):
        _network((1, 4, 4), lambda n: max_pool(n, 0, (1, 1), stride=(1, 1), pads=[(1, 0), (0, 0)]))
    with pytest.raises(NetworkError, match="does not fit"):
        _network((1, 4, 4), lambda n: max_pool(n, 0, (5, 5), stride=(1, 1), pads=[(0, 0), (0, 0)]))


# ---- simplifications


def test_a_shift_after_an_affine_op_becomes_its_bias() -> None:
    weight, b = _x(3, 4), torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    network = _network((4,), lambda n: n.shift(n.linear(0, weight), b))
    assert _ops(network) == ["Input", "Linear"]
    x = _x(5, 4)
    _close(network, x, F.linear(x, weight, b))
    kernel = _x(3, 2, 2, 2)
    network = _network((2, 4, 4), lambda n: n.shift(n.conv(0, kernel), b.reshape(3, 1, 1)))
    assert _ops(network) == ["Input", "Conv"]
    x = _x(5, 2, 4, 4)
    _close(network, x, F.conv2d(x, kernel, b))


def test_a_shift_that_varies_over_a_channel_stays() -> None:
    kernel, b = _x(3, 2, 2, 2), _x(3, 3, 3)
    network = _network((2, 4, 4), lambda n: n.shift(n.conv(0, kernel), b))
    assert _ops(network) == ["Input", "Conv", "Shift"]
    x = _x(5, 2, 4, 4)
    _close(network, x, F.conv2d(x, kernel) + b)


def test_biases_are_added_only_if_their_sum_is_exact() -> None:
    one, tiny = torch.ones(3, dtype=torch.float64), torch.full((3,), 2.0**-60, dtype=torch.float64)
    assert exact_sum(one, tiny) is None
    assert exact_sum(one, one) is not None
    assert _ops(_network((3,), lambda n: n.shift(n.shift(0, one), tiny))) == ["Input", "Shift", "Shift"]
    assert _ops(_network((3,), lambda n: n.shift(n.shift(0, one), one))) == ["Input", "Shift"]
    assert _ops(_network((3,), lambda n: n.shift(n.shift(0, one), -one))) == ["Input"]
    weight = _x(3, 3)
    network = _network((3,), lambda n: n.shift(n.linear(0, weight, one), tiny))
    assert _ops(network) == ["Input", "Linear", "Shift"]


def test_moves_are_merged() -> None:
    x = _x(5, 2, 3)
    swap = np.arange(6).reshape(2, 3).T
    twice = _network((2, 3), lambda n: n.pick(n.pick(0, swap), np.arange(6).reshape(3, 2).T))
    assert _ops(twice) == ["Input"]
    _close(twice, x, x)
    chain = _network((2, 3), lambda n: n.reshape(n.pad(n.reshape(n.pick(0, swap), (6,)), [(1, 2)]), (3, 3)))
    assert _ops(chain) == ["Input", "Pick"]
    expected = F.pad(x.transpose(1, 2).reshape(5, 6), (1, 2)).reshape(5, 3, 3)
    _close(chain, x, expected)
    assert _ops(_network((2, 3), lambda n: n.reshape(n.reshape(0, (6,)), (2, 3)))) == ["Input"]


def test_operations_that_do_nothing_are_dropped() -> None:
    assert _ops(_network((4,), lambda n: n.shift(n.scale(0, 1.0), 0.0))) == ["Input"]
    assert _ops(_network((4,), lambda n: n.relu(n.relu(0)))) == ["Input", "Relu"]
    assert _ops(_network((4,), lambda n: n.concat([0], 0))) == ["Input"]


def test_dead_nodes_are_dropped_and_the_rest_renumbered() -> None:
    builder = Builder((2,))
    builder.relu(builder.linear(0, _x(7, 2)))
    kept = builder.relu(builder.scale(0, 3.0))
    network = builder.build(kept)
    assert _ops(network) == ["Input", "Scale", "Relu"]
    assert network.output == 2 and network.nodes[2].inputs == (1,)


def test_scaling_by_signs_and_by_two_is_marked_exact() -> None:
    for weight, roundings in ((-1.0, 0), (2.0, 0), (0.3, 8)):
        op = _network((4,), lambda n, w=weight: n.scale(0, w)).nodes[1].op
        assert isinstance(op, Scale) and op.roundings == roundings
    mixed = _network((2,), lambda n: n.scale(0, torch.tensor([1.0, 0.3]))).nodes[1].op
    assert isinstance(mixed, Scale) and mixed.roundings == 8


def _off(network: Network, x: Fraction, squared: Fraction) -> tuple[Fraction, Fraction]:
    """By how much the square of f(x) − f(0) is off relatively, and what the roundings of its scales allow."""
    value = exact_output(network, [x])[0] - exact_output(network, [0])[0]
    scales = [node.op for node in network.nodes if isinstance(node.op, Scale)]
    roundings = sum(max(op.roundings - 1, 0) * abs(Fraction(op.weight.item()) * x / value) for op in scales)
    return abs(value**2 / squared - 1), 2 * roundings / 2**53


def test_computed_scales_are_paid_for() -> None:
    """γ / √(σ² + ε), 1 − s and 1 / n carry roundings: the scale's count of them, less that of the product, covers it.

    Also where the number that comes out is 1, as for ε = 2⁻⁶⁰.
    """
    rng = np.random.default_rng(0)
    epsilon = float(np.float32(1e-5))
    numbers = [(1.0, 1.0, 2.0**-60), (-2.0, 1.0, 2.0**-58)]
    numbers += [(float(g), float(v), epsilon) for g, v in np.float32(rng.uniform(0.01, 3.0, size=(40, 2)))]
    rounded = 0
    for gamma, variance, small in numbers:
        network = _network((1,), lambda n, g=gamma, v=variance, e=small: n.batch_norm(0, [g], [0.5], [0.25], [v], e))
        off, allowed = _off(network, Fraction(3), 9 * Fraction(gamma) ** 2 / (Fraction(variance) + Fraction(small)))
        assert off <= allowed
        rounded += off > 0
    for slope in (2.0**-60, -(2.0**-60), float(np.float32(0.01)), 1.0 - 2.0**-50):
        network = _network((1,), lambda n, s=slope: n.leaky_relu(0, s))
        off, allowed = _off(network, Fraction(3), Fraction(9))
        assert off <= allowed
        rounded += off > 0
    for count in (2, 3, 5, 7):
        network = _network((count, 1), lambda n: n.reshape(reduce_sum(n, 0, [0], mean=True), (1,)))
        mean = exact_output(network, [1] * count)[0]
        assert abs(mean - 1) <= Fraction(7, 2**53)
        rounded += mean != 1
    assert rounded > 40


def test_asymmetric_padding() -> None:
    x, kernel = _x(5, 2, 4, 4), _x(3, 2, 3, 3)
    network = _network((2, 4, 4), lambda n: n.conv(0, kernel, pads=[(1, 0), (2, 1)], stride=(2, 1)))
    _close(network, x, F.conv2d(F.pad(x, (2, 1, 1, 0)), kernel, stride=(2, 1)))


def test_constants() -> None:
    network = _network((3,), lambda n: n.constant(torch.tensor([[1.5, -2.0]])))
    assert network.forward(_x(2, 3)).tolist() == [[[1.5, -2.0]]] * 2


@pytest.mark.parametrize(
    "build",
    [
        lambda n: n.linear(0, torch.ones(2, 3)),
        lambda n: n.conv(0, torch.ones(2, 3, 1, 1)),
        lambda n: n.reshape(0, (5,)),
        lambda n: n.pick(0, np.array([4])),
        lambda n: n.pad(0, [(-1, 0)]),
        lambda n: n.sum(0, n.reshape(0, (2, 2))),
        lambda n: n.concat([0, n.reshape(0, (2, 2))], 0),
        lambda n: n.shift(0, float("nan")),
        lambda n: n.scale(0, float("inf")),
        lambda n: n.pick(0, np.zeros((0,), dtype=np.int64)),
    ],
)
def test_what_does_not_fit_is_refused(build: Callable[[Builder], int]) -> None:
    with pytest.raises(NetworkError):
        _network((4,), build)

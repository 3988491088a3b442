"""Windows: a backward pass over them finds what a pass over whole images does."""

import numpy as np
import pytest
import torch
from networks import NETWORKS, Builder, random_box
from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.root import LayerBounding, fold_network, one_hot
from surebound.network import patch
from surebound.network.conv import Conv, unseen
from surebound.network.graph import Network, dot
from surebound.network.linear import size
from surebound.network.op import Affine
from surebound.network.patch import Patch, pull_patches

ONE = torch.ones((), dtype=torch.float64)


def random_branches(rng: np.random.Generator) -> Network:
    """(2, 9, 9): branches of different windows, strides that differ but for their product, and a skip, added up."""
    build = Builder(rng, (2, 9, 9))
    stem = build.relu(build.conv(0, 3))
    far = build.conv(build.relu(build.conv(stem, 3, kernel=5, stride=2, padding=2)), 3)
    near = build.conv(stem, 3, kernel=1, stride=2, padding=0)
    joined = build.relu(build.plus(far, near))
    again = build.plus(build.conv(joined, 3), joined, -1.0)
    build.linear(build.flatten(build.relu(again)), 3)
    return build.network()


ALL = {**NETWORKS, "branches": random_branches}


@pytest.mark.parametrize("small", [0.0, 0.5, 1e9], ids=["whole", "mixed", "windows"])
@pytest.mark.parametrize("name", ALL)
def test_passes_over_windows_are_passes(name: str, small: float, rng: np.random.Generator) -> None:
    network = ALL[name](rng)
    for k in range(len(network.layers)):
        compare_passes(network, network.before(k), rng, small)


def compare_passes(network: Network, node: int, rng: np.random.Generator, small: float) -> None:
    """What a pass with given slopes meets at some neurons of every layer, at every affine node and at the input."""
    slopes = [torch.from_numpy(rng.uniform(size=network.width(k))) for k in range(len(network.layers))]
    weights = {i: torch.from_numpy(rng.uniform(size=n.shape)) for i, n in enumerate(network.nodes)}
    some = [torch.from_numpy(rng.permutation(len(slope))[:4]) for slope in slopes]
    shape = network.nodes[node].shape
    index = torch.from_numpy(rng.permutation(size(shape))[:9])
    met: list[Tensor] = []
    expected_met: list[Tensor] = []
    total = torch.zeros(len(index), dtype=torch.float64)

    def activate(k: int, c: Patch) -> Patch:
        met.append(c.at(some[k]))
        return c.times(slopes[k])

    def visit(i: int, op: Affine, c: Patch) -> None:
        assert op is network.nodes[i].op
        total.add_(c.abs().dot(weights[i]))

    def plain(k: int, c: Tensor) -> Tensor:
        expected_met.append(c.flatten(1)[:, some[k]])
        return (c.flatten(1) * slopes[k]).reshape(c.shape)

    found = pull_patches(network, {node: Patch.units(index, shape, ONE)}, activate, visit, small=small).full()
    start = {node: one_hot(index, size(shape)).reshape(-1, *shape)}
    expected, _, expected_total = network.pull(start, plain, weights)
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)
    assert torch.allclose(total, expected_total, rtol=1e-10)
    for values, others in zip(met, expected_met, strict=True):
        assert torch.allclose(values, others, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("small", [0.5, 1e9], ids=["mixed", "windows"])
@pytest.mark.parametrize("name", ALL)
def test_neurons_fold_as_their_unit_rows_do(name: str, small: float, rng: np.random.Generator) -> None:
    """Coefficients, constants and errors, some inputs being fixed."""
    network = ALL[name](rng)
    lower, upper = random_box(rng, network, radius=0.2)
    fixed = torch.from_numpy(rng.uniform(size=lower.shape) < 0.3)
    upper = torch.where(fixed, lower, upper)
    form = fold_network(Enclosure(network, lower, upper), LayerBounding(ascent=None), lambda: None)
    assert form is not None
    for node in {network.before(k) for k in range(len(network.layers))} | {network.output}:
        shape = network.nodes[node].shape
        index = torch.arange(size(shape))
        found = form.fold_neurons(node, index, small=small)
        expected = form.fold({node: one_hot(index, size(shape)).reshape(-1, *shape)})
        assert torch.allclose(found.coefficients, expected.coefficients, rtol=1e-10, atol=1e-12)
        assert torch.allclose(found.constant, expected.constant, rtol=1e-10, atol=1e-12)
        assert torch.allclose(found.error, expected.error, rtol=1e-6)


CONVOLUTIONS = {
    "plain": Conv(torch.zeros(5, 3, 3, 3), (3, 8, 9), None, (1, 1), (1, 1)),
    "strided": Conv(torch.zeros(5, 3, 4, 4), (3, 9, 8), None, (2, 2), (1, 1)),
    "strided, odd kernel": Conv(torch.zeros(5, 3, 3, 5), (3, 9, 8), None, (2, 2), (2, 3)),
    "strided beyond the kernel": Conv(torch.zeros(4, 2, 2, 1), (2, 11, 12), None, (3, 3), (0, 1)),
    "strides differ": Conv(torch.zeros(4, 2, 3, 3), (2, 9, 9), None, (2, 1), (1, 1)),
    "dilated": Conv(torch.zeros(4, 2, 3, 2), (2, 9, 9), None, (2, 2), (1, 2), (2, 3)),
    "grouped": Conv(torch.zeros(6, 1, 3, 3), (3, 7, 7), None, (2, 2), (1, 1), groups=3),
    "one dimension": Conv(torch.zeros(4, 2, 3), (2, 9), None, (2,), (1,), (1,)),
    "much padding": Conv(torch.zeros(4, 2, 2, 2), (2, 3, 3), None, (1, 1), (3, 3)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_adjoints_of_convolutions(name: str, dtype: torch.dtype, rng: np.random.Generator) -> None:
    """⟨A x, g⟩ = ⟨x, Aᵀ g⟩ for whole images, and the same Aᵀ g from windows of single elements, in either precision."""
    like = CONVOLUTIONS[name]
    weight = torch.from_numpy(rng.normal(size=like.weight.shape)).to(dtype)
    conv = Conv(weight, like.in_shape, None, like.stride, like.padding, like.dilation, like.groups)
    exact = Conv(weight.double(), like.in_shape, None, like.stride, like.padding, like.dilation, like.groups)
    x = torch.from_numpy(rng.normal(size=(1, *conv.in_shape))).to(dtype)
    g = torch.from_numpy(rng.normal(size=(3, *conv.shape))).to(dtype)
    (pulled,) = conv.adjoint(g)
    assert pulled.shape == (3, *conv.in_shape)
    assert torch.allclose(dot(pulled.double(), x.double()), dot(g.double(), exact.apply(x.double())), rtol=1e-4)
    assert all(n >= 0 for n in unseen(conv))
    index = torch.arange(size(conv.shape))
    start = Patch.units(index, conv.shape, torch.ones((), dtype=dtype))
    (windows,) = patch.adjoint(conv, start)
    (whole,) = exact.adjoint(one_hot(index, len(index)).reshape(-1, *conv.shape))
    assert torch.equal(windows.full().double(), whole)  # each is a single product by 1


def test_windows_that_begin_anywhere_are_added_up(rng: np.random.Generator) -> None:
    """The same rows with windows at different offsets, or at offsets that differ from row to row."""
    shape = (2, 6, 7)

    def random_patch(origin: list[list[int]], extent: tuple[int, int]) -> Patch:
        at = torch.tensor(origin)
        inside = torch.ones(len(origin), 1, *extent, dtype=torch.float64)
        for axis, n in enumerate(shape[1:]):
            place = at[:, axis, None] + torch.arange(extent[axis])
            mask = ((place >= 0) & (place < n)).double()
            inside = inside * (mask[:, None, :, None] if axis == 0 else mask[:, None, None, :])
        values = torch.from_numpy(rng.normal(size=(len(origin), 2, *extent))) * inside
        return Patch(values, at, shape)

    first = random_patch([[-1, 0], [3, 5]], (3, 4))
    for other in (
        random_patch([[0, -1], [4, 4]], (2, 2)),
        random_patch([[-3, -2], [1, 3]], (6, 7)),
        random_patch([[0, 0], [0, 0]], (2, 2)),
        Patch.whole(torch.from_numpy(rng.normal(size=(2, *shape)))),
    ):
        for a, b in ((first, other), (other, first)):
            assert torch.equal((a + b).full(), a.full() + b.full())


def test_no_rows_at_all(rng: np.random.Generator) -> None:
    network = ALL["conv"](rng)
    node = network.before(1)
    none = torch.zeros(0, dtype=torch.int64)
    start = {node: Patch.units(none, network.nodes[node].shape, ONE)}
    found = pull_patches(network, start, lambda _, c: c, lambda *_: None)
    assert found.full().shape == (0, *network.input_shape)

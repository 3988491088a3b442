"""Linear bounds in training, against NumPy on dense matrices, samples, the verifier's own bounds and its LP."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from chains import SHAPE, affine_ops, tiny_batch, tiny_chain
from interval_oracle import Array, Box, Net, intervals, matrices, pixels
from torch import Tensor

from surebound.bounds import BOUNDS
from surebound.bounds.relaxation import relax
from surebound.load.torch import load_torch
from surebound.network.activation import Lines
from surebound.train.interval import Interval, affine_middle, ends, middle, propagate
from surebound.train.learner import Learner
from surebound.train.linear_bounds import (
    Slopes,
    _ThroughReLU,
    as_logits,
    fastlin_bounds,
    fastlin_layers,
    lower_bounds,
    memory_order,
    rival_rows,
    triangle,
)

EVERY: tuple[Slopes, ...] = ("adaptive", "zero", "one", "parallel")


def oracle(net: Net, bounds: Sequence[Box], box: Box, row: Array, slopes: Slopes) -> float:
    """The lower bound of row·z for one sample, element by element. # bounds and box: (elements,) each"""
    a, constant = row @ net[len(bounds)][0], row @ net[len(bounds)][1]
    for (W, b), (low, high) in zip(net[: len(bounds)][::-1], bounds[::-1], strict=True):
        pulled = np.zeros_like(a)
        for i, (lo, up) in enumerate(zip(low, high, strict=True)):
            if lo >= 0 or up <= 0:
                pulled[i] = a[i] if lo >= 0 else 0.0
            elif a[i] < 0:
                pulled[i] = a[i] * up / (up - lo)
                constant += a[i] * -up * lo / (up - lo)
            else:
                alpha = {"adaptive": float(up > -lo), "zero": 0.0, "one": 1.0, "parallel": up / (up - lo)}[slopes]
                pulled[i] = a[i] * alpha
        constant, a = constant + pulled @ b, pulled @ W
    return float(constant + np.maximum(a, 0) @ box[0] + np.minimum(a, 0) @ box[1])


def margins(y: int) -> Array:
    return np.delete(np.eye(3)[y] - np.eye(3), y, 0)


def dense_fastlin(net: Net, box: Box) -> list[Box]:
    """FastLin bounds on one sample's hidden layers, a row for every neuron."""
    found: list[Box] = []
    for k in range(len(net) - 1):
        rows = np.eye(len(net[k][0]))
        low = [oracle(net, found, box, row, "parallel") for row in rows]
        high = [-oracle(net, found, box, -row, "parallel") for row in rows]
        found.append((np.array(low), np.array(high)))
    return found


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("slopes", EVERY)
def test_margins_equal_dense_numpy(slopes: Slopes, norm: bool) -> None:
    chain, batch = tiny_chain(norm=norm), tiny_batch(eps=0.1)
    layers, net = chain.layers(), matrices(chain)
    rows, constant, rivals = rival_rows(layers, batch.y)
    found = lower_bounds(layers, propagate(layers, *batch.box).before, batch.box, rows, constant, slopes=slopes)
    _, low, high, y = pixels(batch)
    hidden = intervals(net, low, high)[:-1]
    for n, label in enumerate(y):
        bounds = [(lo[n], up[n]) for lo, up in hidden]
        expected = [oracle(net, bounds, (low[n], high[n]), row, slopes) for row in margins(label)]
        assert found[n].tolist() == pytest.approx(expected, rel=1e-10, abs=1e-12)
        assert rivals[n].tolist() == [j for j in range(3) if j != label]
    assert sum(float(((lo < 0) & (up > 0)).sum()) for lo, up in hidden) > 100


@pytest.mark.parametrize("slopes", EVERY)
def test_no_sample_beats_a_bound(slopes: Slopes, rng: np.random.Generator) -> None:
    chain, batch = tiny_chain(seed=2), tiny_batch(eps=0.05)
    layers = chain.layers()
    rows, constant, rivals = rival_rows(layers, batch.y)
    found = lower_bounds(layers, propagate(layers, *batch.box).before, batch.box, rows, constant, slopes=slopes)
    gap = torch.inf
    for _ in range(200):
        unit = torch.from_numpy(rng.uniform(size=batch.x.shape).round(int(rng.integers(0, 2)) * 8))
        z = layers.logits(torch.lerp(*batch.box, unit))
        margin = z.gather(1, batch.y[:, None]) - z.gather(1, rivals)
        assert (margin >= found - 1e-12).all()
        gap = min(gap, (margin - found).min().item())
    assert gap < 0.5  # and the bounds are worth something


def layer_bounds(name: str, chain: Learner, box: Interval) -> list[Interval]:
    found = BOUNDS[name](load_torch(chain.module, SHAPE), *box)
    pairs = zip(found.lower, found.upper, [op.shape for op in affine_ops(chain.layers())], strict=True)
    return [(low.reshape(-1, *shape), high.reshape(-1, *shape)) for low, high, shape in pairs]


@pytest.mark.parametrize(("name", "slopes"), [("crown", "adaptive"), ("fastlin", "parallel")])
def test_on_the_verifiers_layers_the_output_is_the_verifiers(name: str, slopes: Slopes) -> None:
    chain, box = tiny_chain(), tiny_batch(eps=0.1, size=3).box
    layers, (*hidden, output) = chain.layers(), layer_bounds(name, chain, box)
    last = layers.last
    rows, constant = last.weight.expand(3, -1, -1), last.bias.expand(3, -1)
    low = lower_bounds(layers, hidden, box, rows, constant, slopes=slopes)
    high = -lower_bounds(layers, hidden, box, -rows, -constant, slopes=slopes)
    interval = ends(*affine_middle(last, middle(*hidden[-1], rectify=True)))
    torch.testing.assert_close(torch.maximum(low, interval[0]), output[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(torch.minimum(high, interval[1]), output[1], rtol=0, atol=1e-9)


def test_the_lp_on_the_same_layers_is_tighter() -> None:
    chain, box = tiny_chain(), tiny_batch(eps=0.1, size=1).box
    layers, (*hidden, output) = chain.layers(), layer_bounds("planet-lp", chain, box)
    last = layers.last
    for slopes in EVERY:
        low = lower_bounds(layers, hidden, box, last.weight[None], last.bias[None], slopes=slopes)
        assert (low <= output[0] + 1e-7).all() and (low > output[0] - 1.0).all()


def test_fastlin_has_both_sides_of_parallel_slopes() -> None:
    chain, batch = tiny_chain(), tiny_batch(eps=0.1)
    layers = chain.layers()
    bounds, (rows, constant, _) = propagate(layers, *batch.box).before, rival_rows(layers, batch.y)
    low, high = fastlin_bounds(layers, bounds, batch.box, rows, constant)
    torch.testing.assert_close(low, lower_bounds(layers, bounds, batch.box, rows, constant, slopes="parallel"))
    torch.testing.assert_close(high, -lower_bounds(layers, bounds, batch.box, -rows, -constant, slopes="parallel"))


def test_fastlin_layers_equal_dense_numpy() -> None:
    chain, batch = tiny_chain(), tiny_batch(eps=0.1, size=2)
    found = fastlin_layers(chain.layers(), batch.box)
    _, low, high, _ = pixels(batch)
    for n in range(2):
        for (lo, up), expected in zip(found, dense_fastlin(matrices(chain), (low[n], high[n])), strict=True):
            np.testing.assert_allclose(lo[n].detach().flatten().numpy(), expected[0], atol=1e-12)
            np.testing.assert_allclose(up[n].detach().flatten().numpy(), expected[1], atol=1e-12)


def test_chunks_change_neither_bounds_nor_gradients() -> None:
    chain, batch = tiny_chain(), tiny_batch(eps=0.1, size=2)

    def run(chunk: int) -> list[Tensor]:
        found = fastlin_layers(chain.layers(), batch.box, chunk=chunk)
        ends = [end for pair in found for end in pair]
        weights = torch.cat([e.flatten() for e in ends]).cos().detach()
        total = (torch.cat([e.flatten() for e in ends]) * weights).sum()
        return [*ends, *torch.autograd.grad(total, chain.parameters()[:-2])]

    for whole, chunked in zip(run(2**30), run(2**10), strict=True):
        torch.testing.assert_close(whole, chunked, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("block", [1, 2**18])
def test_gradients_through_a_relu(block: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(3, 2, 5), (3, 5), (3, 5), (3, 5), (5,)]
    inputs = [torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes]
    assert torch.autograd.gradcheck(lambda *xs: _ThroughReLU.apply(*xs, block), inputs)
    assert torch.autograd.gradcheck(lambda *xs: _ThroughReLU.apply(*xs, None, block), inputs[:4])


@pytest.mark.parametrize(("slopes", "kind"), [("adaptive", "crown"), ("parallel", "fastlin")])
def test_triangles_are_those_that_are_verified_with(slopes: Slopes, kind: Lines, rng: np.random.Generator) -> None:
    """The two places that have the ReLU's lines: one is differentiated, the other rounded outward."""
    lower = torch.from_numpy(rng.normal(size=500) * 10.0 ** rng.uniform(-6, 6, size=500))
    upper = lower + torch.from_numpy(10.0 ** rng.uniform(-6, 6, size=500))
    lower, upper = torch.cat([lower, lower, torch.zeros(500)]), torch.cat([upper, torch.zeros(500), upper - lower])
    lower, upper = torch.minimum(lower, upper), torch.maximum(lower, upper)
    ours, theirs = triangle(lower, upper, slopes), relax(lower, upper, kind)
    torch.testing.assert_close(ours.upper_slope, theirs.upper_slope, rtol=1e-12, atol=0.0)
    torch.testing.assert_close(ours.lower_slope, theirs.lower_slope, rtol=1e-12, atol=0.0)
    assert bool(((theirs.intercept - ours.intercept).abs() <= 1e-12 * (upper - lower)).all())
    assert theirs.floor is None and ours.floor is None


def test_triangles_by_hand() -> None:
    lower, upper = torch.tensor([-1.0, -3.0, 1.0, -2.0, 0.0]), torch.tensor([3.0, 1.0, 2.0, -1.0, 0.0])
    t = triangle(lower, upper, "adaptive")
    assert t.upper_slope.tolist() == [0.75, 0.25, 1.0, 0.0, 0.0]
    assert t.intercept.tolist() == [0.75, 0.75, 0.0, 0.0, 0.0]
    slopes = {name: triangle(lower, upper, name).lower_slope.tolist()[:4] for name in EVERY}
    assert slopes == {
        "adaptive": [1.0, 0.0, 1.0, 0.0],
        "zero": [0.0, 0.0, 1.0, 0.0],
        "one": [1.0, 1.0, 1.0, 0.0],
        "parallel": [0.75, 0.25, 1.0, 0.0],
    }


def test_orders() -> None:
    x = torch.arange(12.0).reshape(1, 3, 2, 2)
    assert memory_order(x, 1).tolist() == [[0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]]
    margins_, rivals = torch.tensor([[1.0, -2.0], [3.0, 4.0]]), torch.tensor([[0, 2], [1, 2]])
    assert as_logits(margins_, rivals).tolist() == [[-1.0, 0.0, 2.0], [0.0, -3.0, -4.0]]

"""ReLU stability, against eq. 4 of the IBP-R paper in NumPy, products of dense matrices, samples and differences."""

from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from chains import affine_modules, affine_ops, tiny_batch, tiny_chain
from interval_oracle import Box, Net, cross_entropies, intervals, logits, matrices, pixels, slopes
from torch import Tensor, nn

from surebound.errors import UsageError
from surebound.network.conv import Conv
from surebound.network.graph import value
from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch
from surebound.train.interval import propagate
from surebound.train.learner import Learner
from surebound.train.losses.relu_stability import Layer, ReLUStability, improved_bounds, joint_cost, joint_radius


def steady_chain(seed: int = 0, norm: bool = False) -> Learner:
    """A chain of whose first neurons about half are active on their whole boxes."""
    chain = tiny_chain(seed=seed, norm=norm)
    with torch.no_grad():
        bias = affine_modules(chain)[0].bias
        assert bias is not None
        bias += torch.tensor([1.5, 0.3, 0.0, -0.3], dtype=bias.dtype)
    return chain


def improved(net: Net, box: Box) -> list[Box]:
    """Xiao et al.'s recursion for two layers, on matrices and one sample after the other. # (batch, elements)"""
    (W1, b1), (W2, b2) = net[:2]
    first = intervals(net[:1], *box)[0]
    seconds = []
    for n in range(len(box[0])):
        active = first[0][n] > 0
        WA, WN = W2 * active, W2 * ~active
        low, high = np.maximum(first[0][n], 0), np.maximum(first[1][n], 0)
        lower = np.maximum(WN, 0) @ low + np.minimum(WN, 0) @ high + b2
        upper = np.maximum(WN, 0) @ high + np.minimum(WN, 0) @ low + b2
        joint, constant = WA @ W1, WA @ b1
        lower += np.maximum(joint, 0) @ box[0][n] + np.minimum(joint, 0) @ box[1][n] + constant
        upper += np.maximum(joint, 0) @ box[1][n] + np.minimum(joint, 0) @ box[0][n] + constant
        seconds.append((lower, upper))
    second = np.array([s[0] for s in seconds]), np.array([s[1] for s in seconds])
    rest = intervals(net[2:], np.maximum(second[0], 0), np.maximum(second[1], 0))
    return [first, second, *rest[:-1]]


def expected(loss: ReLUStability, chain: Learner, batch: Batch) -> float:
    net, (x, low, high, y) = matrices(chain), pixels(batch)
    hidden = improved(net, (low, high)) if loss.bounds == "improved" else intervals(net, low, high)[:-1]
    products = np.concatenate([(lo * up).reshape(len(y), -1) for lo, up in hidden], axis=1)
    assert products.shape == (len(y), 144 + 45 + 8)  # every ReLU, not the logits
    unstable = np.tanh(1 - products) if loss.form == "paper" else -np.tanh(1 + products)
    attacked = loss.attack.run(chain.layers(), batch).numpy().reshape(len(y), -1)
    robust = cross_entropies(logits(net, attacked), y).mean() + loss.rho * unstable.sum(1).mean()
    weights = sum(p.detach().abs().sum().item() for p in chain.weights())
    natural = cross_entropies(logits(net, x), y).mean()
    return float(batch.kappa * robust + (1 - batch.kappa) * natural + loss.l1 * weights)


@pytest.mark.parametrize("kappa", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("form", ["paper", "published"])
@pytest.mark.parametrize("bounds", ["improved", "interval"])
def test_the_total_is_eq_4(bounds: Any, form: Any, kappa: float) -> None:
    loss, chain = ReLUStability(rho=0.01, l1=1e-3, form=form, bounds=bounds), steady_chain()
    total = loss(chain, tiny_batch(kappa=kappa)).total.item()
    assert total == pytest.approx(expected(loss, chain, tiny_batch(kappa=kappa)), rel=1e-10)


@pytest.mark.parametrize("norm", [False, True])
def test_improved_bounds_hold_samples_and_are_tighter(norm: bool, rng: np.random.Generator) -> None:
    chain, batch = steady_chain(norm=norm), tiny_batch()
    layers = chain.layers()
    found = improved_bounds(layers, batch.box, joint_limit=1e9).before
    plain = propagate(layers, *batch.box).before
    for _ in range(100):
        x = layers.normalise(torch.lerp(*batch.box, torch.from_numpy(rng.uniform(size=batch.x.shape).round())))
        for layer, (low, high) in zip(affine_ops(layers), found, strict=False):
            x = value(layer, x)
            assert (low <= x + 1e-12).all() and (x <= high + 1e-12).all()
            x = x.relu()
    torch.testing.assert_close(found[0], plain[0])
    widths = [[(high - low).mean().item() for low, high in bounds[1:]] for bounds in (found, plain)]
    assert widths[0][0] < 0.9 * widths[1][0] and widths[0][1] < 0.95 * widths[1][1]
    assert all((a[0] >= b[0] - 1e-12).all() and (a[1] <= b[1] + 1e-12).all() for a, b in zip(found, plain, strict=True))


def dense(layer: Layer) -> Tensor:
    """The matrix of a layer, column by column."""
    eye = torch.eye(prod(in_shape(layer)), dtype=torch.float64).reshape(-1, *in_shape(layer))
    return layer.apply(eye).flatten(1).T


def in_shape(layer: Layer) -> tuple[int, ...]:
    return layer.in_shape if isinstance(layer, Conv) else layer.image or (layer.weight.shape[1],)


PAIRS: dict[str, tuple[nn.Module, ...]] = {
    "plain": (nn.Conv2d(2, 3, 3, 1, 1), nn.Conv2d(3, 4, 4, 2, 1)),
    "strides": (nn.Conv2d(2, 3, 5, 2, 2), nn.Conv2d(3, 2, 2, 2, 0)),
    "uneven": (nn.Conv2d(2, 3, (3, 2), (2, 1), (0, 1)), nn.Conv2d(3, 4, (1, 3), (1, 2), (1, 0))),
    "dilation": (nn.Conv2d(2, 3, 2, 1, 1, dilation=2), nn.Conv2d(3, 4, 2, 1, 1, dilation=(1, 3))),
    "groups": (nn.Conv2d(2, 4, 3, 1, 1, groups=2), nn.Conv2d(4, 6, 3, 2, 1, groups=2)),
    "cropped": (nn.Conv2d(2, 3, 2, 3, 0), nn.Conv2d(3, 4, 2, 2, 1)),
    "conv-dense": (nn.Conv2d(2, 3, 3, 2, 0), nn.Linear(3 * 3 * 3, 4)),
    "dense": (nn.Linear(2 * 7 * 8, 5), nn.Linear(5, 4)),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("block", [1, 2**22])
def test_the_joint_radius_is_that_of_the_matrices(name: str, block: int) -> None:
    modules = nn.Sequential(*PAIRS[name]).double()
    last = modules[1].out_channels if isinstance(modules[1], nn.Conv2d) else 4
    first, second = _pair(modules, last)
    generator = torch.Generator().manual_seed(0)
    active = (torch.rand(3, *first.shape, generator=generator) < 0.6).double()
    radius = torch.rand(3, *in_shape(first), generator=generator, dtype=torch.float64)
    weights = torch.rand(3, *second.shape, generator=generator, dtype=torch.float64)
    found = joint_radius(first, second, active, radius, block=block)
    products = dense(second) @ (active.flatten(1).unsqueeze(2) * dense(first))
    expected = (products.abs() @ radius.flatten(1).unsqueeze(2)).reshape(found.shape)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    parameters = [m.weight for m in modules]
    gradients = (torch.autograd.grad((v * weights).sum(), parameters) for v in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def _pair(modules: nn.Sequential, out: int) -> tuple[Layer, Layer]:
    """Both layers, read from a chain that goes on after them."""
    shape = modules(torch.zeros(1, 2, 7, 8).double()) if isinstance(modules[1], nn.Conv2d) else torch.zeros(1, out)
    head = nn.Linear(shape[0].numel(), 2).double()
    flat = [[nn.Flatten()] if isinstance(m, nn.Linear) else [] for m in modules]
    before = [*flat[0], modules[0], nn.ReLU(), *flat[1], modules[1], nn.ReLU()]
    chain = Learner(nn.Sequential(*before, nn.Flatten(), head), (2, 7, 8))
    first, second = affine_ops(chain.layers())[:2]
    return first, second


def test_beyond_the_limit_are_intervals() -> None:
    chain, batch = steady_chain(), tiny_batch()
    layers = chain.layers()
    cost = joint_cost(*affine_ops(layers)[:2])
    assert cost == 9 * (4 * 4 * 4) * 5 * (2 * 6 * 6)  # positions, neurons and outputs, inputs in a 6 × 6 window
    within, beyond = (improved_bounds(layers, batch.box, joint_limit=limit) for limit in (cost, cost - 1))
    assert (within.before[1][0] > beyond.before[1][0]).any()
    torch.testing.assert_close(beyond.before, propagate(layers, *batch.box).before)


@pytest.mark.parametrize("options", [{}, {"form": "published"}, {"bounds": "interval"}], ids=str)
@pytest.mark.parametrize("norm", [False, True])
def test_gradients_are_finite_differences(options: dict[str, Any], norm: bool) -> None:
    loss = ReLUStability(rho=0.05, l1=1e-3, attack=TrainAttack(steps=2), **options)
    slope, difference = slopes(loss, steady_chain(norm=norm), tiny_batch)
    assert slope == pytest.approx(difference, rel=1e-5)


def test_shallow_networks() -> None:
    torch.manual_seed(0)
    body = [nn.Linear(72, 6), nn.ReLU(), nn.Linear(6, 3)]
    chain = Learner(nn.Sequential(nn.Flatten(), *body).double(), (2, 6, 6))
    totals = [ReLUStability(bounds=b)(chain, tiny_batch()).total.item() for b in ("improved", "interval")]  # type: ignore[arg-type]
    assert totals[0] == totals[1]


def test_float32() -> None:
    chain, batch = tiny_chain(dtype=torch.float32), tiny_batch(dtype=torch.float32)
    gradients = torch.autograd.grad(ReLUStability()(chain, batch).total, chain.parameters())
    assert all(g.dtype == torch.float32 and g.isfinite().all() for g in gradients)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match=r"must not be negative, got -1\.0"):
        ReLUStability(rho=-1.0)

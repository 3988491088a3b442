"""CAP, against Wong & Kolter's dual in NumPy, samples, exact norms and finite differences."""

from typing import Any

import numpy as np
import pytest
import torch
from chains import CLASSES, tiny_batch, tiny_chain
from interval_oracle import Array, Box, Net, cross_entropies, intervals, logits, matrices, pixels, slopes

from surebound.errors import UsageError
from surebound.train.batch import Batch, Draws
from surebound.train.cauchy import Projections
from surebound.train.interval import Interval
from surebound.train.learner import Learner
from surebound.train.linear_bounds import fastlin_layers
from surebound.train.losses.cap import CAP, _norms, _Relaxed, projected_layers


def dual(net: Net, hidden: list[Box], low: Array, high: Array, c: Array) -> float:
    """J of Wong & Kolter 2018, theorem 1, with their sign of ν: a lower bound of cᵀ z for one sample."""
    nu, total = -c, 0.0
    layers = net[: len(hidden) + 1]
    for k in range(len(hidden), -1, -1):
        W, b = layers[k]
        total -= nu @ b
        hat = W.T @ nu  # ν̂_k
        if k == 0:
            return float(total - np.maximum(hat, 0) @ high + np.maximum(-hat, 0) @ low)
        lo, up = hidden[k - 1]
        ambiguous = (lo < 0) & (up > 0)
        slope = np.where(ambiguous, up / np.where(ambiguous, up - lo, 1), (lo >= 0).astype(float))
        nu = slope * hat
        total += (lo * np.maximum(nu, 0))[ambiguous].sum()
    raise AssertionError


def dense_layers(net: Net, low: Array, high: Array) -> list[Box]:
    """Their algorithm 1 for one sample, a dual for both signs of every neuron."""
    found: list[Box] = []
    for k in range(len(net) - 1):
        eye = np.eye(len(net[k][0]))
        lower = np.array([dual(net, found, low, high, c) for c in eye])
        found.append((lower, np.array([-dual(net, found, low, high, -c) for c in eye])))
    return found


def expected(chain: Learner, batch: Batch, bounds: str, l1: float) -> float:
    net, (x, low, high, y) = matrices(chain), pixels(batch)
    boxes = intervals(net, low, high)[:-1]
    z = np.zeros((len(y), CLASSES))
    for n, label in enumerate(y):
        hidden = [(a[n], b[n]) for a, b in boxes] if bounds == "interval" else dense_layers(net, low[n], high[n])
        for j in range(CLASSES):
            z[n, j] = -dual(net, hidden, low[n], high[n], np.eye(CLASSES)[label] - np.eye(CLASSES)[j])
    weights = sum(p.detach().abs().sum().item() for p in chain.weights())
    natural = cross_entropies(logits(net, x), y).mean()
    return float(batch.kappa * cross_entropies(z, y).mean() + (1 - batch.kappa) * natural + l1 * weights)


@pytest.mark.parametrize("kappa", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("bounds", ["interval", "fastlin"])
def test_the_total_is_the_dual(bounds: Any, kappa: float) -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=kappa, eps=0.08, size=3)
    total = CAP(bounds=bounds, l1=1e-3)(chain, batch).total.item()
    assert total == pytest.approx(expected(chain, batch, bounds, 1e-3), rel=1e-10)


def test_no_sample_has_a_larger_loss(rng: np.random.Generator) -> None:
    chain, batch = tiny_chain(), tiny_batch(eps=0.06, kappa=1.0, size=1)
    layers, bound = chain.layers(), CAP(bounds="fastlin")(chain, batch).total.item()
    unit = torch.from_numpy(rng.uniform(size=(2000, *batch.x.shape[1:])))
    unit[1000:] = unit[1000:].round()
    z = layers.logits(torch.lerp(*batch.box, unit)).detach()
    losses = torch.nn.functional.cross_entropy(z, batch.y.expand(2000), reduction="none")
    assert losses.max().item() <= bound <= losses.max().item() + 0.5
    assert bound < CAP(bounds="interval")(chain, batch).total.item()


def radii(bounds: list[Interval]) -> list[torch.Tensor]:
    return [((high - low) / 2).detach() for low, high in bounds]


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["merged", "separate"])
@pytest.mark.parametrize("estimator", ["median", "geometric-mean"])
def test_many_projections_come_close_to_the_exact_bounds(groups: Any, estimator: Any) -> None:
    chain, batch = tiny_chain(), tiny_batch(eps=0.08)
    projections = Projections(count=3000, groups=groups, estimator=estimator)
    found = projected_layers(chain.layers(), batch.box, batch.draws, projections)
    exact = fastlin_layers(chain.layers(), batch.box)
    assert [low.shape for low, _ in found] == [low.shape for low, _ in exact]
    torch.testing.assert_close(found[0], exact[0])
    for k in (1, 2):
        ratio = radii(found)[k] / radii(exact)[k]
        # The estimates' deviation is π / (2 √3000) = 3 %, and all neurons share the vectors.
        assert ratio.sub(1).abs().max() < 0.15 and abs(ratio.mean().item() - 1) < 0.09
        centres = [((low + high) / 2).detach() for low, high in (found[k], exact[k])]
        torch.testing.assert_close(*centres, rtol=0, atol=0.02)


def test_few_projections_vary_around_the_exact_bounds() -> None:
    chain, batch = tiny_chain(), tiny_batch(eps=0.08)
    exact = radii(fastlin_layers(chain.layers(), batch.box))[1]
    ratios = []
    for step in range(60):
        projections, draws = Projections(count=50), Draws(0, step, size=6)
        ratios.append(radii(projected_layers(chain.layers(), batch.box, draws, projections))[1] / exact)
    spread = torch.stack(ratios)
    assert abs(spread.mean().item() - 1) < 0.06  # the median of 50 is 2 to 3 % too high on average
    assert 0.17 < spread.std(0).mean().item() < 0.29  # π / (2 √50) = 0.22 by theory


@pytest.mark.parametrize(
    "options",
    [
        {"bounds": "interval"},
        {"bounds": "fastlin"},
        {"projections": 7},
        {"projections": 6, "groups": "separate"},
    ],
    ids=str,
)
def test_gradients_are_finite_differences(options: dict[str, Any]) -> None:
    slope, difference = slopes(CAP(**options, l1=1e-3), tiny_chain(), lambda: tiny_batch(eps=0.05, size=3), h=1e-6)
    assert slope == pytest.approx(difference, rel=1e-5)


def test_batch_norms() -> None:
    slope, difference = slopes(CAP(projections=8), tiny_chain(norm=True), lambda: tiny_batch(eps=0.02))
    assert slope == pytest.approx(difference, rel=1e-5)


def test_gradients_of_relaxed_projections() -> None:
    generator = torch.Generator().manual_seed(0)
    g, slope, half, cauchy = (
        torch.randn(s, generator=generator, dtype=torch.float64) for s in [(3, 2, 5), (3, 5), (3, 5), (2, 5)]
    )
    inputs = [v.requires_grad_() for v in (g, slope, half)]
    torch.testing.assert_close(_Relaxed.apply(*inputs, cauchy), g * slope[:, None] + cauchy * half[:, None])
    assert torch.autograd.gradcheck(lambda *xs: _Relaxed.apply(*xs, cauchy), inputs)


def test_blocks_change_nothing() -> None:
    projections = Projections(count=9, groups="separate")
    projected = torch.randn(6, 3 * 9, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(_norms(projected, projections, 1), _norms(projected, projections), rtol=1e-12, atol=0.0)


def test_shares_of_a_batch_average_to_the_whole() -> None:
    chain, batch = tiny_chain(), tiny_batch()
    whole = CAP(projections=9)(chain, tiny_batch()).total.item()
    shares = []
    for part in (slice(0, 3), slice(3, 6)):
        draws = Draws(1, 7, size=6, part=part)
        share = Batch(x=batch.x[part], y=batch.y[part], eps=0.05, kappa=0.6, ramp=0.7, risen=0.7, draws=draws)
        shares.append(CAP(projections=9)(chain, share).total.item())
    assert np.mean(shares) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize("bounds", ["interval", "fastlin", "projections"])
def test_shallow_networks_are_exact(bounds: Any) -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(72, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3)]
    chain = Learner(torch.nn.Sequential(torch.nn.Flatten(), *layers).double(), (2, 6, 6))
    batch = tiny_batch(kappa=1.0)
    total = CAP(bounds=bounds)(chain, batch).total.item()
    assert total == pytest.approx(expected(chain, batch, "fastlin", 0.0), rel=1e-10)


def test_float32() -> None:
    chain = tiny_chain(dtype=torch.float32)
    for bounds in ("interval", "fastlin", "projections"):
        total = CAP(bounds=bounds)(chain, tiny_batch(dtype=torch.float32)).total  # type: ignore[arg-type]
        gradients = torch.autograd.grad(total, chain.parameters())
        assert total.dtype == torch.float32 and all(g.isfinite().all() for g in gradients)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="projections must be at least 1"):
        CAP(projections=0)

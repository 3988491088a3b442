"""CROWN-IBP, against its formula in NumPy, samples and finite differences."""

from typing import Any

import numpy as np
import pytest
import torch
from chains import tiny_batch, tiny_chain
from interval_oracle import Array, cross_entropies, intervals, logits, matrices, pixels, slopes, worst

from surebound.errors import UsageError
from surebound.train.batch import Batch
from surebound.train.interval import propagate
from surebound.train.learner import Learner
from surebound.train.losses import crown_ibp
from surebound.train.losses.crown_ibp import CROWNIBP, fused_loss


def crown(chain: Learner, batch: Batch, weights: Array) -> Array:
    """Lower bounds of Σ_j w_j (z_y − z_j) by CROWN on intervals. # weights: (batch, rows, classes) -> (batch, rows)"""
    net, (_, low, high, y) = matrices(chain), pixels(batch)
    hidden = intervals(net, low, high)[:-1]
    (W, b), found = net[-1], np.zeros(weights.shape[:2])
    for n, label in enumerate(y):
        D = weights[n] @ (np.eye(len(W))[label] - np.eye(len(W)))
        a, constant = D @ W, D @ b
        for (A, c), (lo, up) in zip(net[-2::-1], hidden[::-1], strict=True):
            lo, up = np.minimum(lo[n], 0), np.maximum(up[n], 0)
            upper = np.divide(up, up - lo, out=np.zeros_like(up), where=up > lo)
            lower = (up > -lo).astype(float)
            constant = constant - np.minimum(a, 0) @ (upper * lo)
            a = np.maximum(a, 0) * lower + np.minimum(a, 0) * upper
            a, constant = a @ A, constant + a @ c
        found[n] = constant + np.maximum(a, 0) @ low[n] + np.minimum(a, 0) @ high[n]
    return found


def expected(chain: Learner, batch: Batch, beta: float, fusion: str, l1: float) -> float:
    net, (x, low, high, y) = matrices(chain), pixels(batch)
    rows, classes = np.arange(len(y)), len(net[-1][0])
    upper = worst(net, low, high, y)
    if fusion == "none":
        margins = -crown(chain, batch, np.tile(np.eye(classes), (len(y), 1, 1)))
        robust = cross_entropies(beta * margins + (1 - beta) * upper, y)
    else:
        hidden = [np.maximum(end, 0) for end in intervals(net, low, high)[-2]]
        lower = np.zeros_like(upper)
        for n, label in enumerate(y):
            D = np.eye(classes) - np.eye(classes)[label]
            W, b = D @ net[-1][0], D @ net[-1][1]
            lower[n] = np.maximum(W, 0) @ hidden[0][n] + np.minimum(W, 0) @ hidden[1][n] + b
        chord = np.zeros_like(upper)
        other = upper > lower
        chord[other] = (np.exp(upper[other]) - np.exp(lower[other])) / (upper - lower)[other]
        line = np.where(other, np.exp(lower) - chord * lower, 1.0).sum(1)
        bound = line - crown(chain, batch, chord[:, None])[:, 0]
        assert not other[rows, y].any() and other.sum() == len(y) * (classes - 1)
        robust = np.log(beta * bound + (1 - beta) * np.exp(upper).sum(1))
    weights = sum(p.detach().abs().sum().item() for p in chain.weights())
    natural = cross_entropies(logits(net, x), y).mean()
    return float(batch.kappa * robust.mean() + (1 - batch.kappa) * natural + l1 * weights)


@pytest.mark.parametrize("kappa", [0.0, 0.37, 1.0])
@pytest.mark.parametrize(
    ("ramp", "beta_end", "beta"), [(0.0, 0.0, 1.0), (0.3, 0.0, 0.7), (1.0, 0.5, 0.5), (1.0, 0.0, 0.0)]
)
@pytest.mark.parametrize("fusion", ["none", "loss"])
def test_the_total_is_the_formula(fusion: Any, ramp: float, beta_end: float, beta: float, kappa: float) -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=kappa, ramp=ramp, eps=0.08)
    terms = CROWNIBP(beta_end=beta_end, fusion=fusion, l1=1e-3)(chain, batch)
    assert terms.total.item() == pytest.approx(expected(chain, batch, beta, fusion, 1e-3), rel=1e-10)


def test_without_beta_there_is_no_backward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crown_ibp, "lower_bounds", lambda *_, **__: pytest.fail("a pass that has no weight"))
    totals = [CROWNIBP(fusion=f)(tiny_chain(), tiny_batch(ramp=1.0)).total.item() for f in ("none", "loss")]
    assert totals[0] == totals[1]


def fused(chain: Learner, batch: Batch, **options: Any) -> torch.Tensor:
    layers = chain.layers()
    return fused_loss(layers, propagate(layers, *batch.box), batch.box, batch.y, **options).detach()


@pytest.mark.parametrize("eps", [0.0, 1e-4, 0.03, 0.2])
@pytest.mark.parametrize("name", ["adaptive", "zero", "one", "parallel"])
def test_no_sample_has_a_loss_above_the_fused_bound(name: Any, eps: float, rng: np.random.Generator) -> None:
    chain, batch = tiny_chain(seed=4), tiny_batch(eps=eps)
    layers, bound = chain.layers(), fused(chain, batch, beta=1.0, slopes=name)
    for _ in range(100):
        unit = torch.from_numpy(rng.uniform(size=batch.x.shape).round(int(rng.integers(0, 2)) * 8))
        z = layers.logits(torch.lerp(*batch.box, unit)).detach()
        loss = torch.nn.functional.cross_entropy(z, batch.y, reduction="none")
        assert (loss <= bound + 1e-12).all()
        if eps == 0:
            torch.testing.assert_close(loss, bound, rtol=1e-9, atol=1e-12)


def test_linear_bounds_are_below_those_of_intervals() -> None:
    chain, batch = tiny_chain(), tiny_batch(eps=0.03, kappa=1.0, ramp=0.0)
    crowned, plain = (fused(chain, batch, beta=beta, slopes="adaptive").mean().item() for beta in (1.0, 0.0))
    assert CROWNIBP()(chain, batch).total.item() < plain
    assert crowned < plain


def test_large_logits_do_not_overflow() -> None:
    chain, batch = tiny_chain(dtype=torch.float32), tiny_batch(dtype=torch.float32, eps=0.3, kappa=1.0, ramp=0.5)
    with torch.no_grad():
        for p in chain.parameters():
            p *= 10
    total = CROWNIBP(fusion="loss")(chain, batch).total
    gradients = torch.autograd.grad(total, chain.parameters())
    assert 1e3 < total.item() < 1e6 and all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("fusion", ["none", "loss"])
@pytest.mark.parametrize("name", ["adaptive", "parallel"])
@pytest.mark.parametrize("norm", [False, True])
def test_gradients_are_finite_differences(fusion: Any, name: Any, norm: bool) -> None:
    loss, chain = CROWNIBP(fusion=fusion, slopes=name, l1=1e-3), tiny_chain(norm=norm)
    slope, difference = slopes(loss, chain, lambda: tiny_batch(eps=0.05))
    assert slope == pytest.approx(difference, rel=1e-5)


@pytest.mark.parametrize("fusion", ["none", "loss"])
def test_without_a_radius_the_loss_is_the_natural_one(fusion: Any) -> None:
    chain = tiny_chain()
    robust, natural = (CROWNIBP(fusion=fusion)(chain, tiny_batch(eps=0.0, kappa=k)).total.item() for k in (1.0, 0.0))
    assert robust == pytest.approx(natural, rel=1e-9)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match=r"beta_end is 1\.5; expected a number from 0 to 1"):
        CROWNIBP(beta_end=1.5)

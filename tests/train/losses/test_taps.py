"""TAPS and STAPS: latent attacks against exact maxima, the connector by hand, the product and its gradient in NumPy."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from chains import tiny_batch, tiny_chain
from interval_oracle import cross_entropies, matrices, pixels, slopes, total, worst
from torch import Tensor

from surebound.errors import UsageError
from surebound.network.graph import value
from surebound.train import LOSSES
from surebound.train.attack import TrainAttack
from surebound.train.batch import Loss
from surebound.train.interval import ends, propagate, worst_logits
from surebound.train.learner import Learner
from surebound.train.losses.ibp import IBP
from surebound.train.losses.ibp_shi import IBPShi
from surebound.train.losses.sabr import SABR
from surebound.train.losses.staps import STAPS
from surebound.train.losses.taps import TAPS, Estimators, connect, latent_attack

ATTACK = TAPS().latent_attack


def latent_box(chain: Learner, start: int) -> tuple[Tensor, Tensor]:
    layers = chain.layers(tiny_batch().x)
    return ends(*propagate(layers, *tiny_batch().box).at[layers.cuts[start]])


def test_every_margin_is_taken_at_its_own_point() -> None:
    chain, y = tiny_chain(), torch.tensor([0, 1, 2, 1])
    layers = chain.layers()
    estimators = Estimators(layers, 2, y, 3)
    assert estimators.others.tolist() == [[1, 2], [0, 2], [0, 1], [0, 2]]
    points = torch.rand(4, 2, 5, 3, 3, dtype=torch.float64)
    margins, z = estimators.margins(points), estimators.worst_logits(points)
    for n in range(4):
        assert z[n, y[n]] == 0
        for k, j in enumerate(estimators.others[n]):
            at = layers.logits(points[n, k][None], start=2)[0]
            torch.testing.assert_close(margins[n, k], at[j] - at[y[n]])
            torch.testing.assert_close(z[n, j], at[j] - at[y[n]])


@pytest.mark.parametrize("start", [1, 2, 3])
def test_points_lie_in_the_box_and_beat_random_ones(start: int) -> None:
    chain, batch = tiny_chain(), tiny_batch()
    layers, box = chain.layers(), latent_box(chain, start)
    estimators = Estimators(layers, start, batch.y, 3)
    points = latent_attack(ATTACK, estimators, box, batch)
    assert points.shape == (6, 2, *box[0].shape[1:]) and not points.requires_grad
    assert (points >= box[0][:, None]).all() and (points <= box[1][:, None]).all()
    found = estimators.margins(points)
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        share = torch.rand(points.shape, generator=generator, dtype=torch.float64).round()
        assert (found >= estimators.margins(torch.lerp(*(v[:, None] for v in box), share)) - 1e-9).all()
    bound = worst_logits(layers, propagate(layers, *batch.box), batch.y)
    assert (estimators.worst_logits(points) <= bound + 1e-9).all()  # an estimate from below of what intervals bound
    again = latent_attack(replace(ATTACK, restarts=3), estimators, box, tiny_batch())
    assert (estimators.margins(again) >= found - 1e-9).all()


def test_on_a_linear_classifier_the_estimate_is_exact() -> None:
    chain, batch = tiny_chain(), tiny_batch(ramp=1.0, kappa=1.0)
    terms = TAPS(classifier_layers=1, l1=0.0)(chain, batch)
    torch.testing.assert_close(terms.parts["latent"], terms.parts["interval"])
    corners = torch.tensor(list(itertools.product([False, True], repeat=8)))
    box, layers = latent_box(chain, 3), chain.layers()
    points = latent_attack(ATTACK, Estimators(layers, 3, batch.y, 3), box, batch)
    for n, y in enumerate(batch.y):
        z = value(layers.last, torch.where(corners, box[1][n], box[0][n]))
        torch.testing.assert_close(
            Estimators(layers, 3, batch.y, 3).worst_logits(points)[n], (z - z[:, y : y + 1]).amax(0)
        )


@pytest.mark.parametrize("c", [0.5, 0.2, 1.0])
def test_the_connector_shares_gradients_between_the_ends(c: float) -> None:
    lower = torch.tensor([[0.0, -1.0, 2.0]], requires_grad=True)
    upper = torch.tensor([[1.0, 3.0, 2.0]], requires_grad=True)  # the last has no width
    points = torch.tensor([[[0.1, 3.0, 2.0], [0.95, -1.0, 2.0], [0.5, 2.0, 2.0]]])
    weights = torch.tensor([[[1.0, 2.0, 3.0], [5.0, 7.0, 11.0], [13.0, 17.0, 19.0]]])
    joined = connect(points, (lower, upper), c)
    assert torch.equal(joined, points)
    (joined * weights).sum().backward()
    to_lower, to_upper = np.zeros(3), np.zeros(3)
    for k, i in np.ndindex(3, 3):
        x, l, u, w = (v.item() for v in (points[0, k, i], lower[0, i], upper[0, i], weights[0, k, i]))  # noqa: E741
        slack = c * (u - l)
        to_upper[i] += w * (0.5 if u == l else max(x - (u - slack), 0) / slack)
        to_lower[i] += w * (0.5 if u == l else max((l + slack) - x, 0) / slack)
    np.testing.assert_allclose(lower.grad[0], to_lower, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(upper.grad[0], to_upper, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("product", ["samples", "batch"])
def test_the_total_is_the_formula(product: str) -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=1.0, ramp=1.0)
    _, lower, upper, y = pixels(batch)
    interval = cross_entropies(worst(matrices(chain), lower, upper, y), y)
    estimators = Estimators(chain.layers(), 2, batch.y, 3)
    points = latent_attack(ATTACK, estimators, latent_box(chain, 2), tiny_batch())
    estimate = cross_entropies(estimators.worst_logits(points).detach().numpy(), y)
    expected = (interval * estimate).mean() if product == "samples" else interval.mean() * estimate.mean()
    loss = TAPS(product=product, l1=0.0)  # type: ignore[arg-type]
    assert total(loss, chain, batch) == pytest.approx(expected, rel=1e-9)
    assert estimate.mean() < interval.mean()


def test_the_product_has_a_weighted_gradient() -> None:
    def gradients(chain: Learner, value: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(value, chain.parameters(), retain_graph=True, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, chain.parameters(), strict=True)]

    chain, batch = tiny_chain(), tiny_batch(kappa=1.0, ramp=1.0)
    layers, box = chain.layers(), latent_box(chain, 2)
    estimators = Estimators(layers, 2, batch.y, 3)
    points = latent_attack(ATTACK, estimators, box, tiny_batch())
    place = ((points - box[0][:, None]) / (box[1] - box[0])[:, None].clamp_min(1e-9)).detach()
    flat = (box[1] - box[0])[:, None] <= 1e-5
    low = torch.where(flat, 0.5, (1 - 2 * place).clamp_min(0)).detach()
    high = torch.where(flat, 0.5, (2 * place - 1).clamp_min(0)).detach()
    rest = (points - low * box[0][:, None] - high * box[1][:, None]).detach()
    z = estimators.worst_logits(rest + low * box[0][:, None] + high * box[1][:, None])
    taps = F.cross_entropy(z, batch.y)
    ibp = F.cross_entropy(worst_logits(layers, propagate(layers, *batch.box), batch.y), batch.y)
    expected = [3 * ibp * a + taps * b for a, b in zip(gradients(chain, taps), gradients(chain, ibp), strict=True)]
    loss = TAPS(weight=3.0, product="batch", l1=0.0)
    for found, wanted in zip(gradients(chain, loss(chain, batch).total), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("loss", [TAPS(weight=1.0), STAPS(taps=TAPS(weight=1.0, product="batch"))])
def test_the_classifiers_gradients_are_those_of_differences(loss: TAPS | STAPS) -> None:
    slope, difference = slopes(loss, tiny_chain(), lambda: tiny_batch(ramp=1.0, eps=0.02), start=2, h=1e-7)
    assert slope == pytest.approx(difference, rel=1e-4)


@pytest.mark.parametrize("norm", [False, True])
def test_limits(norm: bool) -> None:
    def of(loss: Loss, ramp: float, kappa: float = 0.8) -> float:
        return total(loss, tiny_chain(norm=norm), tiny_batch(ramp=ramp, kappa=kappa))

    plain, attack = TAPS(l1=0.0), TrainAttack(steps=3)
    assert of(plain, 0.4) == pytest.approx(of(IBPShi(), 0.4), rel=1e-12)  # while ε rises
    small = STAPS(subselection=0.3, attack=attack, taps=plain)
    assert of(small, 0.4) == pytest.approx(of(SABR(subselection=0.3, attack=attack, l1=0.0), 0.4), rel=1e-12)
    assert of(small, 1.0) < of(plain, 1.0)
    assert of(plain, 1.0, 0.0) == of(small, 1.0, 0.0) == of(IBP(), 1.0, 0.0)
    early = TAPS(l1=0.0, warmup="taps", regulariser=0.0)
    assert of(early, 0.4) == pytest.approx(of(plain, 1.0), rel=1e-12)


def test_in_single_precision_all_gradients_are_finite() -> None:
    for ramp, eps in [(0.0, 0.0), (1.0, 0.0), (1.0, 0.05)]:
        for loss in (TAPS(), STAPS(shrinking=0.8), TAPS(latent_attack=replace(ATTACK, precision="bf16"))):
            chain = tiny_chain(norm=True, dtype=torch.float32)
            loss(chain, tiny_batch(ramp=ramp, eps=eps, dtype=torch.float32)).total.backward()
            assert all(torch.isfinite(p.grad).all() for p in chain.parameters())


def test_nonsense_is_refused() -> None:
    assert (LOSSES["taps"], LOSSES["staps"]) == (TAPS, STAPS)
    with pytest.raises(
        UsageError, match="taps: classifier_layers is 4; expected from 1 to 3, for a network of 4 blocks"
    ):
        TAPS(classifier_layers=4)(tiny_chain(), tiny_batch())
    with pytest.raises(UsageError, match="taps: classifier_layers is 0; expected at least 1"):
        TAPS(classifier_layers=0)
    with pytest.raises(UsageError, match=r"taps: gradient_connector is 0\.0; expected a number from 1e-06 to 1"):
        TAPS(gradient_connector=0.0)
    with pytest.raises(UsageError, match=r"taps: latent_attack\.step_unit is 'pixel'; expected 'eps'"):
        TAPS(latent_attack=TrainAttack(step_unit="pixel"))
    with pytest.raises(UsageError, match=r"staps: subselection is 2\.0; expected a number from 0 to 1"):
        STAPS(subselection=2.0)

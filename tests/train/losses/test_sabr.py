"""SABR: its small boxes by hand, its loss against NumPy's intervals, its ends against IBP and adversarial training."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chains import tiny_batch, tiny_chain
from interval_oracle import Array, cross_entropies, logits, matrices, pixels, slopes, total, worst

from surebound.errors import UsageError
from surebound.train import LOSSES
from surebound.train.attack import TrainAttack
from surebound.train.batch import Loss, Terms
from surebound.train.losses.ibp import IBP
from surebound.train.losses.ibp_shi import IBPShi
from surebound.train.losses.pgd import PGDTraining
from surebound.train.losses.sabr import SABR, small_box

ATTACK = TrainAttack(steps=4, step_size=0.3)


def expected_box(point: Array, lower: Array, upper: Array, tau: float) -> tuple[Array, Array]:
    """The small box by hand, one pixel at a time."""
    low, high = np.empty_like(point), np.empty_like(point)
    for i in np.ndindex(point.shape):
        radius = min(tau, (upper[i] - lower[i]) / 2)
        centre = min(max(point[i], lower[i] + radius), upper[i] - radius)
        low[i], high[i] = centre - radius, centre + radius
    return low, high


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_small_boxes_surround_the_attacks_point_inside_the_large_one(share: float) -> None:
    chain, batch = tiny_chain(), tiny_batch(eps=0.2)  # a fifth of the pixels is next to an end of [0, 1]
    layers = chain.layers()
    point = ATTACK.run(layers, tiny_batch(eps=0.2))
    lower, upper = small_box(layers, batch, ATTACK, share)
    _, first, last, _ = pixels(batch)
    low, high = expected_box(point.flatten(1).numpy(), first, last, share * 0.2)
    np.testing.assert_allclose(lower.flatten(1), low, atol=1e-12)
    np.testing.assert_allclose(upper.flatten(1), high, atol=1e-12)
    assert (lower >= batch.box[0]).all() and (upper <= batch.box[1]).all()
    room = (last - first) >= 2 * share * 0.2 - 1e-12
    np.testing.assert_allclose((high - low)[room], 2 * share * 0.2, atol=1e-12)
    assert 0 < (~room).sum() < room.size / 2 or share <= 0.5


def test_an_attack_on_the_inner_box_needs_no_projection() -> None:
    layers = tiny_chain().layers()
    batch, narrow = (replace(tiny_batch(eps=eps), x=0.1 + 0.8 * tiny_batch().x) for eps in (0.05, 0.035))
    lower, upper = small_box(layers, batch, ATTACK, 0.3, "inner")
    torch.testing.assert_close((lower + upper) / 2, ATTACK.run(layers, narrow))
    torch.testing.assert_close(upper - lower, torch.full_like(lower, 0.03))


@pytest.mark.parametrize("shrinking", [1.0, 0.8])
@pytest.mark.parametrize("kappa", [0.25, 1.0])
def test_the_total_is_the_formula(shrinking: float, kappa: float) -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=kappa, ramp=1.0)
    x, first, last, y = pixels(batch)
    point = ATTACK.run(chain.layers(), tiny_batch()).flatten(1).numpy()
    net = matrices(chain)
    robust = cross_entropies(worst(net, *expected_box(point, first, last, 0.4 * 0.05), y, shrinking), y).mean()
    natural = cross_entropies(logits(net, x), y).mean()
    weights = sum(w.detach().abs().sum().item() for w in chain.weights())
    loss = SABR(subselection=0.4, shrinking=shrinking, attack=ATTACK, l1=1e-3)
    assert total(loss, chain, batch) == pytest.approx(
        kappa * robust + (1 - kappa) * natural + 1e-3 * weights, rel=1e-10
    )


@pytest.mark.parametrize("norm", [False, True])
def test_its_ends_are_ibp_and_adversarial_training(norm: bool) -> None:
    def of(loss: Loss) -> float:
        return total(loss, tiny_chain(norm=norm), tiny_batch(ramp=1.0))

    assert of(SABR(subselection=1.0, l1=0.0)) == pytest.approx(of(IBP()), rel=1e-12)
    assert of(SABR(subselection=0.0, attack=ATTACK, l1=0.0)) == pytest.approx(of(PGDTraining(attack=ATTACK)), rel=1e-12)
    values = [of(SABR(subselection=s, attack=ATTACK, l1=0.0)) for s in (0.0, 0.2, 0.5, 1.0)]
    assert values == sorted(values) and values[0] < values[-1]


def test_while_the_radius_rises_the_regularisers_see_the_small_box() -> None:
    def of(loss: Loss) -> Terms:
        return loss(tiny_chain(seed=3), tiny_batch(eps=0.01, kappa=1.0, ramp=0.25))

    large, all_of_it = of(IBPShi()), of(SABR(subselection=1.0, l1=0.0))
    assert all_of_it.total.item() == pytest.approx(large.total.item(), rel=1e-12)
    small, without = of(SABR(l1=0.0)), of(SABR(l1=0.0, regulariser=0.0))
    penalty = small.parts["tightness"] + small.parts["balance"]
    assert small.total.item() - without.total.item() == pytest.approx(penalty.item(), rel=1e-9)
    assert small.parts["balance"] < large.parts["balance"]  # fewer ambiguous neurons


@pytest.mark.parametrize(
    "loss",
    [
        SABR(attack=ATTACK, subselection=0.3),
        SABR(attack=ATTACK, subselection=0.3, attack_box="inner", shrinking=0.8),
    ],
)
@pytest.mark.parametrize("norm", [False, True])
def test_gradients_are_those_of_differences(loss: SABR, norm: bool) -> None:
    slope, difference = slopes(loss, tiny_chain(norm=norm), lambda: tiny_batch(eps=0.02), h=1e-7)
    assert slope == pytest.approx(difference, rel=1e-4)


@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_before_the_ramp_gradients_are_finite(kappa: float) -> None:
    chain = tiny_chain(norm=True, dtype=torch.float32)
    terms = SABR()(chain, tiny_batch(eps=0.0, ramp=0.0, kappa=kappa, dtype=torch.float32))
    terms.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in chain.parameters() if p.grad is not None)
    natural = total(IBP(), tiny_chain(norm=True), tiny_batch(kappa=0.0))
    assert float(terms.parts["robust" if kappa else "natural"]) == pytest.approx(natural, abs=1e-3)


def test_nonsense_is_refused() -> None:
    assert LOSSES["sabr"] is SABR
    with pytest.raises(UsageError, match=r"sabr: subselection is 1\.5; expected a number from 0 to 1"):
        SABR(subselection=1.5)
    with pytest.raises(UsageError, match=r"sabr: shrinking is -0\.1; expected a number from 0 to 1"):
        SABR(shrinking=-0.1)

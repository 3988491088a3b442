"""MTL-IBP, CC-IBP and Exp-IBP, against their formulas in NumPy and the order that convexity puts them in."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from chains import tiny_batch, tiny_chain
from interval_oracle import Array, cross_entropies, logits, matrices, pixels, slopes, total, worst

from surebound.errors import UsageError
from surebound.train import LOSSES
from surebound.train.attack import TrainAttack
from surebound.train.losses.cc_ibp import CCIBP
from surebound.train.losses.exp_ibp import ExpIBP
from surebound.train.losses.ibp import IBP
from surebound.train.losses.ibp_shi import IBPShi
from surebound.train.losses.mtl_ibp import MTLIBP
from surebound.train.losses.pgd import PGDTraining

ATTACK = TrainAttack(steps=4, step_size=0.3)
FAMILY: list[Any] = [MTLIBP, CCIBP, ExpIBP, partial(ExpIBP, product="batch")]


def mtl(attacked: Array, bound: Array, y: Array, alpha: float) -> float:
    return float(((1 - alpha) * cross_entropies(attacked, y) + alpha * cross_entropies(bound, y)).mean())


def cc(attacked: Array, bound: Array, y: Array, alpha: float) -> float:
    margins = attacked - attacked[np.arange(len(y)), y][:, None]
    return float(cross_entropies((1 - alpha) * margins + alpha * bound, y).mean())


def exp(attacked: Array, bound: Array, y: Array, alpha: float) -> float:
    return float((cross_entropies(attacked, y) ** (1 - alpha) * cross_entropies(bound, y) ** alpha).mean())


def exp_batch(attacked: Array, bound: Array, y: Array, alpha: float) -> float:
    return float(cross_entropies(attacked, y).mean() ** (1 - alpha) * cross_entropies(bound, y).mean() ** alpha)


@pytest.mark.parametrize(("make", "formula"), list(zip(FAMILY, [mtl, cc, exp, exp_batch], strict=True)))
@pytest.mark.parametrize(("alpha", "inflation"), [(0.3, 1.0), (0.01, 2.1)])
def test_the_total_is_the_formula(
    make: Any, formula: Callable[[Array, Array, Array, float], float], alpha: float, inflation: float
) -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=0.75, ramp=1.0)
    x, lower, upper, y = pixels(batch)
    net = matrices(chain)
    point = ATTACK.run(chain.layers(), replace(tiny_batch(), eps=inflation * batch.eps))
    assert np.abs(point.flatten(1).numpy() - x).max() == pytest.approx(inflation * batch.eps)
    attacked, bound = logits(net, point.flatten(1).numpy()), worst(net, lower, upper, y)
    expected = 0.75 * formula(attacked, bound, y, alpha) + 0.25 * cross_entropies(logits(net, x), y).mean()
    loss = make(alpha=alpha, attack=ATTACK, attack_inflation=inflation, l1=0.0)
    terms = loss(chain, batch)
    assert terms.total.item() == pytest.approx(expected, rel=1e-10)
    assert terms.parts["adversarial"].item() == pytest.approx(cross_entropies(attacked, y).mean(), rel=1e-10)
    assert terms.parts["interval"].item() == pytest.approx(cross_entropies(bound, y).mean(), rel=1e-10)


@pytest.mark.parametrize("make", FAMILY)
@pytest.mark.parametrize("norm", [False, True])
def test_the_ends_are_adversarial_training_and_ibp(make: Any, norm: bool) -> None:
    def of(loss: Any) -> float:
        return total(loss, tiny_chain(norm=norm), tiny_batch(ramp=1.0))

    assert of(make(alpha=0.0, attack=ATTACK, l1=0.0)) == pytest.approx(of(PGDTraining(attack=ATTACK)), rel=1e-12)
    assert of(make(alpha=1.0, attack=ATTACK, l1=0.0)) == pytest.approx(of(IBP()), rel=1e-12)
    values = [of(make(alpha=a, attack=ATTACK, l1=0.0)) for a in (0.0, 0.1, 0.5, 0.9, 1.0)]
    assert values == sorted(values) and values[0] < values[-1]


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_mtl_is_the_largest(alpha: float) -> None:
    """Cross-entropy is convex, and an arithmetic mean exceeds the geometric one."""
    mtl_ibp, cc_ibp, exp_ibp, _ = (
        total(make(alpha=alpha, attack=ATTACK, l1=0.0), tiny_chain(), tiny_batch(kappa=1.0, ramp=1.0))
        for make in FAMILY
    )
    assert cc_ibp < mtl_ibp and exp_ibp < mtl_ibp


@pytest.mark.parametrize("make", FAMILY)
@pytest.mark.parametrize("norm", [False, True])
def test_gradients_are_those_of_differences(make: Any, norm: bool) -> None:
    loss = make(alpha=0.3, attack=ATTACK, attack_inflation=1.5, l1=1e-3)
    slope, difference = slopes(loss, tiny_chain(norm=norm), lambda: tiny_batch(eps=0.02), h=1e-7)
    assert slope == pytest.approx(difference, rel=1e-4)


@pytest.mark.parametrize("make", FAMILY)
def test_the_regularisers_are_those_of_ibp_shi(make: Any) -> None:
    chain, batch = tiny_chain(seed=3), tiny_batch(eps=0.01, ramp=0.25)
    terms = make(alpha=1.0, attack=ATTACK, regulariser=0.2, l1=0.0)(chain, batch)
    expected = IBPShi(regulariser=0.2)(chain, batch)
    assert terms.total.item() == pytest.approx(expected.total.item(), rel=1e-10)
    for part in ("tightness", "balance"):
        assert terms.parts[part].item() == pytest.approx(expected.parts[part].item(), rel=1e-12)
        assert terms.parts[part].item() > 0


@pytest.mark.parametrize("make", FAMILY)
@pytest.mark.parametrize("kappa", [0.0, 1.0])
def test_before_the_ramp_it_is_natural_training_and_regularisers(make: Any, kappa: float) -> None:
    chain = tiny_chain(norm=True, dtype=torch.float32)
    terms = make()(chain, tiny_batch(eps=0.0, ramp=0.0, kappa=kappa, dtype=torch.float32))
    terms.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in chain.parameters() if p.grad is not None)
    natural = total(IBP(), tiny_chain(norm=True), tiny_batch(kappa=0.0))
    assert terms.parts["robust" if kappa else "natural"].item() == pytest.approx(natural, abs=1e-3)
    assert terms.parts.keys() >= {"tightness", "balance"}


@pytest.mark.parametrize("make", FAMILY)
def test_gradients_stay_finite_where_losses_vanish(make: Any) -> None:
    chain = tiny_chain(dtype=torch.float32)
    with torch.no_grad():
        chain.weights()[-1].zero_()
        chain.module[-1].bias.copy_(torch.tensor([200.0, 0.0, 0.0]))  # class 0, whatever the input
    batch = tiny_batch(kappa=1.0, ramp=1.0, dtype=torch.float32)
    batch = replace(batch, y=torch.zeros_like(batch.y))
    terms = make(alpha=0.5, l1=0.0)(chain, batch)
    assert terms.total.item() == pytest.approx(0, abs=1e-9)
    terms.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in chain.parameters())


def test_nonsense_is_refused() -> None:
    assert (LOSSES["mtl-ibp"], LOSSES["cc-ibp"], LOSSES["exp-ibp"]) == (MTLIBP, CCIBP, ExpIBP)
    for make, name in zip(FAMILY, ["mtl-ibp", "cc-ibp", "exp-ibp", "exp-ibp"], strict=True):
        with pytest.raises(UsageError, match=rf"{name}: alpha is 2\.0; expected a number from 0 to 1"):
            make(alpha=2.0)
        with pytest.raises(UsageError, match=rf"{name}: attack_inflation is -1\.0; expected a number at least 0"):
            make(attack_inflation=-1.0)

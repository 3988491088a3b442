"""Adversarial training, against its formula with an attack written out."""

import numpy as np
import pytest
import torch
from chains import tiny_batch, tiny_chain
from torch import Tensor

from surebound.errors import UsageError
from surebound.train.attack import TrainAttack
from surebound.train.batch import Draws
from surebound.train.losses.pgd import PGDTraining


def cross_entropy(z: Tensor, y: Tensor) -> Tensor:
    return z.exp().sum(1).log() - z[torch.arange(len(y)), y]


def climb(chain_seed: int, steps: int) -> tuple[Tensor, Tensor]:
    """The attack by hand, on the module itself: its points, and the losses there."""
    module, batch = tiny_chain(seed=chain_seed).module, tiny_batch()
    lower, upper = (batch.x - 0.05).clamp(0, 1), (batch.x + 0.05).clamp(0, 1)
    x = lower + Draws(1, 7, size=6).uniform(2, 6, 6).double() * (upper - lower)
    for _ in range(steps):
        x = x.detach().requires_grad_()
        cross_entropy(module(x), batch.y).sum().backward()
        assert x.grad is not None
        x = torch.min(torch.max(x + 0.25 * 0.05 * x.grad.sign(), lower), upper)
    return x.detach(), cross_entropy(module(x), batch.y).detach()


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_the_total_is_the_formula(kappa: float) -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=kappa)
    natural = cross_entropy(chain.module(batch.x), batch.y).mean().item()
    adversarial = climb(0, 8)[1].mean().item()
    weights = sum(float(w.detach().abs().sum()) for w in chain.weights())
    terms = PGDTraining(l1=0.01)(chain, batch)
    expected = kappa * adversarial + (1 - kappa) * natural + 0.01 * weights
    assert terms.total.item() == pytest.approx(expected, rel=1e-10)
    assert adversarial > natural
    keys = {"l1"} | ({"natural"} if kappa < 1 else set()) | ({"adversarial"} if kappa > 0 else set())
    assert terms.parts.keys() == keys


def test_the_attacks_points_are_those_by_hand() -> None:
    found = TrainAttack(steps=5).run(tiny_chain(seed=4).layers(), tiny_batch())
    np.testing.assert_allclose(found.numpy(), climb(4, 5)[0].numpy(), rtol=0, atol=1e-12)


def test_gradients_go_through_the_weights_alone() -> None:
    """Points are constants: the gradient is that of the plain loss at the points."""
    chain, batch = tiny_chain(), tiny_batch(kappa=1.0)
    PGDTraining()(chain, batch).total.backward()
    module, (x, _) = tiny_chain().module, climb(0, 8)
    cross_entropy(module(x), batch.y).mean().backward()
    for p, q in zip(chain.module.parameters(), module.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-9, atol=1e-12)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match=r"pgd: l1 is -0\.1; expected a number at least 0"):
        PGDTraining(l1=-0.1)

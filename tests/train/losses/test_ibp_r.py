"""IBP-R, against eq. 6 of the paper in NumPy on the dense matrices of the network."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from chains import dense_layers, tiny_batch, tiny_chain
from numpy.typing import NDArray
from torch import nn

from surebound.errors import UsageError
from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch
from surebound.train.learner import Layers, Learner
from surebound.train.losses.ibp_r import IBPR, hull_areas

Array = NDArray[np.float64]


def areas(chain: Learner, batch: Batch) -> Array:
    """Σ_j [−l̂_j]₊ᵀ [û_j]₊ over all affine layers, the logits among them. # (batch, layers)"""
    mean, std = chain.module[0].mean.numpy(), chain.module[0].std.numpy()
    x = batch.x.numpy()
    l = ((np.clip(x - batch.eps, 0, 1) - mean) / std).reshape(len(x), -1)  # noqa: E741
    u = ((np.clip(x + batch.eps, 0, 1) - mean) / std).reshape(len(x), -1)
    found = []
    for W, b in dense_layers(chain.module):
        positive, negative = np.maximum(W, 0), np.minimum(W, 0)
        lower, upper = l @ positive.T + u @ negative.T + b, u @ positive.T + l @ negative.T + b
        found.append((np.maximum(-lower, 0) * np.maximum(upper, 0)).sum(1))
        l, u = np.maximum(lower, 0), np.maximum(upper, 0)  # noqa: E741
    return np.stack(found, axis=1)


def cross_entropy(z: Array, y: Array) -> Array:
    return np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]


def expected(loss: IBPR, chain: Learner, batch: Batch, *, keep: Array | None = None) -> float:
    """Eq. 6 with the loss's own attack, which has its own tests."""
    y = batch.y.numpy()
    with torch.no_grad():
        clean = chain.module(batch.x).numpy()
    attacked = chain.module(loss.attack.run(chain.layers(), batch)).detach().numpy()
    hull = areas(chain, batch)
    hull = hull.mean(1) if loss.layer_mean else hull.sum(1)
    hull = hull if keep is None else hull * keep
    robust = cross_entropy(attacked, y).mean() + loss.half_rho * hull.mean()
    l1 = sum(np.abs(m.weight.detach().numpy()).sum() for m in chain.module if isinstance(m, nn.Conv2d | nn.Linear))
    return float(batch.kappa * robust + (1 - batch.kappa) * cross_entropy(clean, y).mean() + loss.l1 * l1)


@pytest.mark.parametrize("kappa", [0.0, 0.37, 1.0])
@pytest.mark.parametrize("options", [{}, {"half_rho": 0.3, "l1": 1e-3}, {"half_rho": 0.3, "layer_mean": True}], ids=str)
def test_the_total_is_eq_6(options: dict[str, Any], kappa: float) -> None:
    loss, chain = IBPR(**options), tiny_chain()
    total = loss(chain, tiny_batch(kappa=kappa, eps=0.1)).total.item()
    assert total == pytest.approx(expected(loss, chain, tiny_batch(kappa=kappa, eps=0.1)), rel=1e-10)


def test_all_layers_with_a_relu_and_the_logits_count() -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=1.0, eps=0.2)
    per_layer = areas(chain, batch)
    assert per_layer.shape == (6, 4) and (per_layer.mean(0) > 1e-3).all()
    parts = [IBPR(half_rho=0.5, layer_mean=mean)(chain, batch).parts["hull"].item() for mean in (False, True)]
    assert parts == pytest.approx([0.5 * per_layer.sum(1).mean(), 0.125 * per_layer.sum(1).mean()], rel=1e-10)


def test_the_area_of_stable_neurons_is_zero() -> None:
    lower, upper = (
        torch.tensor([[-2.0, 1.0, -3.0], [-1.0, -1.0, 0.0]]),
        torch.tensor([[3.0, 2.0, -1.0], [1.0, 0.0, 5.0]]),
    )
    assert hull_areas([(lower, upper), (lower, upper)]).tolist() == [12.0, 2.0]


@pytest.mark.parametrize("mask_by", ["attack", "clean"])
@pytest.mark.parametrize("kappa", [0.4, 1.0])
def test_the_mask_drops_what_is_misclassified(mask_by: Any, kappa: float) -> None:
    """Labels are chosen so that some samples are right, some fall to the attack, and some are wrong already."""
    attack = TrainAttack(steps=4)
    loss = IBPR(half_rho=0.2, mask=True, mask_by=mask_by, attack=attack)
    chain = tiny_chain()
    fresh = tiny_batch(size=24, eps=0.05, kappa=kappa)
    with torch.no_grad():
        fresh = replace(fresh, y=chain.module(fresh.x).argmax(1))
    fresh.y[:6] = (fresh.y[:6] + 1) % 3
    found = attack.run(chain.layers(), remade(fresh))
    clean, attacked = (chain.module(x).argmax(1) == fresh.y for x in (fresh.x, found))
    assert int(clean.sum()) == 18 and 2 <= int(attacked.sum()) <= 16  # the two masks differ, and neither is trivial
    keep = (attacked if mask_by == "attack" else clean).double().numpy()
    total = loss(chain, remade(fresh)).total.item()
    assert total == pytest.approx(expected(loss, chain, remade(fresh), keep=keep), rel=1e-10)
    assert total < replace(loss, mask=False)(chain, remade(fresh)).total.item() - 1e-4


def remade(batch: Batch) -> Batch:
    """The same batch with its draws from the start."""
    return replace(batch, draws=tiny_batch(size=len(batch.x)).draws)


@pytest.mark.parametrize(
    ("options", "kappa", "keys", "attacks", "clean"),
    [
        ({}, 0.0, {"l1", "natural"}, 0, 1),
        ({}, 1.0, {"l1", "adversarial", "hull"}, 9, 0),  # eight steps of the attack, and the point it found
        ({}, 0.5, {"l1", "natural", "adversarial", "hull"}, 9, 1),
        ({"mask": True}, 1.0, {"l1", "adversarial", "hull"}, 9, 0),
        ({"mask": True, "mask_by": "clean"}, 1.0, {"l1", "adversarial", "hull"}, 9, 1),
    ],
)
def test_only_what_counts_is_computed(
    options: dict[str, Any], kappa: float, keys: set[str], attacks: int, clean: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    original = Layers.logits
    monkeypatch.setattr(Layers, "logits", lambda self, x, **kw: (calls.append(1), original(self, x, **kw))[1])
    terms = IBPR(**options)(tiny_chain(), tiny_batch(kappa=kappa))
    assert terms.parts.keys() == keys and len(calls) == attacks + clean
    calls.clear()
    IBPR(**options)(tiny_chain(norm=True), tiny_batch(kappa=kappa))
    assert len(calls) == attacks  # batch norms have already computed f on the clean batch


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("options", [{}, {"mask": True}, {"mask": True, "mask_by": "clean"}], ids=str)
def test_gradients_are_those_of_differences(options: dict[str, Any], norm: bool) -> None:
    """Along a random direction in the space of all parameters."""
    loss = IBPR(half_rho=0.1, l1=1e-3, **options)
    chain = tiny_chain(norm=norm)
    loss(chain, tiny_batch()).total.backward()
    generator = torch.Generator().manual_seed(0)
    ways = [torch.randn(p.shape, generator=generator).double() for p in chain.parameters()]
    slope = sum(
        float((p.grad * way).sum()) for p, way in zip(chain.parameters(), ways, strict=True) if p.grad is not None
    )
    values = []
    for h in (1e-6, -1e-6):
        moved = tiny_chain(norm=norm)
        with torch.no_grad():
            for p, way in zip(moved.parameters(), ways, strict=True):
                p.add_(way, alpha=h)
        values.append(loss(moved, tiny_batch()).total.item())
    assert slope == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)


@pytest.mark.parametrize("options", [{"half_rho": -1e-4}, {"l1": -1.0}, {"l1": float("nan")}], ids=str)
def test_nonsense_is_refused(options: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=r"ibp-r: (half_rho|l1) is .*; expected a number at least 0"):
        IBPR(**options)

"""IBP, against its formula in NumPy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chains import tiny_batch, tiny_chain
from interval_oracle import cross_entropies, intervals, logits, matrices, pixels, slopes, total, worst

from surebound.errors import UsageError
from surebound.train import LOSSES
from surebound.train.losses.ibp import IBP


@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0])
def test_the_total_is_the_formula(kappa: float) -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=kappa)
    x, lower, upper, y = pixels(batch)
    net = matrices(chain)
    natural = cross_entropies(logits(net, x), y).mean()
    robust = cross_entropies(worst(net, lower, upper, y), y).mean()
    weights = sum(float(w.detach().abs().sum()) for w in chain.weights())
    terms = IBP(l1=0.01)(chain, batch)
    assert terms.total.item() == pytest.approx(kappa * robust + (1 - kappa) * natural + 0.01 * weights, rel=1e-10)
    assert float(terms.parts["l1"]) == pytest.approx(0.01 * weights)
    assert terms.parts.keys() == {"l1"} | ({"robust"} if kappa > 0 else set()) | ({"natural"} if kappa < 1 else set())
    assert not any(part.requires_grad for part in terms.parts.values())


def test_a_separate_last_layer_is_looser() -> None:
    chain, batch = tiny_chain(), tiny_batch(kappa=1.0)
    _, lower, upper, y = pixels(batch)
    low, high = intervals(matrices(chain), lower, upper)[-1]
    z = high.copy()
    z[np.arange(len(y)), y] = low[np.arange(len(y)), y]
    separate = total(IBP(last_layer="separate"), chain, batch)
    assert separate == pytest.approx(cross_entropies(z, y).mean(), rel=1e-10)
    assert total(IBP(), chain, batch) < separate - 1e-3


@pytest.mark.parametrize("norm", [False, True])
def test_the_loss_bounds_that_of_every_point(norm: bool) -> None:
    chain, batch = tiny_chain(norm=norm), tiny_batch(kappa=1.0)
    bound = total(IBP(), chain, batch)
    lower, upper = batch.box
    layers = chain.layers(batch.x)
    generator = torch.Generator().manual_seed(0)
    found = -np.inf
    for _ in range(200):
        x = torch.where(torch.rand(batch.x.shape, generator=generator) < 0.5, lower, upper)
        found = max(found, torch.nn.functional.cross_entropy(layers.logits(x), batch.y).item())
    assert found <= bound
    natural = total(IBP(), chain, replace(batch, kappa=0.0))
    assert total(IBP(), chain, replace(batch, eps=0.0)) == pytest.approx(natural, rel=1e-12)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("last_layer", ["fused", "separate"])
def test_gradients_are_those_of_differences(norm: bool, last_layer: str) -> None:
    loss = IBP(l1=1e-3, last_layer=last_layer)  # type: ignore[arg-type]
    slope, difference = slopes(loss, tiny_chain(norm=norm), tiny_batch)
    assert slope == pytest.approx(difference, rel=1e-5)


def test_single_precision() -> None:
    double = total(IBP(), tiny_chain(), tiny_batch())
    single = IBP()(tiny_chain(dtype=torch.float32), tiny_batch(dtype=torch.float32)).total
    assert single.dtype == torch.float32
    assert single.item() == pytest.approx(double, rel=1e-4)


def test_a_step_against_the_gradient_helps() -> None:
    chain = tiny_chain()
    loss = IBP()
    first = total(loss, chain, tiny_batch())
    optimiser = torch.optim.SGD(chain.parameters(), lr=0.05)
    for _ in range(30):
        optimiser.zero_grad()
        loss(chain, tiny_batch()).total.backward()
        optimiser.step()
    assert total(loss, chain, tiny_batch()) < 0.8 * first


def test_nonsense_is_refused() -> None:
    assert LOSSES["ibp"] is IBP
    with pytest.raises(UsageError, match=r"ibp: l1 is -1\.0; expected a number at least 0"):
        IBP(l1=-1.0)

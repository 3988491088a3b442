"""Passes over wide networks look at the clock often, and chunks of rows do not change what is bounded."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from networks import random_box, random_conv, random_fc, random_residual

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import PASS_PRODUCTS, LayerBounding, fold_network, settle_layers, tighten_layers
from surebound.bounds.timed import timed
from surebound.network.cost import products
from surebound.network.graph import Network

MAKES = {
    "fc": lambda rng: random_fc(rng, (4, 12, 12, 12, 3)),
    "conv": random_conv,
    "residual": random_residual,
}


def enclosure(network: Network, seed: int = 0) -> Enclosure:
    lower, upper = random_box(np.random.default_rng(seed), network, radius=0.5)
    return Enclosure(network, lower, upper)


def bounds(made: Enclosure) -> list[torch.Tensor]:
    return [end for k in range(len(made.network.layers)) for end in made.layer(k)]


PASSES: dict[str, Callable[[Enclosure, Callable[[], None], int], object]] = {
    "settle": lambda made, check, most: settle_layers(made, check, most=most),
    "tighten": lambda made, check, most: tighten_layers(made, LayerBounding(ascent=None), check, most=most),
    "fold": lambda made, check, most: fold_network(made, LayerBounding(), check, most=most),
}


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("kind", MAKES)
def test_small_chunks_bound_the_same_and_look_more_often(kind: str, name: str) -> None:
    network = MAKES[kind](np.random.default_rng(3))
    looks = {}
    found = {}
    for limit in (PASS_PRODUCTS, 1):
        made, count = enclosure(network), 0

        def check() -> None:
            nonlocal count
            count += 1

        PASSES[name](made, check, limit)
        looks[limit], found[limit] = count, bounds(made)
    few, many = looks.values()
    assert 0 < few < many
    for one, other in zip(*found.values(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", PASSES)
def test_the_first_look_that_finds_the_time_up_ends_it(name: str) -> None:
    network = random_conv(np.random.default_rng(3))
    count = 0

    def check() -> None:
        nonlocal count
        count += 1
        if count > 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        PASSES[name](enclosure(network), check, PASS_PRODUCTS)
    assert count == 4


def test_a_timed_form_is_the_form() -> None:
    network = random_conv(np.random.default_rng(3))
    made = enclosure(network)
    form = GraphForm.at(made, network.output)
    calls: list[str] = []
    slow = timed(form, lambda: calls.append("look"))
    start, x = torch.randn(3, form.columns, dtype=torch.float64), torch.randn(3, form.inputs, dtype=torch.float64)
    for dtype in (torch.float64, torch.float32):
        plain, other = form.to(dtype), slow.to(dtype)
        one, two = (f.backward(start.to(dtype), lambda _, lam: lam * 0.5) for f in (plain, other))
        assert torch.equal(one.at_input, two.at_input) and torch.equal(one.error, two.error)
        pairs = zip(*(f.forward(x.to(dtype), lambda _, v: v.clamp_min(0.0)) for f in (plain, other)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
    assert len(calls) == 2 * 2 * form.depth
    assert (slow.neurons, slow.inputs, slow.layers) == (form.neurons, form.inputs, form.layers)


def test_products_by_hand() -> None:
    network = random_fc(np.random.default_rng(0), (4, 12, 5, 3))
    assert products(network, network.output) == 4 * 12 + 12 * 5 + 5 * 3
    assert products(network, network.before(0)) == 4 * 12
    assert products(network, 0) == 0

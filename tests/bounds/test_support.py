"""Rows bounded over the part of a folded form that they depend on have the bounds that they have over all of it."""

import numpy as np
import pytest
import torch
from forms import folded
from networks import NETWORKS, Builder, random_box, random_fc

from surebound.bounds import support
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.root import LayerBounding, best_bounds, bound_neurons, interval_is_exact, one_hot
from surebound.bounds.support import groups, restricted
from surebound.network.graph import Network
from surebound.network.patch import local_order


def local_network(rng: np.random.Generator) -> Network:
    """(2, 12, 12) → conv s2 → ReLU → conv → ReLU → conv s2 → ReLU → FC 4 → ReLU → FC 2."""
    build = Builder(rng, (2, 12, 12))
    node = build.relu(build.conv(0, 3, stride=2))
    node = build.relu(build.conv(node, 3))
    node = build.relu(build.conv(node, 4, stride=2))
    node = build.relu(build.linear(build.flatten(node), 4))
    build.linear(node, 2)
    return build.network()


@pytest.mark.parametrize("bounding", [LayerBounding(ascent=None), LayerBounding()], ids=["fixed", "ascent"])
def test_bounds_over_the_support_are_those_over_the_form(bounding: LayerBounding, rng: np.random.Generator) -> None:
    network = local_network(rng)
    form = folded(network, *random_box(rng, network, radius=0.2))
    node = network.before(2)
    index = torch.arange(network.width(2))
    shape = network.nodes[node].shape
    before = FoldedForm.empty(form.enclosure)
    for block, where in zip(form.blocks[:2], form.layers, strict=False):
        rows = before.fold({network.before(len(before.blocks)): _unit(block.index, network, len(before.blocks))})
        before = before.append(rows, block.index, form.lower[where], form.upper[where])
    rows = before.fold({node: one_hot(index, len(index)).reshape(-1, *shape)})
    whole = best_bounds(before, rows, bounding)[:2]
    seen = torch.zeros(len(rows), dtype=torch.int64)
    for part, near, own in groups(before, rows, local_order(index, shape), group=5, worth=1.0):
        assert near.neurons < before.neurons
        assert near.inputs < before.inputs
        seen[part] += 1
        for found, expected in zip(best_bounds(near, own, bounding)[:2], whole, strict=True):
            assert torch.allclose(found, expected[part], rtol=1e-4, atol=1e-6)
    assert bool((seen == 1).all())


def _unit(index: torch.Tensor, network: Network, k: int) -> torch.Tensor:
    return one_hot(index, network.width(k)).reshape(-1, *network.nodes[network.before(k)].shape)


def test_a_support_holds_all_that_a_row_depends_on(rng: np.random.Generator) -> None:
    """Neither a pass back nor a pass forward sees a column that is left out."""
    network = local_network(rng)
    form = folded(network, *random_box(rng, network, radius=0.2))
    rows = form.fold({network.before(2): _unit(torch.tensor([0, 3]), network, 2)})
    masks = [block.weight != 0 for block in form.blocks]
    columns = support._support(form, masks, rows.coefficients != 0)
    assert 0 < int(columns.sum()) < form.columns
    small = restricted(form, columns)
    x = torch.from_numpy(rng.normal(size=(7, form.inputs)))
    relu = lambda _, xhat: xhat.clamp_min(0.0)  # noqa: E731
    _, whole = form.forward(x, relu)
    _, part = small.forward(x[:, columns[: form.inputs]], relu)
    assert torch.allclose(part, whole[:, columns], rtol=1e-12, atol=1e-12)


def test_a_restricted_form_keeps_its_errors(rng: np.random.Generator) -> None:
    network = local_network(rng)
    form = folded(network, *random_box(rng, network, radius=0.2))
    columns = torch.from_numpy(rng.uniform(size=form.columns) < 0.5)
    small = restricted(form, columns)
    for block, part, where in zip(form.blocks, small.blocks, form.layers, strict=True):
        own = columns[form.inputs :][where]
        assert torch.equal(part.error, block.error[own])
        assert (part.error > 0).all()


def test_dense_rows_are_bounded_together(rng: np.random.Generator) -> None:
    network = random_fc(rng, (6, 40, 40, 3))
    form = folded(network, *random_box(rng, network, radius=0.2))
    rows = form.fold({network.output: torch.eye(3, dtype=torch.float64)})
    ((part, near, own),) = groups(form, rows, torch.arange(3))
    assert near is form
    assert own is rows
    assert part.tolist() == [0, 1, 2]


@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 5, 3), (1, 4, 4)])
def test_local_order_is_a_permutation(shape: tuple[int, ...], rng: np.random.Generator) -> None:
    count = int(np.prod(shape))
    index = torch.from_numpy(rng.permutation(count)[: max(count // 2, 1)])
    order = local_order(index, shape)
    assert sorted(order.tolist()) == list(range(len(index)))


@pytest.mark.parametrize("name", NETWORKS)
def test_where_intervals_are_exact_a_pass_finds_nothing(name: str, rng: np.random.Generator) -> None:
    network = NETWORKS[name](rng)
    enclosure = Enclosure(network, *random_box(rng, network, radius=0.2))
    found = [interval_is_exact(network, network.before(k)) for k in range(len(network.layers))]
    assert found == [k == 0 for k in range(len(found))]
    node, index = network.before(0), torch.arange(network.width(0))
    low, high = bound_neurons(enclosure, node, index, LayerBounding(ascent=None), lambda: None)
    for bound, end in zip((low, high), enclosure.layer(0), strict=True):
        assert torch.allclose(bound, end, rtol=1e-9, atol=1e-9)

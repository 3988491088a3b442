"""Interval bounds for training, against NumPy's [W]₊/[W]₋ form, sampling and enumeration."""

import itertools

import numpy as np
import pytest
import torch
from chains import affine_ops, tiny_batch, tiny_chain
from interval_oracle import intervals, logits, matrices, pixels, worst

from surebound.network.graph import value
from surebound.train.interval import (
    Boxes,
    affine_middle,
    ends,
    margin_weights,
    middle,
    propagate,
    robust_loss,
    worst_logits,
)
from surebound.train.learner import Learner


def evaluated_chain(norm: bool) -> Learner:
    """A chain whose batch norms have seen some data."""
    chain = tiny_chain(norm=norm)
    for seed in range(3):
        chain.layers(tiny_batch(seed=seed).x)
    return chain


@pytest.mark.parametrize("norm", [False, True])
def test_the_oracle_is_the_network(norm: bool) -> None:
    chain, batch = evaluated_chain(norm), tiny_batch()
    expected = chain.module.eval()(batch.x).detach().numpy()
    np.testing.assert_allclose(logits(matrices(chain), pixels(batch)[0]), expected, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(chain.layers().logits(batch.x).detach().numpy(), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("eps", [0.0, 0.05, 0.4])
def test_bounds_are_those_of_the_papers_formula(norm: bool, eps: float) -> None:
    chain, batch = evaluated_chain(norm), tiny_batch(eps=eps)
    _, lower, upper, y = pixels(batch)
    layers = chain.layers()
    boxes = propagate(layers, *batch.box)
    found = [*boxes.before, boxes.output(layers)]
    expected = intervals(matrices(chain), lower, upper)
    assert len(found) == len(expected) == 4
    for (low, high), (expected_low, expected_high) in zip(found, expected, strict=True):
        np.testing.assert_allclose(low.detach().flatten(1).numpy(), expected_low, rtol=1e-9, atol=1e-10)
        np.testing.assert_allclose(high.detach().flatten(1).numpy(), expected_high, rtol=1e-9, atol=1e-10)
    fused = worst_logits(layers, boxes, batch.y).detach().numpy()
    np.testing.assert_allclose(fused, worst(matrices(chain), lower, upper, y), rtol=1e-9, atol=1e-10)
    np.testing.assert_array_equal(fused[np.arange(len(y)), y], 0)
    separate = expected[-1][1] - expected[-1][0][np.arange(len(y)), y][:, None]
    others = np.arange(3) != y[:, None]
    assert np.all((fused <= separate + 1e-10)[others])


@pytest.mark.parametrize("norm", [False, True])
def test_values_of_sampled_inputs_lie_in_the_bounds(norm: bool) -> None:
    chain, batch = tiny_chain(norm=norm), tiny_batch(eps=0.1)
    layers = chain.layers(batch.x)  # with batch norms, the statistics of the clean batch
    boxes = propagate(layers, *batch.box)
    bounds = [*boxes.before, boxes.output(layers)]
    generator = torch.Generator().manual_seed(5)
    lower, upper = batch.box
    for attempt in range(200):
        share = torch.rand(batch.x.shape, generator=generator, dtype=torch.float64)
        x = layers.normalise(lower + (upper - lower) * (share.round() if attempt % 2 else share))
        for k, (layer, (low, high)) in enumerate(zip(affine_ops(layers), bounds, strict=True)):
            x = value(layer, x.relu() if k else x)
            assert (x >= low - 1e-12).all() and (x <= high + 1e-12).all()


def test_in_training_batch_norms_take_the_statistics_of_the_clean_batch() -> None:
    chain, batch = tiny_chain(norm=True), tiny_batch()
    layers = chain.layers(batch.x)
    point = propagate(layers, batch.x, batch.x).output(layers)  # of a box that is a point
    expected = chain.module.train()(batch.x)
    torch.testing.assert_close(point[0], expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(point[1], expected, rtol=1e-10, atol=1e-10)
    assert layers.natural is not None
    torch.testing.assert_close(layers.natural, expected, rtol=1e-10, atol=1e-10)


def test_worst_logits_are_the_maxima_over_the_corners_of_the_hidden_box() -> None:
    chain, batch = tiny_chain(), tiny_batch()
    layers = chain.layers()
    generator = torch.Generator().manual_seed(2)
    lower = torch.rand(6, 8, generator=generator, dtype=torch.float64)
    upper = lower + torch.rand(6, 8, generator=generator, dtype=torch.float64)
    found = worst_logits(layers, Boxes([], {layers.before_last: middle(lower, upper)}), batch.y)
    corners = torch.tensor(list(itertools.product([False, True], repeat=8)))  # (256, 8)
    for n, y in enumerate(batch.y):
        z = value(layers.last, torch.where(corners, upper[n], lower[n]))
        torch.testing.assert_close(found[n], (z - z[:, y : y + 1]).amax(0), rtol=1e-12, atol=1e-12)


def test_margin_weights_are_differences_of_rows() -> None:
    chain, batch = tiny_chain(), tiny_batch()
    last = chain.layers().last
    rows, constant = margin_weights(last, batch.y)
    h = torch.rand(6, 8, dtype=torch.float64)
    z = value(last, h)
    expected = z.gather(1, batch.y[:, None]) - z
    torch.testing.assert_close(torch.einsum("bci,bi->bc", rows, h) + constant, expected)


def test_propagation_can_start_at_any_block() -> None:
    chain, batch = tiny_chain(), tiny_batch()
    layers = chain.layers()
    whole = propagate(layers, *batch.box)
    assert len(whole.before) == 3
    rest = propagate(layers, *(end.relu() for end in whole.before[1]), start=2)
    torch.testing.assert_close(rest.before, whole.before[2:])
    torch.testing.assert_close(rest.output(layers), whole.output(layers))
    third = ends(*affine_middle(affine_ops(layers)[2], middle(*whole.before[1], rectify=True)))
    torch.testing.assert_close(third, whole.before[2])


@pytest.mark.parametrize("norm", [False, True])
def test_the_robust_losss_gradient_is_that_of_differences(norm: bool) -> None:
    chain, batch = tiny_chain(norm=norm), tiny_batch()
    weight = chain.weights()[1]
    loss, bounds = robust_loss(chain.layers(batch.x), *batch.box, batch.y)
    assert len(bounds.before) == 3
    (gradient,) = torch.autograd.grad(loss, weight)
    direction = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = []
    with torch.no_grad():
        for step in (1e-6, -2e-6):
            weight += step * direction
            values.append(float(robust_loss(chain.layers(batch.x), *batch.box, batch.y)[0]))
    assert float((gradient * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-6, rel=1e-5)

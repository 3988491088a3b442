"""Every training method on networks that are no chains: residual ones, pooling, other activations."""

from functools import partial

import pytest
import torch
from branched import GRAPHS, SMOOTH, graph
from chains import SHAPE, tiny_batch
from interval_oracle import slopes

from surebound.bounds import BOUNDS
from surebound.errors import UsageError
from surebound.load.torch import load_torch
from surebound.train import LOSSES
from surebound.train.attack import TrainAttack
from surebound.train.batch import Loss
from surebound.train.cauchy import Projections
from surebound.train.interval import propagate
from surebound.train.learner import Learner
from surebound.train.linear_bounds import Slopes, fastlin_layers, lower_bounds, rival_rows
from surebound.train.losses.cap import projected_layers
from surebound.train.losses.colt import COLT
from surebound.train.losses.taps import TAPS
from surebound.train.zonotope import enclose

PIECEWISE = [name for name in GRAPHS if name not in SMOOTH]


def evaluated(name: str) -> Learner:
    """A graph whose batch norms have seen some data."""
    learner = graph(name)
    for seed in range(3):
        learner.layers(tiny_batch(seed=seed).x)
    return learner


# ── Losses ──


def expect_gradient(loss: Loss, learner: Learner, stage: int = 0) -> None:
    """That of central differences along a random direction of all parameters that are trained, on the first of some
    batches where those settle: attacks jump, and their total with them."""
    for seed in range(1, 9):
        (slope, far), (_, near) = (
            slopes(loss, learner, partial(tiny_batch, seed=seed, stage=stage), start=stage, h=h) for h in (2e-7, 5e-8)
        )
        if far == pytest.approx(near, rel=1e-4, abs=1e-5):
            assert slope == pytest.approx(near, rel=2e-4, abs=2e-5)
            return
    pytest.fail("differences settle nowhere")


@pytest.mark.parametrize("graph_name", GRAPHS)
@pytest.mark.parametrize("name", LOSSES)
def test_gradients_are_those_of_central_differences(name: str, graph_name: str) -> None:
    """Along a random direction of all parameters, while ε rises; later TAPS's gradient is not that of its value, nor
    is ever that of a geometric mean."""
    learner = graph(graph_name)
    if name in ("taps", "staps") and learner.blocks < 3:
        pytest.skip("has no cut that far from the end")
    expect_gradient(COLT(estimator="median") if name == "colt" else LOSSES[name](), learner)


@pytest.mark.parametrize("graph_name", ["residual", "pre-activated", "max pool", "leaky", "gelu"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_box_without_a_width_gives_the_natural_loss(name: str, graph_name: str) -> None:
    learner, batch = graph(graph_name), tiny_batch(kappa=1.0, ramp=1.0, eps=0.0)
    if name in ("taps", "staps") and learner.blocks < 3:
        pytest.skip("has no cut that far from the end")
    terms = LOSSES[name]()(learner, batch)
    beside = sum(float(terms.parts.get(part, 0.0)) for part in ("l1", "stability"))
    with torch.no_grad():
        z = learner.module.train()(batch.x)
    each = torch.logsumexp(z, 1) - z.gather(1, batch.y[:, None]).squeeze(1)
    expected = (each.square() if name in ("taps", "staps") else each).mean().item()
    assert terms.total.item() - beside == pytest.approx(expected, rel=1e-6)


# ── Bounds ──


@pytest.mark.parametrize("name", GRAPHS)
def test_intervals_are_the_verifiers_and_hold_samples(name: str) -> None:
    learner, batch = evaluated(name), tiny_batch(eps=0.05, size=3)
    layers = learner.layers()
    boxes = propagate(layers, *batch.box)
    found = BOUNDS["interval"](load_torch(learner.module, SHAPE), *batch.box)
    mine = [*boxes.before, boxes.output(layers)]
    assert len(mine) == len(found.lower)
    for (low, high), lower, upper in zip(mine, found.lower, found.upper, strict=True):
        torch.testing.assert_close(low.flatten(1), lower, rtol=1e-7, atol=1e-7)
        torch.testing.assert_close(high.flatten(1), upper, rtol=1e-7, atol=1e-7)
    samples_lie_within(learner, batch.box, mine)


def samples_lie_within(learner: Learner, box, bounds, *, share: float = 1.0) -> None:
    """x̂ of every layer, and the logits, at random points and corners."""
    layers, generator = learner.layers(), torch.Generator().manual_seed(5)
    inside = [[] for _ in bounds]
    for attempt in range(60):
        unit = torch.rand(box[0].shape, generator=generator, dtype=torch.float64)
        x = torch.lerp(*box, unit.round() if attempt % 2 else unit)
        seen = []

        def record(k, xhat, seen=seen):
            seen.append(xhat)
            return layers.network.activate(k, xhat)

        logits = layers.network.trace(layers.normalise(x), record)
        for k, ((low, high), at) in enumerate(zip(bounds, [*seen, logits], strict=False)):
            inside[k].append(((at >= low - 1e-9) & (at <= high + 1e-9)).double().mean().item())
    assert all(sum(i) / len(i) >= share for i in inside)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("kind", ["adaptive", "zero", "one", "parallel"])
def test_linear_bounds_hold_samples(name: str, kind: Slopes) -> None:
    learner, batch = evaluated(name), tiny_batch(eps=0.05)
    layers = learner.layers()
    boxes, (rows, constant, rivals) = propagate(layers, *batch.box), rival_rows(layers, batch.y)
    found = lower_bounds(layers, boxes.before, batch.box, rows, constant, slopes=kind)
    generator = torch.Generator().manual_seed(5)
    for attempt in range(60):
        unit = torch.rand(batch.x.shape, generator=generator, dtype=torch.float64)
        z = layers.logits(torch.lerp(*batch.box, unit.round() if attempt % 2 else unit))
        assert (z.gather(1, batch.y[:, None]) - z.gather(1, rivals) >= found - 1e-9).all()


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(("method", "kind"), [("crown", "adaptive"), ("fastlin", "parallel")])
def test_on_the_verifiers_layers_linear_bounds_are_the_verifiers(name: str, method: str, kind: Slopes) -> None:
    """Those of the logits, up to the intervals that the verifier's are intersected with."""
    learner, box = evaluated(name), tiny_batch(eps=0.05, size=3).box
    layers, found = learner.layers(), BOUNDS[method](load_torch(learner.module, SHAPE), *box)
    shapes = [node.shape for node in layers.network.nodes]
    hidden = [
        (low.reshape(-1, *shapes[node]), high.reshape(-1, *shapes[node]))
        for low, high, node in zip(found.lower, found.upper, layers.network.layers, strict=False)
    ]
    before = shapes[layers.before_last]
    rows = layers.last.weight.reshape(-1, *before).expand(3, -1, *before)
    constant = torch.zeros(1) if layers.last.bias is None else layers.last.bias
    constant = constant.expand(3, len(layers.last.weight))
    low = lower_bounds(layers, hidden, box, rows, constant, slopes=kind)
    high = -lower_bounds(layers, hidden, box, -rows, -constant, slopes=kind)
    assert (low <= found.lower[-1] + 1e-7).all() and (high >= found.upper[-1] - 1e-7).all()
    tight = (low - found.lower[-1]).abs() < 1e-7
    assert tight.double().mean() > 0.5  # elsewhere intervals are better


@pytest.mark.parametrize("name", GRAPHS)
def test_fastlin_layers_hold_samples_and_projections_estimate_them(name: str) -> None:
    learner, batch = evaluated(name), tiny_batch(eps=0.05, size=2)
    layers = learner.layers()
    exact = fastlin_layers(layers, batch.box)
    samples_lie_within(learner, batch.box, exact)
    for groups in ("merged", "separate"):
        projections = Projections(count=2000, groups=groups)
        estimated = projected_layers(layers, batch.box, batch.draws, projections)
        for (low, high), (lower, upper) in zip(estimated, exact, strict=True):
            assert (high - low).mean().item() == pytest.approx((upper - lower).mean().item(), rel=0.1)


@pytest.mark.parametrize("name", [name for name in GRAPHS if name not in ("no cut", "no matrix")])
@pytest.mark.parametrize("groups", ["merged", "separate"])
def test_zonotopes_hold_what_activations_make_of_samples(name: str, groups) -> None:
    """Up to the last cut: almost all, since norms are estimates; and points have the gradients of autograd."""
    learner, batch = evaluated(name), tiny_batch(eps=0.05, size=2)
    layers, depth = learner.layers(), learner.blocks - 1
    projections = Projections(count=2000, groups=groups)
    zonotope = enclose(layers, batch, depth=depth, projections=projections, regularise=False).zonotope
    generator, inside = torch.Generator().manual_seed(5), []
    for attempt in range(40):
        unit = torch.rand(batch.x.shape, generator=generator, dtype=torch.float64)
        x = torch.lerp(*batch.box, unit.round() if attempt % 2 else unit)

        def record(k, xhat):
            y = layers.network.activate(k, xhat)
            if k < len(zonotope.bands):
                b = zonotope.bands[k]
                inside.append(((y - b.lam * xhat - b.shift).abs() <= b.mu + 1e-9).double().mean().item())
            return y

        layers.network.trace(layers.normalise(x), record)
    assert not inside or sum(inside) / len(inside) > 0.97
    e = torch.rand(2, sum(zonotope.sizes(depth)), dtype=torch.float64, generator=generator, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: zonotope.point(e, depth), e, fast_mode=True)


# ── Cuts ──


@pytest.mark.parametrize("name", ["residual", "plain residual", "leaky", "max pool", "pre-activated", "sigmoid"])
def test_colt_trains_block_after_block(name: str) -> None:
    for stage in range(graph(name).blocks):
        learner = graph(name)
        loss = COLT(rho=(0.1,) * learner.blocks, attack=TrainAttack(steps=2), projections=9, estimator="median")
        learner.module.requires_grad_(False)
        for p in learner.parameters(start=stage):
            p.requires_grad_(True)
        expect_gradient(loss, learner, stage)
        loss(learner, tiny_batch(stage=stage)).total.backward()
        assert all((p.grad is not None) == p.requires_grad for p in learner.parameters())


def test_without_a_cut_stages_are_refused() -> None:
    learner = graph("no cut")
    with pytest.raises(UsageError, match="taps: no single tensor cuts the network in two; expected one between"):
        TAPS()(learner, tiny_batch(ramp=1.0))
    with pytest.raises(UsageError, match="colt: got stage 1 of a network of 1 blocks"):
        COLT()(learner, tiny_batch(stage=1))

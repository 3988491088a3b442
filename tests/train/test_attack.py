"""The attack inside training: its box, its cost, its optimum, and what it leaves alone."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from chains import SHAPE, affine_ops, tiny_batch, tiny_chain
from torch import Tensor, nn

from surebound.errors import UsageError
from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Draws
from surebound.train.learner import Layers, Learner

OPTIONS = [
    TrainAttack(),
    TrainAttack(step_unit="pixel"),
    TrainAttack(start="centre"),
    TrainAttack(restarts=3, steps=3),
    TrainAttack(last_step="evaluate", decay=0.5, milestones=(2, 4)),
    TrainAttack(steps=1, last_step="evaluate"),
]


def losses(chain: Learner, batch: Batch, x: Tensor) -> Tensor:
    return F.cross_entropy(chain.layers().logits(x), batch.y, reduction="none").detach()


@pytest.mark.parametrize("attack", OPTIONS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_points_stay_in_the_box_and_do_harm(attack: TrainAttack, dtype: torch.dtype) -> None:
    chain, batch = tiny_chain(dtype=dtype), tiny_batch(eps=0.3, size=20, dtype=dtype)
    found = attack.run(chain.layers(), batch)
    lower, upper = batch.box
    assert found.dtype == dtype and found.shape == batch.x.shape and not found.requires_grad
    assert bool((found >= lower).all()) and bool((found <= upper).all())
    assert float(lower.min()) == 0.0 and float(upper.max()) == 1.0  # boxes are clipped to pixels
    if attack.updates:
        assert losses(chain, batch, found).mean() > losses(chain, batch, batch.x).mean() + 0.05


@pytest.mark.parametrize(
    ("attack", "gradients", "values"),
    [
        (TrainAttack(steps=8), 8, 8),
        (TrainAttack(steps=8, last_step="evaluate"), 7, 7),
        (TrainAttack(steps=1, last_step="evaluate"), 0, 0),
        (TrainAttack(steps=5, restarts=3), 15, 18),  # each search's last point is judged once
        (TrainAttack(steps=5, restarts=2, last_step="evaluate", start="centre"), 8, 10),
    ],
    ids=str,
)
def test_the_number_of_gradients(attack: TrainAttack, gradients: int, values: int) -> None:
    chain, batch = tiny_chain(), tiny_batch()
    f = chain.layers().detach().logits
    calls = {"values": 0, "gradients": 0}

    def count(_: Tensor) -> None:
        calls["gradients"] += 1

    def counted(x: Tensor) -> Tensor:
        calls["values"] += 1
        logits = f(x)
        if logits.requires_grad:
            logits.register_hook(count)
        return logits

    attack.search(counted, *batch.box, batch=batch)
    assert calls == {"values": values, "gradients": gradients}
    assert attack.updates * attack.restarts == gradients


def test_steps_in_pixels_reach_a_corner_at_once() -> None:
    """0.25 exceeds the width of the box, so that one step puts every pixel with a gradient at an end."""
    chain, batch = tiny_chain(), tiny_batch(eps=0.05)
    found = TrainAttack(step_unit="pixel", step_size=0.25, steps=1).run(chain.layers(), batch)
    lower, upper = batch.box
    assert bool(((found == lower) | (found == upper)).all())
    inside = TrainAttack(step_unit="eps", step_size=0.25, steps=1, start="centre").run(chain.layers(), batch)
    moved = (inside - (lower + upper) / 2).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.0125), rtol=1e-9, atol=1e-12)


def test_steps_decay_before_their_milestones() -> None:
    """From the centre, on a network whose gradient never turns: moves 0.4, 0.4, 0.2, 0.2, 0.1 of ε."""
    chain, batch = linear_chain(), tiny_batch(eps=0.05)
    batch = replace(batch, x=batch.x.clamp(0.1, 0.9), y=batch.y % 2)
    attack = TrainAttack(steps=5, step_size=0.4, start="centre", decay=0.5, milestones=(2, 4))
    moved = attack.search(chain.layers().logits, batch.x - 0.1, batch.x + 0.1, batch=batch) - batch.x
    torch.testing.assert_close(moved.abs(), torch.full_like(moved, 1.3 * 0.05), rtol=1e-9, atol=1e-12)
    halved = attack.search(
        chain.layers().logits, batch.x - 0.1, batch.x + 0.1, batch=batch, unit=torch.tensor(0.025, dtype=batch.x.dtype)
    )
    torch.testing.assert_close(halved - batch.x, moved / 2, rtol=1e-9, atol=1e-12)


def linear_chain() -> Learner:
    """Two classes, affine on the box: a hidden layer of positive weights and pixels, whose ReLUs never switch."""
    torch.manual_seed(3)
    module = nn.Sequential(nn.Flatten(), nn.Linear(72, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        module[1].weight.abs_()
        module[1].bias.fill_(1.0)
    return Learner(module, SHAPE)


@pytest.mark.parametrize("attack", [TrainAttack(), TrainAttack(step_unit="pixel", steps=2)], ids=str)
def test_a_linear_optimum_is_found_exactly(attack: TrainAttack) -> None:
    chain, batch = linear_chain(), tiny_batch(eps=0.1)
    batch = replace(batch, y=batch.y % 2)
    W1, W2 = (w.detach() for w in chain.weights())
    for x, y, lower, upper, found in zip(batch.x, batch.y, *batch.box, attack.run(chain.layers(), batch), strict=True):
        row = ((W2[1 - y] - W2[y]) @ W1).reshape(x.shape)  # of the margin that the attack raises
        assert torch.equal(found, torch.where(row > 0, upper, lower))


def test_more_restarts_never_do_less_harm() -> None:
    """The first search of several is the search alone: draws come in order."""
    chain, batch = tiny_chain(), tiny_batch(eps=0.3, size=30)
    found = []
    for restarts in (1, 2, 5):
        fresh = replace(batch, draws=Draws(4, size=30))
        attack = TrainAttack(steps=2, restarts=restarts)
        found.append(losses(chain, batch, attack.run(chain.layers(), fresh)))
    assert bool((found[1] >= found[0]).all()) and bool((found[2] >= found[1]).all())
    assert found[2].sum() > found[0].sum() + 1e-3


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("attack", OPTIONS, ids=str)
def test_parameters_get_no_gradients(attack: TrainAttack, norm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    chain, batch = tiny_chain(norm=norm), tiny_batch()
    layers = chain.layers(batch.x)
    evaluated: list[Tensor] = []
    hooks = [w.register_hook(evaluated.append) for w in chain.parameters()]
    before = [p.detach().clone() for p in chain.parameters()]
    used: list[bool] = []  # whether a pass recorded what gradients of weights would need
    original = Layers.logits

    def watched(self: Layers, x: Tensor) -> Tensor:
        used.extend(op.weight.requires_grad for op in affine_ops(self))
        return original(self, x)

    monkeypatch.setattr(Layers, "logits", watched)
    attack.run(layers, batch)
    assert not any(used) and bool(used) == bool(attack.updates)
    assert not evaluated and all(p.grad is None and p.requires_grad for p in chain.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before, chain.parameters(), strict=True))
    assert not any(a.weight.requires_grad for a in affine_ops(layers.detach()))
    assert batch.x.grad is None and not batch.x.requires_grad
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("attack", OPTIONS, ids=str)
def test_two_processes_find_what_one_finds(attack: TrainAttack) -> None:
    chain, whole = tiny_chain(), tiny_batch(size=6)
    expected = attack.run(chain.layers(), whole)
    for part in (slice(0, 3), slice(3, 6)):
        share = replace(whole, x=whole.x[part], y=whole.y[part], draws=Draws(1, 7, size=6, part=part))
        torch.testing.assert_close(attack.run(chain.layers(), share), expected[part], rtol=0, atol=1e-12)


def test_draws_depend_on_their_key_alone() -> None:
    one, other = Draws(0, 2, 5, size=4), Draws(0, 2, 5, size=4, part=slice(2, 4))
    assert torch.equal(one.uniform(3)[2:], other.uniform(3))
    assert torch.equal(one.shared(2, 2), other.shared(2, 2))
    assert not torch.equal(one.uniform(3), Draws(0, 2, 6, size=4).uniform(3))
    values = Draws(9, size=1000).uniform(50)
    assert bool(((values >= 0) & (values < 1)).all()) and values.mean().item() == pytest.approx(0.5, abs=0.01)


def test_bfloat16_searches_the_same_box() -> None:
    chain, batch = tiny_chain(dtype=torch.float32), tiny_batch(dtype=torch.float32, eps=0.2, size=12)
    found = TrainAttack(precision="bf16").run(chain.layers(), batch)
    lower, upper = batch.box
    assert found.dtype == torch.float32 and bool(((found >= lower) & (found <= upper)).all())
    exact = losses(chain, batch, TrainAttack().run(chain.layers(), replace(batch, draws=Draws(1, 7, size=12))))
    assert losses(chain, batch, found).mean() > 0.9 * exact.mean()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps and restarts must be at least 1, got 0 and 1"),
        ({"restarts": 0}, "got 8 and 0"),
        ({"step_size": 0.0}, "step_size must be positive and decay in"),
        ({"step_size": float("nan")}, "step_size must be positive"),
        ({"decay": 1.5}, "got 0.25 and 1.5"),
        ({"decay": 0.0}, "got 0.25 and 0"),
    ],
)
def test_nonsense_is_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainAttack(**options)  # type: ignore[arg-type]

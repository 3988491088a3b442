"""COLT, against its formula on plain modules, NumPy and finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from chains import affine_modules, tiny_batch, tiny_chain
from torch import Tensor, nn

from surebound.errors import UsageError
from surebound.train.attack import TrainAttack
from surebound.train.batch import Draws, Terms
from surebound.train.cauchy import Projections
from surebound.train.learner import Learner
from surebound.train.losses.colt import COLT
from surebound.train.zonotope import enclose

RHO = (0.4, 0.3, 0.2, 0.0)
TAILS = {0: 0, 1: 3, 2: 5, 3: 8}  # where in the tiny chain's module the layers after the first j start


def cross_entropy(module: nn.Sequential, x: Tensor, y: Tensor) -> float:
    """In NumPy from the logits on."""
    with torch.no_grad():
        z = module(x).numpy()
    z = z - z.max(1, keepdims=True)
    return float(np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y.numpy()]))


def l1(chain: Learner, start: int) -> float:
    return sum(float(np.abs(m.weight.detach().numpy()).sum()) for m in affine_modules(chain)[start:])


def test_stage_zero_is_regularised_adversarial_training() -> None:
    """κ (CE at PGD's point + ρ area of the first layer) + (1 − κ) CE at x + λ ‖θ‖₁, without any estimate."""
    chain, batch = tiny_chain(), tiny_batch(kappa=0.6)
    terms = COLT(rho=RHO, l1=0.01, attack=TrainAttack(steps=3))(chain, batch)
    lower, upper = (batch.x - batch.eps).clamp_min(0), (batch.x + batch.eps).clamp_max(1)
    centre, radius = (lower + upper) / 2, (upper - lower) / 2
    # Same numbers in channels-last order: the rows of uniform draws are images with their channels last.
    u = tiny_batch().draws.uniform(72).double().reshape(-1, 6, 6, 2).permute(0, 3, 1, 2)
    x = centre + radius * (2 * u - 1)
    for _ in range(3):
        x = x.detach().requires_grad_(True)
        (g,) = torch.autograd.grad(nn.functional.cross_entropy(chain.module(x), batch.y), x)
        x = (x + 0.25 * radius * g.sign()).clamp(lower, upper).detach()
    conv = affine_modules(chain)[0]
    c = conv((centre - chain.module[0].mean) / chain.module[0].std)
    r = nn.functional.conv2d(radius / chain.module[0].std, conv.weight.abs(), None, 1, 1)
    c, r = c.detach().numpy(), r.detach().numpy()
    area = float(np.mean((np.maximum(r - c, 0) * np.maximum(r + c, 0)).sum((1, 2, 3))))
    expected = {
        "adversarial": cross_entropy(chain.module, x, batch.y),
        "previous": cross_entropy(chain.module, batch.x, batch.y),
        "area": 0.4 * area,
        "l1": 0.01 * l1(chain, 0),
    }
    assert {k: v.item() for k, v in terms.parts.items()} == pytest.approx(expected, rel=1e-9)
    total = 0.6 * (expected["adversarial"] + expected["area"]) + 0.4 * expected["previous"] + expected["l1"]
    assert terms.total.item() == pytest.approx(total, rel=1e-9)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_later_stages_mix_the_attacks_of_two_latent_spaces(stage: int) -> None:
    chain, batch = tiny_chain(), tiny_batch(stage=stage, kappa=0.6)
    attack = TrainAttack(steps=3)
    terms = COLT(rho=RHO, l1=0.01, attack=attack, projections=7)(chain, batch)
    again = tiny_batch()
    projections = Projections(count=7, estimator="geometric-mean", groups="separate")
    enclosure = enclose(chain.layers(), again, depth=stage, projections=projections, regularise=RHO[stage] > 0)
    before = enclosure.zonotope.attack(attack, again, stage - 1)
    now = enclosure.zonotope.attack(attack, again, stage)
    tails = [nn.Sequential(*list(chain.module)[TAILS[j] :]) for j in (stage - 1, stage)]
    expected = {
        "previous": cross_entropy(tails[0], before, batch.y),
        "adversarial": cross_entropy(tails[1], now, batch.y),
        "l1": 0.01 * l1(chain, stage),
    }
    if RHO[stage] > 0:
        assert enclosure.area is not None
        expected["area"] = RHO[stage] * enclosure.area.item()
    assert {k: v.item() for k, v in terms.parts.items()} == pytest.approx(expected, rel=1e-9)
    robust = expected["adversarial"] + expected.get("area", 0.0)
    assert terms.total.item() == pytest.approx(0.6 * robust + 0.4 * expected["previous"] + expected["l1"], rel=1e-9)


@pytest.mark.parametrize(
    ("stage", "norm", "options"),
    [
        (0, False, {}),
        (1, False, {}),
        (2, False, {}),
        (2, False, {"groups": "merged"}),
        (3, False, {}),
        (1, True, {}),
    ],
)
def test_gradients(stage: int, norm: bool, options) -> None:
    """Against central differences, with the same draws every time; frozen layers get none."""
    chain = tiny_chain(norm=norm)
    for p in chain.parameters():
        p.requires_grad_(False)
    for p in chain.parameters(start=stage):
        p.requires_grad_(True)
    loss = COLT(rho=RHO, l1=0.01, attack=TrainAttack(steps=2), projections=5, estimator="median", **options)

    def run() -> Terms:
        return loss(chain, tiny_batch(stage=stage))

    run().total.backward()
    for k, place in enumerate(chain.places.values()):
        for p in place.parameters:
            if k < stage:
                assert p.grad is None
                continue
            assert p.grad is not None
            index = np.unravel_index(int(p.grad.abs().argmax()), p.shape)
            values = []
            for h in (1e-6, -1e-6):
                p.data[index] += h
                values.append(run().total.item())
                p.data[index] -= h
            expected = (values[0] - values[1]) / 2e-6
            assert p.grad[index].item() == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_frozen_layers_get_no_gradients_even_if_they_ask() -> None:
    chain = tiny_chain()
    COLT(rho=RHO, projections=5)(chain, tiny_batch(stage=2)).total.backward()
    assert [m.weight.grad is None for m in affine_modules(chain)] == [True, True, False, False]


@pytest.mark.parametrize(("kappa", "names"), [(0.0, {"l1", "previous"}), (1.0, {"l1", "adversarial", "area"})])
@pytest.mark.parametrize("stage", [0, 2])
def test_ends_of_the_ramp_skip_what_has_no_weight(kappa: float, names: set[str], stage: int) -> None:
    terms = COLT(rho=RHO, projections=5)(tiny_chain(), tiny_batch(stage=stage, kappa=kappa))
    assert set(terms.parts) == names
    assert terms.total.item() == pytest.approx(sum(v.item() for v in terms.parts.values()))


def test_without_rho_there_is_no_area() -> None:
    terms = COLT(rho=(0.0, 0.0), projections=5)(tiny_chain(), tiny_batch(stage=1))
    assert "area" not in terms.parts


@pytest.mark.parametrize("stage", [0, 2])
def test_shares_of_a_batch_average_to_the_whole(stage: int) -> None:
    whole = tiny_batch(stage=stage)
    loss = COLT(rho=RHO, projections=5, attack=TrainAttack(steps=2))
    parts = []
    for share in (slice(0, 3), slice(3, 6)):
        draws = Draws(1, 7, size=6, part=share)
        batch = replace(whole, x=whole.x[share], y=whole.y[share], draws=draws)
        parts.append(loss(tiny_chain(), batch).total.item())
    assert np.mean(parts) == pytest.approx(loss(tiny_chain(), whole).total.item(), rel=1e-9)


@pytest.mark.parametrize("options", [{}, {"estimator": "median"}, {"groups": "merged"}])
def test_float32_gives_nearly_the_same(options) -> None:
    loss = COLT(rho=RHO, projections=20, attack=TrainAttack(steps=1), **options)
    values = []
    for dtype in (torch.float32, torch.float64):
        terms = loss(tiny_chain(dtype=dtype), tiny_batch(stage=2, dtype=dtype))
        assert terms.total.dtype == dtype
        values.append(terms.parts["area"].item())
    assert values[0] == pytest.approx(values[1], rel=1e-3)


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="stage 2 of a network of 4 blocks with rho for 2 stages"):
        COLT(rho=(0.1, 0.0))(tiny_chain(), tiny_batch(stage=2))
    with pytest.raises(UsageError, match="one number ≥ 0 per stage, got \\[\\]"):
        COLT(rho=())
    with pytest.raises(UsageError, match="step_unit must be eps, got pixel"):
        COLT(attack=TrainAttack(step_unit="pixel"))
    with pytest.raises(UsageError, match="at least 1 for the median, got 0"):
        COLT(projections=0, estimator="median")
    with pytest.raises(UsageError, match="at least 2 for the geometric-mean, got 1"):
        COLT(projections=1)

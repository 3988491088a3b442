"""IBP with Shi's warm-up, against its formulas in NumPy, and all interval losses on batches shared by two processes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from chains import tiny_batch, tiny_chain
from commands import ROOT
from interval_oracle import Array, Box, cross_entropies, intervals, logits, matrices, pixels, slopes, total, worst

from surebound.errors import UsageError
from surebound.train import LOSSES
from surebound.train.batch import Batch, Terms
from surebound.train.config import OptimiserConfig, Schedule, read_config
from surebound.train.interval import Boxes
from surebound.train.learner import Learner
from surebound.train.losses.ibp import IBP
from surebound.train.losses.ibp_shi import IBPShi
from surebound.train.run import run
from surebound.train.schedules import Plan
from surebound.train.warmup import shi_regularisers

STD = np.array([0.3, 0.2], np.float32).astype(np.float64)  # as kept for tiny_chain's two channels of 36 pixels


def regularisers(bounds: list[Box], lower: Array, upper: Array, tau: float) -> tuple[float, float]:
    """L_tightness and L_relu of the paper."""
    tightness = relu = 0.0
    radius_0 = ((upper - lower) / 2 / np.repeat(STD, 36)).mean()
    for low, high in bounds:
        centre, active, inactive = (low + high) / 2, low > 0, high < 0
        tightness += max(tau - radius_0 / ((high - low) / 2).mean(), 0)
        square = (centre - centre.mean()) ** 2
        for ratio in (
            centre[active].sum() / -centre[inactive].sum(),
            square[active].sum() / square[inactive].sum(),
        ):
            relu += max(tau - min(ratio, 1 / ratio), 0)
    return tightness / (tau * len(bounds)), relu / (tau * len(bounds))


@pytest.mark.parametrize(("ramp", "tau"), [(0.0, 0.5), (0.7, 0.9), (1.0, 0.5)])
def test_the_total_is_the_formula(ramp: float, tau: float) -> None:
    chain, batch = tiny_chain(seed=3), tiny_batch(eps=0.01, kappa=0.8, ramp=ramp)
    x, lower, upper, y = pixels(batch)
    net = matrices(chain)
    natural = cross_entropies(logits(net, x), y).mean()
    robust = cross_entropies(worst(net, lower, upper, y), y).mean()
    tightness, relu = regularisers(intervals(net, lower, upper)[:-1], lower, upper, tau)
    assert tightness > 0.01 and relu > 0.01  # both are on
    expected = 0.8 * robust + 0.2 * natural + 0.4 * (1 - ramp) * (tightness + relu)
    terms = IBPShi(regulariser=0.4, tolerance=tau)(chain, batch)
    assert terms.total.item() == pytest.approx(expected, rel=1e-9)
    if ramp < 1:
        assert float(terms.parts["tightness"]) == pytest.approx(0.4 * (1 - ramp) * tightness, rel=1e-9)
        assert float(terms.parts["balance"]) == pytest.approx(0.4 * (1 - ramp) * relu, rel=1e-9)


def test_the_regularisers_weight_follows_the_radius() -> None:
    """λ₀ (1 − ε/ε_max): halfway through a smooth ramp ε is 5/13 of its end, and so λ is 8/13 of λ₀, not 1/2."""
    schedule = Schedule(epochs=4, mixing=4, eps_ramp="smooth", kappa=(1.0, 1.0))
    moment = Plan(schedule, OptimiserConfig(), 0.1, 10).at(20)
    assert moment.ramp == 0.5 and moment.eps == pytest.approx(0.1 * 5 / 13, rel=1e-12)
    parts = []
    for risen, loss in [(moment.risen, IBPShi(regulariser=0.5)), (0.0, IBPShi(regulariser=0.5 * 8 / 13))]:
        batch = tiny_batch(eps=moment.eps, kappa=1.0, ramp=moment.ramp, risen=risen)
        parts.append({name: float(part) for name, part in loss(tiny_chain(), batch).parts.items()})
    assert parts[0]["tightness"] > 0.01
    assert parts[0] == pytest.approx(parts[1], rel=1e-9)


def test_training_hands_losses_the_share_of_the_radius(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    call = IBPShi.__call__

    def spy(self: IBPShi, chain: Learner, batch: Batch) -> Terms:
        seen.append((batch.eps, batch.risen))
        return call(self, chain, batch)

    monkeypatch.setattr(IBPShi, "__call__", spy)
    changes = ["data.first=80", "data.batch=40", "schedule.epochs=4", "schedule.warmup=0", "schedule.mixing=2"]
    quick = ["schedule.eps_ramp=smooth", "optimiser.milestones=[]", "validation.images=10", "schedule.inflation=2.0"]
    config = read_config("digits-ibp-shi-cpu", [*changes, *quick])
    run(config, tmp_path / "run")
    expected = [0.0, 1 / 13, 5 / 13, 9 / 13, 1.0, 1.0, 1.0, 1.0]
    assert [risen for _, risen in seen] == pytest.approx(expected, rel=1e-12)
    assert [eps for eps, _ in seen] == pytest.approx([2 * float(config.eps) * share for share in expected], rel=1e-12)


def test_after_the_ramp_it_is_ibp() -> None:
    batch = tiny_batch(ramp=1.0)
    assert total(IBPShi(), tiny_chain(), batch) == total(IBP(), tiny_chain(), batch)
    still = tiny_batch(ramp=0.3)
    assert total(IBPShi(regulariser=0.0), tiny_chain(), still) == total(IBP(), tiny_chain(), still)


@pytest.mark.parametrize("norm", [False, True])
def test_gradients_are_those_of_differences(norm: bool) -> None:
    loss = IBPShi(tolerance=0.9)
    slope, difference = slopes(loss, tiny_chain(norm=norm, seed=3), lambda: tiny_batch(eps=0.01, ramp=0.2), h=1e-7)
    assert slope == pytest.approx(difference, rel=1e-4)


@pytest.mark.parametrize("kappa", [0.0, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_before_the_ramp_boxes_still_have_a_width(kappa: float, dtype: torch.dtype) -> None:
    chain, batch = tiny_chain(dtype=dtype, norm=True), tiny_batch(eps=0.0, ramp=0.0, kappa=kappa, dtype=dtype)
    terms = IBPShi()(chain, batch)
    terms.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in chain.parameters())
    # The ratio of widths does not depend on the width of small boxes.
    small = IBPShi()(tiny_chain(norm=True), tiny_batch(eps=1e-5, ramp=0.0, kappa=kappa))
    assert float(terms.parts["tightness"]) == pytest.approx(float(small.parts["tightness"]), rel=0.05)
    assert float(terms.parts["tightness"]) > 0.01


def test_layers_with_one_or_neither_kind_of_stable_neuron() -> None:
    layers = tiny_chain().layers()
    box = (torch.zeros(2, 2, 6, 6, dtype=torch.float64), torch.full((2, 2, 6, 6), 1e-3, dtype=torch.float64))
    ends = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    for lower, upper, expected in [
        (-ends, ends, 0.0),  # all ambiguous: balanced
        (ends, ends + 1, 2.0),  # all active
        (-ends - 1, -ends, 2.0),  # all inactive
    ]:
        tightness, balance = shi_regularisers(layers, box, Boxes([(lower, upper)], {}))
        assert balance.item() == expected
        (gradient,) = torch.autograd.grad(tightness + balance, ends)
        assert torch.isfinite(gradient).all()


def test_nonsense_is_refused() -> None:
    assert LOSSES["ibp-shi"] is IBPShi
    with pytest.raises(UsageError, match=r"ibp-shi: tolerance is 0\.0; expected a number from 1e-06 to 1"):
        IBPShi(tolerance=0.0)
    with pytest.raises(UsageError, match=r"ibp-shi: regulariser is -0\.5; expected a number at least 0"):
        IBPShi(regulariser=-0.5)


SHARED = [
    ("ibp-shi", {"tolerance": 0.9}, 0.2),
    ("sabr", {}, 0.2),
    ("exp-ibp", {"product": "batch", "alpha": 0.5}, 0.2),
    ("taps", {"product": "batch"}, 1.0),
    ("staps", {}, 1.0),
]
"""Methods, their settings, and where in the ramp to try them."""

WORKER = """
import os, sys
from dataclasses import replace
import torch
from chains import tiny_batch, tiny_chain
from surebound.train import LOSSES
from surebound.train.batch import Draws
from surebound.train.parallel import average_gradients, join, leave
child = os.fork()  # one import for two processes
os.environ["RANK"] = "1" if child else "0"
world = join(torch.device("cpu"))
for name, settings, ramp in eval(sys.argv[2]):
    chain, batch, part = tiny_chain(norm=True), tiny_batch(ramp=ramp), world.share(6)
    batch = replace(batch, x=batch.x[part], y=batch.y[part], draws=Draws(1, 7, size=6, part=part))
    LOSSES[name](**settings)(chain, batch).total.backward()
    average_gradients(chain.parameters())
    torch.save([p.grad for p in chain.parameters()], f"{sys.argv[1]}/{name}-{world.rank}.pt")
leave()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.slow
def test_two_processes_make_the_gradient_of_one(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    paths = [str(ROOT / "tests"), str(ROOT / "src")]
    environment = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join(paths)}
    run = [sys.executable, "-c", WORKER, str(tmp_path), repr(SHARED)]
    subprocess.run(run, env=os.environ | environment, timeout=120, check=True)
    for name, settings, ramp in SHARED:
        chain = tiny_chain(norm=True)
        LOSSES[name](**settings)(chain, tiny_batch(ramp=ramp)).total.backward()
        for rank in range(2):
            found = torch.load(tmp_path / f"{name}-{rank}.pt")
            for p, gradient in zip(chain.parameters(), found, strict=True):
                torch.testing.assert_close(gradient, p.grad, rtol=1e-8, atol=1e-10)

"""Radius, κ and learning rate at chosen steps, against tables worked out by hand."""

from itertools import pairwise

import pytest

from surebound.train.config import OptimiserConfig, Schedule
from surebound.train.schedules import Plan, smooth

TINY = 1e-12


def test_ibp_r_mixes_over_600_of_800_epochs() -> None:
    """CIFAR-10 at 2/255, α = 2.1, batches of 100: 500 steps per epoch, so that the ramp is 300,000 steps long."""
    schedule = Schedule(epochs=800, mixing=600, inflation=2.1)
    plan = Plan(schedule, OptimiserConfig(lr=1e-2, decay=0.95), 2 / 255, 500)
    assert plan.steps == plan.stage_steps == 400_000
    full = 4.2 / 255
    table = [  # step, epoch, κ and share of the radius, learning rate
        (0, 0, 0.0, 1e-2),
        (1, 0, 1 / 300_000, 1e-2),
        (499, 0, 499 / 300_000, 1e-2),
        (75_000, 150, 0.25, 1e-2),
        (150_250, 300, 0.5 + 1 / 1200, 1e-2),
        (299_999, 599, 1 - 1 / 300_000, 1e-2),
        (300_000, 600, 1.0, 1e-2),
        (300_500, 601, 1.0, 9.5e-3),
        (301_499, 602, 1.0, 9.025e-3),
        (305_000, 610, 1.0, 5.987369392383789e-3),
        (399_999, 799, 1.0, 1e-2 * 0.95**199),
    ]
    for step, epoch, share, lr in table:
        moment = plan.at(step)
        assert (moment.stage, moment.epoch) == (0, epoch), step
        assert moment.kappa == moment.ramp == pytest.approx(share, abs=TINY), step
        assert moment.eps == pytest.approx(share * full, abs=TINY), step
        assert moment.lr == pytest.approx(lr, rel=1e-12), step


def test_colt_has_constant_radii_and_fresh_ramps_in_every_stage() -> None:
    """Four stages of 200 epochs at 2/255; κ over the first 60, then the learning rate halves every 10."""
    inflation, rates = (1.398, 1.271, 1.155, 1.05), (0.03, 0.0225, 0.01688, 0.01266)
    schedule = Schedule(epochs=200, stages=4, freeze=True, mixing=60, eps_ramp="constant", inflation=inflation)
    plan = Plan(schedule, OptimiserConfig(lr=rates, decay=0.5, decay_every=10), 2 / 255, 10)
    assert plan.stage_steps == 2000 and plan.steps == 8000
    for stage in range(4):
        for epoch, kappa, halvings in [
            (0, 0.0, 0),
            (15, 0.25, 0),
            (59, 59 / 60, 0),
            (60, 1.0, 0),
            (69, 1.0, 0),
            (70, 1.0, 1),
            (79, 1.0, 1),
            (80, 1.0, 2),
            (199, 1.0, 13),
        ]:
            moment = plan.at(stage * 2000 + epoch * 10)
            assert (moment.stage, moment.epoch) == (stage, epoch)
            assert moment.kappa == pytest.approx(kappa, abs=TINY)
            assert moment.eps == pytest.approx(inflation[stage] * 2 / 255, rel=1e-12)
            assert moment.risen == 1.0
            assert moment.lr == pytest.approx(rates[stage] / 2**halvings, rel=1e-12)
    last = plan.at(1999)
    assert (last.stage, last.epoch, last.kappa) == (0, 199, 1.0)


def test_shis_short_schedule() -> None:
    """160 epochs: one at ε = 0, a smooth ramp of 80; the rate ×0.2 at 120 and at 140. κ is 1 throughout."""
    schedule = Schedule(epochs=160, warmup=1, mixing=80, eps_ramp="smooth", kappa=(1.0, 1.0))
    optimiser = OptimiserConfig(name="adam", lr=5e-4, decay=0.2, milestones=(120, 140))
    plan = Plan(schedule, optimiser, 8 / 255, 100)
    # With mid 1/4 and power 4: (t ≤ 1/4) t⁴ / s, then (1/256 + (t − 1/4) / 16) / s with s = 1/256 + 3/64 = 13/256.
    table = [
        (0, 0.0, 0.0, 5e-4),
        (99, 0.0, 0.0, 5e-4),
        (100, 0.0, 0.0, 5e-4),
        (1100, 0.125, 1 / 208, 5e-4),  # (1/4096) · 256/13
        (2100, 0.25, 1 / 13, 5e-4),
        (4100, 0.5, 5 / 13, 5e-4),  # (1/256 + 1/64) · 256/13
        (8100, 1.0, 1.0, 5e-4),
        (11_999, 1.0, 1.0, 5e-4),
        (12_000, 1.0, 1.0, 1e-4),
        (13_999, 1.0, 1.0, 1e-4),
        (14_000, 1.0, 1.0, 2e-5),
        (15_999, 1.0, 1.0, 2e-5),
    ]
    for step, ramp, share, lr in table:
        moment = plan.at(step)
        assert moment.kappa == 1.0
        assert moment.ramp == pytest.approx(ramp, abs=TINY), step
        assert moment.eps == pytest.approx(share * 8 / 255, abs=TINY), step
        assert moment.risen == pytest.approx(share, abs=TINY), step
        assert moment.lr == pytest.approx(lr, rel=1e-12), step


def test_kappa_runs_between_its_ends_and_warms_up_at_the_first() -> None:
    plan = Plan(Schedule(epochs=10, warmup=2, mixing=4, kappa=(0.2, 0.6)), OptimiserConfig(), 0.1, 5)
    moments = [plan.at(step) for step in range(50)]
    assert [m.kappa for m in moments[:11]] == [0.2] * 11
    assert [m.eps for m in moments[:11]] == [m.risen for m in moments[:11]] == [0.0] * 11
    assert moments[20].kappa == pytest.approx(0.4) and moments[20].eps == pytest.approx(0.05)
    assert [m.kappa for m in moments[30:]] == pytest.approx([0.6] * 20) and {m.eps for m in moments[30:]} == {0.1}


def test_without_a_ramp_training_starts_at_its_end() -> None:
    plan = Plan(Schedule(epochs=2), OptimiserConfig(lr=0.5, decay=0.5), 0.1, 3)
    assert [(m.ramp, m.kappa, m.eps) for m in map(plan.at, range(6))] == [(1.0, 1.0, 0.1)] * 6
    assert [m.lr for m in map(plan.at, range(6))] == [0.5] * 3 + [0.25] * 3
    warm = Plan(Schedule(epochs=2, warmup=1, eps_ramp="constant"), OptimiserConfig(), 0.1, 3)
    assert [(m.kappa, m.eps) for m in map(warm.at, range(6))] == [(0.0, 0.0)] * 3 + [(1.0, 0.1)] * 3


def test_the_smooth_ramp_rises_without_a_corner() -> None:
    count, h = 4000, 1 / 4000
    values = [smooth(k * h) for k in range(count + 1)]
    slopes = [(b - a) / h for a, b in pairwise(values)]
    assert values[0] == 0.0 and values[-1] == pytest.approx(1.0, abs=1e-15)
    assert all(slope > 0 for slope in slopes)  # t⁴ at t = 1/4000 is still far above the smallest float
    jumps = [abs(b - a) for a, b in pairwise(slopes)]
    steepest = 12 * 0.25**2 * 256 / 13  # the largest second derivative, 12 t² / s at t = 1/4
    assert max(jumps) <= steepest * h * 1.001
    assert slopes[-1] == pytest.approx(16 / 13) and slopes[0] < 1e-9  # straight from 1/4 on, flat at 0

"""Verification of networks with any activation: never a wrong answer, and an answer where it is easy."""

import numpy as np
import pytest
import torch
from curves import ROWS, Case, network

from surebound.errors import UsageError
from surebound.network.model import Model
from surebound.problem import Box, Property, Region, Robustness
from surebound.verify.options import Options
from surebound.verify.pipeline import verify

each = pytest.mark.parametrize("name", ROWS)
NETWORKS = 40  # of each row: more than 500 in all


@each
def test_no_false_claim_is_proved(name: str) -> None:
    """That no value is within 1e-3 of the least one is false: boxes and neurons are split, and nothing must come of it.
    Beside it, a claim that is true by as much."""
    proved = 0
    for seed in range(NETWORKS):
        case = Case.drawn(np.random.default_rng([seed, 7]), ROWS[name])
        branching = ("input", "upb")[seed % 2]
        assert not case.proves(1e-3, branching, 3), seed
        if seed < 4:
            proved += case.proves(-1e-3, "upb" if name == "sign" else "input", 2000)
    assert proved == 4


@each
@pytest.mark.parametrize("branching", ["auto", "upb"])
def test_claims_with_room_are_proved(name: str, branching: str) -> None:
    """By splits of neurons, too, which alone have to do where many inputs vary."""
    for seed in range(2):
        case = Case.drawn(np.random.default_rng([seed, 8]), ROWS[name])
        verdict = case.ask(-0.05, timeout=20, branching=branching)
        assert verdict.status == "unsat", (seed, verdict)


@pytest.mark.parametrize("branching", ["input", "upb"])
def test_every_region_has_to_be_proved(branching: str) -> None:
    """A claim that a search proves, and a false one over the same box, which no runtime confirms."""
    case = Case.drawn(np.random.default_rng([0, 8]), ROWS["tanh"])
    regions = [case.region(margin) for margin in (-1e-2, 1e-3)]
    model = Model(case.network, lambda x: np.full((len(x), 1), np.inf, dtype=np.float32), "test")
    alone, together = (
        verify(model, Property(some, 2, 1), Options(quick_attack=None, timeout=seconds, branching=branching))
        for some, seconds in ((tuple(regions[:1]), 20.0), (tuple(regions), 2.0))
    )
    assert alone.status == "unsat" and alone.subproblems > 1
    assert together.status == "timeout"


@each
def test_counterexamples_are_found(name: str, rng: np.random.Generator) -> None:
    """With a runtime that confirms them."""
    case = Case.drawn(rng, ROWS[name])
    single = case.network.to(torch.float32)
    model = Model(case.network, lambda x: single.forward(torch.from_numpy(np.array(x))).numpy(), "test")
    region = Region(
        box=case.box,
        on_output=np.array([[1.0]]),
        constant=np.array([-case.least - 1e-2]),
        strict=np.array([False]),
    )
    verdict = verify(model, Property((region,), 2, 1), Options(timeout=20))
    assert verdict.status == "sat" and verdict.counterexample is not None
    assert float(verdict.counterexample.y[0]) <= case.least + 1e-2


def test_many_inputs_are_verified_by_neurons(rng: np.random.Generator) -> None:
    """Thirty inputs: too many to bisect; several rivals, of which each has a row."""
    for name in ("sigmoid", "gelu", "silu"):
        net = network(rng, ROWS[name], (30, 8, 3))
        x = rng.random(30)
        label = int(net.forward(torch.from_numpy(x)[None])[0].argmax())
        model = Model(net, lambda v: np.full((len(v), 3), np.nan, dtype=np.float32), "test")
        verdict = verify(model, Robustness(x, label, 0.01), Options(timeout=30, quick_attack=None))
        logits = net.forward(torch.from_numpy(x + rng.uniform(-0.01, 0.01, size=(2000, 30)))).numpy()
        robust = bool((logits.argmax(1) == label).all())
        assert (verdict.status == "unsat") <= robust
        assert verdict.status == "unsat" or not robust


def test_a_property_that_holds_with_equality_is_never_proved() -> None:
    """Within rounding of the threshold nothing is proved, and the search ends."""
    rng = np.random.default_rng(0)
    net = network(rng, ROWS["sign"], (1, 1, 1))
    with torch.no_grad():
        values = net.forward(torch.linspace(-9, 9, 1001, dtype=torch.float64)[:, None])
    least = float(values.min())
    region = Region(
        box=Box(np.array([-9.0]), np.array([9.0])),
        on_output=np.array([[1.0]]),
        constant=np.array([-least]),
        strict=np.array([False]),
    )
    model = Model(net, lambda v: np.full((len(v), 1), np.inf, dtype=np.float32), "test")
    verdict = verify(model, Property((region,), 1, 1), Options(timeout=10, quick_attack=None, branching="upb"))
    assert verdict.status == "unknown" and "rounding" in verdict.reason


@pytest.mark.parametrize("wrong", [{"proof": True}, {"branching": "sr"}, {"branching": "mixture"}])
def test_what_is_not_covered_is_refused(wrong: dict[str, object], rng: np.random.Generator) -> None:
    with pytest.raises(UsageError, match="piecewise-linear"):
        Case.drawn(rng, ROWS["tanh"]).ask(0.0, **wrong)

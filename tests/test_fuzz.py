"""Random networks and properties against an evaluator of their own, in search of a verdict that is wrong."""

from collections import Counter
from pathlib import Path

import false_claims
import numpy as np
import onnx_models
import pytest
from drawn import draw, draw_region

import surebound
from surebound.problem import Property
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.strategy import Strategy

pytestmark = pytest.mark.slow

CONFIGURATIONS = (("auto", True), ("upb", False), ("input", True))
"""The branching, and whether the folded form is used or the graph form."""


def in_form(folded: bool) -> Strategy:
    return Strategy() if folded else Strategy(folded_limit=0)


@pytest.mark.parametrize("block", range(4))
def test_no_verdict_is_contradicted(tmp_path: Path, block: int) -> None:
    """Eight networks a block: samples never refute an `unsat`, replays confirm a `sat`, and all searches agree."""
    count: Counter[str] = Counter()
    for seed in range(8 * block, 8 * block + 8):
        rng = np.random.default_rng(seed)
        g = draw(rng)
        path = g.save(tmp_path / f"{seed}.onnx")
        model = surebound.load(path)
        region, violated = draw_region(rng, g)
        statuses = set()
        for branching, folded in CONFIGURATIONS:
            problem = Property((region,), model.network.inputs, model.network.outputs)
            verdict = verify(model, problem, Options(timeout=1, branching=branching, strategy=in_form(folded)))
            statuses.add(verdict.status)
            count[verdict.status] += 1
            assert not (violated and verdict.status == "unsat"), f"seed {seed}: wrong unsat by {branching}"
            if verdict.counterexample is not None:
                x = verdict.counterexample.x.astype(np.float32).reshape(1, *g.shapes[onnx_models.X])
                y = onnx_models.run(path, x).reshape(-1)
                np.testing.assert_allclose(verdict.counterexample.y, y, rtol=1e-4, atol=1e-4)
                assert region.holds(verdict.counterexample.x, verdict.counterexample.y.astype(np.float64))
        assert not {"sat", "unsat"} <= statuses, f"seed {seed}: {statuses}"
    assert count.total() == 24
    assert count["sat"] >= 3
    assert count["unsat"] >= 3


def test_nothing_false_is_proved(tmp_path: Path) -> None:
    """Without its attacks, which would find the counterexample first, the search alone must not answer `unsat`."""
    asked = sum((false_claims.ask(tmp_path, seed, 0.1) for seed in range(15)), Counter[str]())
    assert asked.total() >= 70

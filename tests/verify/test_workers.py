"""A search that is shared: its verdicts and proofs are those of one process, whatever becomes of the pieces."""

from dataclasses import replace

import pytest
from verifications import ALONE, KINDS, WEAK, decide, exact, region

from surebound.problem import Verdict
from surebound.verify import worker
from surebound.verify.options import Options
from surebound.verify.strategy import Strategy
from surebound.work.inline import Inline

AT_ONCE = replace(ALONE, batch=2, alone=0.0, alone_batches=1)  # whatever has to be split is dealt out
SHARED = Options(quick_attack=WEAK, strategy=AT_ONCE, timeout=120.0, workers=2)
SEEDS = {"fc": 1, "conv": 3, "residual": 3, "pool": 4}


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are searched in this process."""
    monkeypatch.setattr(worker, "choose", lambda workers: Inline())


def both_sides(kind: str, branching: str, options: Options) -> list[Verdict]:
    """Thresholds 1e-3 below and above the exact minimum."""
    network, box, row, least = exact(kind, SEEDS[kind])
    return [
        decide(network, region(box, row, constant), branching=branching, options=options)
        for constant in (-least + 1e-3, -least - 1e-3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "branching"), [("fc", "input"), ("fc", "auto"), ("conv", "upb")])
def test_two_processes_give_the_verdicts_of_the_milp(kind: str, branching: str) -> None:
    unsat, sat = both_sides(kind, branching, SHARED)
    assert (unsat.status, sat.status) == ("unsat", "sat")
    assert unsat.searched_by == "2 workers"
    assert "workers" in unsat.seconds_by_phase


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("limit", [Strategy().folded_limit, 0], ids=["kernel", "graph"])
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_give_the_verdicts_of_the_milp(kind: str, limit: int) -> None:
    options = replace(SHARED, strategy=replace(AT_ONCE, folded_limit=limit))
    unsat, sat = both_sides(kind, "upb", options)
    assert (unsat.status, sat.status) == ("unsat", "sat")
    assert unsat.searched_by == "2 workers"

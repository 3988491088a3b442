"""Proofs by an independent prover are accepted, and exact arithmetic agrees."""

from pathlib import Path

import numpy as np
import pytest
from prover import bisect, prove, random_problem, write

from surebound.check import check

WAYS = {
    "crown": lambda p: prove(p),
    "flat": lambda p: prove(p, lines="flat", layers="flat"),
    "fastlin over intervals": lambda p: prove(p, lines="fastlin", layers="interval"),
    "stored in chunks": lambda p: prove(p, lines="stored", layers="stored", chunk=3),
    "stored in float32": lambda p: prove(p, lines="stored", dtype=np.float32),
    "input": lambda p: bisect(p),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("first", [0, 8])
def test_true_proofs_are_accepted_and_exact_arithmetic_agrees(tmp_path: Path, way: str, first: int) -> None:
    found = 0
    for seed in range(first, first + 8):
        problem = random_problem(seed)
        proof = WAYS[way](problem)
        if proof is None:
            continue
        files = write(tmp_path, problem, proof)
        rounded, exact = check(*files), check(*files, exact=True)
        assert (rounded.valid, rounded.reason) == (True, "")
        assert (exact.valid, exact.reason) == (True, "")
        assert (rounded.leaves, rounded.claims, rounded.tightest) == (exact.leaves, exact.claims, exact.tightest)
        assert rounded.slack is not None and exact.slack is not None
        assert rounded.slack > 0 and exact.slack == pytest.approx(rounded.slack, rel=1e-9, abs=1e-9)
        found += 1
    assert found >= 3


def test_splits_are_needed_and_used(tmp_path: Path) -> None:
    """Some of the random proofs have trees, with multipliers that matter."""
    trees = 0
    for seed in range(30):
        problem = random_problem(seed)
        proof = prove(problem)
        if proof is None or not any(name.endswith("/tree") for name in proof.arrays):
            continue
        trees += 1
        for name in proof.arrays:
            if name.endswith("/beta"):
                proof.arrays[name] = 0 * proof.arrays[name]
        if any(name.endswith("/beta") and proof.arrays[name].size for name in proof.arrays):
            result = check(*write(tmp_path, problem, proof))
            assert result.valid or "has the bound" in result.reason
    assert trees >= 3

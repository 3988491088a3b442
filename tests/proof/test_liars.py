"""A verifier with a bug answers `unsat` where that is false, and the checker refuses its proof (see tests/lying.py)."""

from pathlib import Path

import pytest
from lying import BUGS, LARGE, SMALL, Bug, cancelling, grazing, offer, violated

pytestmark = pytest.mark.slow
NEVER_WRITTEN = {"a child dropped"}  # a tree that is not whole
RARE = {"no error terms": 12, "refined layers' bounds too tight by 1e-1": 8}  # seeds until a false answer comes


@pytest.mark.parametrize("name", BUGS)
def test_no_proof_of_a_false_claim_is_accepted(name: str, tmp_path: Path) -> None:
    fates = [offer(tmp_path, name, seed) for seed in range(RARE.get(name, 3))]  # raises where one is accepted
    assert ("not written" if name in NEVER_WRITTEN else "refused") in fates


@pytest.mark.parametrize("branching", ["upb", "auto", "input"])
def test_without_a_bug_there_is_no_answer(branching: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [lambda seed: violated(seed, SMALL), lambda seed: violated(seed, LARGE), cancelling, grazing]
    for ask in asked:
        monkeypatch.setitem(BUGS, "none", Bug(lambda patch: None, ask, branching=branching))
        assert offer(tmp_path, "none", 0, 2.0) == "no answer"

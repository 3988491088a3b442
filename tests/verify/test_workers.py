"""A search that is shared: its verdicts and proofs are those of one process."""

import pickle
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from intervals import Intervals, begun
from proving import problem, prove
from verifications import ALONE, KINDS, WEAK, decide, exact, region

from surebound.bounds.beta_crown import Ascent
from surebound.check import check
from surebound.errors import UsageError
from surebound.problem import Counterexample, Verdict
from surebound.verify import bounder, worker
from surebound.verify.options import Options
from surebound.verify.pieces import Seen, Sharing
from surebound.verify.strategy import Strategy
from surebound.verify.subject import Subject
from surebound.verify.tree import Tree
from surebound.verify.trial import Trial
from surebound.work import Call
from surebound.work.inline import Inline

AT_ONCE = replace(
    ALONE, batch=2, alone=0.0, alone_batches=1, planes_after=None
)  # whatever has to be split is dealt out
SHARED = Options(quick_attack=WEAK, strategy=AT_ONCE, timeout=120.0, workers=2)
PLANED = replace(AT_ONCE, planes_after=3, planes_gain=-1e9, planes=Ascent(iterations=0))  # which prove little
SEEDS = {"fc": 1, "conv": 3, "residual": 3, "pool": 4}


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces are searched in this process, after the same journey."""

    class Travelled:
        remote = False

        def open(self, setup: worker.Setup) -> object:
            return Inline().open(pickle.loads(pickle.dumps(setup)))

    monkeypatch.setattr(worker, "choose", lambda **_: Travelled())


def both_sides(kind: str, branching: str, options: Options) -> list[Verdict]:
    """Thresholds 1e-3 below and above the exact minimum."""
    network, box, row, least = exact(kind, SEEDS[kind])
    return [
        decide(network, region(box, row, constant), branching=branching, options=options)
        for constant in (-least + 1e-3, -least - 1e-3)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "branching"), [("fc", "input"), ("conv", "upb")])
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


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("branching", ["upb", "mixture", "input"])
def test_proofs_of_pieces_merge_into_one(branching: str, tmp_path: Path) -> None:
    done = prove(tmp_path, *problem("wide", 0, 1e-2), branching, AT_ONCE, workers=2)
    assert (done.verdict.status, done.verdict.searched_by) == ("unsat", "2 workers")
    found = check(*done.files)
    assert (found.valid, found.reason) == (True, "")
    assert found.leaves > 4


@pytest.mark.usefixtures("inline")
def test_workers_have_the_planes_of_the_proof(tmp_path: Path) -> None:
    """Those that the search had found before it was shared, and no others."""
    strategy = replace(AT_ONCE, root=Ascent(iterations=0), planes_after=1, planes_gain=-1e9)
    done = prove(tmp_path, *problem("wide", 0, 1e-2), "upb", strategy, workers=2)
    assert (done.verdict.status, done.verdict.searched_by) == ("unsat", "2 workers")
    assert "planes" in done.verdict.seconds_by_phase
    found = check(*done.files)
    assert (found.valid, found.reason) == (True, "")
    assert found.leaves > 4


@pytest.mark.slow
@pytest.mark.parametrize("branching", ["mixture", "input"])
def test_proofs_of_two_processes_merge_into_one(branching: str, tmp_path: Path) -> None:
    done = prove(tmp_path, *problem("wide", 0, 1e-2), branching, AT_ONCE, workers=2)
    assert done.verdict.searched_by == "2 workers"
    assert check(*done.files).valid


@pytest.mark.usefixtures("inline")
@pytest.mark.parametrize("kind", ["fc", "conv"])
def test_planes_are_found_once_and_go_to_all_workers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, bounded = [], []
    original, plain = bounder.find_planes, Subject.sound_bounds
    monkeypatch.setattr(bounder, "find_planes", lambda *args: (found.append(args[4]), original(*args))[1])
    monkeypatch.setattr(Subject, "sound_bounds", lambda self, *args: (bounded.append(self), plain(self, *args))[1])
    unsat, sat = both_sides(kind, "upb", replace(SHARED, strategy=PLANED))
    assert (unsat.status, sat.status) == ("unsat", "sat")
    assert unsat.searched_by == "2 workers" and "planes" in unsat.seconds_by_phase
    assert found == [0, 0]
    assert any(subject.planes is not None for subject in bounded)


@pytest.mark.usefixtures("inline")
def test_a_point_that_does_not_stand_is_no_counterexample(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker takes for one is replayed where the file is, and the worker's search goes on meanwhile."""
    network, box, row, least = exact("fc", 1)
    told: list[Seen] = []
    plain = worker.Searcher.__call__

    def lying(self: worker.Searcher, piece: worker.Piece, call: Call) -> worker.Answer:
        told.append(Seen(box.middle, 0))
        call.say(told[-1])
        return plain(self, piece, call)

    monkeypatch.setattr(worker.Searcher, "__call__", lying)
    verdict = decide(network, region(box, row, -least + 1e-3), branching="upb", options=SHARED)
    assert verdict.status == "unsat" and told


@pytest.mark.usefixtures("inline")
def test_the_time_of_a_shared_search_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    network, box, row, least = exact("fc", 1)

    def late(self: worker.Searcher, piece: worker.Piece, call: Call) -> worker.Answer:
        time.sleep(max(piece.remaining, 0.0))
        self._clock.deadline = 0.0
        return plain(self, replace(piece, remaining=0.0), call)

    plain = worker.Searcher.__call__
    monkeypatch.setattr(worker.Searcher, "__call__", late)
    options = replace(SHARED, timeout=2.0)
    verdict = decide(network, region(box, row, -least + 1e-3), branching="upb", options=options)
    assert (verdict.status, verdict.reason) == ("timeout", "the time ran out")
    assert verdict.lower_bound is not None and verdict.lower_bound <= 0


@pytest.mark.parametrize("workers", [0, -1, 1.5, "two"])
def test_workers_are_a_number_or_auto(workers: object) -> None:
    with pytest.raises(UsageError, match="workers must be a whole number from 1 up or 'auto', got"):
        Options(workers=workers)  # type: ignore[arg-type]


def test_workers_and_a_cluster_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="expected one of the two"):
        Options(workers=2, cluster="auto")
    with pytest.raises(UsageError, match="resources without a cluster"):
        Options(resources={"num_gpus": 1})


# ---- auto


def nobody(seen: Seen) -> Counterexample | None:
    return None


def at(tree: Tree, seconds: float, subproblems: int) -> Tree:
    tree.seconds, tree.subproblems = seconds, subproblems
    tree.pace = replace(tree.pace, batches=10)
    return tree


def trial_of(compare: int, *, ready: int = 1) -> tuple[Trial, Tree]:
    """A trial of two workers, in a search that is ready when it is asked so often."""
    asked = iter([False] * (ready - 1) + [True])
    sharing = Sharing(open=lambda ground: NotImplemented, confirm=nobody, names="2 workers", count=2, compare=compare)
    return Trial(sharing, Strategy(), lambda: next(asked)), begun(Intervals())


@pytest.mark.parametrize(("alone", "worth"), [(500, False), (900, True)])
def test_auto_shares_a_search_if_workers_may_be_faster(alone: int, worth: bool) -> None:
    """1,000 subproblems a second with two threads: two workers with less than 550 each are not worth it."""
    before = torch.get_num_threads()
    trial, tree = trial_of(2, ready=2)
    try:
        torch.set_num_threads(2)
        assert not trial.ended(at(tree, 1.0, 1000))
        assert not trial.ended(at(tree, 2.0, 2000))  # it is not ready
        assert not trial.ended(at(tree, 3.0, 2000))
        assert not trial.ended(at(tree, 12.0, 2000))  # what makes it ready takes long, and does not count
        assert torch.get_num_threads() == 2
        assert not trial.ended(at(tree, 13.0, 3000))
        assert torch.get_num_threads() == 1
        assert not trial.ended(at(tree, 13.1, 3100))
        assert not trial.ended(at(tree, 13.6, 3100 + alone // 2))
        assert trial.ended(at(tree, 14.1, 3100 + alone)) == worth
        assert torch.get_num_threads() == 2
        assert not trial.ended(at(tree, 15.0, 5000))
        assert trial.told == f"2 threads, since 2 workers would be {2 * alone / 1000:.2f} times as fast"
    finally:
        trial.end()
        torch.set_num_threads(before)


@pytest.mark.parametrize(("together", "slower"), [(900, True), (1100, False)])
def test_auto_takes_back_a_search_in_which_workers_are_slower(together: int, slower: bool) -> None:
    """1,000 subproblems a second with two threads, and with the workers some more or fewer, in three seconds."""
    before = torch.get_num_threads()
    trial, tree = trial_of(2)
    try:
        for seconds, subproblems in ((2.0, 0), (2.0, 0), (3.0, 1000), (3.0, 1000)):
            assert not trial.ended(at(tree, seconds, subproblems))
        assert trial.ended(at(tree, 4.0, 1900))
        assert not trial.slower(at(tree, 5.0, 1900), 2000)
        assert not trial.slower(at(tree, 7.9, 1900), 5000)
        assert trial.slower(at(tree, 8.0, 1900), 2000 + 3 * together) == slower
        assert trial.told == f"2 threads, since 2 workers were {together / 1000:.2f} times as fast"
        assert not trial.slower(at(tree, 20.0, 1900), 2000)
    finally:
        torch.set_num_threads(before)


def test_a_pace_is_taken_while_there_is_no_attack() -> None:
    before = torch.get_num_threads()
    trial, tree = trial_of(2)
    try:
        torch.set_num_threads(2)
        for seconds in (2.0, 2.0):
            assert not trial.ended(at(tree, seconds, 0))
        tree.clock._phases["attack"] = 0.5
        assert not trial.ended(at(tree, 3.0, 100))
        assert torch.get_num_threads() == 2
        for seconds, subproblems in ((3.0, 100), (4.0, 1100), (4.0, 1100), (5.0, 2000)):
            shared = trial.ended(at(tree, seconds, subproblems))
        assert shared
    finally:
        torch.set_num_threads(before)


def test_workers_wait_until_a_search_is_known_to_take_long() -> None:
    trial, tree = trial_of(0)
    assert not trial.ended(at(tree, 1.9, 1000))
    at(tree, 2.0, 1000).pace = replace(tree.pace, batches=1)
    assert not trial.ended(tree)
    assert trial.ended(at(tree, 2.0, 1000))
    assert trial.told == "" and not trial.slower(at(tree, 30.0, 1000), 1000)

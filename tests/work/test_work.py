"""Tasks on every engine of this machine: results, order, words on the way, errors, deaths, and how it all ends."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import environment
from tasks import Arithmetic

from surebound.errors import UsageError, WorkerLostError
from surebound.work import Desk, Done, Engine, Failed, Said, choose
from surebound.work.inline import Inline
from surebound.work.processes import Processes

ENGINES = [pytest.param(Inline(), id="inline"), pytest.param(Processes(2), id="processes")]


def run(engine: Engine, tasks: list[Any], setup: Arithmetic = Arithmetic(100)) -> list[Any]:
    with engine.open(setup) as pool:
        desk: Desk[Any, Any] = Desk(pool)
        for task in tasks:
            desk.add(task)
        return list(desk.events())


@pytest.mark.parametrize("engine", ENGINES)
def test_every_task_gives_its_result(engine: Engine, tmp_path: Path) -> None:
    setup = Arithmetic(100, tmp_path / "seen")
    events = run(engine, [("add", k) for k in range(9)], setup)
    assert sorted(event.result for event in events) == list(range(100, 109))
    assert all(event.result == 100 + event.task[1] and event.seconds >= 0 for event in events)
    assert 1 <= len((tmp_path / "seen").read_text().splitlines()) <= 2  # a setup for each worker, not for each task


def test_what_happened_meanwhile_comes_together() -> None:
    with Processes(2).open(Arithmetic(0)) as pool:
        desk: Desk[Any, Any] = Desk(pool)
        for k in range(2):
            desk.add(("add", k))
        batches, found = desk.batches(), list[list[Any]]()
        while sum(map(len, found)) < 2:
            found.append(next(batches))
            time.sleep(0.5)  # while the other answers
        assert all(found) and not list(batches)
        desk.add(("stop", "/dev/null"))
        assert next(desk.batches(tick=0.01)) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_words_come_before_the_result(engine: Engine) -> None:
    events = run(engine, [("say", 3)])
    assert [event.word for event in events[:-1]] == [0, 1, 2] and events[-1].result == "said"
    assert [type(event) for event in events] == [Said, Said, Said, Done]


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_is_its_tasks_own(engine: Engine) -> None:
    failed = [event for event in run(engine, [("raise", "why"), ("add", 1)]) if isinstance(event, Failed)]
    assert [str(event.error) for event in failed] == ["why"] and isinstance(failed[0].error, ValueError)
    (other,) = [event for event in run(engine, [("raise", "why"), ("add", 1)]) if isinstance(event, Done)]
    assert other.result == 101


@pytest.mark.parametrize("engine", [Inline(), Processes(1)], ids=["inline", "one process"])
def test_the_lowest_rank_goes_first(engine: Engine) -> None:
    with engine.open(Arithmetic(0)) as pool:
        desk: Desk[Any, Any] = Desk(pool)
        for value, rank in ((1, (1.0, 0.5)), (2, (1.0, -3.0)), (3, (0.0,)), (4, (1.0, 0.5)), (5, ())):
            desk.add(("add", value), rank=rank)
        found = []
        for event in desk.events():
            assert isinstance(event, Done)
            found.append(event.result)
            if event.result == 3:
                desk.add(("add", 6), rank=(1.0, -4.0))
    assert found == [5, 3, 6, 2, 1, 4]


def test_a_task_is_done_again_when_its_worker_dies(tmp_path: Path) -> None:
    tasks = [("die once", str(tmp_path / "a")), *(("add", k) for k in range(5)), ("die once", str(tmp_path / "b"))]
    events = run(Processes(2), tasks)
    assert all(isinstance(event, Done) for event in events) and len(events) == 7


def test_a_task_that_workers_die_of(tmp_path: Path) -> None:
    events = run(Processes(2), [("die", 0), ("add", 1)], Arithmetic(100, tmp_path / "seen"))
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert isinstance(failed.error, WorkerLostError)
    assert str(failed.error) == "its process was ended by SIGKILL (out of memory?) (3 times)"
    assert [event.result for event in events if isinstance(event, Done)] == [101]
    assert len((tmp_path / "seen").read_text().splitlines()) in (3, 4)


def test_a_task_stops_when_asked_to(tmp_path: Path) -> None:
    with Processes(2).open(Arithmetic(0)) as pool:
        desk: Desk[Any, Any] = Desk(pool)
        long, short = ("stop", str(tmp_path / "begun")), ("add", 1)
        desk.add(long)
        desk.add(short)
        ended = []
        for event in desk.events(tick=0.01):
            if event is None and ended == [1] and (tmp_path / "begun").exists():
                assert desk.running[0].task is long and desk.running[0].seconds > 0 and not desk.ready
                desk.stop(long)
            elif isinstance(event, Done):
                ended.append(event.result)
    assert ended == [1, "stopped"] and desk.alone > 0


@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_leaving_ends_what_is_under_way(tmp_path: Path, grace: float) -> None:
    """A task without grace ends at once, one with a grace by itself; either way nothing of the pool is left."""
    path = tmp_path / "begun"
    with Processes(1).open(Arithmetic(0, tmp_path / "seen")) as pool:
        desk: Desk[Any, Any] = Desk(pool)
        desk.add(("stop", str(path)), grace=grace)
        events = desk.events(tick=0.01)
        while not path.exists():
            assert next(events) is None
    assert path.read_text() == ("stopped" if grace else "")
    (worker,) = map(int, (tmp_path / "seen").read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_workers_have_one_thread_and_a_log(tmp_path: Path) -> None:
    engine = Processes(1, log=tmp_path / "log")
    assert [event.result for event in run(engine, [("threads", 0)])] == [1]
    assert not (tmp_path / "log").exists()  # nobody complained


def test_ray_is_not_imported_unless_asked_for() -> None:
    program = "import sys, surebound.cli.certify, surebound.work.cluster; assert not {'ray', 'torch'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True, timeout=60)


def test_choosing() -> None:
    assert choose() == Inline() and choose(workers=3) == Processes(3)
    for wrong in (0, 1.5, "2"):
        with pytest.raises(UsageError, match="workers"):
            choose(workers=wrong)  # type: ignore[arg-type]


def test_the_last_task_is_alone_only_at_the_end(tmp_path: Path) -> None:
    begin = time.monotonic()
    with Processes(2).open(Arithmetic(0)) as pool:
        desk: Desk[Any, Any] = Desk(pool)
        for k in range(6):
            desk.add(("add", k))
        assert len(list(desk.events())) == 6
    assert 0 <= desk.alone <= time.monotonic() - begin

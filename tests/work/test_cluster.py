"""Tasks and certifications on a Ray cluster of several nodes, all on this machine, of which some are killed."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from classifiers import small_digits, write
from commands import SUREBOUND, environment
from proving import problem, prove
from tasks import Arithmetic
from verifications import ALONE

from surebound.check import check
from surebound.cli.main import main
from surebound.errors import UsageError, WorkerLostError
from surebound.evaluate.store import Row, Store
from surebound.verify.dealer import Dealer
from surebound.version import __version__
from surebound.work import Desk, Done, Failed, Said, cluster
from surebound.work.cluster import Cluster, ClusterPool

pytestmark = pytest.mark.slow
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", **cluster.ENVIRONMENT}  # else Ray writes a token into the home folder
IMAGES = ["--dataset", "digits", "--eps", "1/30"]
CONFIG = {  # of Ray: a node that was killed is soon missed
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
SMALL = {"num_cpus": 1, "object_store_memory": 80 * 2**20}


def _need_ray() -> None:
    """Without importing it, which is to happen in an environment that makes it quiet."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install 'surebound[ray]'")


class Nodes:
    """A cluster: a head with one processor, and two nodes of as many that may be killed; others may join."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Ray

        self._cluster = Ray()
        self._cluster.add_node(**SMALL, include_dashboard=False, _system_config=CONFIG)
        self._nodes = [self._cluster.add_node(**SMALL) for _ in range(2)]
        self.address = str(self._cluster.address)

    def at_least(self, count: int) -> None:
        """So many that may be killed, whatever other tests left."""
        while len(self._nodes) < count:
            self.join()

    def join(self) -> str:
        """One more node; Ray's name for it."""
        self._nodes.append(self._cluster.add_node(**SMALL))
        return str(self._nodes[-1].node_id)

    def kill_one(self) -> None:
        """All processes of a node at once, as a power cut would."""
        node = self._nodes.pop()
        (raylet,) = node.all_processes["raylet"]
        for pid in (raylet.process.pid, *_descendants(raylet.process.pid)):
            os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        self._cluster.shutdown()


def _descendants(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for thread in threads for child in thread.read_text().split()]
    return [*children, *(below for child in children for below in _descendants(child))]


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    _need_ray()
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    path = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([environment()["PYTHONPATH"], str(Path(__file__).parents[1])])
    running = Nodes()
    try:
        yield running
    finally:
        running.end()
        for name, value in {**before, "PYTHONPATH": path}.items():
            os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


@pytest.fixture(scope="module")
def pool(nodes: Nodes) -> Iterator[ClusterPool[Any, Any]]:
    os.environ["RAY_ADDRESS"] = nodes.address  # which auto goes to
    try:
        with Cluster("auto").open(Arithmetic(100)) as opened:
            yield opened
    finally:
        del os.environ["RAY_ADDRESS"]


def run(pool: ClusterPool[Any, Any], *tasks: Any) -> list[Any]:
    desk: Desk[Any, Any] = Desk(pool)
    for task in tasks:
        desk.add(task)
    return list(desk.events())


def test_results_words_and_errors(pool: ClusterPool[Any, Any]) -> None:
    assert pool.slots == 4
    found = run(pool, *(("add", k) for k in range(9)), ("say", 3), ("raise", "why"), ("threads", 0))
    results = {event.task: event.result for event in found if isinstance(event, Done)}
    assert results == {**{("add", k): 100 + k for k in range(9)}, ("say", 3): "said", ("threads", 0): 1}
    assert [event.word for event in found if isinstance(event, Said)] == [0, 1, 2]
    (failed,) = [event for event in found if isinstance(event, Failed)]
    assert isinstance(failed.error, ValueError) and str(failed.error) == "why"


def test_workers_that_die(pool: ClusterPool[Any, Any], tmp_path: Path) -> None:
    found = {event.task[0]: event for event in run(pool, ("die", 0), ("die once", str(tmp_path / "a")), ("add", 1))}
    assert found["die once"].result == "alive" and found["add"].result == 101
    assert isinstance(found["die"].error, WorkerLostError)
    assert str(found["die"].error) == "its worker died (out of memory?) (3 times)"


def test_a_task_stops_when_asked_to(pool: ClusterPool[Any, Any], tmp_path: Path) -> None:
    desk: Desk[Any, Any] = Desk(pool)
    desk.add(long := ("stop", str(tmp_path / "begun")))
    for event in desk.events(tick=0.05):
        if event is None and (tmp_path / "begun").exists():
            desk.stop(long)
    assert isinstance(event, Done) and event.result == "stopped"


def test_a_node_that_joins_gets_work(nodes: Nodes, pool: ClusterPool[Any, Any]) -> None:
    desk: Desk[Any, Any] = Desk(pool)
    for _ in range(6):
        desk.add(("where", 0.1))
    joined, give_up = "", time.monotonic() + 120
    for event in desk.events():
        assert isinstance(event, Done) and time.monotonic() < give_up
        joined = joined or nodes.join()
        if event.result == joined:
            break
        desk.add(("where", 0.1))
    assert pool.slots == 5


@pytest.mark.usefixtures("pool")  # which has joined the cluster, so that doing so again takes no time
def test_what_is_wrong_with_a_cluster(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--resources .*num_cpu"):
        Cluster(nodes.address, {"num_cpu": 1}).open(Arithmetic(0))
    monkeypatch.setattr(cluster, "__version__", "0.0")
    with pytest.raises(UsageError, match=f"has surebound {__version__}; expected surebound 0.0, as here"):
        Cluster(nodes.address).open(Arithmetic(0))


def test_another_python_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    _need_ray()
    import ray
    from ray._private.utils import check_version_info

    def init(**_: Any) -> None:
        check_version_info({"ray_version": ray.__version__, "python_version": "3.9.1"}, "here")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(cluster, "_expect_answer", lambda _: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(UsageError) as caught:
        Cluster("127.0.0.1:1").open(Arithmetic(0))
    here = ".".join(map(str, sys.version_info[:3]))
    assert str(caught.value) == (
        f"the cluster at '127.0.0.1:1' has Ray {ray.__version__} and Python 3.9.1; "
        f"expected Ray {ray.__version__} and Python {here}, as here"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cluster")
    (place / "run").mkdir()
    write(small_digits(), place / "run")
    return place


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--cluster", "127.0.0.1:9"], "there is no cluster at '127.0.0.1:9'"),
        (["--cluster", "somewhere"], "expected auto or HOST:PORT"),
        (["--cluster", "auto"], "Ray, which is not installed; expected it after pip install 'surebound[ray]'"),
        (["--cluster", "auto", "--workers", "2"], "expected one of the two"),
        (["--cluster", "auto", "--threads", "2"], "--threads beside --cluster"),
        (["--resources", "{}"], "resources without a cluster"),
    ],
)
def test_mistakes_are_one_sentence(
    options: list[str],
    complaint: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "installed" in complaint:
        monkeypatch.setitem(sys.modules, "ray", None)
    else:
        _need_ray()
    monkeypatch.chdir(folder)
    assert main(["certify", "run", *IMAGES, "--store", "s.sqlite", *options]) == 2
    out, err = capsys.readouterr()
    assert out == "" and complaint in err and err.count("\n") == 1 and not (folder / "s.sqlite").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["verify", "run/model.onnx", "property.vnnlib"],  # before the property is read
        ["attack", "run", *IMAGES],
        ["reproduce", "table1", "--scale", "smoke", "--out", "out"],
    ],
    ids=lambda words: words[0],
)
def test_every_command_says_so_before_it_begins(
    command: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _need_ray()
    (folder / "property.vnnlib").write_text("(not read)")
    monkeypatch.chdir(folder)
    assert main([*command, "--cluster", "127.0.0.1:9"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "there is no cluster at '127.0.0.1:9'" in err and err.count("\n") == 1
    assert not (folder / "out").exists()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Not Found\r\n\r\n", b"SSH", None], ids=["web", "closes", "silent"])
def test_another_service_at_the_address(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    _need_ray()
    monkeypatch.setattr(cluster, "_PATIENCE", 0.5)

    def serve() -> None:
        talk, _ = listening.accept()
        with talk:
            talk.recv(64)
            if answer is None:
                talk.recv(64)  # until the other side gives up
            else:
                talk.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(UsageError, match=f"there is no cluster at '{address}'"):
            Cluster(address).open(Arithmetic(0))


def _start(folder: Path, *more: str) -> subprocess.Popen[str]:
    command = [*SUREBOUND, "certify", "run", *IMAGES, "--quiet", *more]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=environment(**ENVIRONMENT), text=True, **pipes)


def _rows(store: Path) -> dict[int, Row]:
    if not store.exists():
        return {}
    with Store(store) as results:
        return {row.image: row for number in results.runs() for row in results.rows(number)}


def _wait(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    give_up = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_an_interrupt_keeps_what_is_known(nodes: Nodes, folder: Path) -> None:
    driver = _start(folder, "--store", "c.sqlite", "--proofs", "c", "--cluster", nodes.address)
    _wait(lambda: len(_rows(folder / "c.sqlite")) > 0, driver)
    driver.send_signal(signal.SIGTERM)
    out, err = driver.communicate(timeout=60)
    assert driver.returncode == 143 and out.splitlines()[0].startswith("standard")  # of the images that are settled
    assert re.fullmatch(
        r"interrupted after \d+ of 360 images; what is done is in 'c.sqlite', and --resume goes on from there\n", err
    )


def test_nodes_and_the_driver_are_killed(nodes: Nodes, folder: Path) -> None:
    """All images of digits: the rows and the proofs of an undisturbed run in one process."""
    alone = _start(folder, "--store", "a.sqlite", "--proofs", "a")
    _, err = alone.communicate(timeout=300)
    assert alone.returncode == 0, err
    more = ["--store", "b.sqlite", "--proofs", "b", "--cluster", nodes.address, "--resume", "--json", "r.json"]
    driver, store = _start(folder, *more), folder / "b.sqlite"
    _wait(lambda: len(_rows(store)) > 0, driver)
    nodes.kill_one()
    _wait(lambda: len(_rows(store)) > 90, driver)
    driver.kill()
    driver.communicate()
    before = _rows(store)
    assert 90 < len(before) < 360
    driver = _start(folder, *more)
    _wait(lambda: len(_rows(store)) > len(before), driver)
    nodes.kill_one()
    _, err = driver.communicate(timeout=300)
    assert (driver.returncode, err) == (0, ""), err
    expected, found = _rows(folder / "a.sqlite"), _rows(store)
    assert set(expected) == set(found) == set(range(360))
    for image, row in expected.items():
        assert (found[image].outcome, found[image].stage) == (row.outcome, row.stage)
        assert (found[image].proof is None) == (row.proof is None)
    proofs = [{path.name: path.read_bytes() for path in (folder / name).glob("image-*")} for name in "ab"]
    assert proofs[0] == proofs[1] and len(proofs[0]) == 2 * sum(row.verified for row in expected.values())
    assert 0 <= json.loads((folder / "r.json").read_text())["straggler"] < 1
    assert [found[image].seconds for image in before] == [row.seconds for row in before.values()]  # none done again


def test_one_search_whose_nodes_are_killed(nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes die while they search: their pieces are dealt again, and the proof is whole."""
    nodes.at_least(2)
    begin, hear, heard = Dealer.__init__, Dealer.hear, list[Any]()

    def begin_at_once(self: Dealer, *args: Any) -> None:
        begin(self, *args)
        self._ready = True  # so that nothing is split here while workers start

    def hear_and_kill(self: Dealer, event: Any) -> None:
        heard.append(event)
        if len(heard) in (1, 3):
            nodes.kill_one()
        hear(self, event)

    monkeypatch.setattr(Dealer, "__init__", begin_at_once)
    monkeypatch.setattr(Dealer, "hear", hear_and_kill)
    at_once = replace(ALONE, batch=2, alone=0.0, alone_batches=1)  # whatever has to be split is dealt out
    done = prove(tmp_path, *problem("wider", 0, 1e-2), "mixture", at_once, cluster=nodes.address, timeout=300.0)
    assert (done.verdict.status, done.verdict.searched_by) == ("unsat", "a cluster")
    assert len(heard) > 3
    assert check(*done.files).valid

"""torchrun starts the processes of a training again when one of them dies, and the weights come out the same."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from commands import environment
from trainings import TORCHRUN, command, same, write_config

from surebound.errors import UsageError
from surebound.train.checkpoint import load

pytestmark = pytest.mark.slow

PROCESSES, EPOCHS = 2, 12
PATIENCE = 300  # seconds


@contextmanager
def training(out: Path, nodes: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """A training as on so many machines, with two processes in all, until it ends."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = ["--nnodes", str(nodes), "--nproc-per-node", str(PROCESSES // nodes), "--max-restarts", "2"]
    options += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", out.name]
    line = [*TORCHRUN, *options, *command(out, "--quiet", "--resume", "--threads", "1")]
    with ExitStack() as stack:
        started = [stack.enter_context(subprocess.Popen(line, env=environment())) for _ in range(nodes)]
        try:
            yield started
            assert [process.wait(PATIENCE) for process in started] == [0] * nodes
        finally:
            for process in started:
                process.terminate()


def worker(started: list[subprocess.Popen[bytes]], rank: int) -> int:
    """The process of a rank, which torchrun started."""
    parents = {process.pid for process in started}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent in parents and f"RANK={rank}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                return int(folder.name)
    raise AssertionError(f"there is no process of rank {rank}")


def lines(out: Path) -> dict[int, list[str]]:
    """The lines of the metrics by step. They say when they were written."""
    found: dict[int, list[str]] = {}
    for line in (out / "metrics.jsonl").read_text().splitlines(keepends=True):
        if line.endswith("\n"):  # a process that is killed may leave half of one
            found.setdefault(json.loads(line)["step"], []).append(line)
    return found


def wait_for_step(out: Path, least: int) -> int:
    """Wait for a checkpoint of that step or a later one; its step."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with suppress(UsageError):  # none yet, or replaced while it is read
            if (step := load(out / "checkpoint.safetensors").step) >= least:
                return step
        time.sleep(0.02)
    raise AssertionError(f"there is no checkpoint of step {least}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    write_config(folder, epochs=EPOCHS)
    with training(folder / "run", 1):
        pass
    return folder / "run"


@pytest.mark.parametrize(("nodes", "rank"), [(1, 0), (2, 1)])
def test_a_rank_that_is_killed_is_restarted(tmp_path: Path, whole: Path, nodes: int, rank: int) -> None:
    write_config(tmp_path, epochs=EPOCHS)
    epoch, run = max(lines(whole)) // EPOCHS, tmp_path / "run"
    with training(run, nodes) as started:
        saved = wait_for_step(run, 2 * epoch)
        os.kill(worker(started, rank), signal.SIGKILL)
        before = lines(run)
    after = lines(run)
    assert after.keys() == lines(whole).keys()
    assert max(before) < max(after)  # it was killed in the middle,
    assert all(after[step] == before[step] for step in before if step <= saved)  # and went on from there
    assert same(whole, run)
    assert (whole / "model.onnx").read_bytes() == (run / "model.onnx").read_bytes()

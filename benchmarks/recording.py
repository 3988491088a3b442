"""The measurements of scale.py: one certification step by step, and the command in three ways."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import patch

from common import Log, Record, Unavailable
from revisions import environment
from simulation import BATCH

if TYPE_CHECKING:
    from surebound.evaluate.stages import Certifier
    from surebound.evaluate.task import Task

PARTS = 5  # in which the first batch is screened again, which shows what a batch costs by itself
ENGINES = {
    "one process, one thread": ("--threads", "1"),
    "--workers 2": ("--workers", "2"),
    "Ray, two nodes of one processor": ("--cluster", "ADDRESS"),
}


def setting(args: argparse.Namespace) -> str:
    """What the recorded times depend on."""
    return f"{args.model.name}, eps {args.eps}, timeout {args.timeout:g} s, search {args.search}"


def record(args: argparse.Namespace, log: Log) -> None:
    """Certify images as one worker would, and note what each step takes.

    Times are processor time, also the one that a timeout is about: the machine may have other things to do.
    """
    import torch

    from surebound.data import load_dataset
    from surebound.evaluate.room import images_together
    from surebound.evaluate.stages import Certifier, Settings
    from surebound.evaluate.task import Task
    from surebound.load.onnx import load_model

    torch.set_num_threads(1)
    settings = Settings.of(args.search, timeout=args.timeout)
    eps, data = Fraction(args.eps), load_dataset("cifar10", args.data)
    task = Task(model=args.model, dataset=data, eps=eps, images=range(args.first), settings=settings)
    certifier = Certifier(load_model(task.file), eps, settings)
    size = images_together(certifier.model.network, settings.passes, BATCH)
    if not _noted(args, log, "start", "worker"):
        code = (
            f"import surebound.evaluate.stages; from surebound.load.onnx import load_model as f; f({str(task.file)!r})"
        )
        begin = _children()
        subprocess.run([sys.executable, "-c", code], env=environment(), check=True)
        _note(args, log, "start", "worker", _children() - begin)
    with patch.object(time, "monotonic", time.process_time):
        for first in range(0, min(size, args.first), -(-size // PARTS)):
            if not _noted(args, log, "part", first):
                some = [task.samples[i] for i in task.images[first : min(first + -(-size // PARTS), size)]]
                begin = time.process_time()
                certifier.screen(some)
                _note(args, log, "part", first, time.process_time() - begin, images=len(some))
        for first in range(0, args.first, size):
            _record_batch(args, log, certifier, task, range(first, min(first + size, args.first)))


def _record_batch(args: argparse.Namespace, log: Log, certifier: "Certifier", task: "Task", images: range) -> None:
    """Screen a batch, and search what that leaves open."""
    known = _noted(args, log, "screen", images.start)
    if known and all(_noted(args, log, "search", int(image)) for image in known["margins"]):
        return
    begin = time.process_time()
    _, left = certifier.screen([task.samples[i] for i in images])
    if not known:
        margins = {one.image: one.margin for one in left}
        _note(
            args,
            log,
            "screen",
            images.start,
            time.process_time() - begin,
            images=len(images),
            margins=margins,
        )
    for one in left:
        if not _noted(args, log, "search", one.image):
            begin = time.process_time()
            row = certifier.search(task.samples[one.image], one)
            seconds = time.process_time() - begin
            _note(args, log, "search", one.image, seconds, margin=one.margin, outcome=row.outcome)


def _noted(args: argparse.Namespace, log: Log, kind: str, name: object) -> Record | None:
    return log.find(kind=kind, name=name, setting=setting(args))


def _children() -> float:
    """The processor time of processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def _note(args: argparse.Namespace, log: Log, kind: str, name: object, seconds: float, **more: object) -> None:
    log.add({"kind": kind, "name": name, "setting": setting(args), "seconds": seconds, **more})
    print(f"{kind} {name}: {seconds:.2f} s", flush=True)


def measure(args: argparse.Namespace, log: Log, engine: str) -> None:
    """The command on the first of these images, into a new store."""
    known = _noted(args, log, "run", engine)
    if known and known["images"] == args.measured:
        return
    with tempfile.TemporaryDirectory() as folder, _Ray(engine) as address:
        store, summary = Path(folder, "store.sqlite"), Path(folder, "summary.json")
        command = [sys.executable, "-m", "surebound", "certify", str(args.model), "--dataset", "cifar10"]
        command += ["--data-dir", str(args.data), "--eps", args.eps, "--first", str(args.measured)]
        command += ["--timeout", str(args.timeout), "--search", args.search, "--store", str(store), "--quiet"]
        command += ["--json", str(summary), *(address if word == "ADDRESS" else word for word in ENGINES[engine])]
        begin = time.perf_counter()
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"surebound certify ended with exit code {done.returncode}: {done.stderr.strip()}")
        seconds, found = time.perf_counter() - begin, json.loads(summary.read_text())
        _note(args, log, "run", engine, seconds, images=args.measured, outcomes=_outcomes(store), summary=found)


def _outcomes(store: Path) -> dict[str, str]:
    from surebound.evaluate.store import Store

    with Store(store, readonly=True) as results:
        return {str(image): outcome for image, outcome in results.outcomes(1).items()}


class _Ray:
    """A Ray of two nodes with one processor each on this machine, while it is needed."""

    def __init__(self, engine: str) -> None:
        self._wanted, self._cluster = "ADDRESS" in ENGINES[engine], None

    def __enter__(self) -> str:
        if not self._wanted:
            return ""
        try:
            from ray.cluster_utils import Cluster
        except ImportError as error:
            raise Unavailable("Ray is not installed: pip install 'surebound[ray]'") from error
        equal = {"worker_niceness": 0}  # the priority that processes of --workers have
        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": equal})
        self._cluster.add_node(num_cpus=1)
        return str(self._cluster.address)

    def __exit__(self, *_: object) -> None:
        if self._cluster is not None:
            self._cluster.shutdown()

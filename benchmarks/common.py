"""What the benchmark scripts share: where the inputs are, logs that can be resumed, the machine, Markdown tables."""

import argparse
import csv
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from surebound.network.model import Model
    from surebound.problem import Property, Verdict

# Before torch is imported: threads that spin while they wait slow each other down on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SHARED = ROOT.parent / "shared"

Record = dict[str, Any]
NOT_SEARCH = ("load", "import", "attack", "root")  # phases


class Unavailable(Exception):
    """Something a measurement needs is not there: instances, a data set, an earlier revision. Says what."""


@dataclass(frozen=True, kw_only=True)
class Instance:
    """A row of instances.csv: a network, a property and the verdict it should get."""

    benchmark: str
    onnx: Path
    vnnlib: Path
    expected: str  # sat, unsat or unknown

    @property
    def network(self) -> str:
        return self.onnx.name.removesuffix(".gz").removesuffix(".onnx")

    @property
    def spec(self) -> str:
        return self.vnnlib.name.removesuffix(".gz").removesuffix(".vnnlib")

    @property
    def name(self) -> str:
        return f"{self.benchmark}/{self.network}/{self.spec}"


def read_instances(folder: Path) -> list[Instance]:
    """The instances listed in the folder's instances.csv."""
    if not (folder / "instances.csv").is_file():
        raise Unavailable(f"there are no instances in '{_portable(str(folder))}'")
    with (folder / "instances.csv").open(newline="") as file:
        return [
            Instance(
                benchmark=row["benchmark"],
                onnx=folder / row["onnx"],
                vnnlib=folder / row["vnnlib"],
                expected=row["expected"],
            )
            for row in csv.DictReader(file)
        ]


def pick(instances: Sequence[Instance], text: str) -> Instance:
    """The one instance whose name has this text."""
    found = [i for i in instances if text in i.name]
    if len(found) != 1:
        raise Unavailable(f"'{text}' names {len(found)} of the instances; expected one")
    return found[0]


def load_instance(instance: Instance) -> "tuple[Model, Property]":
    """An instance's network and property."""
    import surebound
    from surebound.load.vnnlib import read_property

    return surebound.load(instance.onnx), read_property(instance.vnnlib)


def search_seconds(verdict: "Verdict") -> float:
    """Of the search: bounding, branching, queue and leaves, but neither attacks nor root bounds."""
    return sum(s for name, s in verdict.seconds_by_phase.items() if name not in NOT_SEARCH)


def search_rate(verdict: "Verdict") -> float | None:
    """Subproblems per second of the search; None if there was none."""
    seconds = search_seconds(verdict)
    return verdict.subproblems / seconds if seconds > 0 else None


class Log:
    """Results as JSON lines, written as they come; a resumed run finds what is already there."""

    def __init__(self, path: Path, key: Sequence[str], *, resume: bool) -> None:
        """`key` names the fields that identify a result."""
        self.path, self.key = path, key
        self.records: dict[tuple[Any, ...], Record] = {}
        if path.is_file() and path.stat().st_size:
            if not resume:
                sys.exit(f"the log '{path}' holds earlier results: pass --resume to go on with it, or remove it")
            self._read()
        path.parent.mkdir(parents=True, exist_ok=True)

    def find(self, **fields: Any) -> Record | None:
        """The result with these key fields, if there is one."""
        return self.records.get(tuple(fields[name] for name in self.key))

    def add(self, record: Record) -> None:
        """Keep a result, in memory and in the file."""
        self.records[self._key_of(record)] = record
        with self.path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def _read(self) -> None:
        text = self.path.read_text()
        lines = text.splitlines()
        if not text.endswith("\n"):  # a run that was killed while writing leaves half a line
            lines.pop()
            self.path.write_text("".join(line + "\n" for line in lines))
        for line in lines:
            record = json.loads(line)
            self.records[self._key_of(record)] = record

    def _key_of(self, record: Record) -> tuple[Any, ...]:
        return tuple(record[name] for name in self.key)


def sgemm_rate(threads: int, size: int = 2048, repeats: int = 10) -> float:
    """GFLOP/s of a float32 matrix product, the best of some repeats."""
    import torch

    torch.set_num_threads(threads)
    a, b = torch.rand(size, size), torch.rand(size, size)
    best = float("inf")
    for _ in range(repeats):
        begin = time.perf_counter()
        torch.mm(a, b)
        best = min(best, time.perf_counter() - begin)
    return 2 * size**3 / best / 1e9


def products_rate(seconds: float, size: int = 2048) -> float:
    """FLOP/s of float32 matrix products over about so many seconds: what the machine gave just then."""
    import torch

    a = torch.rand(size, size)
    begin, done = time.perf_counter(), 0
    while done == 0 or time.perf_counter() - begin < seconds:
        a @ a
        done += 1
    return done * 2 * size**3 / (time.perf_counter() - begin)


def machine(threads: int) -> str:
    """One sentence on what the numbers were measured on."""
    import torch

    from surebound import __version__

    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores, {threads} threads, float32 matrix product {sgemm_rate(threads):.0f} GFLOP/s"
        f" (2048 × 2048, best of ten); Python {platform.python_version()}, torch {torch.__version__},"
        f" surebound {__version__}."
    )


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[object]], *, left: int = 1) -> str:
    """A Markdown table whose first `left` columns are aligned left and the others right."""
    rule = [":--" if i < left else "--:" for i in range(len(header))]
    lines = [header, rule, *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def phases_text(phases: dict[str, float]) -> str:
    """Where the seconds went, the phases that took none left out."""
    return ", ".join(f"{name} {seconds:.1f}" for name, seconds in phases.items() if seconds >= 0.05)


def instance_arguments(description: str | None, name: str) -> argparse.Namespace:
    """The arguments of a benchmark over instances, whose results are called `name`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vnncomp", type=Path, default=SHARED / "vnncomp", help="the folder with instances.csv")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each verification (default 120)")
    parser.add_argument("--threads", type=int, default=2, help="threads of each process (default 2)")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose benchmark/network/property has TEXT")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N of the instances")
    parser.add_argument("--log", type=Path, default=RESULTS / f"{name}.jsonl", help="results as JSON lines")
    parser.add_argument("--resume", action="store_true", help="keep what the log already holds")
    parser.add_argument("--out", type=Path, default=RESULTS / f"{name}.md", help="the report")
    return parser.parse_args()


def run_instances(
    args: argparse.Namespace,
    instances: Sequence[Instance],
    run: Callable[[Instance, float, int], Record],
    line: Callable[[Record], str],
) -> list[Record]:
    """One record an instance, from the log where it has it, and a line of each as it comes."""
    log = Log(args.log, ("instance", "timeout", "threads"), resume=args.resume)
    records = []
    for number, instance in enumerate(instances, 1):
        record = log.find(instance=instance.name, timeout=args.timeout, threads=args.threads)
        if record is None:
            record = run(instance, args.timeout, args.threads)
            log.add(record)
        print(f"[{number}/{len(instances)}] {line(record)}", flush=True)
        records.append(record)
    return records


def write_report(path: Path, text: str) -> None:
    """Write a report, and say where."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    print(f"wrote {path}")


def command_text() -> str:
    """The command that is running, as one would type it in the repository."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *map(_portable, sys.argv[1:])])


def _portable(argument: str) -> str:
    """A path as it looks from the repository; of one that is elsewhere, its name only."""
    path = Path(argument)
    if not path.is_absolute():
        return argument
    for place, name in ((ROOT, ""), (SHARED, "../shared/")):
        if path.is_relative_to(place):
            return f"{name}{path.relative_to(place)}"
    return path.name

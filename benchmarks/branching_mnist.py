"""UPB against FSB and SR on a COLT-trained MNIST network, in the shape of the table in the paper's figure 2.

    python benchmarks/branching_mnist.py --first 100 --eps 0.1 --eps 0.2 --timeout 20 --threads 2

Every rule verifies every image within ε in the same process, one rule right after the other, early stopping off. Images
the network gets wrong are skipped. At ε = 0.1, for which the network was trained, few properties need branching; at 0.2
about half do. Results go to the log as they come (--resume goes on with it); the report is
benchmarks/results/branching_mnist.md.

The file takes the normalised image, so the box of a property is the pixel box [x - ε, x + ε] ∩ [0, 1] sent through
(· - mean) / std in exact fractions, each end rounded outward.
"""

import argparse
import gzip
import statistics
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import RESULTS, SHARED, Log, Record, command_text, machine, markdown_table, write_report
from numpy.typing import NDArray

if TYPE_CHECKING:
    from surebound.problem import Property

RULES = ("upb", "fsb", "sr")
OUTPUTS = 10
MEAN, STD = Fraction("0.1307"), Fraction("0.3081")
KEY = ("eps", "image", "rule", "timeout", "threads")
DECIDED = ("sat", "unsat")

Pixels = NDArray[np.uint8]
Group = dict[str, Record]
"""The results of one property, by rule."""


def main() -> int:
    args = _arguments()
    for path in (args.model, args.mnist):
        if not path.exists():
            print(f"no '{path}'; --model and --mnist name the network and the folder with MNIST", file=sys.stderr)
            return 2
    log = Log(args.log, KEY, resume=args.resume)
    where = machine(args.threads)
    runner = Runner(args.model, args.mnist, args.timeout, args.threads)
    images = [i for i in range(args.first) if runner.is_right(i)]
    groups: dict[str, list[Group]] = {eps: [] for eps in args.eps}
    for image in images:
        for eps in args.eps:
            groups[eps].append(runner.verify(image, eps, log))
            print(_line(groups[eps][-1]), flush=True)
    write_report(args.out, report(groups, args, where))
    clashes = sum(contradicts(g) for gs in groups.values() for g in gs)
    print(f"{clashes} contradictions between the rules")
    return int(clashes > 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=SHARED / "models" / "colt_mnist_0.1.onnx", help="the network")
    parser.add_argument("--mnist", type=Path, default=SHARED / "data" / "mnist", help="the folder of MNIST's .gz files")
    parser.add_argument("--first", "--limit", type=int, default=100, metavar="N", help="the first N test images")
    parser.add_argument("--eps", action="append", metavar="E", help="a radius in pixels; repeatable (default 0.1, 0.2)")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds for each property and rule (default 20)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default 2)")
    parser.add_argument("--log", type=Path, default=RESULTS / "branching_mnist.jsonl", help="results as JSON lines")
    parser.add_argument("--resume", action="store_true", help="keep what the log already holds")
    parser.add_argument("--out", type=Path, default=RESULTS / "branching_mnist.md", help="the report")
    args = parser.parse_args()
    args.eps = args.eps or ["0.1", "0.2"]
    return args


class Runner:
    """The loaded network and images."""

    def __init__(self, model: Path, mnist: Path, timeout: float, threads: int) -> None:
        import torch

        import surebound

        torch.set_num_threads(threads)
        self.timeout, self.threads = timeout, threads
        self.model = surebound.load(model)
        self.pixels = read_idx(mnist / "t10k-images-idx3-ubyte.gz", 16).reshape(-1, 28 * 28)
        self.labels = read_idx(mnist / "t10k-labels-idx1-ubyte.gz", 8)
        # One verification that is not counted, so that whatever happens once has happened.
        surebound.verify(self.model, robustness(self.pixels[0], int(self.labels[0]), Fraction("0.1")), timeout=timeout)

    def is_right(self, image: int) -> bool:
        """Whether the network classifies the image correctly."""
        x = (self.pixels[image] / 255 - float(MEAN)) / float(STD)
        y = self.model.replay(x.astype(np.float32)[None])[0]
        return bool(y.argmax() == self.labels[image])

    def verify(self, image: int, eps: str, log: Log) -> Group:
        """All rules on one property; their order changes from image to image so that none always goes first."""
        group: Group = {}
        start = image % len(RULES)
        for rule in RULES[start:] + RULES[:start]:
            key = {"eps": eps, "image": image, "rule": rule, "timeout": self.timeout, "threads": self.threads}
            record = log.find(**key)
            if record is None:
                record = key | self._run(image, eps, rule)
                log.add(record)
            group[rule] = record
        return group

    def _run(self, image: int, eps: str, rule: str) -> Record:
        import surebound

        problem = robustness(self.pixels[image], int(self.labels[image]), Fraction(eps))
        verdict = surebound.verify(self.model, problem, timeout=self.timeout, branching=rule, early_stop=False)
        return {
            "verdict": verdict.status,
            "seconds": round(verdict.seconds, 4),
            "subproblems": verdict.subproblems,
            "phases": verdict.seconds_by_phase,
            "reason": verdict.reason,
        }


def read_idx(path: Path, header: int) -> Pixels:
    """The bytes of an idx file after its header."""
    with gzip.open(path) as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)


def robustness(pixels: Pixels, label: int, eps: Fraction) -> "Property":
    """No other class reaches the label's score within eps of the image, over the network's normalised inputs."""
    from surebound.problem import Box, Property, Region, round_down, round_up

    exact = [Fraction(int(p), 255) for p in pixels]
    lower = [round_down((max(p - eps, Fraction(0)) - MEAN) / STD) for p in exact]
    upper = [round_up((min(p + eps, Fraction(1)) - MEAN) / STD) for p in exact]
    box = Box(np.array(lower), np.array(upper))
    rows = np.eye(OUTPUTS)[label] - np.delete(np.eye(OUTPUTS), label, axis=0)  # (others, outputs)
    regions = tuple(
        Region(box=box, on_output=row[None], constant=np.zeros(1), strict=np.zeros(1, dtype=bool)) for row in rows
    )
    return Property(regions, len(exact), OUTPUTS, source=f"MNIST image with label {label} within {eps}")


def contradicts(group: Group) -> bool:
    """Whether one rule says sat and another unsat."""
    return {"sat", "unsat"} <= {r["verdict"] for r in group.values()}


def was_split(record: Record) -> bool:
    """Whether the root bounds left something to branch on."""
    return "branching" in record["phases"]


def comparable(group: Group) -> bool:
    """Whether both UPB and FSB ended in time: the properties over which the paper averages subproblems."""
    return all(group[rule]["verdict"] in DECIDED for rule in ("upb", "fsb"))


def report(groups: dict[str, list[Group]], args: argparse.Namespace, where: str) -> str:
    """The whole Markdown page."""
    properties = len(next(iter(groups.values())))
    clashes = [f"ε = {eps}: {_line(g)}" for eps, gs in groups.items() for g in gs if contradicts(g)]
    parts = [
        "# Branching rules on a COLT-trained MNIST network\n",
        f"The first {args.first} test images, of which the network gets {properties} right: one property each per ε."
        f" Timeout {args.timeout:g} s for each property and rule, early stopping off, rules interleaved.\n",
        f"**{len(clashes)} contradictions between the rules' verdicts.**\n",
        *(f"- {line}\n" for line in clashes),
        "## All properties\n",
        comparison_table(groups),
        "\\* over the properties that neither UPB nor FSB timed out on. Times are means over all properties,"
        " those timed out included.\n",
        "## Properties that some rule had to split\n",
        comparison_table({eps: [g for g in gs if any(map(was_split, g.values()))] for eps, gs in groups.items()}),
        "## Counts\n",
        counts_table(groups),
        *_timeouts(groups),
        f"Machine: {where}\n",
        f"Command: `{command_text()}`\n",
    ]
    return "\n".join(parts)


def comparison_table(groups: dict[str, list[Group]]) -> str:
    """Rows are rules; for each ε: mean time, mean subproblems, share of timeouts; the best in bold."""
    header, columns = ["method"], []
    measures: tuple[tuple[str, str, Callable[[Sequence[Group], str], float | None]], ...] = (
        ("time [s]", ".3f", mean_seconds),
        ("subproblems\\*", ",.1f", mean_subproblems),
        ("% timeout", ".1f", percent_timeout),
    )
    for eps, mine in groups.items():
        for name, form, measure in measures:
            header.append(f"ε = {eps} ({len(mine)}): {name}")
            columns.append(_bold_least([measure(mine, rule) for rule in RULES], form))
    return markdown_table(header, [[rule.upper(), *(c[i] for c in columns)] for i, rule in enumerate(RULES)])


def mean_seconds(groups: Sequence[Group], rule: str) -> float | None:
    """Over all properties."""
    return statistics.fmean(g[rule]["seconds"] for g in groups) if groups else None


def mean_subproblems(groups: Sequence[Group], rule: str) -> float | None:
    """Over the comparable properties."""
    counts = [g[rule]["subproblems"] for g in groups if comparable(g)]
    return statistics.fmean(counts) if counts else None


def percent_timeout(groups: Sequence[Group], rule: str) -> float | None:
    """Over all properties."""
    return 100 * statistics.fmean(g[rule]["verdict"] == "timeout" for g in groups) if groups else None


def counts_table(groups: dict[str, list[Group]]) -> str:
    """How many properties were split, and each rule's verdicts."""
    verdicts = ("unsat", "sat", "timeout", "unknown")
    header = ["ε", "method", "properties", "needed branching", *verdicts]
    rows: list[list[object]] = []
    for eps, mine in groups.items():
        for rule in RULES:
            split = sum(was_split(g[rule]) for g in mine)
            counts = [sum(g[rule]["verdict"] == v for g in mine) for v in verdicts]
            rows.append([eps, rule.upper(), len(mine), split, *counts])
    return markdown_table(header, rows, left=2)


def _timeouts(groups: dict[str, list[Group]]) -> list[str]:
    lines = []
    for eps, mine in groups.items():
        for rule in RULES:
            images = [str(g[rule]["image"]) for g in mine if g[rule]["verdict"] not in DECIDED]
            if images:
                lines.append(f"- ε = {eps}, {rule.upper()}: images {', '.join(images)}\n")
    return ["Not decided in time:\n", *lines] if lines else []


def _bold_least(values: Sequence[float | None], form: str) -> list[str]:
    cells = ["–" if v is None else format(v, form) for v in values]
    if len(set(cells)) == 1:
        return cells
    least = min(v for v in values if v is not None)
    return [f"**{cell}**" if v == least else cell for v, cell in zip(values, cells, strict=True)]


def _line(group: Group) -> str:
    first = next(iter(group.values()))
    results = (f"{r} {group[r]['verdict']} {group[r]['seconds']:.2f} s {group[r]['subproblems']:,}" for r in RULES)
    text = f"image {first['image']}, ε = {first['eps']}: " + "; ".join(results)
    return text + ("; CONTRADICTION" if contradicts(group) else "")


if __name__ == "__main__":
    sys.exit(main())

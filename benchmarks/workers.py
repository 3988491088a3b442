"""One search in one process with threads, and shared among workers: `--threads 2` against `--workers 2`.

    python benchmarks/workers.py --count 2 --timeout 600

The instances are those that took over 20 s in results/vnncomp.md, with or without a verdict. Since searches have planes
these are few, so two more, which had no verdict after 120 s before, are searched as in the paper, without planes. Each
instance is verified by threads, by workers and by what `--workers auto` chooses, a process each, in turns, and the
fastest of each one's rounds counts. A ratio is the wall time with threads ÷ that with workers, start and root bounds
included. Where the time ran out on one side only, it is at least, or at most, that; where it did on both, the
subproblems bounded until then are compared. The means are those of instances that took over 20 s here with threads.

Report: benchmarks/results/workers.md.
"""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from common import (
    RESULTS,
    SHARED,
    Instance,
    Record,
    Unavailable,
    command_text,
    machine,
    markdown_table,
    pick,
    read_instances,
    write_report,
)
from phases import fastest
from vnncomp import DECIDED, run_instance

LONG = 20.0  # seconds
WITHOUT_PLANES = ("cifar_base_kw-img7086", "cifar_deep_kw-img7479")  # searched as in the paper
WAYS = ("threads", "workers", "auto")
Runs = Mapping[tuple[str, str], Sequence[Record]]


def main() -> int:
    args = _arguments()
    try:
        everything = read_instances(args.vnncomp)
        instances = long_ones(everything, RESULTS / "vnncomp.md")
        instances += [one for text in WITHOUT_PLANES if (one := pick(everything, text)) not in instances]
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 2
    instances = [i for i in instances if args.only in i.name]
    where = machine(args.count)
    runs = in_turns(instances, args.rounds, args.timeout, args.count)
    write_report(args.out, report(instances, runs, args.count, where))
    return int(any(record["wrong"] or record["crash"] for found in runs.values() for record in found))


def long_ones(instances: Sequence[Instance], page: Path) -> list[Instance]:
    """The instances that took long, by the table of a report of vnncomp.py."""
    if not page.is_file():
        raise Unavailable(f"there is no '{page.name}'; expected the report of benchmarks/vnncomp.py")
    rows = [[cell.strip() for cell in line.strip("| \n").split("|")] for line in page.read_text().splitlines()]
    walls = {"/".join(row[:3]): float(row[8]) for row in rows if len(row) == 9 and row[3] in (*DECIDED, "unknown")}
    return [i for i in instances if walls.get(i.name, 0.0) > LONG]


def in_turns(instances: Sequence[Instance], rounds: int, timeout: float, count: int) -> Runs:
    """(instance, way) -> its runs. All ways verify an instance before the next one begins."""
    runs: dict[tuple[str, str], list[Record]] = {}
    for number in range(rounds):
        for instance in instances:
            for way in WAYS:
                by, many = ("threads", count) if way == "threads" else ("workers", count if way == "workers" else way)
                search = ("--search", "paper" if without_planes(instance) else "default")
                record = run_instance(instance, timeout, many, by=by, options=search)
                runs.setdefault((instance.name, way), []).append(record)
                line = f"{record['verdict']} in {record['wall']:.2f} s, {record['subproblems']} subproblems"
                print(f"[{number + 1}/{rounds}] {instance.name}, {way}: {line}", flush=True)
    return runs


def without_planes(instance: Instance) -> bool:
    """Whether an instance is searched as in the paper."""
    return any(text in instance.name for text in WITHOUT_PLANES)


def ratio(threads: Record, workers: Record) -> float:
    """How many times as fast workers were."""
    if threads["verdict"] in DECIDED or workers["verdict"] in DECIDED:
        return float(threads["wall"]) / float(workers["wall"])
    return float(workers["subproblems"] or 1) / float(threads["subproblems"] or 1)


def geometric_mean(values: Sequence[float]) -> float:
    """
    >>> geometric_mean([1.0, 4.0])
    2.0
    """
    return math.exp(sum(map(math.log, values)) / len(values))


def report(instances: Sequence[Instance], runs: Runs, count: int, where: str) -> str:
    """The whole Markdown page."""
    rows, ratios, means = [], {"workers": list[float](), "auto": list[float]()}, dict[str, str]()
    long = [fastest(runs[instance.name, "threads"])["wall"] > LONG for instance in instances]
    for instance in instances:
        best = {way: fastest(runs[instance.name, way]) for way in WAYS}
        for way, found in ratios.items():
            found.append(ratio(best["threads"], best[way]))
        cells = [f"{r['verdict']} {r['wall']:.1f} ({r['subproblems'] or 0:,})" for r in best.values()]
        shared = "workers" in best["auto"]["phases"]
        rows.append(
            [
                instance.name + (", search paper" if without_planes(instance) else ""),
                *cells,
                "workers" if shared else "threads",
                *(f"{found[-1]:.2f}" for found in ratios.values()),
            ]
        )
    header = ["instance", *(f"{way}: verdict, s (subproblems)" for way in WAYS), "auto took", "workers", "auto"]
    for way, found in ratios.items():
        counted = [value for value, took in zip(found, long, strict=True) if took]
        means[way] = f"{geometric_mean(counted):.2f} ({way})" if counted else f"none ({way})"
    intro = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    return "\n".join(
        [
            f"# One search: {count} threads against {count} workers\n",
            f"**Geometric means of the ratios to {count} threads, of {sum(long)} instances: "
            f"{' and '.join(means.values())}.**\n",
            f"{intro}\n",
            f"Machine: {where}\n",
            markdown_table(header, rows),
            f"```\n{command_text()}\n```\n",
        ]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--vnncomp", type=Path, default=SHARED / "vnncomp", help="the folder with instances.csv")
    parser.add_argument("--count", type=int, default=2, help="threads, and workers (default 2)")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each instance and way (default 1)")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds for each run (default 600)")
    parser.add_argument("--only", default="", metavar="TEXT", help="those whose benchmark/network/property has TEXT")
    parser.add_argument("--out", type=Path, default=RESULTS / "workers.md", help="the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""surebound beside α,β-CROWN and OVAL, on instances for which their times are known.

    python benchmarks/reference.py --rounds 3

The reference times (../shared/bench/reference.csv) were taken on two cores at 178 GFLOP/s of SGEMM. They are scaled by
the rate measured here right before each instance, and compared with the wall time of a `surebound verify` process, with
its start-up: the median over the rounds, instances in turns. A reference that timed out is shown with the time it took,
and left out of the means. The report, benchmarks/results/reference.md, also says where our seconds went.
"""

import argparse
import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean, median

from common import (
    RESULTS,
    SHARED,
    Instance,
    Record,
    Unavailable,
    command_text,
    machine,
    markdown_table,
    phases_text,
    read_instances,
    sgemm_rate,
    write_report,
)
from vnncomp import run_instance

REFERENCE_GFLOPS = 178.0
TOOLS = {"abcrown": "α,β-CROWN", "oval": "OVAL"}


@dataclass(frozen=True)
class Case:
    """An instance, with what other tools answered and how long they took."""

    instance: Instance
    verdicts: dict[str, str]
    seconds: dict[str, float]


def main() -> int:
    args = _arguments()
    try:
        cases = _cases(args.shared)
    except (Unavailable, OSError, KeyError) as reason:
        print(f"the reference's instances are not here: {reason}", file=sys.stderr)
        return 2
    where = machine(args.threads)
    runs: dict[str, list[tuple[Record, float]]] = {case.instance.name: [] for case in cases}
    for number in range(args.rounds):
        for case in cases:
            factor = REFERENCE_GFLOPS / sgemm_rate(args.threads)
            record = run_instance(case.instance, args.timeout, args.threads)
            runs[case.instance.name].append((record, factor))
            line = f"{case.instance.name}: {record['verdict']} in {record['wall']:.2f} s, factor {factor:.2f}"
            print(f"[{number + 1}/{args.rounds}] {line}", flush=True)
    write_report(args.out, _report(cases, runs, where))
    every = [record for found in runs.values() for record, _ in found]
    return int(any(r["wrong"] or r["replay"] or r["crash"] for r in every))


def _cases(shared: Path) -> list[Case]:
    instances = read_instances(shared / "vnncomp")
    known = {(i.onnx.name.removesuffix(".gz"), i.vnnlib.name.removesuffix(".gz")): i for i in instances}
    found = []
    with (shared / "bench" / "reference.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            seconds = {tool: float(row[f"{tool}_wall_s"]) for tool in TOOLS if row[f"{tool}_wall_s"]}
            verdicts = {tool: row[f"{tool}_verdict"] for tool in TOOLS}
            found.append(Case(known[row["onnx"], row["vnnlib"]], verdicts, seconds))
    return found


def _report(cases: list[Case], runs: dict[str, list[tuple[Record, float]]], where: str) -> str:
    rows = []
    ratios: dict[str, list[float]] = {tool: [] for tool in TOOLS}
    for case in cases:
        found = runs[case.instance.name]
        wall = median(record["wall"] for record, _ in found)
        factor = fmean(factor for _, factor in found)
        record = min((record for record, _ in found), key=lambda r: abs(r["wall"] - wall))
        cells = [case.instance.name, record["verdict"], f"{wall:.2f}", phases_text(record["phases"])]
        cells.append(f"{record['subproblems'] or 0:,}")
        for tool in TOOLS:
            theirs = case.seconds.get(tool)
            if theirs is None:
                cells += [case.verdicts[tool] or "–", "–"]
                continue
            ratio = theirs * factor / wall
            solved = case.verdicts[tool] in ("sat", "unsat")
            if solved:
                ratios[tool].append(ratio)
            cells += [f"{theirs * factor:.1f}{'' if solved else ' (timeout)'}", f"{ratio:.1f}"]
        rows.append(cells)
    header = ["instance", "verdict", "ours [s]", "where", "subproblems"]
    header += [title for tool in TOOLS.values() for title in (f"{tool} [s]", "÷ ours")]
    means = "; ".join(f"{TOOLS[t]} {geometric_mean(r):.2f} ({len(r)} instances)" for t, r in ratios.items() if r)
    intro = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    text = f"# Beside other verifiers\n\n{where}\n\n{intro}\n\n{markdown_table(header, rows)}\n"
    return (
        f"{text}Geometric means of their time over ours, where they answered: {means}.\n\n```\n{command_text()}\n```\n"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=120.0)
    parser.add_argument("--shared", type=Path, default=SHARED)
    parser.add_argument("--out", type=Path, default=RESULTS / "reference.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""Searches with planes above neurons and without, by turns: how many subproblems, and how long.

    python benchmarks/planes.py --timeout 20
    python benchmarks/planes.py --random          # random networks only, which need no files

On instances that take long, and on random networks of 30 inputs with one, two and three layers of 128 ReLUs.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import (
    RESULTS,
    SHARED,
    Unavailable,
    command_text,
    load_instance,
    machine,
    markdown_table,
    pick,
    read_instances,
    write_report,
)
from growth import random_network

if TYPE_CHECKING:
    from surebound.problem import Verdict

PICKS = (
    "hyperrectangle_3689",
    "cifar_base_kw-img4631",
    "cifar_wide_kw-img6762",
    "cifar_base_kw-img7086",
    "cifar_deep_kw-img7479",
    "cifar10_small_index9409",
    "256x2/prop_1_0.03",
    "256x4/prop_13_0.05",
)
RANDOM = ((1, (0.11, 0.12)), (2, (0.07, 0.08)), (3, (0.05, 0.06)))  # hidden layers, and radii


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something to verify."""

    name: str
    model: Any
    problem: Any


def instances(folder: Path) -> Iterator[Case]:
    """Those of the competition, read when their turn comes."""
    listed = read_instances(folder)
    for text in PICKS:
        instance = pick(listed, text)
        model, problem = load_instance(instance)
        yield Case(name=f"{instance.network} {instance.spec}", model=model, problem=problem)


def drawn() -> Iterator[Case]:
    """Random networks around a random point."""
    import surebound

    for depth, radii in RANDOM:
        network = random_network(inputs=30, width=128, depth=depth, steady=True)
        for eps in radii:
            problem = surebound.Robustness(network.x, network.label, eps)
            yield Case(name=f"{network.name}, eps {eps:g}", model=network.model, problem=problem)


def both(case: Case, timeout: float) -> "tuple[Verdict, Verdict]":
    """With planes, then without."""
    from surebound.verify.options import Options
    from surebound.verify.pipeline import verify

    options = replace(Options.of("default"), timeout=timeout)
    without = replace(options, strategy=replace(options.strategy, planes_after=None))
    return verify(case.model, case.problem, options), verify(case.model, case.problem, without)


def cells(found: "Verdict") -> list[str]:
    return [found.status, f"{found.subproblems:,}", f"{found.seconds:.1f}"]


def report(rows: Sequence[Sequence[str]], timeout: float, where: str) -> str:
    """The whole Markdown page."""
    header = ("property", "with", "subproblems", "s", "without", "subproblems", "s")
    return "\n".join(
        [
            "# Planes above neurons\n",
            f"{timeout:g} s each, with planes and then without, in one process; imports and loading are not counted.\n",
            f"Machine: {where}\n",
            f"Command: `{command_text()}`\n",
            markdown_table(header, rows),
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vnncomp", type=Path, default=SHARED / "vnncomp", help="the folder with instances.csv")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each verification (default 60)")
    parser.add_argument("--threads", type=int, default=2, help="threads (default 2)")
    parser.add_argument("--random", action="store_true", help="random networks only")
    parser.add_argument("--out", type=Path, default=RESULTS / "planes.md", help="the report")
    args = parser.parse_args()
    where, rows = machine(args.threads), []
    try:
        for case in (*(() if args.random else instances(args.vnncomp)), *drawn()):
            found = both(case, args.timeout)
            rows.append([case.name, *cells(found[0]), *cells(found[1])])
            print(" | ".join(rows[-1]), flush=True)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 2
    write_report(args.out, report(rows, args.timeout, where))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Where the seconds of `surebound verify` go, now and at an earlier revision.

    python benchmarks/phases.py --rounds 2
    python benchmarks/phases.py --only acasxu --rounds 1 --out benchmarks/results/acasxu.md     # all of one kind

Both revisions verify the same instances, five of different kinds or those chosen, a process each, in turns, and the
fastest of each one's rounds counts. Start-up is what passes before the work begins: the interpreter, imports and
loading. All columns from start-up on add up to the wall time.

Report: benchmarks/results/profile.md.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from revisions import HERE, last_release, source_of, this_commit
from vnncomp import DECIDED, run_instance

PICKS = (
    "cifar_base_kw-img2908",
    "256x4/prop_13_0.03",
    "resnet_4b/prop_6_",
    "cifar10_small_index9409",
    "ACASXU_run2a_1_1_batch_2000/prop_2",
)
PHASES = ("root", "attack", "bounding", "branching", "queue", "leaves")
COLUMNS = ("wall", "start-up", *PHASES, "other")
SHORT = 0.05  # seconds below which a ratio says nothing


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Where the seconds of one instance went, by column, before and now."""

    name: str
    before: Mapping[str, float]
    now: Mapping[str, float]


def main() -> int:
    args = _arguments()
    try:
        instances = chosen(read_instances(args.vnncomp), args.only)[: args.limit]
        revision = args.before or last_release()
        where = machine(args.threads)
        with source_of(revision) as source:
            runs = in_turns(instances, {"before": source, "now": HERE}, args.rounds, args.timeout, args.threads)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 2
    text = report(profiles(instances, runs), revision, where)
    print("\n" + text)
    write_report(args.out, text)
    return int(any(record["wrong"] or record["crash"] for found in runs.values() for record in found))


def chosen(instances: Sequence[Instance], only: str | None) -> list[Instance]:
    """One instance of every kind or, with a text, all whose names have it and whose verdict is known."""
    if only is None:
        return [pick(instances, text) for text in PICKS]
    found = [i for i in instances if only in i.name and i.expected in DECIDED]
    if not found:
        raise Unavailable(f"no instance with a known verdict has '{only}' in its name")
    return found


def in_turns(
    instances: Sequence[Instance], sources: Mapping[str, Path], rounds: int, timeout: float, threads: int
) -> dict[tuple[str, str], list[Record]]:
    """(instance, which of the sources) -> its runs. All sources verify an instance before the next one begins."""
    runs: dict[tuple[str, str], list[Record]] = {}
    for number in range(rounds):
        for instance in instances:
            for which, source in sources.items():
                record = run_instance(instance, timeout, threads, source=source)
                runs.setdefault((instance.name, which), []).append(record)
                line = f"{instance.name}, {which}: {record['verdict']} in {record['wall']:.2f} s"
                print(f"[{number + 1}/{rounds}] {line}", flush=True)
    return runs


def profiles(instances: Sequence[Instance], runs: Mapping[tuple[str, str], Sequence[Record]]) -> list[Profile]:
    """The fastest runs of each instance, taken apart."""
    return [
        Profile(
            name=f"{i.benchmark} {i.network} {i.spec.removeprefix(i.network + '-')}",
            before=columns(fastest(runs[i.name, "before"])),
            now=columns(fastest(runs[i.name, "now"])),
        )
        for i in instances
    ]


def fastest(records: Sequence[Record]) -> Record:
    """The run with the shortest wall time."""
    return min(records, key=lambda record: float(record["wall"]))


def columns(record: Record) -> dict[str, float]:
    """The seconds of a run by column; phases that have no column are in `other`."""
    phases, wall = record["phases"], float(record["wall"])
    before_work = wall - record["seconds"] + phases.get("load", 0.0) + phases.get("import", 0.0)
    named = {name: phases.get(name, 0.0) for name in PHASES}
    other = wall - before_work - sum(named.values())
    return {"wall": wall, "start-up": before_work, **named, "other": max(other, 0.0)}


def total(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The sum of each column."""
    return {name: sum(one[name] for one in found) for name in COLUMNS}


def seconds_table(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Seconds of each instance by column, with their sum."""
    everything = [*rows, ("sum", total([found for _, found in rows]))]
    cells = [[name, *(f"{found[column]:.2f}" for column in COLUMNS)] for name, found in everything]
    return markdown_table(["seconds", *COLUMNS], cells)


def ratio_table(found: Sequence[Profile]) -> str:
    """Before ÷ now, by column."""
    whole = Profile(name="sum", before=total([p.before for p in found]), now=total([p.now for p in found]))
    rows = [[p.name, *(_ratio(p.before[c], p.now[c]) for c in COLUMNS)] for p in (*found, whole)]
    return markdown_table(["before ÷ now", *COLUMNS], rows)


def _ratio(before: float, now: float) -> str:
    if before < SHORT and now < SHORT:
        return "–"
    return f"{before / now:.2f}" if now >= SHORT else f"> {before / SHORT:.0f}"


def report(found: Sequence[Profile], revision: str, where: str) -> str:
    """The whole Markdown page."""
    intro = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    return "\n".join(
        [
            "# Where the seconds of `surebound verify` go\n",
            f"{where}\n",
            f"{intro} Before is {revision}, now is {this_commit()}.\n",
            f"## Now\n\n{seconds_table([(p.name, p.now) for p in found])}",
            f"## Before\n\n{seconds_table([(p.name, p.before) for p in found])}",
            "## Before ÷ now\n",
            f"Above 1: faster now. –: less than {SHORT:g} s, before and now.\n",
            ratio_table(found),
            f"```\n{command_text()}\n```\n",
        ]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", metavar="REV", help="the earlier revision (default: the last tag)")
    parser.add_argument("--vnncomp", type=Path, default=SHARED / "vnncomp", help="the folder with instances.csv")
    parser.add_argument("--threads", type=int, default=2, help="threads of each process (default 2)")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each instance and revision (default 2)")
    parser.add_argument("--timeout", type=float, default=120.0, help="seconds for each run (default 120)")
    parser.add_argument("--only", metavar="TEXT", help="all instances whose benchmark/network/property has TEXT")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N of the instances")
    parser.add_argument("--out", type=Path, default=RESULTS / "profile.md", help="the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

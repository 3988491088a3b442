"""How fast the verifier is, in ratios that mean something on a busy machine as well, and can be followed over time.

    python benchmarks/run.py

Takes about four minutes on two cores (`make bench`) and writes benchmarks/results/bench.md: UPB against FSB and SR, the
folded form against the network's own operations, the bounding step against SGEMM, this version against the last one
that was tagged, and how the time grows with depth, width and ambiguous neurons. What is compared runs in turns. The key
ratios are also one more line of benchmarks/results/history.md. Without the instances in ../shared it measures random
networks, and says what it leaves out.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from statistics import geometric_mean, median

import growth
import rules
from bounding import ITERATIONS, NODES, SHARE_NOTE, Measured, Pair, all_pairs, forms_table, prepare, share_table
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
from phases import fastest, in_turns
from rates import instance_pair
from revisions import HERE, last_release, source_of, this_commit

FORMS = ("cifar_base_kw-img2908", "cifar_wide_kw-img19-", "256x4/prop_13_0.03")
EARLIER = ("cifar_base_kw-img2908", "256x4/prop_13_0.03", "ACASXU_run2a_1_1_batch_2000/prop_2")
PROCESSES = 2  # of each revision and instance; the faster counts
HISTORY = (
    "date",
    "commit",
    "SGEMM GFLOP/s",
    "graph ÷ folded",
    "share of SGEMM if dense",
    "FSB ÷ UPB",
    "SR ÷ UPB",
    "mixture ÷ UPB",
    "earlier",
    "earlier ÷ now",
    "depth^",
    "width^",
    "ambiguous^",
)
HISTORY_NOTE = (
    "One line for each run of `make bench`. Ratios are geometric means, the share of SGEMM is a median; ^ stands for "
    "the exponent with which the time of a bounding grows."
)


def main() -> int:
    args = _arguments()
    import torch

    begin = time.perf_counter()
    where = machine(args.threads)
    torch.set_num_threads(args.threads)
    try:
        instances: Sequence[Instance] | None = read_instances(args.vnncomp)
    except Unavailable as reason:
        print(f"{reason}, so this measures random networks instead")
        instances = None
    runs = rules.run_all([rules.random_case()] if instances is None else rules.cases(instances), args.timeout)
    measured = all_pairs(_pairs(instances), args.rounds)
    points = list(growth.points(args.rounds))
    revision = args.before or last_release()
    earlier, missing = _earlier(instances, revision, args)
    sections = [
        rules.report(runs, args.timeout),
        _forms_section(measured),
        _earlier_section(earlier, revision, missing),
        _growth_section(points),
    ]
    minutes = (time.perf_counter() - begin) / 60
    head = f"# How fast the verifier is\n\n{where}\n\nCommand: `{command_text()}`; it took {minutes:.1f} minutes.\n"
    text = "\n".join([head, *sections])
    print("\n" + text)
    write_report(args.out, text)
    append_history(args.history, history_line(runs, measured, earlier, revision, points))
    return int(any(r.wrong for r in runs))


def _pairs(instances: Sequence[Instance] | None) -> Iterator[Pair]:
    """What to bound on both forms."""
    if instances is None:
        case = rules.random_case(width=200)
        yield prepare(case.name, case.model, case.problem)
        return
    for text in FORMS:
        yield instance_pair(pick(instances, text))


def _earlier(
    instances: Sequence[Instance] | None, revision: str, args: argparse.Namespace
) -> tuple[dict[str, tuple[float, float]], str]:
    """Instance -> wall seconds of an earlier revision and of this one, or why there are none."""
    if instances is None:
        return {}, "there are no instances"
    try:
        with source_of(revision) as source:
            some = [pick(instances, text) for text in EARLIER]
            runs = in_turns(some, {"before": source, "now": HERE}, PROCESSES, 4 * args.timeout, args.threads)
    except Unavailable as reason:
        return {}, str(reason)
    return wall_pairs(some, runs), ""


def wall_pairs(
    instances: Sequence[Instance], runs: Mapping[tuple[str, str], Sequence[Record]]
) -> dict[str, tuple[float, float]]:
    """Instance -> the fastest wall seconds before and now, of those that were decided both times."""
    found = {i.name: [fastest(runs[i.name, which]) for which in ("before", "now")] for i in instances}
    return {
        name: (before["wall"], now["wall"])
        for name, (before, now) in found.items()
        if {before["verdict"], now["verdict"]} <= {"sat", "unsat"}
    }


def _forms_section(measured: Sequence[Measured]) -> str:
    text = f"One bounding of {NODES} nodes with {ITERATIONS} iterations, in turns; see rates.py for more networks.\n"
    parts = [
        "## Folded against unfolded\n",
        text,
        forms_table(measured),
        "## Against SGEMM\n",
        SHARE_NOTE,
        share_table(measured),
    ]
    return "\n".join(parts)


def _earlier_section(earlier: Mapping[str, tuple[float, float]], revision: str, missing: str) -> str:
    head = f"## This version ({this_commit()}) against {revision}\n"
    if missing:
        return f"{head}\nNot measured: {missing}.\n"
    rows = [[name, f"{b:.2f}", f"{now:.2f}", f"{b / now:.2f}"] for name, (b, now) in earlier.items()]
    rows.append(["**geometric mean**", "", "", f"**{ratio_text(mean_of_ratios(earlier))}**"])
    text = "Wall seconds of `surebound verify` processes, in turns; phases.py shows where they go.\n"
    return "\n".join([head, text, markdown_table(["instance", "before", "now", "before ÷ now"], rows)])


def _growth_section(points: Sequence[growth.Point]) -> str:
    text = (
        f"Random networks of {growth.INPUTS} inputs: root bounds with fixed slopes, and one bounding of {NODES} nodes "
        "on the folded form. The exponent is the slope of log time over log size.\n"
    )
    return "\n".join(["## How the time grows\n", text, growth.growth_table(points)])


def mean_of_ratios(earlier: Mapping[str, tuple[float, float]]) -> float | None:
    """The geometric mean of before ÷ now."""
    return _mean(b / now for b, now in earlier.values())


def ratio_text(ratio: float | None) -> str:
    """Two decimals, or a dash.

    >>> ratio_text(1.234), ratio_text(None)
    ('1.23', '–')
    """
    return "–" if ratio is None else f"{ratio:.2f}"


def history_line(
    runs: Sequence[rules.Run],
    measured: Sequence[Measured],
    earlier: Mapping[str, tuple[float, float]],
    revision: str,
    points: Sequence[growth.Point],
) -> list[str]:
    """The key ratios, in the order of HISTORY."""
    powers = growth.exponents(points)
    return [
        date.today().isoformat(),
        this_commit(),
        f"{median(m.products for m in measured) / 1e9:.0f}" if measured else "–",
        ratio_text(_mean(m.ratio for m in measured)),
        f"{median(m.share for m in measured):.0%}" if measured else "–",
        *(ratio_text(rules.mean_ratio(runs, rule)) for rule in rules.RULES[1:]),
        revision,
        ratio_text(mean_of_ratios(earlier)),
        *(ratio_text(powers[series][1]) if series in powers else "–" for series in growth.SERIES),
    ]


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return geometric_mean(found) if found else None


def append_history(path: Path, line: Sequence[str]) -> None:
    """One more row of the table, which begins with the first."""
    table = markdown_table(HISTORY, [line], left=2)
    if path.is_file():
        text = path.read_text() + table.splitlines()[-1] + "\n"
    else:
        text = f"# The benchmark's key ratios over time\n\n{HISTORY_NOTE}\n\n{table}"
    write_report(path, text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vnncomp", type=Path, default=SHARED / "vnncomp", help="the folder with instances.csv")
    parser.add_argument("--before", metavar="REV", help="the earlier revision (default: the last tag)")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds for each instance and rule (default 10)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default 2)")
    parser.add_argument("--rounds", type=int, default=3, help="of the bounding steps (default 3)")
    parser.add_argument("--out", type=Path, default=RESULTS / "bench.md", help="the report")
    parser.add_argument(
        "--history", type=Path, default=RESULTS / "history.md", help="the table with a line for each run"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""What a command takes from its start to its answer where there is little to do, now and at an earlier revision.

    python benchmarks/start.py --rounds 5

Both revisions run the same commands, a process each, in turns, and the fastest of each one's rounds counts: wall
seconds, and the processor seconds of all threads, which say something on a busy machine as well. The first attempt
settles all instances but the last.

Report: benchmarks/results/start.md.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean

from common import (
    RESULTS,
    SHARED,
    Unavailable,
    command_text,
    machine,
    markdown_table,
    pick,
    read_instances,
    write_report,
)
from revisions import HERE, environment, last_release, source_of, this_commit

PICKS = (
    "256x2/prop_14_0.03",
    "cifar_base_kw-img1697",
    "ACASXU_run2a_1_7_batch_2000/prop_4",
    "medical__hyperrectangle_506",
    "Convnet_avgpool/prop_2_",
    "256x2/prop_8_0.03",
)

Cost = tuple[float, float]
"""Seconds of the clock, and of the processor."""


def main() -> int:
    args = _arguments()
    try:
        commands = {"surebound --version": ["--version"], "surebound verify --help": ["verify", "--help"]}
        for instance in (pick(read_instances(args.vnncomp), text) for text in PICKS):
            commands[f"{instance.network} {instance.spec}"] = ["verify", str(instance.onnx), str(instance.vnnlib)]
        revision = args.before or last_release()
        where = machine(args.threads)
        with source_of(revision) as source:
            costs = in_turns(commands, {"before": source, "now": HERE}, args.rounds, args.threads)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 2
    text = report(costs, revision, where)
    print("\n" + text)
    write_report(args.out, text)
    return 0


def in_turns(
    commands: Mapping[str, Sequence[str]], sources: Mapping[str, Path], rounds: int, threads: int
) -> dict[str, dict[str, Cost]]:
    """Command -> which of the sources -> the least that it took."""
    found: dict[str, dict[str, list[Cost]]] = {name: {which: [] for which in sources} for name in commands}
    for number in range(rounds):
        for name, arguments in commands.items():
            for which, source in sources.items():
                cost = run(arguments, source, threads)
                found[name][which].append(cost)
                print(f"[{number + 1}/{rounds}] {name}, {which}: {cost[0]:.2f} s", flush=True)
    return {name: {which: least(costs) for which, costs in runs.items()} for name, runs in found.items()}


def run(arguments: Sequence[str], source: Path, threads: int) -> Cost:
    """What one process takes."""
    command = [sys.executable, "-m", "surebound", *arguments]
    env = environment(source) | {"OMP_NUM_THREADS": str(threads)}
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    wall, process.returncode = time.perf_counter() - begin, os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Unavailable(f"'surebound {' '.join(arguments)}' ends with code {process.returncode}; expected 0")
    return wall, used.ru_utime + used.ru_stime


def least(costs: Sequence[Cost]) -> Cost:
    """The least of both kinds of seconds.

    >>> least([(2.0, 1.0), (1.5, 1.2)])
    (1.5, 1.0)
    """
    return min(wall for wall, _ in costs), min(processor for _, processor in costs)


def report(costs: Mapping[str, Mapping[str, Cost]], revision: str, where: str) -> str:
    """The whole Markdown page."""
    intro = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    rows = []
    for name, cost in costs.items():
        (wall, processor), (wall_now, processor_now) = cost["before"], cost["now"]
        times = (wall, wall_now, wall / wall_now, processor, processor_now, processor / processor_now)
        rows.append([name, *(f"{t:.2f}" for t in times)])
    means = [geometric_mean([c["before"][kind] / c["now"][kind] for c in costs.values()]) for kind in (0, 1)]
    rows.append(["**geometric mean**", "", "", f"**{means[0]:.2f}**", "", "", f"**{means[1]:.2f}**"])
    header = ["command", "wall before", "now", "before ÷ now", "processor before", "now", "before ÷ now"]
    return "\n".join(
        [
            "# What starting takes\n",
            f"{where}\n",
            f"{intro} Before is {revision}, now is {this_commit()}.\n",
            markdown_table(header, rows),
            f"```\n{command_text()}\n```\n",
        ]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", metavar="REV", help="the earlier revision (default: the last tag)")
    parser.add_argument("--vnncomp", type=Path, default=SHARED / "vnncomp", help="the folder with instances.csv")
    parser.add_argument("--threads", type=int, default=2, help="threads of each process (default 2)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command and revision (default 5)")
    parser.add_argument("--out", type=Path, default=RESULTS / "start.md", help="the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

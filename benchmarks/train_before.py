"""What a training step costs beside an earlier revision, every method in turns.

    python benchmarks/train_before.py --before f89457f --rounds 7 --threads 1

Steps are those of train_step.py, each revision's own, on the paper's networks with full ε. Two processes, one for each
revision, hold a step ready and take it in turns, each as often first as second, so that a busy moment of the machine
meets both. Times are of the processor, which do not grow while others have it. The ratio is the fastest step now over
the fastest before. Report: benchmarks/results/train_before.md.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import geometric_mean

from common import RESULTS, ROOT, command_text, machine, markdown_table, write_report
from revisions import environment, folders_of, this_commit
from train_step import COLTS, STAGES

LONG = 10.0  # seconds of a step that a few rounds have to do for
FEW = 3

CHILD = """
import sys, time
import torch
from surebound.memory import keep_memory
from train_step import Task, _step

keep_memory()
torch.set_num_threads(int(sys.argv[1]))
last = step = None
for i, line in enumerate(sys.stdin):
    if line != last:
        step = None
        setting, method, stage = line.split()
        last, step = line, _step(Task(setting, method, 1.0, int(stage)))
        step(i)
    begin = time.process_time()
    step(i)
    print(time.process_time() - begin, flush=True)
"""

Task = tuple[str, str, int]  # setting, method, stage


class Stepper:
    """Takes steps of one revision's training in a process of its own."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def seconds(self, task: Task) -> float:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(*task, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())


@contextmanager
def stepper(root: Path, threads: int) -> Iterator[Stepper]:
    """A process that runs the sources and the benchmark in a folder."""
    command = [sys.executable, "-c", CHILD, str(threads)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    where = root / "benchmarks"
    with subprocess.Popen(command, cwd=where, env=environment(root / "src"), text=True, **pipes) as process:
        try:
            yield Stepper(process)
        finally:
            process.kill()


def main() -> int:
    args = _arguments()
    from surebound.train import LOSSES

    methods = args.methods or [*LOSSES, "colt-original"]
    tasks = [
        (setting, method, stage)
        for setting in args.settings
        for method in methods
        for stage in range(STAGES[setting] if method in COLTS else 1)
    ]
    rows, ratios = [], []
    with (
        folders_of(args.before, "src", "benchmarks") as old,
        stepper(old, args.threads) as before,
        stepper(ROOT, args.threads) as now,
    ):
        for task in tasks:
            then, today = _in_turns(before, now, task, args.rounds)
            ratios.append(today / then)
            setting, method, stage = task
            name = f"{method} stage {stage}" if method in COLTS else method
            rows.append(
                [setting.replace("-", "/"), name, f"{then * 1e3:.0f}", f"{today * 1e3:.0f}", f"{ratios[-1]:.3f}"]
            )
            print(*rows[-1], flush=True)
    table = markdown_table(["ε", "method", "before, ms", "now, ms", "now ÷ before"], rows)
    summary = f"Geometric mean {geometric_mean(ratios):.3f}, largest {max(ratios):.3f}."
    intro = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    title = f"# Training steps now and at {args.before}\n\n{machine(args.threads)} Now: {this_commit()}."
    write_report(
        args.out / "train_before.md", f"{title}\n\n{intro}\n\n{summary}\n\n{table}\n\n```\n{command_text()}\n```\n"
    )
    return 0


def _in_turns(before: Stepper, now: Stepper, task: Task, rounds: int) -> tuple[float, float]:
    """The fastest step of each."""
    then, today = [], []
    turns = (before, then), (now, today)
    for i in range(rounds):
        for stepping, found in turns if i % 2 == 0 else turns[::-1]:
            found.append(stepping.seconds(task))
        if min(then) > LONG and len(then) == FEW:
            break
    return min(then), min(today)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--before", required=True, metavar="REVISION")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="(default: all)")
    parser.add_argument("--settings", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

"""How fast the verifier is on a few instances: subproblems per second, seconds by phase, UPB against FSB and SR.

    python benchmarks/run.py

Takes about two minutes on two cores (`make bench`) and writes benchmarks/results/bench.md. The rules run on the same
instances in the same process, one right after the other, so their ratios mean something on a busy machine as well.
Without the instances in ../shared it verifies a generated random network instead.
"""

import argparse
import itertools
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import (
    RESULTS,
    SHARED,
    Instance,
    command_text,
    machine,
    markdown_table,
    phases_text,
    read_instances,
    write_report,
)

if TYPE_CHECKING:
    from surebound.network.model import Model
    from surebound.problem import Property, Robustness, Verdict

RULES = ("upb", "fsb", "sr")
DECIDED = ("sat", "unsat")
# Text that picks one instance each, of different kinds, and the rules to run there.
PICKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cifar_base_kw-img2908", RULES),
    ("cifar_wide_kw-img19-", RULES),
    ("cifar_deep_kw-img5168", RULES),
    ("256x4/prop_13_0.03", RULES),
    ("cifar10_small_index9409", RULES),
    ("cifar_base_kw-img4631", ("upb",)),  # not expected to end: the rate of a long search
    ("resnet_2b/prop_36", ("upb",)),
    ("ACASXU_run2a_1_1_batch_2000/prop_2", ("auto",)),
)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One thing to verify, with the rules to verify it by."""

    name: str
    model: "Model"
    problem: "Property | Robustness"
    expected: str
    rules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One verification of a case."""

    case: str
    expected: str
    rule: str
    verdict: "Verdict"

    @property
    def decided(self) -> bool:
        return self.verdict.status in DECIDED

    @property
    def wrong(self) -> bool:
        return {self.verdict.status, self.expected} == set(DECIDED)

    @property
    def rate(self) -> float | None:
        """Subproblems per second of the search, attacks and root bounds not counted; None if there was no search."""
        seconds = sum(s for name, s in self.verdict.seconds_by_phase.items() if name not in ("attack", "root"))
        return self.verdict.subproblems / seconds if seconds > 0 else None


def main() -> int:
    args = _arguments()
    import torch

    where = machine(args.threads)
    torch.set_num_threads(args.threads)
    for rule in RULES:  # not counted: whatever happens once has happened before the first measurement
        run_case(random_case(eps=0.07), rule, args.timeout)
    runs: list[Run] = []
    for case in _cases(args):
        for rule in case.rules:
            runs.append(run_case(case, rule, args.timeout))
            print(_line(runs[-1]), flush=True)
    text = report(runs, args.timeout, where)
    print("\n" + text)
    write_report(args.out, text)
    return int(any(r.wrong for r in runs))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vnncomp", type=Path, default=SHARED / "vnncomp", help="the folder with instances.csv")
    parser.add_argument("--timeout", type=float, default=15.0, help="seconds for each instance and rule (default 15)")
    parser.add_argument("--threads", type=int, default=2, help="processor threads (default 2)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N of the instances")
    parser.add_argument("--out", type=Path, default=RESULTS / "bench.md", help="the report")
    return parser.parse_args()


def _cases(args: argparse.Namespace) -> "Sequence[Case]":
    if not (args.vnncomp / "instances.csv").is_file():
        print(f"There are no instances in '{args.vnncomp}', so this measures a generated random network instead.")
        return [random_case()]
    instances = read_instances(args.vnncomp)
    return [_load(_pick(instances, text), rules) for text, rules in PICKS[: args.limit]]


def _pick(instances: Sequence[Instance], text: str) -> Instance:
    found = [i for i in instances if text in i.name]
    if len(found) != 1:
        raise SystemExit(f"'{text}' names {len(found)} of the instances; expected one")
    return found[0]


def _load(instance: Instance, rules: tuple[str, ...]) -> Case:
    import surebound
    from surebound.load.vnnlib import read_property

    return Case(
        name=f"{instance.benchmark} {instance.network} {instance.spec.removeprefix(instance.network + '-')}",
        model=surebound.load(instance.onnx),
        problem=read_property(instance.vnnlib),
        expected=instance.expected,
        rules=rules,
    )


def random_case(width: int = 60, inputs: int = 40, eps: float = 0.08) -> Case:
    """A random network of three hidden layers around a random point, which takes some branching."""
    import torch
    from torch import nn

    import surebound

    torch.manual_seed(0)
    sizes = [inputs, width, width, width]
    layers = [m for a, b in itertools.pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    module = nn.Sequential(*layers, nn.Linear(width, 3)).eval()
    x = np.random.default_rng(0).random(inputs)
    with torch.no_grad():
        label = int(module(torch.from_numpy(x).float()).argmax())
    return Case(
        name=f"random {inputs}-{width}-{width}-{width}-3",
        model=surebound.load(module, input_shape=(inputs,)),
        problem=surebound.Robustness(x, label, eps),
        expected="unknown",
        rules=RULES,
    )


def run_case(case: Case, rule: str, timeout: float) -> Run:
    """Verify once."""
    import surebound

    verdict = surebound.verify(case.model, case.problem, timeout=timeout, branching=rule)
    return Run(case=case.name, expected=case.expected, rule=rule, verdict=verdict)


def report(runs: Sequence[Run], timeout: float, where: str) -> str:
    """The whole Markdown page."""
    parts = [
        "# How fast the verifier is\n",
        f"Machine: {where}\n",
        f"Command: `{command_text()}`; timeout {timeout:g} s for each run. Loading is not counted.\n",
        f"**{sum(r.wrong for r in runs)} wrong verdicts.**\n",
        "## Rate and phases\n",
        "The rate is subproblems per second of the search, without attacks and root bounds.\n",
        rate_table(runs),
    ]
    compared = [name for name in dict.fromkeys(r.case for r in runs) if len(_by_rule(runs, name)) == len(RULES)]
    if compared:
        parts += [
            "## UPB against FSB and SR\n",
            "Above 1: UPB is faster, or visits fewer subproblems. ≥: the other rule ran out of time; ≤: UPB did.\n",
            ratio_table(runs, compared),
            ratio_summary(runs, compared) + "\n",
        ]
    return "\n".join(parts)


def rate_table(runs: Sequence[Run]) -> str:
    """A row for every run."""
    header = ["instance", "branching", "verdict", "phases [s]", "seconds", "subproblems", "subproblems/s"]
    return markdown_table(header, map(_rate_row, runs), left=4)


def _rate_row(run: Run) -> list[str]:
    verdict = run.verdict
    status = verdict.status + (" (WRONG)" if run.wrong else "")
    rate = "–" if run.rate is None else f"{run.rate:,.0f}"
    phases = phases_text(verdict.seconds_by_phase)
    return [run.case, run.rule, status, phases, f"{verdict.seconds:.2f}", f"{verdict.subproblems:,}", rate]


def ratio_table(runs: Sequence[Run], names: Sequence[str]) -> str:
    """For every instance, what the other rules take relative to UPB."""
    header = ["instance", *(f"{other.upper()} ÷ UPB {what}" for what in ("time", "subproblems") for other in RULES[1:])]
    rows = []
    for name in names:
        upb, *others = _by_rule(runs, name)
        times = [_ratio_cell(upb, o, o.verdict.seconds / upb.verdict.seconds) for o in others]
        counts = [_count_ratio_cell(upb, o) for o in others]
        rows.append([name, *times, *counts])
    return markdown_table(header, rows)


def ratio_summary(runs: Sequence[Run], names: Sequence[str]) -> str:
    """Totals, with runs that timed out counted as they are, and geometric means where both ended."""
    groups = [_by_rule(runs, name) for name in names]
    total = {rule: sum(g[i].verdict.seconds for g in groups) for i, rule in enumerate(RULES)}
    solved = {rule: sum(g[i].decided for g in groups) for i, rule in enumerate(RULES)}
    sums = ", ".join(f"{rule.upper()} {total[rule]:.1f} s ({solved[rule]} of {len(names)} solved)" for rule in RULES)
    means = []
    for i, rule in enumerate(RULES[1:], 1):
        ratios = [g[i].verdict.seconds / g[0].verdict.seconds for g in groups if g[0].decided and g[i].decided]
        if ratios:
            means.append(f"{rule.upper()} ÷ UPB {statistics.geometric_mean(ratios):.2f} (over {len(ratios)})")
    return f"In all: {sums}. Geometric mean of the times where both ended: {', '.join(means) or 'none'}."


def _by_rule(runs: Sequence[Run], name: str) -> list[Run]:
    """The runs of a case in the order of RULES."""
    return [r for rule in RULES for r in runs if (r.case, r.rule) == (name, rule)]


def _ratio_cell(upb: Run, other: Run, ratio: float) -> str:
    if not (upb.decided or other.decided):
        return "–"
    sign = "" if upb.decided and other.decided else "≥ " if upb.decided else "≤ "
    return f"{sign}{ratio:.2f}"


def _count_ratio_cell(upb: Run, other: Run) -> str:
    if not (upb.decided and other.decided) or upb.verdict.subproblems == 0:
        return "–"
    return f"{other.verdict.subproblems / upb.verdict.subproblems:.2f}"


def _line(run: Run) -> str:
    verdict = run.verdict
    text = f"{run.case}, {run.rule}: {verdict.status} in {verdict.seconds:.2f} s, {verdict.subproblems:,} subproblems"
    return text + (f"; WRONG, expected {run.expected}" if run.wrong else "")


if __name__ == "__main__":
    sys.exit(main())

"""UPB against FSB and SR: a few instances verified by each rule, one right after the other in the same process.

The ratios mean something on a busy machine as well. `run.py` runs this.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common import Instance, load_instance, markdown_table, phases_text, pick, search_rate
from growth import random_network

if TYPE_CHECKING:
    from surebound.network.model import Model
    from surebound.problem import Property, Robustness, Verdict

RULES = ("upb", "fsb", "sr", "mixture")
DECIDED = ("sat", "unsat")
# Text that picks one instance each, of different kinds, and the rules to run there.
PICKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("cifar_base_kw-img2908", RULES),
    ("cifar_wide_kw-img19-", RULES),
    ("cifar_deep_kw-img5168", RULES),
    ("256x4/prop_13_0.03", RULES),
    ("256x2/prop_1_0.03", RULES),
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
        """Subproblems per second of the search; None if there was none."""
        return search_rate(self.verdict)


def cases(instances: Sequence[Instance]) -> Iterator[Case]:
    """The instances to run, read when their turn comes."""
    for text, rules in PICKS:
        yield _load(pick(instances, text), rules)


def _load(instance: Instance, rules: tuple[str, ...]) -> Case:
    model, problem = load_instance(instance)
    name = f"{instance.benchmark} {instance.network} {instance.spec.removeprefix(instance.network + '-')}"
    return Case(name=name, model=model, problem=problem, expected=instance.expected, rules=rules)


def random_case(width: int = 60, inputs: int = 40, eps: float = 0.08) -> Case:
    """A random network of three hidden layers around a random point, which takes some branching."""
    import surebound

    network = random_network(inputs=inputs, width=width, depth=3)
    problem = surebound.Robustness(network.x, network.label, eps)
    return Case(name=network.name, model=network.model, problem=problem, expected="unknown", rules=RULES)


def run_all(some: Iterable[Case], timeout: float) -> list[Run]:
    """Every case by each of its rules."""
    for rule in RULES:  # not counted: whatever happens once has happened before the first measurement
        run_case(random_case(eps=0.07), rule, timeout)
    runs = []
    for case in some:
        for rule in case.rules:
            runs.append(run_case(case, rule, timeout))
            print(_line(runs[-1]), flush=True)
    return runs


def run_case(case: Case, rule: str, timeout: float) -> Run:
    """Verify once."""
    import surebound

    verdict = surebound.verify(case.model, case.problem, timeout=timeout, branching=rule)
    return Run(case=case.name, expected=case.expected, rule=rule, verdict=verdict)


def report(runs: Sequence[Run], timeout: float) -> str:
    """Both tables, with their headings."""
    parts = [
        "## Rate and phases\n",
        f"**{sum(r.wrong for r in runs)} wrong verdicts.** Timeout {timeout:g} s for each run; loading is not counted. "
        "The rate is subproblems per second of the search, without attacks and root bounds.\n",
        rate_table(runs),
    ]
    names = compared(runs)
    if names:
        parts += [
            "## UPB against FSB and SR\n",
            "Above 1: UPB is faster, or visits fewer subproblems. ≥: the other rule ran out of time; ≤: UPB did.\n",
            ratio_table(runs, names),
            ratio_summary(runs, names) + "\n",
        ]
    return "\n".join(parts)


def compared(runs: Sequence[Run]) -> list[str]:
    """The cases that all rules ran on."""
    return [name for name in dict.fromkeys(r.case for r in runs) if len(_by_rule(runs, name)) == len(RULES)]


def mean_ratio(runs: Sequence[Run], rule: str) -> float | None:
    """The geometric mean of a rule's time over UPB's, where both ended."""
    ratios = _ratios(runs, compared(runs), RULES.index(rule))
    return statistics.geometric_mean(ratios) if ratios else None


def _ratios(runs: Sequence[Run], names: Sequence[str], i: int) -> list[float]:
    groups = [_by_rule(runs, name) for name in names]
    return [g[i].verdict.seconds / g[0].verdict.seconds for g in groups if g[0].decided and g[i].decided]


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
        ratios = _ratios(runs, names, i)
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

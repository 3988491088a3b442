"""The paper's table 1 and figures 2 and 5 from a store, beside the paper's own numbers.

A run belongs to one of them by its notes:

    {"experiment": "table1", "setting": "2/255", "method": "ibp-r", "seed": 0, "training_seconds": 312.4, …}
    {"experiment": "branching", "setting": "2/255", "network": "ibp-r", "branching": "upb", …}

Where a store holds the same experiment twice, the run that began last counts.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, stdev
from typing import TypeVar

from surebound.evaluate.store import Accuracies, Row, Store
from surebound.report.numbers import number, radius
from surebound.report.paper import BRANCHING, SOURCE, TABLE1, PaperBranching, PaperTraining, Quantity
from surebound.report.results import Result, read_results

METHODS = {
    "colt": "COLT",
    "ibp-r": "IBP-R",
    "ibp-r-mask": "IBP-R w/ Masking",
    "ibp-shi": "IBP (Shi)",
    "crown-ibp": "CROWN-IBP",
    "relu-stability": "ReLU stability",
}
RULES = {"upb": "UPB", "fsb": "FSB", "sr": "SR"}
SEARCHES = {"paper": "the paper's search", "default": "surebound's own search"}  # profiles of the verifier
SUBPROBLEMS = (
    "A subproblem is another class with some splits that was bounded, by whatever method, and counts once: a property "
    "that intervals settle has as many as there are other classes, and each split makes two more. Mean subproblems are "
    "over the properties that neither UPB nor FSB timed out on. Split are the properties that some rule had to split, "
    "or left open; their means are apart."
)
ROBUST = (
    "Withstood: right, and the first attack found nothing. Robust: right, and nothing that ran found a counterexample, "
    "the search included."
)
_COUNTED = ("upb", "fsb")  # a property counts for the mean number of subproblems if neither of them timed out


@dataclass(frozen=True, kw_only=True)
class Table1Row:
    """A setting and method over its seeds: percentages, and seconds of training."""

    scale: str
    dataset: str
    search: str  # the profile
    setting: str
    method: str
    seeds: int
    images: int  # of the seed with the fewest
    complete: bool
    standard: Quantity
    withstood: Quantity  # the first attack
    robust: Quantity  # all that ran
    verified: Quantity
    undecided: Quantity
    training_seconds: Quantity | None
    paper: tuple[PaperTraining, ...]

    @property
    def label(self) -> str:
        return METHODS.get(self.method, self.method)


@dataclass(frozen=True, kw_only=True)
class BranchingRow:
    """A branching rule on a network, over the images that the network classifies correctly."""

    scale: str
    dataset: str
    search: str  # the profile
    setting: str
    network: str
    branching: str
    properties: int
    complete: bool
    seconds: float  # mean
    subproblems: float | None  # mean over `counted` properties, which neither UPB nor FSB timed out on
    counted: int
    split: int  # properties that some rule had to split, or left open
    split_seconds: float | None  # mean over these
    split_subproblems: float | None  # mean over those of them that are counted
    timeouts: float  # percentage
    decided_seconds: tuple[float, ...]  # of each property that was decided, ascending: the cactus plot
    paper: PaperBranching | None

    @property
    def label(self) -> str:
        return RULES.get(self.branching, self.branching)


def table1(store: Store) -> list[Table1Row]:
    """Table 1 from a store: mean and sample standard deviation over seeds."""
    return table1_of(read_results(store))


def branching(store: Store) -> list[BranchingRow]:
    """Figures 2 and 5 from a store."""
    return branching_of(read_results(store))


def table1_of(results: Iterable[Result]) -> list[Table1Row]:
    """Table 1 from the runs of any number of stores."""
    groups: dict[_Key, dict[str, Result]] = {}
    for result in results:
        if result.run.notes.get("experiment") == "table1" and result.rows:
            key = (*_place(result), str(result.run.notes.get("method", "unknown")))
            groups.setdefault(key, {})[str(result.run.notes.get("seed"))] = result
    rows = [_table1_row(key, list(seeds.values())) for key, seeds in groups.items()]
    return sorted(rows, key=lambda r: (*_table(r), _size(r.setting), _order(METHODS, r.method)))


def _table1_row(key: "_Key", results: Sequence[Result]) -> Table1Row:
    scale, dataset, search, setting, method = key
    shares = [Accuracies.of_rows(result.rows) for result in results]
    seconds = [number(result.run.notes.get("training_seconds")) for result in results]
    seconds = [s for s in seconds if isfinite(s)]
    return Table1Row(
        scale=scale,
        dataset=dataset,
        search=search,
        setting=setting,
        method=method,
        seeds=len(results),
        images=min(s.images for s in shares),
        complete=not any(result.missing for result in results),
        standard=_quantity([100 * s.standard for s in shares]),
        withstood=_quantity([100 * s.withstood for s in shares]),
        robust=_quantity([100 * s.robust for s in shares]),
        verified=_quantity([100 * s.verified for s in shares]),
        undecided=_quantity([100 * s.undecided for s in shares]),
        training_seconds=_quantity(seconds) if seconds else None,
        paper=TABLE1.get((setting, method), ()),
    )


def branching_of(results: Iterable[Result]) -> list[BranchingRow]:
    """Figures 2 and 5 from the runs of any number of stores."""
    groups: dict[_Key, dict[str, Result]] = {}
    for result in results:
        if result.run.notes.get("experiment") == "branching" and result.rows:
            key = (*_place(result), str(result.run.notes.get("network", "unknown")))
            groups.setdefault(key, {})[str(result.run.notes.get("branching", "unknown"))] = result
    rows = [row for key, rules in groups.items() for row in _branching_rows(key, rules)]
    return sorted(
        rows,
        key=lambda r: (*_table(r), _order(METHODS, r.network), _size(r.setting), _order(RULES, r.branching)),
    )


def _branching_rows(key: "_Key", rules: dict[str, Result]) -> list[BranchingRow]:
    scale, dataset, search, setting, network = key
    correct = {name: {row.image: row for row in result.rows if row.correct} for name, result in rules.items()}
    judges = [correct[name] for name in _COUNTED if name in correct]
    split = {
        image
        for name, rows in correct.items()
        for image, row in rows.items()
        if row.subproblems > len(rules[name].run.classes) - 1 or not _decided(row)
    }
    found = []
    for name, rows in correct.items():
        counted = [row for row in rows.values() if all(_decided(judge.get(row.image)) for judge in judges)]
        hard = [row for row in rows.values() if row.image in split]
        found.append(
            BranchingRow(
                scale=scale,
                dataset=dataset,
                search=search,
                setting=setting,
                network=network,
                branching=name,
                properties=len(rows),
                complete=not rules[name].missing,
                seconds=fmean(row.seconds for row in rows.values()) if rows else 0.0,
                subproblems=_mean([row.subproblems for row in counted]),
                counted=len(counted),
                split=len(hard),
                split_seconds=_mean([row.seconds for row in hard]),
                split_subproblems=_mean([row.subproblems for row in counted if row.image in split]),
                timeouts=100 * sum(not _decided(row) for row in rows.values()) / max(len(rows), 1),
                decided_seconds=tuple(sorted(row.seconds for row in rows.values() if _decided(row))),
                paper=BRANCHING.get((setting, network, name)),
            )
        )
    return found


_Row = TypeVar("_Row", Table1Row, BranchingRow)


def by_search(rows: Iterable[_Row]) -> dict[str, list[_Row]]:
    """The rows of each profile, which do not belong in one table."""
    found: dict[str, list[_Row]] = {}
    for row in rows:
        found.setdefault(row.search, []).append(row)
    return {name: found[name] for name in sorted(found, key=lambda name: _order(SEARCHES, name))}


def table1_markdown(rows: Sequence[Table1Row]) -> str:
    """Table 1 in Markdown: percentages with sample standard deviations, the paper's rows beside ours."""
    head = ["ε", "method", "seeds", "images", "standard", "withstood", "robust", "verified", "undecided"]
    head += ["training [s]"]
    head += [f"paper: {name}" for name in ("row", "standard", "robust", "verified", "runtime [s]")]
    lines = []
    for row in rows:
        ours = [row.setting, row.label, str(row.seeds), f"{row.images:,}" + ("" if row.complete else " so far")]
        shares = (row.standard, row.withstood, row.robust, row.verified, row.undecided)
        ours += [quantity_text(share) for share in shares]
        ours += [quantity_text(row.training_seconds, digits=0)]
        for k, paper in enumerate(row.paper or (None,)):
            lines.append([*(ours if k == 0 else [""] * len(ours)), *paper_cells(paper)])
    return _markdown(head, lines, texts=(0, 1, 10)) + _source("table 1", rows, f"{ROBUST} ")


def branching_markdown(rows: Sequence[BranchingRow]) -> str:
    """Figures 2 and 5 in Markdown, the paper's numbers beside ours."""
    head = ["network", "ε", "branching", "properties", "time [s]", "subproblems", "timeouts"]
    head += ["split", "split: time [s]", "split: subproblems"]
    head += [f"paper: {name}" for name in ("time [s]", "subproblems", "timeouts")]
    lines = []
    for row in rows:
        network = METHODS.get(row.network, row.network)
        ours = [network, row.setting, row.label, f"{row.properties:,}" + ("" if row.complete else " so far")]
        ours += [f"{row.seconds:.2f}", mean_text(row.subproblems), f"{row.timeouts:.2f} %"]
        ours += [f"{row.split:,}", mean_text(row.split_seconds), mean_text(row.split_subproblems)]
        paper = row.paper
        theirs = ["–"] * 3
        if paper is not None:
            theirs = [f"{paper.seconds:.2f}", f"{paper.subproblems:,.2f}", f"{paper.timeouts:.2f} %"]
        lines.append([*ours, *theirs])
    return _markdown(head, lines, texts=(0, 1, 2)) + _source("figures 2 and 5", rows, f"{SUBPROBLEMS} ")


def mean_text(value: float | None) -> str:
    """A mean, or a dash where there is none."""
    return "–" if value is None else f"{value:,.2f}"


def paper_cells(paper: PaperTraining | None) -> list[str]:
    """The paper's row as text: name, three accuracies, runtime."""
    if paper is None:
        return ["–"] * 5
    accuracies = [quantity_text(q) for q in (paper.standard, paper.robust, paper.verified)]
    return [paper.name, *accuracies, quantity_text(paper.seconds, digits=0)]


def quantity_text(value: Quantity | None, digits: int = 2) -> str:
    """
    >>> quantity_text(Quantity(61.97, 0.18)), quantity_text(Quantity(60.5)), quantity_text(None)
    ('61.97 ± 0.18', '60.50', '–')
    """
    if value is None:
        return "–"
    spread = "" if value.deviation is None else f" ± {value.deviation:,.{digits}f}"
    return f"{value.mean:,.{digits}f}{spread}"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]], texts: Sequence[int]) -> str:
    rule = ["---" if k in texts else "--:" for k in range(len(head))]
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in (head, rule, *lines)]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def _source(part: str, rows: Sequence[Table1Row] | Sequence[BranchingRow], note: str = "") -> str:
    scales = sorted({(row.scale, row.dataset, row.search) for row in rows})
    here = "; ".join(
        f"{dataset}{f' at scale {scale}' if scale else ''}, {SEARCHES.get(search, search)}"
        for scale, dataset, search in scales
    )
    return f"\n{note}Ours: {here or 'no runs'}. Paper: {SOURCE}, {part}, CIFAR-10.\n"


_Key = tuple[str, str, str, str, str]


def _place(result: Result) -> tuple[str, str, str, str]:
    run, notes = result.run, result.run.notes
    return str(notes.get("scale", "")), run.dataset, run.search, str(notes.get("setting", run.radius))


def _table(row: Table1Row | BranchingRow) -> tuple[str, str, tuple[int, str]]:
    return row.scale, row.dataset, _order(SEARCHES, row.search)


def _decided(row: Row | None) -> bool:
    return row is not None and row.outcome not in ("timeout", "unknown")


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _quantity(values: Sequence[float]) -> Quantity:
    return Quantity(fmean(values), stdev(values) if len(values) > 1 else None)


def _size(setting: str) -> tuple[float, str]:
    value = radius(setting)
    return (value if isfinite(value) else 2.0, setting)


def _order(names: dict[str, str], name: str) -> tuple[int, str]:
    return (list(names).index(name) if name in names else len(names), name)

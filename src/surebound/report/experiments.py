"""The parts of the page on the paper's experiments: table 1, and the comparison of branching rules."""

from collections.abc import Callable, Sequence
from itertools import groupby

from surebound.report.charts import Axes, Curve, line_chart
from surebound.report.markup import Markup, element, join
from surebound.report.numbers import duration
from surebound.report.paper import SOURCE, Quantity
from surebound.report.pieces import Cell, Column, Tile, figure, table
from surebound.report.summaries import cactus
from surebound.report.tables import (
    METHODS,
    ROBUST,
    SEARCHES,
    SUBPROBLEMS,
    BranchingRow,
    Table1Row,
    by_search,
    mean_text,
    paper_cells,
    quantity_text,
)

_RULE_COLOURS = {"upb": "blue", "fsb": "orange", "sr": "green"}


def table1_tiles(rows: Sequence[Table1Row]) -> list[Tile]:
    """The method that verifies most, for each setting."""
    found = []
    for (scale, search, setting), group in groupby(rows, lambda r: (r.scale, r.search, r.setting)):
        best = max(group, key=lambda r: r.verified.mean)
        known = best.paper and best.dataset == "cifar10"
        paper = f"; paper {quantity_text(best.paper[0].verified)}" if known else ""
        below = f"{best.label}, most verified at ε\u00a0=\u00a0{setting}{_where(scale, search)}{paper}"
        found.append(Tile(f"Verified, ε\u00a0=\u00a0{setting}", f"{best.verified.mean:.2f}\u202f%", below, "green"))
    return found


def branching_tiles(rows: Sequence[BranchingRow]) -> list[Tile]:
    """How UPB compares with FSB in time, for each network."""
    found = []
    for key, group in groupby(rows, _network):
        times = {row.branching: row.seconds for row in group}
        if times.get("upb") and times.get("fsb"):
            below = f"{_title(key)}, {SEARCHES.get(key[2], key[2])}: {duration(times['upb'])} against "
            ratio = f"{times['upb'] / times['fsb']:.2f}"
            found.append(Tile("Time of UPB over FSB", ratio, below + duration(times["fsb"]), "blue"))
    return found


def table1_section(rows: Sequence[Table1Row]) -> Markup:
    """Table 1, a table for each radius, with the paper's numbers below ours."""
    about = (
        f"Accuracies in percent with their sample standard deviations over seeds. {ROBUST} The highest of ours are "
        f"bold. Set back below each method: table 1 of {SOURCE}, on CIFAR-10 with "
        "the paper’s networks, epochs and timeouts. At any smaller scale, compare the order of methods, not the values."
    )
    parts: list[object] = [element("p", about), *_warning(rows)]
    for (scale, dataset, search, setting), group in groupby(rows, lambda r: (r.scale, r.dataset, r.search, r.setting)):
        parts.append(_table1(f"ε\u00a0=\u00a0{setting}, {dataset}{_where(scale, search)}", list(group)))
    return join(parts)


def _where(scale: str, search: str) -> str:
    """The scale, and a profile that is not the default."""
    profile = "" if search == "default" else f", {SEARCHES.get(search, search)}"
    return f"{f', scale {scale}' if scale else ''}{profile}"


def _warning(rows: Sequence[Table1Row] | Sequence[BranchingRow]) -> list[Markup]:
    if not any(row.scale == "smoke" for row in rows):
        return []
    said = "Scale smoke only shows that every part runs, on small digits and for a second: its numbers mean nothing."
    return [element("p", element("strong", said))]


def _table1(place: str, rows: Sequence[Table1Row]) -> Markup:
    names = ("Seeds", "Images", "Standard", "Withstood", "Robust", "Verified", "Undecided", "Training, s")
    columns = [Column("Method"), *(Column(name, True) for name in names)]
    lines: list[list[object]] = []
    styles = []
    for row in rows:
        ours: list[object] = [row.label, row.seeds, f"{row.images:,}{'' if row.complete else ' so far'}"]
        ours += [_best(row, rows, get) for get in (_standard, _withstood, _robust, _verified)]
        lines.append([*ours, quantity_text(row.undecided), quantity_text(row.training_seconds, digits=0)])
        for paper in row.paper:
            name, standard, robust, verified, seconds = paper_cells(paper)
            lines.append([f"paper: {name}", "", "", standard, "", robust, verified, "", seconds])
        styles += ["open" if row.paper else "", *["paper open"] * (len(row.paper) - 1), *["paper"] * bool(row.paper)]
    return table(place, columns, lines, styles=styles)


def _best(row: Table1Row, peers: Sequence[Table1Row], get: Callable[[Table1Row], Quantity]) -> Cell:
    highest = max(get(peer).mean for peer in peers)
    bold = len(peers) > 1 and get(row).mean == highest
    return Cell(quantity_text(get(row)), style="best" if bold else "")


def _standard(row: Table1Row) -> Quantity:
    return row.standard


def _withstood(row: Table1Row) -> Quantity:
    return row.withstood


def _robust(row: Table1Row) -> Quantity:
    return row.robust


def _verified(row: Table1Row) -> Quantity:
    return row.verified


def branching_section(rows: Sequence[BranchingRow]) -> Markup:
    """Figures 2 and 5: a table of each profile, and a cactus plot of each network."""
    about = (
        "Over the images that each network classifies correctly; a timeout is any image left undecided. "
        f"{SUBPROBLEMS} On the right: figures 2 and 5 of {SOURCE}, CIFAR-10, on a graphics card, with 30 minutes for "
        "each property."
    )
    parts = (part for search, members in by_search(rows).items() for part in _branching(search, members))
    return join([element("p", about), *_warning(rows), *parts])


def _branching(search: str, rows: Sequence[BranchingRow]) -> list[Markup]:
    """One table and its plots."""
    columns = [Column("Network"), Column("Branching"), Column("Properties", True)]
    columns += [Column(name, True) for name in ("Time, s", "Subproblems", "Timeouts, %")]
    columns += [Column(name, True) for name in ("Split", "Split: time, s", "Split: subproblems")]
    columns += [Column(name, True, True) for name in ("Time, s", "Subproblems", "Timeouts, %")]
    lines, styles = [], []
    plots: list[Markup] = []
    for key, members in groupby(rows, _network):
        group = list(members)
        for k, row in enumerate(group):
            shown = _title(key) if k == 0 else element("span", _title(key), class_="hidden")
            lines.append([shown, *_branching_line(row, group)])
            styles.append("first" if k == 0 and plots else "")
        plots.append(_cactus(f"{_title(key)}, {SEARCHES.get(search, search)}", group))
    groups = (("", 3), ("This work", 6), (SOURCE, 3))
    places = sorted({f"{r.dataset}{f', scale {r.scale}' if r.scale else ''}" for r in rows})
    caption = f"Branching rules, {SEARCHES.get(search, search)}: {'; '.join(places)}"
    return [
        table(caption, columns, lines, groups=groups, styles=styles),
        element("div", *plots, class_="plots"),
    ]


def _branching_line(row: BranchingRow, group: Sequence[BranchingRow]) -> list[object]:
    def cell(text: str, value: float | None, values: Sequence[float | None]) -> Cell:
        known = [v for v in values if v is not None]
        return Cell(text, style="best" if known and value == min(known) < max(known) else "")

    paper = row.paper
    theirs = ["–"] * 3
    if paper is not None:
        theirs = [f"{paper.seconds:.2f}", f"{paper.subproblems:,.2f}", f"{paper.timeouts:.2f}"]
    return [
        row.label,
        f"{row.properties:,}{'' if row.complete else ' so far'}",
        cell(f"{row.seconds:.2f}", row.seconds, [r.seconds for r in group]),
        cell(mean_text(row.subproblems), row.subproblems, [r.subproblems for r in group]),
        cell(f"{row.timeouts:.2f}", row.timeouts, [r.timeouts for r in group]),
        f"{row.split:,}",
        cell(mean_text(row.split_seconds), row.split_seconds, [r.split_seconds for r in group]),
        cell(mean_text(row.split_subproblems), row.split_subproblems, [r.split_subproblems for r in group]),
        *theirs,
    ]


def _cactus(title: str, group: Sequence[BranchingRow]) -> Markup:
    curves = [
        Curve(
            label=row.label,
            points=cactus(row.decided_seconds),
            colour=_RULE_COLOURS.get(row.branching, "purple"),
            dashed=row.branching != "upb",
        )
        for row in group
    ]
    decided = ", ".join(f"{r.label} {len(r.decided_seconds):,}" for r in group)
    counted = f"subproblems counted over {max(r.counted for r in group):,}"
    said = f"Decided of {max(r.properties for r in group):,} properties: {decided}; {counted}."
    axes = Axes(x="properties decided", y="seconds per property", log=True)
    return figure(title, line_chart(f"Cactus plot of branching rules, {title}", said, axes, curves), said, level="h3")


_Key = tuple[str, str, str, str, str]


def _network(row: BranchingRow) -> _Key:
    return row.scale, row.dataset, row.search, row.network, row.setting


def _title(key: _Key) -> str:
    _, _, _, network, setting = key
    return f"{METHODS.get(network, network)}, ε\u00a0=\u00a0{setting}"

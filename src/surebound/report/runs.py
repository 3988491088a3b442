"""The part of the page on one run: what it found, stage by stage and image by image."""

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from statistics import fmean, median

from surebound.evaluate.evidence import Proofs
from surebound.evaluate.store import OUTCOMES, Accuracies, Row
from surebound.report.charts import Axes, Bar, Curve, bar_chart, line_chart
from surebound.report.gallery import class_name, gallery
from surebound.report.markup import Markup, element, join
from surebound.report.numbers import compact, duration, number, percent, radius, size_text
from surebound.report.pieces import Cell, Column, Tile, figure, fold, legend, table, tiles
from surebound.report.results import Result, short_names
from surebound.report.style import OUTCOME_COLOURS
from surebound.report.summaries import (
    cactus,
    certified_curve,
    funnel,
    has_radii,
    interval,
    phase_seconds,
    standing_curve,
    times,
)

STAGE_NAMES = {
    "standard": "classified",
    "ibp": "IBP",
    "crown": "CROWN",
    "attack": "attack",
    "alpha-crown": "α-CROWN",
    "search": "search",
}


def _title(result: Result, model: str) -> str:
    """What a reader knows a run by, of a model of this name."""
    notes = result.run.notes
    if notes.get("experiment") == "table1":
        parts = [notes.get("method"), notes.get("setting"), f"seed {notes.get('seed')}"]
    elif notes.get("experiment") == "branching":
        parts = [notes.get("branching"), f"on {notes.get('network')}", notes.get("setting")]
    else:
        parts = [model, result.run.dataset, f"ε\u00a0=\u00a0{result.run.radius}"]
    if result.run.search != "default":
        parts.append(f"search {result.run.search}")
    return ", ".join(str(part) for part in parts if part is not None)


def run_titles(results: Sequence[Result]) -> list[str]:
    """The titles of some runs, with the options that runs of one title differ in, or else their numbers."""
    models = short_names(result.run.model for result in results)
    titles = [_title(result, models[result.run.model]) for result in results]
    for title, count in Counter(titles).items():
        if count > 1:
            places = [k for k, other in enumerate(titles) if other == title]
            group = [results[k] for k in places]
            for k, more in zip(places, _differences(group), strict=True):
                titles[k] = f"{title}, {more}"
    return titles


def _differences(results: Sequence[Result]) -> list[str]:
    """What tells each of some runs from the others: options, or else where it is stored."""
    names = dict.fromkeys(name for result in results for name in result.run.options if name not in ("norm", "search"))
    values = {name: [result.run.options.get(name) for result in results] for name in names}
    differing = {name: found for name, found in values.items() if any(value != found[0] for value in found)}
    said = [", ".join(_option(name, found[k]) for name, found in differing.items()) for k in range(len(results))]
    if len(set(said)) < len(said) or not all(said):
        stores = short_names(str(result.store) for result in results)
        places = [f"run {result.number} of {stores[str(result.store)]}" for result in results]
        said = [", ".join(filter(None, pair)) for pair in zip(said, places, strict=True)]
    return said


def _option(name: str, value: object) -> str:
    words = name.replace("_", " ")
    return words if value is True else f"no {words}" if value in (False, None) else f"{words} {value}"


def headline(result: Result) -> Markup:
    """The accuracies of a run. While images are missing there are no intervals: those settled so far are no sample, but
    the ones that took least time."""
    found, n = Accuracies.of_rows(result.rows), len(result.rows)

    def tile(label: str, share: float, meaning: str, colour: str) -> Tile:
        below = f"{round(share * n):,} of {n:,} {meaning}"
        if not result.missing:
            low, high = interval(share, n)
            below += f"; 95\u202f% interval {100 * low:.1f}–{100 * high:.1f}"
        return Tile(label, percent(share), below, colour)

    return tiles(
        [
            tile("Standard accuracy", found.standard, "classified correctly", "blue"),
            tile("Withstood the attack", found.withstood, "right, and not broken by the first attack", "blue"),
            tile("Robust accuracy", found.robust, "right, and not broken by the search, either", "purple"),
            tile("Verified accuracy", found.verified, "proved robust", "green"),
            tile("Undecided", found.undecided, "out of time, or unknown", "amber"),
        ]
    )


def proofs_tiles(result: Result) -> Markup | None:
    """What is known of the proofs of a run that was to write any."""
    found = Proofs.of_rows(result.rows)
    if not found.written and not found.refused and "proofs" not in result.run.notes:
        return None
    checked = found.accepted + found.refused
    folder = f", in {result.run.notes['proofs']}" if "proofs" in result.run.notes else ""
    below = f"verified images have a proof, for surebound check to follow{folder}"
    each = [Tile("Proofs", f"{found.written:,} of {found.verified:,}", below, "green")]
    if checked:
        below = f"of {checked:,} that were checked, by a program that shares no code with the verifier"
        if found.refused:
            below += f"; {found.refused:,} refused, and these images count as undecided"
        colour = "amber" if found.refused else "green"
        each.append(Tile("Accepted by the checker", f"{found.accepted:,}", below, colour))
    elif found.written:
        below = "surebound check NET.onnx image-N.vnnlib.gz image-N.proof checks one, certify --check-proofs each"
        each.append(Tile("Checks", "not made here", below, "blue"))
    if found.median_bytes is not None:
        each.append(Tile("Size of a proof", size_text(found.median_bytes), "in the median", "blue"))
    if found.median_check_seconds is not None:
        each.append(Tile("Time to check one", duration(found.median_check_seconds), "in the median", "blue"))
    return tiles(each)


def run_summary(result: Result) -> str:
    """The accuracies in one line."""
    found = Accuracies.of_rows(result.rows)
    shares = f"standard {percent(found.standard)}, robust {percent(found.robust)}, verified {percent(found.verified)}"
    return f"{shares} of {found.images:,} images" if result.rows else "no images yet"


def run_body(result: Result, *, most_rows: int, most_pictures: int, trained: Markup | None = None) -> Markup:
    """Everything on a run but its title."""
    rows = result.rows
    if not rows:
        return element("p", "This run has settled no image yet.", class_="warn")
    parts: list[object] = []
    if result.missing:
        asked = f"{result.missing:,} of the {len(result.run.images):,} images asked for are not settled yet."
        biased = "Accuracies are those of the images that were settled first, which are the easier ones."
        parts.append(element("p", f"{asked} {biased}", class_="warn"))
    parts += [headline(result), proofs_tiles(result), trained]
    plots = [_funnel(rows), _phases(rows), _cactus(rows), _radii(rows)]
    parts.append(element("div", *(plot for plot in plots if plot is not None), class_="plots"))
    shown = [row for row in rows if row.counter is not None][:most_pictures]
    if shown:
        total = sum(row.outcome in ("attacked", "falsified") for row in rows)
        which = "all" if len(shown) >= total else f"the first {len(shown)} of {total:,}"
        note = f"Shown: {which}. Grey means no change; the network was replayed on each of these points."
        parts += [element("h4", "Counterexamples"), element("p", note, class_="note"), gallery(result.run, shown)]
    parts.append(_images(result, most_rows))
    return join(parts)


def _funnel(rows: Sequence[Row]) -> Markup:
    steps = funnel(rows)
    bars, said = [], []
    for step in steps:
        settled = sum(step.settled.values())
        segments = [(float(count), OUTCOME_COLOURS[outcome]) for outcome, count in step.settled.items()]
        note = f"{settled:,} settled" if settled else "none"
        bars.append(Bar(STAGE_NAMES[step.stage], [*segments, (float(step.going_on), "rest")], note))
        ways = ", ".join(f"{count:,} {outcome}" for outcome, count in step.settled.items()) or "none"
        said.append(f"{STAGE_NAMES[step.stage]}: {step.arriving:,} arrive, settled {ways}")
    shown = [o for o in OUTCOMES if any(o in step.settled for step in steps)]
    key = legend([*((outcome, OUTCOME_COLOURS[outcome]) for outcome in shown), ("goes on", "rest")])
    return figure(
        "Which stage settled how many images",
        bar_chart("Images settled by each stage", "; ".join(said) + ".", bars, most=float(len(rows))),
        key,
    )


def _cactus(rows: Sequence[Row]) -> Markup:
    proved = times(rows, "verified")
    broken = times(rows, "attacked", "falsified")
    curves = [
        Curve(label="verified", points=cactus(proved), colour="green"),
        Curve(label="counterexample", points=cactus(broken), colour="orange", dashed=True),
    ]
    decided = proved + broken
    said = "Nothing was decided."
    if decided:
        said = (
            f"{len(proved):,} images verified and {len(broken):,} with a counterexample; "
            f"mean {duration(fmean(decided))}, median {duration(median(decided))}, slowest {duration(max(decided))}."
        )
    axes = Axes(x="images decided", y="seconds per image", log=True)
    return figure("Time to decide an image", line_chart("Cactus plot of times", said, axes, curves), said)


def _phases(rows: Sequence[Row]) -> Markup | None:
    totals = {STAGE_NAMES.get(name, name): seconds for name, seconds in phase_seconds(rows).items()}
    if not totals:
        return None
    bars = [Bar(name, [(seconds, "blue")], duration(seconds)) for name, seconds in totals.items()]
    said = "; ".join(f"{name} {duration(seconds)}" for name, seconds in totals.items()) + "."
    whole = f"{duration(sum(totals.values()))} in all."
    return figure("Where the time went", bar_chart("Seconds by phase", said, bars), whole)


def _radii(rows: Sequence[Row]) -> Markup | None:
    if not has_radii(rows):
        return None
    found = [radius(row.certified_eps) for row in rows if row.correct]
    proved = sorted(value if isfinite(value) else 0.0 for value in found)
    certified, standing = certified_curve(rows), standing_curve(rows)
    end = max(certified[-1][0], standing[-1][0])
    curves = [
        Curve(label="proved", points=_percent([*certified, (end, certified[-1][1])]), colour="green"),
        Curve(label="not attacked", points=_percent([*standing, (end, standing[-1][1])]), colour="orange", dashed=True),
    ]
    said = "No radius was proved."
    if any(proved):
        middle, largest = median(proved), proved[-1]
        said = f"Median radius proved {middle:.4g}, largest {largest:.4g}, over {len(proved):,} correct images."
    axes = Axes(x="radius ε", y="images, %", y_range=(0.0, 102.0), whole=False)
    plot = line_chart("Images proved robust by radius", said, axes, curves)
    return figure("Certified accuracy by radius", plot, said, " The truth lies between the curves.")


def _percent(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, 100 * y) for x, y in points]


def _images(result: Result, most: int) -> Markup:
    rows = list(result.rows)
    title = f"All {len(rows):,} images"
    if len(rows) > most:
        rows = sorted(sorted(rows, key=lambda row: -row.seconds)[:most], key=lambda row: row.image)
        title = f"The {most:,} slowest of {len(result.rows):,} images"
    radii, reasons, proofs = has_radii(rows), any(row.reason for row in rows), any(row.proof for row in rows)
    columns = [Column("Image", True), Column("Label"), Column("Predicted"), Column("Outcome"), Column("Settled by")]
    columns += [Column(name, True) for name in ("Seconds", "Subproblems", "Lower bound")]
    columns += [Column(name, True) for name in ("Proved ε", "Attacked ε") if radii]
    columns += [Column("Proof, bytes", True), Column("Checked")] if proofs else []
    columns += [Column("Reason")] if reasons else []
    lines = [_image(result, row, radii, proofs, reasons) for row in rows]
    inside = table(f"{title}; the column heads sort", columns, lines, sortable=True, tall=True)
    return fold(element("h4", title), inside, style="long")


_CHECKED = {None: "", True: "accepted", False: "refused"}


def _image(result: Result, row: Row, radii: bool, proofs: bool, reasons: bool) -> list[object]:
    bound = number(row.lower_bound)
    cells: list[object] = [row.image, class_name(result.run, row.label), class_name(result.run, row.predicted)]
    cells.append(Cell(row.outcome, style=f"outcome {OUTCOME_COLOURS.get(row.outcome, 'grey')}"))
    cells.append(STAGE_NAMES.get(row.stage, row.stage))
    cells.append(f"{row.seconds:.3f}")
    cells.append(f"{row.subproblems:,}")
    cells.append(Cell(compact(bound), bound) if isfinite(bound) else "")
    if radii:
        for text in (row.certified_eps, row.attacked_eps):
            value = radius(text)
            cells.append(Cell(f"{value:.4g}", value) if isfinite(value) else "")
    if proofs:
        cells += ["", ""] if row.proof is None else [f"{row.proof.bytes:,}", _CHECKED[row.proof.checked]]
    return cells + ([row.reason] if reasons else [])

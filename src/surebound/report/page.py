"""One HTML page with everything in it: it makes no request, and reads without its script."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from surebound.evaluate.store import Accuracies
from surebound.report.experiments import branching_section, branching_tiles, table1_section, table1_tiles
from surebound.report.markup import Markup, element, join
from surebound.report.numbers import duration
from surebound.report.pieces import Cell, Column, fold, slug, table, tiles
from surebound.report.repeat import repeat_section
from surebound.report.results import Material, Result, Training, gather
from surebound.report.runs import run_body, run_summary, run_titles
from surebound.report.style import CSS, SCRIPT
from surebound.report.tables import branching_of, table1_of
from surebound.report.training import training_body, training_summary

# On the whole page: a browser should open it at once, however many runs there are.
_ROWS, _PICTURES = 6000, 48
_FEWEST = 2  # pictures of a run, if all runs together have no more than twice as many
_TALL = 15  # rows, from which a table scrolls by itself
_PRINTED = 4  # runs or training folders, up to which all of them are on paper


@dataclass(frozen=True)
class Section:
    """A part of the page."""

    title: str
    body: Markup

    @property
    def anchor(self) -> str:
        return slug(self.title)


def make_page(path: str | Path, *, most_rows: int = _ROWS) -> str:
    """The report on a store, a training folder, or a folder of both."""
    return render(gather(path), most_rows=most_rows)


def default_output(path: str | Path) -> Path:
    """Where a report goes unless told otherwise: beside the store, or into the folder."""
    target = Path(path)
    return (target if target.is_dir() else target.parent) / "report.html"


def render(material: Material, *, most_rows: int = _ROWS) -> str:
    """The page, with about so many images in the tables of all runs together."""
    sections = _sections(material, most_rows)
    links = [element("li", element("a", s.title, href=f"#{s.anchor}")) for s in sections]
    body = [
        element("a", "Skip to the results", class_="skip", href="#content"),
        element(
            "header",
            element("p", "surebound report", class_="kicker"),
            element("h1", material.name),
            element("p", _lead(material), class_="lead"),
            element("nav", element("ul", *links), aria_label="Contents"),
        ),
        element("main", *(_section(s) for s in sections), id="content"),
        element("footer", element("p", "Made by surebound. This page is whole: it loads nothing, and works offline.")),
        element("script", Markup(SCRIPT)),
    ]
    return f"<!DOCTYPE html>\n{element('html', _head(material), element('body', *body), lang='en')}\n"


def _head(material: Material) -> Markup:
    policy = (
        f"default-src 'none'; img-src data:; style-src {_source(CSS)}; script-src {_source(SCRIPT)}; base-uri 'none'"
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{material.name} – surebound report"),
        element("link", rel="icon", href="data:,"),
        element("style", Markup(CSS)),
    )


def _source(content: str) -> str:
    """Lets a browser run exactly this script, and no other that a name in a file might smuggle in."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _section(section: Section) -> Markup:
    return element("section", element("h2", section.title), section.body, id=section.anchor, aria_label=section.title)


def _lead(material: Material) -> str:
    parts = []
    results, trainings = material.results, material.trainings
    if material.stores:
        settled = sum(len(result.rows) for result in results)
        parts.append(f"{_count(len(results), 'run')}, {_count(settled, 'result')}")
        spent = sum(row.seconds for result in results for row in result.rows)
        if settled:
            parts.append(f"{duration(spent)} of verification")
    if trainings:
        parts.append(_count(len(trainings), "training folder"))
    started = sorted(result.run.started for result in results if result.run.started)
    if started:
        days = sorted({started[0][:10], started[-1][:10]})
        parts.append(" to ".join(days))
    return " · ".join(parts)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _sections(material: Material, most_rows: int) -> list[Section]:
    results, trainings = material.results, material.trainings
    table1, branching = table1_of(results), branching_of(results)
    found = []
    if numbers := [*table1_tiles(table1), *branching_tiles(branching)]:
        found.append(Section("Summary", tiles(numbers)))
    elif material.stores and not results:
        found.append(Section("Summary", element("p", "The store holds no run yet.", class_="warn")))
    if table1:
        found.append(Section("Table 1", table1_section(table1)))
    if branching:
        found.append(Section("Branching rules", branching_section(branching)))
    anchors = {
        t.hashes["model.onnx"]: (t, f"training-{k}") for k, t in enumerate(trainings) if "model.onnx" in t.hashes
    }
    if results:
        found.append(Section("Runs" if len(results) > 1 else "Results", _runs(results, anchors, most_rows)))
    if trainings:
        found.append(Section("Training", _trainings(trainings)))
    found.append(Section("Repeat it", repeat_section(material)))
    return found


def _overview(results: Sequence[Result], titles: Sequence[str]) -> Markup:
    names = ("Standard", "Withstood", "Robust", "Verified", "Undecided", "Mean time, s")
    columns = [Column("Run"), Column("Data set"), Column("ε", True), Column("Images", True)]
    columns += [Column(name, True) for name in names]
    lines = []
    for k, (result, title) in enumerate(zip(results, titles, strict=True), start=1):
        found = Accuracies.of_rows(result.rows)
        name = element("a", f"{k}. {title}", href=f"#run-{k}")
        images = Cell(f"{found.images:,}{' so far' if result.missing else ''}", found.images)
        kinds = (found.standard, found.withstood, found.robust, found.verified, found.undecided)
        shares = [f"{100 * share:.2f}" if found.images else "" for share in kinds]
        mean = sum(row.seconds for row in result.rows) / max(len(result.rows), 1)
        lines.append([Cell(name, k), result.run.dataset, result.run.radius, images, *shares, f"{mean:.3f}"])
    caption = "All runs, accuracies in percent (withstood the first attack; robust against all that ran); heads sort"
    return table(caption, columns, lines, sortable=True, tall=len(results) > _TALL)


def _runs(results: Sequence[Result], trained: Mapping[str, tuple[Training, str]], most_rows: int) -> Markup:
    rows = max(most_rows // len(results), 1)
    pictures = max(_PICTURES // len(results), min(2 * _PICTURES // len(results), _FEWEST))
    titles = run_titles(results)
    parts: list[object] = [_overview(results, titles)] if len(results) > 1 else []
    style = "print" if len(results) <= _PRINTED else None
    for k, (result, title) in enumerate(zip(results, titles, strict=True), start=1):
        origin = None
        if found := trained.get(result.run.model_sha256):
            link = element("a", found[0].name, href=f"#{found[1]}")
            origin = element("p", "Trained in ", link, ", by the hash of the model.", class_="note")
        body = run_body(result, most_rows=rows, most_pictures=pictures, trained=origin)
        if len(results) == 1:
            parts += [element("h3", title, id="run-1"), body]
        else:
            heading = [element("h3", f"{k}. {title}"), element("span", run_summary(result), class_="note")]
            parts.append(fold(join(heading), body, open_=len(results) == 2, style=style, id_=f"run-{k}"))
    return join(parts)


def _trainings(trainings: Sequence[Training]) -> Markup:
    parts: list[object] = []
    style = "print" if len(trainings) <= _PRINTED else None
    for k, training in enumerate(trainings):
        body = training_body(training)
        if len(trainings) == 1:
            parts += [element("h3", training.name, id=f"training-{k}"), body]
        else:
            note = element("span", training_summary(training), class_="note")
            parts.append(fold(join([element("h3", training.name), note]), body, style=style, id_=f"training-{k}"))
    return join(parts)

"""The building blocks of the page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from surebound.report.markup import Markup, element, join


@dataclass(frozen=True)
class Tile:
    """A number worth a large font."""

    label: str
    value: str
    below: str = ""
    colour: str = "blue"


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    numeric: bool = False
    paper: bool = False  # somebody else's numbers, set back


@dataclass(frozen=True)
class Cell:
    """A cell with more to it than its text: what it sorts by, and its style."""

    text: object
    value: float | None = None
    style: str = ""


def tiles(items: Sequence[Tile]) -> Markup:
    """Headline numbers in a row."""
    found = [
        element(
            "div",
            element("dt", item.label),
            element("dd", element("div", item.value, class_="big"), element("div", item.below, class_="small")),
            class_=f"tile {item.colour}",
        )
        for item in items
    ]
    return element("dl", *found, class_="tiles")


def figure(title: str, plot: Markup, *below: object, level: str = "h4") -> Markup:
    """A plot under its title, and what explains it."""
    return element("figure", element(level, title), plot, element("figcaption", *below) if below else None)


def legend(items: Sequence[tuple[str, str]]) -> Markup:
    """Labels and the colours they stand for."""
    return element("ul", *(element("li", label, class_=colour) for label, colour in items), class_="legend")


def facts(items: Sequence[tuple[str, object]], *, pairs: bool = False) -> Markup:
    """Names and values; in two columns if they are short."""
    return element(
        "dl",
        *(join([element("dt", name), element("dd", value)]) for name, value in items),
        class_=f"facts{' pairs' * pairs}",
    )


def fold(
    heading: Markup, *inside: object, open_: bool = False, style: str | None = None, id_: str | None = None
) -> Markup:
    """A part that opens when asked. On paper it is as on the screen, but of style "print" always open."""
    return element("details", element("summary", heading), *inside, open="" if open_ else None, class_=style, id_=id_)


_MANY = 9  # columns beyond which a table is set smaller


def table(
    caption: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[object]],
    *,
    groups: Sequence[tuple[str, int]] = (),
    styles: Sequence[str] = (),
    sortable: bool = False,
    tall: bool = False,
) -> Markup:
    """A table whose first column names its rows. Wide ones scroll by themselves, with the keyboard, too."""
    head = [
        element("th", c.name, scope="col", class_=_style(c), data_column=c.name if sortable else None) for c in columns
    ]
    above = [element("th", name, scope="colgroup", colspan=span, class_="group") for name, span in groups]
    kinds = " ".join([*["sortable"] * sortable, *["dense"] * (len(columns) > _MANY)])
    lines = []
    for k, row in enumerate(rows):
        cells = [_cell(column, value, header=not j) for j, (column, value) in enumerate(zip(columns, row, strict=True))]
        lines.append(element("tr", *cells, class_=(styles[k] or None) if styles else None))
    whole = element(
        "table",
        element("caption", caption),
        element("thead", element("tr", *above) if above else None, element("tr", *head)),
        element("tbody", *lines),
        class_=kinds or None,
    )
    style = "scroll tall" if tall else "scroll"
    return element("div", whole, class_=style, role="region", tabindex=0, aria_label=caption)


def _cell(column: Column, value: object, *, header: bool) -> Markup:
    cell = value if isinstance(value, Cell) else Cell(value)
    style = " ".join(filter(None, [_style(column), cell.style])) or None
    sort = None if cell.value is None else f"{cell.value:.10g}"
    name, scope = ("th", "row") if header else ("td", None)
    return element(name, cell.text, scope=scope, class_=style, data_value=sort)


def _style(column: Column) -> str | None:
    return " ".join(["n"] * column.numeric + ["paper"] * column.paper) or None


def slug(text: str) -> str:
    """
    >>> slug("2-255/IBP-R seed 0")
    '2-255-ibp-r-seed-0'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"

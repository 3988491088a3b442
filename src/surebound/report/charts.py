"""Plots as inline SVG: no library, no request, colours from the page's theme.

Each is an image with a title and a description for those who do not see it. Curves are labelled at their ends rather
than in a legend, and differ in dashes as well as in colour.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, log10
from unicodedata import east_asian_width

from surebound.report.markup import Markup, element, join
from surebound.report.numbers import compact, linear_ticks, log_ticks
from surebound.report.summaries import Point, thin

_WIDTH, _HEIGHT = 520.0, 300.0
_TOP, _BOTTOM, _LEFT = 16.0, 46.0, 58.0
_CHARACTER, _CAPITAL, _FULL = 6.7, 9.6, 12.5  # about the width of one in labels
_BOLD = 1.15  # times as wide
_LINE = 16.0  # the least distance between labels
_POINTS = 400  # of a curve: more cannot be told apart
_MARKED = 30  # points, up to which each is marked
_LABEL = 24  # characters of a label: names come from files, and the plot needs room


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A curve; it has gaps where a value is not finite."""

    label: str
    points: Sequence[Point]
    colour: str  # of the page's theme
    wide: bool = False
    dashed: bool = False


@dataclass(frozen=True, kw_only=True)
class Axes:
    """What a line plot is drawn on; ranges that are None follow from the curves."""

    x: str
    y: str
    log: bool = False
    y_range: tuple[float, float] | None = None
    whole: bool = True  # only whole numbers as ticks of x


@dataclass(frozen=True)
class Bar:
    """A horizontal bar of segments (value, colour), with a label before and a note after it."""

    label: str
    segments: Sequence[tuple[float, str]]
    note: str
    joined: bool = False  # to the bar above


def line_chart(title: str, description: str, axes: Axes, curves: Sequence[Curve]) -> Markup:
    """Curves over a common axis."""
    curves = [replace(curve, label=_short(curve.label)) for curve in curves]
    drawn = [(curve, [p for p in curve.points if _finite(p, axes.log)]) for curve in curves]
    drawn = [(curve, points) for curve, points in drawn if points]
    if not drawn:
        note = element("text", "nothing recorded yet", x=_WIDTH / 2, y=_HEIGHT / 2, class_="tick", text_anchor="middle")
        return _svg(title, description, _HEIGHT, [note])
    right = _WIDTH - 14 - _BOLD * max(_wide(curve.label) for curve, _ in drawn)
    scale = _Scale(axes, [p for _, points in drawn for p in points], right)
    parts = [_grid(axes, scale)]
    parts += [_curve(curve, axes, scale) for curve, _ in drawn]
    ends = [(curve, scale.y(points[-1][1])) for curve, points in drawn]
    parts += _end_labels(ends, right + 9)
    return _svg(title, description, _HEIGHT, parts)


def bar_chart(title: str, description: str, bars: Sequence[Bar], *, most: float | None = None) -> Markup:
    """Horizontal bars, one below the other."""
    bars = [replace(bar, label=_short(bar.label)) for bar in bars]
    left = 14 + max((_wide(bar.label) for bar in bars), default=0)
    right = _WIDTH - 14 - max((_wide(bar.note) for bar in bars), default=0)
    whole = most or max((sum(v for v, _ in bar.segments) for bar in bars), default=0.0) or 1.0
    parts: list[Markup] = []
    y = -4.0
    for bar in bars:
        y += 0 if bar.joined else 8
        middle = y + 15.5
        parts.append(element("text", bar.label, x=left - 10, y=middle, class_="name", text_anchor="end"))
        x = left
        for value, colour in bar.segments:
            wide = (right - left) * value / whole
            if value > 0:
                drawn = max(wide, 1.5)
                parts.append(element("rect", x=x, y=y + 2, width=drawn, height=18.0, class_=f"fill {colour}"))
            x += wide
        parts.append(element("text", bar.note, x=x + 8, y=middle, class_="tick"))
        y += 20
    return _svg(title, description, y + 6, parts)


class _Scale:
    """Where values lie on the paper."""

    def __init__(self, axes: Axes, points: Sequence[Point], right: float) -> None:
        xs, ys = [p[0] for p in points], [p[1] for p in points]
        self.right = right
        self.x_low, self.x_high = min(xs), max(xs)
        if self.x_low == self.x_high:
            self.x_low, self.x_high = self.x_low - 1, self.x_high + 1
        low, high = axes.y_range or (min(ys), max(ys))
        if axes.log:
            low, high = 10 ** (log10(low) - 0.05), 10 ** (log10(high) + 0.05)
            low, high = (low / 2, high * 2) if high < 2 * low else (low, high)
        elif axes.y_range is None:
            room = 0.05 * (high - low) or 1.0
            low, high = (0.0 if 0 <= low < 0.5 * high else low - room), high + room
        self.y_low, self.y_high, self._log = low, high, axes.log
        self._low, self._high = (log10(low), log10(high)) if axes.log else (low, high)

    def x(self, value: float) -> float:
        return _LEFT + (self.right - _LEFT) * (value - self.x_low) / (self.x_high - self.x_low)

    def y(self, value: float) -> float:
        share = ((log10(value) if self._log else value) - self._low) / (self._high - self._low)
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * share


def _grid(axes: Axes, scale: _Scale) -> Markup:
    floor = _HEIGHT - _BOTTOM
    ticks = log_ticks(scale.y_low, scale.y_high) if axes.log else linear_ticks(scale.y_low, scale.y_high)
    parts = []
    for tick in ticks:
        y = scale.y(tick)
        parts.append(element("line", x1=_LEFT, x2=scale.right, y1=y, y2=y, class_="grid"))
        parts.append(element("text", compact(tick), x=_LEFT - 8, y=y + 4, class_="tick", text_anchor="end"))
    parts.append(element("line", x1=_LEFT, x2=scale.right, y1=floor, y2=floor, class_="axis"))
    for tick in linear_ticks(scale.x_low, scale.x_high, 6):
        if axes.whole and tick != round(tick):
            continue
        x = scale.x(tick)
        parts.append(element("line", x1=x, x2=x, y1=floor, y2=floor + 4, class_="axis"))
        parts.append(element("text", compact(tick), x=x, y=floor + 18, class_="tick", text_anchor="middle"))
    middle = (_LEFT + scale.right) / 2
    parts.append(element("text", axes.x, x=middle, y=_HEIGHT - 8, class_="name", text_anchor="middle"))
    half = (_TOP + floor) / 2
    turned = f"translate(13 {half:.0f}) rotate(-90)"
    parts.append(element("text", axes.y, transform=turned, class_="name", text_anchor="middle"))
    return join(parts)


def _curve(curve: Curve, axes: Axes, scale: _Scale) -> Markup:
    points = thin(curve.points, _POINTS)
    steps, pen_up = [], True
    marks = []
    for point in points:
        if not _finite(point, axes.log):
            pen_up = True
            continue
        x, y = scale.x(point[0]), scale.y(point[1])
        steps.append(f"{'M' if pen_up else 'L'}{x:.1f} {y:.1f}")
        marks.append((x, y))
        pen_up = False
    style = " ".join(["curve", curve.colour, *(["wide"] if curve.wide else []), *(["dashed"] if curve.dashed else [])])
    shown = marks if len(marks) <= _MARKED and not curve.wide else marks[-1:]
    dots = [element("circle", cx=x, cy=y, r=2.6, class_=f"fill {curve.colour}") for x, y in shown]
    return join([element("path", d="".join(steps), class_=style), *dots])


def _end_labels(ends: Sequence[tuple[Curve, float]], x: float) -> list[Markup]:
    """Labels beside the ends of curves, moved apart where they would lie on each other."""
    placed: list[tuple[Curve, float]] = []
    for curve, y in sorted(ends, key=lambda end: end[1]):
        placed.append((curve, max(y, placed[-1][1] + _LINE) if placed else y))
    floor = _HEIGHT - _BOTTOM
    for k in range(len(placed) - 1, -1, -1):
        curve, y = placed[k]
        placed[k] = (curve, min(y, floor))
        floor = placed[k][1] - _LINE
    return [element("text", c.label, x=x, y=y + 4, class_=f"label {c.colour}") for c, y in placed]


def _finite(point: Point, log: bool) -> bool:
    return isfinite(point[0]) and isfinite(point[1]) and (point[1] > 0 or not log)


def _short(label: str) -> str:
    return label if len(label) <= _LABEL else f"{label[: _LABEL - 1]}…"


def _wide(label: str) -> float:
    """About how wide a label is, at most."""
    return sum(
        _FULL if east_asian_width(c) in "WF" else _CAPITAL if c.isupper() or c in "mw%" else _CHARACTER for c in label
    )


def _svg(title: str, description: str, height: float, parts: Sequence[Markup]) -> Markup:
    names = [element("title", title), element("desc", description)]
    box = f"0 0 {_WIDTH:.0f} {height:.0f}"
    return element("svg", *names, *parts, class_="plot", role="img", aria_label=f"{title}. {description}", viewBox=box)

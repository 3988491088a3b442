"""Draws a run's metrics as one picture: losses, accuracies, schedules and ambiguous neurons over the epochs."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surebound.files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

_INK, _FAINT = "#333333", "#d9d9d9"
# Okabe and Ito's colours, which people with any colour vision can tell apart, without the pale yellow.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
_FEW = 40  # points, up to which each is marked


def draw_curves(records: Sequence[Record], path: str | Path) -> None:
    """Write a PNG from the records of metrics.jsonl; what a record lacks, or has as NaN, is a gap."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(make_figure(records))
    with replacing(path) as partial:
        canvas.print_figure(partial, format="png")


def make_figure(records: Sequence[Record]) -> "Figure":
    """The picture, from the records of kind "epoch" and "validation"."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    epochs = [r for r in records if r.get("kind") == "epoch"]
    validations = [r for r in records if r.get("kind") == "validation"]
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12, wspace=0.03, hspace=0.03)
    figure = Figure(figsize=(13, 7.2), dpi=110, layout=layout, facecolor="white")
    axes = list(figure.subplots(2, 2, sharex=True).flat)
    panels = (
        _Panel(axes[0], "Training loss", epochs),
        _Panel(axes[1], "Accuracy on test images, %", validations),
        _Panel(axes[2], "Schedule, as a share of the highest value", epochs),
        _Panel(axes[3], "Ambiguous neurons per image (intervals)", validations),
    )
    _losses(panels[0])
    _accuracies(panels[1])
    _schedules(panels[2])
    _ambiguous(panels[3])
    for panel in panels:
        panel.finish(_stage_ends(epochs))
    _set_epochs(axes, [r["epoch"] for r in (*epochs, *validations)])
    return figure


class _Panel:
    """One of the four plots."""

    def __init__(self, axes: "Axes", title: str, records: Sequence[Record]) -> None:
        self.axes, self.records = axes, records
        self._lines = 0
        axes.set_title(title, loc="left", fontsize=11, color=_INK, pad=8)
        axes.spines[["top", "right"]].set_visible(False)
        for side in ("left", "bottom"):
            axes.spines[side].set_color("#999999")
        axes.tick_params(which="both", color="#999999", labelcolor=_INK, labelsize=9)
        axes.grid(axis="y", color=_FAINT, linewidth=0.6)
        axes.set_axisbelow(True)

    def line(self, label: str, values: Sequence[float], *, colour: Any = None, width: float = 1.6) -> None:
        """A curve over the epochs of the panel's records; it has gaps where a value is not finite."""
        if not any(isfinite(v) for v in values):
            return
        colour = colour or _COLOURS[self._lines % len(_COLOURS)]
        style = "-" if self._lines < len(_COLOURS) else "--"
        marker = "o" if len(values) <= _FEW else ""
        epochs = [r["epoch"] for r in self.records]
        self.axes.plot(
            epochs, values, style, label=label, color=colour, linewidth=width, marker=marker, markersize=2 + width
        )
        self._lines += 1

    def finish(self, stage_ends: Sequence[float]) -> None:
        """Add what every panel has, once its curves are there."""
        for epoch in stage_ends:
            self.axes.axvline(epoch, color="#999999", linewidth=0.8, linestyle=":")
        if self._lines == 0:
            where = self.axes.transAxes
            self.axes.text(0.5, 0.5, "no records yet", color="#888888", ha="center", va="center", transform=where)
            self.axes.set_yticks([])
            self.axes.minorticks_off()
            return
        self.axes.legend(
            loc="upper left",
            bbox_to_anchor=(1.0, 1.02),  # beside the curves: it covers none
            fontsize=9,
            frameon=False,
            labelcolor=_INK,
            handlelength=1.4,
            handletextpad=0.6,
        )


def _losses(panel: _Panel) -> None:
    names = list(dict.fromkeys(name for r in panel.records for name in r.get("parts", {})))
    curves = {"total": [_number(r.get("loss")) for r in panel.records]}
    curves |= {name: [_number(r.get("parts", {}).get(name)) for r in panel.records] for name in names}
    finite = [v for curve in curves.values() for v in curve if isfinite(v)]
    if finite and min(finite) >= 0 and max(finite) > 0:
        panel.axes.set_yscale("log")
        curves = {name: [v if v > 0 else nan for v in curve] for name, curve in curves.items()}
    panel.line("total", curves.pop("total"), colour=_INK, width=2.4)
    for k, (name, curve) in enumerate(curves.items()):
        panel.line(name.replace("_", " "), curve, colour=_COLOURS[k % (len(_COLOURS) - 1)])


def _accuracies(panel: _Panel) -> None:
    for key, label in (("standard", "standard"), ("pgd", "under PGD"), ("ibp", "by intervals")):
        values = [100 * _number(r.get(key)) for r in panel.records]
        last = next((v for v in reversed(values) if isfinite(v)), nan)
        panel.line(f"{label}\n{last:.1f} at last", values)
    panel.axes.set_ylim(-2, 102)


def _schedules(panel: _Panel) -> None:
    # ε and κ often rise together: a thin line on a thick one shows both.
    curves = (
        ("eps", "ε", _COLOURS[5], 4.5),
        ("kappa", "κ", _COLOURS[0], 1.6),
        ("lr", "learning rate", _COLOURS[1], 1.6),
    )
    for key, label, colour, width in curves:
        values = [_number(r.get(key)) for r in panel.records]
        highest = max((v for v in values if isfinite(v)), default=0.0)
        if highest > 0:
            panel.line(f"{label}\nup to {highest:.3g}", [v / highest for v in values], colour=colour, width=width)
    panel.axes.set_ylim(-0.02, 1.05)


def _ambiguous(panel: _Panel) -> None:
    from matplotlib import colormaps
    from matplotlib.ticker import FuncFormatter

    layers = max((len(r.get("ambiguous", ())) for r in panel.records), default=0)
    shades = colormaps["viridis"]
    for k in range(layers):
        counts = [r.get("ambiguous", ()) for r in panel.records]
        values = [_number(c[k]) if k < len(c) else nan for c in counts]
        panel.line(f"layer {k + 1}", values, colour=shades(0.9 * k / max(layers - 1, 1)))
    if layers:
        panel.axes.set_yscale("symlog", linthresh=1.0, linscale=0.4)  # there may be none, and there may be thousands
        panel.axes.set_ylim(bottom=-0.05)
        panel.axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _number(value: object) -> float:
    """The value as a float; NaN for anything that is not a finite number."""
    return float(value) if isinstance(value, int | float) and isfinite(value) else nan


def _stage_ends(epochs: Sequence[Record]) -> list[float]:
    """Where one stage of training ends and the next begins."""
    return [(a["epoch"] + b["epoch"]) / 2 for a, b in pairwise(epochs) if a.get("stage", 0) != b.get("stage", 0)]


def _set_epochs(axes: "Sequence[Axes]", epochs: Sequence[float]) -> None:
    """The horizontal axis that all panels share."""
    from matplotlib.ticker import MaxNLocator

    low, high = (min(epochs), max(epochs)) if epochs else (0, 1)
    room = max(0.02 * (high - low), 0.5 if low == high else 0.0)
    axes[0].set_xlim(low - room, high + room)
    axes[0].xaxis.set_major_locator(MaxNLocator(integer=True, nbins=10, min_n_ticks=1))
    for lowest in (axes[2], axes[3]):
        lowest.set_xlabel("epoch", fontsize=10, color=_INK)

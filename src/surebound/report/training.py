"""The part of the page on one training folder: curves, ramps, and what became of the ambiguous neurons."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from math import isfinite, nan
from typing import Any

from surebound.report.charts import Axes, Bar, Curve, bar_chart, line_chart
from surebound.report.markup import Markup, element, join
from surebound.report.numbers import compact, duration, number, percent
from surebound.report.pieces import Tile, facts, figure, legend, tiles
from surebound.report.results import Training
from surebound.report.style import SERIES

Record = Mapping[str, Any]

_ACCURACIES = (("standard", "standard", "blue"), ("pgd", "under PGD", "purple"), ("ibp", "by intervals", "green"))


def training_summary(training: Training) -> str:
    """A folder in one line."""
    method, data = training.config.get("method"), _get(training.config, "data", "name")
    parts = [str(part) for part in (method, data) if part is not None]
    if training.validations:
        last = training.validations[-1]
        parts += [f"{label} {_share(last.get(key))}" for key, label, _ in _ACCURACIES]
    return ", ".join(parts) or "nothing recorded yet"


def training_tiles(training: Training) -> list[Tile]:
    """The last validation, and the time it took."""
    found = []
    last: Record = training.validations[-1] if training.validations else {}
    images = last.get("images")
    for key, label, colour in _ACCURACIES:
        if isfinite(number(last.get(key))):
            meaning = {
                "standard": f"of {images} test images",
                "pgd": "correct under a PGD attack",
                "ibp": "by interval bounds: guides training, proves nothing",
            }[key]
            found.append(Tile(f"Accuracy, {label}", _share(last.get(key)), meaning, colour))
    ambiguous = _ambiguous(last)
    if ambiguous:
        found.append(Tile("Ambiguous neurons", compact(sum(ambiguous)), "a test image, under intervals", "teal"))
    seconds = number(training.epochs[-1].get("seconds")) if training.epochs else nan
    if isfinite(seconds):
        found.append(Tile("Training time", duration(seconds), f"{training.epochs[-1]['epoch']} epochs", "grey"))
    return found


def training_body(training: Training) -> Markup:
    """Everything on a folder but its title."""
    parts: list[object] = [element("p", problem, class_="warn") for problem in training.problems]
    if not training.epochs:
        parts.append(element("p", "No epoch is recorded yet.", class_="warn"))
    if "model.onnx" not in training.hashes:
        parts.append(element("p", "There is no model.onnx: this run has not ended, or was stopped.", class_="warn"))
    if numbers := training_tiles(training):
        parts.append(tiles(numbers))
    plots = [_losses(training), _accuracies(training), _schedules(training), _neurons(training)]
    parts.append(element("div", *(plot for plot in plots if plot is not None), class_="plots"))
    return join([*parts, facts(_highlights(training.config), pairs=True)])


def _losses(training: Training) -> Markup | None:
    epochs = training.epochs
    names = list(dict.fromkeys(name for r in epochs for name in _parts(r)))
    curves = [_curve("total", epochs, [r.get("loss") for r in epochs], "ink")]
    if len(names) > 1:
        for k, name in enumerate(names):
            values = [_parts(r).get(name) for r in epochs]
            curves.append(_curve(name.replace("_", " "), epochs, values, SERIES[k % len(SERIES)], dashed=k >= 3))
    finite = [y for curve in curves for _, y in curve.points if isfinite(y)]
    if not finite:
        return None
    total = [y for _, y in curves[0].points if isfinite(y)]
    said = f"Training loss over {len(epochs)} epochs"
    said += f": {total[0]:.4g} in the first, {total[-1]:.4g} in the last." if total else "."
    log = min(finite) >= 0 and max(finite) > 0
    axes = Axes(x="epoch", y="mean loss", log=log)
    return figure("Loss and its parts" if len(curves) > 1 else "Loss", line_chart("Training loss", said, axes, curves))


def _accuracies(training: Training) -> Markup | None:
    records = training.validations
    curves = []
    for key, label, colour in _ACCURACIES:
        values = [100 * number(r.get(key)) for r in records]
        curves.append(_curve(f"{label} {_last(values):.1f}", records, values, colour, dashed=key != "standard"))
    if not any(isfinite(y) for curve in curves for _, y in curve.points):
        return None
    said = f"At the last of {len(records)} validations: " + ", ".join(curve.label for curve in curves) + " percent."
    axes = Axes(x="epoch", y="accuracy on test images, %", y_range=(0.0, 102.0))
    return figure("Accuracy at validations", line_chart("Accuracy during training", said, axes, curves))


def _schedules(training: Training) -> Markup | None:
    """ε and κ often rise together, so that one is drawn wide below the other."""
    epochs, curves, said = training.epochs, [], []
    for key, symbol, colour in (("eps", "ε", "orange"), ("kappa", "κ", "blue"), ("lr", "learning rate", "grey")):
        values = [number(r.get(key)) for r in epochs]
        highest = max((v for v in values if isfinite(v)), default=0.0)
        if highest > 0:
            shares = [v / highest for v in values]
            curves.append(_curve(symbol, epochs, shares, colour, wide=key == "eps", dashed=key == "lr"))
            said.append(f"{symbol} up to {highest:.4g}")
    if not curves:
        return None
    caption = f"Shares of the highest values: {', '.join(said)}."
    axes = Axes(x="epoch", y="share of the highest value", y_range=(-0.02, 1.05))
    return figure("Ramps of ε and κ", line_chart("Schedules of training", caption, axes, curves), caption)


def _neurons(training: Training) -> Markup | None:
    """Ambiguous neurons per layer at the first and the last validation."""
    counted = [r for r in training.validations if _ambiguous(r)]
    if not counted:
        return None
    first, last = counted[0], counted[-1]
    bars, said = [], []
    for k, (before, after) in enumerate(zip_longest(_ambiguous(first), _ambiguous(last), fillvalue=0.0), start=1):
        if first is not last:
            bars.append(Bar(f"layer {k}", [(before, "rest")], compact(before)))
        bars.append(
            Bar("" if first is not last else f"layer {k}", [(after, "teal")], compact(after), joined=first is not last)
        )
        said.append(f"layer {k}: {compact(before)} before, {compact(after)} after")
    whens = [("before the first step" if not first.get("step") else f"after epoch {first['epoch']}", "rest")]
    whens = [*whens, (f"after epoch {last['epoch']}", "teal")] if first is not last else [(whens[0][0], "teal")]
    plot = bar_chart("Ambiguous neurons per layer", "; ".join(said) + ".", bars)
    return figure("Ambiguous neurons per layer, mean over test images", plot, legend(whens))


def _highlights(config: Record) -> list[tuple[str, object]]:
    wanted = (
        ("Method", ("method",)),
        ("Data set", ("data", "name")),
        ("Radius ε", ("eps",)),
        ("Network", ("network", "name")),
        ("Epochs", ("schedule", "epochs")),
        ("Warm-up and mixing epochs", ("schedule", "warmup"), ("schedule", "mixing")),
        ("κ from, to", ("schedule", "kappa")),
        ("Optimiser", ("optimiser", "name"), ("optimiser", "lr")),
        ("Batch", ("data", "batch")),
        ("Seed", ("seed",)),
    )
    found: list[tuple[str, object]] = []
    for name, *paths in wanted:
        values = [value for path in paths if (value := _get(config, *path)) is not None]
        if values:
            found.append((name, ", ".join(_text(value) for value in values)))
    return found


def _curve(
    label: str,
    records: Sequence[Record],
    values: Sequence[Any],
    colour: str,
    *,
    wide: bool = False,
    dashed: bool = False,
) -> Curve:
    points = [(float(r["epoch"]), number(v)) for r, v in zip(records, values, strict=True)]
    return Curve(label=label, points=points, colour=colour, wide=wide, dashed=dashed)


def _parts(record: Record) -> Record:
    parts = record.get("parts")
    return parts if isinstance(parts, Mapping) else {}


def _ambiguous(record: Record) -> list[float]:
    counts = record.get("ambiguous")
    values = [number(c) for c in counts] if isinstance(counts, list) else []
    return values if all(isfinite(v) and v >= 0 for v in values) else []


def _get(config: Record, *path: str) -> Any:
    value: Any = config
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _text(value: object) -> str:
    return " → ".join(map(str, value)) if isinstance(value, list) else str(value)


def _last(values: Sequence[float]) -> float:
    return next((v for v in reversed(values) if isfinite(v)), nan)


def _share(value: object) -> str:
    share = number(value)
    return percent(share) if isfinite(share) else "unknown"

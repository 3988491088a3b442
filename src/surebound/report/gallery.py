"""Counterexamples as pictures: the image, the point that fools the network, and the difference between them."""

from collections.abc import Sequence

import numpy as np

from surebound.evaluate.store import Counter, Row, Run
from surebound.report.markup import Markup, element
from surebound.report.png import as_picture, data_uri, magnification, to_bytes


def class_name(run: Run, label: int) -> str:
    """The name of a class, or its number if it has none."""
    return run.classes[label] if 0 <= label < len(run.classes) else f"class {label}"


def gallery(run: Run, rows: Sequence[Row]) -> Markup:
    """The counterexamples of some rows."""
    found = [_entry(run, row, row.counter) for row in rows if row.counter is not None]
    return element("div", *found, class_="gallery")


def _entry(run: Run, row: Row, counter: Counter) -> Markup:
    right, wrong = class_name(run, row.label), class_name(run, counter.adversarial)
    caption = [element("b", f"{right} → {wrong}"), f" · image {row.image} · by {row.stage}"]
    clean, point = (as_picture(values, run.shape) for values in (counter.clean, counter.point))
    if clean is None or point is None:
        n = min(counter.clean.size, counter.point.size)
        change = float(np.abs(counter.point[:n] - counter.clean[:n]).max(initial=0.0))
        return element("figure", element("figcaption", *caption, f"; no input changes by more than {change:.4g}"))
    difference = point - clean
    k = magnification(difference)
    trio = (
        (to_bytes(clean), f"Image {row.image}, a {right}", right),
        (to_bytes(point), f"The counterexample, which the network takes for {wrong}", wrong),
        (to_bytes(0.5 + k * difference), f"The difference, magnified {k} times around grey", f"difference ×{k}"),
    )
    pictures = [
        element("div", element("img", src=data_uri(pixels), alt=alt), element("span", below))
        for pixels, alt, below in trio
    ]
    return element("figure", element("figcaption", *caption), element("div", *pictures, class_="trio"))

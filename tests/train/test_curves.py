"""The curves show the numbers of the records, for every length of a run."""

import subprocess
import sys
from math import isnan, nan
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
from commands import environment
from matplotlib.axes import Axes

from surebound.errors import UsageError
from surebound.train.curves import draw_curves, make_figure


def _records(epochs: int, every: int = 2) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    for e in range(1, epochs + 1):
        parts = {"natural": 1 / e, "reg_term": 0.1 * (e - 1)}
        ramps = {"lr": 0.01, "eps": 0.05 * e, "kappa": 0.1 * e}
        records.append(
            {"kind": "epoch", "epoch": e, "step": 9 * e, "stage": e // 3, "loss": 2 / e, "parts": parts, **ramps}
        )
        if e % every == 0:
            accuracies = {"standard": 0.9, "pgd": 0.1 * e, "ibp": 0.0}
            records.append({"kind": "validation", "epoch": e, **accuracies, "ambiguous": [100.0 / e, 0.0]})
    return records


def _curves(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    lines = [line for line in axes.get_lines() if not str(line.get_label()).startswith("_")]
    return {str(x.get_label()): (np.asarray(x.get_xdata()).tolist(), np.asarray(x.get_ydata()).tolist()) for x in lines}


def test_the_numbers_of_every_panel() -> None:
    losses, accuracies, ramps, ambiguous = make_figure(_records(4)).axes
    assert losses.get_yscale() == "log"
    found = _curves(losses)
    assert found["total"] == ([1, 2, 3, 4], [2.0, 1.0, 2 / 3, 0.5])
    assert found["natural"] == ([1, 2, 3, 4], [1.0, 0.5, 1 / 3, 0.25])
    assert isnan(found["reg term"][1][0]) and found["reg term"][1][1:] == [0.1, 0.2, pytest.approx(0.3)]
    found = _curves(accuracies)
    assert list(found) == ["standard\n90.0 at last", "under PGD\n40.0 at last", "by intervals\n0.0 at last"]
    assert found["under PGD\n40.0 at last"] == ([2, 4], [20.0, 40.0])
    found = _curves(ramps)
    assert list(found) == ["ε\nup to 0.2", "κ\nup to 0.4", "learning rate\nup to 0.01"]
    assert found["κ\nup to 0.4"][1] == pytest.approx([0.25, 0.5, 0.75, 1.0])
    assert _curves(ambiguous) == {"layer 1": ([2, 4], [50.0, 25.0]), "layer 2": ([2, 4], [0.0, 0.0])}
    dotted = [line for line in losses.get_lines() if line.get_linestyle() == ":"]
    assert [np.asarray(line.get_xdata()).tolist() for line in dotted] == [[2.5, 2.5]]  # where the stage changes


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [0, 1, 3, 300])
def test_a_picture_for_every_length(epochs: int, tmp_path: Path) -> None:
    path = tmp_path / "curves.png"
    draw_curves(_records(epochs, every=10 if epochs == 300 else 2), path)
    pixels = matplotlib.image.imread(path)
    assert pixels.shape == (792, 1430, 4) and (pixels.min(), pixels.max()) != (1.0, 1.0)
    assert [p.name for p in tmp_path.iterdir()] == ["curves.png"]


def test_without_validations_two_panels_say_so() -> None:
    texts = [[t.get_text() for t in axes.texts] for axes in make_figure(_records(3, every=9)).axes]
    assert texts == [[], ["no records yet"], [], ["no records yet"]]


def test_gaps_negative_losses_and_missing_keys() -> None:
    records = [
        {"kind": "epoch", "epoch": 1, "loss": nan, "parts": {"a": -1.0}},
        {"kind": "epoch", "epoch": 2, "loss": 3.0},
        {"kind": "validation", "epoch": 2, "standard": 0.5},
        {"kind": "other"},
    ]
    losses, accuracies, ramps, _ = make_figure(records).axes
    assert losses.get_yscale() == "linear"  # a logarithm would hide the negative part
    assert isnan(_curves(losses)["total"][1][0]) and _curves(losses)["a"][1][0] == -1.0
    assert list(_curves(accuracies)) == ["standard\n50.0 at last"] and _curves(ramps) == {}


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write '.*curves\.png' \(no such file"):
        draw_curves([], tmp_path / "absent" / "curves.png")


def test_matplotlib_is_imported_late_and_pyplot_never(tmp_path: Path) -> None:
    program = (
        "import sys; from surebound.train.curves import draw_curves; assert 'matplotlib' not in sys.modules; "
        f"draw_curves([], {str(tmp_path / 'c.png')!r}); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], env=environment(), check=True)

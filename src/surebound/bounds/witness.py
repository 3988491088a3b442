"""Why bounds on layers hold: what `surebound.bounds.root` finds out, told to whoever writes it down."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from surebound.bounds.form import Form

Ends = tuple[Tensor, Tensor]
"""Lower and upper bounds. # (count,) float64 each"""
Lines = Literal["fastlin", "crown", "stored"]
LINES: tuple[Lines, ...] = ("fastlin", "crown", "stored")
GRID = 128  # α that an ascent found is a multiple of 1 / GRID before it proves anything, so that a byte holds it


def on_grid(alpha: Tensor) -> Tensor:
    """The nearest α that a byte holds."""
    return (alpha * GRID).round_().div_(GRID)


@dataclass(frozen=True, eq=False)
class Reason:
    """Why lower bounds hold of rows and their negatives, one after the other: by these slopes, or by trees of them."""

    lines: Tensor  # (2 rows,) int8, an index into LINES
    alpha: Tensor  # (2 rows, neurons of the form)
    trees: list[tuple[Tensor, Any]] | None = None  # in place of both: which rows, and their trees


class Witness:
    """Sees how the neurons of each layer were bounded, and may weaken the bounds. This one leaves them as they are."""

    def fixed(self, layer: int, index: Tensor, found: Ends, known: Ends, lines: Lines) -> Ends:
        """Bounds on neurons, found by passes with fixed slopes, beside those that are known."""
        return found

    def rows(self, layer: int, index: Tensor, form: Form, found: Ends, known: Ends, reason: Reason) -> Ends:
        """The same for rows over a form."""
        return found


NOBODY = Witness()  # where no proof is written


def by_trees(trees: list[tuple[Tensor, Any]]) -> Reason:
    """The reason for rows whose bounds come from splits: which rows, and their trees."""
    return Reason(torch.zeros(0, dtype=torch.int8, device="cpu"), torch.zeros(0, 0, device="cpu"), trees)

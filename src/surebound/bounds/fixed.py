"""Lower bounds on rows over outputs and inputs with lines around the ReLUs that depend on the box alone: one backward
pass on the graph form, many boxes at once, sound as all others (see `surebound.bounds.enclosure`).

Written for NumPy arrays, of one box, and for torch's tensors, so that a first attempt needs no torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from surebound.bounds.beta_crown import Duals, Slopes, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.form import Form, Rows
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.relaxation import relax_form
from surebound.bounds.timed import Check, timed
from surebound.network.activation import Lines
from surebound.network.arrays import joined

if TYPE_CHECKING:
    from torch import Tensor


def fixed_rows(
    enclosure: Enclosure,
    lines: Lines,
    on_output: Tensor,
    on_input: Tensor | None = None,
    constant: Tensor | None = None,
    *,
    check: Check = lambda: None,
) -> Tensor:
    """Rows bounded with the lines of `relax`, over the enclosure's layer bounds as they are.

    With ``interval``, an ambiguous ReLU is anything in [0, û], whatever its input. Stable neurons are passed, so that
    rows are fused with the last layer (Gowal 2018) and with all that is linear before it: never worse than intervals.
    # (boxes, rows, outputs), (boxes, rows, inputs), (boxes, rows) -> (boxes, rows)
    """
    form, rows = graph_rows(enclosure, on_output, on_input, constant)
    return fixed_bound(timed(form, check), rows, lines).reshape(on_output.shape[:2])


def fixed_bound(form: Form, rows: Rows, lines: Lines) -> Tensor:
    """Sound lower bounds of a form's rows with the lines of `relax`. # (rows,) float64"""
    relaxation = relax_form(form, lines)
    slopes, alpha = Slopes.of(relaxation, None), relaxation.lower_slope
    duals = Duals(alpha[None] if alpha.ndim == 1 else alpha, None, None)
    exact = replace(rows, error=form.start_error(rows))
    return evaluate(form, exact, slopes, duals, keep=False).bound


def graph_rows(
    enclosure: Enclosure, on_output: Tensor, on_input: Tensor | None, constant: Tensor | None
) -> tuple[GraphForm, Rows]:
    """The rows of all boxes on the network's own graph. # as in `fixed_rows`"""
    form = replace(GraphForm.at(enclosure, enclosure.network.output), per_box=on_output.shape[1])
    others = (None if part is None else joined(part) for part in (on_input, constant))
    return form, form.rows(joined(on_output), *others)

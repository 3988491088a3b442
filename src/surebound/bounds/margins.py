"""Lower bounds on rows over the outputs, many boxes at once: what settles most images of a data set before any search.

Each bound is one backward pass on the graph form, sound as all others (see `surebound.bounds.enclosure`).
"""

from dataclasses import replace

from torch import Tensor

from surebound.bounds.beta_crown import Duals, Slopes, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.form import Rows
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.relaxation import relax
from surebound.bounds.root import LayerBounding, best_lower


def interval_rows(enclosure: Enclosure, on_output: Tensor) -> Tensor:
    """Rows bounded by intervals: an ambiguous ReLU is anything in [0, û], whatever its input.

    Stable neurons are passed, so that the rows are fused with the last layer (Gowal 2018) and with all that is linear
    before it: never worse than intervals alone.
    # (boxes, rows, outputs) -> (boxes, rows)
    """
    form, rows = _form(enclosure, on_output)
    slopes = Slopes.of(relax(form.lower, form.upper, "interval"), None)
    duals = Duals(slopes.upper, None, None)
    exact = replace(rows, error=form.start_error(rows))
    return evaluate(form, exact, slopes, duals, keep=False).bound.reshape(on_output.shape[:2])


def linear_rows(enclosure: Enclosure, on_output: Tensor, bounding: LayerBounding) -> Tensor:
    """Rows bounded by the best of FastLin and CROWN, then by α-CROWN if `bounding` has an ascent, over the enclosure's
    layer bounds as they are.

    # (boxes, rows, outputs) -> (boxes, rows)
    """
    form, rows = _form(enclosure, on_output)
    return best_lower(form, rows, bounding).reshape(on_output.shape[:2])


def _form(enclosure: Enclosure, on_output: Tensor) -> tuple[GraphForm, Rows]:
    form = replace(GraphForm.at(enclosure, enclosure.network.output), per_box=on_output.shape[1])
    return form, form.rows(on_output.flatten(0, 1))

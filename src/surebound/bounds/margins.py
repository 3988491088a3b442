"""Lower bounds on rows over outputs and inputs, many boxes at once: what settles most images of a data set before any
search.

Each bound is one backward pass on the graph form, sound as all others (see `surebound.bounds.enclosure`). `check` is
called before each operation; it raises when the time is up.
"""

from torch import Tensor

from surebound.bounds.bounding import LayerBounding
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.fixed import graph_rows
from surebound.bounds.root import best_lower
from surebound.bounds.timed import Check, timed


def linear_rows(
    enclosure: Enclosure,
    bounding: LayerBounding,
    on_output: Tensor,
    on_input: Tensor | None = None,
    constant: Tensor | None = None,
    *,
    check: Check = lambda: None,
) -> Tensor:
    """Rows bounded by the best of FastLin and CROWN, then by α-CROWN if `bounding` has an ascent, over the enclosure's
    layer bounds as they are.

    # (boxes, rows, outputs), (boxes, rows, inputs), (boxes, rows) -> (boxes, rows)
    """
    form, rows = graph_rows(enclosure, on_output, on_input, constant)
    return best_lower(timed(form, check), rows, bounding).reshape(on_output.shape[:2])

"""Bounds for every layer, first to last: interval → best of FastLin and CROWN → α-CROWN for what is still ambiguous.
Of activations other than ReLUs, whose lines depend on both ends of an interval, all neurons count as ambiguous.

Layers are bounded in order, since each relaxation needs the bounds of the layers before it. `settle_layers` is the
first pass of a search: fixed slopes, in rigorous float32. `fold_network` then builds what the search works on, with
α-CROWN for the neurons that are left; its slopes are found in float32, and the bound that counts is evaluated once in
float64 with its rounding error taken off. `tighten_layers` does the same on the graph, for many boxes at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Slopes, Specification, Splits, ascend, evaluate
from surebound.bounds.bounding import LayerBounding
from surebound.bounds.centred import Centred
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.fixed import fixed_bound
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form, Rows, consecutive, joined
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.precision import float32_is_kept
from surebound.bounds.relaxation import Relaxation, relax_form
from surebound.bounds.support import groups
from surebound.bounds.tangents import TangentForm
from surebound.bounds.timed import Check, timed
from surebound.bounds.witness import LINES, NOBODY, Reason, Witness, on_grid
from surebound.domain.balls import Balls
from surebound.network.activation import Lines as Kind
from surebound.network.conv import Conv
from surebound.network.cost import CHUNK_ELEMENTS, PASS_PRODUCTS, products
from surebound.network.graph import Network, Neurons
from surebound.network.linear import Linear, size
from surebound.network.patch import local_order
from surebound.network.transposed import ConvTranspose

PASS_ROWS = 256  # rows of a float32 pass over the network: few enough for the cache
PASSES = 3  # for a neuron whose sign is open, at most: FastLin's, and two of CROWN


RowBounds = Callable[[FoldedForm, Rows], tuple[Tensor, Tensor, Reason]]
"""Sound lower and upper bounds of rows over a form's box, and why they hold. # (rows,) float64 each"""


def best_lower(form: Form, rows: Rows, bounding: LayerBounding) -> Tensor:
    """Sound lower bounds of rows. # (rows,) float64"""
    if bounding.ascent is not None and form.neurons and not form.enclosure.network.piecewise_linear:
        tangents = TangentForm(form, rows)
        return tangents.bounds(tangents.start(), bounding.ascent).bound
    if bounding.fixed is not None:
        return fixed_bound(form, rows, bounding.fixed)
    alpha = _find_slopes(form, rows, bounding, signs=False)[0].alpha
    return _sound_lower(form, rows, relax_form(form), alpha)


def best_bounds(form: Form, rows: Rows, bounding: LayerBounding) -> tuple[Tensor, Tensor, Reason]:
    """Sound lower and upper bounds of rows over one box, to find their signs: once FastLin or CROWN has settled a row's
    sign, it is not improved further, and its other side stays at infinity. # (rows,) each"""
    both = rows.both_signs()
    reason, useful = _find_slopes(form, both, bounding, signs=True)
    bound = both.constant.new_full((len(both),), -torch.inf)
    bound[useful] = _sound_lower(form, both[useful], relax_form(form), reason.alpha[useful])
    return bound[: len(rows)], -bound[len(rows) :], reason


def _timed_bounds(form: FoldedForm, rows: Rows, bounding: LayerBounding, check: Check) -> tuple[Tensor, Tensor, Reason]:
    return best_bounds(timed(form, check), rows, bounding)


def _sound_lower(form: Form, rows: Rows, relaxation: Relaxation, alpha: Tensor) -> Tensor:
    """The bound with slopes α for each row, in float64 with its rounding error taken off."""
    exact = replace(rows, error=form.start_error(rows))
    slopes = Slopes.of(relaxation, None)
    if len(slopes.upper) not in (1, len(alpha)):  # slopes for each row of several boxes: one relaxation each, too
        slopes = Slopes.of(_per_row(relaxation, len(rows)), None)
    duals = Duals(slopes.fixed(alpha.double()), None, None)
    return evaluate(form, exact, slopes, duals, keep=False).bound


def _find_slopes(form: Form, rows: Rows, bounding: LayerBounding, *, signs: bool) -> tuple[Reason, Tensor]:
    """α for each row, found in float32, and which rows are worth a sound evaluation. # (rows,) bool

    With `signs`, row i + n/2 is the negative of row i (see `Rows.both_signs`), and a pair is settled once either of the
    two has a positive bound: then it is not improved, and the other row is not worth an evaluation.
    """
    n = len(rows)
    fast, thin = form.to(torch.float32), rows.to(torch.float32)
    best, alpha = thin.constant.new_full((n,), -torch.inf), thin.constant.new_zeros(n, form.neurons)
    lines = torch.zeros_like(best, dtype=torch.int8)
    for name in bounding.slopes:
        relaxation = _thin(form, fast, name)
        slopes = Slopes.of(relaxation, None)
        slope = relaxation.lower_slope.reshape(slopes.upper.shape)
        bound = evaluate(fast, thin, slopes, Duals(slope, None, None), keep=False).bound
        better = bound >= best
        best = torch.where(better, bound, best)
        alpha = torch.where(better[:, None], slope.repeat_interleave(n // len(slope), 0), alpha)
        lines[better] = LINES.index(name)
    open_ = torch.ones_like(best, dtype=torch.bool)
    if signs:
        open_ = (best.reshape(2, -1) <= 0).all(0).repeat(2)
    useful = open_ | (best > 0)
    if bounding.ascent is None or not form.neurons:
        return Reason(lines, alpha), useful
    todo = torch.nonzero(open_).flatten()
    if len(todo):
        specification = Specification(thin, tuple(range(n + 1)), thin.error)
        relaxation = _thin(form, fast, "crown")
        if relaxation.upper_slope.ndim == 2:
            relaxation = _per_row(relaxation, n)
        start = Duals(alpha[todo], None, None)
        found = ascend(fast, specification, relaxation, Splits(todo, None), start, bounding.ascent).duals.alpha
        alpha[todo], lines[todo] = on_grid(found) if signs else found, LINES.index("stored")  # layers are written down
    return Reason(lines, alpha), useful


def _thin(form: Form, fast: Form, slopes: Kind) -> Relaxation:
    """The relaxation in float32: of the bounds in float32 where that is as good."""
    ordinary = form.enclosure.network.piecewise_linear
    return relax_form(fast, slopes) if ordinary else relax_form(form, slopes).to(torch.float32)


def _per_row(relaxation: Relaxation, rows: int) -> Relaxation:
    """A relaxation (boxes, neurons), or (neurons,) for one box, repeated for each row of a box."""
    spread = relaxation.map(lambda t: t[None]) if relaxation.upper_slope.ndim == 1 else relaxation
    return spread.map(lambda t: t.repeat_interleave(rows // len(t), 0))


def _chunks(index: Tensor, width: int, products: int, check: Check, most: int) -> Iterator[Tensor]:
    """Parts of an index for one float64 pass each, given the numbers and the multiply-adds that an entry takes.

    The time is checked before each of them, so that wide networks have few rows in one: few enough not to run on long
    after the time is up.
    """
    if len(index):
        in_memory, in_time = CHUNK_ELEMENTS // max(width, 1) // 2, most // 4 // max(products, 1)
        for part in index.split(max(1, min(max(16, in_memory), in_time))):
            check()
            yield part


def _widest(form: Form, enclosure: Enclosure) -> int:
    return max(form.neurons, enclosure.network.widest)


def one_hot(index: Tensor, width: int) -> Tensor:
    """# (*shape) -> (*shape, width) float64"""
    return torch.nn.functional.one_hot(index, width).double()


def interval_is_exact(network: Network, node: int, balls: Balls | None = None) -> bool:
    """Whether no linear bound can improve on a node's interval: the input's elements are mixed once at most, or over a
    ball not at all."""
    mixed, most = 0, 1 if balls is None else 0
    while node:
        op, inputs = network.nodes[node].op, network.nodes[node].inputs
        mixed += isinstance(op, Conv | ConvTranspose | Linear)
        if isinstance(op, Neurons) or len(inputs) > 1 or mixed > most:
            return False
        (node,) = inputs
    return True


def settle_layers(
    enclosure: Enclosure,
    check: Check,
    witness: Witness = NOBODY,
    *,
    known: Enclosure | None = None,
    only: Tensor | None = None,
    budget: float = torch.inf,
    most: int = PASS_PRODUCTS,
) -> bool:
    """Bound every layer over one box, tightening the enclosure in place: FastLin for neurons whose sign intervals leave
    open, CROWN where that does not settle it, in rigorous float32 passes (`surebound.bounds.centred`).

    `known` is an enclosure of the same box, whose bounds are built upon. `only` says which neurons are to be bounded,
    of all layers one after the other; the others keep their intervals. # (neurons,) bool
    Once the multiply-adds of all layers so far would exceed `budget`, no more layers are bounded. Return whether all
    were. `most` is how many multiply-adds a pass may have, here and below.
    """
    if not (float32_is_kept(enclosure.network.device) and enclosure.network.piecewise_linear):
        if witness is NOBODY and only is None:
            tighten_layers(enclosure, LayerBounding(ascent=None), check, most=most)
        enclosure.extend(len(enclosure.network.nodes) - 1)
        return True
    network = enclosure.network
    centred = Centred(enclosure, check)
    in_memory = max(16, min(PASS_ROWS, CHUNK_ELEMENTS // network.widest))
    for k, where in enumerate(consecutive(network.widths)):
        check()
        node, shape = network.before(k), network.nodes[network.before(k)].shape
        together = max(1, min(in_memory, most // max(products(network, node), 1)))
        enclosure.extend(node)
        if known is not None:
            enclosure.tighten(node, known.lower[node], known.upper[node])
        centred.extend(node)
        low, high = (t[0].clone() for t in enclosure.layer(k))
        asked = torch.ones_like(low, dtype=torch.bool) if only is None else only[where]
        if interval_is_exact(network, node, enclosure.balls):
            continue
        budget -= PASSES * products(network, node) * int(((low < 0) & (high > 0) & asked).sum())
        if budget < 0:
            continue
        for lines in ("fastlin", "crown") if k else ("fastlin",):
            bounds = centred.parallel if lines == "fastlin" else centred.crossing
            open_ = torch.nonzero((low < 0) & (high > 0) & asked).flatten()
            for index in open_.split(together):
                lower, upper = witness.fixed(k, index, bounds(node, index), (low[index], high[index]), lines)
                low[index] = torch.maximum(low[index], lower)
                high[index] = torch.minimum(high[index], upper)
        enclosure.tighten(node, low.reshape(1, *shape), high.reshape(1, *shape))
    enclosure.extend(len(network.nodes) - 1)
    return budget >= 0


def fold_network(
    enclosure: Enclosure,
    bounding: LayerBounding,
    check: Check,
    *,
    known: Enclosure | None = None,
    limit: float = torch.inf,
    bound: RowBounds | None = None,
    witness: Witness = NOBODY,
    most: int = PASS_PRODUCTS,
) -> FoldedForm | None:
    """The folded form of a network over one box, its layers bounded on the way (and the enclosure tightened).

    `known` is an enclosure of the same box from an earlier, coarser pass, whose bounds are built upon. None if the
    form's matrices would hold more than `limit` numbers. `bound` takes the place of `best_bounds`. A `witness` is told
    why each bound holds.
    """
    network = enclosure.network
    if bound is None:
        bound = partial(_timed_bounds, bounding=bounding, check=check)
    form = FoldedForm.empty(enclosure)
    for k in range(len(network.layers)):
        node, shape = network.before(k), network.nodes[network.before(k)].shape
        enclosure.extend(node)
        if known is not None:
            enclosure.tighten(node, known.lower[node], known.upper[node])
        low, high = (t[0].clone() for t in enclosure.layer(k))
        candidates = torch.nonzero((low < 0) & (high > 0)).flatten()
        exact = interval_is_exact(network, node, enclosure.balls)
        kept: list[Rows] = []
        work = products(network, node) // 2  # at most about that: single neurons go back in the windows they read
        for index in _chunks(candidates, _widest(form, enclosure), work, check, most):
            rows = form.fold_neurons(node, index)
            for part, near, own in () if exact else groups(form, rows, local_order(index, shape)):
                which = index[part]
                *found, reason = bound(near, own)
                lower, upper = witness.rows(k, which, near, (found[0], found[1]), (low[which], high[which]), reason)
                low[which] = torch.maximum(low[which], lower)
                high[which] = torch.minimum(high[which], upper)
            kept.append(rows[(low[index] < 0) & (high[index] > 0)])
            if form.numbers + sum(map(len, kept)) * form.columns > limit:
                return None
        enclosure.tighten(node, low.reshape(1, *shape), high.reshape(1, *shape))
        ambiguous = torch.nonzero((low < 0) & (high > 0)).flatten()
        rows = joined(kept, form.columns, low)
        form = form.append(rows, ambiguous, low[ambiguous], high[ambiguous])
    enclosure.extend(len(network.nodes) - 1)
    return form


def tighten_layers(
    enclosure: Enclosure,
    bounding: LayerBounding,
    check: Check,
    *,
    most: int = PASS_PRODUCTS,
) -> None:
    """Bound every layer on the graph itself, for any number of boxes at once, tightening the enclosure in place."""
    network = enclosure.network
    for k in range(len(network.layers)):
        node = network.before(k)
        low, high = enclosure.layer(k)
        ambiguous = (low < 0) & (high > 0) if network.functions[k] is None else high > low
        # the ambiguous neurons of each box, and others where it has fewer than the box that has most
        index = ambiguous.byte().argsort(dim=1, descending=True, stable=True)[:, : int(ambiguous.sum(1).max())]
        open_ = ambiguous.gather(1, index)  # in this box: the result must not depend on the other boxes
        tightened = bound_neurons(enclosure, node, index, bounding, check, most=most)
        low, high = (
            end.scatter(1, index, torch.where(open_, tight, end.gather(1, index)))
            for end, tight in zip((low, high), tightened, strict=True)
        )
        enclosure.tighten(
            node, low.reshape(-1, *network.nodes[node].shape), high.reshape(-1, *network.nodes[node].shape)
        )
    enclosure.extend(len(network.nodes) - 1)


def bound_neurons(
    enclosure: Enclosure,
    node: int,
    index: Tensor,
    bounding: LayerBounding,
    check: Check,
    *,
    most: int = PASS_PRODUCTS,
) -> tuple[Tensor, Tensor]:
    """Sound bounds on some elements of a node, the same in every box or each box's own.

    # index: (count,) or (boxes, count) -> (boxes, count) each
    """
    boxes = enclosure.boxes
    form = GraphForm.at(enclosure, node)
    lows, highs = [], []
    work = 2 * boxes * products(enclosure.network, node)
    for part in _chunks(index.expand(boxes, -1).T, boxes * _widest(form, enclosure), work, check, most):
        count = len(part)
        identity = one_hot(part.T, size(enclosure.network.nodes[node].shape))
        rows = form.rows(torch.cat([identity, -identity], dim=1).flatten(0, 1))
        wide = timed(replace(form, per_box=2 * count), check)
        bound = best_lower(wide, rows, bounding).reshape(boxes, 2, count)
        lows.append(bound[:, 0])
        highs.append(-bound[:, 1])
    empty = enclosure.lower[0].new_zeros(boxes, 0)
    return torch.cat([empty, *lows], dim=1), torch.cat([empty, *highs], dim=1)

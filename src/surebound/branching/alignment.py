"""Alignment: split the neuron that says most about the other open neurons.

Where many duals are optimal and no split moves the bound, scores made from duals say nothing. What remains is how a
split narrows the other neurons. With every ReLU replaced by a line, x̂_k ≈ J_k·x₀ + c_k; with r the radius of the box
that the splits and the rows leave of the input,

    s_i = Σ over open k of cos²(J_i ⊙ r, J_k ⊙ r),

the share of each open pre-activation's variation that is explained by that of neuron i, added up. Neurons that have
one sign over the box that is left are not open, and inputs that are fixed by it do not count: both change from node to
node. A heuristic, whose boxes prove nothing.
"""

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Slopes, Specification, evaluate
from surebound.bounds.form import Form, affine
from surebound.bounds.relaxation import Relaxation

_NOISE = 1e-9  # of a neuron's range: what reaches less far beyond 0 has one sign


def alignment(form: Form, specification: Specification, relaxation: Relaxation, region: int, signs: Tensor) -> Tensor:
    """s of the open neurons of a node, 0 of the others; everything in float64. # signs: (neurons,) -> (neurons,)"""
    slopes = Slopes.of(relaxation, signs[None])
    xhat, _ = affine(form, slopes.upper[0])
    constant, gradient = xhat[0], (xhat[1:] - xhat[0]).T
    split = torch.nonzero(signs).flatten()
    sign = signs[split].double()
    on_input, floor = _rows(form, specification, slopes, relaxation, region)
    # g·x + h ≤ 0 for every row and for every split −s x̂
    g = torch.cat([on_input, -sign[:, None] * gradient[split]])
    lowest = torch.where(g > 0, form.box_lower, form.box_upper)
    at_lowest = torch.cat([floor, -sign * constant[split] + (g[len(floor) :] * lowest[len(floor) :]).sum(1)])
    lower, upper = _clip(form.box_lower, form.box_upper, g, at_lowest)
    centre, radius = (lower + upper) / 2, (upper - lower) / 2
    middle, spread = gradient @ centre + constant, gradient.abs() @ radius
    noise = _NOISE * (gradient.abs() @ (form.box_upper - form.box_lower))
    open_ = (middle.abs() + noise < spread) & relaxation.ambiguous & (signs == 0)
    scaled = gradient * radius
    direction = scaled / scaled.norm(dim=1, keepdim=True).clamp_min(1e-300)
    score = (direction @ direction[open_].T).square().sum(1)
    return torch.where(open_, score, 0.0)


def _rows(
    form: Form, specification: Specification, slopes: Slopes, relaxation: Relaxation, region: int
) -> tuple[Tensor, Tensor]:
    """Planes below a region's rows, and their minima over the box. # (rows, inputs), (rows,)"""
    a, b = specification.starts[region], specification.starts[region + 1]
    duals = Duals(slopes.fixed(relaxation.lower_slope[None]), None, None)
    result = evaluate(form, specification.rows[a:b], slopes, duals, keep=False)
    return -result.pulled.at_input, result.bound


def _clip(lower: Tensor, upper: Tensor, g: Tensor, at_lowest: Tensor) -> tuple[Tensor, Tensor]:
    """The box around what constraints g·x + h ≤ 0 each leave of a box, given their minima over it."""
    room = (-at_lowest).clamp_min(0.0)[:, None] / g.abs().clamp_min(1e-300)
    high = torch.where(g > 0, lower + room, torch.inf).amin(0)
    low = torch.where(g < 0, upper - room, -torch.inf).amax(0)
    return torch.maximum(lower, torch.minimum(low, upper)), torch.minimum(upper, torch.maximum(high, lower))

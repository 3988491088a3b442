"""A subproblem whose ReLUs are all split is linear: decide it by an LP, and prove the answer from the LP's multipliers."""

from dataclasses import dataclass

import torch
from torch import Tensor

from surebound.bounds.planet_lp import leaf_multipliers
from surebound.verify.subject import Subject


@dataclass(frozen=True, eq=False)
class LeafDecision:
    """`proved`: no counterexample here. Otherwise `point` is a candidate, if the LP found one."""

    proved: bool
    point: Tensor | None = None  # (network inputs,)


def decide_leaf(subject: Subject, region: int, signs: Tensor | None, seconds: float) -> LeafDecision:
    """Minimise t subject to all rows of the region ≤ t and all split constraints −s x̂ ≤ t over the box.

    If t* > 0 no point of the leaf violates the property; the duals of the LP, put into the β-CROWN bound, prove it.
    """
    form, specification = subject.form, subject.specification
    slope = (
        subject.relaxation.lower_slope
        if signs is None
        else torch.where(signs != 0, signs.double().clamp_min(0.0), subject.relaxation.lower_slope)
    )
    sign = torch.zeros_like(slope) if signs is None else signs.double()
    x = torch.cat([torch.zeros(1, form.inputs, dtype=torch.float64), torch.eye(form.inputs, dtype=torch.float64)])
    xhat, columns = form.forward(x, lambda k, v: v * slope[form.layers[k]])
    a, b = specification.starts[region], specification.starts[region + 1]
    rows = specification.rows
    values = columns @ rows.coefficients[a:b].T + rows.constant[a:b]
    split = torch.nonzero(sign).flatten()
    solution = leaf_multipliers(
        preactivations=(xhat[1:, split] - xhat[0, split]).T.numpy(),
        offsets=xhat[0, split].numpy(),
        signs=sign[split].numpy(),
        rows=(values[1:] - values[0]).T.numpy(),
        constants=values[0].numpy(),
        lower=form.box_lower.numpy(),
        upper=form.box_upper.numpy(),
        time_limit=max(seconds, 0.1),
    )
    if solution is None:
        return LeafDecision(False)
    if solution.value > 0:
        beta = torch.zeros_like(slope)
        beta[split] = torch.from_numpy(solution.beta)
        every = torch.zeros_like(slope, dtype=torch.int8) if signs is None else signs
        if subject.sound_leaf_bound(region, every, torch.from_numpy(solution.pi), beta) > 0:
            return LeafDecision(True)
    return LeafDecision(False, form.full_input(torch.from_numpy(solution.x)[None])[0])

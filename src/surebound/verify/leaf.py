"""A subproblem whose ReLUs are all split is linear: an LP decides it, and its multipliers prove the answer."""

import torch
from torch import Tensor

from surebound.bounds.form import affine
from surebound.bounds.planet_lp import leaf_multipliers
from surebound.verify.subject import Subject
from surebound.verify.tree import Leaf


def decide_leaf(subject: Subject, region: int, sign: Tensor, seconds: float) -> Leaf:
    """Minimise the largest row of the region over the leaf; if the leaf is empty, find the multipliers that show it.

    A positive optimum means that no point of the leaf violates the property. The LP's own word is not taken for it: its
    multipliers, put into the β-CROWN bound, have to prove it.
    """
    form, specification = subject.form, subject.specification
    slope = torch.where(sign != 0, sign.double().clamp_min(0.0), subject.relaxation.lower_slope)
    xhat, columns = affine(form, slope)
    a, b = specification.starts[region], specification.starts[region + 1]
    values = columns @ specification.rows.coefficients[a:b].T + specification.rows.constant[a:b]
    split = torch.nonzero(sign).flatten()
    point = None
    for elastic in (False, True):
        solution = leaf_multipliers(
            preactivations=(xhat[1:, split] - xhat[0, split]).T.numpy(),
            offsets=xhat[0, split].numpy(),
            signs=sign[split].double().numpy(),
            rows=(values[1:] - values[0]).T.numpy(),
            constants=values[0].numpy(),
            lower=form.box_lower.numpy(),
            upper=form.box_upper.numpy(),
            elastic=elastic,
            time_limit=max(seconds, 0.1),
        )
        if solution is None:
            continue
        if solution.value <= 0:
            point = form.full_input(torch.from_numpy(solution.x)[None])[0] if point is None else point
            break
        beta = torch.zeros_like(slope)
        beta[split] = torch.from_numpy(solution.beta)
        duals = subject.multipliers(torch.from_numpy(solution.pi), subject.relaxation.lower_slope, beta)
        if subject.sound_leaf_bound(region, sign, duals) > 0:
            return Leaf(True, duals=duals)
    return Leaf(False, point)

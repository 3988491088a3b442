"""A subproblem whose ReLUs are all split is linear: an LP decides it, and its multipliers prove the answer."""

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.form import Form, affine
from surebound.bounds.planet_lp import leaf_multipliers
from surebound.network.arrays import tensor, to_numpy
from surebound.problem import Vector
from surebound.verify.subject import Subject
from surebound.verify.tree import Leaf

CUTS = 50  # of the box around a ball, before a leaf is left undecided


def decide_leaf(subject: Subject, region: int, sign: Tensor, seconds: float) -> Leaf:
    """Minimise the largest row of the region over the leaf; if the leaf is empty, find the multipliers that show it.

    A positive optimum means that no point of the leaf violates the property. The LP's own word is not taken for it: its
    multipliers, put into the β-CROWN bound, have to prove it.

    Over a ball, the LP is over the box around it, and over half spaces that hold the ball: wherever an optimum lies
    outside of it, the one that touches it there is added (Kelley 1960). What the half spaces contribute to a proof, the
    bound's own minimum over the ball does at least as well.
    """
    form, specification, array = subject.form, subject.specification, subject.network.array
    slope = torch.where(sign != 0, sign.double().clamp_min(0.0), subject.relaxation.lower_slope)
    xhat, columns = affine(form, slope)
    a, b = specification.starts[region], specification.starts[region + 1]
    values = columns @ specification.rows.coefficients[a:b].T + specification.rows.constant[a:b]
    split = torch.nonzero(sign).flatten()
    cuts = _Cuts(form)
    point = None
    for elastic in (False, True):
        while True:
            solution = leaf_multipliers(
                preactivations=np.concatenate([to_numpy((xhat[1:, split] - xhat[0, split]).T), cuts.normals]),
                offsets=np.concatenate([to_numpy(xhat[0, split]), cuts.offsets]),
                signs=np.concatenate([to_numpy(sign[split].double()), -np.ones(len(cuts))]),
                rows=to_numpy((values[1:] - values[0]).T),
                constants=to_numpy(values[0]),
                lower=to_numpy(form.box_lower),
                upper=to_numpy(form.box_upper),
                elastic=elastic,
                time_limit=max(seconds, 0.1),
            )
            if solution is None or solution.value > 0 or not cuts.add(solution.x):
                break
        if solution is None:
            continue
        if solution.value <= 0:
            point = form.full_input(array(solution.x)[None])[0] if point is None else point
            break
        beta = torch.zeros_like(slope)
        beta[split] = array(solution.beta[: len(split)])
        duals = subject.multipliers(array(solution.pi), subject.relaxation.lower_slope, beta)
        if subject.sound_leaf_bound(region, sign, duals) > 0:
            return Leaf(True, duals=duals)
    return Leaf(False, point)


class _Cuts:
    """Half spaces normal·x + offset ≤ 0 that hold the ball of a form, if it has one."""

    def __init__(self, form: Form) -> None:
        self._balls = form.minimum.balls
        self._device = form.enclosure.network.device
        self.normals, self.offsets = np.zeros((0, form.inputs)), np.zeros(0)

    def __len__(self) -> int:
        return len(self.offsets)

    def add(self, x: Vector) -> bool:
        """One that x is outside of, if x is outside of the ball."""
        if self._balls is None or len(self) >= CUTS:
            return False
        gap = tensor(x, self._device) - self._balls.centre
        radius, way = float(self._balls.radius), gap.sign() if self._balls.norm == "1" else gap
        normal = way / self._balls.dual_norm(way).clamp_min(1e-300)
        if float(normal @ gap) <= radius * (1 + 1e-9):
            return False
        self.normals = np.concatenate([self.normals, to_numpy(normal[None])])
        self.offsets = np.append(self.offsets, -radius - float(normal @ self._balls.centre))
        return True

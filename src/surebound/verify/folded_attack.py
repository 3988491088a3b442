"""An attack on the folded network, from where the search's relaxations have their minima.

Over the box the folded network *is* the network, at a small part of the cost of a pass, and the minimiser of a
relaxation is a better place to begin than a random point. What it finds are candidates: they are replayed like any.
"""

import torch
from torch import Tensor

from surebound.bounds.beta_crown import Specification
from surebound.bounds.kernel import Kernel, KernelRows

STEPS = 20
_FIRST = 0.5  # the first move, in half widths of the box or radii of the ball
_DECAY = 0.85  # what is left of a move in the next
_MOMENTUM = 0.7
_TINY = torch.finfo(torch.float32).tiny


def descend_folded(kernel: Kernel, specification: Specification, region: Tensor, x: Tensor) -> Tensor:
    """The best points found from x for each one's region: all the region's rows as low as possible.

    # region: (points,), x: (points, inputs) -> (points, inputs)
    """
    rows = KernelRows.of(kernel, specification)
    member = rows.members(region)
    z, balls = (x - kernel.centre) / kernel.radius, kernel.balls
    z = (z.clamp(-1.0, 1.0) if balls is None else balls.project(z)).T.contiguous()
    best, lowest = z.clone(), z.new_full((len(region),), torch.inf)
    momentum = torch.zeros_like(z)
    for step in range(STEPS + 1):
        columns, active = _forward(kernel, z)
        value, row = torch.where(member, rows.values(columns), -torch.inf).max(0)
        better = value < lowest
        lowest[better], best[:, better] = value[better], z[:, better]
        if step == STEPS or bool((lowest <= 0).all()):
            break
        gradient = _backward(kernel, -rows.start[:, row], active)
        momentum.mul_(_MOMENTUM).add_(gradient / gradient.abs().sum(0).clamp_min(_TINY))
        if balls is None:
            z.sub_(momentum.sign(), alpha=_FIRST * _DECAY**step).clamp_(-1.0, 1.0)
        else:
            z = balls.project(z.T + _FIRST * _DECAY**step * balls.along(-momentum.T)).T.contiguous()
    return kernel.centre + kernel.radius * best.T


def _forward(kernel: Kernel, z: Tensor) -> tuple[Tensor, Tensor]:
    """The columns at z, and which neurons are active. # (columns, points), (neurons, points)"""
    columns = z.new_empty(kernel.inputs + kernel.neurons, z.shape[1])
    columns[: kernel.inputs] = z
    for block in kernel.blocks:
        xhat = torch.mm(block.weight, columns[: block.before]).add_(block.bias)
        columns[block.before : block.before + len(xhat)] = xhat.clamp_min_(0.0)
    return columns, (columns[kernel.inputs :] > 0).float()


def _backward(kernel: Kernel, coefficients: Tensor, active: Tensor) -> Tensor:
    """The gradient in z of coefficients · columns. # (columns, points), (neurons, points) -> (inputs, points)"""
    for block in reversed(kernel.blocks):
        mu = coefficients[block.before : block.before + len(block.bias)] * active[block.neurons]
        coefficients[: block.before].addmm_(block.transposed, mu)
    return coefficients[: kernel.inputs]

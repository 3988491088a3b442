"""The least value of a network over one box: by the Planet LP, or exactly by a MILP, with some neurons' signs given."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.enclosure import Enclosure, enclose
from surebound.bounds.planet_lp import AffineRows, System, _minimise, _system, affine_rows
from surebound.bounds.result import Minima
from surebound.bounds.rounding import gamma
from surebound.network.graph import Network
from surebound.problem import Box, Vector

Layers = Sequence[tuple[Tensor, Tensor]]  # (l̂_k, û_k) of the first layers, (neurons,) each
Splits = Mapping[int, NDArray[np.int8]]  # layer -> (neurons,): +1 active, −1 inactive, 0 free


@dataclass(frozen=True, eq=False)
class Minimum:
    """The least value a MILP solver found and where, and its lower bound, all up to its tolerances.

    A bound below the value says that the time ran out. +inf and NaN as in `Minima`.
    """

    value: float
    bound: float
    x: Vector  # (inputs,)


def affine_blocks(network: Network, errors: dict[int, Tensor] | None = None) -> tuple[AffineRows, ...]:
    """Every ReLU layer's pre-activation and, last, the output, as `affine_rows`. `network` in float64."""
    nodes = (*(network.before(k) for k in range(len(network.layers))), network.output)
    return tuple(affine_rows(network, node, None, errors) for node in nodes)


def _one_box(network: Network, lower: Tensor, upper: Tensor, layers: Layers) -> tuple[Network, Enclosure]:
    network, shape = network.to(torch.float64), (1, *network.input_shape)
    known = [(low.double().reshape(1, -1), high.double().reshape(1, -1)) for low, high in layers]
    return network, enclose(network, lower.reshape(shape), upper.reshape(shape), known)


def _split_system(enclosure: Enclosure, splits: Splits | None, *, exact: bool = False) -> System:
    """The relaxation, or with `exact` the MILP, where each split neuron's bounds end at 0."""
    network = enclosure.network
    blocks = affine_blocks(network, enclosure.errors)[:-1]
    for k, signs in (splits or {}).items():
        node = network.before(k)
        sign = torch.from_numpy(signs).reshape(enclosure.lower[node].shape)
        low, high = torch.full_like(enclosure.lower[node], -np.inf), torch.full_like(enclosure.upper[node], np.inf)
        enclosure.tighten(node, low.masked_fill(sign > 0, 0.0), high.masked_fill(sign < 0, 0.0))
    return _system(enclosure, blocks, exact=exact)


def planet_bounds(
    network: Network,
    lower: Tensor,
    upper: Tensor,
    layers: Layers,
    rows: Tensor,
    constant: Tensor | None = None,
    splits: Splits | None = None,
) -> Minima:
    """min rows · f(x) + constant over the Planet relaxation of one box, eq. 11.

    `layers` gives sound bounds on the pre-activations of the first layers; those of the others are intervals.
    Splits add x̂ ≥ 0 (and x = x̂) or x̂ ≤ 0 (and x = 0). # lower, upper: (*input_shape); rows: (rows, outputs)
    """
    network, enclosure = _one_box(network, lower, upper, layers)
    target = affine_rows(network, network.output, rows.double(), enclosure.errors)
    if constant is not None:
        extra = constant.double().reshape(-1).cpu().numpy()
        error = target.error + gamma(2) * (np.abs(target.constant) + np.abs(extra))
        target = replace(target, constant=target.constant + extra, error=error)
    return _minimise(_split_system(enclosure, splits), target)


def milp_minimum(
    network: Network,
    box: Box,
    c: Vector,
    d: float,
    layers: Layers = (),
    splits: Splits | None = None,
    time_limit: float | None = None,
) -> Minimum:
    """min c · f(x) + d over a box, exactly: `planet_bounds` with the big-M rows of Tjeng 2019.

    Accurate to the solver's tolerances only: a reference, not a proof.
    """
    network, enclosure = _one_box(network, network.array(box.lower), network.array(box.upper), layers)
    rows = network.array(np.asarray(c, dtype=np.float64)).reshape(1, -1)
    target = affine_rows(network, network.output, rows)
    found = _minimise(_split_system(enclosure, splits, exact=True), target, time_limit)
    return Minimum(float(found.value[0]) + d, float(found.bound[0]) + d, found.x[0])

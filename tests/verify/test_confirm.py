"""Counterexamples where a box holds no float32: real arithmetic has to agree, all of its roundings counted."""

from fractions import Fraction

import numpy as np
import torch

from surebound.network.graph import Input, Network, Node
from surebound.network.linear import Linear
from surebound.problem import Box, Region
from surebound.verify.confirm import Confirm

LOW, HIGH = 0.1, 0.1 + 1e-9  # no float32 lies in between
CASES = ((1.0, 2e-9, True), (1.0, 0.75e-9, False), (-1.0, -1e-9, True), (-1.0, 0.25e-9, False))
"""± (x − 0.1 − threshold) ≤ 0: in the whole interval, or at its middle only."""


def confirm(weights: list[list[float]], y: list[float]) -> Confirm:
    """y = W x in real arithmetic, and the given numbers in the replay."""
    op = Linear(torch.tensor(weights, dtype=torch.float64))
    network = Network((Node(Input((op.weight.shape[1],)), (), "x"), Node(op, (0,), "y")), 1)
    return Confirm(network, lambda x: np.array([y], dtype=np.float64))


def region(row: list[float], constant: float, on: list[float] | None) -> Region:
    """Over [0.1, 0.1 + 1e-9]."""
    return Region(
        box=Box(np.array([LOW]), np.array([HIGH])),
        on_output=np.array([row]),
        on_input=None if on is None else np.array([on]),
        constant=np.array([constant]),
        strict=np.zeros(1, dtype=bool),
    )


def test_a_thin_interval_is_judged_by_its_worst_corner() -> None:
    """y = x is 0.1 or 0.1 + 1e-9: a row has to hold for both, with either sign."""
    for sign, threshold, holds in CASES:
        at = confirm([[1.0]], [0.1 - sign])  # the replay agrees in any case
        found = at(np.array([LOW]), [region([sign], -sign * (0.1 + threshold), None)])
        assert (found is not None) == holds


def test_the_width_of_a_thin_interval_counts() -> None:
    """The same for a row over the input itself."""
    at = confirm([[0.0]], [-1.0])
    for sign, threshold, holds in CASES:
        found = at(np.array([LOW]), [region([0.0], -sign * (0.1 + threshold), [sign])])
        assert (found is not None) == holds


def test_rows_of_a_thin_interval_are_paid_for() -> None:
    """1 + 4·2⁻⁵³ − (1 + 2⁻⁵²) is above 0, but float64 makes 1 of the sum: the row only seems to hold."""
    fixed = [1.0, *[2.0**-53] * 4]
    network = Network((Node(Input((6,)), (), "x"),), 0)
    at = Confirm(network, lambda x: np.full((1, 6), -1.0, dtype=np.float32))
    for constant, holds in ((-1.0 - 2.0**-52, False), (-1.0 - 2.0**-40, True)):
        assert (sum(map(Fraction, fixed)) + Fraction(constant) <= 0) == holds
        part = Region(
            box=Box(np.array([*fixed, LOW]), np.array([*fixed, HIGH])),
            on_output=np.array([[1.0, 1.0, 1.0, 1.0, 1.0, 0.0]]),
            constant=np.array([constant]),
            strict=np.zeros(1, dtype=bool),
        )
        assert (at(np.array([*fixed, LOW]), [part]) is not None) == holds

"""Counterexamples where a box holds no float32: real arithmetic has to agree, all of its roundings counted. And what is
proved of a network that was not read rightly, as points of the property show."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from surebound.errors import NetworkError
from surebound.network.build import Builder
from surebound.network.graph import Input, Network, Node
from surebound.network.linear import Linear
from surebound.network.model import Model
from surebound.problem import Ball, Box, Domain, Property, Region
from surebound.verify.clock import Clock
from surebound.verify.confirm import COMPARED, Confirm
from surebound.verify.first import first_attempt
from surebound.verify.options import Options
from surebound.verify.pipeline import verify

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


def misread(beyond: float) -> Model:
    """y = x + 2 was read from what is −1 beyond some number."""
    build = Builder((1,))
    network = build.arrays(build.linear(0, np.ones((1, 1)), np.array([2.0])))

    def source(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.where(x > beyond, np.float32(-1), x + 2)

    return Model(network, source, "net.onnx", runtime="onnxruntime")


def positive(*domains: Domain) -> Property:
    """y > 0 over each of them."""
    rows = {"on_output": np.ones((1, 1)), "constant": np.zeros(1), "strict": np.zeros(1, dtype=bool)}
    return Property(tuple(Region(box=domain, **rows) for domain in domains), 1, 1)


def between(low: float, high: float) -> Box:
    return Box(np.array([low]), np.array([high]))


def test_what_was_misread_is_not_proved() -> None:
    """By neither of the two that say `unsat`, and in any box that is looked at."""
    boxes = [between(k, k + 0.5) for k in range(COMPARED)]
    for beyond, prop in (
        (0.4, positive(between(0.0, 1.0))),
        (0.4, positive(Ball.around(np.array([0.5]), Fraction(1, 4), "2", low=0.0, high=1.0))),
        (COMPARED - 1, positive(*boxes)),
    ):
        model, told = misread(beyond), "'net.onnx' was read as a network that differs from onnxruntime by .* property"
        with pytest.raises(NetworkError, match=told):
            verify(model.tensors(), prop, Options(timeout=10.0))
        if prop.regions[0].box.norm == "inf":
            with pytest.raises(NetworkError, match=told):
                first_attempt(model, prop, Clock(None))
        assert verify(misread(9.0).tensors(), prop, Options(timeout=10.0)).status == "unsat"

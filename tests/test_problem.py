"""What a property says: boxes, rows, and points that violate them."""

import numpy as np

from surebound.problem import Box, Region


def test_a_fixed_input_does_not_empty_a_box() -> None:
    assert not Box(np.array([0.0, 1.0]), np.array([1.0, 1.0])).empty
    assert Box(np.array([0.0, 1.0]), np.array([1.0, np.nextafter(1.0, 0.0)])).empty


def test_boxes_are_told_apart_by_all_ends() -> None:
    ends = (np.array([0.0, 1.0]), np.array([2.0, 3.0]))
    box = Box(*ends)
    assert box.key == Box(*(end.copy() for end in ends)).key == Box(np.array([-0.0, 1.0]), ends[1]).key
    for lower, upper in (([0.5, 1.0], [2.0, 3.0]), ([0.0, 1.0], [2.0, 2.5]), ([0.0, 1.0], [2.5, 3.0])):
        assert Box(np.array(lower), np.array(upper)).key != box.key


def test_all_rows_have_to_hold() -> None:
    """y₀ ≤ 0 and x₀ + y₁ ≤ 0."""
    part = Region(
        box=Box(-np.ones(1), np.ones(1)),
        on_output=np.eye(2),
        on_input=np.array([[0.0], [1.0]]),
        constant=np.zeros(2),
        strict=np.zeros(2, dtype=bool),
    )
    x = np.ones(1)
    assert part.holds(x, np.array([-1.0, -1.0]))
    assert not part.holds(x, np.array([-1.0, 0.0]))
    assert not part.holds(x, np.array([1.0, -1.0]))

"""What a property says: boxes, rows, and points that violate them."""

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
import torch

from surebound.errors import UsageError
from surebound.problem import Box, Region, Robustness, by_box, padded_rows, stack_rows


def test_a_fixed_input_does_not_empty_a_box() -> None:
    assert not Box(np.array([0.0, 1.0]), np.array([1.0, 1.0])).empty
    assert Box(np.array([0.0, 1.0]), np.array([1.0, np.nextafter(1.0, 0.0)])).empty


@pytest.mark.parametrize("label", [True, False, np.True_, torch.tensor(True), np.array(True)])
def test_a_truth_value_is_no_label(label: Any) -> None:
    """As an index into rows it would be a mask."""
    with pytest.raises(UsageError, match="expected the number of a class"):
        Robustness(np.zeros(2), label, "1/10")


@pytest.mark.parametrize("label", [1.0, "1", None, [1], np.array([0.0, 1.0]), torch.tensor([0, 1])])
def test_a_label_is_one_whole_number(label: Any) -> None:
    with pytest.raises(UsageError, match="expected the number of one class"):
        Robustness(np.zeros(2), label, "1/10")


@pytest.mark.parametrize("label", [2, np.int64(2), np.array(2), torch.tensor(2), torch.tensor([2])])
def test_labels_of_all_kinds_of_integers_ask_the_same(label: Any) -> None:
    rows = [r.on_output.tolist() for r in Robustness(np.zeros(2), label, "1/10").to_property(3).regions]
    assert rows == [[[-1.0, 0.0, 1.0]], [[0.0, -1.0, 1.0]]]


def test_a_label_is_one_of_several_outputs() -> None:
    for label in (-1, 3):
        with pytest.raises(UsageError, match="not one of the network's 3 outputs, 0 to 2"):
            Robustness(np.zeros(2), label, "1/10").to_property(3)
    with pytest.raises(UsageError, match="the network has one output"):
        Robustness(np.zeros(2), 0, "1/10").to_property(1)


@pytest.mark.parametrize(
    ("shape", "network"),
    [
        ((3, 4, 5), (3, 4, 5)),
        ((1, 3, 4, 5), (3, 4, 5)),
        ((60,), (3, 4, 5)),
        ((1, 60), (3, 4, 5)),
        ((4, 5), (1, 4, 5)),
        ((4, 5, 1), (1, 4, 5)),
        ((3, 4, 5), (60,)),
        ((4, 5, 3), (1, 60)),
        ((1,), (1, 1, 1)),
    ],
)
def test_an_input_in_the_networks_order(shape: tuple[int, ...], network: tuple[int, ...]) -> None:
    x = np.linspace(0.0, 1.0, prod(shape)).reshape(shape)
    box = Robustness(x, 0, "1/1000").to_property(2, network).regions[0].box
    assert np.abs((box.lower + box.upper) / 2 - x.reshape(-1)).max() < 1e-3


@pytest.mark.parametrize("shape", [(4, 5, 3), (5, 4, 3), (2, 3, 4, 5), (20, 3)])
def test_an_input_in_another_order_is_refused(shape: tuple[int, ...]) -> None:
    """Flattened, channels last would be an image that nobody has."""
    with pytest.raises(UsageError, match=r"has the shape .*, but the network's is \(3, 4, 5\); expected that shape"):
        Robustness(np.zeros(shape), 0, "1/10").to_property(2, (3, 4, 5))


def test_an_input_that_requires_gradients_is_its_numbers() -> None:
    assert Robustness(torch.full((2,), 0.5, requires_grad=True), 0, "1/10").domain().middle.tolist() == [0.5, 0.5]  # type: ignore[arg-type]


def test_ends_are_one_number_each() -> None:
    with pytest.raises(UsageError, match=r"`low` of a robustness property has the shape \(2,\); expected one number"):
        Robustness(np.zeros(2), 0, "1/10", low=np.zeros(2))  # type: ignore[arg-type]


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


def drawn_regions(rng: np.random.Generator, counts: tuple[int, ...], *, mixed: bool) -> list[Region]:
    """Regions over one box with so many rows each, every second one over the inputs, too."""
    box = Box(np.zeros(3), np.ones(3))
    return [
        Region(
            box=box,
            on_output=rng.normal(size=(count, 2)),
            on_input=rng.normal(size=(count, 3)) if mixed and i % 2 else None,
            constant=rng.normal(size=count),
            strict=np.zeros(count, dtype=bool),
        )
        for i, count in enumerate(counts)
    ]


@pytest.mark.parametrize("mixed", [False, True])
def test_rows_stand_one_after_the_other_in_parts_or_whole(mixed: bool) -> None:
    rng = np.random.default_rng(0)
    groups = [drawn_regions(rng, counts, mixed=mixed) for counts in ((1, 3, 2, 1), (2, 2))]
    for group in groups:
        rows = [
            (r.on_output[i], np.zeros(3) if r.on_input is None else r.on_input[i], r.constant[i])
            for r in group
            for i in range(len(r.constant))
        ]
        rows += [rows[-1]] * (9 - len(rows))
        for stacked, expected in zip(stack_rows(group, 9), zip(*rows, strict=True), strict=True):
            np.testing.assert_array_equal(stacked, expected)
    whole = [*padded_rows(groups)]
    assert [part.shape for part in whole] == [(2, 7, 2), (2, 7, 3), (2, 7)]
    parts = [[*padded_rows(groups, slice(i, i + 3))] for i in (0, 3, 6)]
    for i in range(3):
        np.testing.assert_array_equal(np.concatenate([part[i] for part in parts], axis=1), whole[i])


def test_a_box_is_compared_once_however_many_regions_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = drawn_regions(np.random.default_rng(0), (1,) * 50, mixed=False)
    again = replace(regions[0], box=Box(np.zeros(3), np.ones(3)))
    other = replace(regions[0], box=Box(np.zeros(3), np.full(3, 2.0)))
    compared, key = 0, Box.key

    def counted(self: Box) -> Any:
        nonlocal compared
        compared += 1
        return key.fget(self)  # type: ignore[attr-defined]

    monkeypatch.setattr(Box, "key", property(counted))
    assert by_box([*regions, other, again]) == [[*range(50), 51], [50]]
    assert compared == 3

"""Resizing is exact: an output is whole parts of its neighbours, divided by a whole number."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx_models
import pytest
import torch
from onnx import helper

from surebound.bounds.enclosure import enclose
from surebound.errors import UnsupportedOpError
from surebound.load.onnx import load_onnx
from surebound.load.resize import COORDINATES, NEAREST, Axis

SCALES = (Fraction(2), Fraction(7, 3), Fraction(3, 7), Fraction(301, 100), Fraction(float(np.float32(1.7))))


def position(axis: Axis, k: int) -> Fraction:
    """Where output k lies, in ONNX's own words."""
    if axis.coordinates == "asymmetric":
        return k / axis.scale
    if axis.coordinates == "align_corners":
        return Fraction(k * (axis.before - 1), axis.after - 1) if axis.after > 1 else Fraction(0)
    if axis.coordinates == "pytorch_half_pixel" and axis.after == 1:
        return Fraction(0)
    return (k + Fraction(1, 2)) / axis.scale - Fraction(1, 2)


def axes(coordinates: str) -> list[Axis]:
    pairs = [(before, scale) for before in (1, 5, 100, 700) for scale in SCALES if before * scale >= 1]
    return [Axis(before=n, after=int(n * s), scale=s, coordinates=coordinates) for n, s in pairs]


@pytest.mark.parametrize("coordinates", COORDINATES)
def test_parts_of_neighbours_are_exact(coordinates: str) -> None:
    for axis in axes(coordinates):
        parts, divisor = axis.linear()
        for k in {0, axis.after // 2, axis.after - 1}:
            at = min(max(position(axis, k), Fraction(0)), Fraction(axis.before - 1))
            left, expected = int(at), [Fraction(0)] * axis.before
            expected[left] += 1 - (at - left)
            expected[min(left + 1, axis.before - 1)] += at - left
            assert [Fraction(p) / Fraction(divisor[k]) for p in parts[k].tolist()] == expected


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", NEAREST)
def test_the_nearest_place_is_exact(coordinates: str, mode: str) -> None:
    half = Fraction(1, 2)
    for axis in [*axes(coordinates), Axis(before=500, after=850, scale=Fraction(1.7), coordinates=coordinates)]:
        at = [position(axis, k) for k in range(axis.after)]
        rounded = {
            "round_prefer_floor": lambda x: -((half - x) // 1),
            "round_prefer_ceil": lambda x: (x + half) // 1,
            "floor": lambda x: x // 1,
            "ceil": lambda x: -(-x // 1),
        }[mode]
        assert axis.nearest(mode).tolist() == [min(max(int(rounded(x)), 0), axis.before - 1) for x in at]


def test_a_scale_beyond_float32_is_refused() -> None:
    with pytest.raises(UnsupportedOpError, match="expected a float32"):
        Axis(before=5, after=8, scale=Fraction(1.7)).linear()


def test_intervals_hold_what_is_resized(tmp_path: Path) -> None:
    """Shares of 1/246 and the like were rounded with their positions, of some hundred, and taken for exact."""
    before, after = 100, 123
    node = helper.make_node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")
    sizes = {"sizes": np.array([1, 1, after])}
    path = onnx_models.save(tmp_path / "n.onnx", [node], (1, 1, before), constants=sizes, output_shape=(1, 1, after))
    network, axis = load_onnx(path), Axis(before=before, after=after, scale=Fraction(after, before))
    places = [min(max(position(axis, k), Fraction(0)), Fraction(before - 1)) for k in range(after)]
    rng = np.random.default_rng(1)
    for _ in range(20):
        x = rng.normal(size=before).astype(np.float32).tolist()
        point = torch.tensor(x, dtype=torch.float64).reshape(1, 1, -1)
        known = enclose(network, point, point)
        ends = zip(places, known.lower[-1].flatten().tolist(), known.upper[-1].flatten().tolist(), strict=True)
        for at, low, high in ends:
            left, share = int(at), at - int(at)
            value = Fraction(x[left]) * (1 - share) + Fraction(x[min(left + 1, before - 1)]) * share
            assert Fraction(low) <= value <= Fraction(high)

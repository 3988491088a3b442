"""Resizing is exact: an output is whole parts of its neighbours, divided by a whole number."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import onnx_models
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from torch import nn

from surebound.bounds.enclosure import enclose
from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load.onnx import load_onnx
from surebound.load.resize import COORDINATES, NEAREST, Axis
from surebound.load.torch import load_torch

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
    half, found = Fraction(1, 2), 0
    for axis in [*axes(coordinates), Axis(before=500, after=850, scale=Fraction(1.7), coordinates=coordinates)]:
        at = [position(axis, k) for k in range(axis.after)]
        rounded = {
            "round_prefer_floor": lambda x: -((half - x) // 1),
            "round_prefer_ceil": lambda x: (x + half) // 1,
            "floor": lambda x: x // 1,
            "ceil": lambda x: -(-x // 1),
        }[mode]
        expected = [min(max(int(rounded(x)), 0), axis.before - 1) for x in at]
        try:
            assert axis.nearest(mode).tolist() == expected
            found += 1
        except UnsupportedOpError:  # where float32 does not know: on both sides of a position there are other elements
            ends = [
                [rounded(x - abs(x) / 2**17 - Fraction(1, 2**17)), rounded(x + abs(x) / 2**17 + Fraction(1, 2**17))]
                for x in at
            ]
            assert any(low != high for low, high in ends)
    assert found


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


def _resized(path: Path, op: str, opset: int, length: int, scale: float, **attributes: object) -> Path:
    """A file that resizes the last axis by a scale."""
    constants = {"scales": np.float32([1, 1, scale]), "roi": np.float32([])}
    node = helper.make_node(op, [onnx_models.X, *["roi"] * (opset > 10), "scales"], ["y"], **attributes)
    return onnx_models.save(path, [node], (1, 1, length), constants=constants, opset=opset)


@pytest.mark.parametrize(
    ("op", "opset", "length", "scale", "mode", "complaint"),
    [
        ("Resize", 10, 4, 0.75, "nearest", "opset 10"),  # onnxruntime rounds positions up
        ("Resize", 13, 3, 1.3, "nearest", "keeps its length"),  # and copies here
        ("Resize", 13, 3, 1.3, "linear", "keeps its length"),
        ("Resize", 10, 3, 1.3, "linear", "keeps its length"),
        ("Upsample", 9, 3, 1.3, "nearest", "keeps its length"),
        ("Resize", 13, 5, 1.4, "linear", "length in float32"),  # 6.99999988 elements, which float32 takes for 7
        ("Upsample", 9, 5, 1.4, "nearest", "length in float32"),
        ("Resize", 13, 9, 1.4, "nearest", "float32 cannot tell"),  # position 7 lies at 5.00000009
        ("Resize", 13, 6, 1.2, "nearest", "float32 cannot tell"),  # position 5 lies at 4.9999998
    ],
)
def test_what_float32_reads_elsewhere_is_refused(
    tmp_path: Path, op: str, opset: int, length: int, scale: float, mode: str, complaint: str
) -> None:
    more = {} if opset < 11 else {"coordinate_transformation_mode": "asymmetric"}
    if mode == "nearest" and more:
        more["nearest_mode"] = "floor"
    path = _resized(tmp_path / "net.onnx", op, opset, length, scale, mode=mode, **more)
    with pytest.raises(UnsupportedOpError, match=complaint):
        load_onnx(path, check=False)


def test_what_is_not_refused_is_what_onnxruntime_reads(tmp_path: Path, rng: np.random.Generator) -> None:
    scales, read = (0.3, 0.5, 0.6, 0.75, 0.9, 1.1, 1.2, 1.25, 1.3, 1.5, 1.7, 2.0, 2.5, 3.0), 0
    for _ in range(250):
        mode, opset = rng.choice(["nearest", "linear"]), int(rng.choice([10, 11, 13, 18, 19]))
        more = {} if opset < 11 else {"coordinate_transformation_mode": str(rng.choice(COORDINATES))}
        if more and mode == "nearest":
            more["nearest_mode"] = str(rng.choice(NEAREST))
        length = int(rng.integers(1, 12))
        path = _resized(tmp_path / "net.onnx", "Resize", opset, length, float(rng.choice(scales)), mode=mode, **more)
        try:
            network = load_onnx(path, check=False)
        except NetworkError:
            continue
        x = rng.normal(size=(1, 1, length))
        ours = network.forward(torch.from_numpy(x).reshape(1, *network.input_shape)).numpy().reshape(-1)
        np.testing.assert_allclose(ours, onnx_models.run(path, x.astype(np.float32)).reshape(-1), atol=1e-5)
        read += 1
    assert read > 50


def test_places_that_torch_finds_in_float32() -> None:
    """At place 41 of 82, torch reads element 0 of two: 41 · (2 / 82) is a little less than 1 in float32."""
    refused = 0
    for before in range(1, 20):
        for after in range(1, 90):
            at = np.arange(before, dtype=np.float32)
            theirs = F.interpolate(torch.from_numpy(at)[None, None], size=after).flatten().numpy()
            axis = Axis(
                before=before, after=after, scale=Fraction(after, before), coordinates="asymmetric", inverse=True
            )
            try:
                assert axis.nearest("floor").tolist() == theirs.tolist()
            except UnsupportedOpError:
                refused += 1
    assert 0 < refused < 30
    with pytest.raises(UnsupportedOpError, match="float32 cannot tell"):
        load_torch(nn.Upsample(size=82), (3, 2))

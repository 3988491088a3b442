"""Resizing images: which elements an output reads along an axis, and how much of each.

Positions are rational numbers and computed as such, over one denominator: an output is then so many parts of its
neighbours, divided by a whole number, and nothing is rounded here.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.errors import UnsupportedOpError

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")

_PARTS = 2**53  # up to here float64 holds every whole number
_WHOLE = 2**61  # and int64, also of its double
_NEAR = 2**18  # a runtime computes positions in float32: how much finer than one they have to be known, relatively


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis that changes its length: by `scale`, which need not be the quotient of the two."""

    before: int
    after: int
    scale: Fraction
    coordinates: str = "half_pixel"
    inverse: bool = False  # whether the runtime multiplies by 1 / scale, rounded, where others divide by the scale

    def positions(self) -> tuple[NDArray[Any], int]:
        """Where each output lies among the inputs, as ONNX defines it: numerators # (after,) and their denominator."""
        first, step, denominator = self._line()
        large = max(abs(first), abs(first + step * self.after), denominator * self.before) >= _WHOLE
        return first + step * np.arange(self.after).astype(object if large else np.int64), denominator

    def _line(self) -> tuple[int, int, int]:
        """Output k lies at (first + k · step) / denominator."""
        up, down = self.scale.numerator, self.scale.denominator
        if self.coordinates == "half_pixel" or (self.coordinates == "pytorch_half_pixel" and self.after > 1):
            return down - up, 2 * down, 2 * up
        if self.coordinates == "pytorch_half_pixel":
            return 0, 0, 1
        if self.coordinates == "align_corners":
            return 0, self.before - 1, max(self.after - 1, 1)
        if self.coordinates == "asymmetric":
            return 0, down, up
        raise UnsupportedOpError(
            f"coordinates of the kind '{self.coordinates}' are not supported; expected one of {', '.join(COORDINATES)}"
        )

    def nearest(self, mode: str) -> NDArray[np.int64]:
        """The element that each output is. # (after,)

        Refuses positions that float32, in which runtimes compute them, may take for those of another element.
        """
        x, whole = self.positions()
        if mode not in NEAREST:
            raise UnsupportedOpError(f"rounding by '{mode}' is not supported; expected one of {', '.join(NEAREST)}")
        rounded = {
            "round_prefer_floor": lambda: -((whole - 2 * x) // (2 * whole)),
            "round_prefer_ceil": lambda: (2 * x + whole) // (2 * whole),
            "floor": lambda: x // whole,
            "ceil": lambda: -(-x // whole),
        }[mode]()
        chosen = np.asarray(np.clip(rounded, 0, self.before - 1), dtype=np.int64)
        # between two elements: at whole numbers, or halfway
        away = np.mod(2 * x + whole if mode.startswith("round") else 2 * x, 2 * whole)
        away = np.minimum(away, 2 * whole - away)
        near = (away > 0) & (away * _NEAR <= 2 * (np.abs(x) + whole))
        if near.any() or bool((self._in_float32(mode) != chosen).any()):
            raise UnsupportedOpError(
                f"an axis of {self.before} is resized to {self.after} by the nearest element, where float32 cannot tell"
                " which of two is nearest; expected other lengths, or a scale that float32 holds"
            )
        return chosen

    def _in_float32(self, mode: str) -> NDArray[np.int64]:
        """The elements as a runtime finds them. # (after,)"""
        half = np.float32(0.5)
        k = np.arange(self.after, dtype=np.float32)
        scale = np.float32(float(1 / self.scale if self.inverse else self.scale))
        if self.coordinates == "align_corners":
            x = k * np.float32(self.before - 1) / np.float32(max(self.after - 1, 1))
        elif self.coordinates == "asymmetric":
            x = k * scale if self.inverse else k / scale
        elif self.coordinates == "pytorch_half_pixel" and self.after == 1:
            x = 0 * k
        else:
            x = (k + half) / scale - half
        rounded = {
            "round_prefer_floor": lambda: np.ceil(x - half),
            "round_prefer_ceil": lambda: np.floor(x + half),
            "floor": lambda: np.floor(x),
            "ceil": lambda: np.ceil(x),
        }[mode]()
        return np.asarray(np.clip(rounded, 0, self.before - 1), dtype=np.int64)

    def linear(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """How many parts each output has of its two neighbours, and what they are divided by.

        # (after, before), (after,)
        """
        x, whole = self.positions()
        if whole >= _PARTS:
            raise UnsupportedOpError(f"resizing an axis by {self.scale} is not supported; expected a float32")
        x = np.clip(x, 0, (self.before - 1) * whole)
        left, common = (x // whole).astype(np.int64), np.gcd(x, whole)
        right = np.minimum(left + 1, self.before - 1)
        share, parts = ((n // common).astype(np.int64) for n in (x % whole, np.full_like(x, whole)))
        matrix = np.zeros((self.after, self.before))
        np.add.at(matrix, (np.arange(self.after), left), parts - share)
        np.add.at(matrix, (np.arange(self.after), right), share)
        halved = (parts & (parts - 1)) == 0  # by a power of two, which rounds nothing
        return matrix / np.where(halved, parts, 1)[:, None], np.where(halved, 1, parts).astype(np.float64)

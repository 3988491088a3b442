"""Resizing images: which elements an output reads along an axis, and how much of each."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from surebound.errors import UnsupportedOpError

COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis that changes its length: by `scale`, which need not be the quotient of the two."""

    before: int
    after: int
    scale: float
    coordinates: str = "half_pixel"

    def positions(self) -> NDArray[np.float64]:
        """Where each output lies among the inputs, as ONNX defines it. # (after,)"""
        x = np.arange(self.after, dtype=np.float64)
        if self.coordinates == "half_pixel" or (self.coordinates == "pytorch_half_pixel" and self.after > 1):
            return (x + 0.5) / self.scale - 0.5
        if self.coordinates == "pytorch_half_pixel":
            return np.zeros(1)
        if self.coordinates == "align_corners":
            return x * (self.before - 1) / (self.after - 1) if self.after > 1 else np.zeros(1)
        if self.coordinates == "asymmetric":
            return x / self.scale
        raise UnsupportedOpError(
            f"coordinates of the kind '{self.coordinates}' are not supported; expected one of {', '.join(COORDINATES)}"
        )

    def nearest(self, mode: str) -> NDArray[np.int64]:
        """The element that each output is. # (after,)"""
        x = self.positions()
        if mode not in NEAREST:
            raise UnsupportedOpError(f"rounding by '{mode}' is not supported; expected one of {', '.join(NEAREST)}")
        rounded = {
            "round_prefer_floor": lambda: np.ceil(x - 0.5),
            "round_prefer_ceil": lambda: np.floor(x + 0.5),
            "floor": lambda: np.floor(x),
            "ceil": lambda: np.ceil(x),
        }[mode]()
        return np.clip(rounded, 0, self.before - 1).astype(np.int64)

    def linear(self) -> NDArray[np.float64]:
        """What each output has of its two neighbours. # (after, before)"""
        x = np.clip(self.positions(), 0, self.before - 1)
        left = np.floor(x).astype(np.int64)
        right, share = np.minimum(left + 1, self.before - 1), x - left
        matrix = np.zeros((self.after, self.before))
        np.add.at(matrix, (np.arange(self.after), left), 1.0 - share)
        np.add.at(matrix, (np.arange(self.after), right), share)
        return matrix

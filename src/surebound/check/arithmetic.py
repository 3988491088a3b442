"""Numbers: float64 with error terms, or fractions without. All that is said about rounding is said here.

With u = 2⁻⁵³, a sum of n products, in any order, with or without fused operations, is off by at most

    γ_n Σ |terms|,    γ_n = n u / (1 − n u) ≤ 1.001 n u    (n ≤ 2⁴⁰; Higham 2002, section 3.1)

plus at most 2⁻¹⁰²² for each product that underflows. `gamma(n)` is n u. Whatever is put together from such terms passes
through `loss` before it counts: a factor SLACK for the 1.001 above and for computing the terms themselves (sums of
numbers ≥ 0, so that their own relative error is below 10⁻⁶), and TINY for underflow: no number that an underflow could
be multiplied with exceeds LIMIT², and 2⁻¹⁰²² · LIMIT² · 2⁶⁰ is less than TINY.

In exact arithmetic u, TINY and all error terms are 0, and the same code computes with fractions.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LIMIT = 1e60
"""Weights, inputs, bounds and multipliers beyond this are refused."""


class CheckError(Exception):
    """A network, property or proof that cannot be read, or that this checker does not cover: nothing is decided."""


class InvalidError(Exception):
    """What is wrong with a proof."""


_fractions = np.frompyfunc(Fraction, 1, 1)
_quotients = np.frompyfunc(lambda a, b: Fraction(a) / Fraction(b), 2, 1)


@dataclass(frozen=True)
class Arithmetic:
    """The kind of numbers to compute with."""

    exact: bool = False

    @property
    def unit(self) -> float:
        """u, the largest relative error of one operation."""
        return 0 if self.exact else 2.0**-53

    @property
    def tiny(self) -> float:
        """More than all underflows of one bound."""
        return 0 if self.exact else 1e-150

    def gamma(self, n: int) -> float:
        """The relative error of a sum of n products, up to `loss`; n is below 2⁴⁰, since a file has fewer numbers."""
        return n * self.unit

    def loss(self, error: Any) -> Any:
        """An upper bound on what the computed error terms stand for."""
        return error if self.exact else 1.01 * error + self.tiny

    def array(self, values: Any) -> Array:
        """Floating-point numbers or integers, without rounding."""
        if self.exact:
            return np.asarray(_fractions(np.asarray(values, dtype=np.float64).astype(object)), dtype=object)
        return np.asarray(values, dtype=np.float64)

    def nearest(self, values: Any) -> Array:
        """Fractions, each off by at most u relatively."""
        if self.exact:
            return np.asarray(values, dtype=object)
        return np.array([float(v) for v in np.asarray(values, dtype=object).flat]).reshape(np.shape(values))

    def zeros(self, shape: Any) -> Array:
        """Zeros."""
        return np.full(shape, Fraction(0), dtype=object) if self.exact else np.zeros(shape)

    def divide(self, a: Array, b: Array) -> Array:
        """a / b for b ≠ 0, off by at most u relatively."""
        return np.asarray(_quotients(a, b), dtype=object) if self.exact else np.asarray(a / b)

    def below(self, value: Array, error: Array) -> Array:
        """A number not above value − error for each; −∞ where overflow left none."""
        if self.exact:
            return value - error
        lower = value - self.loss(error)
        return np.where(np.isfinite(lower), np.nextafter(lower, -np.inf), -np.inf)

    def intercept(self, slope: Array, low: Array, high: Array) -> Array:
        """A t with max(x, 0) ≤ s x + t on [low, high], for the slope s in [0, 1] and all that one rounding makes of it.

        t ≥ max(−s low, (1 − s) high). A slope s' with |s' − s| ≤ u s moves that by at most u max(−low, high), and four
        roundings on the way to t, which is below high − low, by at most 5 u (high − low).
        """
        t = np.maximum(-slope * low, (1 - slope) * high)
        return np.asarray(t + (8 * self.unit * (high - low) + self.tiny))

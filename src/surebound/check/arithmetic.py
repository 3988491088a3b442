"""Numbers: float64 with error terms, or fractions without. All that is said about rounding is said here.

With u = 2⁻⁵³, a sum of n products, in any order, with or without fused operations, is off by at most

    γ_n Σ |terms|,    γ_n = n u / (1 − n u) ≤ 1.001 n u    (n ≤ 2⁴⁰; Higham 2002, section 3.1)

plus at most 2⁻¹⁰²² for each product that underflows. `gamma(n)` is n u. Whatever is put together from such terms passes
through `loss` before it counts: a factor 1.01 for the 1.001 above and for computing the terms themselves (sums of
numbers ≥ 0, so that their own relative error is below 10⁻⁶), and `tiny` for underflow: no number that an underflow
could be multiplied with exceeds LIMIT², and 2⁻¹⁰²² · LIMIT² · 2⁶⁰ is less than `tiny`.

In exact arithmetic u, `tiny` and all error terms are 0, and the same code computes with fractions.
"""

from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LIMIT = 1e60  # weights, inputs, bounds and multipliers beyond this are refused
_fractions = np.frompyfunc(Fraction, 1, 1)


class CheckError(Exception):
    """Why a file cannot be read, or is not covered, or why a proof shows less than it claims."""


def expect(holds: Any, otherwise: str) -> None:
    """Raise CheckError with a sentence unless something holds."""
    if not holds:
        raise CheckError(otherwise)


class Arithmetic:
    """The kind of numbers to compute with."""

    def __init__(self, exact: bool = False) -> None:
        self.exact = exact
        self.unit = 0 if exact else 2.0**-53  # u, the largest relative error of one operation
        self.tiny = 0 if exact else 1e-150  # more than all underflows of one bound

    def gamma(self, n: int) -> float:
        """The relative error of a sum of n products, up to `loss`; n is below 2⁴⁰, since a file has fewer numbers."""
        return n * self.unit

    def loss(self, error: Any) -> Any:
        """An upper bound on what the computed error terms stand for."""
        return error if self.exact else 1.01 * error + self.tiny

    def array(self, values: Any) -> Array:
        """Numbers to compute with: floats and integers as they are, fractions off by at most u relatively."""
        return np.asarray(_fractions(np.array(values, object)) if self.exact else np.array(values, np.float64))

    def below(self, value: Array, error: Array) -> Array:
        """A number not above value − error for each; −∞ where overflow left none."""
        if self.exact:
            return value - error
        lower = value - self.loss(error)
        return np.where(np.isfinite(lower), np.nextafter(lower, -np.inf), -np.inf)

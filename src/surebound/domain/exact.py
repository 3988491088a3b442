"""The minimum of a linear function over a ball within a box, in rational arithmetic: what bounds are measured against.

In ℓ1 it is rational. In ℓ2 it is the value at a rational point of the domain that is within 2⁻²⁰⁰ of it, relatively: no
less than the minimum, so that a claim above it is wrong.
"""

from collections.abc import Sequence
from fractions import Fraction
from math import isqrt

from surebound.domain.sets import Norm

_BITS = 200


def least_over_ball(
    c: Sequence[Fraction],
    centre: Sequence[Fraction],
    radius: Fraction,
    lower: Sequence[Fraction],
    upper: Sequence[Fraction],
    norm: Norm,
) -> Fraction:
    """min c·x with ‖x − centre‖ ≤ radius and lower ≤ x ≤ upper, the centre being one of those x.

    >>> half, one = Fraction(1, 2), Fraction(1)
    >>> least_over_ball([one, -one], [half, half], half, [half - 1, half], [one, one], "1")
    Fraction(-1, 2)
    """
    ways = [m - a if v > 0 else b - m for v, m, a, b in zip(c, centre, lower, upper, strict=True)]
    sizes = [abs(v) for v in c]
    moved = _by_size(sizes, ways, radius) if norm == "1" else _by_share(sizes, ways, radius)
    at_centre = sum((v * m for v, m in zip(c, centre, strict=True)), Fraction(0))
    return at_centre - sum((s * d for s, d in zip(sizes, moved, strict=True)), Fraction(0))


def _by_size(sizes: Sequence[Fraction], ways: Sequence[Fraction], radius: Fraction) -> list[Fraction]:
    """The largest coefficients first, each as far as it may move."""
    moved, left = [Fraction(0)] * len(sizes), radius
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        moved[i] = min(left, ways[i])
        left -= moved[i]
    return moved


def _by_share(sizes: Sequence[Fraction], ways: Sequence[Fraction], radius: Fraction) -> list[Fraction]:
    """min(size / ν, way) with ν² = Σ_free size² / (r² − Σ_clipped way²): inputs are clipped from the first to be."""
    free = [i for i, s in enumerate(sizes) if s > 0]
    if sum((ways[i] ** 2 for i in free), Fraction(0)) <= radius**2:
        return [w if s > 0 else Fraction(0) for s, w in zip(sizes, ways, strict=True)]
    moved, left = [Fraction(0)] * len(sizes), radius**2
    free.sort(key=lambda i: ways[i] / sizes[i])
    rest = sum((sizes[i] ** 2 for i in free), Fraction(0))
    while free and sizes[free[0]] ** 2 * left > ways[free[0]] ** 2 * rest:  # size / ν > way
        first = free.pop(0)
        moved[first], left, rest = ways[first], left - ways[first] ** 2, rest - sizes[first] ** 2
    share = _root_below(left / rest) if rest else Fraction(0)
    for i in free:
        moved[i] = sizes[i] * share
    return moved


def _root_below(value: Fraction) -> Fraction:
    """At most √value, and nearly."""
    shift = 2 * (_BITS + max(0, value.denominator.bit_length() - value.numerator.bit_length()))
    return Fraction(isqrt((value.numerator << shift) // value.denominator), 1 << (shift // 2))

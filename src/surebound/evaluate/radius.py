"""How far around an image a network keeps its answer: the largest radius proved, the smallest one broken, by bisection.

Each probe halves the gap between the two. A counterexample counts with its own distance from the image, which may be
far less than the radius it was looked for in; a probe that ends undecided moves neither result, and the next one looks
closer to the image.
"""

from dataclasses import replace
from fractions import Fraction
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from surebound.domain.sets import Norm
from surebound.evaluate.stages import Certifier, Sample
from surebound.evaluate.store import Row

_FINE = 2**60  # parts of 1 that a distance in ℓ2 is rounded up to
PROBES = 8  # leave a gap of at most eps/256 where every probe is decided


def search_radius(certifier: Certifier, row: Row, sample: Sample) -> Row:
    """The row of an image that is classified right, with the radii between 0 and the certifier's."""
    eps, norm = certifier.eps, certifier.settings.norm
    certified = eps if row.verified else None
    attacked = None if row.counter is None else min(eps, distance(row.counter.point, sample.x, norm))
    low, high = certified or Fraction(0), attacked if attacked is not None else eps
    seconds = 0.0
    for _ in range(PROBES):
        if high - low <= eps / 2**PROBES:
            break
        middle = (low + high) / 2
        verdict = certifier.decide(sample, middle)
        seconds += verdict.seconds
        if verdict.status == "unsat":
            certified = low = middle
        else:
            high = middle
            if verdict.counterexample is not None:
                attacked = high = min(middle, distance(verdict.counterexample.x, sample.x, norm))
    return replace(
        row,
        phases={**row.phases, "radius": round(seconds, 6)},
        certified_eps=None if certified is None else str(certified),
        attacked_eps=None if attacked is None else str(attacked),
    )


def distance(a: NDArray[np.floating], b: NDArray[np.floating], norm: Norm = "inf") -> Fraction:
    """‖a − b‖, exactly; in ℓ2 rounded up."""
    if norm != "inf":
        pairs = zip(a.tolist(), b.tolist(), strict=True)
        gaps_exact = [abs(Fraction(v) - Fraction(w)) for v, w in pairs if v != w]
        if norm == "1":
            return sum(gaps_exact, Fraction(0))
        square = sum((gap * gap for gap in gaps_exact), Fraction(0))
        return Fraction(isqrt(square.numerator * _FINE**2 // square.denominator) + 1, _FINE) if square else square
    gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
    widest = np.flatnonzero(gaps >= gaps.max() * (1 - 1e-9))
    return max(abs(Fraction(float(a[i])) - Fraction(float(b[i]))) for i in widest.tolist())

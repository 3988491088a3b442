"""How far around an image a network keeps its answer: the largest radius proved, the smallest one broken, by bisection.

Each probe halves the gap between the two. A counterexample counts with its own distance from the image, which may be
far less than the radius it was looked for in; a probe that ends undecided moves neither result, and the next one looks
closer to the image.
"""

from dataclasses import replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from surebound.evaluate.stages import Certifier, Sample
from surebound.evaluate.store import Row

PROBES = 8  # leave a gap of at most eps/256 where every probe is decided


def search_radius(certifier: Certifier, row: Row, sample: Sample) -> Row:
    """The row of an image that is classified right, with the radii between 0 and the certifier's."""
    eps = certifier.eps
    certified = eps if row.verified else None
    attacked = None if row.counter is None else min(eps, distance(row.counter.point, sample.x))
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
                attacked = high = min(middle, distance(verdict.counterexample.x, sample.x))
    return replace(
        row,
        phases={**row.phases, "radius": round(seconds, 6)},
        certified_eps=None if certified is None else str(certified),
        attacked_eps=None if attacked is None else str(attacked),
    )


def distance(a: NDArray[np.floating], b: NDArray[np.floating]) -> Fraction:
    """‖a − b‖∞, exactly."""
    gaps = np.abs(a.astype(np.float64) - b.astype(np.float64))
    widest = np.flatnonzero(gaps >= gaps.max() * (1 - 1e-9))
    return max(abs(Fraction(float(a[i])) - Fraction(float(b[i]))) for i in widest.tolist())

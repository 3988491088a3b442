"""The inputs that a property is about: a box, or what a ball and a box have in common.

Both have the ends of their hull, the smallest box around them, as `lower` and `upper`: whatever holds over the hull
holds over the domain. Ends are rounded outward to float64; a ball's centre and radius are exact.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from typing import final

import numpy as np
from numpy.typing import NDArray

from surebound.domain import Norm as Norm
from surebound.errors import PropertyError, UsageError

Vector = NDArray[np.float64]
_ENDLESS = re.compile(r"[eE][+-]?[\d_]{5}")  # an exponent whose power of ten has more digits than anybody waits for
_CALLED: dict[object, Norm] = {"inf": "inf", "2": "2", "1": "1", inf: "inf", 2: "2", 1: "1"}


@final
@dataclass(frozen=True, eq=False)
class Box:
    """The inputs x with lower <= x <= upper, flattened in C order.

    An exact end that float64 cannot hold is rounded outward. Where that makes two neighbours of a single number,
    `written` has the float64 nearest to it, which prints as it was written; elsewhere it is any number in between.

    >>> Box(np.zeros(2), np.ones(2)).lower.shape
    (2,)
    """

    lower: Vector  # (inputs,)
    upper: Vector  # (inputs,)
    written: Vector | None = None  # (inputs,)

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            object.__setattr__(self, name, as_numbers(getattr(self, name), f"a box's {name} end"))
        if self.lower.ndim != 1 or self.lower.shape != self.upper.shape:
            raise PropertyError(
                f"a box needs two vectors of one length, got shapes {self.lower.shape} and {self.upper.shape}"
            )
        if not (np.isfinite(self.lower).all() and np.isfinite(self.upper).all()):
            raise PropertyError("a box needs finite bounds on every input")

    @property
    def norm(self) -> Norm:
        return "inf"

    @property
    def hull(self) -> "Box":
        return self

    @property
    def middle(self) -> Vector:
        """A point of the box."""
        middle = np.clip(self.lower / 2 + self.upper / 2, self.lower, self.upper)
        return middle if self.written is None else np.clip(self.written, self.lower, self.upper)

    @property
    def key(self) -> tuple[bytes, bytes]:
        """The same for boxes with the same ends."""
        return (self.lower + 0.0).tobytes(), (self.upper + 0.0).tobytes()  # −0 becomes 0

    @property
    def empty(self) -> bool:
        """Whether some lower bound exceeds its upper bound."""
        return bool((self.lower > self.upper).any())

    def contains(self, x: Vector) -> bool:
        """Whether x lies in the box, exactly."""
        return bool((x >= self.lower).all() and (x <= self.upper).all())

    def nearest(self, point: Vector) -> Vector:
        """The nearest float32 point of the box; where an interval holds no float32, its float64 midpoint."""
        lower, upper = (end.astype(np.float64) for end in round_inward(self))
        inside = np.clip(np.clip(point, lower, upper).astype(np.float32).astype(np.float64), lower, upper)
        return np.where(lower <= upper, inside, self.middle)


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class Ball:
    """The inputs x with ‖x − centre‖ <= radius in ℓ2 or ℓ1, and lower <= x <= upper: those ends are the hull's.

    >>> ball = Ball.around([0.5, 1.0], Fraction(1, 4), "2", low=0.0, high=1.0)
    >>> ball.lower.tolist(), ball.upper.tolist()
    ([0.25, 0.75], [0.75, 1.0])
    >>> ball.contains(np.array([0.5, 0.75])), ball.contains(np.array([0.25, 0.75]))
    (True, False)
    """

    centre: Vector  # (inputs,) exact
    radius: Fraction  # exact
    norm: Norm
    lower: Vector  # (inputs,)
    upper: Vector  # (inputs,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "radius", exact_radius(self.radius, "a ball's radius"))
        for name in ("centre", "lower", "upper"):
            object.__setattr__(self, name, as_numbers(getattr(self, name), f"a ball's {name}"))
        if self.norm not in ("2", "1"):
            raise PropertyError(f"a ball's norm is {self.norm!r}; expected '2' or '1' (in ℓ∞ it is a box)")
        if self.centre.ndim != 1 or not self.lower.shape == self.centre.shape == self.upper.shape:
            raise PropertyError(
                "a ball needs a centre and two ends of one length, got shapes"
                f" {self.centre.shape}, {self.lower.shape} and {self.upper.shape}"
            )
        if not (np.isfinite(self.lower).all() and np.isfinite(self.upper).all() and self.radius >= 0):
            raise PropertyError("a ball needs a radius from 0 up and finite bounds on every input")
        if not ((self.lower <= self.centre) & (self.centre <= self.upper)).all():
            raise PropertyError("a ball's centre lies outside of its bounds")

    @staticmethod
    def around(
        centre: object, radius: float | str | Fraction, norm: Norm, *, low: float = -inf, high: float = inf
    ) -> "Ball":
        """The ball within [low, high] on every input."""
        middle, exact = as_numbers(centre, "a ball's centre").reshape(-1), exact_radius(radius, "a ball's radius")
        box = box_around(middle, exact, low, high)
        return Ball(centre=middle, radius=exact, norm=norm, lower=box.lower, upper=box.upper)

    @property
    def hull(self) -> Box:
        """The smallest box around it, its ends rounded outward."""
        return Box(self.lower, self.upper)

    @property
    def middle(self) -> Vector:
        """A point of the ball."""
        return self.centre

    @property
    def key(self) -> tuple[bytes, bytes]:
        """The same for balls that are the same, and none of a box's."""
        lower, upper = self.hull.key
        return lower, upper + (self.centre + 0.0).tobytes() + f"{self.radius} in {self.norm}".encode()

    @property
    def empty(self) -> bool:
        return False  # the centre is in it

    def contains(self, x: Vector) -> bool:
        """Whether x lies in ball and box, exactly."""
        return self.hull.contains(x) and within(x, self.centre, self.radius, self.norm)

    def nearest(self, point: Vector) -> Vector | None:
        """A float32 point near `point` that lies in the ball, exactly, if there is one on the way to the centre."""
        lower, upper = (end.astype(np.float64) for end in round_inward(self))
        for share in (1.0, 1 - 1e-6, 1 - 1e-5, 1 - 1e-4, 1 - 1e-3):
            x = self.centre + share * (point - self.centre)
            x = np.clip(np.clip(x, lower, upper).astype(np.float32).astype(np.float64), lower, upper)
            if self.contains(x):
                return x
        return None


Domain = Box | Ball


def round_inward(domain: Domain) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """The smallest float32 not below `domain.lower` and the largest not above `domain.upper`, element by element.

    >>> lower, upper = round_inward(Box(np.array([0.1]), np.array([0.1])))
    >>> bool(lower[0] >= 0.1 >= upper[0]), bool(lower[0] <= upper[0])
    (True, False)
    """
    with np.errstate(over="ignore"):  # beyond float32 is ±∞, whose neighbour is finite
        lower, upper = domain.lower.astype(np.float32), domain.upper.astype(np.float32)
    infinity = np.float32(np.inf)
    lower = np.where(lower < domain.lower, np.nextafter(lower, infinity), lower)
    upper = np.where(upper > domain.upper, np.nextafter(upper, -infinity), upper)
    return lower, upper


def within(x: Vector, centre: Vector, radius: Fraction, norm: Norm) -> bool:
    """Whether ‖x − centre‖ <= radius, in exact arithmetic over the given numbers."""
    moved = np.flatnonzero(x != centre)
    gaps = [Fraction(a) - Fraction(b) for a, b in zip(x[moved].tolist(), centre[moved].tolist(), strict=True)]
    if norm == "2":
        return sum((g * g for g in gaps), Fraction(0)) <= radius * radius
    if norm == "1":
        return sum((abs(g) for g in gaps), Fraction(0)) <= radius
    return all(abs(g) <= radius for g in gaps)


def exact_norm(value: object) -> Norm:
    """The norm that a user means: inf, 2 or 1, as a number or as text.

    >>> exact_norm(2), exact_norm("1"), exact_norm(float("inf"))
    ('2', '1', 'inf')
    """
    norm = _CALLED.get(value) if isinstance(value, int | float | str) and not isinstance(value, bool) else None
    if norm is None:
        raise UsageError(f"norm is {value!r}; expected inf, 2 or 1")
    return norm


def exact_radius(value: object, what: str) -> Fraction:
    """The exact number that a user means, if float64 reaches as far.

    >>> exact_radius("2/255", "eps"), exact_radius(0.5, "eps")
    (Fraction(2, 255), Fraction(1, 2))
    """
    try:
        if isinstance(value, str) and _ENDLESS.search(value):
            raise OverflowError
        radius = Fraction(value if isinstance(value, str | Fraction) else float(value))  # type: ignore[arg-type]
        float(radius)
    except (ValueError, ZeroDivisionError, OverflowError, TypeError) as error:
        raise UsageError(f"{what} must be a number such as 0.1 or 2/255, got {value!r}") from error
    return radius


def box_around(x: Vector, radius: Fraction, low: float, high: float) -> Box:
    """[x − radius, x + radius] within [low, high], ends rounded outward."""
    least, most = (None if end in (-inf, inf) else Fraction(end) for end in (low, high))
    values, where = np.unique(x, return_inverse=True)  # images have few different pixels, and fractions are slow
    lows = [v - radius if least is None else max(v - radius, least) for v in map(Fraction, values.tolist())]
    highs = [v + radius if most is None else min(v + radius, most) for v in map(Fraction, values.tolist())]
    return Box(np.array([round_down(v) for v in lows])[where], np.array([round_up(v) for v in highs])[where])


def as_numbers(value: object, what: str) -> NDArray[np.float64]:
    """The value as float64 numbers; of a tensor that requires gradients, without them."""
    try:
        array = np.asarray(getattr(value, "detach", lambda: value)())
        if np.iscomplexobj(array):
            raise UsageError(f"{what} is complex; expected real numbers")
        return np.asarray(array, dtype=np.float64, order="C")
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{what} is not an array of numbers: {error}") from error


def round_down(value: Fraction) -> float:
    """The largest float64 not above value."""
    nearest = float(value)
    return nearest if Fraction(nearest) <= value else float(np.nextafter(nearest, -np.inf))


def round_up(value: Fraction) -> float:
    """The smallest float64 not below value."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else float(np.nextafter(nearest, np.inf))

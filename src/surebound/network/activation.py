"""What an activation is to the bounds: pieces on which it is convex, concave or a line, and from them its two lines.

For a slope a, whichever it is, f(x) ≥ a x + b on [l, u] if and only if b ≤ min over [l, u] of g(x) = f(x) − a x. So all
that has to be proved of an activation is the range of g, for any slope (`Activation.extremes`). On a piece [p, q]

    f convex:   g ≤ max(g(p), g(q)),    g(x) ≥ g(t) + g'(t) (x − t)   for any t of the piece,
    f concave:  the same with the signs turned,

and a function that is linear in x has its extremes at p and q. Where t is does not matter for the proof; the range is
tight where g'(t) = 0, which t a few steps of a root search look for. With a = 0 this is the interval of f; slopes are
chosen by what they leave, without proof.

**Rounding.** Values are computed in float64 from exp, expm1, log1p, tanh and erf. Of those it is assumed that they are
off by at most 2⁻⁴⁶ relative to the result (they are off by 2⁻⁵¹; tests compare them with arbitrary precision). A row of
another function (arctan, say) owes the next line by itself, in torch and in NumPy. Hence

    |fl(f(x)) − f(x)| ≤ ERROR · scale · (1 + |x|)ᵈ,      |fl(f'(x)) − f'(x)| ≤ ERROR · scale · (1 + |x|)ᵈ⁻¹

with ERROR = 2⁻⁴² for every row of the table (`surebound.network.activations`); `scale` is 1 but for functions with
large parameters, and the `degree` d is 1 but for powers, for which 1 + X below is to be read as (1 + X)ᵈ.
With X = max(|l|, |u|), what is computed of g(t), g'(t) and their products with q − p ≤ 2 X is then off by at most
3 · ERROR · scale · (1 + X) and some 40 roundings of (1 + |a|)(1 + X): four times ERROR covers both, and that the ends
of pieces are float64 where the inflection points are not, which moves g' by less than 10⁻²⁵.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

from surebound.network.arrays import counting, library, retyped, zeros

if TYPE_CHECKING:
    from torch import Tensor

Function = Callable[["Tensor"], "Tensor"]
Ends = tuple["Tensor", "Tensor"]
Lines = Literal["interval", "fastlin", "crown"]

ERROR = 2.0**-42  # of a value, for each unit of 1 + |x|, and of a derivative
_GUARD = 4 * ERROR  # of the range of g
_SAMPLES = 16  # parts of an interval, to choose slopes by
_NARROW = 1e-6  # an interval on which differences of values say less than the derivative
_FAR = 40.0  # beyond which all activations are flat or straight: no tangent is looked for there
_HALVINGS, _STEPS = 4, 6  # of the search for a tangent point


@dataclass(frozen=True, kw_only=True)
class Piece:
    """f on [start, stop], as functions that are only asked about points there."""

    start: float = -inf
    stop: float = inf
    curvature: Literal[-1, 0, 1]  # concave, a line, convex
    value: Function
    slope: Function


@dataclass(frozen=True, kw_only=True)
class Line:
    """Two lines with f between them: slope and intercept of either. # (…) float64 each"""

    below: Tensor
    floor: Tensor
    above: Tensor
    ceiling: Tensor


@dataclass(frozen=True, kw_only=True)
class Activation:
    """A function of one number. Pieces follow each other and cover all numbers."""

    name: str
    pieces: tuple[Piece, ...]
    low: float = -inf  # a number that no value is below: a minimum is rounded down,
    high: float = inf  # and one that none is above: a limit such as π/2 is rounded up
    scale: float = 1.0  # see the module's docstring,
    degree: int = 1  # as for this
    cuts: tuple[float, ...] = ()  # where to split first: kinks and jumps
    jumps: bool = False  # whether it does, so that smaller boxes alone do not make its lines closer
    between: tuple[tuple[float, float], ...] = ()  # where it jumps to a value between those of its pieces: (x, f(x))
    onnx: str = ""  # the ONNX operation that is this function, if it has no attributes,
    function: str = ""  # the function of torch's,
    module: str = ""  # and the module of torch.nn; files that have these are read as this row

    def value(self, x: Tensor) -> Tensor:
        """f(x), in the precision of x."""
        y = self._piecewise(x, lambda piece: piece.value)
        for point, value in self.between:
            y = library(x).where(x == point, value, y)
        return y

    def slope(self, x: Tensor) -> Tensor:
        """f'(x); at a kink, that of the right."""
        return self._piecewise(x, lambda piece: piece.slope)

    def _piecewise(self, x: Tensor, function: Callable[[Piece], Function]) -> Tensor:
        out, where = None, library(x).where
        for piece in self.pieces:
            y = function(piece)(library(x).clip(x, piece.start, piece.stop))
            out = y if out is None else where(x >= piece.start, y, out)
        assert out is not None
        return out

    def least(self, a: Tensor, lower: Tensor, upper: Tensor) -> Ends:
        """A bound below f(x) − a x over [lower, upper], and where it is about reached. In float64."""
        return self._extreme(a, lower, upper, 1)

    def greatest(self, a: Tensor, lower: Tensor, upper: Tensor) -> Ends:
        """A bound above f(x) − a x over [lower, upper], and where it is about reached. In float64."""
        bound, at = self._extreme(a, lower, upper, -1)
        return -bound, at

    def extremes(self, a: Tensor, lower: Tensor, upper: Tensor) -> Ends:
        """Bounds below and above f(x) − a x over [lower, upper]."""
        return self.least(a, lower, upper)[0], self.greatest(a, lower, upper)[0]

    def _extreme(self, a: Tensor, lower: Tensor, upper: Tensor, sign: Literal[-1, 1]) -> Ends:
        """A bound below sign · (f(x) − a x)."""
        lib = library(lower)
        finite = lib.isfinite(lower) & lib.isfinite(upper)
        low, high = lib.where(finite, lower, 0.0), lib.where(finite, upper, 0.0)
        bound, at = zeros(low, *low.shape) + inf, low
        for piece in self.pieces:
            meets = (low <= piece.stop) & (high >= piece.start)
            if not bool(meets.any()):
                continue
            small, where = _piece_extreme(piece, a, low, high, sign)
            lower_still = meets & ~(small >= bound)  # also one that is NaN, which then bounds nothing
            bound, at = lib.where(lower_still, small, bound), lib.where(lower_still, where, at)
        reach = 1.0 + lib.maximum(abs(low), abs(high))
        guard = _GUARD * self.scale * (1.0 + abs(a)) * reach**self.degree
        bound = lib.where(finite, bound - guard, -inf)
        return lib.where(a == 0, lib.clip(bound, self.low if sign > 0 else -self.high, inf), bound), at

    def interval(self, lower: Tensor, upper: Tensor) -> Ends:
        """Bounds on f over [lower, upper]."""
        return self.extremes(zeros(lower, *lower.shape), lower, upper)

    def lines(self, lower: Tensor, upper: Tensor, kind: Lines = "crown") -> Line:
        """Two lines over [lower, upper]: flat with "interval", parallel to the chord with "fastlin", and with "crown"
        those that leave the least area, which touch the convex and the concave envelope in the middle."""
        below, above = self.slopes(lower, upper, kind)
        floor, ceiling = self.least(below, lower, upper)[0], self.greatest(above, lower, upper)[0]
        return Line(below=below, floor=floor, above=above, ceiling=ceiling)

    def slopes(self, lower: Tensor, upper: Tensor, kind: Lines) -> Ends:
        """The slopes of the two lines, chosen without proof."""
        lib = library(lower)
        finite = lib.isfinite(lower) & lib.isfinite(upper)
        low, high = lib.where(finite, lower, 0.0), lib.where(finite, upper, 0.0)
        if kind == "interval":
            return (zeros(low, *low.shape),) * 2
        return (self.chord(low, high),) * 2 if kind == "fastlin" else self._envelopes(low, high)

    def chord(self, lower: Tensor, upper: Tensor) -> Tensor:
        """The slope of the chord over [lower, upper], about; 0 where that is infinite."""
        width, lib = upper - lower, library(lower)
        wide = width > _NARROW
        rise = (self.value(upper) - self.value(lower)) / lib.where(wide, width, 1.0)
        slope = lib.where(wide, rise, self.slope(lower / 2 + upper / 2))
        return lib.where(lib.isfinite(slope), slope, 0.0)

    def _envelopes(self, lower: Tensor, upper: Tensor) -> Ends:
        """The slopes of the lower and the upper envelope of samples, in the middle."""
        width, lib = upper - lower, library(lower)
        wide, where = width > _NARROW, lib.where
        step = where(wide, width, 1.0) / _SAMPLES
        shares = (counting(lower, _SAMPLES + 1) / _SAMPLES).reshape(-1, *(1 for _ in lower.shape))
        values = self.value(lower + (upper - lower) * retyped(shares, lower.dtype))
        tangent = self.slope(lower / 2 + upper / 2)
        below = _supporting(values)
        above = -_supporting(-values)
        return where(wide, below / step, tangent), where(wide, above / step, tangent)


def _supporting(values: Tensor) -> Tensor:
    """The slope, per sample, of a line below all samples that is as high as can be in the middle. # (samples, …)"""
    lib, middle = library(values), len(values) // 2
    height, right = values[middle], values[middle + 1 :]
    steps = retyped(counting(values, middle) + 1, values.dtype).reshape(-1, *(1 for _ in height.shape))
    for i in range(middle):
        share = (middle - i) / (steps + (middle - i))
        height = lib.minimum(height, lib.amin(values[i] * (1.0 - share) + right * share, 0))
    steepest = lib.amax((height - values[:middle]) / (middle + 1 - steps), 0)
    return (steepest + lib.amin((right - height) / steps, 0)) / 2


def _piece_extreme(piece: Piece, a: Tensor, lower: Tensor, upper: Tensor, sign: Literal[-1, 1]) -> Ends:
    """The least sign · (f(x) − a x) over the part of [lower, upper] in a piece, without what rounding may do, and where
    it is."""
    lib = library(lower)
    p, q = lib.clip(lower, piece.start, piece.stop), lib.clip(upper, piece.start, piece.stop)
    if piece.curvature != sign:  # concave, or a line
        first, last = sign * (piece.value(p) - a * p), sign * (piece.value(q) - a * q)
        return lib.minimum(first, last), lib.where(first <= last, p, q)
    t = _tangent_point(piece, a, p, q)
    rise = sign * (piece.slope(t) - a)
    return sign * (piece.value(t) - a * t) + lib.minimum(rise * (p - t), rise * (q - t)), t


def _tangent_point(piece: Piece, a: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Some t in [p, q], near to where f'(t) = a if there is such a point: halvings, then the Illinois method."""
    lib, sign = library(p), piece.curvature
    lib_where = lib.where

    def rise(t: Tensor) -> Tensor:
        return (piece.slope(t) - a) * sign

    left, right = lib.clip(p, -_FAR, _FAR), lib.clip(q, -_FAR, _FAR)
    for _ in range(_HALVINGS):
        t = (left + right) / 2
        up = rise(t) > 0
        left, right = lib_where(up, left, t), lib_where(up, t, right)
    low, high = rise(left), rise(right)
    for _ in range(_STEPS):
        span = high - low
        share = lib.clip(-low / lib_where(span > 0, span, 1.0), 0.0, 1.0)
        t = left + share * (right - left)
        now = rise(t)
        up = now > 0
        left, right = lib_where(up, left, t), lib_where(up, t, right)
        low, high = lib_where(up, low / 2, now), lib_where(up, now, high / 2)
    return lib.minimum(lib.maximum(t, p), q)

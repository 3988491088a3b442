"""Numbers as people read them."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import groupby
from math import isfinite, log10, nan


def percent(share: float) -> str:
    """
    >>> percent(0.61974)
    '62.0\\u202f%'
    """
    return f"{100 * share:.1f}\u202f%"


def duration(seconds: float) -> str:
    """
    >>> duration(0.0123), duration(7.25), duration(75), duration(9400)
    ('0.012\\u202fs', '7.2\\u202fs', '1\\u202fmin 15\\u202fs', '2\\u202fh 36\\u202fmin')
    """
    if not isfinite(seconds):
        return "unknown"
    if seconds < 60:
        return f"{seconds:.{3 if seconds < 0.1 else 2 if seconds < 1 else 1}f}\u202fs"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}\u202fmin {rest}\u202fs"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,}\u202fh {minutes}\u202fmin"


def size_text(count: float) -> str:
    """
    >>> size_text(464), size_text(53_400), size_text(2_000_000)
    ('464 bytes', '53.4\\u202fkB', '2.0\\u202fMB')
    """
    if count < 1000:
        return f"{count:,.0f} bytes"
    return f"{count / 1e3:,.1f}\u202fkB" if count < 1e6 else f"{count / 1e6:,.1f}\u202fMB"


def number(value: object) -> float:
    """The value as a float; NaN for whatever is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return nan
    try:
        return float(value) if isfinite(value) else nan
    except OverflowError:
        return nan


def compact(value: float) -> str:
    """A tick or a total: few digits, no exponent where it can be helped.

    >>> [compact(v) for v in (0, 0.05, 2.5, 12000, 3e6, 1e-5)]
    ['0', '0.05', '2.5', '12,000', '3,000,000', '1e-05']
    """
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "–"
    if abs(value) >= 100:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.2g}"
    return f"{value:.{2 if abs(value) < 1 else 3}g}"


def radius(text: str | None) -> float:
    """A radius such as "2/255" or "0.01"; NaN for none and for what is not one.

    >>> radius("2/255") * 255, radius("0.01"), radius("wide")
    (2.0, 0.01, nan)
    """
    try:
        return float(Fraction(text)) if text else nan
    except (ValueError, ZeroDivisionError, OverflowError):
        return nan


def ranges(numbers: Sequence[int]) -> str:
    """
    >>> ranges([0, 1, 2, 7, 9, 10])
    '0–2, 7, 9–10'
    """
    found = []
    for _, group in groupby(enumerate(sorted(set(numbers))), lambda pair: pair[1] - pair[0]):
        run = [value for _, value in group]
        found.append(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}")
    return ", ".join(found)


def linear_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round numbers that span a range.

    >>> linear_ticks(0, 97)
    [0.0, 20.0, 40.0, 60.0, 80.0]
    """
    span = high - low
    if not span > 0:
        return [low]
    rough = span / about
    power = 10.0 ** _floor(log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= 0.7 * rough)
    first = _floor(low / step + 0.999999)
    return [k * step for k in range(first, _floor(high / step + 1e-6) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten in a range, every second or third if there are many; 1, 2, 5 if there are few.

    >>> log_ticks(0.5, 30)
    [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
    """
    first, last = _floor(log10(low)), _floor(log10(high)) + 1
    stride = 1 + (last - first) // 7
    several = (1, 2, 5) if high < 100 * low else (1,)
    values = [float(f"{m}e{k}") for k in range(first, last + 1, stride) for m in several]
    return [v for v in values if low * 0.999 <= v <= high * 1.001]


def _floor(value: float) -> int:
    return int(value // 1)

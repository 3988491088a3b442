"""Every row of the table of activations, against arbitrary precision."""

import pickle

import numpy as np
import pytest
import torch
from curves import CONTEXT, EXACT, ROWS, exact, exact_slope, intervals

from surebound.errors import UnsupportedOpError
from surebound.network import ACTIVATIONS
from surebound.network.activation import ERROR, Activation, Lines
from surebound.network.activations import gelu_tanh

each = pytest.mark.parametrize("name", ROWS)
KINDS: tuple[Lines, ...] = ("interval", "fastlin", "crown")
POINTS = [
    s * v
    for v in (0.0, 1e-300, 1e-17, 1e-8, 1e-3, 0.5, 1.0, 3.0, 6.0, 20.0, 37.0, 40.0, 710.0, 750.0, 1e4, 1e30)
    for s in (1, -1)
]


def _points(rng: np.random.Generator) -> list[float]:
    turns = [
        end for row in ROWS.values() for piece in row.pieces for end in (piece.start, piece.stop) if np.isfinite(end)
    ]
    near = [float(np.nextafter(t, t + s)) for t in turns for s in (-1, 1)]
    return [*POINTS, *turns, *near, *(rng.normal(size=150) * 10.0 ** rng.uniform(-3, 2, size=150)).tolist()]


@each
def test_values_are_as_close_as_is_assumed(name: str, rng: np.random.Generator) -> None:
    """In torch and in NumPy: the assumption about exp, tanh, erf and the rest that all bounds rest on."""
    row, xs = ROWS[name], _points(rng)
    both = row.value(torch.tensor(xs, dtype=torch.float64)).tolist(), row.value(np.array(xs)).tolist()  # type: ignore[arg-type]
    for x, *values in zip(xs, *both, strict=True):
        for value in values:
            assert abs(CONTEXT.mpf(value) - exact(name, x)) <= ERROR / 8 * row.scale * (1 + abs(x)) ** row.degree


@each
def test_derivatives_are_as_close_as_is_assumed(name: str, rng: np.random.Generator) -> None:
    row, xs = ROWS[name], [x for x in _points(rng) if 1e-12 < abs(x) < 1e5]
    for x, slope in zip(xs, row.slope(torch.tensor(xs, dtype=torch.float64)).tolist(), strict=True):
        assert abs(CONTEXT.mpf(slope) - exact_slope(name, x)) <= ERROR / 8 * row.scale * (1 + abs(x)) ** (
            row.degree - 1
        )


FAR = [s * 10.0**k for k in (1, 2, 3, 6, 9, 15, 18, 24, 30, 100) for s in (1, -1)]


def _turns(row: Activation, name: str) -> list[float]:
    """Where f turns within its pieces: the two float64 between which its slope changes its sign."""
    found = []
    for piece in row.pieces:
        start, stop = max(piece.start, -60.0), min(piece.stop, 60.0)
        left, right = np.nextafter(start, stop), np.nextafter(stop, start)  # a kink's slope is that of its right
        falls = exact_slope(name, left) < 0
        if falls == (exact_slope(name, right) < 0):
            continue
        while (middle := left / 2 + right / 2) not in (left, right):
            left, right = (middle, right) if (exact_slope(name, middle) < 0) == falls else (left, middle)
        found += [left, right]
    return [float(x) for x in found]


@each
def test_the_range_is_rounded_outward(name: str) -> None:
    """Intervals are clipped to `low` and `high`, so they hold to 60 digits: far out, where f turns, and at the ends of
    pieces. A limit such as π/2 is rounded up, a minimum down."""
    row = ROWS[name]
    ends = [end for piece in row.pieces for end in (piece.start, piece.stop) if np.isfinite(end)]
    for x in (*FAR, *POINTS, *ends, *_turns(row, name)):
        assert row.low <= exact(name, x) <= row.high, x


@each
def test_pieces_cover_everything_and_curve_as_they_say(name: str, rng: np.random.Generator) -> None:
    row = ROWS[name]
    assert row.pieces[0].start == -np.inf and row.pieces[-1].stop == np.inf
    assert all(a.stop == b.start for a, b in zip(row.pieces, row.pieces[1:], strict=False))
    for piece in row.pieces:
        start, stop = max(piece.start, -60.0), min(piece.stop, 60.0)
        for width in (100.0, 1.0, 1e-2, 1e-3):
            for _ in range(60):
                edge = rng.choice([start, stop, rng.uniform(start, stop)])
                a, b = np.clip([edge + rng.uniform(0, width), edge - rng.uniform(0, width)], start, stop)
                inner = (CONTEXT.mpf(float(a)) + CONTEXT.mpf(float(b))) / 2
                if name == "sign" and 0.0 in (a, b, inner):
                    continue
                f = EXACT[name]
                bend = (f(CONTEXT.mpf(float(a))) + f(CONTEXT.mpf(float(b)))) / 2 - f(inner)
                if piece.curvature == 0:
                    assert abs(bend) <= 1e-40
                else:  # the ends of pieces are rounded
                    assert bend * piece.curvature >= -1e-30, (a, b)


@each
@pytest.mark.parametrize("kind", KINDS)
def test_lines_hold(name: str, kind: Lines, rng: np.random.Generator) -> None:
    """At both ends, between them, and at kinks and inflection points, in 60 digits."""
    row = ROWS[name]
    turns = torch.tensor([piece.start for piece in row.pieces[1:]], dtype=torch.float64)
    drawn = intervals(rng, 150)
    lower, upper = torch.cat([drawn[0], turns, turns - 1, turns]), torch.cat([drawn[1], turns, turns, turns + 1])
    lines = row.lines(lower, upper, kind)
    parts = (lower, upper, lines.below, lines.floor, lines.above, lines.ceiling)
    for low, high, a, b, c, d in zip(*(t.tolist() for t in parts), strict=True):
        for x in _inside(row, low, high, rng):
            value = exact(name, x)
            assert CONTEXT.mpf(a) * CONTEXT.mpf(x) + CONTEXT.mpf(b) <= value, (low, high, x)
            assert CONTEXT.mpf(c) * CONTEXT.mpf(x) + CONTEXT.mpf(d) >= value, (low, high, x)


@each
def test_extremes_hold_for_any_slope(name: str, rng: np.random.Generator) -> None:
    row = ROWS[name]
    lower, upper = intervals(rng, 200)
    slope = torch.from_numpy(rng.choice([-2.0, 0.0, 1.0, *rng.normal(size=20)], size=200))
    least, greatest = row.extremes(slope, lower, upper)
    for low, high, a, small, large in zip(*(t.tolist() for t in (lower, upper, slope, least, greatest)), strict=True):
        for x in _inside(row, low, high, rng):
            value = exact(name, x) - CONTEXT.mpf(a) * CONTEXT.mpf(x)
            assert small <= value <= large, (low, high, a, x)


def _inside(row: Activation, low: float, high: float, rng: np.random.Generator) -> list[float]:
    turns = [piece.start for piece in row.pieces[1:]]
    between = [low + (high - low) * share for share in (0.1, 0.5, 0.9, *rng.random(6))]
    return [min(max(x, low), high) for x in (low, high, *turns, *between)]


@each
def test_extremes_are_where_no_tangent_point_was_found(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tangent at any point of the piece is a bound, so the search for the best one need not be believed."""
    share = torch.from_numpy(rng.random(200))
    monkeypatch.setattr(
        "surebound.network.activation._tangent_point", lambda piece, a, p, q: torch.minimum(p + share * (q - p), q)
    )
    test_extremes_hold_for_any_slope(name, rng)


@each
def test_lines_are_close(name: str, rng: np.random.Generator) -> None:
    """On short intervals without kinks, by the square of their width; and never worse than flat ones."""
    row = ROWS[name]
    lower = torch.from_numpy(rng.uniform(0.05, 3.0, size=100) * rng.choice([-1, 1], size=100))
    lower = torch.where(lower.abs() < 0.05, 0.05, lower)
    upper = lower + 1e-2
    lines = row.lines(lower, upper)
    for x in (lower, upper):
        gap = (lines.above * x + lines.ceiling) - (lines.below * x + lines.floor)
        inside = (lower > 0) | (upper < 0)
        assert float(gap[inside].max()) <= 4 * row.scale * 1e-4
    wide = lower - 2, upper + 2
    areas = []
    for kind in KINDS:
        line = row.lines(*wide, kind)
        middle = (wide[0] + wide[1]) / 2
        areas.append((line.above - line.below) * middle + line.ceiling - line.floor)
    assert bool((areas[2] <= areas[0] + 0.02).all())


@pytest.mark.parametrize("share", [-0.99e-3, 0.99e-3])
def test_the_least_value_of_a_gelu_by_tanh_holds_for_all_its_constants(share: float) -> None:
    """Files round them; the valley is deepest where both are smallest."""
    k, c = (2 / np.pi) ** 0.5 * (1 + share), 0.044715 * (1 + share)
    x = torch.linspace(-1.0, -0.5, 10_001, dtype=torch.float64)
    low, _ = gelu_tanh(k, c).interval(x.new_tensor([-3.0]), x.new_tensor([0.0]))
    assert float(low) <= float((x * (1 + torch.tanh(k * (x + c * x**3))) / 2).min()) <= float(low) + 2e-4


@pytest.mark.parametrize(("k", "c"), [(0.7996, 0.044715), (0.7962, 0.044715), (0.79788, 0.0448), (0.79788, 0.0446)])
def test_a_gelu_by_tanh_has_about_the_usual_constants(k: float, c: float) -> None:
    """Of others, neither the least value nor where it turns is known."""
    with pytest.raises(UnsupportedOpError, match="GELU by tanh"):
        gelu_tanh(k, c)


@each
def test_nothing_is_known_far_out_but_the_range(name: str) -> None:
    row, inf = ROWS[name], torch.inf
    lower = torch.tensor([-inf, -inf, 0.0, -1e90], dtype=torch.float64)
    upper = torch.tensor([inf, 0.0, inf, 1e90], dtype=torch.float64)
    low, high = row.interval(lower, upper)
    assert bool((low >= row.low).all()) and bool((high <= row.high).all())
    assert not bool(torch.isnan(low).any() | torch.isnan(high).any())
    for kind in KINDS:
        lines = row.lines(lower, upper, kind)
        assert bool((lines.floor[:3] <= max(row.low, -inf)).all()) or bool((lines.below[:3] == 0).all())
        assert bool((lines.ceiling[:3] >= row.high).all())


def test_the_table_is_complete() -> None:
    assert list(ACTIVATIONS) == [row.name for row in ACTIVATIONS.values()]
    assert set(EXACT) == set(ROWS)
    for row in ROWS.values():
        copy = pickle.loads(pickle.dumps(row))  # as it travels to workers
        x = torch.linspace(-3, 3, 7, dtype=torch.float64)
        assert torch.equal(copy.value(x), row.value(x))

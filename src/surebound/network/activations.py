"""The table of activations: a row for each, and their names.

Why each row's pieces are convex or concave is said beside it. Inflection points that are no float64 are rounded, which
`surebound.network.activation` allows for.
"""

from __future__ import annotations

from functools import partial
from math import inf, pi, sqrt, tanh
from typing import TYPE_CHECKING

from surebound.errors import UnsupportedOpError
from surebound.network.activation import Activation, Piece
from surebound.network.arrays import erf, library, positive, zeros

if TYPE_CHECKING:
    from torch import Tensor

_ROOT = sqrt(0.5)
_DENSITY = 1.0 / sqrt(2.0 * pi)


def _zero(x: Tensor) -> Tensor:
    return zeros(x, *x.shape)


def _one(x: Tensor) -> Tensor:
    return zeros(x, *x.shape) + 1.0


def _minus_one(x: Tensor) -> Tensor:
    return zeros(x, *x.shape) - 1.0


def _same(x: Tensor) -> Tensor:
    return x


# ---- logistic functions: f'' = f' (1 − 2 f) for the sigmoid, −2 tanh f' for tanh, both with the sign of −x


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ)."""
    small = library(x).exp(-abs(x))
    return library(x).where(x >= 0, 1.0, small) / (1.0 + small)


def _sigmoid_slope(x: Tensor) -> Tensor:
    small = library(x).exp(-abs(x))
    return small / (1.0 + small) / (1.0 + small)


def _tanh(x: Tensor) -> Tensor:
    return library(x).tanh(x)


def _tanh_slope(x: Tensor) -> Tensor:
    return 4.0 * _sigmoid_slope(2.0 * x)


def _erf_slope(x: Tensor) -> Tensor:
    return library(x).exp(-x * x) * (2.0 / sqrt(pi))


def _turning(value: object, slope: object) -> tuple[Piece, ...]:
    """Convex before 0, concave after it."""
    return (
        Piece(stop=0.0, curvature=1, value=value, slope=slope),  # type: ignore[arg-type]
        Piece(start=0.0, curvature=-1, value=value, slope=slope),  # type: ignore[arg-type]
    )


SIGMOID = Activation(
    name="sigmoid",
    onnx="Sigmoid",
    function="sigmoid",
    module="Sigmoid",
    pieces=_turning(sigmoid, _sigmoid_slope),
    low=0.0,
    high=1.0,
)
TANH = Activation(
    name="tanh", onnx="Tanh", function="tanh", module="Tanh", pieces=_turning(_tanh, _tanh_slope), low=-1.0, high=1.0
)
ERF = Activation(
    name="erf", onnx="Erf", function="erf", pieces=_turning(erf, _erf_slope), low=-1.0, high=1.0
)  # f'' = −2 x f'


# ---- softplus, f'' = σ' > 0, and ELU: a curve before 0, the identity after it


def _softplus(x: Tensor) -> Tensor:
    return positive(x) + library(x).log1p(library(x).exp(-abs(x)))


SOFTPLUS = Activation(
    name="softplus", onnx="Softplus", pieces=(Piece(curvature=1, value=_softplus, slope=sigmoid),), low=0.0
)


def _elu_before(alpha: float, x: Tensor) -> Tensor:
    return alpha * library(x).expm1(x)


def _elu_slope(alpha: float, x: Tensor) -> Tensor:
    return alpha * library(x).exp(x)


def elu(alpha: float = 1.0) -> Activation:
    """x where positive, α (eˣ − 1) elsewhere; for any α, whose sign is that of f'' there."""
    curve = Piece(
        stop=0.0,
        curvature=1 if alpha > 0 else -1,
        value=partial(_elu_before, alpha),
        slope=partial(_elu_slope, alpha),
    )
    line = Piece(start=0.0, curvature=0, value=_same, slope=_one)
    low = -alpha if alpha > 0 else 0.0
    return Activation(name="elu", pieces=(curve, line), low=low, scale=1.0 + abs(alpha), cuts=(0.0,))


ELU = elu()


# ---- SiLU and GELU: concave, convex, concave

SILU_TURN = 2.3993572805154677
"""f'' = σ'(x) (2 − x tanh(x/2)), and x tanh(x/2) rises with |x|: it is 2 here and at minus that."""
GELU_TURN = sqrt(2.0)
"""f'' = φ(x) (2 − x²)."""


def _silu(x: Tensor) -> Tensor:
    return x * sigmoid(x)


def _silu_slope(x: Tensor) -> Tensor:
    return sigmoid(x) + x * _sigmoid_slope(x)


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + erf(x * _ROOT))


def _gelu_slope(x: Tensor) -> Tensor:
    return 0.5 * (1.0 + erf(x * _ROOT)) + x * (library(x).exp(-0.5 * x * x) * _DENSITY)


def _gelu_tanh(k: float, c: float, x: Tensor) -> Tensor:
    return x * sigmoid(2.0 * k * (x + c * x * x * x))


def _gelu_tanh_slope(k: float, c: float, x: Tensor) -> Tensor:
    near = library(x).clip(x, -100.0, 100.0)  # further out, σ' is 0 and cubes may overflow
    v = 2.0 * k * (near + c * near * near * near)
    return sigmoid(v) + _sigmoid_slope(v) * (near * (2.0 * k * (1.0 + 3.0 * c * near * near)))


def _valley(turn: float, value: object, slope: object) -> tuple[Piece, ...]:
    return (
        Piece(stop=-turn, curvature=-1, value=value, slope=slope),  # type: ignore[arg-type]
        Piece(start=-turn, stop=turn, curvature=1, value=value, slope=slope),  # type: ignore[arg-type]
        Piece(start=turn, curvature=-1, value=value, slope=slope),  # type: ignore[arg-type]
    )


SILU = Activation(
    name="silu", function="silu", module="SiLU", pieces=_valley(SILU_TURN, _silu, _silu_slope), low=-0.2785
)
GELU = Activation(name="gelu", pieces=_valley(GELU_TURN, _gelu, _gelu_slope), low=-0.17)


def gelu_tanh(k: float = sqrt(2.0 / pi), c: float = 0.044715) -> Activation:
    """x σ(2 v) = x (1 + tanh v) / 2 with v = k (x + c x³), for k and c about those of the default, which files round.

    f'' = 4 k σ'(2 v) (1 + 6 c x²) (1 − k x tanh(v) (1 + 9 c² x⁴ / (1 + 6 c x²))), whose last factor falls with |x|.
    """
    if not (abs(k / sqrt(2.0 / pi) - 1.0) < 1e-3 and abs(c / 0.044715 - 1.0) < 1e-3):
        raise UnsupportedOpError(f"a GELU by tanh with the constants {k!r} and {c!r} is not supported")
    low, high = 1.0, 2.0
    for _ in range(60):
        x = (low + high) / 2
        factor = 1.0 - k * x * tanh(k * (x + c * x**3)) * (1.0 + 9.0 * c * c * x**4 / (1.0 + 6.0 * c * x * x))
        low, high = (x, high) if factor > 0 else (low, x)
    pieces = _valley(high, partial(_gelu_tanh, k, c), partial(_gelu_tanh_slope, k, c))
    return Activation(name="gelu-tanh", pieces=pieces, low=-0.1703)  # −0.17004 by default, −0.17021 for the least k and c


GELU_TANH = gelu_tanh()


# ---- powers


def _square(x: Tensor) -> Tensor:
    return x * x


def _square_slope(x: Tensor) -> Tensor:
    return 2.0 * x


def _cube(x: Tensor) -> Tensor:
    return x * x * x


def _cube_slope(x: Tensor) -> Tensor:
    return 3.0 * x * x


SQUARE = Activation(
    name="square", pieces=(Piece(curvature=1, value=_square, slope=_square_slope),), low=0.0, scale=2.0, degree=2
)
CUBE = Activation(
    name="cube",
    pieces=(
        Piece(stop=0.0, curvature=-1, value=_cube, slope=_cube_slope),
        Piece(start=0.0, curvature=1, value=_cube, slope=_cube_slope),
    ),
    scale=3.0,
    degree=3,
)


# ---- jumps and kinks

SIGN_GAP = 2.0**-40
"""Splits are at ± this: between them, a sign may be anything in [−1, 1], and 0 lies in there."""
SIGN = Activation(
    name="sign",
    onnx="Sign",
    function="sign",
    pieces=(
        Piece(stop=0.0, curvature=0, value=_minus_one, slope=_zero),
        Piece(start=0.0, curvature=0, value=_one, slope=_zero),
    ),
    low=-1.0,
    high=1.0,
    cuts=(-SIGN_GAP, SIGN_GAP),
    jumps=True,
)
RELU = Activation(
    name="relu",
    pieces=(
        Piece(stop=0.0, curvature=0, value=_zero, slope=_zero),
        Piece(start=0.0, curvature=0, value=_same, slope=_one),
    ),
    low=0.0,
    high=inf,
    cuts=(0.0,),
)

"""Products x · g(x) that are activations: powers, and SiLU and GELU in files that have no operation for those.

With the constants of the file, whatever they are rounded to, the identities are

    x σ(r x) = silu(r x) / r,     x (1 + tanh(r x)) = silu(2 r x) / r,     x (1 + erf(r x)) = √2 gelu(√2 r x) / r,

and x (1 + tanh(k (x + c x³))) is twice the GELU by tanh with these k and c.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from fractions import Fraction
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from surebound.errors import UnsupportedOpError
from surebound.network.activation import Activation
from surebound.network.activations import CUBE, ERF, GELU, SIGMOID, SILU, SQUARE, TANH, gelu_tanh
from surebound.network.build import Builder, Numbers
from surebound.network.graph import Pointwise
from surebound.network.linear import Scale, Shift, Sum

if TYPE_CHECKING:
    from surebound.load.algebra import Algebra, Data

_ROUNDINGS = 32  # of a product with a constant that is made of others, each of which may carry a few


@dataclass(frozen=True)
class _Line:
    """scale · node + shift."""

    node: int
    scale: float
    shift: float
    centred: bool  # whether it is scale · (node + 1), and not only up to the roundings of scale and shift


def gated(algebra: Algebra, a: Data, b: Data) -> Data:
    """a ⊙ b, if that is an activation of what both depend on."""
    if a.shape == b.shape:
        for x, gate in ((a, b), (b, a)):
            node = _gate(algebra.builder, x.node, gate.node)
            if node is not None:
                return type(a)(node, a.shape)
    raise UnsupportedOpError(
        "both factors depend on the network's input; expected a constant factor, or x · x, x · x², SiLU or GELU"
    )


def _gate(builder: Builder, x: int, gate: int) -> int | None:
    factor, outer = _peeled(builder, x), _peeled(builder, gate)
    if x == gate:
        return builder.apply(x, SQUARE)
    if _is(builder, gate, SQUARE, of=x):
        return builder.apply(x, CUBE)
    op = builder.node(outer.node).op
    if not isinstance(op, Pointwise) or factor.shift or not _normal(factor.scale * outer.scale):
        return None
    inner = _peeled(builder, builder.node(outer.node).inputs[0])
    if op.function is TANH and outer.centred and not inner.shift:
        cubic = _cubic(builder, inner.node, factor.node)
        if cubic is not None:
            curve = builder.apply(factor.node, gelu_tanh(inner.scale, cubic))
            return _scaled(builder, curve, 2.0 * factor.scale * outer.scale)
    times = factor.scale * outer.scale / inner.scale
    if inner.node != factor.node or inner.shift or not _normal(times):
        return None
    if op.function is SIGMOID and outer.shift == 0:
        return _scaled(builder, builder.apply(_scaled(builder, inner.node, inner.scale), SILU), times)
    if op.function is TANH and outer.centred:
        return _scaled(builder, builder.apply(_scaled(builder, inner.node, 2.0 * inner.scale), SILU), times)
    if op.function is ERF and outer.centred:
        curve = builder.apply(_scaled(builder, inner.node, sqrt(2.0) * inner.scale), GELU)
        return _scaled(builder, curve, sqrt(2.0) * times)
    return None


def _cubic(builder: Builder, node: int, x: int) -> float | None:
    """The c of x + c x³, if that is what a node is."""
    op, inputs = builder.node(node).op, builder.node(node).inputs
    if not isinstance(op, Sum) or sorted(op.signs.tolist()) != [1.0, 1.0] or x not in inputs:
        return None
    other = _peeled(builder, inputs[1] if inputs[0] == x else inputs[0])
    return other.scale if _is(builder, other.node, CUBE, of=x) and not other.shift else None


def _is(builder: Builder, node: int, function: Activation, *, of: int) -> bool:
    """Whether a node is a function of another node, and nothing else."""
    op = builder.node(node).op
    return isinstance(op, Pointwise) and op.function is function and builder.node(node).inputs == (of,)


def _scaled(builder: Builder, x: int, factor: float) -> int:
    if factor == 1.0:
        return x
    weight: Numbers = np.full(builder.shape(x), factor)
    return builder.add(Scale(weight, roundings=_ROUNDINGS, computed=True), x)


def _peeled(builder: Builder, x: int) -> _Line:
    """The node without a few scales and at most one shift, by one number each.

    Two shifts may nearly cancel, and a number below float64's normal range has lost digits: either is off by more than
    the few roundings of a constant, so it is left where it is.
    """
    scale, shift = 1.0, 0.0
    ratio = Fraction(0)  # of the scale to the shift, exactly
    for _ in range(3):
        node = builder.node(x)
        if isinstance(node.op, Scale) and node.op.bias is None and _uniform(node.op.weight):
            number = float(node.op.weight.reshape(-1)[0])
            if not _normal(scale * number):
                break
            scale *= number
            ratio *= 0 if node.op.computed else Fraction(number)
        elif isinstance(node.op, Shift) and not shift and _uniform(node.op.bias):
            number = float(node.op.bias.reshape(-1)[0])
            if not _normal(scale * number):
                break
            shift += scale * number
            ratio = 1 / Fraction(number)
        else:
            break
        (x,) = node.inputs
    return _Line(x, scale, shift, ratio == 1)


def _normal(number: float) -> bool:
    """Whether a product has the relative accuracy of float64."""
    return sys.float_info.min <= abs(number) <= sys.float_info.max


def _uniform(values: object) -> bool:
    numbers = np.asarray(values)
    return bool((numbers == numbers.reshape(-1)[0]).all())

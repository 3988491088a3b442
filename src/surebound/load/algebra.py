"""What both loaders compute with: tensors of the network under construction, and constants.

A `Data` carries its full shape, with the batch axis if the file has one (a batch is always 1 here). Everything that
only moves numbers (transpose, slice, gather, …) is done on an array of positions and becomes one `Pick`, so that
questions about which axis is the batch never arise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.limits import AXES, check_elements
from surebound.load.gates import gated
from surebound.load.resize import Axis
from surebound.load.window import Window
from surebound.network.activation import Activation
from surebound.network.activations import elu
from surebound.network.build import Builder, Pads, Real, real
from surebound.network.linear import size
from surebound.network.op import Shape
from surebound.network.pooling import average_pool, max_pool, reduce_max, reduce_sum

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[Any]
Move = Callable[[NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True)
class Data:
    """A tensor that depends on the input."""

    node: int
    shape: Shape  # with the batch


Value = Data | Array


def inner(shape: Shape) -> Shape:
    """The shape that a node of the network has: without the batch, and never without axes.

    >>> inner((1, 3, 8)), inner((4, 5)), inner((1,)), inner(())
    ((3, 8), (4, 5), (1,), (1,))
    """
    return shape[1:] if len(shape) > 1 and shape[0] == 1 else shape or (1,)


def joint_shape(*shapes: Shape) -> Shape:
    """What shapes are broadcast to, of any size.

    >>> joint_shape((3, 1), (2**40,))
    (3, 1099511627776)
    """
    rank = max(map(len, shapes))
    if rank > AXES:
        raise NetworkError(f"a tensor has {rank} axes; expected at most {AXES}")
    joint = []
    for lengths in zip(*((*(1,) * (rank - len(shape)), *shape) for shape in shapes), strict=True):
        different = {n for n in lengths if n != 1} or {1}
        if len(different) > 1:
            raise NetworkError(f"shapes {', '.join(str(list(s)) for s in shapes)} cannot be broadcast to one")
        joint.append(different.pop())
    return tuple(joint)


class Algebra:
    """Arithmetic with NumPy's broadcasting on tensors of which at least one is a `Data`."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder

    def wrap(self, node: int, shape: Sequence[int]) -> Data:
        """A node's elements under a full shape."""
        full = tuple(shape)
        return Data(self.builder.reshape(node, inner(full)), full)

    def data(self, value: Value) -> Data:
        """The value as a `Data`, if need be one that is constant."""
        if isinstance(value, Data):
            return value
        return self.wrap(self.builder.constant(_exact(value).reshape(-1)), value.shape)

    # ---- moving numbers

    def move(self, x: Data, f: Move) -> Data:
        """f is run on the positions 0, 1, … of x, and puts −1 where a zero is to come."""
        index = np.asarray(f(np.arange(size(x.shape), dtype=np.int64).reshape(x.shape)))
        shape = tuple(index.shape)
        return Data(self.builder.pick(x.node, np.ascontiguousarray(index.reshape(inner(shape)))), shape)

    def broadcast(self, x: Data, shape: Shape) -> Data:
        """x repeated along new axes and axes of length 1."""
        check_elements(shape)
        return x if x.shape == shape else self.move(x, lambda index: np.broadcast_to(index, shape))

    def concat(self, values: Sequence[Value], axis: int) -> Data:
        """Values joined along an axis."""
        xs = [self.data(v) for v in values]
        rank = len(xs[0].shape)
        if not -rank <= axis < rank or any(len(x.shape) != rank for x in xs):
            raise NetworkError(f"shapes {[list(x.shape) for x in xs]} cannot be joined along axis {axis}")
        axis %= rank
        shape = (*xs[0].shape[:axis], sum(x.shape[axis] for x in xs), *xs[0].shape[axis + 1 :])
        if axis and all(x.shape[0] == 1 for x in xs):
            return self.wrap(self.builder.concat([x.node for x in xs], axis - 1), shape)
        return self.wrap(self.builder.concat([self.builder.reshape(x.node, x.shape) for x in xs], axis), shape)

    def pad(self, x: Data, pads: Pads, value: Real = 0.0) -> Data:
        """A constant around x, (before, after) for each axis."""
        if any(p < 0 for pair in pads for p in pair):
            raise NetworkError(f"pads of {[list(p) for p in pads]} remove elements; expected pads of at least 0")
        check_elements(n + before + after for n, (before, after) in zip(x.shape, pads, strict=True))
        padded = self.move(x, lambda index: np.pad(index, pads, constant_values=-1))
        fill = np.pad(np.zeros(x.shape), pads, constant_values=float(real(value)))
        return self.shift(padded, fill)

    # ---- arithmetic

    def shift(self, x: Data, constant: Array) -> Data:
        """x + c."""
        shape = joint_shape(x.shape, constant.shape)
        x = self.broadcast(x, shape)
        return Data(self.builder.shift(x.node, _spread(constant, shape)), shape)

    def scale(self, x: Data, constant: Array | Tensor, *, exact: bool = True) -> Data:
        """c ⊙ x; `exact` as in `Builder.scale`."""
        c = np.asarray(constant)
        shape = joint_shape(x.shape, c.shape)
        x = self.broadcast(x, shape)
        return Data(self.builder.scale(x.node, _spread(c, shape), exact=exact), shape)

    def sum(self, a: Value, b: Value, sign: int = 1) -> Data:
        """a + b or a − b."""
        if isinstance(a, Data) and isinstance(b, Data):
            shape = joint_shape(a.shape, b.shape)
            nodes = self.broadcast(a, shape).node, self.broadcast(b, shape).node
            return Data(self.builder.sum(*nodes, signs=(1, sign)), shape)
        if isinstance(a, Data):
            assert not isinstance(b, Data)
            return self.shift(a, sign * _exact(b))
        assert isinstance(b, Data) and not isinstance(a, Data)
        return self.shift(b if sign == 1 else self.each(b, self.builder.negate), _exact(a))

    def product(self, a: Value, b: Value) -> Data:
        """a ⊙ b with one of them constant."""
        if isinstance(a, Data) and isinstance(b, Data):
            return gated(self, a, b)
        if isinstance(a, Data):
            assert not isinstance(b, Data)
            return self.scale(a, _exact(b))
        assert isinstance(b, Data) and not isinstance(a, Data)
        return self.scale(b, _exact(a))

    def quotient(self, a: Value, b: Value) -> Data:
        """a / b with b constant."""
        if isinstance(b, Data):
            raise UnsupportedOpError("the divisor depends on the input; expected a constant")
        assert isinstance(a, Data)
        divisor = _exact(b)
        if not divisor.all():
            raise NetworkError("a tensor is divided by zero; expected divisors other than 0")
        return self.scale(a, 1.0 / divisor, exact=bool((np.abs(divisor) == 1).all()))

    def extreme(self, values: Sequence[Value], *, largest: bool) -> Data:
        """The element-wise maximum (or minimum) of all values."""
        constants = [_exact(v) for v in values if not isinstance(v, Data)]
        tensors = [v for v in values if isinstance(v, Data)]
        pick = self.builder.maximum if largest else self.builder.minimum
        shape = joint_shape(*(v.shape for v in values))
        nodes = [self.broadcast(v, shape).node for v in tensors]
        node = reduce(pick, nodes)
        if constants:
            bound = reduce(np.maximum if largest else np.minimum, constants)
            node = pick(node, real(_spread(np.asarray(bound), shape)))
        return Data(node, shape)

    def choose(self, condition: Array, a: Value, b: Value) -> Data:
        """a where a constant is true, b elsewhere."""
        mask = np.asarray(condition).astype(bool)
        return self.sum(self._masked(a, mask), self._masked(b, ~mask))

    def _masked(self, x: Value, mask: Array) -> Value:
        """x where a mask is true, 0 elsewhere."""
        if isinstance(x, Data):
            return self.scale(x, mask.astype(np.float64))
        return np.where(mask, _exact(x), 0.0)

    def apply(self, x: Data, function: Activation) -> Data:
        """f(x), element by element."""
        return self.each(x, lambda node: self.builder.apply(node, function))

    def each(self, x: Data, f: Callable[[int], int]) -> Data:
        """A function of the node that keeps its shape."""
        return Data(f(x.node), x.shape)

    def leaky_relu(self, x: Data, slope: Array) -> Data:
        """x where positive, slope ⊙ x elsewhere."""
        spread = _spread(_exact(slope), x.shape)
        return self.each(x, lambda node: self.builder.leaky_relu(node, spread))

    # ---- products with matrices

    def matmul(self, a: Value, b: Value) -> Data:
        """NumPy's a @ b with one of them constant, of at most two axes."""
        if isinstance(a, Data) and not isinstance(b, Data) and b.ndim in (1, 2):
            matrix = _exact(b).reshape(len(b), -1)
            shape = (*a.shape[:-1], *b.shape[1:])
            return self.wrap(self.builder.linear(a.node, matrix.T), shape)
        if isinstance(b, Data) and not isinstance(a, Data) and a.ndim in (1, 2):
            if len(b.shape) == 1:
                return self.matmul(b, a.T)
            product = self.matmul(self.move(b, lambda index: index.swapaxes(-1, -2)), np.atleast_2d(a).T)
            turned = self.move(product, lambda index: index.swapaxes(-1, -2))
            return turned if a.ndim == 2 else self.move(turned, lambda index: index.squeeze(-2))
        raise UnsupportedOpError("a matrix product has no constant matrix of one or two axes")

    def conv(self, x: Data, weight: Array, bias: Array | None, w: Window) -> Data:
        """A convolution of (1, channels, *size)."""
        b = None if bias is None else _exact(bias)
        if b is not None and b.shape != weight.shape[:1]:
            raise NetworkError(f"a bias of shape {list(b.shape)} does not fit {weight.shape[0]} output channels")
        node = self.builder.conv(
            self.image(x), _exact(weight), b, stride=w.stride, pads=w.pads, dilation=w.dilation, groups=w.groups
        )
        return Data(node, (1, *self.builder.shape(node)))

    def conv_transpose(
        self,
        x: Data,
        weight: Array,
        bias: Array | None,
        stride: Shape,
        pads: Pads,
        dilation: Shape,
        groups: int,
        extra: Shape,
    ) -> Data:
        """A transposed convolution of (1, channels, *size); `extra` rows are added at the end of each axis."""
        b = None if bias is None else _exact(bias)
        node = self.builder.conv_transpose(
            self.image(x),
            _exact(weight),
            b,
            stride=stride,
            pads=pads,
            dilation=dilation,
            groups=groups,
            extra=extra,
        )
        return Data(node, (1, *self.builder.shape(node)))

    def resize(self, x: Data, axes: Mapping[int, Axis], mode: str, rounding: str) -> Data:
        """Axes made longer or shorter, by the "nearest" element (with a rule for which that is) or "linear"."""
        if mode not in ("nearest", "linear"):
            raise UnsupportedOpError(f"resizing by '{mode}' is not supported; expected nearest or linear")
        check_elements(max(axes[a].after if a in axes else n, 1) for a, n in enumerate(x.shape))
        for number, axis in axes.items():
            if axis.after < 1:
                raise NetworkError(f"axis {number} is resized to {axis.after} elements; expected at least one")
            if axis.after == axis.before and axis.scale != 1:
                raise UnsupportedOpError(
                    f"axis {number} is resized by {float(axis.scale):g} and keeps its length, which runtimes take for"
                    " no change at all; expected a scale of 1"
                )
            if axis.scale == 1:
                continue
            if mode == "nearest":
                index = axis.nearest(rounding)
                x = self.move(x, lambda at, index=index, number=number: np.take(at, index, number))  # type: ignore[misc]
            else:
                last = self.move(x, lambda at, number=number: np.moveaxis(at, number, -1))  # type: ignore[misc]
                parts, divisor = axis.linear()
                mixed = self.matmul(last, parts.T)
                mixed = mixed if (divisor == 1).all() else self.quotient(mixed, divisor)
                x = self.move(mixed, lambda at, number=number: np.moveaxis(at, -1, number))  # type: ignore[misc]
        return x

    def elu(self, x: Data, alpha: float) -> Data:
        """x where positive, α (eˣ − 1) elsewhere."""
        return self.each(x, self.builder.relu) if alpha == 0 else self.apply(x, elu(alpha))

    def celu(self, x: Data, alpha: float) -> Data:
        """α elu(x / α)."""
        if not alpha > 0:
            raise UnsupportedOpError(f"a CELU with alpha = {alpha:g} is not supported; expected one above 0")
        inner = self.scale(x, np.asarray(1.0 / alpha), exact=alpha == 1.0)
        return self.scale(self.apply(inner, elu(1.0)), np.asarray(alpha))

    def image(self, x: Data) -> int:
        """The node of a (1, channels, *size) tensor."""
        if len(x.shape) < 3 or x.shape[0] != 1:
            raise NetworkError(f"a tensor has the shape {list(x.shape)}; expected [1, channels, size, …]")
        return x.node

    def max_pool(self, x: Data, w: Window) -> Data:
        """Max pooling of (1, channels, *size)."""
        node = max_pool(
            self.builder,
            self.image(x),
            w.kernel,
            stride=w.stride,
            pads=w.pads,
            dilation=w.dilation,
            ceil_mode=w.ceil_mode,
        )
        return Data(node, (1, *self.builder.shape(node)))

    def average_pool(self, x: Data, w: Window) -> Data:
        """Average pooling of (1, channels, *size)."""
        node = average_pool(
            self.builder,
            self.image(x),
            w.kernel,
            stride=w.stride,
            pads=w.pads,
            dilation=w.dilation,
            ceil_mode=w.ceil_mode,
            count_include_pad=w.count_include_pad,
        )
        return Data(node, (1, *self.builder.shape(node)))

    def batch_norm(self, x: Data, gamma: Array, beta: Array, mean: Array, variance: Array, epsilon: float) -> Data:
        """Batch normalisation of (1, channels, …) with fixed statistics."""
        g, b, m, v = (_exact(c) for c in (gamma, beta, mean, variance))
        if len(x.shape) < 2 or x.shape[0] != 1 or any(c.shape != x.shape[1:2] for c in (g, b, m, v)):
            raise NetworkError(f"a batch norm's constants do not fit a tensor of shape {list(x.shape)}")
        return self.each(x, lambda node: self.builder.batch_norm(node, g, b, m, v, epsilon))

    def reduce(self, x: Data, axes: Sequence[int] | None, keep: bool, kind: str) -> Data:
        """The "sum", "mean", "max" or "min" over some axes, all if None."""
        rank = len(x.shape)
        if any(not -rank <= a < rank for a in axes or ()):
            raise NetworkError(f"axes {list(axes or ())} do not exist in the shape {list(x.shape)}")
        chosen = sorted(set(range(rank)) if axes is None else {a % rank for a in axes})
        kept = tuple(1 if a in chosen else n for a, n in enumerate(x.shape))
        shape = kept if keep else tuple(n for a, n in enumerate(x.shape) if a not in chosen)
        if not chosen:
            return x
        b = self.builder
        if kind in ("sum", "mean"):
            node = reduce_sum(b, b.reshape(x.node, x.shape), chosen, mean=kind == "mean")
            return self.wrap(node, shape)
        node = b.reshape(x.node if kind == "max" else b.negate(x.node), x.shape)
        for axis in chosen:
            node = reduce_max(b, node, axis)
        return self.wrap(node if kind == "max" else b.negate(node), shape)


def check_real(constant: Array) -> None:
    """Refuse a constant that no network computes with."""
    if constant.dtype.kind in "OSUc":
        raise NetworkError("a constant is text or complex; expected real numbers")


def _exact(constant: Array) -> NDArray[np.float64]:
    """The constant in float64, which holds every float16, bfloat16, float32 and float64."""
    check_real(np.asarray(constant))
    with np.errstate(invalid="ignore"):  # a NaN is refused where it is used
        return np.asarray(constant).astype(np.float64)


def _spread(constant: Array, shape: Shape) -> NDArray[np.float64]:
    """The constant with a node's shape."""
    return np.ascontiguousarray(np.broadcast_to(_exact(constant), shape)).reshape(inner(shape))

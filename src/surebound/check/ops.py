"""Affine operations z = A a + b: what A and |A| do to points, and what Aᵀ does to coefficients.

The leading axis is a batch. `terms` bounds how many roundings an entry of A a passes through, `back` an entry of Aᵀ λ:
the length of its sum, and what the entries of A carry if they were computed; 0 if nothing is computed.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from surebound.check.arithmetic import Array

Shape = tuple[int, ...]


class Op:
    """Base of all nodes: reads arrays of the shapes `sources`, returns one of `shape`."""

    moves = False  # whether each entry of z is an entry of an a, or zero: nothing is computed

    def __init__(self, shape: Shape, sources: Sequence[Shape], terms: int = 0, back: int = 0) -> None:
        self.shape, self.sources, self.terms, self.back = shape, tuple(sources), terms, back
        self.bias: Array | None = None  # (elements,)
        self.room = prod(shape)  # numbers that the adjoint of one g takes

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        """A a, or |A| a. # (batch, *source) … -> (batch, *shape)"""
        raise NotImplementedError

    def adjoint(self, g: Array) -> list[Array]:
        """Aᵀ g, one for each a. # (batch, *shape) -> (batch, *source) …"""
        raise NotImplementedError


class Input(Op):
    """The network's input."""


class Relu(Op):
    """max(x̂, 0)."""


class Linear(Op):
    """x Wᵀ on the last axis. # weight (out, in)"""

    def __init__(self, lead: Shape, weight: Array) -> None:
        super().__init__((*lead, weight.shape[0]), [(*lead, weight.shape[1])], weight.shape[1], weight.shape[0])
        self.weight = weight

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        return np.asarray(xs[0] @ (abs(self.weight) if absolute else self.weight).T)

    def adjoint(self, g: Array) -> list[Array]:
        return [g @ self.weight]


class Conv(Op):
    """A convolution of (channels, height, width). # weight (out, in / groups, kh, kw); a pair of pads for each axis"""

    def __init__(
        self, source: Shape, weight: Array, stride: Shape, pads: list[tuple[int, int]], dilation: Shape, groups: int
    ) -> None:
        self.weight, self.groups, self.pads, self.stride, self.dilation = weight, groups, pads, stride, dilation
        self.padded = tuple(n + sum(p) for n, p in zip(source[1:], pads, strict=True))
        axes = zip(self.padded, weight.shape[2:], stride, dilation, strict=True)
        self.places = tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in axes)
        kernel = prod(weight.shape[2:])
        terms, back = weight.shape[1] * kernel, len(weight) // groups * kernel
        super().__init__((len(weight), *self.places), [source], terms, back)
        self.room = source[0] * kernel * prod(self.places)

    def _windows(self, *ranges: tuple[int, int]) -> Iterator[tuple[Any, ...]]:
        """Where each entry of the kernel reads the padded image, for ranges of places."""
        for offset in np.ndindex(self.weight.shape[2:]):
            axes = zip(offset, self.dilation, self.stride, ranges, strict=True)
            yield (..., *(slice(i * d + s * a, i * d + s * (b - 1) + 1, s) for i, d, s, (a, b) in axes))

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        weight, batch = abs(self.weight) if absolute else self.weight, len(xs[0])
        x = np.pad(xs[0], [(0, 0), (0, 0), *self.pads])
        columns = np.stack([x[window] for window in self._windows(*((0, n) for n in self.places))], 2)
        matrix = weight.reshape(self.groups, len(weight) // self.groups, -1)
        product = matrix @ columns.reshape(batch, self.groups, -1, prod(self.places))
        return np.asarray(product.reshape(batch, *self.shape))

    def adjoint(self, g: Array) -> list[Array]:
        batch, (channels, height, width) = len(g), self.sources[0]
        g = g.reshape(batch, len(self.weight), *self.places)
        live = np.asarray(g.any((0, 1)))  # a claim on one neuron reads a part of the image: the rest is zero
        (a, b), (c, d) = (np.flatnonzero(live.any(axis))[[0, -1]] if live.any() else (0, 0) for axis in (1, 0))
        matrix = self.weight.reshape(self.groups, len(self.weight) // self.groups, -1).swapaxes(1, 2)
        columns = matrix @ g[:, :, a : b + 1, c : d + 1].reshape(batch, self.groups, -1, (b + 1 - a) * (d + 1 - c))
        columns = columns.reshape(batch, channels, -1, b + 1 - a, d + 1 - c)
        x = np.zeros((batch, channels, *self.padded), dtype=g.dtype)
        for k, window in enumerate(self._windows((a, b + 1), (c, d + 1))):
            x[window] += columns[:, :, k]
        top, left = (before for before, _ in self.pads)
        return [x[:, :, top : top + height, left : left + width]]


class Scale(Op):
    """w ⊙ x, with a w that carries some roundings."""

    def __init__(self, weight: Array, roundings: int) -> None:
        super().__init__(weight.shape, [weight.shape], 1 + roundings, 1 + roundings)
        self.weight = weight

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        return np.asarray(xs[0] * (abs(self.weight) if absolute else self.weight))

    def adjoint(self, g: Array) -> list[Array]:
        return [g * self.weight]


class Sum(Op):
    """Σ ± xᵢ."""

    def __init__(self, shape: Shape, signs: Sequence[int]) -> None:
        super().__init__(shape, [shape] * len(signs), len(signs))
        self.signs = signs

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        total = xs[0] if absolute or self.signs[0] > 0 else -xs[0]
        for x, sign in zip(xs[1:], self.signs[1:], strict=True):
            total = total + x if absolute or sign > 0 else total - x
        return total

    def adjoint(self, g: Array) -> list[Array]:
        return [g if sign > 0 else -g for sign in self.signs]


class Pick(Op):
    """Entries of the a's, flattened and joined: z[i] = a[index[i]], and 0 where index[i] is −1."""

    moves = True

    def __init__(self, index: Array, sources: Sequence[Shape]) -> None:
        self.index, self.ends = index.reshape(-1), np.cumsum([prod(s) for s in sources])
        often = int(np.bincount(self.index[self.index >= 0], minlength=1).max())
        super().__init__(index.shape, sources, back=often if often > 1 else 0)
        used = np.flatnonzero(self.index >= 0)
        self.inverse = np.full(int(self.ends[-1]), -1, dtype=np.int64)
        self.inverse[self.index[used]] = used

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        flat = np.concatenate([x.reshape(len(x), -1) for x in xs], 1)
        return _taken(flat, self.index).reshape(len(flat), *self.shape)

    def adjoint(self, g: Array) -> list[Array]:
        g = g.reshape(len(g), -1)
        if self.back:  # an entry that is read several times
            used = self.index >= 0
            x = np.zeros((int(self.ends[-1]), len(g)), dtype=g.dtype)
            np.add.at(x, self.index[used], g.T[used])
            x = x.T
        else:
            x = _taken(g, self.inverse)
        parts = np.split(x, self.ends[:-1], axis=1)
        return [p.reshape(len(g), *shape) for p, shape in zip(parts, self.sources, strict=True)]


def _taken(x: Array, index: Array) -> Array:
    y = x[:, np.maximum(index, 0)]
    y[:, index < 0] = 0
    return y

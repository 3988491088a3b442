"""Affine operations z = A a + b: what A and |A| do to points, and what Aᵀ does to coefficients.

Arrays are (batch, numbers). `terms` bounds how many roundings an entry of A a passes through, `back` an entry of Aᵀ λ:
the length of its sum, and what the entries of A carry if they were computed; 0 if nothing is computed.
"""

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from surebound.check.arithmetic import Array

Shape = tuple[int, ...]
Pair = tuple[int, int]


class Op:
    """A node of so many numbers. The input is a plain one."""

    apply: Any  # (all a that are read, absolute=False): A a, or |A| a
    adjoint: Any  # (g): Aᵀ g, one for each a
    moves = False  # whether each entry of A a is an entry of an a, or zero: nothing is computed

    def __init__(self, size: int, terms: int = 0, back: int = 0) -> None:
        self.size, self.terms, self.back = size, terms, back
        self.bias: Array = np.zeros(0)  # b, once the operation is part of a network
        self.room = size  # numbers that the adjoint of one g takes


class Relu(Op):
    """max(x̂, 0)."""


class Linear(Op):
    """a W on the last of two axes. # weight (in, out)"""

    def __init__(self, rows: int, weight: Array) -> None:
        super().__init__(rows * weight.shape[1], weight.shape[0], weight.shape[1])
        self.weight = weight

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        weight = abs(self.weight) if absolute else self.weight
        return np.asarray((xs[0].reshape(-1, len(weight)) @ weight).reshape(len(xs[0]), -1))

    def adjoint(self, g: Array) -> list[Array]:
        return [(g.reshape(-1, self.weight.shape[1]) @ self.weight.T).reshape(len(g), -1)]


class Conv(Op):
    """A convolution of (channels, height, width). # weight (out, in / groups, kh, kw); a pair of pads for each axis"""

    def __init__(self, source: Shape, weight: Array, stride: Shape, pads: Sequence[Pair], groups: int) -> None:
        self.source, self.kernel, self.stride, self.pads = source, weight.shape[2:], stride, pads
        self.padded = tuple(n + sum(p) for n, p in zip(source[1:], pads, strict=True))
        self.places = tuple((n - k) // s + 1 for n, k, s in zip(self.padded, self.kernel, stride, strict=True))
        self.matrix = weight.reshape(groups, len(weight) // groups, -1)
        out, terms = self.matrix.shape[1:]
        super().__init__(len(weight) * prod(self.places), terms, out * prod(self.kernel))
        self.room = source[0] * prod(self.kernel) * prod(self.places)

    def _windows(self, *ranges: Pair) -> Iterator[tuple[Any, ...]]:
        """Where each entry of the kernel reads the padded image, for ranges of places."""
        for offset in np.ndindex(self.kernel):
            axes = zip(offset, self.stride, ranges, strict=True)
            yield (..., *(slice(i + s * a, i + s * (b - 1) + 1, s) for i, s, (a, b) in axes))

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        batch, matrix = len(xs[0]), abs(self.matrix) if absolute else self.matrix
        x = np.pad(xs[0].reshape(batch, *self.source), [(0, 0), (0, 0), *self.pads])
        columns = np.stack([x[window] for window in self._windows(*((0, n) for n in self.places))], 2)
        return np.asarray((matrix @ columns.reshape(batch, len(matrix), -1, prod(self.places))).reshape(batch, -1))

    def adjoint(self, g: Array) -> list[Array]:
        batch, (channels, height, width) = len(g), self.source
        g = g.reshape(batch, -1, *self.places)
        live = np.asarray(g.any((0, 1)))  # a claim on one neuron reads a part of the image: the rest is zero
        (a, b), (c, d) = (np.flatnonzero(live.any(axis))[[0, -1]] + (0, 1) if live.any() else (0, 1) for axis in (1, 0))
        g = g[:, :, a:b, c:d].reshape(batch, len(self.matrix), -1, (b - a) * (d - c))
        columns = (self.matrix.swapaxes(1, 2) @ g).reshape(batch, channels, -1, b - a, d - c)
        x = np.zeros((batch, channels, *self.padded), dtype=g.dtype)
        for k, window in enumerate(self._windows((a, b), (c, d))):
            x[window] += columns[:, :, k]
        top, left = (before for before, _ in self.pads)
        return [x[:, :, top : top + height, left : left + width].reshape(batch, -1)]


class Mix(Op):
    """Σ wᵢ ⊙ a[indexᵢ], of the a's one after the other and a 0 at the end, which an index of −1 stands for."""

    def __init__(self, sizes: Sequence[int], indices: Sequence[Array], weights: Sequence[Any], roundings: int) -> None:
        used = np.concatenate(indices)
        often = int(np.bincount(used[used >= 0], minlength=1).max())  # an entry of an a is read
        plain = all(isinstance(w, int) for w in weights)
        back = 0 if plain and often == 1 else often + roundings
        super().__init__(len(indices[0]), len(weights) + roundings, back)
        self.moves, self.repeats = plain and list(weights) == [1], often > 1
        self.ends, self.indices, self.weights = np.cumsum(sizes), indices, weights  # each 1, −1 or a rounded array

    def apply(self, xs: Sequence[Array], absolute: bool = False) -> Array:
        joined = np.concatenate([*xs, 0 * xs[0][:, :1]], 1)
        parts = zip(self.weights, self.indices, strict=True)
        return np.asarray(sum((abs(w) if absolute else w) * joined[:, index] for w, index in parts))

    def adjoint(self, g: Array) -> list[Array]:
        x = np.zeros((len(g), self.ends[-1] + 1), dtype=g.dtype)
        for w, index in zip(self.weights, self.indices, strict=True):
            if self.repeats:
                np.add.at(x.T, index, (g * w).T)
            else:
                x[:, index] = g * w
        return np.split(x[:, :-1], self.ends[:-1], axis=1)

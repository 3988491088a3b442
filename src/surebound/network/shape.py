"""Operations that move numbers without changing them: reshape, pick (slice, transpose, pad, …) and concatenate."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from surebound.network.arrays import concat, flat, library, zeros
from surebound.network.op import Shape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Reshape:
    """The same elements under another shape."""

    shape: Shape
    in_shape: Shape
    bias: None = None
    roundings: int = 0

    def apply(self, x: Tensor) -> Tensor:
        return x.reshape(len(x), *self.shape)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return (g.reshape(len(g), *self.in_shape),)


@dataclass(frozen=True, eq=False)
class Pick:
    """y[i] = x[index[i]] on flattened tensors, and 0 where index[i] is −1: slices, transposes, zero pads, windows."""

    index: Tensor  # shape, int64
    in_shape: Shape
    bias: None = None

    @property
    def shape(self) -> Shape:
        return tuple(self.index.shape)

    @cached_property
    def roundings(self) -> int:
        """The adjoint adds up the positions that read one element."""
        used = self._flat[self._flat >= 0]
        return int(library(used).bincount(used).max()) - 1 if len(used) else 0

    @cached_property
    def _flat(self) -> Tensor:
        return self.index.reshape(-1)

    @cached_property
    def _kept(self) -> Tensor | None:
        """Positions that read an element, or None if all do."""
        kept = self._flat >= 0
        return None if bool(kept.all()) else library(kept).argwhere(kept).reshape(-1)

    def apply(self, x: Tensor) -> Tensor:
        elements = flat(x)
        if self._kept is None:
            return elements[:, self._flat].reshape(len(x), *self.shape)
        y = zeros(elements, len(x), len(self._flat))
        y[:, self._kept] = elements[:, self._flat[self._kept]]
        return y.reshape(len(x), *self.shape)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        elements = flat(g)
        out = zeros(elements, len(g), prod(self.in_shape))
        index, values = self._flat, elements
        if self._kept is not None:
            index, values = self._flat[self._kept], elements[:, self._kept]
        if isinstance(out, np.ndarray) and self.roundings:
            np.add.at(out, (slice(None), index), values)
        elif isinstance(out, np.ndarray):  # no element is read twice
            out[:, index] = values
        else:
            out.index_add_(1, index, values)
        return (out.reshape(len(g), *self.in_shape),)


@dataclass(frozen=True, eq=False)
class Concat:
    """Branches joined along an axis (counted without the batch)."""

    axis: int
    in_shapes: tuple[Shape, ...]
    bias: None = None
    roundings: int = 0

    @property
    def shape(self) -> Shape:
        first = self.in_shapes[0]
        joined = sum(s[self.axis] for s in self.in_shapes)
        return (*first[: self.axis], joined, *first[self.axis + 1 :])

    def apply(self, *xs: Tensor) -> Tensor:
        return concat(xs, self.axis + 1)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        ends = accumulate(s[self.axis] for s in self.in_shapes)
        axes = (slice(None),) * (self.axis + 1)
        return tuple(g[(*axes, slice(a, b))] for a, b in pairwise((0, *ends)))

"""Operations that move numbers without changing them: reshape, pick (slice, transpose, pad, …) and concatenate."""

from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from surebound.network.op import Shape


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
        return int(torch.bincount(used).max()) - 1 if used.numel() else 0

    @cached_property
    def _flat(self) -> Tensor:
        return self.index.reshape(-1)

    @cached_property
    def _kept(self) -> Tensor | None:
        """Positions that read an element, or None if all do."""
        return None if bool((self._flat >= 0).all()) else torch.nonzero(self._flat >= 0).reshape(-1)

    def apply(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        if self._kept is None:
            return flat[:, self._flat].reshape(len(x), *self.shape)
        y = flat.new_zeros(len(x), self._flat.numel())
        y[:, self._kept] = flat[:, self._flat[self._kept]]
        return y.reshape(len(x), *self.shape)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        flat = g.flatten(1)
        out = flat.new_zeros(len(g), prod(self.in_shape))
        if self._kept is None:
            out.index_add_(1, self._flat, flat)
        else:
            out.index_add_(1, self._flat[self._kept], flat[:, self._kept])
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
        return torch.cat(xs, dim=self.axis + 1)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.split(g, [s[self.axis] for s in self.in_shapes], dim=self.axis + 1))

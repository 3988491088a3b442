"""Convolutions in one and two dimensions, with stride, padding, dilation and groups."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor

from surebound.network.op import Shape

_CONV = {3: F.conv1d, 4: F.conv2d}
_TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d}


class Window(Protocol):
    """How a kernel moves over an image."""

    @property
    def weight(self) -> Tensor: ...
    @property
    def in_shape(self) -> Shape: ...
    @property
    def stride(self) -> Shape: ...
    @property
    def padding(self) -> Shape: ...
    @property
    def dilation(self) -> Shape: ...


def _axes(conv: Window) -> Iterator[tuple[int, int, int, int, int]]:
    """Size, kernel, stride, padding and dilation of each spatial axis."""
    return zip(conv.in_shape[1:], conv.weight.shape[2:], conv.stride, conv.padding, conv.dilation, strict=True)


def windows(conv: Window) -> Shape:
    """How many places the kernel has along each axis."""
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in _axes(conv))


def unseen(conv: Window) -> Shape:
    """How many inputs at the end of each axis no place of the kernel covers: the transpose must put them back."""
    axes = zip(_axes(conv), windows(conv), strict=True)
    return tuple(n - ((o - 1) * s - 2 * p + d * (k - 1) + 1) for (n, k, s, p, d), o in axes)


@dataclass(frozen=True, eq=False)
class Conv:
    """y = W ∗ x + b. Padding is zero padding, the same on both ends of an axis; anything else is a Pick before it."""

    weight: Tensor  # (out, in / groups, *kernel)
    in_shape: Shape  # (in, *size)
    bias: Tensor | None = None  # (out, 1…)
    stride: Shape = (1, 1)
    padding: Shape = (0, 0)
    dilation: Shape = (1, 1)
    groups: int = 1

    @property
    def shape(self) -> Shape:
        return (self.weight.shape[0], *windows(self))

    @property
    def roundings(self) -> int:
        out, per_group = self.weight.shape[:2]
        return max(out // self.groups, per_group) * prod(self.weight.shape[2:]) + 2

    def apply(self, x: Tensor) -> Tensor:
        conv = _CONV[self.weight.ndim]
        return conv(x, self.weight, None, self.stride, self.padding, self.dilation, self.groups)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        transposed = _TRANSPOSED[self.weight.ndim]
        return (transposed(g, self.weight, None, self.stride, self.padding, unseen(self), self.groups, self.dilation),)

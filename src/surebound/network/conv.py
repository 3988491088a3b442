"""Convolutions in one and two dimensions, with stride, padding, dilation and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from surebound.network.arrays import Lazy, library
from surebound.network.convolve import Kernel, convolved, transposed
from surebound.network.op import Shape

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import Tensor
else:
    F = Lazy("torch.nn.functional")

FEW_CHANNELS = 4
_CONV = {3: "conv1d", 4: "conv2d"}
_TRANSPOSED = {3: "conv_transpose1d", 4: "conv_transpose2d"}


def _axes(conv: Kernel) -> Iterator[tuple[int, int, int, int, int]]:
    """Size, kernel, stride, padding and dilation of each spatial axis."""
    return zip(conv.in_shape[1:], conv.weight.shape[2:], conv.stride, conv.padding, conv.dilation, strict=True)


def windows(conv: Kernel) -> Shape:
    """How many places the kernel has along each axis."""
    return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in _axes(conv))


def unseen(conv: Kernel) -> Shape:
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
        return convolved(self, windows(self), x) if isinstance(x, np.ndarray) else self._torch(x, None)

    def value(self, x: Tensor) -> Tensor:
        """A x + b, of tensors."""
        return self._torch(x, None if self.bias is None else self.bias.reshape(-1))

    def _torch(self, x: Tensor, bias: Tensor | None) -> Tensor:
        conv: Callable[..., Tensor] = getattr(F, _CONV[self.weight.ndim])
        return conv(x, self.weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        if isinstance(g, np.ndarray):
            return (transposed(self, windows(self), g),)
        if self._has_phases and g.dtype == library(g).float32 and g.is_contiguous():  # training's are channels last
            (height, width), (top, left) = self.in_shape[1:], self.padding
            y = self._by_phases(g)[:, :, top : top + height, left : left + width]
            return (F.pad(y, (0, width - y.shape[3], 0, height - y.shape[2])),)
        return (
            self._torch_transposed(
                g, self.weight, None, self.stride, self.padding, unseen(self), self.groups, self.dilation
            ),
        )

    def spread(self, g: Tensor) -> Tensor:
        """Aᵀ g for part of an image, on what it reads of the padded input: from the first element to the last."""
        if prod(g.shape[2:]) == 1 and self.groups == 1 and set(self.dilation) == {1}:
            return (g.flatten(1) @ self.weight.flatten(1)).reshape(-1, *self.weight.shape[1:])
        if self._has_phases and g.dtype == library(g).float32:
            return self._by_phases(g)
        return self._torch_transposed(g, self.weight, None, self.stride, 0, 0, self.groups, self.dilation)

    @property
    def _torch_transposed(self) -> Callable[..., Tensor]:
        function: Callable[..., Tensor] = getattr(F, _TRANSPOSED[self.weight.ndim])
        return function

    @property
    def _has_phases(self) -> bool:
        """Whether `_by_phases` applies and pays: oneDNN is slow on strides when there are few channels to write."""
        few = self.weight.shape[1] <= FEW_CHANNELS and self.groups == 1
        return few and len(self.stride) == 2 and self.stride[0] == self.stride[1] > 1 and self.dilation == (1, 1)

    def _by_phases(self, g: Tensor) -> Tensor:
        """`spread` with places y = s a + r of the input taken apart by r: one convolution without stride, with kernels
        W[s j + r], writes all phases r, which are then put in their places. The sums are the same, with zeros added."""
        (out, channels, *kernel), step = self.weight.shape, self.stride[0]
        taps = [-(-k // step) for k in kernel]
        padded = F.pad(self.weight, (0, taps[1] * step - kernel[1], 0, taps[0] * step - kernel[0]))
        phases = padded.reshape(out, channels, taps[0], step, taps[1], step).permute(0, 1, 3, 5, 2, 4)
        y = F.pixel_shuffle(F.conv_transpose2d(g, phases.reshape(out, -1, *taps)), step)
        rows, columns = ((n - 1) * step + k for n, k in zip(g.shape[2:], kernel, strict=True))
        return y[:, :, :rows, :columns]

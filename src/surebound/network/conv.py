"""Convolutions in one and two dimensions, with stride, padding, dilation and groups."""

from dataclasses import dataclass
from math import prod

import torch.nn.functional as F
from torch import Tensor

from surebound.network.op import Shape

_CONV = {3: F.conv1d, 4: F.conv2d}
_TRANSPOSED = {3: F.conv_transpose1d, 4: F.conv_transpose2d}


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
        spans = (
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip(
                self.in_shape[1:], self.weight.shape[2:], self.stride, self.padding, self.dilation, strict=True
            )
        )
        return (self.weight.shape[0], *spans)

    @property
    def roundings(self) -> int:
        out, per_group = self.weight.shape[:2]
        return max(out // self.groups, per_group) * prod(self.weight.shape[2:]) + 2

    def apply(self, x: Tensor) -> Tensor:
        conv = _CONV[self.weight.ndim]
        return conv(x, self.weight, None, self.stride, self.padding, self.dilation, self.groups)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        extra = tuple(
            n - ((o - 1) * s - 2 * p + d * (k - 1) + 1)
            for n, o, k, s, p, d in zip(
                self.in_shape[1:],
                self.shape[1:],
                self.weight.shape[2:],
                self.stride,
                self.padding,
                self.dilation,
                strict=True,
            )
        )
        transposed = _TRANSPOSED[self.weight.ndim]
        return (transposed(g, self.weight, None, self.stride, self.padding, extra, self.groups, self.dilation),)

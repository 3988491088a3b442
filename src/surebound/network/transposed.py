"""Transposed convolutions: the adjoint of a convolution, as an operation of its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from surebound.network.conv import Conv
from surebound.network.op import Shape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class ConvTranspose:
    """y = Aᵀ x + b, where A x = W ∗ x is a convolution of images of this operation's output shape."""

    weight: Tensor  # (in, out / groups, *kernel)
    shape: Shape  # (out, *size)
    bias: Tensor | None = None  # (out, 1…)
    stride: Shape = (1, 1)
    padding: Shape = (0, 0)
    dilation: Shape = (1, 1)
    groups: int = 1

    @cached_property
    def conv(self) -> Conv:
        """A."""
        return Conv(self.weight, self.shape, None, self.stride, self.padding, self.dilation, self.groups)

    @property
    def in_shape(self) -> Shape:
        return self.conv.shape

    @property
    def roundings(self) -> int:
        return self.conv.roundings

    def apply(self, x: Tensor) -> Tensor:
        return self.conv.adjoint(x)[0]

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return (self.conv.apply(g),)

"""Matrix products and element-wise scaling and shifting by constants."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from surebound.network.arrays import Lazy
from surebound.network.op import Shape

if TYPE_CHECKING:
    import torch.nn.functional as F
    from torch import Tensor
else:
    F = Lazy("torch.nn.functional")


@dataclass(frozen=True, eq=False)
class Linear:
    """y = x Wᵀ + b on the last axis; of tensors only, also on images that are flattened first.

    Training keeps images channels last in memory. There, one copy of W with its columns in that order saves a copy of
    every batch.
    """

    weight: Tensor  # (out, in)
    bias: Tensor | None = None  # (out,)
    lead: Shape = ()  # the axes before the last
    image: Shape = ()  # (channels, height, width) of what is flattened first

    @property
    def shape(self) -> Shape:
        return (*self.lead, self.weight.shape[0])

    @property
    def roundings(self) -> int:
        return max(self.weight.shape) + 2

    @cached_property
    def _matrix(self) -> Tensor:
        """W, its columns in the order in which inputs lie in memory."""
        return self.weight.reshape(-1, *self.image).permute(0, 2, 3, 1).flatten(1) if self.image else self.weight

    def _rows(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1) if self.image else x

    def apply(self, x: Tensor) -> Tensor:
        return self._rows(x) @ self._matrix.T

    def value(self, x: Tensor) -> Tensor:
        """A x + b, of tensors."""
        return F.linear(self._rows(x), self._matrix, self.bias)

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        pulled = g @ self._matrix
        if not self.image:
            return (pulled,)
        channels, height, width = self.image
        return (pulled.reshape(-1, height, width, channels).permute(0, 3, 1, 2),)


@dataclass(frozen=True, eq=False)
class Scale:
    """y = w ⊙ x + b. The weights themselves may carry a few roundings (a batch norm's γ/√(σ² + ε), a division)."""

    weight: Tensor  # the full shape
    bias: Tensor | None = None  # the full shape
    roundings: int = 8
    computed: bool = False  # whether the weights may carry roundings, which only who takes them for exact has to know

    @property
    def shape(self) -> Shape:
        return tuple(self.weight.shape)

    def apply(self, x: Tensor) -> Tensor:
        return x * self.weight

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return (g * self.weight,)


@dataclass(frozen=True, eq=False)
class Shift:
    """y = x + b."""

    bias: Tensor  # the full shape
    roundings: int = 1

    @property
    def shape(self) -> Shape:
        return tuple(self.bias.shape)

    def apply(self, x: Tensor) -> Tensor:
        return x

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return (g,)


@dataclass(frozen=True, eq=False)
class Sum:
    """y = Σᵢ sᵢ xᵢ over branches of one shape, with signs ±1 stored as a tensor so that |A| is |s|."""

    signs: Tensor  # (branches,)
    shape: Shape
    bias: None = None

    @property
    def roundings(self) -> int:
        return len(self.signs)

    @cached_property
    def _plain(self) -> bool:
        return bool((self.signs == 1).all())

    def apply(self, *xs: Tensor) -> Tensor:
        if self._plain:
            return sum(xs[1:], xs[0])
        return sum((s * x for s, x in zip(self.signs[1:], xs[1:], strict=True)), self.signs[0] * xs[0])

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return tuple(s * g for s in self.signs)


def size(shape: Shape) -> int:
    """The number of elements.

    >>> size((2, 3))
    6
    """
    return prod(shape)

"""Matrix products and element-wise scaling and shifting by constants."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from surebound.network.op import Shape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, eq=False)
class Linear:
    """y = x Wᵀ + b on the last axis."""

    weight: Tensor  # (out, in)
    bias: Tensor | None = None  # (out,)
    lead: Shape = ()  # the axes before the last

    @property
    def shape(self) -> Shape:
        return (*self.lead, self.weight.shape[0])

    @property
    def roundings(self) -> int:
        return max(self.weight.shape) + 2

    def apply(self, x: Tensor) -> Tensor:
        return x @ self.weight.T

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return (g @ self.weight,)


@dataclass(frozen=True, eq=False)
class Scale:
    """y = w ⊙ x + b. The weights themselves may carry a few roundings (a batch norm's γ/√(σ² + ε), a division)."""

    weight: Tensor  # the full shape
    bias: Tensor | None = None  # the full shape
    roundings: int = 8

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

    def apply(self, *xs: Tensor) -> Tensor:
        return sum((s * x for s, x in zip(self.signs[1:], xs[1:], strict=True)), self.signs[0] * xs[0])

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        return tuple(s * g for s in self.signs)


def size(shape: Shape) -> int:
    """The number of elements.

    >>> size((2, 3))
    6
    """
    return prod(shape)

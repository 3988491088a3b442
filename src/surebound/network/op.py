"""What an affine operation is: y = A x + b, with A given by what it does rather than by its entries.

Coefficients travel backwards through `adjoint`, points and intervals forwards through `apply`. The leading dimension is
the batch, everything after it has the op's `shape`. All ops are frozen dataclasses of tensors, so that casting them or
taking absolute values of their weights (for interval arithmetic and error bounds) is one generic function.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

Shape = tuple[int, ...]


class Affine(Protocol):
    """An affine map of one or more inputs. Implementations are frozen dataclasses."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __hash__(self) -> int:
        """By identity."""
        ...

    @property
    def shape(self) -> Shape:
        """The output's shape, without the batch."""
        ...

    @property
    def bias(self) -> Tensor | None:
        """b, broadcastable to `shape`, or None for zero."""
        ...

    @property
    def roundings(self) -> int:
        """An n such that `apply` and `adjoint`, in any floating point, err by at most γ_n times the sum of the terms'
        absolute values (Higham 2002, section 3.1); 0 if both are exact."""
        ...

    @property
    def apply(self) -> Callable[..., Tensor]:
        """A x, without the bias. # (batch, *in) … -> (batch, *shape)"""
        ...

    def adjoint(self, g: Tensor) -> tuple[Tensor, ...]:
        """Aᵀ g, one tensor for each input. # (batch, *shape) -> (batch, *in) …"""
        ...


OpT = TypeVar("OpT", bound=Affine)


def _map_tensors(op: OpT, f: Any) -> OpT:
    changed = {
        field.name: f(value)
        for field in fields(op)
        if isinstance(value := getattr(op, field.name), Tensor) and value.is_floating_point()
    }
    return replace(op, **changed) if changed else op


def cast(op: OpT, dtype: torch.dtype) -> OpT:
    """The op with its weights in another precision."""
    return _map_tensors(op, lambda t: t.to(dtype))


def absolute(op: OpT) -> OpT:
    """|A| and |b|."""
    return _map_tensors(op, torch.abs)

"""What an affine operation is: y = A x + b, with A given by what it does rather than by its entries.

Coefficients travel backwards through `adjoint`, points and intervals forwards through `apply`. The leading dimension is
the batch, everything after it has the op's `shape`. All ops are frozen dataclasses of tensors, so that casting them or
taking absolute values of their weights (for interval arithmetic and error bounds) is one generic function.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from surebound.network import arrays

if TYPE_CHECKING:
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
    def bias(self) -> "Tensor | None":
        """b, broadcastable to `shape`, or None for zero."""
        ...

    @property
    def roundings(self) -> int:
        """An n such that `apply` and `adjoint`, in any floating point, err by at most γ_n times the sum of the terms'
        absolute values (Higham 2002, section 3.1); 0 if both are exact."""
        ...

    @property
    def apply(self) -> "Callable[..., Tensor]":
        """A x, without the bias. # (batch, *in) … -> (batch, *shape)"""
        ...

    def adjoint(self, g: "Tensor") -> "tuple[Tensor, ...]":
        """Aᵀ g, one tensor for each input. # (batch, *shape) -> (batch, *in) …"""
        ...


OpT = TypeVar("OpT", bound=Affine)


def held(op: Affine) -> "dict[str, Tensor]":
    """The arrays that an op is made of, by field."""
    values = {field.name: getattr(op, field.name) for field in fields(op)}
    return {name: value for name, value in values.items() if arrays.is_array(value)}


def _map_floats(op: OpT, f: Any) -> OpT:
    changed = {name: f(value) for name, value in held(op).items() if arrays.is_float(value)}
    return replace(op, **changed) if changed else op


def cast(op: OpT, dtype: "torch.dtype | arrays.Precision") -> OpT:
    """The op with its weights in another precision."""
    return _map_floats(op, lambda t: arrays.retyped(t, dtype))


def absolute(op: OpT) -> OpT:
    """|A| and |b|."""
    return _map_floats(op, abs)


def tensors(op: OpT, device: str) -> OpT:
    """The op over torch's tensors on a device, which share the numbers if they are there."""
    moved = {name: (value, arrays.tensor(value, device)) for name, value in held(op).items()}
    changed = {name: new for name, (old, new) in moved.items() if new is not old}
    return replace(op, **changed) if changed else op

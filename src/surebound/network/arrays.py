"""Networks hold NumPy arrays or torch's tensors, and what is computed with them is written once, for both.

Importing torch takes longer than many a verification. So a file is read into NumPy arrays, what those settle is settled
on them, and only the rest is carried over to tensors (`Network.tensors`), which share the numbers. Most names are the
same in both libraries; those that are not are here. The type checker is told `Tensor` throughout.
"""

import math
import sys
from contextlib import AbstractContextManager
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor


Precision = Literal["float32", "float64"]
"""The types of numbers that networks are computed in, as both libraries call them."""

_erf = np.frompyfunc(math.erf, 1, 1)


class Lazy:
    """Stands for a module until one of its attributes is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


class Library(Protocol):
    """What is called the same in both."""

    float32: "torch.dtype"
    float64: "torch.dtype"

    def amax(self, x: "Tensor", axis: int) -> "Tensor": ...
    def amin(self, x: "Tensor", axis: int) -> "Tensor": ...
    def argsort(self, x: "Tensor", axis: int) -> "Tensor": ...
    def argwhere(self, x: "Tensor") -> "Tensor": ...
    def bincount(self, x: "Tensor") -> "Tensor": ...
    def broadcast_to(self, x: "Tensor", shape: tuple[int, ...]) -> "Tensor": ...
    def clip(self, x: "Tensor", low: float, high: float) -> "Tensor": ...
    def einsum(self, subscripts: str, *xs: "Tensor") -> "Tensor": ...
    def exp(self, x: "Tensor") -> "Tensor": ...
    def expm1(self, x: "Tensor") -> "Tensor": ...
    def isfinite(self, x: "Tensor") -> "Tensor": ...
    def log1p(self, x: "Tensor") -> "Tensor": ...
    def maximum(self, a: "Tensor", b: "Tensor") -> "Tensor": ...
    def minimum(self, a: "Tensor", b: "Tensor") -> "Tensor": ...
    def multiply(self, a: "Tensor", b: "Tensor", *, out: "Tensor") -> "Tensor": ...
    def nan_to_num(self, x: "Tensor", *, nan: float, posinf: float, neginf: float) -> "Tensor": ...
    def nextafter(self, a: "Tensor", b: "Tensor") -> "Tensor": ...
    def sign(self, x: "Tensor") -> "Tensor": ...
    def tanh(self, x: "Tensor") -> "Tensor": ...
    def where(self, condition: "Tensor", a: "Tensor | float", b: "Tensor | float") -> "Tensor": ...
    def zeros_like(self, x: "Tensor") -> "Tensor": ...


def is_array(x: object) -> bool:
    """Whether x is an array of either library."""
    return isinstance(x, np.ndarray) or ("torch" in sys.modules and isinstance(x, sys.modules["torch"].Tensor))


def is_float(x: "Tensor") -> bool:
    """Whether its numbers are of a floating-point type."""
    return x.dtype.kind == "f" if isinstance(x, np.ndarray) else x.is_floating_point()


def library(x: object) -> Library:
    """numpy or torch, whichever x belongs to."""
    return cast(Library, np if isinstance(x, np.ndarray) else sys.modules["torch"])


def zeros(like: "Tensor", *shape: int) -> "Tensor":
    """Zeros of the type of `like`, on its device."""
    return np.zeros(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_zeros(shape)


def counting(like: "Tensor", count: int) -> "Tensor":
    """0, 1, …, of the library and on the device of `like`."""
    if isinstance(like, np.ndarray):
        return np.arange(count)
    import torch

    return torch.arange(count, device=like.device)


def flat(x: "Tensor") -> "Tensor":
    """All axes but the first as one."""
    return x.reshape(len(x), prod(x.shape[1:]))


def joined(x: "Tensor") -> "Tensor":
    """The first two axes as one."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])


def concat(xs: "list[Tensor] | tuple[Tensor, ...]", axis: int) -> "Tensor":
    """The arrays joined along an axis."""
    if isinstance(xs[0], np.ndarray):
        return np.concatenate(xs, axis)
    import torch

    return torch.cat(xs, axis)


def positive(x: "Tensor") -> "Tensor":
    """max(x, 0)."""
    return np.maximum(x, 0.0) if isinstance(x, np.ndarray) else x.clamp_min(0.0)


def erf(x: "Tensor") -> "Tensor":
    """The error function, which NumPy does not have."""
    if isinstance(x, np.ndarray):
        return np.asarray(_erf(x)).astype(x.dtype)
    return x.erf()


def spread(x: "Tensor", shape: tuple[int, ...]) -> "Tensor":
    """x repeated along axes of length 1, and new ones before the first."""
    return library(x).broadcast_to(x, shape)


def retyped(x: "Tensor", dtype: Any) -> "Tensor":
    """x with numbers of another type, one of its library's or a `Precision`."""
    if isinstance(x, np.ndarray):
        return x.astype(dtype, copy=False)
    return x.to(getattr(sys.modules["torch"], dtype) if isinstance(dtype, str) else dtype)


def precision(x: "Tensor") -> Precision:
    """What type its numbers are of."""
    return "float64" if x.dtype == library(x).float64 else "float32"


def double(x: "Tensor") -> "Tensor":
    """x in float64."""
    return retyped(x, "float64")


def repeated(x: "Tensor", times: int) -> "Tensor":
    """Every row so many times in a row."""
    return np.repeat(x, times, axis=0) if isinstance(x, np.ndarray) else x.repeat_interleave(times, dim=0)


def alike(x: "NDArray[Any]", other: "Tensor") -> "Tensor":
    """The array x as one of the library, and on the device, of another."""
    return x if isinstance(other, np.ndarray) else tensor(x, str(other.device))


def down(x: "Tensor") -> "Tensor":
    """The next smaller numbers."""
    return library(x).nextafter(x, zeros(x) - math.inf)


def up(x: "Tensor") -> "Tensor":
    """The next larger numbers."""
    return library(x).nextafter(x, zeros(x) + math.inf)


def no_gradients(x: "Tensor") -> AbstractContextManager[None]:
    """Where torch keeps nothing for autograd, and NumPy is as silent as torch about what overflows."""
    if isinstance(x, np.ndarray):
        return np.errstate(all="ignore")
    import torch

    return torch.no_grad()


def to_numpy(x: "Tensor | NDArray[Any]") -> "NDArray[Any]":
    """A NumPy array, which shares the numbers of x if they are in the processor's memory."""
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


def tensor(x: "Tensor | NDArray[Any]", device: str = "cpu") -> "Tensor":
    """A tensor of torch on a device, which shares the numbers of x if they are there."""
    if isinstance(x, np.ndarray):
        import torch

        backwards = min(x.strides, default=0) < 0  # which torch does not know: NumPy has it along axes of length 1, too
        x = torch.from_numpy(x.copy() if backwards else x)
    return x.to(device)

"""Convolutions of NumPy arrays: what each place of the kernel meets, side by side, is one product of matrices."""

from collections.abc import Iterator
from math import prod
from typing import Any, Protocol

import numpy as np

Array = Any  # a NumPy array
Shape = tuple[int, ...]


class Kernel(Protocol):
    """A kernel, and how it moves over an image."""

    @property
    def weight(self) -> Array: ...
    @property
    def in_shape(self) -> Shape: ...
    @property
    def stride(self) -> Shape: ...
    @property
    def padding(self) -> Shape: ...
    @property
    def dilation(self) -> Shape: ...
    @property
    def groups(self) -> int: ...


def convolved(conv: Kernel, windows: Shape, x: Array) -> Array:
    """W ∗ x, where the kernel has so many `windows` along each axis."""
    (out, per_group, *kernel), groups = conv.weight.shape, conv.groups
    padded = _padded(conv, len(x), x.dtype)
    padded[_inside(conv)] = x
    columns = np.empty((len(x), groups, per_group, *kernel, prod(windows)), x.dtype)
    for tap, met in _taps(conv, windows, padded):
        columns[(slice(None),) * 3 + tap] = met.reshape(len(x), groups, per_group, prod(windows))
    weight = conv.weight.reshape(groups, out // groups, per_group * prod(kernel))
    product = weight @ columns.reshape(len(x), groups, weight.shape[2], prod(windows))
    return product.reshape(len(x), out, *windows)


def transposed(conv: Kernel, windows: Shape, g: Array) -> Array:
    """Wᵀ g: the same steps backwards."""
    (out, per_group, *kernel), groups = conv.weight.shape, conv.groups
    weight = conv.weight.reshape(groups, out // groups, per_group * prod(kernel)).swapaxes(1, 2)
    columns = weight @ g.reshape(len(g), groups, out // groups, prod(windows))
    columns = columns.reshape(len(g), groups * per_group, *kernel, *windows)
    padded = _padded(conv, len(g), g.dtype)
    for tap, met in _taps(conv, windows, padded):
        met += columns[(slice(None),) * 2 + tap]
    return padded[_inside(conv)]


def _padded(conv: Kernel, batch: int, dtype: Any) -> Array:
    sizes = (n + 2 * p for n, p in zip(conv.in_shape[1:], conv.padding, strict=True))
    return np.zeros((batch, conv.in_shape[0], *sizes), dtype)


def _inside(conv: Kernel) -> Any:
    """The image without its padding."""
    return (..., *(slice(p, p + n) for n, p in zip(conv.in_shape[1:], conv.padding, strict=True)))


def _taps(conv: Kernel, windows: Shape, padded: Array) -> Iterator[tuple[Shape, Array]]:
    """Each element of the kernel, and what it meets of a padded image in all windows."""
    for tap in np.ndindex(*conv.weight.shape[2:]):
        along = zip(tap, conv.dilation, conv.stride, windows, strict=True)
        yield tap, padded[(..., *(slice(t * d, t * d + s * (o - 1) + 1, s) for t, d, s, o in along))]

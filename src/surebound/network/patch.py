"""Coefficients on a node that vanish outside of a window, pulled back through the network without their zeros.

A neuron of a convolutional layer reads a window of the layer before it, and so on down to the input. The windows of all
neurons of a layer have the same size, and a convolution does the same wherever its window lies. So rows that stand for
single neurons are pulled back together, each in a window of its own; what of it lies outside of the image is zero.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from surebound.network.conv import Conv
from surebound.network.graph import Network, carry_back
from surebound.network.linear import Scale, Shift, Sum, size
from surebound.network.op import Affine, Shape

SMALL = 0.5  # of an image: a window that covers more is no longer worth the trouble


@dataclass(frozen=True, eq=False)
class Patch:
    """Coefficients on a node of the given shape: for each row a window over all axes but the first, or the whole."""

    values: Tensor  # (rows, channels, *extent), zero outside of the image
    origin: Tensor | None  # (rows, axes) where each row's window begins, possibly before the image; None: the whole
    shape: Shape

    @staticmethod
    def whole(values: Tensor) -> "Patch":
        return Patch(values, None, tuple(values.shape[1:]))

    @staticmethod
    def units(index: Tensor, shape: Shape, value: Tensor) -> "Patch":
        """Row i is a number at element index[i] and 0 elsewhere."""
        rows = torch.arange(len(index), device=index.device)
        if len(shape) == 1:
            values = value.new_zeros(len(index), *shape)
            values[rows, index] = value
            return Patch.whole(values)
        channel, *places = unravelled(index, shape)
        values = value.new_zeros(len(index), shape[0])
        values[rows, channel] = value
        return Patch(values.reshape(*values.shape, *(1 for _ in places)), torch.stack(places, dim=1), shape)

    def __len__(self) -> int:
        return len(self.values)

    def abs(self) -> "Patch":
        return replace(self, values=self.values.abs())

    def under(self, elements: Tensor) -> Tensor:
        """A tensor with the node's shape, as each row's window shows it: zero outside. # -> (rows | 1, channels, …)"""
        if self.origin is None:
            return elements.reshape(1, *self.shape)
        extents = self.values.shape[2:]
        around = elements.new_zeros(self.shape[0], *(n + 2 * e for n, e in zip(self.shape[1:], extents, strict=True)))
        inside = tuple(slice(e, e + n) for n, e in zip(self.shape[1:], extents, strict=True))
        around[(slice(None), *inside)] = elements.reshape(self.shape)
        at: list[slice | Tensor] = [slice(None)]
        for axis, (n, e) in enumerate(zip(self.shape[1:], extents, strict=True)):
            around = around.unfold(axis + 1, e, 1)
            at.append((self.origin[:, axis] + e).clamp(0, n + e))
        return around[tuple(at)].transpose(0, 1)

    def times(self, elements: Tensor) -> "Patch":
        """Element by element."""
        return replace(self, values=self.values * self.under(elements))

    def dot(self, elements: Tensor) -> Tensor:
        """Σ c·v with a tensor of the node's shape. # (rows,)"""
        if self.origin is None:
            return self.values.flatten(1) @ elements.reshape(-1)
        return (self.values * self.under(elements)).flatten(1).sum(1)

    def at(self, index: Tensor) -> Tensor:
        """The coefficients on some elements of the node, counted without axes. # (count,) -> (rows, count)"""
        if self.origin is None:
            return self.values.flatten(1)[:, index]
        column = torch.zeros(self.shape, dtype=torch.int64, device=index.device)
        column.view(-1)[index] = torch.arange(1, len(index) + 1, device=index.device)  # 0: it is not asked for
        out = self.values.new_zeros(len(self), len(index) + 1)
        return out.scatter_(1, self.under(column).flatten(1), self.values.flatten(1))[:, 1:]

    def full(self) -> Tensor:
        """With the zeros around the windows. # (rows, *shape)"""
        if self.origin is None:
            return self.values
        return self.at(torch.arange(size(self.shape), device=self.values.device)).reshape(-1, *self.shape)

    def __add__(self, other: "Patch") -> "Patch":
        if self.origin is None or other.origin is None:
            return Patch.whole(self.full() + other.full())
        shift = other.origin - self.origin
        if not len(shift) or not bool((shift == shift[0]).all()):
            return Patch.whole(self.full() + other.full())
        # both windows within the one that spans them; a branch with another receptive field begins elsewhere
        first = [min(0, d) for d in shift[0].tolist()]
        own, others = self.values.shape[2:], other.values.shape[2:]
        last = [max(a, d + b) for a, b, d in zip(own, others, shift[0].tolist(), strict=True)]
        values = self.values.new_zeros(*self.values.shape[:2], *(b - a for a, b in zip(first, last, strict=True)))
        for part, begins in ((self.values, [0] * len(first)), (other.values, shift[0].tolist())):
            where = [slice(b - f, b - f + n) for b, f, n in zip(begins, first, part.shape[2:], strict=True)]
            values[(slice(None), slice(None), *where)] += part
        return Patch(values, self.origin + self.origin.new_tensor(first), self.shape)


def unravelled(index: Tensor, shape: Shape) -> list[Tensor]:
    """Where elements lie on each axis. (torch.unravel_index imports sympy, which takes half a second.)

    >>> unravelled(torch.tensor([5]), (2, 3))
    [tensor([1]), tensor([2])]
    """
    return [index // prod(shape[axis + 1 :]) % n for axis, n in enumerate(shape)]


def local_order(index: Tensor, shape: Shape) -> Tensor:
    """A permutation that puts neurons of a (channels, *size) layer next to those that are close to them: Z-order.

    >>> local_order(torch.arange(8), (1, 2, 4)).tolist()
    [0, 1, 4, 5, 2, 3, 6, 7]
    """
    key = torch.zeros_like(index)
    for axis, (at, length) in enumerate(zip(unravelled(index, shape)[:0:-1], shape[:0:-1], strict=True)):
        for bit in range(length.bit_length()):
            key += ((at >> bit) & 1) << (bit * (len(shape) - 1) + axis)
    return key.argsort(stable=True)


def pull_patches(
    network: Network,
    start: dict[int, Patch],
    activate: Callable[[int, Patch], Patch],
    visit: Callable[[int, Affine, Patch], None],
    *,
    small: float = SMALL,
) -> Patch:
    """As `Network.pull`: the coefficients on the input. `visit` sees those on every affine node on the way.

    `small` is the share of an image up to which windows are kept.
    """

    def through(i: int, op: Affine, c: Patch) -> Sequence[Patch]:
        visit(i, op, c)
        return adjoint(op, c, small)

    at_input = carry_back(network, start, activate, through)
    if at_input is None:
        like = next(iter(start.values())).values
        at_input = Patch.whole(like.new_zeros(len(like), *network.input_shape))
    return at_input


def adjoint(op: Affine, c: Patch, small: float = SMALL) -> tuple[Patch, ...]:
    """Aᵀ c, one patch for each input."""
    if isinstance(op, Conv) and c.origin is not None:
        return (_through_conv(op, c.values, c.origin, small),)
    if isinstance(op, Scale):
        return (c.times(op.weight),)
    if isinstance(op, Shift):
        return (c,)
    if isinstance(op, Sum):
        return tuple(replace(c, values=s * c.values) for s in op.signs)
    return tuple(map(Patch.whole, op.adjoint(c.full())))


def _through_conv(conv: Conv, c: Tensor, origin: Tensor, small: float) -> Patch:
    """Places of the kernel from o on cover the input from s·o − padding on."""
    values, lengths = conv.spread(c), conv.in_shape[1:]
    begins = origin * origin.new_tensor(conv.stride) - origin.new_tensor(conv.padding)
    for axis, length in enumerate(lengths):  # what lies in the padding is multiplied with zeros
        at = begins[:, axis, None] + torch.arange(values.shape[axis + 2], device=begins.device)
        inside = ((at >= 0) & (at < length)).to(values.dtype)
        values = values * inside.reshape(
            len(values), 1, *(at.shape[1] if a == axis else 1 for a in range(len(lengths)))
        )
    patch = Patch(values, begins, conv.in_shape)
    return Patch.whole(patch.full()) if prod(values.shape[2:]) > small * prod(lengths) else patch

"""Max and average pooling over windows, exactly, as affine operations and ReLUs.

Windows are described per axis: `windows(...)` lists for each output position the input positions that it reads. A
maximum over a box of positions is the maximum over one axis of maxima over the other, so max pooling treats one axis at
a time; overlapping windows then share their comparisons.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from surebound.errors import NetworkError
from surebound.limits import check_elements
from surebound.network.build import Builder, Pads
from surebound.network.linear import size
from surebound.network.op import Shape


def output_length(length: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool) -> int:
    """The number of windows along an axis.

    With `ceil_mode` a last window may hang over the end, but it must start on the input or its left padding.

    >>> output_length(6, 3, 2, (0, 0), 1, False), output_length(6, 3, 2, (0, 0), 1, True)
    (2, 3)
    """
    before, after = pads
    room = length + before + after - dilation * (kernel - 1) - 1
    if min(kernel, stride, dilation) < 1 or min(before, after) < 0 or room < 0:
        raise NetworkError(
            f"a window of {kernel} (stride {stride}, dilation {dilation}, pads {before} and {after}) does not fit on "
            f"an axis of {length}"
        )
    count = room // stride + 1
    if ceil_mode and room % stride and count * stride < length + before:
        count += 1
    return count


def windows(
    length: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, ceil_mode: bool
) -> NDArray[np.int64]:
    """Input positions of each window along an axis, counted from the first element; padding lies outside [0, length).

    # -> (windows, kernel)
    """
    check_elements([length + sum(pads)])
    count = output_length(length, kernel, stride, pads, dilation, ceil_mode)
    check_elements([count, kernel])
    return np.arange(count)[:, None] * stride - pads[0] + np.arange(kernel)[None, :] * dilation


def max_pool(
    builder: Builder,
    x: int,
    kernel: Shape,
    *,
    stride: Shape,
    pads: Pads,
    dilation: Shape | None = None,
    ceil_mode: bool = False,
) -> int:
    """The maximum over windows of the last axes. Padding never wins: a padded position repeats one of its window."""
    shape = builder.shape(x)
    lead = len(shape) - len(kernel)
    chosen = []
    for n, k, s, p, d in zip(shape[lead:], kernel, stride, pads, dilation or (1,) * len(kernel), strict=True):
        w = windows(n, k, s, p, d, ceil_mode)
        inside = (w >= 0) & (w < n)
        if not inside.any(axis=1).all():
            raise NetworkError("a max pooling window lies entirely in the padding; expected smaller pads")
        first = np.take_along_axis(w, inside.argmax(axis=1)[:, None], axis=1)
        chosen.append(np.where(inside, w, first))
    # What no window reads (stride beyond the kernel) is not compared either.
    index = np.arange(size(shape), dtype=np.int64).reshape(shape)
    for axis, w in enumerate(chosen, start=lead):
        used, where = np.unique(w, return_inverse=True)
        index = index.take(used, axis=axis)
        chosen[axis - lead] = where.reshape(w.shape)
    x = builder.pick(x, index)
    for axis in reversed(range(lead, len(shape))):
        x = _max_over(builder, x, axis, chosen[axis - lead])
    return x


def _max_over(builder: Builder, x: int, axis: int, positions: NDArray[np.int64]) -> int:
    """y[…, o, …] = maxₖ x[…, positions[o, k], …] by a tournament: half as many contestants after each round."""
    shape = builder.shape(x)
    check_elements([*shape[:axis], *positions.shape, *shape[axis + 1 :]])
    index = np.arange(size(shape), dtype=np.int64).reshape(shape)
    contestants = np.moveaxis(index.take(positions.T, axis=axis), axis, 0)  # (k, …, o, …)
    while len(contestants) > 1:
        pairs = len(contestants) // 2
        best = builder.maximum(builder.pick(x, contestants[:pairs]), builder.pick(x, contestants[pairs : 2 * pairs]))
        if len(contestants) % 2:
            best = builder.concat([best, builder.pick(x, contestants[-1:])], 0)
        x = best
        contestants = np.arange(size(builder.shape(x)), dtype=np.int64).reshape(builder.shape(x))
    return builder.pick(x, contestants[0])


def reduce_max(builder: Builder, x: int, axis: int) -> int:
    """The maximum along an axis, which stays with length 1."""
    return _max_over(builder, x, axis, np.arange(builder.shape(x)[axis])[None])


def average_pool(
    builder: Builder,
    x: int,
    kernel: Shape,
    *,
    stride: Shape,
    pads: Pads,
    dilation: Shape | None = None,
    ceil_mode: bool = False,
    count_include_pad: bool = False,
) -> int:
    """The mean over windows of (channels, *size): a convolution of ones, then a division by the count.

    The count is of the elements, or with `count_include_pad` of the elements and the padding; what `ceil_mode` adds
    beyond the padding never counts.
    """
    channels, *lengths = builder.shape(x)
    steps = dilation or (1,) * len(kernel)
    counts = np.ones((), dtype=np.int64)
    padded = []
    for n, k, s, p, d in zip(lengths, kernel, stride, pads, steps, strict=True):
        w = windows(n, k, s, p, d, ceil_mode)
        reach = (-p[0], n + p[1]) if count_include_pad else (0, n)
        along = ((w >= reach[0]) & (w < reach[1])).sum(axis=1)
        check_elements([channels, counts.size, len(along)])
        counts = counts[..., None] * along
        padded.append((p[0], max(p[1], int(w.max()) + 1 - n)))
    if not counts.all():
        raise NetworkError("an average pooling window lies entirely in the padding; expected smaller pads")
    check_elements([channels, *kernel])
    ones = np.ones((channels, 1, *kernel))
    total = builder.conv(x, ones, stride=stride, pads=padded, dilation=steps, groups=channels)
    return builder.scale(total, 1.0 / counts.astype(np.float64), exact=False)


def reduce_sum(builder: Builder, x: int, axes: Sequence[int], *, mean: bool = False) -> int:
    """The sum (or the mean) over some axes, which are removed."""
    shape = builder.shape(x)
    rest = [a for a in range(len(shape)) if a not in axes]
    index = np.arange(size(shape), dtype=np.int64).reshape(shape).transpose(*rest, *axes)
    count = prod(shape[a] for a in axes)
    lead = tuple(shape[a] for a in rest)
    total = builder.linear(builder.pick(x, index.reshape(*lead, count)), np.ones((1, count)))
    return builder.reshape(builder.scale(total, 1.0 / count, exact=count == 1) if mean else total, lead or (1,))

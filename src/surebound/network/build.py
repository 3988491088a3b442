"""Builds a `Network`, and writes the piecewise-linear activations exactly as affine operations and ReLUs.

Every encoding is an identity over the reals, and two operations are merged only where the merged numbers are exact in
float64, so the network that comes out means what the network that went in means. Simplifications are made while
building: a helper may return an existing node, and what becomes unused is dropped by `Builder.build`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from surebound.errors import NetworkError, quoted
from surebound.limits import COLUMNS, STEPS, Tally, check_elements, check_work
from surebound.network.activation import Activation
from surebound.network.conv import Conv, windows
from surebound.network.graph import Input, Network, Neurons, Node, Pointwise, Relu
from surebound.network.linear import Linear, Scale, Shift, Sum, size
from surebound.network.op import Affine, Shape, held
from surebound.network.shape import Concat, Pick, Reshape
from surebound.network.transposed import ConvTranspose

if TYPE_CHECKING:
    from torch import Tensor

Numbers: TypeAlias = Any
"""A NumPy array, where an operation's field says tensor (see `surebound.network.arrays`)."""
Real: TypeAlias = "Tensor | NDArray[np.floating] | NDArray[np.integer] | float"
"""A constant: any array of numbers that float64 holds exactly."""
Pads = Sequence[tuple[int, int]]
"""How much to add before and after each spatial axis."""

_FAR = 1e30  # a shift by more than this, and back, would lose what is shifted


def real(value: Real) -> Numbers:
    """The constant as a float64 array of finite numbers."""
    array = _float64(value)
    if not np.isfinite(array).all():
        raise NetworkError("a weight is NaN or infinite; expected finite numbers")
    return array


def _float64(value: Real) -> NDArray[np.float64]:
    """A number or an array as float64. Takes tensors, too: of any type, on any device, with gradients or without."""
    numbers: Any = value
    return numbers.detach().cpu().double().numpy() if hasattr(numbers, "detach") else np.array(numbers, np.float64)


def _own(array: Numbers) -> Numbers:
    """The array in memory that may be written to, in order: torch takes no other."""
    return np.require(array, requirements=("C", "W"))


def exact_sum(a: Numbers, b: Numbers) -> Numbers | None:
    """a + b if float64 holds it without rounding (Knuth's two-sum has no remainder), else None."""
    with np.errstate(all="ignore"):  # an overflow leaves a remainder that is NaN
        total = a + b
        virtual = total - a
        remainder = (a - (total - virtual)) + (b - virtual)
    return total if bool((remainder == 0).all()) else None


class Builder:
    """A network under construction. Methods take and return node numbers; node 0 is the input."""

    def __init__(self, input_shape: Shape) -> None:
        check_elements(input_shape)
        self._nodes: list[Node] = [Node(Input(tuple(input_shape)), (), "input")]
        self.name = ""  # given to the nodes that are added without a name of their own
        self.tally = Tally()

    def node(self, x: int) -> Node:
        """The node with a number."""
        return self._nodes[x]

    def shape(self, x: int) -> Shape:
        """A node's shape, without the batch."""
        return self._nodes[x].shape

    def add(self, op: Affine | Relu | Pointwise, *inputs: int, name: str = "") -> int:
        """Append a node and return its number."""
        if any(d < 1 for d in op.shape):
            shape = list(op.shape)
            raise NetworkError(f"{quoted(name or self.name)} has the shape {shape}; expected at least one element")
        if len(self._nodes) >= STEPS:
            raise NetworkError(
                f"this takes more than {STEPS:,} affine operations and activations; expected at most that"
            )
        check_elements(op.shape)
        self.tally.add(0 if isinstance(op, Neurons) else sum(size(tuple(value.shape)) for value in held(op).values()))
        self._nodes.append(Node(op, inputs, name or self.name))
        return len(self._nodes) - 1

    def build(self, output: int) -> Network:
        """The network that ends in `output`, over torch's tensors."""
        return self.arrays(output).tensors()

    def arrays(self, output: int) -> Network:
        """The network that ends in `output`, over NumPy's arrays, without the nodes that do not lead there."""
        needed = {0, output}
        for i in range(output, 0, -1):
            if i in needed:
                needed.update(self._nodes[i].inputs)
        kept = sorted(needed)
        number = {old: new for new, old in enumerate(kept)}
        nodes = tuple(Node(n.op, tuple(number[j] for j in n.inputs), n.name) for n in (self._nodes[i] for i in kept))
        return Network(nodes, number[output], numpy=True)

    # ---- affine operations

    def linear(self, x: int, weight: Real, bias: Real | None = None) -> int:
        """x Wᵀ + b on the last axis. # weight (out, in), bias (out,)"""
        w, *lead = real(weight), *self.shape(x)[:-1]
        if w.ndim != 2 or w.shape[1] != self.shape(x)[-1]:
            raise NetworkError(f"a matrix of shape {list(w.shape)} cannot multiply {list(self.shape(x))}")
        check_work(w.size * size(tuple(lead)))
        return self.add(Linear(_own(w), None if bias is None else real(bias), tuple(lead)), x)

    def conv(
        self,
        x: int,
        weight: Real,
        bias: Real | None = None,
        *,
        stride: Shape | None = None,
        pads: Pads | None = None,
        dilation: Shape | None = None,
        groups: int = 1,
    ) -> int:
        """W ∗ x + b on (channels, *size). # weight (out, in / groups, *kernel), bias (out,)"""
        w, shape = real(weight), self.shape(x)
        axes = w.ndim - 2
        if axes not in (1, 2) or len(shape) != axes + 1 or groups < 1 or w.shape[1] * groups != shape[0]:
            raise NetworkError(
                f"a kernel of shape {list(w.shape)} with {groups} groups cannot convolve {list(shape)}; "
                "expected one or two spatial axes and matching channels"
            )
        pads = pads or [(0, 0)] * axes
        if any(before != after for before, after in pads):
            x, pads = self.pad(x, pads), [(0, 0)] * axes
        op = Conv(
            weight=_own(w),
            in_shape=self.shape(x),
            bias=None if bias is None else real(bias).reshape(-1, *[1] * axes),
            stride=stride or (1,) * axes,
            padding=tuple(before for before, _ in pads),
            dilation=dilation or (1,) * axes,
            groups=groups,
        )
        _check_windows(op)
        # A step beyond the last place is as good as any other such step, and the adjoint makes room for steps.
        steps = tuple(
            min(s, max(n, 1)) for s, n in zip(op.stride, windows(replace(op, stride=(1,) * axes)), strict=True)
        )
        return self.add(replace(op, stride=steps), x)

    def conv_transpose(
        self,
        x: int,
        weight: Real,
        bias: Real | None = None,
        *,
        stride: Shape,
        pads: Pads,
        dilation: Shape,
        groups: int = 1,
        extra: Shape,
    ) -> int:
        """A transposed convolution of (channels, *size): what pads take away, and `extra` adds at the end of an axis.

        # weight (in, out / groups, *kernel), bias (out,)
        """
        w, shape = real(weight), self.shape(x)
        axes = w.ndim - 2
        if axes not in (1, 2) or len(shape) != axes + 1 or groups < 1 or w.shape[0] != shape[0] or shape[0] % groups:
            raise NetworkError(
                f"a kernel of shape {list(w.shape)} with {groups} groups cannot be spread over {list(shape)}; "
                "expected one or two spatial axes and matching channels"
            )
        if any(not 0 <= e < max(s, d) for e, s, d in zip(extra, stride, dilation, strict=True)):
            raise NetworkError(f"an output padding of {list(extra)}; expected less than a stride or dilation")
        spatial = zip(shape[1:], w.shape[2:], stride, dilation, strict=True)
        whole = tuple((n - 1) * s + d * (k - 1) + 1 for n, k, s, d in spatial)
        out = w.shape[1] * groups
        check_elements((out, *whole))
        check_work(size(tuple(w.shape)) * size(tuple(shape[1:])))
        spread = self.add(ConvTranspose(_own(w), (out, *whole), None, stride, (0,) * axes, dilation, groups), x)
        # what lies beyond the last place of the kernel is 0, as is what a negative pad would ask for
        ends = [(n + e - after, before) for n, e, (before, after) in zip(whole, extra, pads, strict=True)]
        index = np.pad(
            np.arange(out * size(whole), dtype=np.int64).reshape(out, *whole),
            [(0, 0), *((0, e) for e in extra)],
            constant_values=-1,
        )
        cropped = self.pick(spread, index[(slice(None), *(slice(start, stop) for stop, start in ends))])
        return cropped if bias is None else self.shift(cropped, real(bias).reshape(-1, *[1] * axes))

    def scale(self, x: int, weight: Real, *, exact: bool = True) -> int:
        """w ⊙ x. A weight that was computed, and so may carry a few roundings, is not `exact`."""
        w = np.broadcast_to(real(weight), self.shape(x))
        if exact and bool((w == 1).all()):
            return x
        free = exact and bool(np.isin(np.abs(w), (0, 1, 2)).all())
        w = _own(w)
        return self.add(Scale(w, roundings=0) if free else Scale(w, computed=not exact), x)

    def shift(self, x: int, bias: Real) -> int:
        """x + b, as the bias of the operation before it where that is exact."""
        b = np.broadcast_to(real(bias), self.shape(x))
        if not bool(b.any()):
            return x
        node = self._nodes[x]
        if isinstance(node.op, Shift):
            total = exact_sum(node.op.bias, b)
            if total is not None:
                return self.shift(node.inputs[0], total)
        elif isinstance(node.op, Linear | Conv):
            merged = self._with_bias(node.op, b)
            if merged is not None:
                return self.add(merged, *node.inputs, name=node.name)
        return self.add(Shift(_own(b)), x)

    def _with_bias(self, op: Linear | Conv, b: Numbers) -> Linear | Conv | None:
        """The op with b added to its bias, or None if b varies along an axis that the bias does not have."""
        slim = b[(0,) * (b.ndim - 1)] if isinstance(op, Linear) else b[(slice(None), *[slice(1)] * (b.ndim - 1))]
        if not bool((b == slim).all()):
            return None
        total = slim if op.bias is None else exact_sum(op.bias, slim)
        return None if total is None else replace(op, bias=_own(total))

    def negate(self, x: int) -> int:
        """−x."""
        return self.scale(x, -1.0)

    def sum(self, *xs: int, signs: Sequence[int] | None = None) -> int:
        """Σᵢ sᵢ xᵢ with signs ±1 (all + unless given)."""
        shapes = {self.shape(x) for x in xs}
        if len(shapes) != 1:
            raise NetworkError(f"branches of shapes {sorted(map(list, shapes))} cannot be added")
        chosen: Numbers = np.array(signs or [1] * len(xs), dtype=np.float64)
        return self.add(Sum(chosen, shapes.pop()), *xs)

    # ---- moving numbers

    def reshape(self, x: int, shape: Shape) -> int:
        """The same elements under another shape."""
        shape = tuple(shape)
        if size(shape) != size(self.shape(x)):
            raise NetworkError(f"{list(self.shape(x))} cannot be reshaped to {list(shape)}")
        node = self._nodes[x]
        if isinstance(node.op, Reshape):
            return self.reshape(node.inputs[0], shape)
        if shape == self.shape(x):
            return x
        if isinstance(node.op, Pick):
            return self.add(Pick(node.op.index.reshape(shape), node.op.in_shape), *node.inputs, name=node.name)
        return self.add(Reshape(shape, self.shape(x)), x)

    def pick(self, x: int, index: NDArray[np.int64]) -> int:
        """y[i] = x[index[i]] on flattened tensors, and 0 where index[i] is −1."""
        chosen: Numbers = np.ascontiguousarray(index, dtype=np.int64)
        node = self._nodes[x]
        count = size(self.shape(x))
        if chosen.size and not -1 <= int(chosen.min()) <= int(chosen.max()) < count:
            raise NetworkError(f"an index reaches outside the {count} elements of {list(self.shape(x))}")
        if chosen.size == count and bool((chosen.reshape(-1) == np.arange(count)).all()):
            return self.reshape(x, tuple(chosen.shape))
        if isinstance(node.op, Reshape):
            return self.pick(node.inputs[0], chosen)
        if isinstance(node.op, Pick):
            through: Numbers = np.asarray(node.op.index).reshape(-1)[
                chosen
            ]  # the last one for −1, which is put right in place
            through[chosen < 0] = -1
            return self.pick(node.inputs[0], through)
        return self.add(Pick(chosen, self.shape(x)), x)

    def pad(self, x: int, pads: Pads) -> int:
        """Zeros around the last axes, (before, after) for each."""
        if any(p < 0 for pair in pads for p in pair):
            raise NetworkError(f"pads of {[list(p) for p in pads]} remove elements; expected pads of at least 0")
        shape = self.shape(x)
        around = [*[(0, 0)] * (len(shape) - len(pads)), *pads]
        check_elements(n + before + after for n, (before, after) in zip(shape, around, strict=True))
        index = np.arange(size(shape), dtype=np.int64).reshape(shape)
        return self.pick(x, np.pad(index, around, constant_values=-1))

    def concat(self, xs: Sequence[int], axis: int) -> int:
        """Branches joined along an axis (counted without the batch)."""
        shapes = tuple(self.shape(x) for x in xs)
        if len({(*s[:axis], *s[axis + 1 :]) for s in shapes}) != 1:
            raise NetworkError(f"branches of shapes {[list(s) for s in shapes]} cannot be joined along axis {axis}")
        return xs[0] if len(xs) == 1 else self.add(Concat(axis, shapes), *xs)

    def constant(self, value: Real) -> int:
        """A node that does not depend on the input."""
        v = real(value)
        return self.shift(self.pick(0, np.full(v.shape, -1)), v)

    # ---- piecewise-linear functions

    def relu(self, x: int) -> int:
        """max(x, 0)."""
        return x if isinstance(self._nodes[x].op, Relu) else self.add(Relu(self.shape(x)), x)

    def maximum(self, a: int, b: int | Numbers) -> int:
        """max(a, b) = b + relu(a − b) element by element; b is a node, or an array of constants."""
        if not isinstance(b, int):
            return self.shift(self.relu(self.shift(a, -b)), b)
        return self.sum(b, self.relu(self.sum(a, b, signs=(1, -1))))

    def minimum(self, a: int, b: int | Numbers) -> int:
        """min(a, b) = b − relu(b − a) element by element; b is a node, or an array of constants."""
        if not isinstance(b, int):
            return self.shift(self.negate(self.relu(self.shift(self.negate(a), b))), b)
        return self.sum(b, self.relu(self.sum(b, a, signs=(1, -1))), signs=(1, -1))

    def absolute(self, x: int) -> int:
        """|x| = 2 relu(x) − x."""
        return self.sum(self.scale(self.relu(x), 2.0), x, signs=(1, -1))

    def leaky_relu(self, x: int, slope: Real) -> int:
        """max(x, 0) + s min(x, 0) = s x + (1 − s) relu(x), for one slope or one for each element, of any size."""
        s = real(slope)
        if not bool(s.any()):
            return self.relu(x)
        if bool((s == 1).all()):
            return x
        return self.sum(self.scale(x, s), self.scale(self.relu(x), 1.0 - s, exact=False))

    def clip(self, x: int, lo: Real | None, hi: Real | None) -> int:
        """min(max(x, lo), hi) = max(x, lo) − relu(x − hi) for lo ≤ hi.

        Only an infinite bound is no bound. One at the end of float32's range, as many files spell an absent one, is
        kept and does no harm: max(x, lo) is then written x + relu(lo − x), whose ReLU is never active.
        """
        low, high = _bound(lo, -np.inf), _bound(hi, np.inf)
        if low is not None and high is not None and bool((low > high).any()):
            return self.minimum(self.maximum(x, low), high)
        lifted = x
        if low is not None and bool((np.abs(low) > _FAR).any()):
            lifted = self.sum(x, self.relu(self.shift(self.negate(x), low)))
        elif low is not None:
            lifted = self.shift(self.relu(self.shift(x, -low)), low)
        return lifted if high is None else self.sum(lifted, self.relu(self.shift(x, -high)), signs=(1, -1))

    def apply(self, x: int, function: Activation) -> int:
        """f(x), element by element."""
        return self.add(Pointwise(self.shape(x), function), x)

    def batch_norm(self, x: int, gamma: Real, beta: Real, mean: Real, variance: Real, epsilon: float) -> int:
        """γ (x − mean) / √(variance + ε) + β along the first axis.

        Three operations rather than one, so that all that carries a rounding is the scale.
        """
        column = (-1, *[1] * (len(self.shape(x)) - 1))
        spread = real(variance) + epsilon
        if bool((spread <= 0).any()):
            raise NetworkError("a batch norm's variance + epsilon is not positive")
        scale = real(gamma) / np.sqrt(spread)
        if bool(((np.abs(scale) < np.finfo(np.float64).tiny) & (real(gamma) != 0)).any()):
            raise NetworkError("a batch norm's scale is below float64's normal range; expected a larger one")
        centred = self.shift(x, -real(mean).reshape(column))
        return self.shift(self.scale(centred, scale.reshape(column), exact=False), real(beta).reshape(column))


def _check_windows(conv: Conv) -> None:
    """Refuse a convolution that reads, pads or multiplies too much; one without a place for its kernel is not ours."""
    padded = (n + 2 * p for n, p in zip(conv.in_shape[1:], conv.padding, strict=True))
    check_elements((conv.in_shape[0], *padded))
    places, kernel = size(conv.shape[1:]), size(tuple(conv.weight.shape[2:]))
    if min(conv.shape[1:]) > 0:
        read = places * conv.in_shape[0] * kernel  # which torch writes side by side, in float64
        if read > COLUMNS:
            raise NetworkError(f"the windows of a convolution read {read:,} numbers; expected at most {COLUMNS:,}")
        check_work(places * size(tuple(conv.weight.shape)))


def _bound(value: Real | None, absent: float) -> Numbers | None:
    """A clip's bound, or None if there is none, which `absent` (−∞ or ∞) also says."""
    if value is None:
        return None
    bound = _float64(value)
    return None if bool((bound == absent).all()) else real(bound)

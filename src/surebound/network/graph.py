"""The network as a graph: affine operations, activations, and skips between them, in topological order.

What is piecewise linear (max pooling, leaky ReLU, clipping, …) is built from affine operations and ReLUs exactly
(`surebound.network.build`). Every other activation is a row of `surebound.network.activations`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from surebound.network.activation import Activation as Function
from surebound.network.arrays import flat, library, positive, spread, tensor, zeros
from surebound.network.conv import Conv
from surebound.network.linear import Linear, size
from surebound.network.op import Affine, Shape, cast, tensors

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import Tensor

    from surebound.network.patch import Patch

C = TypeVar("C", "Tensor", "Patch")  # coefficients on a node
Activation = Callable[[int, "Tensor"], "Tensor"]
"""(layer index, values or coefficients of that layer) -> the same on the other side of its activation."""


@dataclass(frozen=True)
class Relu:
    """y = max(x, 0)."""

    shape: Shape


@dataclass(frozen=True)
class Pointwise:
    """y = f(x), element by element, for any other activation f."""

    shape: Shape
    function: Function


Neurons = Relu | Pointwise


@dataclass(frozen=True)
class Input:
    """The network's input."""

    shape: Shape


@dataclass(frozen=True)
class Node:
    """One operation and the nodes it reads."""

    op: Affine | Relu | Pointwise | Input
    inputs: tuple[int, ...]
    name: str

    @property
    def shape(self) -> Shape:
        return self.op.shape


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes in topological order; node 0 is the input and `output` the result."""

    nodes: tuple[Node, ...]
    output: int
    numpy: bool = False  # whether it holds NumPy arrays, else torch's tensors
    device: str = "cpu"  # where its tensors are, and those that are made for it

    @property
    def input_shape(self) -> Shape:
        return self.nodes[0].shape

    @property
    def output_shape(self) -> Shape:
        return self.nodes[self.output].shape

    @property
    def inputs(self) -> int:
        """The number of input elements."""
        return size(self.input_shape)

    @property
    def outputs(self) -> int:
        """The number of output elements."""
        return size(self.output_shape)

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """The nodes with activations, first to last. A *layer* below is an index into this tuple."""
        return tuple(i for i, node in enumerate(self.nodes) if isinstance(node.op, Neurons))

    @cached_property
    def functions(self) -> tuple[Function | None, ...]:
        """The activation of each layer; None for ReLUs."""
        ops = (self.nodes[i].op for i in self.layers)
        return tuple(op.function if isinstance(op, Pointwise) else None for op in ops)

    @cached_property
    def piecewise_linear(self) -> bool:
        """Whether all activations are ReLUs."""
        return not any(self.functions)

    def activate(self, layer: int, xhat: Tensor) -> Tensor:
        """x_k of x̂_k."""
        function = self.functions[layer]
        return positive(xhat) if function is None else function.value(xhat)

    def slope(self, layer: int, xhat: Tensor) -> Tensor:
        """The derivative of the activation at x̂_k, for attacks."""
        function = self.functions[layer]
        return xhat > 0 if function is None else function.slope(xhat)

    @cached_property
    def layer_of(self) -> dict[int, int]:
        """Node with activations -> layer."""
        return {node: k for k, node in enumerate(self.layers)}

    def before(self, layer: int) -> int:
        """The node that holds a layer's pre-activation x̂_k."""
        return self.nodes[self.layers[layer]].inputs[0]

    def width(self, layer: int) -> int:
        """The number of neurons of a layer."""
        return size(self.nodes[self.layers[layer]].shape)

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The number of neurons of each layer."""
        return tuple(self.width(k) for k in range(len(self.layers)))

    @cached_property
    def neurons(self) -> int:
        """The number of neurons of all layers."""
        return sum(self.widths)

    @cached_property
    def widest(self) -> int:
        """The number of elements of the largest node."""
        return max(size(node.shape) for node in self.nodes)

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """The last node that reads each node; itself where none does."""
        last = list(range(len(self.nodes)))
        for i, node in enumerate(self.nodes):
            for j in node.inputs:
                last[j] = i
        last[self.output] = len(self.nodes)
        return tuple(last)

    def to(self, dtype: torch.dtype) -> Network:
        """The same network with its weights in another precision."""
        return self.map(lambda op: cast(op, dtype))

    def single(self) -> Network:
        """The same network with its weights in float32."""
        return self.to(library(self.array(np.zeros(0))).float32)

    def tensors(self, device: str = "cpu") -> Network:
        """The same network over torch's tensors on a device, which share the numbers if they are there."""
        if not self.numpy and self.device == device:
            return self
        return replace(self.map(lambda op: tensors(op, device)), numpy=False, device=device)

    def array(self, x: NDArray[Any]) -> Tensor:
        """x as an array of the kind that the network holds, where it is."""
        return x if self.numpy else tensor(x, self.device)  # type: ignore[return-value]

    def map(self, change: Callable[[Affine], Affine]) -> Network:
        """The same network with other affine operations in place of its own."""
        nodes = (n if isinstance(n.op, Neurons | Input) else Node(change(n.op), n.inputs, n.name) for n in self.nodes)
        return replace(self, nodes=tuple(nodes))

    def forward(self, x: Tensor) -> Tensor:
        """f(x). # (batch, *input_shape) -> (batch, *output_shape)"""
        return self.trace(x, self.activate)

    def trace(self, x: Tensor, activate: Activation, start: int = 0) -> Tensor:
        """A forward pass from the node `start` with x_k = activate(k, x̂_k) in place of each activation."""
        values: dict[int, Tensor] = {start: x}
        for i, node in enumerate(self.nodes[start + 1 :], start=start + 1):
            op = node.op
            if isinstance(op, Neurons):
                values[i] = activate(self.layer_of[i], values[node.inputs[0]])
            elif not isinstance(op, Input):
                values[i] = value(op, *(values[j] for j in node.inputs))
            for j in {start, *node.inputs}:
                if self.last_use[j] <= i:
                    values.pop(j, None)
        return values[self.output]

    def pull(
        self, start: dict[int, Tensor], activate: Activation, errors: dict[int, Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Carry coefficients on nodes back to the input.

        Given Σ_v c_v · v, replaces each op by its definition, and at each activation the coefficient λ on x_k by
        μ = activate(k, λ) on x̂_k, until only the input and a constant are left.

        Returns (coefficient on the input, constant, error): (batch, *input_shape), (batch,), (batch,). With `errors`
        (see `surebound.bounds.enclosure`) the third bounds what rounding did to the first two, over the whole box.
        """
        sample = next(iter(start.values()))
        constant, error = zeros(sample, len(sample)), zeros(sample, len(sample))

        def through(i: int, op: Affine, c: Tensor) -> tuple[Tensor, ...]:
            nonlocal constant, error
            if op.bias is not None:
                constant = constant + dot(c, spread(op.bias, op.shape))
            if errors is not None:
                error = error + dot(abs(c), errors[i])
            return op.adjoint(c)

        at_input = carry_back(self, start, activate, through)
        if at_input is None:
            at_input = zeros(sample, len(sample), *self.input_shape)
        return at_input, constant, error


def carry_back(
    network: Network,
    start: Mapping[int, C],
    activate: Callable[[int, C], C],
    through: Callable[[int, Affine, C], Sequence[C]],
) -> C | None:
    """Carry coefficients on nodes back to the input, and return those on it, None if it is not reached.

    `activate(k, c)` turns coefficients on layer k's outputs into those on its inputs, `through(i, op, c)` those on an
    affine node i into those on each node it reads. What several readers of a node contribute is added up.
    """
    coefficients = dict(start)
    for i in range(max(start), 0, -1):
        c = coefficients.pop(i, None)
        if c is None:
            continue
        node = network.nodes[i]
        if isinstance(node.op, Neurons):
            pulled: Sequence[C] = (activate(network.layer_of[i], c),)
        else:
            assert not isinstance(node.op, Input)
            pulled = through(i, node.op, c)
        for j, p in zip(node.inputs, pulled, strict=True):
            coefficients[j] = coefficients[j] + p if j in coefficients else p
    return coefficients.get(0)


def value(op: Affine, *xs: Tensor) -> Tensor:
    """A x + b."""
    if isinstance(op, Conv | Linear) and not isinstance(xs[0], np.ndarray):
        return op.value(*xs)  # torch adds b in the same pass
    y = op.apply(*xs)
    return y if op.bias is None else y + op.bias


def dot(c: Tensor, v: Tensor) -> Tensor:
    """Σ c·v over all but the batch; v may have a batch of its own that divides c's (boxes × specifications)."""
    if v.ndim < c.ndim or len(v) == 1:
        return flat(c) @ v.reshape(-1)
    if len(v) == len(c):
        return flat(c * v).sum(1)
    return (c.reshape(len(v), len(c) // len(v), -1) @ v.reshape(len(v), -1, 1)).reshape(-1)

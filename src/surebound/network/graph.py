"""The network as a graph: affine operations, ReLUs, and skips between them, in topological order.

Every other activation that surebound supports (max pooling, leaky ReLU, clipping, …) is built from these two exactly
(`surebound.network.build`), so bounds and branching only ever meet ReLUs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from surebound.network.linear import size
from surebound.network.op import Affine, Shape, cast

Activation = Callable[[int, Tensor], Tensor]
"""(layer index, values or coefficients of that layer) -> the same on the other side of its ReLU."""


@dataclass(frozen=True)
class Relu:
    """y = max(x, 0)."""

    shape: Shape


@dataclass(frozen=True)
class Input:
    """The network's input."""

    shape: Shape


@dataclass(frozen=True)
class Node:
    """One operation and the nodes it reads."""

    op: Affine | Relu | Input
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
        """The ReLU nodes, first to last. A *layer* below is an index into this tuple."""
        return tuple(i for i, node in enumerate(self.nodes) if isinstance(node.op, Relu))

    @cached_property
    def layer_of(self) -> dict[int, int]:
        """ReLU node -> layer."""
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
    def last_use(self) -> tuple[int, ...]:
        """The last node that reads each node; itself where none does."""
        last = list(range(len(self.nodes)))
        for i, node in enumerate(self.nodes):
            for j in node.inputs:
                last[j] = i
        last[self.output] = len(self.nodes)
        return tuple(last)

    def to(self, dtype: torch.dtype) -> "Network":
        """The same network with its weights in another precision."""
        nodes = tuple(
            n if isinstance(n.op, Relu | Input) else Node(cast(n.op, dtype), n.inputs, n.name) for n in self.nodes
        )
        return Network(nodes, self.output)

    def forward(self, x: Tensor) -> Tensor:
        """f(x). # (batch, *input_shape) -> (batch, *output_shape)"""
        return self.trace(x, lambda _, xhat: xhat.clamp_min(0.0))

    def trace(self, x: Tensor, activate: Activation) -> Tensor:
        """A forward pass with x_k = activate(k, x̂_k) in place of each ReLU."""
        values: dict[int, Tensor] = {0: x}
        for i, node in enumerate(self.nodes[1:], start=1):
            op = node.op
            if isinstance(op, Relu):
                values[i] = activate(self.layer_of[i], values[node.inputs[0]])
            elif not isinstance(op, Input):
                y = op.apply(*(values[j] for j in node.inputs))
                values[i] = y if op.bias is None else y + op.bias
            for j in {0, *node.inputs}:
                if self.last_use[j] <= i:
                    values.pop(j, None)
        return values[self.output]

    def pull(
        self, start: dict[int, Tensor], activate: Activation, errors: "dict[int, Tensor] | None" = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Carry coefficients on nodes back to the input.

        Given Σ_v c_v · v, replaces each op by its definition, and at each ReLU the coefficient λ on x_k by
        μ = activate(k, λ) on x̂_k, until only the input and a constant are left.

        Returns (coefficient on the input, constant, error): (batch, *input_shape), (batch,), (batch,). With `errors`
        (see `surebound.bounds.enclosure`) the third bounds what rounding did to the first two, over the whole box.
        """
        coefficients = dict(start)
        sample = next(iter(start.values()))
        constant, error = sample.new_zeros(len(sample)), sample.new_zeros(len(sample))
        for i in range(max(start), 0, -1):
            c = coefficients.pop(i, None)
            if c is None:
                continue
            node = self.nodes[i]
            op = node.op
            if isinstance(op, Relu):
                pulled: tuple[Tensor, ...] = (activate(self.layer_of[i], c),)
            else:
                assert not isinstance(op, Input)
                if op.bias is not None:
                    constant = constant + dot(c, op.bias.expand(op.shape))
                if errors is not None:
                    error = error + dot(c.abs(), errors[i])
                pulled = op.adjoint(c)
            for j, p in zip(node.inputs, pulled, strict=True):
                coefficients[j] = coefficients[j] + p if j in coefficients else p
        at_input = coefficients.get(0)
        if at_input is None:
            at_input = sample.new_zeros(len(sample), *self.input_shape)
        return at_input, constant, error


def dot(c: Tensor, v: Tensor) -> Tensor:
    """Σ c·v over all but the batch; v may have a batch of its own that divides c's (boxes × specifications)."""
    if v.ndim < c.ndim or len(v) == 1:
        return c.flatten(1) @ v.reshape(-1)
    if len(v) == len(c):
        return (c * v).flatten(1).sum(1)
    return (c.reshape(len(v), len(c) // len(v), -1) @ v.reshape(len(v), -1, 1)).reshape(-1)

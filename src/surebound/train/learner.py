"""The network as training sees it: the graph that is verified, over a module's own parameters.

A `Learner` reads a module once (`surebound.train.read`). At each step it hands out `Layers`: the network of that step,
with every batch norm folded in, so that a loss, a bound or an attack only ever meets the operations of
`surebound.network`. Gradients flow through the folding to the module's parameters.

Images are kept in torch's channels-last layout throughout, forwards and backwards, which is what convolutions are
fastest in on a CPU (`benchmarks/train_step.py` measures it).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, cast, final

import torch
from torch import Tensor, nn

from surebound.network.conv import Conv
from surebound.network.graph import Input, Network, Neurons, Relu, value
from surebound.network.linear import Linear
from surebound.network.op import Affine, Shape, held
from surebound.train.places import Place
from surebound.train.read import expect_numbers, read

OpT = TypeVar("OpT", bound=Affine)


class _Flatten(torch.autograd.Function):
    """Flattens in (channel, height, width) order and gives gradients back in the layout of images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        return x.contiguous().flatten(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return image_layout(gradients[0].reshape(ctx.shape))


def image_layout(x: Tensor) -> Tensor:
    """The same numbers in channels-last order. # (batch, channels, height, width)"""
    if x.ndim != 4:
        return x
    if x.shape[1] == 1:  # torch takes one channel for channels-last in any layout, and passes on the wrong strides
        return x.reshape(len(x), *x.shape[2:], 1).permute(0, 3, 1, 2)
    return x.contiguous(memory_format=torch.channels_last)


def flatten(x: Tensor) -> Tensor:
    """# (batch, *shape) -> (batch, elements)"""
    return x if x.ndim == 2 else cast(Tensor, _Flatten.apply(x))  # type: ignore[no-untyped-call]


@final
@dataclass(frozen=True, eq=False)
class Layers:
    """The network of one step. A *layer* is one with activations, as in `Network`.

    `natural` has f(x) on the clean batch where that had to be computed for the batch norms, so that no loss pays for it
    twice; `clean_logits` computes it where it is missing.
    """

    network: Network  # on normalised pixels
    cuts: tuple[int, ...]  # the nodes that blocks begin after; see `Learner.cuts`
    mean: Tensor  # (channels, 1, 1)
    std: Tensor  # (channels, 1, 1)
    natural: Tensor | None = None  # (batch, classes)

    @property
    def last(self) -> Linear:
        """The operation that computes the logits."""
        return cast(Linear, self.network.nodes[self.network.output].op)

    @property
    def before_last(self) -> int:
        """The node that the last operation reads."""
        return self.network.nodes[self.network.output].inputs[0]

    @cached_property
    def readers(self) -> tuple[int, ...]:
        """How many operations read each node."""
        return tuple(_readers(self.network))

    def normalise(self, x: Tensor) -> Tensor:
        """Pixels in [0, 1] to the network's input. # (batch, *in_shape)"""
        return image_layout((x - self.mean) / self.std)

    def logits(self, x: Tensor, *, start: int = 0) -> Tensor:
        """f from pixels or, with `start` = k > 0, from the tensor that block k begins with.

        # (batch, *shape) -> (batch, classes)
        """
        return self.network.trace(self.normalise(x) if start == 0 else x, self._activate, self.cuts[start])

    def owns(self, k: int) -> bool:
        """Whether layer k alone reads what a product has just computed, so that it may overwrite that."""
        before = self.network.before(k)
        return self.readers[before] == 1 and isinstance(self.network.nodes[before].op, Conv | Linear)

    def _activate(self, k: int, xhat: Tensor) -> Tensor:
        if self.network.functions[k] is not None:
            return self.network.activate(k, xhat)
        return xhat.relu_() if self.owns(k) else xhat.relu()

    def clean_logits(self, x: Tensor) -> Tensor:
        """f(x) on the clean batch."""
        return self.logits(x) if self.natural is None else self.natural

    def detach(self, blocks: int | None = None) -> "Layers":
        """The same numbers without gradients to the parameters, or to those of the first so many blocks."""
        stop = len(self.network.nodes) if blocks is None else self.cuts[blocks] + 1
        nodes = [
            node if isinstance(node.op, Neurons | Input) or i >= stop else replace(node, op=_detached(node.op))
            for i, node in enumerate(self.network.nodes)
        ]
        natural = self.natural if blocks is not None or self.natural is None else self.natural.detach()
        return replace(self, network=replace(self.network, nodes=tuple(nodes)), natural=natural)


def _detached(op: OpT) -> OpT:
    return replace(op, **{name: tensor.detach() for name, tensor in held(op).items()})


def _readers(network: Network) -> list[int]:
    counts = [0] * len(network.nodes)
    for node in network.nodes:
        for j in node.inputs:
            counts[j] += 1
    return counts


class Learner:
    """A module that can be traced by torch.fx, of operations that can be verified, on pixels in [0, 1]."""

    def __init__(self, module: nn.Module, in_shape: Shape) -> None:
        expect_numbers(module)
        self._fixed = {p for p in module.parameters() if not p.requires_grad}
        self.module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.in_shape = tuple(in_shape)
        reading = read(module, self.in_shape)
        self._normalise, self._structure = reading.normalise, reading.network
        self.places = {i: node.op for i, node in enumerate(self._structure.nodes) if isinstance(node.op, Place)}
        self.cuts = _cuts(self._structure, self.places)

    @property
    def blocks(self) -> int:
        """How many parts the network has that are joined by a single tensor each, and have weights of their own.

        In a chain of affine layers with activations between them, each of those layers is a block; a residual block is
        one, too.
        """
        return len(self.cuts)

    @property
    def relus(self) -> tuple[int, ...]:
        """The layers with ReLUs."""
        return tuple(k for k, function in enumerate(self._structure.functions) if function is None)

    @property
    def has_batch_norm(self) -> bool:
        return any(place.norm is not None for place in self.places.values())

    def weights(self, *, start: int = 0) -> list[nn.Parameter]:
        """The weights of blocks from `start` on: no biases, no batch norms (what ℓ1 regularisation covers)."""
        chosen = (w for i, place in self.places.items() if i > self.cuts[start] for w in place.weights)
        return list(dict.fromkeys(chosen))

    def parameters(self, *, start: int = 0) -> list[nn.Parameter]:
        """What is trained of blocks from `start` on, with their batch norms: parameters that no block before has.

        Those that did not require a gradient when the module was given stay as they are.
        """
        before = {p for i, place in self.places.items() if i <= self.cuts[start] for p in place.parameters}
        chosen = (p for i, place in self.places.items() if i > self.cuts[start] for p in place.parameters)
        return [p for p in dict.fromkeys(chosen) if p not in before and p not in self._fixed]

    def release(self) -> None:
        """Give the module back as it was given: which parameters require a gradient, and torch's own layout."""
        for parameter in self.module.parameters():
            parameter.requires_grad_(parameter not in self._fixed)
        self.module.to(memory_format=torch.contiguous_format)

    def layers(self, x: Tensor | None = None) -> Layers:
        """The network with the batch norms' statistics of the clean batch x, which also updates their running averages;
        without x, with the running averages, as in evaluation. # x: (batch, *in_shape) pixels"""
        mean, std = self._pixels()
        structure = self._structure_of(mean)
        if x is None or not self.has_batch_norm:
            network = structure.map(lambda op: op.fill()[0] if isinstance(op, Place) else op)
            return Layers(network, self.cuts, mean, std)
        layers = Layers(structure, self.cuts, mean, std)
        return replace(layers, **_filled(structure, layers.normalise(x)))

    def _pixels(self) -> tuple[Tensor, Tensor]:
        if self._normalise is not None:
            return self._normalise.mean, self._normalise.std
        like = next(p for place in self.places.values() for p in place.parameters)
        return like.new_zeros(1), like.new_ones(1)

    def _structure_of(self, like: Tensor) -> Network:
        """The structure, its constants of a tensor's type and on its device."""
        wanted = like.dtype, like.device
        if self._constants != wanted:
            moved = self._structure.map(lambda op: op if isinstance(op, Place) else _moved(op, *wanted))
            self._structure = replace(moved, device=str(like.device))
            self._constants = wanted
        return self._structure

    _constants: tuple[torch.dtype, torch.device] | None = None


def _moved(op: OpT, dtype: torch.dtype, device: torch.device) -> OpT:
    moved = {name: t.to(device, dtype if t.is_floating_point() else t.dtype) for name, t in held(op).items()}
    return replace(op, **moved)


def _filled(structure: Network, x: Tensor) -> dict[str, Any]:
    """The network whose batch norms have the statistics of normalised pixels x, and what it computes from them."""
    nodes, values = [structure.nodes[0]], {0: x}
    for i, node in enumerate(structure.nodes[1:], start=1):
        op, inputs = node.op, [values[j] for j in node.inputs]
        if isinstance(op, Place):
            op, found = op.fill(inputs[0])
            assert found is not None
            values[i] = found
        elif isinstance(op, Neurons):
            values[i] = inputs[0].relu() if isinstance(op, Relu) else op.function.value(inputs[0])
        elif not isinstance(op, Input):
            values[i] = value(op, *inputs)
        nodes.append(replace(node, op=op))
        for j in node.inputs:
            if structure.last_use[j] <= i:
                values.pop(j, None)
    return {"network": replace(structure, nodes=tuple(nodes)), "natural": values[structure.output]}


def _cuts(network: Network, places: dict[int, Place]) -> tuple[int, ...]:
    """The input, and every node that alone carries what comes before it to what comes after it, where a block begins.

    A block begins after an activation, or where branches part, and has weights of its own.
    """
    readers, reach, found = _readers(network), 0, [0]
    weighted = {i for i, place in places.items() if place.weights}
    for i, node in enumerate(network.nodes):
        begins = isinstance(node.op, Neurons) or readers[i] > 1
        if i > 0 and reach <= i < network.output and begins and any(found[-1] < w <= i for w in weighted):
            found.append(i)
        reach = max(reach, network.last_use[i])
    last = max(weighted, default=0)
    return tuple(a for a in found if a < last or a == 0)


def l1_norm(weights: Sequence[Tensor]) -> Tensor:
    """‖θ‖₁ over the given weights."""
    return torch.stack([w.abs().sum() for w in weights]).sum()

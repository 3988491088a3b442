"""The bias that feeds each neuron, by which SR and FSB score."""

import torch
from torch import Tensor

from surebound.network.graph import Input, Network, Neurons
from surebound.network.linear import Scale, Shift
from surebound.network.shape import Concat, Pick, Reshape

_ELEMENTWISE = (Scale, Shift, Reshape, Pick, Concat)


def biases(network: Network) -> list[Tensor]:
    """b of x̂_k = W x_{k−1} + b for every layer of ReLUs: x̂_k where everything that weights multiply is 0.

    Scales and shifts between the input and the first weights normalise pixels. They change what the input is and are no
    part of b, so that the scores do not depend on where normalised pixels have their 0. # (width,) float64 each
    """
    values = {0: torch.zeros(1, *network.input_shape, dtype=torch.float64, device=network.device)}
    pixels = {0}  # nodes that are the input, element by element
    found = []
    for i, node in enumerate(network.nodes[1:], start=1):
        op = node.op
        if isinstance(op, Neurons):
            found.append(values[node.inputs[0]].flatten())
            values[i] = torch.zeros_like(values[node.inputs[0]])
            continue
        assert not isinstance(op, Input)
        elementwise = isinstance(op, _ELEMENTWISE)
        if elementwise and pixels.issuperset(node.inputs):
            pixels.add(i)
        given = [values[j] if elementwise or j not in pixels else torch.zeros_like(values[j]) for j in node.inputs]
        y = op.apply(*given)
        values[i] = y if op.bias is None else y + op.bias
    return found

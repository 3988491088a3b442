"""Which form of a network the search bounds its nodes on: the one whose passes are expected to take less time.

Costs are counted in multiply-adds of a dense matrix product. What else a pass does is weighed by how long it takes
beside such a product, as measured by benchmarks/rates.py: a multiply-add of a convolution or of a sparse matrix takes
longer, and so does every number that is streamed through memory for slopes, gradients and moments.
"""

from math import prod

import torch
from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.kernel import Kernel
from surebound.network.conv import Conv
from surebound.network.graph import Network
from surebound.network.linear import Linear

SPARSE = 7.0  # a non-zero of a sparse block
CONVOLUTION = 3.0  # a multiply-add of a convolution
NEURON = 150.0  # a neuron of the folded form: its slopes, gradient and moments
INPUT = 60.0
GRAPH_NEURON = 600.0  # a neuron of the graph form, whose passes are not in place


def cheapest(folded: FoldedForm, enclosure: Enclosure) -> Form:
    """The folded form, or the graph form over the same bounds if that is cheaper."""
    graph = graph_cost(enclosure.network)
    return folded if folded_cost(Kernel.of(folded)) <= graph else GraphForm.at(enclosure, enclosure.network.output)


def folded_cost(kernel: Kernel) -> float:
    """Of one pass for one node."""
    products = sum(_entries(block.weight) for block in kernel.blocks)
    return products + NEURON * kernel.neurons + INPUT * kernel.inputs


def graph_cost(network: Network) -> float:
    """Of one pass for one node."""
    products = 0.0
    for node in network.nodes:
        op = node.op
        if isinstance(op, Conv):
            products += CONVOLUTION * op.weight[0].numel() * prod(op.shape)
        elif isinstance(op, Linear):
            products += op.weight.numel() * prod(op.lead)
    neurons = sum(network.width(k) for k in range(len(network.layers)))
    return products + GRAPH_NEURON * neurons + INPUT * network.inputs


def _entries(weight: Tensor) -> float:
    return float(weight.numel()) if weight.layout == torch.strided else SPARSE * weight.values().numel()

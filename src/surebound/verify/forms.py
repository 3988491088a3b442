"""Which form of a network the search bounds its nodes on: the one whose passes are expected to take less time.

Costs are counted in multiply-adds of a dense matrix product. What else a pass does is weighed by how long it takes
beside such a product: the weights below are a least-squares fit to the eleven boundings of benchmarks/rates.py.
"""

from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import products
from surebound.bounds.sparse import is_sparse
from surebound.network.graph import Network

SPARSE = 6.5  # a non-zero of a sparse block
NEURON = 550.0  # a neuron of the folded form: its slopes, gradient and moments
INPUT = 150.0  # an input of the folded form
GRAPH_NEURON = 1200.0  # a neuron of the graph form, whose passes are not in place


def cheapest(folded: FoldedForm, enclosure: Enclosure) -> Form:
    """The folded form, or the graph form over the same bounds if that is cheaper."""
    graph = graph_cost(enclosure.network)
    return folded if folded_cost(folded) <= graph else GraphForm.at(enclosure, enclosure.network.output)


def folded_cost(form: FoldedForm) -> float:
    """Of one pass for one node."""
    return sum(_entries(block.weight) for block in form.blocks) + NEURON * form.neurons + INPUT * form.inputs


def graph_cost(network: Network) -> float:
    """Of one pass for one node."""
    neurons = sum(network.width(k) for k in range(len(network.layers)))
    return products(network, len(network.nodes) - 1) + GRAPH_NEURON * neurons


def _entries(weight: Tensor) -> float:
    return SPARSE * int(weight.count_nonzero()) if is_sparse(weight) else float(weight.numel())

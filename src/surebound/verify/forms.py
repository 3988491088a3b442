"""Which form of a network the search bounds its nodes on: the one whose passes are expected to take less time.

Costs are counted in multiply-adds of a dense matrix product. What else a pass does is weighed by how long it takes
beside such a product: the weights below are a least-squares fit to the eleven boundings of benchmarks/rates.py.
"""

from dataclasses import dataclass

from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.sparse import is_sparse
from surebound.network.cost import products
from surebound.network.graph import Network


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one pass for one node costs."""

    non_zero: float = 6.5  # of a sparse block
    neuron: float = 550.0  # of the folded form: its slopes, gradient and moments
    input: float = 150.0  # of the folded form
    graph_neuron: float = 1200.0  # of the graph form, whose passes are not in place

    def folded(self, form: FoldedForm) -> float:
        entries = sum(self._entries(block.weight) for block in form.blocks)
        return entries + self.neuron * form.neurons + self.input * form.inputs

    def graph(self, network: Network) -> float:
        neurons = sum(network.widths)
        return products(network, len(network.nodes) - 1) + self.graph_neuron * neurons

    def _entries(self, weight: Tensor) -> float:
        return self.non_zero * int(weight.count_nonzero()) if is_sparse(weight) else float(weight.numel())


def cheapest(folded: FoldedForm, enclosure: Enclosure, costs: Costs = Costs()) -> Form:
    """The folded form, or the graph form over the same bounds if that is cheaper."""
    network = enclosure.network
    return folded if costs.folded(folded) <= costs.graph(network) else GraphForm.at(enclosure, network.output)

"""Which form of a network the search bounds its nodes on, and whether layers are bounded backwards or forwards first:
whichever is expected to take less time.

Costs are counted in multiply-adds of a dense matrix product. What else a pass does is weighed by how long it takes
beside such a product: the weights below are a least-squares fit to the eleven boundings of benchmarks/rates.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import PASSES
from surebound.bounds.sparse import is_sparse
from surebound.network.cost import products
from surebound.network.graph import Network

PRODUCTS_PER_SECOND = 2**34  # multiply-adds of float32 passes, about


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What one pass for one node costs."""

    non_zero: float = 6.5  # of a sparse block
    neuron: float = 550.0  # of the folded form: its slopes, gradient and moments
    input: float = 150.0  # of the folded form
    graph_neuron: float = 1200.0  # of the graph form, whose passes are not in place
    root_passes: float = 15.0  # backwards, of a neuron whose sign is open: FastLin, CROWN and an ascent
    folding: float = 12.0  # passes, of a neuron whose sign is open: in float64, and those of an ascent
    too_many: float = 4.0  # times as many signs are open by intervals, in large networks, as after bounding layers
    symbol_neuron: float = 20.0  # for each symbol of a zonotope: its slope, and its share of the spread
    parts: int = 64  # of a box, which a bisection may bound before it has to compare with bounding layers backwards

    def folded(self, form: FoldedForm) -> float:
        entries = sum(self._entries(block.weight) for block in form.blocks)
        return entries + self.neuron * form.neurons + self.input * form.inputs

    def graph(self, network: Network) -> float:
        return products(network, len(network.nodes) - 1) + self.graph_neuron * network.neurons

    def backwards(self, network: Network, ambiguous: Sequence[int]) -> float:
        """Of bounding all layers backwards, once, given how many neurons of each have no sign yet."""
        total, before = 0.0, 0
        for k, count in enumerate(ambiguous):
            total += count * (products(network, network.before(k)) + self.graph_neuron * before)
            before += network.width(k)
        return self.root_passes * total

    def passes(self, network: Network, counts: Sequence[int]) -> float:
        """Of a pass backwards for so many neurons of each layer."""
        return sum(count * products(network, network.before(k)) for k, count in enumerate(counts))

    def bounding(self, enclosure: Enclosure) -> float:
        """Of bounding all layers backwards with fixed slopes, in order, given intervals of all of them."""
        return PASSES * self.passes(enclosure.network, enclosure.ambiguous()) / self.too_many

    def forwards(self, network: Network, inputs: int, ambiguous: Sequence[int]) -> float:
        """Of bounding the parts of a box forwards, every input halved once or as many parts as there may be."""
        each = products(network, network.output) + self.symbol_neuron * network.neurons
        return min(2.0**inputs, self.parts) * (inputs + sum(ambiguous)) * each

    def _entries(self, weight: Tensor) -> float:
        return self.non_zero * int(weight.count_nonzero()) if is_sparse(weight) else float(weight.numel())


def cheapest(folded: FoldedForm, enclosure: Enclosure, costs: Costs = Costs()) -> Form:
    """The folded form, or the graph form over the same bounds if that is cheaper."""
    network = enclosure.network
    return folded if costs.folded(folded) <= costs.graph(network) else GraphForm.at(enclosure, network.output)

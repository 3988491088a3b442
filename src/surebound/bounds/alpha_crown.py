"""α-CROWN (Xu 2021): CROWN with the lower slopes α optimised for each bounded neuron by projected gradient ascent."""

from torch import Tensor

from surebound.bounds.beta_crown import Ascent
from surebound.bounds.crown import layerwise
from surebound.bounds.result import LayerBounds
from surebound.bounds.root import LayerBounding
from surebound.network.graph import Network


def alpha_crown(
    network: Network, lower: Tensor, upper: Tensor, *, iterations: int = 20, lr: float = 0.5
) -> LayerBounds:
    """Starts from the better of FastLin and CROWN, neuron by neuron: for the same layer bounds it is never worse."""
    ascent = Ascent(iterations=iterations, lr=lr)
    return layerwise(network, lower, upper, LayerBounding(ascent=ascent))

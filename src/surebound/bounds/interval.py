"""Interval bound propagation (Gowal 2018, Mirman 2018; the paper's appendix D)."""

from torch import Tensor

from surebound.bounds.enclosure import Enclosure, enclose
from surebound.bounds.result import LayerBounds
from surebound.network.graph import Network


def interval(network: Network, lower: Tensor, upper: Tensor) -> LayerBounds:
    """l̂ = [W]₊ l + [W]₋ u + b and its mirror image, layer by layer, rounded outward."""
    return collect(enclose(network, lower, upper))


def collect(enclosure: Enclosure) -> LayerBounds:
    """The bounds that an enclosure of all nodes holds on layers and output."""
    network = enclosure.network
    nodes = [*(network.before(k) for k in range(len(network.layers))), network.output]
    return LayerBounds(
        tuple(enclosure.lower[n].flatten(1) for n in nodes), tuple(enclosure.upper[n].flatten(1) for n in nodes)
    )

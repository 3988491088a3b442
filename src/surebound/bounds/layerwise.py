"""Intervals, DeepZ, FastLin, CROWN and α-CROWN: every layer, first to last, then the output, by the same method.

Intervals (Gowal 2018, Mirman 2018; the paper's appendix D) and DeepZ (Singh 2018) are one pass forwards
(`surebound.bounds.enclosure`, `surebound.bounds.zonotope`), the others one pass backwards for each layer
(`surebound.bounds.root`). Those take the upper line ā x̂ + b̄ of the triangle;
below, FastLin (Wong & Kolter 2018, Weng 2018) takes the parallel ā x̂ and CROWN (Zhang 2018) whichever of 0 and x̂
leaves the smaller area. Neither is always the better one. α-CROWN (Xu 2021) optimises the lower slopes α for each
bounded neuron by projected gradient ascent.
"""

import torch
from torch import Tensor

from surebound.bounds.around import Around
from surebound.bounds.beta_crown import Ascent
from surebound.bounds.bounding import LayerBounding
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.result import LayerBounds
from surebound.bounds.root import bound_neurons, tighten_layers
from surebound.bounds.zonotope import Forward
from surebound.network.graph import Network


def interval(network: Network, lower: Tensor, upper: Tensor, *, around: Around | None = None) -> LayerBounds:
    """l̂ = [W]₊ l + [W]₋ u + b and its mirror image, layer by layer, rounded outward."""
    enclosure = Enclosure(network, lower.double(), upper.double(), around=around)
    enclosure.extend(len(network.nodes) - 1)
    return collect(enclosure)


def deepz(network: Network, lower: Tensor, upper: Tensor) -> LayerBounds:
    """Zonotopes, intersected with intervals."""
    enclosure = Enclosure(network.to(torch.float64), lower.double(), upper.double())
    Forward(enclosure.network).tighten(enclosure, until=network.output)
    return collect(enclosure)


def fastlin(network: Network, lower: Tensor, upper: Tensor, *, around: Around | None = None) -> LayerBounds:
    """Bounds with the lower slope parallel to the upper one."""
    return layerwise(network, lower, upper, LayerBounding(slopes=("fastlin",), ascent=None), around)


def crown(network: Network, lower: Tensor, upper: Tensor, *, around: Around | None = None) -> LayerBounds:
    """Bounds with the lower slope 0 or 1."""
    return layerwise(network, lower, upper, LayerBounding(slopes=("crown",), ascent=None), around)


def alpha_crown(network: Network, lower: Tensor, upper: Tensor, *, around: Around | None = None) -> LayerBounds:
    """Starts from the better of FastLin and CROWN, neuron by neuron: for the same layer bounds it is never worse."""
    return layerwise(network, lower, upper, LayerBounding(ascent=Ascent(iterations=20, lr=0.5)), around)


def layerwise(
    network: Network, lower: Tensor, upper: Tensor, bounding: LayerBounding, around: Around | None = None
) -> LayerBounds:
    """Every layer, then the output, by the same method; intervals are kept where they are tighter."""
    enclosure = Enclosure(network, lower.double(), upper.double(), around=around)
    tighten_layers(enclosure, bounding, lambda: None)
    everything = torch.arange(network.outputs, device=lower.device)
    low, high = bound_neurons(enclosure, network.output, everything, bounding, lambda: None)
    shape = enclosure.lower[network.output].shape
    enclosure.tighten(network.output, low.reshape(shape), high.reshape(shape))
    return collect(enclosure)


def collect(enclosure: Enclosure) -> LayerBounds:
    """The bounds that an enclosure of all nodes holds on layers and output."""
    network = enclosure.network
    nodes = [*(network.before(k) for k in range(len(network.layers))), network.output]
    return LayerBounds(
        tuple(enclosure.lower[n].flatten(1) for n in nodes), tuple(enclosure.upper[n].flatten(1) for n in nodes)
    )

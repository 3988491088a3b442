"""FastLin (Wong & Kolter 2018, Weng 2018) and CROWN (Zhang 2018): linear bounds with fixed slopes, one backward pass.

Both take the upper line ā x̂ + b̄ of the triangle; below, FastLin takes the parallel ā x̂ and CROWN whichever of 0 and
x̂ leaves the smaller area. Neither is always the better one.
"""

import torch
from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.interval import collect
from surebound.bounds.result import LayerBounds
from surebound.bounds.root import LayerBounding, bound_neurons, tighten_layers
from surebound.network.graph import Network


def fastlin(network: Network, lower: Tensor, upper: Tensor) -> LayerBounds:
    """Bounds with the lower slope parallel to the upper one."""
    return layerwise(network, lower, upper, LayerBounding(slopes=("fastlin",), ascent=None))


def crown(network: Network, lower: Tensor, upper: Tensor) -> LayerBounds:
    """Bounds with the lower slope 0 or 1."""
    return layerwise(network, lower, upper, LayerBounding(slopes=("crown",), ascent=None))


def layerwise(network: Network, lower: Tensor, upper: Tensor, bounding: LayerBounding) -> LayerBounds:
    """Every layer, then the output, by the same method; intervals are kept where they are tighter."""
    enclosure = Enclosure(network, lower.double(), upper.double())
    tighten_layers(enclosure, bounding, lambda: None)
    everything = torch.arange(network.outputs)
    low, high = bound_neurons(enclosure, network.output, everything, bounding, lambda: None)
    shape = enclosure.lower[network.output].shape
    enclosure.tighten(network.output, low.reshape(shape), high.reshape(shape))
    return collect(enclosure)

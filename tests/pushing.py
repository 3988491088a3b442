"""What zonotopes alone say of a node, without the intervals that they are intersected with."""

from torch import Tensor

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.zonotope import Forward
from surebound.network.arrays import Precision
from surebound.network.graph import Network


class _Deaf(Enclosure):
    """Writes down what it is told of a node, and keeps its own intervals there."""

    def __init__(self, network: Network, lower: Tensor, upper: Tensor) -> None:
        super().__init__(network, lower, upper)
        self.told: dict[int, tuple[Tensor, Tensor]] = {}

    def tighten(self, node: int, lower: Tensor, upper: Tensor) -> None:
        self.told[node] = lower[0].flatten(), upper[0].flatten()


def alone(
    network: Network, lower: Tensor, upper: Tensor, node: int, dtype: Precision = "float32"
) -> tuple[Tensor, Tensor]:
    """Lower and upper bounds of a node's elements over the first box. # (elements,) each"""
    enclosure = _Deaf(network, lower, upper)
    Forward(network, dtype).tighten(enclosure, until=node)
    return enclosure.told[node]

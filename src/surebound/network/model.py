"""A network together with the runtime it came from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.network.graph import Network
from surebound.problem import Port, Ports, Property

Replay = Callable[[NDArray[np.float32]], NDArray[np.floating[Any]]]
"""(n, inputs) float32 -> (n, outputs) in the precision the network is written in."""


@dataclass(frozen=True, eq=False)
class Model:
    """What `surebound.load` returns: the network to reason about, and `replay` to run the original on points."""

    network: Network  # float64
    replay: Replay
    source: str
    named: Ports | None = None  # the inputs and outputs of the original; None: one of each

    @property
    def ports(self) -> Ports:
        """The inputs and outputs. The network has all of them in one vector each, in this order."""
        shapes = self.network.input_shape, self.network.output_shape
        return self.named or Ports((Port("input", shapes[0]),), (Port("output", shapes[1]),))

    def check_fits(self, problem: Property) -> None:
        """Raise PropertyError unless a property is over such a network."""
        problem.check_fits(inputs=self.network.inputs, outputs=self.network.outputs, ports=self.ports)

    def tensors(self, device: str = "cpu") -> "Model":
        """The same over torch's tensors on a device."""
        return replace(self, network=self.network.tensors(device))

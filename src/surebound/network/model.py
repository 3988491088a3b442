"""A network together with the runtime it came from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.network.agreement import compare
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
    runtime: str = ""  # what runs the original, if the network was read from one

    def __repr__(self) -> str:
        found = self.network
        return f"Model('{self.source}': {found.inputs} inputs, {found.outputs} outputs, {found.neurons} neurons)"

    @property
    def ports(self) -> Ports:
        """The inputs and outputs. The network has all of them in one vector each, in this order."""
        shapes = self.network.input_shape, self.network.output_shape
        return self.named or Ports((Port("input", shapes[0]),), (Port("output", shapes[1]),))

    def check_fits(self, problem: Property) -> None:
        """Raise PropertyError unless a property is over such a network."""
        problem.check_fits(inputs=self.network.inputs, outputs=self.network.outputs, ports=self.ports)

    def check_at(self, points: NDArray[np.floating[Any]], where: str) -> None:
        """Raise NetworkError if the original computes something else there than the network that was read from it.

        # (n, inputs)
        """
        if self.runtime:
            with np.errstate(over="ignore"):
                rows = points.astype(np.float32)
            compare(self.network, rows, self.replay, self.runtime, f"'{self.source}'", where=where, inner=True)

    def tensors(self, device: str = "cpu") -> "Model":
        """The same over torch's tensors on a device."""
        return replace(self, network=self.network.tensors(device))

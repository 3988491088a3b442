"""A network together with the runtime it came from."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.network.graph import Network

Replay = Callable[[NDArray[np.float32]], NDArray[np.floating[Any]]]
"""(n, inputs) float32 -> (n, outputs) in the precision the network is written in."""


@dataclass(frozen=True, eq=False)
class Model:
    """What `surebound.load` returns: the network to reason about, and `replay` to run the original on points."""

    network: Network  # float64
    replay: Replay
    source: str

    def tensors(self, device: str = "cpu") -> "Model":
        """The same over torch's tensors on a device."""
        return replace(self, network=self.network.tensors(device))

"""The check on loading: the network that was read computes what its source computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.errors import NetworkError
from surebound.limits import Deadline
from surebound.network.graph import Network
from surebound.network.linear import size

_LARGE = 2**20  # elements of all tensors, from which points are computed one by one: convolutions copy what they read


def check_agreement(
    network: Network,
    source: Callable[[NDArray[np.float32]], NDArray[Any]],
    runtime: str,
    name: str,
    *,
    points: int = 4,
    deadline: Deadline = Deadline(),
) -> None:
    """Compare the network with its source, run in float32 by a runtime, at points that are the same on every call.

    Raises `NetworkError` if they differ by more than float32 arithmetic explains, which is judged by the difference
    between the network in float32 and in float64. Points at which float32 overflows tell nothing.
    """
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.random((points // 2, network.inputs)), rng.normal(size=(points // 2, network.inputs))])
    rows = x.astype(np.float32)
    samples = torch.from_numpy(rows).reshape(-1, *network.input_shape)
    precise = _forward(network, samples.double(), deadline)
    rough = _forward(network.to(torch.float32), samples, deadline)
    deadline.check()
    theirs = source(rows)
    if theirs.shape != precise.shape:
        raise NetworkError(
            f"{name} has results of shape {list(theirs.shape)} in {runtime} for {points} samples; "
            f"expected {list(precise.shape)}"
        )
    with np.errstate(all="ignore"):
        noise = np.abs(rough - precise).max(axis=1)
        tolerance = 1e-5 * np.abs(precise).max(axis=1) + 50 * noise
        difference = np.abs(theirs - precise).max(axis=1)
    telling = np.isfinite(tolerance)
    if not telling.any():
        raise NetworkError(f"{name} overflows float32 at every test point; expected finite results")
    wrong = telling & ~(difference <= tolerance)
    if wrong.any():
        worst = int(np.argmax(wrong))
        raise NetworkError(
            f"{name} was read as a network that differs from {runtime} by {difference[worst]:.3g} at a test point; "
            f"expected at most {tolerance[worst]:.3g}"
        )


def _forward(network: Network, samples: Tensor, deadline: Deadline) -> NDArray[Any]:
    """The network's outputs, flattened. # (points, *input) -> (points, outputs)"""

    def relu(_: int, x: Tensor) -> Tensor:
        deadline.check()
        return x.clamp_min(0.0)

    large = sum(size(node.shape) for node in network.nodes) > _LARGE
    outputs = [network.trace(part, relu).flatten(1) for part in samples.split(1 if large else len(samples))]
    return np.asarray(torch.cat(outputs).numpy())

"""The check on loading: the network that was read computes what its source computes."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surebound.errors import NetworkError
from surebound.limits import Deadline
from surebound.network.arrays import concat, flat
from surebound.network.graph import Network
from surebound.network.linear import size

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDOFF = 2.0**-24  # of float32
_FAR = (30.0, 1000.0)  # sizes of points where clips and thresholds show that those of size 1 do not reach
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
    between the network in float32 and in float64, and by the longest sum, which a runtime may add up term by term: an
    eighth of what that could lose at most. Points at which float32 overflows tell nothing.
    """
    longest = max(getattr(node.op, "roundings", 0) for node in network.nodes)
    rng = np.random.default_rng(0)
    shape = (points // 2, network.inputs)
    far = rng.normal(size=(len(_FAR), network.inputs)) * np.array(_FAR)[:, None]
    rows = np.concatenate([rng.random(shape), rng.normal(size=shape), far]).astype(np.float32)
    samples = network.array(rows.reshape(-1, *network.input_shape))
    with np.errstate(all="ignore"):
        precise = _forward(network, network.array(rows.astype(np.float64)).reshape(samples.shape), deadline)
        rough = _forward(network.single(), samples, deadline)
    deadline.check()
    theirs = source(rows)
    if theirs.shape != precise.shape:
        raise NetworkError(
            f"{name} has results of shape {list(theirs.shape)} in {runtime} for {len(rows)} samples; "
            f"expected {list(precise.shape)}"
        )
    with np.errstate(all="ignore"):
        noise = np.abs(rough - precise).max(axis=1)
        tolerance = (1e-5 + longest * _ROUNDOFF / 8) * np.abs(precise).max(axis=1) + 50 * noise
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


def _forward(network: Network, samples: "Tensor", deadline: Deadline) -> NDArray[Any]:
    """The network's outputs, flattened. # (points, *input) -> (points, outputs)"""

    def activate(k: int, x: "Tensor") -> "Tensor":
        deadline.check()
        return network.activate(k, x)

    large = sum(size(node.shape) for node in network.nodes) > _LARGE
    step = 1 if large else len(samples)
    outputs = [flat(network.trace(samples[i : i + step], activate)) for i in range(0, len(samples), step)]
    return np.asarray(concat(outputs, 0))

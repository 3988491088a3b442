"""The check on reading: the network that was read computes what its source computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from surebound.errors import NetworkError
from surebound.limits import Deadline
from surebound.network.arrays import flat, to_numpy
from surebound.network.graph import Network
from surebound.network.linear import size

if TYPE_CHECKING:
    from torch import Tensor

_ROUNDOFF = 2.0**-24  # of float32
_FAR = (30.0, 1000.0)  # sizes of points where clips and thresholds show that those of size 1 do not reach
_LARGE = 2**20  # elements of all tensors, from which points are computed one by one: convolutions copy what they read


def points(inputs: int) -> NDArray[np.float32]:
    """Points of several sizes, the same on every call. # (points, inputs)"""
    rng = np.random.default_rng(0)
    shape = (2, inputs)
    far = rng.normal(size=(len(_FAR), inputs)) * np.array(_FAR)[:, None]
    return np.concatenate([rng.random(shape), rng.normal(size=shape), far]).astype(np.float32)


def difference(
    network: Network, single: Network, row: NDArray[np.float32], theirs: NDArray[Any], *, weighted: bool
) -> float:
    """How far the results of a single operation are from its source's at a point, at worst; 0 if float32 explains it.

    `single` is the network in float32.
    Each number is judged by itself and by the size of the inputs, so that large constants beside it do not hide it;
    also by the largest result where that is a sum of inputs with weights. # (inputs,), (copies, outputs)
    """
    x: Any = row.reshape(1, *network.input_shape)
    with np.errstate(all="ignore"):
        precise = to_numpy(flat(network.forward(network.array(x.astype(np.float64)))))[0]
        rough = to_numpy(flat(single.forward(network.array(x))))[0]
        scale = np.abs(precise) + np.abs(row).max() + (np.abs(precise).max() if weighted else 0.0)
        tolerance = _share(network) * scale + 50 * np.abs(rough - precise)
        off = np.abs(theirs - precise)
    wrong = np.isfinite(tolerance) & ~(off <= tolerance)
    return float(np.where(wrong, np.nan_to_num(off, nan=np.inf), 0.0).max())


def check_agreement(
    network: Network,
    source: Callable[[NDArray[np.float32]], NDArray[Any]],
    runtime: str,
    name: str,
    *,
    deadline: Deadline = Deadline(),
) -> None:
    """Compare the network with its source, run in float32 by a runtime, at points that are the same on every call.

    Raises `NetworkError` if they differ by more than float32 arithmetic explains, or if float32 overflows at all of
    them.
    """
    if not compare(network, points(network.inputs), source, runtime, name, deadline=deadline):
        raise NetworkError(f"{name} overflows float32 at every test point; expected finite results")


def compare(
    network: Network,
    rows: NDArray[np.float32],
    source: Callable[[NDArray[np.float32]], NDArray[Any]],
    runtime: str,
    name: str,
    *,
    where: str = "at a test point",
    inner: bool = False,
    deadline: Deadline = Deadline(),
) -> bool:
    """Compare the network with its source at some points; False if float32 overflows at all of them. # (n, inputs)

    What float32 arithmetic explains is judged by the difference between the network in float32 and in float64, and by
    the longest sum, which a runtime may add up term by term: an eighth of what that could lose at most. That is
    relative to the outputs, or with `inner` to what activations read, where that is more: at points that were not drawn
    at random, all outputs may happen to cancel.
    """
    samples = network.array(rows.reshape(-1, *network.input_shape))
    with np.errstate(all="ignore"):
        precise, largest = _forward(network, network.array(rows.astype(np.float64)).reshape(samples.shape), deadline)
        rough, _ = _forward(network.single(), samples, deadline)
    deadline.check()
    theirs = source(rows)
    if theirs.shape != precise.shape:
        raise NetworkError(
            f"{name} has results of shape {list(theirs.shape)} in {runtime} for {len(rows)} samples; "
            f"expected {list(precise.shape)}"
        )
    with np.errstate(all="ignore"):
        noise, scale = np.abs(rough - precise).max(axis=1), np.abs(precise).max(axis=1)
        tolerance = _share(network) * (np.maximum(scale, largest) if inner else scale) + 50 * noise
        difference = np.abs(theirs - precise).max(axis=1)
    telling = np.isfinite(tolerance)
    wrong = telling & ~(difference <= tolerance)
    if wrong.any():
        worst = int(np.argmax(wrong))
        raise NetworkError(
            f"{name} was read as a network that differs from {runtime} by {difference[worst]:.3g} {where}; "
            f"expected at most {tolerance[worst]:.3g}"
        )
    return bool(telling.any())


def _share(network: Network) -> float:
    """How much of its size a sum may be off in float32."""
    longest = max(getattr(node.op, "roundings", 0) for node in network.nodes)
    return 1e-5 + float(longest) * _ROUNDOFF / 8


def _forward(network: Network, samples: Tensor, deadline: Deadline) -> tuple[NDArray[Any], NDArray[Any]]:
    """The network's outputs, flattened, and the largest number that an activation reads.

    # (points, *input) -> (points, outputs), (points,)
    """
    large = sum(size(node.shape) for node in network.nodes) > _LARGE
    step = 1 if large else len(samples)
    outputs, largest = [], []
    for first in range(0, len(samples), step):
        part = samples[first : first + step]
        read = [np.zeros(len(part))]

        def activate(k: int, x: Tensor, read: list[NDArray[Any]] = read) -> Tensor:
            deadline.check()
            read.append(np.abs(to_numpy(flat(x))).max(axis=1))
            return network.activate(k, x)

        outputs.append(to_numpy(flat(network.trace(part, activate))))
        largest.append(np.max(read, axis=0))
    return np.concatenate(outputs), np.concatenate(largest)

"""Bounds with fixed lines over NumPy arrays: what torch's tensors give, and confirmed in rational arithmetic."""

from dataclasses import replace
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
import torch
from exact import exact_output
from networks import NETWORKS, over_arrays, random_box, sample
from numpy.typing import NDArray
from one_by_one import U, losing, product

from surebound.bounds.audit import auditing
from surebound.bounds.enclosure import enclose
from surebound.bounds.fixed import fixed_rows
from surebound.network.activation import Lines
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.linear import Linear

N = 1023
LINES: tuple[Lines, ...] = get_args(Lines)


@pytest.mark.parametrize("radius", [0.0, 0.2])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_arrays_give_what_tensors_give(name: str, radius: float) -> None:
    """The same to many digits, below every sample, and every claim confirmed."""
    rng = np.random.default_rng(5)
    network = NETWORKS[name](rng)
    lower, upper = random_box(rng, network, boxes=1, radius=radius)
    rows = torch.from_numpy(rng.normal(size=(1, 2, network.outputs)))
    on_input = torch.from_numpy(rng.normal(size=(1, 2, network.inputs)))
    constant = torch.from_numpy(rng.normal(size=(1, 2)))
    x = sample(rng, lower[0], upper[0], 200)
    least = (network.forward(x).flatten(1) @ rows[0].T + x.flatten(1) @ on_input[0].T + constant).min(0).values
    theirs = enclose(network, lower, upper)
    with auditing(limit=5000) as audit:
        ours = enclose(over_arrays(network), lower.numpy(), upper.numpy())  # type: ignore[arg-type]
        for lines in LINES:
            parts: Any = [part.numpy() for part in (rows, on_input, constant)]
            bound: Any = fixed_rows(ours, lines, *parts)
            assert isinstance(bound, np.ndarray)
            np.testing.assert_allclose(bound, fixed_rows(theirs, lines, rows, on_input, constant), rtol=1e-9, atol=1e-9)
            assert (bound[0] <= least.numpy() + 1e-12).all()
    assert audit.claims >= len(LINES) * 2 or not audit.covers(ours.network)  # the largest takes too long


class OneByOne(np.ndarray[Any, Any]):
    """An array whose products are added up one term after the other."""

    def __rmatmul__(self, other: NDArray[Any]) -> NDArray[Any]:
        return product(*(torch.from_numpy(np.array(m)) for m in (other, self))).numpy()


def _slow(network: Network) -> Network:
    nodes = [
        replace(n, op=replace(n.op, weight=n.op.weight.view(OneByOne))) if isinstance(n.op, Linear) else n  # type: ignore[attr-defined]
        for n in network.nodes
    ]
    return replace(network, nodes=tuple(nodes))


def _through_copies() -> Network:
    build = Builder((1,))
    return build.arrays(build.linear(build.linear(0, np.ones((N + 1, 1))), -losing(N)[None]))


def _past_relus() -> Network:
    build = Builder((1,))
    return build.arrays(build.linear(build.relu(build.linear(0, np.ones((N + 1, 1)))), -losing(N)[None]))


@pytest.mark.parametrize("lines", LINES)
@pytest.mark.parametrize("make", [_through_copies, _past_relus])
def test_sums_that_lose_are_paid_for(make: Any, lines: Lines) -> None:
    """−x − u x − u x − … over [1, 1.5], least at 1.5, where every addition loses a whole u."""
    network = _slow(make())
    ends: Any = (np.full((1, 1), end) for end in (1.0, 1.5))
    rows: Any = np.ones((1, 1, 1))
    enclosure = enclose(network, *ends)
    bound = Fraction(float(fixed_rows(enclosure, lines, rows)[0, 0]))
    value = exact_output(make(), [1.5])[0]
    assert bound <= value
    assert Fraction(float(enclosure.lower[network.output][0, 0])) <= value
    assert value - bound < 20 * N * Fraction(U) * 2

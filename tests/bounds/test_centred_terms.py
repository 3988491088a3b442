"""Each error term of `surebound.bounds.centred` alone: networks over which a pass without it proves a wrong bound."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from one_by_one import add_one_by_one, losing
from torch import Tensor

from surebound.bounds import centred as module
from surebound.bounds.centred import Centred
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.rounding import U32
from surebound.network.build import Builder
from surebound.network.conv import Conv
from surebound.network.graph import Input, Network, Node, Relu
from surebound.network.linear import Linear

HALF = 1.0 + 0.998 * U32  # float32 makes 1 of it


def test_the_reach_of_an_input_is_not_rounded_down() -> None:
    """A ReLU that reads the input: no operation adds an error, so that `_enlarged` alone keeps R = 1.00000006 from
    becoming 1 in float32."""
    network = Network((Node(Input((3,)), (), "x"), Node(Relu((3,)), (0,), "r")), 1)
    ends = torch.tensor([[HALF, 2 * HALF, 3 * HALF]], dtype=torch.float64)
    centred = Centred(Enclosure(network, -ends, ends))
    for bounds in (centred.parallel, centred.crossing):
        low, high = bounds(0, torch.arange(3))
        assert bool((low <= -ends[0]).all() & (high >= ends[0]).all())


def pyramid(levels: int) -> Network:
    """Sums of 2 × 2 squares, again and again: one number is left, and every rounding of an operation is exact."""
    nodes = [Node(Input((1, 2**levels, 2**levels)), (), "x")]
    for level in range(levels, 0, -1):
        ones = torch.ones(1, 1, 2, 2, dtype=torch.float64)
        nodes.append(Node(Conv(ones, (1, 2**level, 2**level), None, (2, 2)), (len(nodes) - 1,), "sum"))
    nodes.append(Node(Relu((1, 1, 1)), (len(nodes) - 1,), "r"))
    return Network(tuple(nodes), len(nodes) - 1)


def test_products_of_many_terms_are_not_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ R over 2¹⁴ inputs in float32, added up one by one: each addition may lose a rounding, more than the errors of
    the seven operations (whose costs are left out here, for they are exact) or a fixed allowance would cover."""

    def one_by_one(self: Tensor, other: Tensor) -> Tensor:
        sums = [np.cumsum((row * other).numpy(), dtype=np.float32)[-1] for row in self]
        return torch.from_numpy(np.array(sums))

    network = pyramid(7)
    radius = torch.full((1, 1, 128, 128), 1.0 + 0.45 * 2.0**-10, dtype=torch.float64)
    enclosure = Enclosure(network, -radius, radius)
    node = network.before(0)
    enclosure.extend(node)
    centred = Centred(enclosure)
    centred.extend(node)
    for i in centred._costs:
        centred._costs[i] = torch.zeros_like(centred._costs[i])
    monkeypatch.setattr(module.Patch, "dot", lambda self, v: one_by_one(self.full().flatten(1), v.reshape(-1)))
    true = radius.numel() * Fraction(float(radius.flatten()[0]))
    for bounds in (centred.parallel, centred.crossing):
        low, high = bounds(node, torch.arange(1))
        assert Fraction(float(low)) <= -true
        assert true <= Fraction(float(high))


def test_the_rounding_of_a_slope_times_a_coefficient_is_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """y = −c [x]₊ over [l, u] with u − l = 2, so that ā = u / 2: fl(ā c) < ā c loses up to half a unit in the last
    place, times R = 1. Nothing else rounds: products with R are exact, and costs of exact operations are left out."""

    def barely(cost: Tensor, signed: Tensor | None = None) -> Tensor:
        """`_enlarged` for a product of a single term: nothing for powers of two, two units in the last place else."""
        thin = cost.flatten().float()
        power = torch.frexp(thin).mantissa.abs() == 0.5
        infinity = torch.tensor(torch.inf)
        return torch.where(power, thin, torch.nextafter(torch.nextafter(thin, infinity), infinity))

    monkeypatch.setattr(module, "_enlarged", barely)
    rng = np.random.default_rng(0)
    lost = 0
    for _ in range(200):
        lower = -float(rng.integers(1, 2**12)) * 2.0**-22  # small: then h is, and with it what `barely` adds
        c = float(np.float32(rng.uniform(1.0, 2.0)))
        weight = torch.tensor([[-c]], dtype=torch.float64)
        nodes = (
            Node(Input((1,)), (), "x"),
            Node(Relu((1,)), (0,), "r"),
            Node(Linear(weight), (1,), "y"),
            Node(Relu((1,)), (2,), "s"),
        )
        network = Network(nodes, 3)
        ends = torch.tensor([[lower]], dtype=torch.float64), torch.tensor([[lower + 2.0]], dtype=torch.float64)
        enclosure = Enclosure(network, *ends)
        enclosure.extend(2)
        centred = Centred(enclosure)
        centred.extend(2)
        centred._costs[2] = torch.zeros_like(centred._costs[2])
        slope = float(centred._layers[0].parallel.above)
        lost += Fraction(float(np.float32(slope * c))) < Fraction(slope) * Fraction(c)
        least = -Fraction(c) * Fraction(lower + 2.0)
        for bounds in (centred.parallel, centred.crossing):
            low, _ = bounds(2, torch.arange(1))
            assert Fraction(float(low)) <= least
    assert lost > 50


@pytest.mark.parametrize("behind_a_relu", [False, True])
def test_an_operation_adds_up_one_by_one(behind_a_relu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """−x − u x − u x − … in float32, whose sum on the way back loses 1,023 u; all other sums have 32 terms.

    Behind a ReLU the reference is not in the middle of what it stands for: ¼ for [0, 1].
    """
    add_one_by_one(monkeypatch)
    build = Builder((1,))
    x = build.relu(0) if behind_a_relu else 0
    copies = build.scale(build.linear(x, torch.ones(1024, 1)), -losing(1023, U32))
    rows = build.reshape(build.linear(build.reshape(copies, (32, 32)), torch.ones(1, 32)), (32,))
    network = build.build(build.relu(build.linear(rows, torch.ones(1, 32))))
    low, high = (-1.0, 1.0) if behind_a_relu else (1.0, 1.5)
    enclosure = Enclosure(network, *(torch.tensor([[end]], dtype=torch.float64) for end in (low, high)))
    node = network.before(len(network.layers) - 1)
    enclosure.extend(node)
    centred = Centred(enclosure)
    centred.extend(node)
    exact = 1 + 1023 * Fraction(U32)
    for bounds in (centred.parallel, centred.crossing):
        least, most = bounds(node, torch.arange(1))
        assert -exact * Fraction(high) - Fraction(1, 1000) < Fraction(float(least)) <= -exact * Fraction(high)
        assert -exact * Fraction(max(low, 0.0)) <= Fraction(float(most))

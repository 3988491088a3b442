"""Bounds on margins over many boxes at once: below every sample, as tight as promised, and the same box by box."""

import numpy as np
import pytest
import torch
from networks import makers, random_box, random_fc, sample
from torch import Tensor

from surebound.bounds.around import enclosure_over
from surebound.bounds.beta_crown import Ascent
from surebound.bounds.enclosure import enclose
from surebound.bounds.fixed import fixed_rows
from surebound.bounds.margins import linear_rows
from surebound.bounds.root import LayerBounding, tighten_layers
from surebound.domain.sets import Ball, Norm
from surebound.network.graph import Network

MAKERS = {**makers(5, 9, 8, 3), "linear": lambda rng: random_fc(rng, (4, 3))}
FIXED = LayerBounding(ascent=None)
OPTIMISED = LayerBounding(ascent=Ascent(iterations=10, lr=0.5))
BOXES = 6


def _case(name: str, radius: float) -> tuple[Network, Tensor, Tensor, Tensor]:
    rng = np.random.default_rng(3)
    network = MAKERS[name](rng)
    lower, upper = random_box(rng, network, boxes=BOXES, radius=radius)
    rows = torch.from_numpy(rng.normal(size=(BOXES, 4, network.outputs)))
    return network, lower, upper, rows


def _all(network: Network, lower: Tensor, upper: Tensor, rows: Tensor) -> dict[str, Tensor]:
    enclosure = enclose(network, lower, upper)
    found = {"ibp": fixed_rows(enclosure, "interval", rows), "crown-ibp": linear_rows(enclosure, FIXED, rows)}
    tighten_layers(enclosure, LayerBounding(slopes=("crown",), ascent=None), lambda: None)
    found["crown"] = linear_rows(enclosure, FIXED, rows)
    found["alpha-crown"] = linear_rows(enclosure, OPTIMISED, rows)
    return found


@pytest.mark.parametrize("radius", [0.0, 0.05, 0.5])
@pytest.mark.parametrize("name", list(MAKERS))
def test_below_every_sample(name: str, radius: float) -> None:
    network, lower, upper, rows = _case(name, radius)
    rng = np.random.default_rng(4)
    least = []
    for box in range(BOXES):
        y = network.forward(sample(rng, lower[box], upper[box], 400)).flatten(1)
        least.append((y @ rows[box].T).min(0).values)
    for stage, bound in _all(network, lower, upper, rows).items():
        assert bool((bound <= torch.stack(least) + 1e-12).all()), stage


@pytest.mark.parametrize("name", list(MAKERS))
def test_never_worse_than_intervals_of_the_outputs(name: str) -> None:
    network, lower, upper, rows = _case(name, 0.2)
    enclosure = enclose(network, lower, upper)
    low, high = (t[network.output].flatten(1)[:, None] for t in (enclosure.lower, enclosure.upper))
    plain = torch.where(rows > 0, rows * low, rows * high).sum(2)
    assert bool((fixed_rows(enclosure, "interval", rows) >= plain - 1e-9).all())


@pytest.mark.parametrize("name", list(MAKERS))
def test_each_box_alone_gives_the_same(name: str) -> None:
    network, lower, upper, rows = _case(name, 0.2)
    together = _all(network, lower, upper, rows)
    for box in range(BOXES):
        part = slice(box, box + 1)
        for stage, bound in _all(network, lower[part], upper[part], rows[part]).items():
            assert torch.allclose(bound[0], together[stage][box], rtol=1e-4, atol=1e-6), stage


@pytest.mark.parametrize("norm", ["2", "1"])
def test_each_ball_alone_gives_the_same(norm: Norm) -> None:
    network, lower, upper, rows = _case("fc", 0.2)
    centres = (lower + upper) / 2
    balls = [Ball.around(m, 0.1 * (i + 1), norm) for i, m in enumerate(centres)]
    together = fixed_rows(enclosure_over(network, balls), "crown", rows)
    for i, ball in enumerate(balls):
        alone = fixed_rows(enclosure_over(network, [ball]), "crown", rows[i : i + 1])
        assert torch.allclose(alone[0], together[i], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", list(MAKERS))
def test_stages_improve(name: str) -> None:
    found = _all(*_case(name, 0.2))
    assert bool((found["alpha-crown"] >= found["crown"] - 1e-6).all())
    assert float(found["crown"].mean()) >= float(found["crown-ibp"].mean()) - 1e-9


def test_exact_where_nothing_is_ambiguous() -> None:
    network, lower, upper, rows = _case("linear", 0.3)
    weight, bias = network.nodes[1].op.weight, network.nodes[1].op.bias  # type: ignore[union-attr]
    slope = rows @ weight
    exact = torch.where(slope > 0, slope * lower[:, None], slope * upper[:, None]).sum(2) + rows @ bias
    for bound in _all(network, lower, upper, rows).values():
        assert torch.allclose(bound, exact, rtol=0, atol=1e-12) and bool((bound <= exact).all())

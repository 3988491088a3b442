"""Initialisations: their distributions, and what they do to the widths of intervals."""

from itertools import pairwise
from math import pi, sqrt

import pytest
import torch
from chains import tiny_chain
from torch import nn

from surebound.errors import UsageError
from surebound.train.initialise import INITIALISATIONS, initialise_network
from surebound.train.interval import propagate
from surebound.train.learner import Learner


def deep(width: int = 300, depth: int = 8) -> nn.Sequential:
    """A random network of equally wide layers on 300 pixels."""
    modules: list[nn.Module] = [nn.Flatten()]
    for _ in range(depth):
        modules += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*modules, nn.Linear(width, 10))


def growth(name: str) -> list[float]:
    """Mean widths of the layers' intervals, over that of the first layer."""
    torch.manual_seed(0)
    module = deep()
    initialise_network(module, name)
    chain = Learner(module, (3, 10, 10))
    x = torch.rand(16, 3, 10, 10)
    bounds = propagate(chain.layers(), x - 0.1, x + 0.1).before
    widths = [(upper - lower).mean().item() for lower, upper in bounds]
    return [w / widths[0] for w in widths]


def test_interval_widths_stay_about_constant_only_with_ibp() -> None:
    steady = growth("ibp")
    assert all(0.5 < w < 2 for w in steady)
    exploding = growth("uniform")
    assert exploding[-1] > 1e3
    assert all(b > 2 * a for a, b in pairwise(exploding))


@pytest.mark.parametrize(("name", "last"), [("ibp", "ibp"), ("ibp-hidden", "uniform"), ("uniform", "uniform")])
def test_weights_and_biases_have_their_distributions(name: str, last: str) -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Conv2d(16, 64, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.Flatten(), nn.Linear(576, 200))
    nn.init.constant_(module[1].weight, 3.0)
    initialise_network(module, name)
    assert (module[1].weight == 3).all()  # batch norms are left alone
    for layer, kind in [(module[0], "uniform" if name == "uniform" else "ibp"), (module[4], last)]:
        fan_in = layer.weight[0].numel()
        deviation = sqrt(2 * pi) / fan_in if kind == "ibp" else 1 / sqrt(3 * fan_in)
        assert layer.weight.std().item() == pytest.approx(deviation, rel=0.03)
        assert abs(layer.weight.mean().item()) < 0.05 * deviation
        largest = layer.weight.abs().max().item() / deviation
        assert largest > 3.5 if kind == "ibp" else largest <= sqrt(3) + 1e-6
        if name == "ibp":
            assert (layer.bias == 0).all()
        else:
            assert 0 < layer.bias.abs().max().item() <= 1 / sqrt(fan_in)


def test_draws_come_from_the_global_generator() -> None:
    chain = tiny_chain()
    for name in INITIALISATIONS:
        found = []
        for seed in (5, 5, 6):
            torch.manual_seed(seed)
            initialise_network(chain, name)
            found.append(chain.weights()[0].detach().clone())
        assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown initialisation 'xavier'; expected one of: uniform, ibp, ibp-hidden"):
        initialise_network(deep(), "xavier")

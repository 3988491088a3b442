"""Sizes of the named architectures, and that they load."""

import pytest
import torch
from torch import nn

from surebound.errors import UsageError
from surebound.load.torch import load_torch
from surebound.network.architectures import ARCHITECTURES, Normalise, architecture
from surebound.network.graph import Network

CIFAR = {"in_shape": (3, 32, 32), "classes": 10, "mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010)}
DIGITS = {"in_shape": (1, 8, 8), "classes": 10, "mean": (0.1307,), "std": (0.3081,)}


def _relus(network: Network) -> int:
    return sum(network.width(k) for k in range(len(network.layers)))


@pytest.mark.parametrize(
    ("name", "parameters", "relus"),
    [("conv-2-255", 2_133_736, 49_402), ("conv-8-255", 2_118_856, 16_634), ("cnn7", 17_190_602 + 2 * 1024, 229_888)],
)
def test_sizes(name: str, parameters: int, relus: int) -> None:
    module = architecture(name, **CIFAR)
    assert sum(p.numel() for p in module.parameters()) == parameters
    assert _relus(load_torch(module, (3, 32, 32), check=name != "cnn7")) == relus


@pytest.mark.parametrize("name", ["conv-small", "fc-small", "cnn7"])
def test_small_images(name: str) -> None:
    module = architecture(name, **DIGITS).eval()
    network = load_torch(module, (1, 8, 8))
    x = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network.forward(x.double()), module(x).double(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_initialisation_is_uniform_in_one_over_root_fan_in(name: str) -> None:
    for module in architecture(name, **CIFAR).modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = module.weight[0].numel() ** -0.5
            for tensor in (module.weight.detach(), module.bias.detach()):
                assert float(tensor.abs().max()) <= bound * (1 + 2**-23)  # of float32 numbers
            spread = float(module.weight.detach().std()) / (bound / 3**0.5)
            assert abs(spread - 1) < 0.1


def test_the_normalisation_comes_first() -> None:
    first = architecture("fc-small", **CIFAR)[0]
    assert isinstance(first, Normalise)
    white = first(torch.ones(1, 3, 2, 2))
    torch.testing.assert_close(white[0, :, 0, 0], torch.tensor([2.514088, 2.596790, 2.753731]))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="conv-2-255"):
        architecture("conv-3", **CIFAR)
    with pytest.raises(UsageError, match="height"):
        architecture("fc-small", **{**CIFAR, "in_shape": (3072,)})
    with pytest.raises(UsageError, match="3 of each"):
        architecture("fc-small", **{**CIFAR, "mean": (0.5,)})
    with pytest.raises(UsageError, match="too small"):
        architecture("conv-2-255", **{**CIFAR, "in_shape": (3, 2, 2)})

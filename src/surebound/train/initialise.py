"""Where training starts from: `initialise_network(module, "ibp")`, drawn from torch's global generator."""

from collections.abc import Callable
from math import pi, sqrt

from torch import nn

from surebound.network.architectures import initialise
from surebound.registry import Registry
from surebound.train.learner import Learner

Affine = nn.Linear | nn.Conv2d

INITIALISATIONS: Registry[Callable[[list[Affine]], None]] = Registry(
    "initialisation",
    {
        "uniform": f"{__name__}:uniform",
        "ibp": f"{__name__}:ibp",
        "ibp-hidden": f"{__name__}:ibp_hidden",
    },
)
"""Name → a function that fills the affine layers of a network, given in order."""


def initialise_network(network: nn.Module | Learner, name: str) -> None:
    """Draw new weights for every affine layer; batch norms stay as they are."""
    module = network.module if isinstance(network, Learner) else network
    INITIALISATIONS[name]([m for m in module.modules() if isinstance(m, Affine)])


def uniform(layers: list[Affine]) -> None:
    """Weights and biases from U(±1/√fan_in)."""
    for layer in layers:
        initialise(layer)


def ibp(layers: list[Affine]) -> None:
    """Weights from N(0, σ²) with σ = √(2π) / fan_in, biases 0 (the IBP initialisation of Shi et al. 2021).

    Then E|W| = 2 / fan_in: an affine layer doubles the mean width of an interval and a ReLU, on values symmetric about
    zero, halves it.
    """
    for layer in layers:
        nn.init.normal_(layer.weight, 0.0, sqrt(2 * pi) / layer.weight[0].numel())
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def ibp_hidden(layers: list[Affine]) -> None:
    """`ibp` as its released code has it: on weights before the last layer; that layer and all biases are `uniform`."""
    uniform(layers)
    for layer in layers[:-1]:
        nn.init.normal_(layer.weight, 0.0, sqrt(2 * pi) / layer.weight[0].numel())

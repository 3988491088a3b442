"""Networks: graphs of affine operations and activations. The activations are listed here by name.

Each is a row, an `Activation` (`surebound.network.activation`), from which loaders, bounds, search and tests take all
they know of it.
"""

from typing import TYPE_CHECKING

from surebound.registry import Registry

if TYPE_CHECKING:
    from surebound.network.activation import Activation

ACTIVATIONS: "Registry[Activation]" = Registry(
    "activation",
    {
        "relu": "surebound.network.activations:RELU",
        "sigmoid": "surebound.network.activations:SIGMOID",
        "tanh": "surebound.network.activations:TANH",
        "erf": "surebound.network.activations:ERF",
        "softplus": "surebound.network.activations:SOFTPLUS",
        "elu": "surebound.network.activations:ELU",
        "silu": "surebound.network.activations:SILU",
        "gelu": "surebound.network.activations:GELU",
        "gelu-tanh": "surebound.network.activations:GELU_TANH",
        "square": "surebound.network.activations:SQUARE",
        "cube": "surebound.network.activations:CUBE",
        "sign": "surebound.network.activations:SIGN",
    },
)
"""ReLUs are relaxed by rules of their own (`surebound.bounds.relaxation`) where a network has no others."""

"""Torch's modules as operations of a network, in a table by type."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from surebound.errors import NetworkError
from surebound.load.algebra import Algebra, Data
from surebound.load.torch_calls import CALLS, parameters
from surebound.load.torch_ops import FUNCTIONS, pad


def _flatten_module(a: Algebra, m: nn.Flatten, x: Data) -> Data:
    return a.move(x, lambda index: torch.from_numpy(index).flatten(m.start_dim, m.end_dim).numpy())


def _unflatten_module(a: Algebra, m: nn.Unflatten, x: Data) -> Data:
    if not isinstance(m.dim, int):
        raise NetworkError("an unflatten names its axis; expected a number")
    axis, sizes = m.dim, tuple(m.unflattened_size)
    return a.move(x, lambda index: torch.from_numpy(index).unflatten(axis, sizes).numpy())


def _pad_module(a: Algebra, m: nn.ZeroPad1d | nn.ZeroPad2d | nn.ConstantPad1d | nn.ConstantPad2d, x: Data) -> Data:
    return pad(a, x, m.padding, value=float(m.value))


def _dropout_module(a: Algebra, m: nn.Dropout | nn.Dropout1d | nn.Dropout2d, x: Data) -> Data:
    return FUNCTIONS["dropout"](a, x, m.p, m.training)  # type: ignore[no-any-return]  # a module's own eval may not end training


Module = Callable[[Algebra, Any, Data], Data]


def _called(kind: type[nn.Module]) -> Module:
    handler = FUNCTIONS[CALLS[kind][0]]
    return lambda a, m, x: handler(a, x, **parameters(m))


MODULES: dict[type[nn.Module], Module] = {
    **{kind: _called(kind) for kind in CALLS},
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d), _dropout_module),
    **dict.fromkeys((nn.ConstantPad1d, nn.ConstantPad2d, nn.ZeroPad1d, nn.ZeroPad2d), _pad_module),
    nn.Flatten: _flatten_module,
    nn.Identity: lambda a, m, x: x,
    nn.Unflatten: _unflatten_module,
}
"""Modules whose forward pass is known; others are traced through."""

"""A network in rational arithmetic over its stored numbers: what every claim is measured against."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.network.activation import Activation
from surebound.network.conv import Conv
from surebound.network.graph import Network, Pointwise, Relu
from surebound.network.linear import Linear, Scale, Shift, Sum
from surebound.network.shape import Concat, Pick, Reshape
from surebound.network.transposed import ConvTranspose

Exact = NDArray[np.object_]  # of fractions


def fractions(numbers: Tensor | NDArray[Any] | Sequence[Any]) -> Exact:
    """The numbers as fractions, in the same shape."""
    array = np.asarray(numbers)
    out = np.empty(array.size, dtype=object)
    out[:] = [Fraction(v) for v in array.reshape(-1).tolist()]
    return out.reshape(array.shape)


def exact_values(
    network: Network, x: Sequence[Any] | NDArray[Any], apply: Callable[[Activation, Fraction], Fraction] | None = None
) -> list[Exact]:
    """Every node's value at a point, in the node's shape. `apply` is for activations other than ReLUs."""
    values = [fractions(np.asarray(x)).reshape(network.input_shape)]
    for node in network.nodes[1:]:
        op, read = node.op, [values[j] for j in node.inputs]
        if isinstance(op, Relu):
            y = np.maximum(read[0], Fraction(0))
        elif isinstance(op, Pointwise):
            assert apply is not None
            y = np.array([apply(op.function, v) for v in read[0].reshape(-1)], dtype=object).reshape(op.shape)
        elif isinstance(op, Linear):
            y = np.dot(read[0], fractions(op.weight).T)
        elif isinstance(op, Conv | ConvTranspose):
            y = np.dot(read[0].reshape(-1), _matrix(op)).reshape(op.shape)
        elif isinstance(op, Scale):
            y = fractions(op.weight) * read[0]
        elif isinstance(op, Sum):
            y = sum(s * v for s, v in zip(fractions(op.signs), read, strict=True))
        elif isinstance(op, Reshape):
            y = read[0].reshape(op.shape)
        elif isinstance(op, Concat):
            y = np.concatenate(read, axis=op.axis)
        elif isinstance(op, Pick):
            y = np.append(read[0].reshape(-1), Fraction(0))[op.index.numpy()]
        else:
            assert isinstance(op, Shift)
            y = read[0]
        bias = getattr(op, "bias", None)
        values.append(y if bias is None else y + fractions(bias))
    return values


def _matrix(op: Conv | ConvTranspose) -> Exact:
    """A convolution of each unit vector, which rounds nothing. # (inputs, outputs)"""
    units = torch.eye(math.prod(op.in_shape), dtype=torch.float64).reshape(-1, *op.in_shape)
    return fractions(op.apply(units).flatten(1))


def exact_output(network: Network, x: Sequence[Any] | NDArray[Any]) -> list[Fraction]:
    """f(x), flattened."""
    return list(exact_values(network, x)[network.output].reshape(-1))

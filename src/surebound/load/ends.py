"""The two ends of a network: several inputs are read as one, and so are several outputs.

What is verified takes one vector and gives one. A file or module with several inputs is read as a network whose input
is all of them, flattened in C order, one after the other; each is a slice of it. Outputs are put together likewise.
With one of each, the network's input and output are these themselves, in their shapes.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from surebound.load.algebra import Algebra, Data, Value, inner
from surebound.network.build import Builder
from surebound.network.linear import size
from surebound.network.op import Shape


def begin(shapes: Sequence[Shape]) -> tuple[Algebra, list[Data]]:
    """A network under construction, and its inputs. # full shapes, with the batch"""
    if len(shapes) == 1:
        return Algebra(Builder(inner(shapes[0]))), [Data(0, shapes[0])]
    ends = [0, *accumulate(map(size, shapes))]
    algebra = Algebra(Builder((ends[-1],)))
    inputs = []
    for (first, last), shape in zip(pairwise(ends), shapes, strict=True):
        positions = np.arange(first, last, dtype=np.int64).reshape(inner(shape))
        inputs.append(Data(algebra.builder.pick(0, positions), shape))
    return algebra, inputs


def end(algebra: Algebra, values: Sequence[Value]) -> int:
    """The node that holds all outputs."""
    if len(values) == 1:
        return algebra.data(values[0]).node
    parts = [algebra.move(algebra.data(value), lambda at: at.reshape(-1)) for value in values]
    return algebra.concat(parts, 0).node

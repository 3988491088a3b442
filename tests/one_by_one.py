"""Sums in the worst order that the error terms allow: one term after the other, as they come.

Libraries add up in blocks and in lanes, so that a test which needs many roundings in one direction would depend on the
processor. IEEE 754 and the counts of `surebound.bounds.rounding` allow any order; this is the one that loses most where
a large number comes first and many small ones follow: 1 + u + u + … stays 1, and every addition loses a whole u.
"""

import pytest
import torch
from torch import Tensor

from surebound.network.graph import Input, Network, Node, Relu
from surebound.network.linear import Linear

U = 2.0**-53


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for vectors and matrices, b with at most two axes."""
    left = a[None] if a.ndim == 1 else a
    right = b[:, None] if b.ndim == 1 else b
    out = left[..., 0, None] * right[0] if left.shape[-1] else left.new_zeros(*left.shape[:-1], right.shape[1])
    for k in range(1, left.shape[-1]):
        out += left[..., k, None] * right[k]
    out = out[..., 0] if b.ndim == 1 else out
    return out[0] if a.ndim == 1 else out


def add_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of matrices, and sums of float64 along an axis, are added up one by one until the test ends."""
    matmul, total, mm = torch.Tensor.__matmul__, torch.Tensor.sum, torch.mm

    def multiplied(a: Tensor, b: Tensor) -> Tensor:
        simple = a.is_floating_point() and b.ndim <= 2 and a.layout == b.layout == torch.strided
        return product(a, b) if simple else matmul(a, b)

    def added(self: Tensor, mat1: Tensor, mat2: Tensor) -> Tensor:
        self += multiplied(mat1, mat2)
        return self

    def summed(self: Tensor, *args: int, **options: bool) -> Tensor:
        if self.dtype != torch.float64 or args not in ((0,), (1,), (-1,)) or options or self.ndim != 2:
            return total(self, *args, **options)
        terms = self.T if args == (0,) else self
        return product(terms, terms.new_ones(terms.shape[1]))

    monkeypatch.setattr(torch.Tensor, "__matmul__", multiplied)
    monkeypatch.setattr(torch.Tensor, "addmm_", added)
    monkeypatch.setattr(torch.Tensor, "sum", summed)
    monkeypatch.setattr(torch, "mm", lambda a, b: multiplied(a, b) if a.layout == torch.strided else mm(a, b))


def losing(count: int, unit: float = U) -> Tensor:
    """1 and `count` times u: added up one by one they are 1. # (count + 1,)"""
    return torch.cat([torch.ones(1), torch.full((count,), unit)]).double()


def losing_network(count: int) -> Network:
    """x̂ = (x, …, x), then ∓ (x + count·u·x − 1) through a ReLU to two outputs; all of it float32 numbers.

    Added up one by one from the first, the coefficient on x stays 1.
    """
    weight = losing(count)
    nodes = [
        Node(Input((1,)), (), "x"),
        Node(Linear(torch.ones(count + 1, 1, dtype=torch.float64)), (0,), "copies"),
        Node(Relu((count + 1,)), (1,), "relu"),
        Node(Linear(torch.stack([-weight, weight]), torch.tensor([1.0, -1.0], dtype=torch.float64)), (2,), "sum"),
        Node(Relu((2,)), (3,), "relu"),
        Node(Linear(torch.eye(2, dtype=torch.float64)), (4,), "out"),
    ]
    return Network(tuple(nodes), 5)

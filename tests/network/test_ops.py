"""What every affine operation promises, for every class of them."""

from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import op_over_arrays
from torch import Tensor

from surebound.network.conv import Conv
from surebound.network.linear import Linear, Scale, Shift, Sum, size
from surebound.network.op import Affine, Shape, absolute, cast, tensors
from surebound.network.shape import Concat, Pick, Reshape
from surebound.network.transposed import ConvTranspose

_GENERATOR = torch.Generator().manual_seed(3)


def _t(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=_GENERATOR, dtype=torch.float64)


@dataclass(frozen=True)
class Case:
    """An op, the shapes of its inputs and of its output."""

    op: Affine
    inputs: tuple[Shape, ...]
    shape: Shape


_CONV = {"in_shape": (4, 7, 6), "stride": (2, 1), "padding": (1, 2), "dilation": (2, 1), "groups": 2}

CASES = {
    "linear": Case(Linear(_t(3, 5), _t(3)), ((5,),), (3,)),
    "linear-out": Case(Linear(_t(9, 2), _t(9)), ((2,),), (9,)),
    "linear-lead": Case(Linear(_t(3, 5), None, (2, 4)), ((2, 4, 5),), (2, 4, 3)),
    "scale": Case(Scale(_t(2, 3), _t(2, 3)), ((2, 3),), (2, 3)),
    "shift": Case(Shift(_t(2, 3)), ((2, 3),), (2, 3)),
    "sum": Case(Sum(torch.tensor([1.0, -1.0, 1.0], dtype=torch.float64), (4,)), ((4,),) * 3, (4,)),
    "conv": Case(Conv(_t(3, 2, 3, 2), (2, 6, 5), _t(3, 1, 1)), ((2, 6, 5),), (3, 4, 4)),
    "conv-all": Case(Conv(_t(6, 2, 3, 2), bias=_t(6, 1, 1), **_CONV), ((4, 7, 6),), (6, 3, 9)),
    "conv-stride": Case(Conv(_t(3, 2, 2, 2), (2, 6, 5), None, (4, 3)), ((2, 6, 5),), (3, 2, 2)),
    "conv-1d": Case(Conv(_t(3, 2, 3), (2, 8), _t(3, 1), (2,), (1,), (1,)), ((2, 8),), (3, 4)),
    "conv-transpose": Case(ConvTranspose(_t(2, 3, 3, 2), (3, 8, 6), _t(3, 1, 1)), ((2, 6, 5),), (3, 8, 6)),
    "conv-transpose-all": Case(
        ConvTranspose(_t(4, 3, 3, 2), (6, 7, 6), _t(6, 1, 1), (2, 1), (1, 2), (2, 1), 2), ((4, 3, 9),), (6, 7, 6)
    ),
    "reshape": Case(Reshape((6,), (2, 3)), ((2, 3),), (6,)),
    "pick": Case(Pick(torch.tensor([[5, 0, 2], [1, 3, 4]]), (6,)), ((6,),), (2, 3)),
    "pick-pad": Case(Pick(torch.tensor([-1, 2, 2, 0, -1]), (2, 2)), ((2, 2),), (5,)),
    "pick-none": Case(Pick(torch.tensor([-1, -1]), (3,)), ((3,),), (2,)),
    "concat": Case(Concat(1, ((2, 3), (2, 1), (2, 2))), ((2, 3), (2, 1), (2, 2)), (2, 6)),
}
each = pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())


def _basis(shape: Shape) -> Tensor:
    return torch.eye(prod(shape), dtype=torch.float64).reshape(-1, *shape)


def _dense(case: Case) -> list[Tensor]:
    """A for each input, (inputs, outputs), from what `apply` does to unit vectors."""
    matrices = []
    for i, shape in enumerate(case.inputs):
        basis = _basis(shape)
        xs = [basis if j == i else basis.new_zeros(len(basis), *other) for j, other in enumerate(case.inputs)]
        matrices.append(case.op.apply(*xs).reshape(len(basis), -1))
    return matrices


@each
def test_shape(case: Case) -> None:
    assert case.op.shape == case.shape
    xs = [_t(3, *s) for s in case.inputs]
    assert case.op.apply(*xs).shape == (3, *case.shape)
    assert [g.shape for g in case.op.adjoint(_t(3, *case.shape))] == [(3, *s) for s in case.inputs]


@each
def test_adjoint_identity(case: Case) -> None:
    xs = [_t(1, *s) for s in case.inputs]
    g = _t(1, *case.shape)
    left = float((case.op.apply(*xs) * g).sum())
    right = sum(float((x * h).sum()) for x, h in zip(xs, case.op.adjoint(g), strict=True))
    assert left == pytest.approx(right, rel=1e-12, abs=1e-12)


@each
def test_the_adjoint_is_the_transpose(case: Case) -> None:
    pulled = case.op.adjoint(_basis(case.shape))
    for matrix, transpose in zip(_dense(case), pulled, strict=True):
        torch.testing.assert_close(transpose.reshape(size(case.shape), -1), matrix.T, rtol=1e-13, atol=1e-13)


@each
def test_apply_is_linear_on_a_batch(case: Case) -> None:
    xs = [_t(4, *s) for s in case.inputs]
    expected = sum(x.flatten(1) @ matrix for x, matrix in zip(xs, _dense(case), strict=True))
    torch.testing.assert_close(case.op.apply(*xs).flatten(1), expected, rtol=1e-12, atol=1e-12)


@each
def test_absolute(case: Case) -> None:
    positive = Case(absolute(case.op), case.inputs, case.shape)
    for matrix, magnitude in zip(_dense(case), _dense(positive), strict=True):
        torch.testing.assert_close(magnitude, matrix.abs(), rtol=0, atol=0)
    if case.op.bias is not None:
        assert positive.op.bias is not None
        torch.testing.assert_close(positive.op.bias, case.op.bias.abs(), rtol=0, atol=0)


@each
def test_cast(case: Case) -> None:
    xs = [_t(2, *s) for s in case.inputs]
    single = cast(case.op, torch.float32).apply(*(x.float() for x in xs))
    assert single.dtype == torch.float32
    torch.testing.assert_close(single.double(), case.op.apply(*xs), rtol=1e-5, atol=1e-5)
    assert cast(case.op, torch.float32).shape == case.shape


@each
def test_single_precision_errs_by_no_more_than_the_stated_roundings(case: Case) -> None:
    """|float32 result − float64 result| ≤ γₙ · Σ |terms|, with n = roundings; exact if n = 0."""
    unit = 2.0**-24
    single = cast(case.op, torch.float32)
    exact = cast(single, torch.float64)
    gamma = case.op.roundings * unit / (1 - case.op.roundings * unit)
    xs = [_t(16, *s).float() for s in case.inputs]
    error = (single.apply(*xs).double() - exact.apply(*(x.double() for x in xs))).abs()
    allowed = gamma * absolute(exact).apply(*(x.double().abs() for x in xs))
    assert bool((error <= allowed).all())
    g = _t(16, *case.shape).float()
    for ours, true, terms in zip(
        single.adjoint(g), exact.adjoint(g.double()), absolute(exact).adjoint(g.double().abs()), strict=True
    ):
        assert bool(((ours.double() - true).abs() <= gamma * terms).all())


@each
def test_roundings_are_as_many_as_the_terms_of_a_sum(case: Case) -> None:
    """A sum of n products rounds each of them up to n times, and a sum of n numbers n − 1 times, in the worst order."""
    terms = [(matrix != 0).sum(dim=1) for matrix in _dense(case)]  # of the adjoint, for each input
    together = sum((matrix != 0).sum(dim=0) for matrix in _dense(case))
    most = max(int(t.max()) for t in (*terms, together))
    assert case.op.roundings >= most - (getattr(case.op, "weight", None) is None)


@each
@pytest.mark.parametrize("batch", [0, 1, 5])
def test_over_arrays_it_is_the_same(case: Case, batch: int) -> None:
    """Both err by at most γₙ · Σ |terms|, so that they differ by no more than twice that; not at all if n = 0."""
    op, bold = op_over_arrays(case.op), absolute(case.op)
    xs, g = [_t(batch, *s) for s in case.inputs], _t(batch, *case.shape)
    gamma = 2 * case.op.roundings * 2.0**-53 * 1.01
    ours = [op.apply(*(x.numpy() for x in xs)), *op.adjoint(g.numpy())]
    theirs = [case.op.apply(*xs), *case.op.adjoint(g)]
    terms = [bold.apply(*(x.abs() for x in xs)), *bold.adjoint(g.abs())]
    for array, tensor, most in zip(ours, theirs, terms, strict=True):
        assert isinstance(array, np.ndarray) and array.dtype == np.float64 and array.shape == tensor.shape
        assert bool((np.abs(array - tensor.numpy()) <= gamma * most.numpy()).all())
    assert (op.shape, op.roundings) == (case.op.shape, case.op.roundings)
    for name, value in vars(tensors(op, "cpu")).items():
        assert not isinstance(value, np.ndarray), name


def test_linear_against_torch() -> None:
    op = CASES["linear-lead"].op
    x = _t(2, 2, 4, 5)
    torch.testing.assert_close(op.apply(x), F.linear(x, op.weight))


def test_conv_against_torch() -> None:
    op = CASES["conv-all"].op
    x = _t(2, 4, 7, 6)
    expected = F.conv2d(x, op.weight, None, op.stride, op.padding, op.dilation, op.groups)
    torch.testing.assert_close(op.apply(x), expected)


def test_pick_by_hand() -> None:
    op = Pick(torch.tensor([[3, -1], [0, 0]]), (2, 2))
    x = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    assert op.apply(x).tolist() == [[[4.0, 0.0], [1.0, 1.0]]]
    (back,) = op.adjoint(torch.tensor([[[1.0, 10.0], [100.0, 1000.0]]]))
    assert back.tolist() == [[[1100.0, 0.0], [0.0, 1.0]]]
    assert op.roundings == 1

"""Estimates of ℓ1 norms against ‖g‖₁, and the median by comparisons against NumPy's."""

import numpy as np
import pytest
import torch
from torch import Tensor

from surebound.errors import UsageError
from surebound.train.cauchy import Projections, cauchy_geometric_mean, cauchy_median


@pytest.mark.parametrize("estimate", [cauchy_median, cauchy_geometric_mean])
def test_cauchy_estimators_converge_to_the_l1_norm(estimate, rng: np.random.Generator) -> None:
    generators = torch.from_numpy(rng.normal(size=(30, 4)))
    cauchy = torch.from_numpy(rng.standard_cauchy(size=(40_000, 30)))
    norm = generators.abs().sum(0)
    coarse, fine = (estimate(cauchy[:k] @ generators) for k in (50, 40_000))
    torch.testing.assert_close(fine, norm, rtol=0.03, atol=0.0)
    torch.testing.assert_close(coarse, norm, rtol=0.8, atol=0.0)


def test_geometric_mean_is_unbiased_for_few_projections(rng: np.random.Generator) -> None:
    """Unlike the plain geometric mean, which is too large by 1/cos⁵(π/10) = 1.285 at k = 5."""
    projections = torch.from_numpy(2.0 * rng.standard_cauchy(size=(5, 400_000)))
    assert cauchy_geometric_mean(projections).mean().item() == pytest.approx(2.0, rel=0.02)
    plain = projections.abs().log().mean(0).exp().mean().item()
    assert plain == pytest.approx(2.0 * 1.285, rel=0.02)


def test_estimators_have_finite_gradients_at_zero() -> None:
    for estimate in (cauchy_median, cauchy_geometric_mean):
        projections = torch.zeros(4, 2, requires_grad=True)
        estimate(projections).sum().backward()
        assert projections.grad is not None
        assert projections.grad.isfinite().all()


def test_gradients_point_where_the_norm_grows(rng: np.random.Generator) -> None:
    """That of ‖g‖₁ is the sign of g. That of a geometric mean as it stands is mostly noise."""
    g = torch.from_numpy(rng.normal(size=30)).requires_grad_()
    projections = torch.from_numpy(rng.standard_cauchy(size=(50, 500, 30))) @ g

    def towards_signs(estimates: Tensor) -> float:
        (gradient,) = torch.autograd.grad(estimates.mean(), g, retain_graph=True)
        return torch.nn.functional.cosine_similarity(gradient, g.detach().sign(), dim=0).item()

    assert towards_signs(cauchy_median(projections)) > 0.9
    assert towards_signs(cauchy_geometric_mean(projections)) > 0.98
    assert towards_signs(cauchy_geometric_mean(projections, telling=0.0)) < 0.7


def test_gradient_of_the_geometric_mean(rng: np.random.Generator) -> None:
    projections = torch.from_numpy(rng.standard_cauchy(size=(7, 40))).requires_grad_()
    assert torch.autograd.gradcheck(lambda p: cauchy_geometric_mean(p, telling=0.0), projections, eps=1e-9, rtol=1e-4)
    norm = cauchy_geometric_mean(projections)
    (gradient,) = torch.autograd.grad(norm.sum(), projections)
    assert ((gradient == 0) == (projections.abs() <= 0.3 * norm)).all() and (gradient == 0).any()
    torch.testing.assert_close((gradient * projections).sum(0), norm)


def test_geometric_mean_needs_two_projections() -> None:
    with pytest.raises(ValueError, match="at least 2 projections, got 1"):
        cauchy_geometric_mean(torch.ones(1, 3))


def test_nonsense_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 2 for the geometric-mean, got 1"):
        Projections(count=1, estimator="geometric-mean")
    with pytest.raises(UsageError, match="clip of projections must be positive, got 0"):
        Projections(clip=0.0)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 49, 50, 100])
def test_median_by_comparisons(count: int) -> None:
    """Values and gradients of NumPy's median and of the sort behind `cauchy_median`."""
    projected = torch.randn(count, 2, 5, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(2, 5, dtype=torch.float64)
    found = Projections().estimate(projected)
    np.testing.assert_array_equal(found.detach(), np.median(np.abs(projected.detach().numpy()), axis=0))
    gradients = [torch.autograd.grad((m * weights).sum(), projected)[0] for m in (found, cauchy_median(projected))]
    torch.testing.assert_close(*gradients)

"""Zonotopes around latent spaces, against explicit matrices of generators."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from chains import affine_modules, affine_ops, tiny_batch, tiny_chain
from numpy.typing import NDArray

from surebound.network.conv import Conv
from surebound.network.graph import value
from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch
from surebound.train.cauchy import Projections
from surebound.train.learner import Learner
from surebound.train.linear_bounds import band
from surebound.train.zonotope import Band, Zonotope, enclose

Array = NDArray[np.float64]
MANY = 4_000


@dataclass
class Matrices:
    """A chain as W_k x + b_k on flattened pixels and activations."""

    weights: list[Array]
    biases: list[Array]


def matrices(chain: Learner) -> Matrices:
    """Read off the modules themselves, one basis vector at a time."""
    found = Matrices([], [])
    for module, op in zip(affine_modules(chain), affine_ops(chain.layers()), strict=True):
        shape = op.in_shape if isinstance(op, Conv) else (op.weight.shape[1],)
        size = int(np.prod(shape))
        with torch.no_grad():
            bias = module(torch.zeros(1, *shape, dtype=torch.float64)).flatten(1)
            weight = module(torch.eye(size, dtype=torch.float64).reshape(size, *shape)).flatten(1) - bias
        found.weights.append(weight.T.numpy())
        found.biases.append(bias[0].numpy())
    mean, std = (np.repeat(v.numpy().ravel(), 36) for v in (chain.module[0].mean, chain.module[0].std))
    found.biases[0] = found.biases[0] - found.weights[0] @ (mean / std)
    found.weights[0] = found.weights[0] / std
    return found


def dense_bounds(c: Array, g: Array) -> tuple[Array, Array]:
    return c - np.abs(g).sum(1), c + np.abs(g).sum(1)


def dense_relu(c: Array, g: Array, lam: Array, mu: Array) -> tuple[Array, Array]:
    """The new error terms come last, one per neuron, ambiguous or not."""
    return lam * c + mu, np.concatenate([lam[:, None] * g, np.diag(mu)], axis=1)


def exact(chain: Learner, batch: Batch, sample: int, depth: int) -> list[tuple[Array, Array]]:
    """(l̂, û) of the first depth + 1 layers by DeepZ with explicit generators and λ, μ from exact bounds."""
    m = matrices(chain)
    lower, upper = ((v[sample].flatten().numpy()) for v in batch.box)
    c, g = (lower + upper) / 2, np.diag((upper - lower) / 2)
    found = []
    for weight, bias in zip(m.weights[: depth + 1], m.biases, strict=False):
        c, g = weight @ c + bias, weight @ g
        low, up = dense_bounds(c, g)
        found.append((low, up))
        cross = (low < 0) & (up > 0)
        lam = np.where(cross, up / (up - low), low >= 0)
        mu = np.where(cross, -up * low / (2 * (up - low)), 0.0)
        c, g = dense_relu(c, g, lam, mu)
    return found


def planar(e: torch.Tensor, zonotope: Zonotope, depth: int) -> list[Array]:
    """Rows of error terms with images from channels-last to (channel, height, width) order, per group."""
    shapes = [zonotope.radius.shape[1:], *(r.mu.shape[1:] for r in zonotope.bands[:depth])]
    out = []
    for block, shape in zip(e.split(zonotope.sizes(depth), dim=1), shapes, strict=True):
        image = block.reshape(-1, *shape[1:], shape[0]).permute(0, 3, 1, 2) if len(shape) == 3 else block
        out.append(image.flatten(1).numpy())
    return out


def enclosed(depth: int, *, regularise: bool = False, stage_eps: float = 0.05, chunk: int | None = None, **options):
    chain, batch = tiny_chain(), tiny_batch(eps=stage_eps)
    return (
        chain,
        batch,
        enclose(
            chain.layers(),
            batch,
            depth=depth,
            projections=Projections(**options),
            regularise=regularise,
            chunk=chunk,
        ),
    )


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_points_are_those_of_explicit_generators(depth: int) -> None:
    chain, batch, enclosure = enclosed(depth)
    zonotope, m = enclosure.zonotope, matrices(chain)
    e = 2 * torch.rand(len(batch.x), sum(zonotope.sizes(depth)), dtype=torch.float64) - 1
    terms = planar(e, zonotope, depth)
    points = zonotope.point(e, depth)
    for i in range(len(batch.x)):
        lower, upper = (v[i].flatten().numpy() for v in batch.box)
        c, g = (lower + upper) / 2, np.diag((upper - lower) / 2)
        for k in range(depth):
            lam, mu = (v[i].flatten().numpy() for v in (zonotope.bands[k].lam, zonotope.bands[k].mu))
            c, g = dense_relu(m.weights[k] @ c + m.biases[k], m.weights[k] @ g, lam, mu)
        expected = c + g @ np.concatenate([t[i] for t in terms])
        np.testing.assert_allclose(points[i].flatten().numpy(), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("depth", [0, 2, 3])
def test_gradients_of_error_terms(depth: int) -> None:
    _, batch, enclosure = enclosed(depth)
    e = torch.rand(len(batch.x), sum(enclosure.zonotope.sizes(depth)), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda e: enclosure.zonotope.point(e, depth), e, fast_mode=True)


def test_relaxation_of_one_neuron_per_case() -> None:
    lower = torch.tensor([[-1.0, -3.0, 0.5, -2.0, 0.0, 0.7]])
    relu = Band(*band(None, lower, torch.tensor([[3.0, 1.0, 2.0, -1.0, 0.0, 0.7]])))
    torch.testing.assert_close(relu.lam, torch.tensor([[0.75, 0.25, 1.0, 0.0, 0.0, 1.0]]))
    torch.testing.assert_close(relu.mu, torch.tensor([[0.375, 0.375, 0.0, 0.0, 0.0, 0.0]]))


def areas(bounds: list[list[tuple[Array, Array]]]) -> float:
    return float(np.mean([(np.maximum(-b[-1][0], 0) * np.maximum(b[-1][1], 0)).sum() for b in bounds]))


@pytest.mark.slow
@pytest.mark.parametrize("groups", ["merged", "separate"])
@pytest.mark.parametrize("estimator", ["median", "geometric-mean"])
def test_estimates_converge_to_exact_norms(estimator, groups) -> None:
    """λ and μ of three layers and the area of the fourth, from many projections."""
    chain, batch, enclosure = enclosed(3, regularise=True, count=MANY, estimator=estimator, groups=groups)
    bounds = [exact(chain, batch, i, 3) for i in range(len(batch.x))]
    for k, relu in enumerate(enclosure.zonotope.bands):
        low, up = (np.stack([b[k][end] for b in bounds]) for end in (0, 1))
        cross = (low < 0) & (up > 0)
        assert cross.mean() > 0.1
        lam = np.where(cross, up / (up - low), low >= 0)
        mu = np.where(cross, -up * low / (2 * (up - low)), 0.0)
        for found, true in ((relu.lam, lam), (relu.mu, mu)):
            np.testing.assert_allclose(
                found.flatten(1).numpy(), true, rtol=0, atol=(1e-12 if k == 0 else 0.1) * true.max()
            )
            assert found.mean().item() == pytest.approx(true.mean(), rel=1e-12 if k == 0 else 0.06)
    assert enclosure.area is not None
    assert enclosure.area.item() == pytest.approx(areas(bounds), rel=0.15)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_area_of_the_next_layer(depth: int) -> None:
    """Exact at the first layer; from 50 projections within the noise of an estimate elsewhere."""
    chain, batch, enclosure = enclosed(depth, regularise=True)
    assert enclosure.area is not None
    expected = areas([exact(chain, batch, i, depth) for i in range(len(batch.x))])
    assert enclosure.area.item() == pytest.approx(expected, rel=1e-12 if depth == 0 else 0.3)


@pytest.mark.parametrize("groups", ["merged", "separate"])
def test_most_activations_of_the_network_are_within_the_relaxations(groups) -> None:
    """0 ≤ σ(x̂) − λ x̂ ≤ 2 μ on the bounds: always at the first layer, nearly always where they are estimates."""
    chain, batch, enclosure = enclosed(3, groups=groups)
    layers, (lower, upper) = chain.layers(), batch.box
    generator = torch.Generator().manual_seed(0)
    inside: list[list[float]] = [[], [], []]
    for corner in (False, True, True, True):
        t = torch.rand(lower.shape, generator=generator).to(lower)
        x = layers.normalise(torch.lerp(lower, upper, t.round() if corner else t))
        for k, relu in enumerate(enclosure.zonotope.bands):
            x = value(affine_ops(layers)[k], x)
            gap = x.relu() - relu.lam * x
            inside[k].append(((gap >= -1e-12) & (gap <= 2 * relu.mu + 1e-12)).double().mean().item())
            x = x.relu()
    assert min(inside[0]) == 1.0
    assert min(inside[1] + inside[2]) > 0.97


@pytest.mark.parametrize(("depth", "steps"), [(0, 1), (2, 1), (2, 3)])
def test_attack_moves_error_terms_by_signs(depth: int, steps: int) -> None:
    chain, batch, enclosure = enclosed(depth)
    zonotope, fresh = enclosure.zonotope, tiny_batch()
    found = zonotope.attack(TrainAttack(steps=steps, step_size=0.25), fresh, depth)
    e = 2 * tiny_batch().draws.uniform(sum(zonotope.sizes(depth))).double() - 1
    start = e
    tail = torch.nn.Sequential(*list(chain.module)[{0: 0, 2: 5}[depth] :])
    for _ in range(steps):
        e = e.detach().requires_grad_(True)
        torch.nn.functional.cross_entropy(tail(zonotope.point(e, depth)), batch.y).backward()
        assert e.grad is not None
        e = (e + 0.25 * e.grad.sign()).clamp(-1, 1).detach()
    torch.testing.assert_close(found, zonotope.point(e, depth))
    assert not found.requires_grad
    assert e.abs().max() <= 1
    assert 0.2 < (e - start).abs().max() <= 0.25 * steps + 1e-12


def test_attack_with_large_steps_stays_in_the_zonotope() -> None:
    _, batch, enclosure = enclosed(2)
    zonotope = enclosure.zonotope
    found = zonotope.attack(TrainAttack(steps=3, step_size=7.0), batch, 2)
    ones = torch.zeros(1, sum(zonotope.sizes(2)), dtype=torch.float64).expand(len(batch.x), -1)
    centre, radius = zonotope.point(ones, 2), torch.zeros_like(found)
    for column in range(ones.shape[1]):
        unit = torch.zeros_like(ones)
        unit[:, column] = 1
        radius += (zonotope.point(unit, 2) - centre).abs()
    assert ((found - centre).abs() <= radius + 1e-12).all()
    assert not torch.allclose(found, centre)


def test_area_has_gradients_to_its_layer_alone() -> None:
    for depth in (0, 1, 2):
        chain, _, enclosure = enclosed(depth, regularise=True)
        assert enclosure.area is not None
        enclosure.area.backward()
        for k, module in enumerate(affine_modules(chain)):
            for p in module.parameters():
                assert (p.grad is not None and p.grad.abs().max() > 0) == (k == depth)


def test_chunks_do_not_change_the_result() -> None:
    _, _, whole = enclosed(2, regularise=True)
    _, _, single = enclosed(2, regularise=True, chunk=1)
    torch.testing.assert_close(whole.area, single.area)
    torch.testing.assert_close(whole.zonotope.bands[1].lam, single.zonotope.bands[1].lam)

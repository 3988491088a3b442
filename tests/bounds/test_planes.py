"""Planes above ReLUs: above them everywhere, as low as the hull lets them be, and bounds with them against LPs."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
import torch
from forms import MAKERS, Case, feasible_signs, make_case, random_duals
from networks import pre_activations, random_box, random_fc, sample
from scipy.optimize import linprog
from torch import Tensor

from surebound.bounds.around import enclosure_over
from surebound.bounds.audit import WrongBound, auditing
from surebound.bounds.beta_crown import Ascent, Duals, Slopes, Specification, Splits, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.kernel import Kernel
from surebound.bounds.planes import Planes, find_planes, sound_planes
from surebound.bounds.relaxation import relax
from surebound.bounds.root import LayerBounding, fold_network
from surebound.bounds.sparse import is_sparse
from surebound.domain.sets import Ball


def always(weight: Tensor) -> bool:
    return True


def folded_of(case: Case) -> FoldedForm:
    form = case.forms["folded"]
    assert isinstance(form, FoldedForm)
    return form


def any_planes(form: FoldedForm, rng: np.random.Generator, low: float = -0.3, high: float = 1.3) -> tuple[Planes, ...]:
    """Planes with random coefficients and κ, also such as no ascent would choose."""
    slopes = [torch.from_numpy(rng.uniform(low, high, size=tuple(b.weight.shape))) for b in form.blocks]
    kappas = [torch.from_numpy(rng.uniform(low, high, size=(2, len(b.bias)))) for b in form.blocks]  # to be clipped
    return sound_planes(form, slopes, kappas)


def hull_planes(form: FoldedForm, rng: np.random.Generator) -> tuple[Planes, ...]:
    """Planes that are above the ReLU for all columns in their box, also for those that are not together anywhere."""
    slopes = [torch.from_numpy(rng.uniform(size=tuple(b.weight.shape))) for b in form.blocks]
    return sound_planes(form, slopes, [torch.tensor([[1.0], [0.0]]).expand(2, len(b.bias)) for b in form.blocks])


def columns_at(case: Case, form: FoldedForm, x: Tensor) -> tuple[Tensor, Tensor]:
    """x̂ of the form's neurons, and its columns, by the network itself. # (points, neurons), (points, columns)"""
    xhat = torch.cat(pre_activations(case.network, x)[:-1], dim=1)[:, case.where]
    return xhat, torch.cat([x.flatten(1)[:, form.free], xhat.clamp_min(0.0)], dim=1)


@pytest.mark.parametrize("name", MAKERS)
def test_a_plane_is_above_the_relu(name: str, rng: np.random.Generator) -> None:
    case = make_case(name, rng, radius=0.5)
    form = folded_of(case)
    inside = sample(rng, case.lower[0], case.upper[0], 400)
    corner = torch.where(torch.from_numpy(rng.uniform(size=tuple(inside.shape))) < 0.5, case.lower, case.upper)
    xhat, columns = columns_at(case, form, torch.cat([inside, corner]))
    for planes in (any_planes(form, rng, *ends) for ends in ((-0.3, 1.3), (0.0, 1.0), (0.7, 1.3))):
        for block, at, plane in zip(form.blocks, form.layers, planes, strict=True):
            above = columns[:, : block.weight.shape[1]] @ plane.weight.T + plane.height
            assert bool((above >= xhat[:, at].clamp_min(0.0) - 1e-12).all())


def test_a_plane_of_the_first_layer_touches_the_relu(rng: np.random.Generator) -> None:
    """With κ = 1 and κ' = 0, the height is the most by which the ReLU is above g·x at a corner of the box."""
    case = make_case("fc", rng, radius=1.0)
    form = folded_of(case)
    plane = hull_planes(form, rng)[0]
    corners = torch.tensor(list(product(*zip(form.box_lower, form.box_upper, strict=True))), dtype=torch.float64)
    block = form.blocks[0]
    relu = (corners @ block.weight.T + block.bias).clamp_min(0.0)
    most = (relu - corners @ plane.weight.T).amax(0)
    assert len(most) >= 4
    np.testing.assert_allclose(plane.height, most, rtol=0, atol=1e-9)


def test_the_error_of_a_neuron_lifts_its_plane(rng: np.random.Generator) -> None:
    form = folded_of(make_case("fc", rng, radius=1.0))
    blurred = replace(form, blocks=tuple(replace(b, error=b.error + 0.125) for b in form.blocks))
    state = rng.bit_generator.state
    sharp = hull_planes(form, rng)
    rng.bit_generator.state = state
    for before, after in zip(sharp, hull_planes(blurred, rng), strict=True):
        assert bool((after.height >= before.height + 0.125 - 1e-12).all())


def test_the_triangle_is_a_plane(rng: np.random.Generator) -> None:
    case = make_case("fc", rng, radius=0.5)
    form = folded_of(case)
    triangle = relax(form.lower, form.upper)
    lines = [triangle.upper_slope[at] for at in form.layers]
    slopes = [a[:, None].expand(b.weight.shape) for a, b in zip(lines, form.blocks, strict=True)]
    planes = sound_planes(form, slopes, [a.expand(2, -1) for a in lines])
    for plane, block, at in zip(planes, form.blocks, form.layers, strict=True):
        line = triangle.intercept[at] + triangle.upper_slope[at] * block.bias
        np.testing.assert_allclose(plane.height, line, rtol=0, atol=1e-6)  # its weights are rounded to float32


def least(
    form: FoldedForm, rows: Tensor, constant: Tensor, signs: Tensor, planes: tuple[Planes, ...] | None = None
) -> float:
    """min over the relaxation of the largest row, by HiGHS: the triangle, or planes as upper lines."""
    triangle, n = relax(form.lower, form.upper), form.columns
    above, most = [np.array([*row, -1.0]) for row in rows.tolist()], (-constant).tolist()
    for k, (block, at) in enumerate(zip(form.blocks, form.layers, strict=True)):
        size = block.weight.shape[1]
        for j, neuron in enumerate(range(at.start, at.stop)):
            x = np.eye(n + 1)[form.inputs + neuron]
            w, b, s = np.pad(block.weight[j], (0, n + 1 - size)), float(block.bias[j]), int(signs[neuron])
            lines = [(w - x, -b)]  # x̂ ≤ x
            if s > 0:
                lines += [(x - w, b), (-w, b)]
            elif s < 0:
                lines += [(x, 0.0), (w, -b)]
            elif planes is None:
                a, intercept = float(triangle.upper_slope[neuron]), float(triangle.intercept[neuron])
                lines.append((x - a * w, a * b + intercept))
            else:
                lines.append((x - np.pad(planes[k].weight[j], (0, n + 1 - size)), float(planes[k].height[j])))
            for line, right in lines:
                above.append(line)
                most.append(right)
    ends = [*zip(form.box_lower.tolist(), form.box_upper.tolist(), strict=True), *[(0, None)] * form.neurons]
    answer = linprog(np.eye(n + 1)[-1], np.array(above), np.array(most), bounds=[*ends, (None, None)])
    assert answer.status == 0
    return float(answer.fun)


@pytest.mark.parametrize("sparse", [is_sparse, always])
@pytest.mark.parametrize("name", MAKERS)
def test_the_kernel_computes_the_bound_with_planes(
    name: str, sparse: Callable[[Tensor], bool], rng: np.random.Generator
) -> None:
    case = make_case(name, rng)
    form = folded_of(case)
    planes, relaxation = any_planes(form, rng), relax(form.lower, form.upper)
    region = torch.from_numpy(rng.integers(0, 2, size=20))
    duals = random_duals(rng, region, form.neurons)
    for signs in (None, feasible_signs(rng, case, 20, 0.3)[:, case.where]):
        own = Duals(duals.alpha, None if signs is None else duals.beta, duals.mix)
        slopes = Slopes.of(relaxation, signs, planes=True)
        ready = Duals(slopes.fixed(own.alpha), own.beta, own.mix)
        specification = case.specifications["folded"]
        start = specification.mixed(region, own.mix)
        reference = evaluate(form.with_planes(planes), start, slopes, ready, keep=False).bound
        kernel = Kernel.of(form, sparse).with_planes(planes, sparse)
        arguments = specification.to(torch.float32), relaxation.to(torch.float32), Splits(region, signs)
        found, _ = kernel.evaluate(*arguments, own.to(torch.float32))
        np.testing.assert_allclose(found, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MAKERS)
def test_the_ascent_with_planes_reaches_the_linear_program(name: str, rng: np.random.Generator) -> None:
    """Its gradients are right: over split and unsplit nodes, with one row and with two."""
    case = make_case(name, rng)
    form, specification = folded_of(case), case.specifications["folded"]
    planes, relaxation = hull_planes(form, rng), relax(form.lower, form.upper).to(torch.float32)
    kernel, region = Kernel.of(form).with_planes(planes), torch.tensor([0, 1, 0, 1])
    signs = feasible_signs(rng, case, 4, 0.3)[:, case.where]
    signs[:2] = 0
    fast = specification.to(torch.float32)
    alpha = relaxation.lower_slope.repeat(4, 1)
    begin = Duals(alpha, torch.zeros_like(alpha), fast.initial_mix(region))
    found = kernel.ascend(fast, relaxation, Splits(region, signs), begin, Ascent(iterations=1500, decay=0.997))
    for i, g in enumerate(region.tolist()):
        a, b = specification.starts[g], specification.starts[g + 1]
        optimum = least(form, specification.rows.coefficients[a:b], specification.rows.constant[a:b], signs[i], planes)
        assert float(found.bound[i]) <= optimum + 1e-4
        assert float(found.bound[i]) >= optimum - 2e-2 * max(1.0, abs(optimum))


@pytest.mark.parametrize("name", MAKERS)
def test_a_bound_with_planes_holds(name: str, rng: np.random.Generator) -> None:
    """At points of the box that the splits let through, whatever planes and duals are."""
    case = make_case(name, rng, radius=0.5)
    form, specification = folded_of(case), case.specifications["folded"]
    planes, relaxation = any_planes(form, rng), relax(form.lower, form.upper)
    x = sample(rng, case.lower[0], case.upper[0], 2000)
    xhat, columns = columns_at(case, form, x)
    signs = feasible_signs(rng, case, 30, 0.2)[:, case.where]
    region = torch.from_numpy(rng.integers(0, 2, size=30))
    duals, slopes = random_duals(rng, region, form.neurons), Slopes.of(relaxation, signs, planes=True)
    start = specification.mixed(region, duals.mix)
    ready = Duals(slopes.fixed(duals.alpha), duals.beta, duals.mix)
    bound = evaluate(form.with_planes(planes), start, slopes, ready, keep=False).bound
    values = columns @ start.coefficients.T + start.constant  # (points, nodes)
    through = ((signs[None].double() * xhat[:, None]) >= 0).all(2)
    assert bool(through.any(0).all())
    assert bool((values >= bound - 1e-9)[through].all())


def found_for(form: FoldedForm, specification: Specification, region: int = 0) -> tuple[tuple[Planes, ...], float]:
    relaxation, fast = relax(form.lower, form.upper).to(torch.float32), specification.to(torch.float32)
    at = torch.tensor([region])
    duals = Duals(relaxation.lower_slope[None], None, fast.initial_mix(at))
    kernel = Kernel.of(form)
    root = kernel.ascend(fast, relaxation, Splits(at, None), duals, Ascent())
    found = find_planes(
        form, kernel, fast, relaxation, region, root.duals, Ascent(iterations=300, decay=0.99), lambda: None
    )
    assert found.bound >= float(root.bound) - 1e-4
    return found.planes, found.bound


def hull(form: FoldedForm, row: Tensor, constant: float) -> float:
    """min over the convex hulls of all neurons of one layer, each over the box, by its corners."""
    block, n, m = form.blocks[0], form.inputs, form.neurons
    corners = np.array(list(product(*zip(form.box_lower.tolist(), form.box_upper.tolist(), strict=True))))
    relu = np.maximum(corners @ block.weight.numpy().T + block.bias.numpy(), 0.0)
    count, equal, right = len(corners), [], []
    for j in range(m):  # weights of the corners, for each neuron: x and one are the same for all of them
        own = slice(n + j * count, n + (j + 1) * count)
        for i in range(n):
            equation = np.zeros(n + m * count)
            equation[i], equation[own] = -1.0, corners[:, i]
            equal.append(equation)
            right.append(0.0)
        equation = np.zeros(n + m * count)
        equation[own] = 1.0
        equal.append(equation)
        right.append(1.0)
    # a neuron that the row wants small lies on the ReLU, one that it wants large on the concave envelope
    cost, below = np.concatenate([row[:n].numpy(), np.zeros(m * count)]), row[n:].numpy()
    small = np.flatnonzero(below > 0)
    for j in range(m):
        if below[j] <= 0:
            cost[n + j * count : n + (j + 1) * count] = below[j] * relu[:, j]
    above = np.zeros((2 * len(small), n + m * count + len(small)))
    most = np.zeros(2 * len(small))
    for i, j in enumerate(small):
        above[2 * i : 2 * i + 2, n + m * count + i] = -1.0
        above[2 * i, :n], most[2 * i] = block.weight[j].numpy(), -float(block.bias[j])
    cost = np.concatenate([cost, below[small]])
    padded = np.pad(np.array(equal), ((0, 0), (0, len(small))))
    limits = [(None, None)] * n + [(0, None)] * (m * count + len(small))
    answer = linprog(cost, above, most, padded, np.array(right), bounds=limits)
    assert answer.status == 0
    return float(answer.fun) + constant


@pytest.mark.parametrize("seed", range(4))
def test_the_planes_found_are_as_good_as_the_hull(seed: int) -> None:
    """One plane for each neuron has, at the root, the bound that all planes have together."""
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (4, 12, 1))
    lower, upper = random_box(rng, network, radius=1.0)
    form = fold_network(Enclosure(network, lower, upper), LayerBounding(ascent=None), lambda: None)
    assert form is not None and form.neurons >= 5
    row = form.rows(torch.ones(1, 1).double(), torch.zeros(1, 4).double(), torch.zeros(1).double())
    specification = Specification(row, (0, 1), form.start_error(row))
    _, bound = found_for(form, specification)
    exact = hull(form, row.coefficients[0], float(row.constant))
    triangle = least(form, row.coefficients, row.constant, torch.zeros(form.neurons))
    assert exact > triangle + 1e-3
    assert bound <= exact + 1e-4
    assert exact - bound <= 0.05 * (exact - triangle)


@pytest.mark.parametrize("name", MAKERS)
def test_planes_found_are_tighter_than_the_triangle(name: str, rng: np.random.Generator) -> None:
    case = make_case(name, rng, radius=0.6)
    form, specification = folded_of(case), case.specifications["folded"]
    for region in (0, 1):
        planes, bound = found_for(form, specification, region)
        a, b = specification.starts[region], specification.starts[region + 1]
        rows, signs = specification.rows[slice(a, b)], torch.zeros(form.neurons)
        tight = least(form, rows.coefficients, rows.constant, signs, planes)
        assert bound <= tight + 1e-4  # the sound planes are those that were found
        assert tight > least(form, rows.coefficients, rows.constant, signs) - 1e-4


def test_planes_over_a_ball_are_those_of_the_box_around_it(rng: np.random.Generator) -> None:
    network = random_fc(rng, (4, 12, 2))
    ball = Ball.around(rng.uniform(-0.5, 0.5, size=4), Fraction(3, 4), "2", low=-1.0, high=1.0)
    form = fold_network(enclosure_over(network, [ball]), LayerBounding(ascent=None), lambda: None)
    assert form is not None and form.balls is not None
    row = form.rows(torch.tensor([[1.0, -1.0]]).double(), torch.zeros(1, 4).double(), torch.zeros(1).double())
    planes, bound = found_for(form, Specification(row, (0, 1), form.start_error(row)))
    x = form.balls.project(torch.from_numpy(rng.normal(size=(3000, 4))))
    y = network.forward(x)
    assert float((y[:, 0] - y[:, 1]).min()) >= bound - 1e-5
    block, plane = form.blocks[0], planes[0]
    assert bool((x @ plane.weight.T + plane.height >= (x @ block.weight.T + block.bias).clamp_min(0) - 1e-12).all())


def test_rational_arithmetic_confirms_heights_and_bounds(rng: np.random.Generator) -> None:
    with auditing() as audit:
        case = make_case("fc", rng)
        form, specification = folded_of(case), case.specifications["folded"]
        before = audit.claims
        planes = any_planes(form, rng)
        assert audit.claims == before + form.neurons
        rows = form.fold({case.network.output: case.rows.reshape(3, *case.network.output_shape)})
        own = Specification(rows, specification.starts, form.start_error(rows))
        region, slopes = torch.tensor([0, 1]), Slopes.of(relax(form.lower, form.upper), None, planes=True)
        duals = random_duals(rng, region, form.neurons)
        ready = Duals(slopes.fixed(duals.alpha), None, duals.mix)
        evaluate(form.with_planes(planes), own.mixed(region, duals.mix), slopes, ready, keep=False)
        assert audit.claims == before + form.neurons + 2
        low = tuple(replace(p, height=p.height - 1e-6) for p in planes)
        block = form.blocks[0]
        with pytest.raises(WrongBound, match="the height of a plane"):
            ends = (form.lower[form.layers[0]], form.upper[form.layers[0]])
            kappa = torch.zeros(2, len(block.bias), dtype=torch.float64)
            audit.heights(form, block, ends, low[0].weight, kappa, torch.full((len(block.bias),), -1e3).double())

"""β-CROWN: gradients against finite differences, the ascent against the Planet LP, one form against the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from forms import FORMS, MAKERS, Case, feasible_signs, make_case, random_duals
from minima import milp_minimum, planet_bounds
from networks import Builder, pre_activations, sample
from scipy.optimize import minimize_scalar
from torch import Tensor

from surebound.bounds.beta_crown import (
    Ascent,
    Bounded,
    Duals,
    Evaluated,
    Slopes,
    Splits,
    _gradient,
    ascend,
    evaluate,
)
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.relaxation import relax
from surebound.bounds.root import LayerBounding, fold_network
from surebound.network.linear import Linear

PATIENT = Ascent(iterations=300, lr=0.1, decay=0.985)


def at(
    case: Case, key: str, region: Tensor, signs: Tensor, duals: Duals, dtype: torch.dtype = torch.float64
) -> tuple[Evaluated, Slopes, Duals]:
    """d at given duals over all neurons of the network; only the folded ones are used in the folded form."""
    if key == "folded":
        pick = case.where
        assert duals.beta is not None
        signs, duals = signs[:, pick], Duals(duals.alpha[:, pick], duals.beta[:, pick], duals.mix)
    form, specification = case.forms[key].to(dtype), case.specifications[key].to(dtype)
    slopes = Slopes.of(relax(form.lower, form.upper), signs)
    duals = replace(duals, alpha=slopes.fixed(duals.alpha))
    return evaluate(form, specification.mixed(region, duals.mix), slopes, duals), slopes, duals


def climb(
    case: Case, key: str, region: Tensor, signs: Tensor, config: Ascent, stop_above: float = torch.inf
) -> Bounded:
    """The ascent in float32 from CROWN's slopes, β = 0 and equal weights."""
    form, specification = case.forms[key].to(torch.float32), case.specifications[key].to(torch.float32)
    signs = signs[:, case.where] if key == "folded" else signs
    relaxation = relax(form.lower, form.upper)
    alpha = relaxation.lower_slope.repeat(len(region), 1)
    duals = Duals(alpha, torch.zeros_like(alpha), specification.initial_mix(region))
    return ascend(form, specification, relaxation, Splits(region, signs), duals, config, stop_above=stop_above)


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("name", MAKERS)
def test_gradients_equal_central_differences(name: str, key: str, rng: np.random.Generator) -> None:
    case = make_case(name, rng, fixed=1)
    region = torch.tensor([0, 1, 1, 0])
    signs = feasible_signs(rng, case, 4, share=0.4)
    given = random_duals(rng, region, signs.shape[1])
    now, slopes, duals = at(case, key, region, signs, given)
    form, specification = case.forms[key], case.specifications[key]
    found = _gradient(form, specification, slopes, duals, region, now.pulled.lam, now.x, now.chosen)

    def difference(part: str, column: int, step: float = 1e-6) -> Tensor:
        ends = []
        for shift in (step, -step):
            moved = getattr(duals, part).clone()
            moved[:, column] += shift
            there = replace(duals, **{part: moved})
            ends.append(evaluate(form, specification.mixed(region, there.mix), slopes, there).bound)
        return (ends[0] - ends[1]) / (2 * step)

    for part, grad in (("alpha", found.alpha), ("beta", found.beta), ("mix", found.mix)):
        assert grad is not None
        numeric = torch.stack([difference(part, i) for i in range(grad.shape[1])], dim=1)
        if part == "alpha":  # the slopes of stable and split neurons do not move
            assert not grad[~slopes.free.expand_as(grad)].any()
            numeric = torch.where(slopes.free, numeric, 0.0)
        if part == "mix":
            assert (grad[region == 0, 1] == -torch.inf).all()
            grad, numeric = grad.clone(), numeric.clone()
            grad[region == 0, 1] = numeric[region == 0, 1] = 0.0
        torch.testing.assert_close(grad, numeric, rtol=1e-6, atol=1e-7)
        assert int((grad.abs() > 1e-3).sum()) >= 4  # so that the comparison says something


@pytest.mark.parametrize("name", MAKERS)
def test_both_forms_give_the_same_bound_at_the_same_duals(name: str, rng: np.random.Generator) -> None:
    case = make_case(name, rng, fixed=2)
    assert 4 <= len(case.where) < case.forms["graph"].neurons
    region = torch.arange(2).repeat(10)
    signs = feasible_signs(rng, case, 20, share=0.4)
    duals = random_duals(rng, region, signs.shape[1])
    folded, graph = (at(case, key, region, signs, duals)[0] for key in FORMS)
    torch.testing.assert_close(folded.bound, graph.bound, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(folded.pulled.lam, graph.pulled.lam[:, case.where], rtol=1e-11, atol=1e-11)
    form = case.forms["folded"]
    assert isinstance(form, FoldedForm)
    assert form.inputs == case.network.inputs - 2
    torch.testing.assert_close(form.full_input(folded.x), graph.x, rtol=0.0, atol=0.0)
    thin = [at(case, key, region, signs, duals.to(torch.float32), torch.float32)[0].bound.double() for key in FORMS]
    torch.testing.assert_close(thin[0], folded.bound, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(thin[1], graph.bound, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("name", MAKERS)
def test_forward_with_true_relus_is_the_network(name: str, key: str, rng: np.random.Generator) -> None:
    case = make_case(name, rng, fixed=2)
    form, specification = case.forms[key], case.specifications[key]
    x = sample(rng, case.lower[0], case.upper[0], 200)
    values = pre_activations(case.network, x)
    inputs = x.flatten(1)[:, form.free] if isinstance(form, FoldedForm) else x.flatten(1)
    xhat, columns = form.forward(inputs, lambda _, v: v.clamp_min(0.0))
    for k, (where, index) in enumerate(zip(form.layers, form.indices, strict=True)):
        torch.testing.assert_close(xhat[:, where], values[k][:, index], rtol=0.0, atol=1e-12)
    expected = case.network.forward(x).flatten(1) @ case.rows.T + case.constant
    got = columns @ specification.rows.coefficients.T + specification.rows.constant
    torch.testing.assert_close(got, expected, rtol=0.0, atol=1e-12)
    padded = specification.values(torch.tensor([0, 1]), columns[:2])
    torch.testing.assert_close(padded[1], expected[1, 1:], rtol=0.0, atol=1e-12)
    assert padded[0, 0] == pytest.approx(expected[0, 0].item(), abs=1e-12)
    assert padded[0, 1] == -torch.inf


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("name", MAKERS)
def test_any_duals_bound_the_split_domain_from_below(name: str, key: str, rng: np.random.Generator) -> None:
    """Eq. 15 holds for every α ∈ [0, 1], β ≥ 0, π ≥ 0, not only for good ones."""
    case = make_case(name, rng)
    x = sample(rng, case.lower[0], case.upper[0], 5_000)
    values = case.network.forward(x).flatten(1) @ case.rows.T + case.constant
    xhat = torch.cat(pre_activations(case.network, x)[:-1], dim=1)
    region = torch.arange(2).repeat(20)
    signs = feasible_signs(rng, case, 40, share=0.1)
    duals = random_duals(rng, region, signs.shape[1])
    bound = at(case, key, region, signs, duals)[0].bound
    checked = 0
    for i, g in enumerate(region.tolist()):
        inside = (signs[i] * xhat >= 0).all(1)
        assert duals.mix is not None
        mixed = values[inside][:, 1:] @ duals.mix[i] if g else values[inside][:, 0] * duals.mix[i, 0]
        assert (bound[i] <= mixed).all()
        checked += len(mixed)
    assert checked > 10_000


@pytest.mark.parametrize("key", FORMS)
def test_the_upper_line_costs_what_it_should(key: str) -> None:
    """−relu(x̂) over [l, u] is least, −u, where the line touches it: the bound is that, and no more."""
    for low, high in ((-1.0, 1.0), (-3.0, 1.0), (-0.1, 7.0), (-1e-9, 1.0), (-1e6, 0.3)):
        build = Builder(np.random.default_rng(0), (1,))
        one = torch.ones(1, 1, dtype=torch.float64)
        build.add(Linear(-one), build.relu(build.add(Linear(one), 0)))
        network = build.network()
        enclosure = Enclosure(network, *(torch.full((1, 1), end, dtype=torch.float64) for end in (low, high)))
        folded = fold_network(enclosure, LayerBounding(ascent=None), lambda: None)
        form: Form = folded if key == "folded" else GraphForm.at(enclosure, network.output)
        rows = form.rows(one, 0 * one, torch.zeros(1, dtype=torch.float64))
        slopes = Slopes.of(relax(form.lower, form.upper), None)
        start = replace(rows, error=form.start_error(rows))
        bound = float(evaluate(form, start, slopes, Duals(slopes.upper, None, None)).bound)
        assert -high - 1e-12 * (high - low) <= bound <= -high


def planet(case: Case, signs: Tensor, weights: Tensor) -> float:
    """The Planet optimum of Σ_r π_r row_r over a split domain. # (neurons,), (3,)"""
    splits, rows, constant = case.per_layer(signs), (weights @ case.rows)[None], (weights @ case.constant)[None]
    return float(planet_bounds(case.network, case.lower, case.upper, case.layers, rows, constant, splits).value[0])


@pytest.mark.slow
@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("name", MAKERS)
def test_the_ascent_reaches_the_planet_optimum(name: str, key: str, rng: np.random.Generator) -> None:
    """With one row, without splits (node 0) and with them: the optimum of eq. 12, and never more."""
    case = make_case(name, rng)
    signs = feasible_signs(rng, case, 4, share=0.4)
    signs[0] = 0
    region = torch.zeros(4, dtype=torch.int64)
    first = climb(case, key, region, signs, replace(PATIENT, iterations=0)).bound
    last = climb(case, key, region, signs, PATIENT).bound
    only = torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    optimum = torch.tensor([planet(case, s, only) for s in signs])
    size = optimum.abs().clamp_min(1.0)
    assert ((optimum - last) / size).max() < 1e-3
    assert ((last - optimum) / size).max() < 1e-6
    assert (optimum - first).max() > 0.05  # there was something to climb
    assert (optimum[1:] - optimum[0]).max() > 0.05  # and the splits matter


def least_largest_row(case: Case) -> float:
    """min over the box of the larger of the rows of region 1, exactly: the maximum is one more ReLU."""
    build = Builder(np.random.default_rng(0), case.network.input_shape)
    build.nodes = list(case.network.nodes)
    build.maximum(build.add(Linear(case.rows[1:], case.constant[1:]), case.network.output), axis=0)
    return milp_minimum(build.network(), case.box(), np.ones(1), 0.0, case.layers).value


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_mixed_rows_bound_the_smallest_maximum(name: str) -> None:
    """Row against row: their mixture proves at least what each proves alone, and at most min over x of max over r.

    The best mixture is found by SciPy on π ↦ its Planet optimum, which is concave.
    """
    gains = []
    for seed in range(2):
        case = make_case(name, np.random.default_rng(seed), radius=0.2)
        none = torch.zeros(1, case.forms["graph"].neurons, dtype=torch.int8)
        mixed = float(climb(case, "folded", torch.tensor([1]), none, PATIENT).bound)

        def optimum(pi: float, case: Case = case, none: Tensor = none) -> float:
            return planet(case, none[0], torch.tensor([0.0, 1.0 - pi, pi], dtype=torch.float64))

        alone = [optimum(0.0), optimum(1.0)]
        assert mixed >= max(alone) - 1e-3
        search = minimize_scalar(lambda pi: -optimum(pi), bounds=(0.0, 1.0), method="bounded", options={"xatol": 1e-3})
        best = max(-search.fun, *alone)
        assert mixed == pytest.approx(best, abs=2e-3)
        assert mixed <= least_largest_row(case) + 1e-5
        gains.append(best - max(alone))
    assert max(gains) > 0.02  # mixing was needed somewhere


@pytest.mark.parametrize("shift", [(-2.0, -9.0), (9.0, 2.0)])
def test_a_row_above_the_other_everywhere_takes_all_the_weight(
    shift: tuple[float, float], rng: np.random.Generator
) -> None:
    """Also where both rows have the same sign at every point, and so both elements of π's gradient."""
    case = make_case("fc", rng)
    region, none = torch.tensor([1]), torch.zeros(1, case.forms["graph"].neurons, dtype=torch.int8)
    old = case.specifications["folded"]
    apart = old.rows.constant + torch.tensor([0.0, *shift], dtype=torch.float64)
    moved = replace(case, specifications={"folded": replace(old, rows=replace(old.rows, constant=apart))})
    found = climb(moved, "folded", region, none, PATIENT)
    alone = planet(case, none[0], torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64)) + shift[0]
    assert float(found.bound) == pytest.approx(alone, abs=1e-3)
    assert found.duals.mix is not None
    assert found.duals.mix[0].tolist() == pytest.approx([1.0, 0.0], abs=1e-3)


@pytest.mark.parametrize("key", FORMS)
def test_the_ascent_returns_its_best_iterate(key: str, rng: np.random.Generator) -> None:
    """Bound, λ̄ and minimiser are those of the duals returned; α ∈ [0, 1], β ≥ 0, π on the simplex; more is better."""
    case = make_case("residual", rng)
    region = torch.arange(2).repeat(4)
    signs = feasible_signs(rng, case, 8, share=0.4)
    before = torch.full((8,), -torch.inf)
    for iterations in (0, 1, 5, 20):
        found = climb(case, key, region, signs, Ascent(iterations=iterations))
        duals, form = found.duals, case.forms[key].to(torch.float32)
        assert duals.beta is not None
        assert duals.mix is not None
        slopes = Slopes.of(relax(form.lower, form.upper), signs[:, case.where] if key == "folded" else signs)
        start = case.specifications[key].to(torch.float32).mixed(region, duals.mix)
        again = evaluate(form, start, slopes, duals)
        torch.testing.assert_close(found.bound, again.bound, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.lam, again.pulled.lam, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.x, again.x, rtol=0.0, atol=0.0)
        assert ((duals.alpha >= 0) & (duals.alpha <= 1)).all()
        assert (duals.beta >= 0).all()
        torch.testing.assert_close(duals.mix.sum(1), torch.ones(8))
        assert (duals.mix[region == 0, 1] == 0).all()
        assert (found.bound >= before).all()
        before = found.bound
    assert (before - climb(case, key, region, signs, Ascent(iterations=0)).bound).max() > 0.05


def test_nodes_that_leave_the_batch_do_not_disturb_the_others(rng: np.random.Generator) -> None:
    """With a threshold at the median, half of the nodes stop above it and the rest end where they would have anyway."""
    case = make_case("conv", rng)
    region = torch.arange(2).repeat(12)
    signs = feasible_signs(rng, case, 24, share=0.3)
    config = Ascent(iterations=30)
    full = climb(case, "folded", region, signs, config)
    threshold = float(full.bound.median())
    stopped = climb(case, "folded", region, signs, config, stop_above=threshold)
    below = full.bound <= threshold
    assert 8 <= int(below.sum()) <= 16
    torch.testing.assert_close(stopped.bound[below], full.bound[below], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(stopped.lam[below], full.lam[below], rtol=1e-2, atol=1e-2)
    assert (stopped.bound[~below] > threshold).all()
    assert (stopped.bound[~below] < full.bound[~below] - 1e-3).any()

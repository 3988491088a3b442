"""The ascent on the folded network in its own layout: the same bounds as the reference, whatever the nodes."""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from forms import MAKERS, Case, feasible_signs, make_case, random_duals
from networks import random_box, random_conv
from torch import Tensor

from surebound.bounds import kernel as kernel_module
from surebound.bounds.around import enclosure_over
from surebound.bounds.beta_crown import Ascent, Bounded, Duals, Slopes, Specification, Splits, ascend, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.kernel import Kernel, KernelRows
from surebound.bounds.relaxation import relax
from surebound.bounds.root import LayerBounding, fold_network
from surebound.bounds.sparse import is_sparse
from surebound.domain.balls import Balls
from surebound.domain.sets import Ball, Norm
from surebound.verify.folded_attack import _forward, descend_folded


def always(weight: Tensor) -> bool:
    return True


def both(
    case: Case,
    nodes: Splits,
    duals: Duals,
    config: Ascent,
    stop_above: float = torch.inf,
    sparse: Callable[[Tensor], bool] = is_sparse,
) -> list[Bounded]:
    """The reference's result, then the kernel's."""
    form = case.forms["folded"]
    assert isinstance(form, FoldedForm)
    specification, relaxation = case.specifications["folded"].to(torch.float32), relax(form.lower, form.upper)
    arguments = specification, relaxation.to(torch.float32), nodes, duals, config
    return [
        ascend(form.to(torch.float32), *arguments, stop_above=stop_above),
        Kernel.of(form, sparse).ascend(*arguments, stop_above=stop_above),
    ]


def draw(case: Case, rng: np.random.Generator, count: int, *, splits: bool = True) -> tuple[Splits, Duals]:
    """Splits of both regions with random splits, and random duals with π on the simplex."""
    region = torch.from_numpy(rng.integers(0, 2, size=count))
    signs = feasible_signs(rng, case, count, 0.3)[:, case.where] if splits else None
    duals = random_duals(rng, region, len(case.where)).to(torch.float32)
    assert duals.mix is not None and duals.beta is not None
    beta = None if signs is None else torch.where(signs != 0, duals.beta, 0.0)
    return Splits(region, signs), Duals(duals.alpha, beta, duals.mix / duals.mix.sum(1, keepdim=True))


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("name", MAKERS)
def test_the_kernel_equals_the_reference(name: str, splits: bool, rng: np.random.Generator) -> None:
    case = make_case(name, rng, fixed=1)
    nodes, duals = draw(case, rng, 9, splits=splits)
    for iterations in (0, 1, 4):
        expected, found = both(case, nodes, duals, Ascent(iterations=iterations))
        np.testing.assert_allclose(found.bound, expected.bound, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(found.lam, expected.lam, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(found.duals.alpha, expected.duals.alpha, rtol=1e-2, atol=1e-2)
        np.testing.assert_allclose(found.duals.mix, expected.duals.mix, rtol=1e-2, atol=1e-2)
        if splits:
            np.testing.assert_allclose(found.duals.beta, expected.duals.beta, rtol=1e-2, atol=1e-2)


def test_single_rows_and_a_node_without_splits_among_others(rng: np.random.Generator) -> None:
    case = make_case("conv", rng)
    one = case.specifications["folded"].only(torch.tensor([True, False]))
    case = replace(case, specifications={"folded": one})
    nodes, duals = draw(case, rng, 6)
    assert nodes.signs is not None
    nodes.signs[2] = 0
    nodes = Splits(torch.zeros(6, dtype=torch.int64), nodes.signs)
    expected, found = both(case, nodes, replace(duals, mix=None), Ascent(iterations=3))
    np.testing.assert_allclose(found.bound, expected.bound, rtol=1e-4, atol=1e-4)


def test_nodes_that_are_done_leave_and_keep_their_duals(rng: np.random.Generator) -> None:
    case = make_case("fc", rng)
    nodes, duals = draw(case, rng, 40)
    whole, _ = both(case, nodes, duals, Ascent(iterations=6))
    stop = float(whole.bound.sort().values[19:21].mean())  # between two nodes
    expected, found = both(case, nodes, duals, Ascent(iterations=6), stop)
    open_ = expected.bound <= stop
    assert 0 < int(open_.sum()) < len(open_)
    np.testing.assert_array_equal(found.bound <= stop, open_)
    np.testing.assert_allclose(found.bound[open_], expected.bound[open_], rtol=1e-4, atol=1e-4)
    # what the duals that are returned prove is what is claimed
    again, _ = both(case, nodes, found.duals, Ascent(iterations=0))
    np.testing.assert_allclose(again.bound, found.bound, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="sparse products need MKL")
def test_sparse_blocks_change_nothing(name: str, rng: np.random.Generator) -> None:
    case = make_case(name, rng)
    nodes, duals = draw(case, rng, 5)
    _, dense = both(case, nodes, duals, Ascent(iterations=3))
    form = case.forms["folded"]
    assert isinstance(form, FoldedForm)
    assert all(block.weight.layout == torch.sparse_csr for block in Kernel.of(form, always).blocks)
    _, sparse = both(case, nodes, duals, Ascent(iterations=3), sparse=always)
    np.testing.assert_allclose(sparse.bound, dense.bound, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="sparse products need MKL")
def test_sparse_blocks_prove_the_same(name: str, rng: np.random.Generator) -> None:
    """The sound evaluation in float64: within its own error, and never above the truth."""
    case = make_case(name, rng, fixed=1)
    form, specification = case.forms["folded"], case.specifications["folded"]
    nodes, duals = draw(case, rng, 7)
    assert isinstance(form, FoldedForm)
    compressed = form.compressed(always)
    assert all(t is not None for t in compressed.transposed)
    wide, slopes = duals.to(torch.float64), Slopes.of(relax(form.lower, form.upper), nodes.signs)
    start = specification.mixed(nodes.region, wide.mix)
    ready = replace(wide, alpha=slopes.fixed(wide.alpha))
    dense, sparse = (evaluate(f, start, slopes, ready, keep=False).bound for f in (form, compressed))
    np.testing.assert_allclose(sparse, dense, rtol=1e-11, atol=1e-11)


def test_numbers_that_overflow_prove_nothing(rng: np.random.Generator) -> None:
    case = make_case("fc", rng)
    form = case.forms["folded"]
    assert isinstance(form, FoldedForm)
    blocks = (replace(form.blocks[0], weight=form.blocks[0].weight * 1e60), *form.blocks[1:])
    nodes, duals = draw(case, rng, 5)
    case = replace(case, forms={"folded": replace(form, blocks=blocks)})
    _, found = both(case, nodes, duals, Ascent(iterations=2))
    assert not bool(torch.isnan(found.bound).any())
    assert bool((found.bound < 0).all())


def test_the_attack_descends_on_the_network_itself(rng: np.random.Generator) -> None:
    """At every point of the box the folded network is the network, and the points found are lower than the starts."""
    network = random_conv(rng)
    lower, upper = random_box(rng, network, radius=0.4)
    form = fold_network(Enclosure(network, lower, upper), LayerBounding(), lambda: None)
    assert form is not None
    rows = torch.from_numpy(rng.normal(size=(3, network.outputs)))
    zero = torch.zeros(3, network.inputs, dtype=torch.float64)
    folded = form.rows(rows, zero, torch.zeros(3, dtype=torch.float64))
    specification = kernel_module.Specification(folded, (0, 1, 3), folded.error).to(torch.float32)
    kernel = Kernel.of(form)
    region = torch.from_numpy(rng.integers(0, 2, size=20))
    start = form.box_lower + torch.from_numpy(rng.uniform(size=(20, form.inputs))) * (form.box_upper - form.box_lower)

    def value(x: torch.Tensor) -> torch.Tensor:
        every = network.forward(form.full_input(x.double()).reshape(-1, *network.input_shape)).flatten(1) @ rows.T
        return torch.where(region == 0, every[:, 0], every[:, 1:].amax(1))

    z = ((start.float() - kernel.centre) / kernel.radius).T.contiguous()
    columns, _ = _forward(kernel, z)
    on_columns = KernelRows.of(kernel, specification)
    every = torch.where(on_columns.members(region), on_columns.values(columns), -torch.inf)
    np.testing.assert_allclose(every.amax(0), value(start), rtol=1e-4, atol=1e-4)
    found = descend_folded(kernel, specification, region, start.float())
    assert bool(((found >= form.box_lower - 1e-6) & (found <= form.box_upper + 1e-6)).all())
    before, after = value(start), value(found)
    if float(before.min()) > 0:
        assert bool((after <= before + 1e-5).all())
        assert float((before - after).mean()) > 0


@pytest.mark.parametrize("norm", ["1", "2"])
@pytest.mark.parametrize("name", MAKERS)
def test_over_a_ball_the_kernel_equals_the_reference(name: str, norm: Norm, rng: np.random.Generator) -> None:
    network = MAKERS[name](rng)
    ball = Ball.around(rng.uniform(size=network.inputs), Fraction(3, 4), norm, low=0.0, high=1.0)
    form = fold_network(enclosure_over(network, [ball]), LayerBounding(ascent=None), lambda: None)
    assert form is not None and form.neurons > 0
    on_output = torch.from_numpy(rng.normal(size=(3, network.outputs)))
    rows = form.rows(on_output, torch.zeros(3, network.inputs).double(), torch.zeros(3).double())
    specification = Specification(rows, (0, 1, 3), form.start_error(rows)).to(torch.float32)
    relaxation = relax(form.lower, form.upper).to(torch.float32)
    region = torch.tensor([0, 1, 1, 0])
    signs = torch.from_numpy(rng.choice([-1, 0, 0, 1], size=(4, form.neurons))).to(torch.int8)
    duals = Duals(relaxation.lower_slope.repeat(4, 1), torch.zeros(4, form.neurons), specification.initial_mix(region))
    arguments = specification, relaxation, Splits(region, signs), duals, Ascent(iterations=8)
    reference, kernel = ascend(form.to(torch.float32), *arguments), form.kernel().ascend(*arguments)
    assert torch.allclose(reference.bound, kernel.bound, atol=2e-3, rtol=2e-3)
    assert Ball.around(ball.centre, ball.radius * Fraction(1001, 1000), norm).contains(kernel.x[0].double().numpy())
    found = descend_folded(form.kernel(), specification, region, kernel.x)
    balls = Balls.of([ball])
    assert torch.allclose(balls.project(found.double()), found.double(), atol=1e-5)
    columns = network.forward(found.double().reshape(-1, *network.input_shape)).flatten(1) @ on_output.T
    begun = network.forward(kernel.x.double().reshape(-1, *network.input_shape)).flatten(1) @ on_output.T
    for i, g in enumerate(region.tolist()):
        mine = slice(0, 1) if g == 0 else slice(1, 3)
        assert float(columns[i, mine].max()) <= float(begun[i, mine].max()) + 1e-4

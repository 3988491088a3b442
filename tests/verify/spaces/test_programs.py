"""Linear programs for subproblems, and the search made of them: formulas with all assignments tried, MILPs, samples."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from minima import milp_minimum
from networks import Builder, pre_activations, random_box, random_fc, random_residual, sample
from numpy.typing import NDArray
from scipy.optimize import linprog
from verifications import model

from surebound.attacks.pgd import PGD
from surebound.bounds.beta_crown import Specification
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.planet_lp import leaf_multipliers
from surebound.bounds.root import LayerBounding, fold_network
from surebound.branching.alignment import alignment
from surebound.network.graph import Network
from surebound.network.linear import Linear
from surebound.problem import Box, Counterexample, Property, Region
from surebound.verify.clock import Clock
from surebound.verify.node_lp import NodeLP, Solved
from surebound.verify.options import Options
from surebound.verify.pipeline import verify
from surebound.verify.queue import Queue
from surebound.verify.search import Limits, search_neurons
from surebound.verify.spaces.neurons import NeuronSpace
from surebound.verify.spaces.programs import ProgramSpace, Standstill
from surebound.verify.strategy import Strategy
from surebound.verify.subject import Subject
from surebound.verify.tree import Leaf, Tree

Matrix = NDArray[np.float64]
Clause = tuple[int, ...]  # of literals: i + 1 is variable i, −(i + 1) its negation


def formula_network(variables: int, clauses: Sequence[Clause]) -> Network:
    """Two outputs over [0, 1]ⁿ: Σ max(0, 1 − Σ literals) and Σ min(x, 1 − x), by x − max(0, 2x − 1).

    Both are 0 at satisfying assignments, and only there.
    """
    build = Builder(np.random.default_rng(0), (variables,))
    weight, bias = np.zeros((len(clauses), variables)), np.ones(len(clauses))
    for k, clause in enumerate(clauses):
        for literal in clause:
            weight[k, abs(literal) - 1] = -1.0 if literal > 0 else 1.0
            bias[k] -= literal < 0
    identity = np.eye(variables)
    hidden = np.concatenate([weight, identity, 2 * identity])
    offsets = np.concatenate([bias, np.zeros(variables), -np.ones(variables)])
    out = np.zeros((2, len(offsets)))
    out[0, : len(clauses)] = 1.0
    out[1, len(clauses) : -variables], out[1, -variables:] = 1.0, -1.0
    node = build.relu(build.add(Linear(torch.from_numpy(hidden), torch.from_numpy(offsets)), 0))
    build.add(Linear(torch.from_numpy(out), torch.zeros(2, dtype=torch.float64)), node)
    return build.network()


def satisfiable(variables: int, clauses: Sequence[Clause]) -> bool:
    assignments = np.array(list(product([False, True], repeat=variables)))
    good = np.ones(len(assignments), dtype=bool)
    for clause in clauses:
        good &= np.any([assignments[:, abs(v) - 1] == (v > 0) for v in clause], axis=0)
    return bool(good.any())


def random_formula(rng: np.random.Generator, variables: int, clauses: int, length: int) -> list[Clause]:
    return [
        tuple(int(v + 1) * int(rng.choice([-1, 1])) for v in rng.choice(variables, size=length, replace=False))
        for _ in range(clauses)
    ]


def contradiction(rng: np.random.Generator, variables: int, clauses: int) -> list[Clause]:
    """The leaves of a random decision tree: not satisfiable, and without any of them it would be."""
    leaves: list[Clause] = [()]
    while len(leaves) < clauses:
        leaf = leaves.pop(int(rng.choice([i for i, leaf in enumerate(leaves) if len(leaf) < variables])))
        free = [v for v in range(1, variables + 1) if v not in map(abs, leaf)]
        v = int(rng.choice(free[: 1 + len(free) // 2]))
        leaves += [(*leaf, v), (*leaf, -v)]
    return leaves


def at_satisfying(variables: int) -> Region:
    box = Box(np.zeros(variables), np.ones(variables))
    return Region(box=box, on_output=np.eye(2), constant=np.zeros(2), strict=np.zeros(2, dtype=bool))


def make_subject(network: Network, box: Box, on_output: Matrix, constant: Matrix) -> Subject:
    """One region of all rows."""
    ends = (torch.from_numpy(end).reshape(1, *network.input_shape) for end in (box.lower, box.upper))
    form = fold_network(Enclosure(network, *ends), LayerBounding(ascent=None), lambda: None)
    assert isinstance(form, FoldedForm)
    on_input = np.zeros((len(on_output), network.inputs))
    rows = form.rows(*(torch.from_numpy(np.asarray(t, dtype=np.float64)) for t in (on_output, on_input, constant)))
    return Subject(network, form, Specification(rows, (0, len(rows)), form.start_error(rows)))


def programs(subject: Subject) -> Tree:
    """Without counterexamples: only proofs decide."""
    clock = Clock(60.0)
    return Tree(ProgramSpace(subject, clock), Queue(2**24, depth_first=True), clock, lambda points: None)


def decide(subject: Subject) -> Tree:
    tree = programs(subject)
    tree.grow(lambda tree: "undecided" if tree.undecided else None)
    assert not len(tree.queue) or tree.undecided
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_formulas_equal_all_assignments(seed: int) -> None:
    rng = np.random.default_rng(seed)
    variables = int(rng.integers(4, 9))
    if seed % 3:
        clauses = random_formula(rng, variables, clauses=int(rng.integers(3, 7) * variables), length=3)
    else:
        clauses = contradiction(rng, variables, clauses=3 * variables)
        clauses = clauses[1:] if seed % 2 else clauses
    expected = satisfiable(variables, clauses)
    network, part = formula_network(variables, clauses), at_satisfying(variables)
    search = decide(make_subject(network, part.box, part.on_output, part.constant))
    assert search.proved == (not expected)
    options = Options(timeout=60.0, quick_attack=PGD(steps=1, restarts=1))
    verdict = verify(model(network), Property((part,), variables, 2), options)
    assert verdict.status == ("sat" if expected else "unsat")


def test_both_kinds_of_formulas_are_tried() -> None:
    rng = np.random.default_rng(0)
    assert not satisfiable(6, contradiction(rng, 6, 18))
    assert satisfiable(6, contradiction(rng, 6, 18)[1:])


def test_a_tree_of_clauses_takes_about_its_size(rng: np.random.Generator) -> None:
    """Too many assignments to try, and bounds that tie: β-CROWN alone splits without end here."""
    clauses = contradiction(rng, 40, 60)
    network, part = formula_network(40, clauses), at_satisfying(40)
    search = decide(make_subject(network, part.box, part.on_output, part.constant))
    assert search.proved
    assert search.subproblems < 4 * len(clauses)
    verdict = verify(model(network), Property((part,), 40, 2), Options(timeout=120.0))
    assert (verdict.status, verdict.lower_bound) == ("unsat", None)
    assert verdict.seconds_by_phase["linear programs"] > 0


@pytest.mark.parametrize("maker", ["fc", "residual"])
@pytest.mark.parametrize("seed", range(3))
def test_proofs_equal_the_milp(maker: str, seed: int) -> None:
    """Deeper networks and those with skips: a row 1e-4 above its exact minimum is proved, and never one below."""
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (3, 6, 5, 2)) if maker == "fc" else random_residual(rng)
    lower, upper = random_box(rng, network, radius=1.0 if maker == "fc" else 0.3)
    box = Box(lower.flatten().numpy(), upper.flatten().numpy())
    row = rng.normal(size=network.outputs)
    least = milp_minimum(network, box, row, 0.0).value
    for offset, proved in ((1e-4, True), (-1e-4, False)):
        assert decide(make_subject(network, box, row[None], np.array([offset - least]))).proved == proved


def relaxation_minimum(subject: Subject, signs: NDArray[np.int8]) -> float | None:
    """min t over the relaxation, written out for scipy over [x₀, x, t]; None where nothing is feasible."""
    form, line, rows = subject.form, subject.relaxation, subject.specification.rows
    assert isinstance(form, FoldedForm)
    n, m = form.inputs, form.neurons
    a_ub, b_ub, a_eq, b_eq = [], [], [], []
    bounds = [*zip(form.box_lower.tolist(), form.box_upper.tolist(), strict=True)]
    bounds += [(0.0, 0.0 if s < 0 else None) for s in signs]
    for block, where in zip(form.blocks, form.layers, strict=True):
        for i, k in enumerate(range(where.start, where.stop)):
            xhat, x = np.zeros(n + m + 1), np.zeros(n + m + 1)
            xhat[: block.weight.shape[1]], x[n + k] = block.weight[i].numpy(), 1.0
            b, slope, intercept = float(block.bias[i]), float(line.upper_slope[k]), float(line.intercept[k])
            a_ub.append(xhat - x)
            b_ub.append(-b)
            if signs[k] == 0:
                a_ub.append(x - slope * xhat)
                b_ub.append(intercept + slope * b)
            elif signs[k] > 0:
                a_eq.append(x - xhat)
                b_eq.append(b)
    for c, d in zip(rows.coefficients.numpy(), rows.constant.tolist(), strict=True):
        a_ub.append(np.append(c, -1.0))
        b_ub.append(-d)
    cost = np.append(np.zeros(n + m), 1.0)
    given = (np.array(a_eq), np.array(b_eq)) if a_eq else (None, None)
    result = linprog(cost, np.array(a_ub), np.array(b_ub), *given, bounds=[*bounds, (None, None)])
    assert result.status in (0, 2)
    return float(result.fun) if result.status == 0 else None


@pytest.mark.parametrize("seed", range(4))
def test_a_node_lp_and_the_bound_at_its_multipliers(seed: int) -> None:
    """The optimum is scipy's, and π, α and β read off its multipliers give the same bound: the duality gap is 0."""
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (4, 8, 6, 3))
    lower, upper = random_box(rng, network, radius=1.0)
    box = Box(lower.flatten().numpy(), upper.flatten().numpy())
    subject = make_subject(network, box, rng.normal(size=(2, 3)), rng.normal(size=2) + 3.0)
    form = subject.form
    assert isinstance(form, FoldedForm)
    lp = NodeLP(subject, 0)
    empty = 0
    for _ in range(12):
        signs = rng.choice([-1, 0, 0, 1], size=form.neurons).astype(np.int8)
        answer, expected = lp.solve(signs, 10.0), relaxation_minimum(subject, signs)
        if expected is None or answer.relaxed is None:
            assert (expected, answer.relaxed) == (None, None)
            assert lp.proof(signs, answer) is not None
            empty += 1
            continue
        assert answer.relaxed.value == pytest.approx(expected, abs=1e-6)
        if expected > 1e-6:
            (y,) = answer.multipliers
            pi = -y[lp._rows]
            duals = subject.multipliers(*lp._duals(signs, y))
            bound = lp._sound_bound(signs, duals) * pi.max() / pi.sum()
            assert bound == pytest.approx(expected, abs=1e-6)
            assert lp.proof(signs, answer) is not None
    assert empty < 12


def test_wrong_multipliers_prove_nothing_wrong(rng: np.random.Generator) -> None:
    """Whatever the solver says, a subproblem that holds a point below 0 is never proved."""
    network = random_fc(rng, (3, 6, 5, 2))
    lower, upper = random_box(rng, network, radius=1.0)
    points = sample(rng, lower[0], upper[0], 200)
    row = rng.normal(size=2)
    values = network.forward(points).numpy() @ row
    worst = int(values.argmin())
    box = Box(lower.flatten().numpy(), upper.flatten().numpy())
    subject = make_subject(network, box, row[None], np.array([-values[worst]]))
    form = subject.form
    assert isinstance(form, FoldedForm)
    lp = NodeLP(subject, 0)
    layers = pre_activations(network, points[worst : worst + 1])
    at = np.concatenate([layer.flatten()[index].numpy() for layer, index in zip(layers, form.indices, strict=False)])
    heights = 3 * form.neurons + 1
    for _ in range(300):
        signs = np.where(rng.uniform(size=at.size) < 0.5, np.sign(at), 0).astype(np.int8)
        y = rng.normal(size=heights) * 10.0 ** rng.integers(-6, 6)
        assert lp.proof(signs, Solved(None, (y, -y, np.full(heights, np.nan), np.full(heights, np.inf)))) is None


def test_alignment_by_hand() -> None:
    """x̂ = (x₀, x₁, x₀ + x₁, 3 + x₂) over [−1, 1]³: the last is active. Splitting x̂₀ leaves half of x₀'s interval."""
    build = Builder(np.random.default_rng(0), (3,))
    weight = torch.tensor([[1.0, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.float64)
    hidden = build.relu(build.add(Linear(weight, torch.tensor([0.0, 0, 0, 3], dtype=torch.float64)), 0))
    build.add(Linear(torch.ones(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)), hidden)
    box = Box(-np.ones(3), np.ones(3))
    subject = make_subject(build.network(), box, np.ones((1, 1)), np.array([-10.0]))

    def scores(*signs: int) -> list[float]:
        given = torch.tensor(signs, dtype=torch.int8)
        return alignment(subject.form, subject.specification, subject.relaxation, 0, given).tolist()

    assert scores(0, 0, 0) == pytest.approx([1.5, 1.5, 2.0])
    # radii 1/2 and 1: the cosines with x₀ + x₁ are 1 : 2, and x̂₀ itself is no longer open
    assert scores(1, 0, 0) == pytest.approx([0.0, 1.8, 1.8])


def test_alignment_sees_what_rows_leave() -> None:
    """In a formula, a split neuron fixes its variable, and clauses that this satisfies do not count any more."""
    network, part = formula_network(3, [(1, 2), (-1, 3), (2, 3)]), at_satisfying(3)
    subject = make_subject(network, part.box, part.on_output, part.constant)
    form = subject.form
    assert isinstance(form, FoldedForm)
    doubled = [form.indices[0].tolist().index(6 + i) for i in range(3)]
    signs = torch.zeros(form.neurons, dtype=torch.int8)
    signs[doubled[0]] = 1  # x₀ = 1: (not x₀ or x₂) is 1 − x₂ ≥ 0 now, and (x₀ or x₁) holds
    score = alignment(form, subject.specification, subject.relaxation, 0, signs)[doubled].tolist()
    assert score == pytest.approx([0.0, 1.5, 1.5], abs=1e-6)


def test_standstill_by_hand() -> None:
    def seen(lowest: float, subproblems: int = 2) -> Standstill:
        stands = Standstill(500, 0.01, 1e-6)
        assert not stands.reached(subproblems, lowest)  # nothing to compare with
        return stands

    assert not seen(-1.0).reached(499, -1.0)  # too early to ask
    assert seen(-1.0).reached(500, -1.0)
    assert seen(-1.0).reached(500, -0.995)
    assert not seen(-1.0).reached(500, -0.9)
    assert not seen(-0.9, 700).reached(1399, -0.9)
    assert seen(-0.9, 700).reached(1400, -0.9)
    assert seen(0.0).reached(500, 0.0)
    assert seen(0.0).reached(500, 1e-8)


def test_a_counterexample_at_a_leaf_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the next leaf of the batch is not decided."""
    build = Builder(np.random.default_rng(0), (1,))
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    hidden = build.relu(build.add(Linear(one, zero), 0))
    build.add(Linear(one, zero), hidden)
    subject = make_subject(build.network(), Box(-np.ones(1), np.ones(1)), np.ones((1, 1)), np.array([-0.5]))
    known, calls = Counterexample(np.zeros(1), np.zeros(1)), []
    monkeypatch.setattr(NeuronSpace, "decide", lambda *_: Leaf(False, torch.zeros(1)))
    monkeypatch.setattr(NeuronSpace, "points", lambda *_: iter(()))

    def try_points(points: torch.Tensor) -> Counterexample | None:
        calls.append(points)
        return known if len(calls) == 1 else None

    outcome = search_neurons(subject, "upb", Strategy(), Clock(20.0), try_points, Limits())
    assert outcome.counterexample is known


@pytest.mark.parametrize("large", [1e12, 1e26, np.inf, np.nan])
def test_numbers_that_a_solver_is_not_made_for_decide_nothing(large: float) -> None:
    """HiGHS has crashed on offsets of 1e26, with the whole process."""
    answer = leaf_multipliers(
        preactivations=np.ones((1, 2)),
        offsets=np.array([large]),
        signs=np.ones(1),
        rows=np.ones((1, 2)),
        constants=np.ones(1),
        lower=-np.ones(2),
        upper=np.ones(2),
    )
    assert answer is None


def undecided() -> Tree:
    """A search over y = relu(x) ≤ ½ on [−1, 1], with counterexamples that are never replayed."""
    build = Builder(np.random.default_rng(0), (1,))
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    build.add(Linear(one, zero), build.relu(build.add(Linear(one, zero), 0)))
    subject = make_subject(build.network(), Box(-np.ones(1), np.ones(1)), np.ones((1, 1)), np.array([-0.5]))
    return programs(subject)


def test_an_undecided_leaf_is_no_proof() -> None:
    tree = undecided()
    assert tree.grow() is None
    assert tree.undecided == 2
    assert not tree.proved


def test_a_slice_of_time_is_no_proof(rng: np.random.Generator) -> None:
    variables = 6
    network, part = formula_network(variables, contradiction(rng, variables, 18)), at_satisfying(variables)
    tree = programs(make_subject(network, part.box, part.on_output, part.constant))
    assert not tree.proved
    assert tree.grow(lambda _: "turn") == "turn"
    assert len(tree.queue)
    assert not tree.proved
    assert tree.grow() is None
    assert tree.proved


@pytest.mark.parametrize("answer", [Solved(None), Solved(None, (np.full(4, np.nan),)), Solved(None, (np.zeros(4),))])
def test_a_solver_that_answers_nothing_proves_nothing(answer: Solved, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither without an answer nor with one that is empty: subproblems are split until leaves decide."""
    tree = undecided()
    monkeypatch.setattr(NodeLP, "solve", lambda *_: answer)
    tree.grow()
    assert not tree.proved


def test_a_threshold_at_the_optimum_is_no_proof() -> None:
    """y − x ≥ 0 for y = relu(x), with equality for x ≥ 0: whatever the solver takes for positive, no bound is."""
    build = Builder(np.random.default_rng(0), (1,))
    one, zero = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    hidden = build.relu(build.add(Linear(one, zero), 0))
    build.plus(hidden, 0, -1.0)
    network, box = build.network(), Box(-np.ones(1), np.ones(1))
    for constant, holds in ((1e-5, True), (1e-15, False), (0.0, False), (-1e-7, False)):
        subject = make_subject(network, box, np.ones((1, 1)), np.array([constant]))
        form = subject.form
        assert isinstance(form, FoldedForm)
        lp = NodeLP(subject, 0)
        for sign in (0, 1, -1):
            signs = np.full(form.neurons, sign, dtype=np.int8)
            relaxed = lp.solve(signs, 10.0).relaxed
            assert relaxed is not None
            multipliers = np.asarray(lp._solver.getSolution().row_dual)
            assert (lp.proof(signs, Solved(relaxed, (multipliers,))) is not None) == holds


@pytest.mark.parametrize("seed", range(3))
def test_every_region_is_proved_for_itself(seed: int) -> None:
    """Two regions of one row each, of which one has a counterexample that is never replayed."""
    rng = np.random.default_rng(seed)
    network = random_fc(rng, (3, 6, 5, 2))
    lower, upper = random_box(rng, network, radius=1.0)
    box, row = Box(lower.flatten().numpy(), upper.flatten().numpy()), rng.normal(size=2)
    least = milp_minimum(network, box, row, 0.0).value
    for shifts, holds in (((1e-2, 1e-2), True), ((1e-2, -1e-2), False), ((-1e-2, 1e-2), False)):
        both = make_subject(network, box, np.stack([row, row]), np.array(shifts) - least)
        apart = replace(both.specification, starts=(0, 1, 2))
        assert decide(replace(both, specification=apart)).proved == holds

"""Every sum of a proof, added up one by one, with thousands of tiny summands that float64 loses: bounds still hold.

Each network is built so that one error term alone keeps a bound from being too high, and the relaxation is exact
at a known point: the bound has to lie below the value there, computed in rational arithmetic.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
import torch
from exact import exact_output, exact_values
from one_by_one import U, add_one_by_one, losing, losing_network
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Splits
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import LayerBounding, fold_network
from surebound.load.vnnlib import to_property
from surebound.load.vnnlib1 import parse
from surebound.network.build import Builder
from surebound.network.graph import Input, Network, Node, Relu
from surebound.network.linear import Linear
from surebound.problem import Box, Region
from surebound.verify.subject import Subject, specify

FORMS = ("folded", "graph")
N = 1023
LARGE, SMALL = 2.0**664, 2.0**-1035


@pytest.fixture(autouse=True)
def _one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    add_one_by_one(monkeypatch)


@dataclass(frozen=True, eq=False)
class Case:
    """c · f(x) + d · x + e over a box, least at x."""

    network: Network
    low: list[float]
    high: list[float]
    c: Tensor
    x: list[float]
    d: Tensor | None = None
    e: float = 0.0

    def value(self) -> Fraction:
        """In rational arithmetic."""
        y, c = exact_output(self.network, self.x), self.c.tolist()
        d = [0.0] * len(self.x) if self.d is None else self.d.tolist()
        terms = [*zip(c, y, strict=True), *zip(d, self.x, strict=True)]
        return sum((Fraction(a) * Fraction(b) for a, b in terms), Fraction(self.e))


def make_form(key: str, network: Network, low: list[float], high: list[float]) -> Form:
    ends = (torch.tensor(end, dtype=torch.float64).reshape(1, *network.input_shape) for end in (low, high))
    enclosure = Enclosure(network, *ends)
    folded = fold_network(enclosure, LayerBounding(ascent=None), lambda: None)
    assert folded is not None
    return folded if key == "folded" else GraphForm.at(enclosure, network.output)


def make_subject(key: str, case: Case) -> Subject:
    form = make_form(key, case.network, case.low, case.high)
    region = Region(
        box=Box(np.array(case.low), np.array(case.high)),
        on_output=case.c.numpy()[None],
        on_input=None if case.d is None else case.d.numpy()[None],
        constant=np.array([case.e]),
        strict=np.zeros(1, dtype=bool),
    )
    return Subject(case.network, form, specify(form, [region]))


def claimed(key: str, case: Case) -> float:
    """The bound with every lower line the identity."""
    subject = make_subject(key, case)
    alpha = torch.ones(1, subject.form.neurons)
    return float(subject.sound_bounds(Splits(torch.tensor([0]), None), Duals(alpha, None, None)))


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, dtype=torch.float64)


def fanned(build: Builder, x: int) -> int:
    """x, N + 1 = 32² times, in two steps: no operation has a sum of more than 32 terms."""
    once = build.reshape(build.linear(x, ones(32, 1)), (32, 1))
    return build.reshape(build.linear(once, ones(32, 1)), (N + 1,))


def gathered(build: Builder, x: int) -> int:
    """The sum of N + 1 elements, in two steps."""
    rows = build.linear(build.reshape(x, (32, 32)), ones(1, 32))
    return build.linear(build.reshape(rows, (32,)), ones(1, 32))


def through_copies() -> Case:
    """−x − u x − u x − …, through one matrix product there and one back."""
    build = Builder((1,))
    network = build.build(build.linear(build.linear(0, ones(N + 1, 1)), -losing(N)[None]))
    return Case(network, [1.0], [1.5], ones(1), [1.5])


def through_readers() -> Case:
    """The same with a reader of x for each term, the large one last among them, so that it is the first on the way
    back; added up in pairs."""
    build = Builder((1,))
    terms = [build.linear(0, [[-U]]) for _ in range(255)] + [build.linear(0, [[-1.0]])]
    while len(terms) > 1:
        terms = [build.sum(a, b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return Case(build.build(terms[0]), [1.0], [1.5], ones(1), [1.5])


def beside_its_own() -> Case:
    """The large coefficient is the row's own, on an input that one node reads again and again."""
    build = Builder((1,))
    network = build.build(build.linear(build.concat([0] * N, 0), torch.full((1, N), -U)))
    return Case(network, [1.0], [1.5], ones(1), [1.5], d=-ones(1))


def past_a_relu() -> Case:
    """v = x is read by a ReLU, which is active, and then by 255 others."""
    build = Builder((1,))
    v = build.linear(0, [[1.0]])
    terms = [build.linear(v, [[-U]]) for _ in range(255)] + [build.negate(build.relu(v))]
    while len(terms) > 1:
        terms = [build.sum(a, b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
    return Case(build.build(terms[0]), [1.0], [1.5], ones(1), [1.5])


def in_a_bias() -> Case:
    """x − 1 − u − u − …: a bias for each of N + 1 elements, which are then added up in two steps."""
    build = Builder((1,))
    weight = torch.zeros(N + 1, 1, dtype=torch.float64)
    weight[0] = 2.0**-30
    return Case(build.build(gathered(build, build.linear(0, weight, -losing(N)))), [0.0], [1.0], ones(1), [0.0])


def in_many_biases() -> Case:
    """One operation after the other adds −u, and the last one −1."""
    build = Builder((1,))
    node = 0
    for _ in range(300):
        node = build.linear(node, [[1.0]], [-U])
    return Case(build.build(build.linear(node, [[1.0]], [-1.0])), [0.0], [2.0**-40], ones(1), [0.0])


def over_inputs() -> Case:
    """−x₀ − u x₁ − u x₂ − …: only the minimum over the box adds up."""
    network = Builder((N + 1,)).build(0)
    return Case(network, [0.5] * (N + 1), [1.0] * (N + 1), -losing(N), [1.0] * (N + 1))


def over_fixed_inputs() -> Case:
    """The same where every input is fixed."""
    network = Builder((N + 1,)).build(0)
    return Case(network, [1.0] * (N + 1), [1.0] * (N + 1), -losing(N), [1.0] * (N + 1))


def in_intercepts() -> Case:
    """−relu(x) − ½u relu(x) − … over [−1, 1]: half of each is the intercept of its upper line ½ x + ½."""
    build = Builder((1,))
    network = build.build(build.relu(fanned(build, 0)))
    return Case(network, [-1.0], [1.0], -losing(N, U / 2), [1.0])


def between_neurons() -> Case:
    """relu(x̂) + u relu(x̂) + … with x̂ = x − 1 over [−1, 1⅛] and the lower line x̂, far below the ReLU at −1.

    Their coefficients on x and their constants are added up from 1,024 neurons, each.
    """
    build = Builder((1,))
    network = build.build(build.relu(fanned(build, build.shift(0, [-1.0]))))
    return Case(network, [-1.0], [1.125], losing(N), [-1.0])


CASES: dict[str, Callable[[], Case]] = {
    make.__name__: make
    for make in (
        through_copies,
        through_readers,
        beside_its_own,
        past_a_relu,
        in_a_bias,
        in_many_biases,
        over_inputs,
        over_fixed_inputs,
        in_intercepts,
    )
}


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("name", CASES)
def test_a_bound_holds_where_it_is_tight(name: str, key: str) -> None:
    case = CASES[name]()
    value, bound = case.value(), Fraction(claimed(key, case))
    assert bound <= value
    assert value - bound < 10 * N * Fraction(U) * 2


@pytest.mark.parametrize("key", FORMS)
def test_lines_of_many_neurons_are_added_up(key: str) -> None:
    """The lower line of every neuron is x̂ itself, below its ReLU: the bound is the least value of Σ c x̂."""
    case = between_neurons()
    before = exact_values(case.network, case.x)[case.network.before(0)]
    value = sum(Fraction(c) * x for c, x in zip(case.c.tolist(), before, strict=True))
    bound = Fraction(claimed(key, case))
    assert bound <= value
    assert value - bound < 10 * N * Fraction(U) * 2


@pytest.mark.parametrize("key", FORMS)
def test_the_error_of_folding_reaches_the_bound(key: str) -> None:
    """z = relu(1 − x − u x − …) is ambiguous: its row was folded with a coefficient that lost N u, and any bound that
    uses it pays for that. On x ≤ 1 / (1 + N u) the lower line z ≥ x̂ is exact."""
    build = Builder((1,))
    active = build.relu(build.linear(0, ones(N + 1, 1)))
    network = build.build(build.relu(build.linear(active, -losing(N)[None], [1.0])))
    case = Case(network, [0.5], [1.0], ones(1), [1.0])
    line = 1 - (1 + N * Fraction(U))
    bound = Fraction(claimed(key, case))
    assert bound <= line
    assert line - bound < 10 * N * Fraction(U) * 2


@pytest.mark.parametrize("width", [0.0, 2.0**-52, 0.9e-12])
@pytest.mark.parametrize("key", FORMS)
def test_a_narrow_input_is_not_fixed_for_free(key: str, width: float) -> None:
    """±x over [1, 1 + width]."""
    build = Builder((1,))
    network = build.build(build.linear(0, [[1.0]]))
    for sign in (1.0, -1.0):
        case = Case(network, [1.0], [1.0 + width], sign * ones(1), [1.0 if sign > 0 else 1.0 + width])
        value, bound = case.value(), Fraction(claimed(key, case))
        assert bound <= value
        assert value - bound < Fraction(2e-12)


@pytest.mark.parametrize("key", FORMS)
def test_decimals_are_those_of_the_file(key: str) -> None:
    """y = x: 0.1 y − 0.100000000000000001 x ≤ −5e-19 at x = 1, but float64 holds the same 0.1 twice."""
    text = (
        "(declare-const X_0 Real)(declare-const Y_0 Real)(assert (>= X_0 1))(assert (<= X_0 2))"
        "(assert (<= (- (* 0.1 Y_0) (* 0.100000000000000001 X_0)) -5e-19))"
    )
    (region,) = to_property(parse(text), source="text").regions
    assert region.on_output.item() == 0.1 == -region.on_input.item()
    network = Builder((1,)).build(0)
    form = make_form(key, network, [1.0], [2.0])
    subject = Subject(network, form, specify(form, [region]))
    alpha = torch.zeros(1, 0)
    assert float(subject.sound_bounds(Splits(torch.tensor([0]), None), Duals(alpha, None, None))) <= -5e-19


@pytest.mark.parametrize("leaf", [False, True])
@pytest.mark.parametrize("part", ["coefficients", "constants"])
@pytest.mark.parametrize("key", FORMS)
def test_mixing_rows_adds_up(key: str, part: str, leaf: bool) -> None:
    """1,024 rows of one region with equal weights: −x, −u x, −u x, … or −1, −u, −u, …"""
    network = Builder((1,)).build(0)
    form = make_form(key, network, [0.5], [1.0])
    rows, zero = -losing(N).numpy(), np.zeros(N + 1)
    coefficients, constants = (rows, zero) if part == "coefficients" else (zero, rows)
    region = Region(
        box=Box(np.array([0.5]), np.array([1.0])),
        on_output=coefficients[:, None],
        constant=constants,
        strict=np.zeros(N + 1, dtype=bool),
    )
    subject = Subject(network, form, specify(form, [region]))
    none, weights = torch.zeros(0, dtype=torch.float64), ones(N + 1)
    if leaf:
        duals = {"mix": weights[None], "alpha": none[None], "beta": none[None]}
        bound = subject.sound_leaf_bound(0, torch.zeros(0, dtype=torch.int8), duals)
    else:
        duals = Duals(none[None], None, weights[None])
        bound = float(subject.sound_bounds(Splits(torch.tensor([0]), None), duals))
    value = -(1 + N * Fraction(U))
    assert Fraction(bound) <= value
    assert value - Fraction(bound) < 10 * N * Fraction(U)


@pytest.mark.parametrize("key", FORMS)
def test_a_bound_holds_for_negative_inputs(key: str) -> None:
    """The same as `through_copies` and `over_inputs` over [−1, 0], where magnitudes are those of lower ends."""
    build = Builder((1,))
    copies = build.build(build.linear(build.linear(0, ones(N + 1, 1)), losing(N)[None]))
    many = Builder((N + 1,)).build(0)
    for case in (
        Case(copies, [-1.0], [0.0], ones(1), [-1.0]),
        Case(many, [-1.0] * (N + 1), [0.0] * (N + 1), losing(N), [-1.0] * (N + 1)),
    ):
        assert Fraction(claimed(key, case)) <= case.value()


@pytest.mark.parametrize("key", FORMS)
def test_an_operation_reads_inputs_of_many_readers(key: str) -> None:
    """x is read 255 times and y once: a sum of −x and y pays for what is added to x's coefficient afterwards."""
    build = Builder((2,))
    x, y = (build.reshape(build.pick(0, np.array([i])), (1,)) for i in range(2))
    terms = [build.linear(x, [[-U]]) for _ in range(255)] + [build.sum(x, y, signs=(-1, 1))]
    while len(terms) > 1:
        terms = [build.sum(a, b) for a, b in zip(terms[::2], terms[1::2], strict=True)]
    case = Case(build.build(terms[0]), [1.0, 0.0], [1.5, 0.0], ones(1), [1.5, 0.0])
    assert Fraction(claimed(key, case)) <= case.value()


@pytest.mark.parametrize("key", FORMS)
def test_errors_do_not_cancel(key: str) -> None:
    """−x − u x − … − u x + x: the coefficients on copies of x have either sign, and so would their errors."""
    build = Builder((1,))
    weight = torch.cat([-losing(N - 1), ones(1)])
    network = build.build(gathered(build, build.scale(build.linear(0, ones(N + 1, 1)), weight)))
    case = Case(network, [1.0], [1.5], ones(1), [1.5])
    assert Fraction(claimed(key, case)) <= case.value()


def test_coefficients_of_later_layers_are_added_to() -> None:
    """A row's own coefficient on x is 1, and 1,024 neurons, each of which reads x, add u to it."""
    build = Builder((1,))
    network = build.build(build.relu(fanned(build, build.shift(0, [-0.875]))))
    case = Case(network, [-1.0], [1.0], torch.full((N + 1,), U, dtype=torch.float64), [-1.0], d=ones(1))
    before = exact_values(case.network, case.x)[case.network.before(0)]
    value = sum(Fraction(c) * x for c, x in zip(case.c.tolist(), before, strict=True)) - 1
    subject = make_subject("folded", case)
    form = subject.form
    loose = torch.zeros(1, form.neurons, dtype=torch.float64)

    def one_at_a_time(self: Tensor, mat1: Tensor, mat2: Tensor) -> Tensor:
        for k in range(mat1.shape[1]):
            self += mat1[:, k, None] * mat2[k]
        return self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "addmm_", one_at_a_time)  # products may come on top of a coefficient singly
        duals = Duals(loose + 1.0, None, None)
        assert Fraction(float(subject.sound_bounds(Splits(torch.tensor([0]), None), duals))) <= value


def test_a_neuron_barely_ambiguous_is_not_active() -> None:
    """y = relu(x) is 0 at x = −1e-10, whether or not x may be positive: ± (x − y) is ∓1e-10 there."""
    network = (build := Builder((1,))).build(build.relu(0))
    for high in (0.0, 1.0):
        for sign in (1.0, -1.0):
            case = Case(network, [-1e-10], [high], -sign * ones(1), [-1e-10], d=sign * ones(1))
            assert Fraction(claimed("folded", case)) <= case.value()
        form = make_form("folded", network, [-1e-10], [high])
        assert form.neurons == int(high)
        assert not form.blocks[0].active.any()


def test_both_signs_carry_their_error() -> None:
    """Rows and their negatives are off by as much."""
    form = make_form("folded", through_copies().network, [1.0], [1.5])
    both = form.rows(ones(1, 1), torch.zeros(1, 1, dtype=torch.float64), ones(1)).both_signs()
    assert both.error[0] == both.error[1] > N * U
    assert both.constant.tolist() == [1.0, -1.0]
    assert torch.equal(both.coefficients[0], -both.coefficients[1])


def test_folded_layers_contain_their_values() -> None:
    """Bounds on ± (x + N u x − 1), whose rows were folded with a coefficient that lost N u, for x from 1 on."""
    network, high = losing_network(N), 1.0 + 2.0**-30
    enclosure = Enclosure(network, ones(1, 1), torch.full((1, 1), high, dtype=torch.float64))
    fold_network(enclosure, LayerBounding(), lambda: None)
    for end in (1.0, high):
        for value, low, up in zip(
            exact_values(network, [end])[network.before(1)], *(t[0].tolist() for t in enclosure.layer(1)), strict=True
        ):
            assert Fraction(low) <= value <= Fraction(up)


@pytest.mark.parametrize("key", FORMS)
def test_an_underflow_in_a_pass_is_paid_for(key: str) -> None:
    """1e-162 (2e-162 x) for x down to −1e99 is as low as −2e-225, but its coefficient on x is 0 in float64."""
    build = Builder((1,))
    network = build.build(build.linear(0, [[2e-162]]))
    case = Case(network, [-1e99], [1e99], 1e-162 * ones(1), [-1e99])
    assert Fraction(claimed(key, case)) <= case.value() < 0


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("seed", range(8))
def test_an_underflow_in_folding_is_paid_for(seed: int, key: str) -> None:
    """y = −1e114 relu(1e-320 x) for x up to 1e38, by weights that float32 holds: the folded row has few bits left."""
    rng = np.random.default_rng(seed)
    build, node = Builder((1,)), 0
    for _ in range(8):
        node = build.linear(node, [[float(np.float32(10.0 ** -rng.uniform(39.7, 40.3)))]])
    node = build.relu(node)
    for _ in range(3):
        node = build.linear(node, [[float(np.float32(1e38))]])
    case = Case(build.build(build.negate(node)), [-1e38], [1e38], ones(1), [1e38])
    assert Fraction(claimed(key, case)) <= case.value()


def tiny_copies() -> Case:
    """−x − u x − …, the coefficients a row's own on as many copies of the input."""
    build = Builder((1,))
    return Case(build.build(build.concat([0] * (N + 1), 0)), [SMALL / 2], [SMALL], -LARGE * losing(N), [SMALL])


def tiny_relus() -> Case:
    """The same, by 128 active ReLUs that read the input, the last of them first; each is multiplied by 2¹⁰⁰."""
    build = Builder((1,))
    copies = [build.linear(build.add(Relu((1,)), 0), [[2.0**100]]) for _ in range(128)]
    c = -LARGE * 2.0**-100 * losing(127).flip(0)
    return Case(build.build(build.concat(copies, 0)), [SMALL / 2], [SMALL], c, [SMALL])


def tiny_own() -> Case:
    """−x from the row's own coefficient on the input, and −u x − … through copies, each multiplied by 2⁶⁰."""
    build = Builder((1,))
    network = build.build(build.concat([build.linear(0, [[2.0**60]]) for _ in range(N)], 0))
    return Case(network, [SMALL / 2], [SMALL], -LARGE * 2.0**-60 * losing(N)[1:], [SMALL], d=-LARGE * ones(1))


def tiny_biases() -> Case:
    """−b − u b − …, over constants."""
    build = Builder((1,))
    network = build.build(build.constant(torch.full((N + 1,), SMALL, dtype=torch.float64)))
    return Case(network, [1.0], [2.0], -LARGE * losing(N), [1.0])


def tiny_fixed() -> Case:
    """−x₀ − u x₁ − …, over inputs that are fixed."""
    build = Builder((N + 1,))
    low = [SMALL] * (N + 1)
    return Case(build.build(0), low, low, -LARGE * losing(N), low)


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("make", [tiny_copies, tiny_relus, tiny_own, tiny_biases, tiny_fixed])
def test_an_error_that_underflows_meets_large_coefficients(make: Callable[[], Case], key: str) -> None:
    """γ times 2⁻¹⁰³⁵ is 0 in float64, but a coefficient of 2⁶⁶⁴ makes 1e-126 of what it stands for."""
    case = make()
    assert Fraction(claimed(key, case)) <= case.value() < 0


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("weight", [np.nan, np.inf, 1e60])
def test_what_is_not_finite_bounds_nothing(weight: float, key: str) -> None:
    """y = 1e-100 w² x, with a weight that is no number or numbers beyond 1e100 on the way."""
    nodes = [Node(Input((1,)), (), "x")]
    for factor in (1.0, weight, weight, 1e-100):
        nodes.append(Node(Linear(torch.full((1, 1), factor, dtype=torch.float64)), (len(nodes) - 1,), "product"))
    case = Case(Network(tuple(nodes), 4), [-1.0], [1.0], ones(1), [1.0])
    assert claimed(key, case) == -np.inf

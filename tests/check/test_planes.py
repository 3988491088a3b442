"""Planes above ReLUs: what they show, what makes them invalid, and that their heights hold.

By hand: z = relu(x₀ + x₁) over [−1, 1]² is at most x₀ + 1, so that x₀ − z + 1.05 is above 0; the triangle's line does
not show it. And the same one layer later, over z₀ = relu(x₀) and z₁ = relu(x₁): relu(z₀ + z₁ − 1) ≤ z₀.
"""

import io
import json
from collections import Counter
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzz import Target
from graphs import Graph, rational, values
from prover import Chain, Layer, Problem, Proof, Region, start, write

from surebound.check import Result, check
from surebound.check.arithmetic import Arithmetic
from surebound.check.bounds import Enclosure, Planes, Way
from surebound.check.file import Proof as Opened
from surebound.check.network import read_network
from surebound.check.steps import Steps
from surebound.check.vnnlib import read_property

FLOAT, EXACT = Arithmetic(), Arithmetic(exact=True)
UNIT = 2.0**-53
INT = np.int32


def shallow(slack: float = 0.05, wide: float = 1.0) -> Problem:
    chain = Chain([Layer(np.ones((1, 2)), np.zeros(1)), Layer(-np.ones((1, 1)), np.zeros(1))])
    row = (np.ones(1), np.array([1.0, 0.0]), 1.0 + slack)
    return Problem(chain, [Region(np.full(2, -wide), np.full(2, wide), [row])])


def deep(slack: float = 0.05) -> Problem:
    layers = [
        Layer(np.eye(2), np.zeros(2)),
        Layer(np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([-1.0, 0.0])),
        Layer(np.array([[-1.0, 1.0]]), np.zeros(1)),
    ]
    return Problem(Chain(layers), [Region(-np.ones(2), np.ones(2), [(np.ones(1), np.zeros(2), slack)])])


def planed(problem: Problem, layer: int = 0) -> Proof:
    """One leaf, and a plane above neuron 0 of a layer, with κ = 1 and κ' = 0."""
    proof = start(problem)
    weight = np.zeros((1, 2 if layer == 0 else 4), np.float32)
    weight[0, 0 if layer == 0 else 2] = 1
    arrays = {
        f"p{layer}/neuron": np.zeros(1, INT),
        f"p{layer}/kappa": np.array([[1.0], [0.0]], np.float32),
        f"p{layer}/weight": weight,
        "c0/planes": np.zeros((1, 0), np.uint8),
    }
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "crown"}, arrays)
    return proof


def result(folder: Path, proof: Proof, of: Problem, **options: Any) -> Result:
    return check(*write(folder, of, proof), **options)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("make", "layer"), [(shallow, 0), (deep, 1)])
def test_planes_show_what_lines_do_not(tmp_path: Path, make: Callable[[], Problem], layer: int, exact: bool) -> None:
    problem = make()
    proof = planed(problem, layer)
    found = result(tmp_path, proof, problem, exact=exact)
    assert (found.valid, found.reason) == (True, "")
    assert found.slack == pytest.approx(0.05)
    del proof.arrays["s0/c0/planes"]  # which says that its leaves use them
    assert "leaf 0 has the bound -" in result(tmp_path, proof, problem, exact=exact).reason


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(("make", "layer"), [(shallow, 0), (deep, 1)])
def test_planes_are_no_lower_than_the_neuron(tmp_path: Path, make: Any, layer: int, exact: bool) -> None:
    """Slack 0 and less: a point has it, and the bound is not above 0."""
    for slack in (0.0, -1e-3):
        problem = make(slack)
        assert "leaf 0 has the bound" in result(tmp_path, planed(problem, layer), problem, exact=exact).reason


def test_a_plane_is_as_high_as_its_box_makes_it(tmp_path: Path) -> None:
    """x₀ + 1 is above z over [−1, 1]², and below it somewhere over [−2, 2]²."""
    problem = shallow(wide=2.0)
    assert "leaf 0 has the bound -" in result(tmp_path, planed(problem), problem).reason


def _put(name: str, value: Any, kind: Any = np.float32) -> Callable[[Proof], Any]:
    return lambda proof: proof.arrays.__setitem__(f"s0/p0/{name}", np.asarray(value, kind))


def _again(proof: Proof) -> None:
    """The same plane twice."""
    arrays = proof.arrays
    arrays |= {
        f"s0/p0/{n}": np.repeat(arrays[f"s0/p0/{n}"], 2, a) for n, a in (("neuron", 0), ("kappa", 1), ("weight", 0))
    }


CHANGES: dict[str, tuple[Callable[[Proof], Any], str]] = {
    "κ above 1": (_put("kappa", [[1 + 1e-6], [0.0]]), "numbers of 'p0/kappa'"),
    "κ below 0": (_put("kappa", [[1.0], [-1e-9]]), "numbers of 'p0/kappa'"),
    "a κ that is NaN": (_put("kappa", [[np.nan], [0.0]]), "numbers of 'p0/kappa'"),
    "one κ": (_put("kappa", [[1.0]]), "expected float32 or float64 of [2, 1]"),
    "κ in bytes": (_put("kappa", [[1], [0]], np.uint8), "expected float32 or float64"),
    "no κ": (lambda proof: proof.arrays.pop("s0/p0/kappa"), "no array 's0/p0/kappa'"),
    "κ of another plane": (_put("kappa", [[0.0], [1.0]]), "has the bound -"),
    "a neuron that is not there": (_put("neuron", [1], INT), "numbers of 'p0/neuron'"),
    "a neuron below 0": (_put("neuron", [-1], INT), "numbers of 'p0/neuron'"),
    "a neuron twice": (_again, "two planes"),
    "no neurons": (_put("neuron", [], INT), "none has one"),
    "neurons that are no numbers": (_put("neuron", [0.0], np.float32), "expected int32"),
    "weights of fewer inputs": (_put("weight", [[1.0]]), "expected float32 or float64 of [1, 2]"),
    "weights of what comes later": (_put("weight", [[1.0, 0.0, 0.0]]), "expected float32 or float64 of [1, 2]"),
    "weights that are turned": (_put("weight", [[1.0], [0.0]]), "expected float32 or float64 of [1, 2]"),
    "no weights": (lambda proof: proof.arrays.pop("s0/p0/weight"), "no array 's0/p0/weight'"),
    "a weight that is NaN": (_put("weight", [[np.nan, 0.0]]), "numbers of 'p0/weight'"),
    "a weight without end": (_put("weight", [[np.inf, 0.0]]), "numbers of 'p0/weight'"),
    "a huge weight": (_put("weight", [[1e61, 0.0]], float), "numbers of 'p0/weight'"),
    "another weight": (_put("weight", [[0.0, 1.0]]), "has the bound -"),
    "a lower plane": (_put("weight", [[0.5, 0.0]]), "has the bound -"),
    "a steeper plane": (_put("weight", [[1.5, 0.0]]), "has the bound -"),
    "a plane above a neuron of no layer": (
        lambda proof: proof.arrays.update(
            {n.replace("p0", "p1"): proof.arrays.pop(n) for n in [*proof.arrays] if "p0" in n}
        ),
        "has the bound -",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_planes(tmp_path: Path, name: str) -> None:
    problem = shallow()
    proof = planed(problem)
    change, words = CHANGES[name]
    change(proof)
    found = result(tmp_path, proof, problem)
    assert not found.valid
    assert words in found.reason


def test_no_planes_show_what_is_false(tmp_path: Path) -> None:
    """Any weights and κ, for a property that x₀ = x₁ = 1 violates by a hair."""
    rng, problem = np.random.default_rng(1), shallow(slack=-1e-6)
    target = Target(problem, tmp_path, Counter())
    for _ in range(300):
        proof = planed(problem)
        proof.arrays["s0/p0/weight"] = rng.choice([0, 0.5, 1, 1 - 1e-7, 1 + 1e-7, rng.normal()], size=(1, 2))
        proof.arrays["s0/p0/kappa"] = rng.choice([0.0, 1.0, 0.5, rng.uniform()], size=(2, 1))
        assert "has the bound" in target.offer(proof)


def test_planes_of_claims_are_not_read(tmp_path: Path) -> None:
    """A layer's bounds are shown by lines, whatever else is in the step."""
    problem = shallow()
    proof = start(problem)
    claim = {"neuron": np.zeros(1, INT), "side": np.ones(1, np.int8), "bound": np.array([-1.5])}
    planes = {name[len("s0/") :]: value for name, value in planed(problem).arrays.items()}
    proof.step({"kind": "layer", "box": 0, "layer": 0, "lines": "crown"}, {**claim, **planes})
    assert "neurons [0] of layer 0 are not shown" in result(tmp_path, proof, problem).reason


# ---- heights


def enclosed(content: bytes, low: Any, high: Any, arithmetic: Arithmetic = FLOAT) -> Enclosure:
    low, high = np.asarray(low, dtype=float), np.asarray(high, dtype=float)
    enclosure = Enclosure(read_network(content, low.size, arithmetic), low[None], high[None])
    enclosure.extend(len(enclosure.network.layers))
    return enclosure


def drawn(rng: np.random.Generator, enclosure: Enclosure, layer: int) -> tuple[np.ndarray, dict[int, np.ndarray], Any]:
    """Some neurons of a layer, weights and κ."""
    net = enclosure.network
    neuron = rng.permutation(net.widths[layer])[: max(1, net.widths[layer] - 1)]
    weight = {v: np.float32(rng.normal(size=(len(neuron), net.sizes[v]))) for v in (0, *net.layers[:layer])}
    kappa = rng.choice([0.0, 1.0, 0.3, rng.uniform()], size=(2, len(neuron)))
    return neuron, {v: w.astype(float) for v, w in weight.items()}, kappa


@pytest.mark.parametrize("seed", range(6))
def test_heights_hold_and_are_not_below_exact_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    chain = Chain.random(rng, [3, 4, 3, 2])
    low = np.float32(rng.normal(size=3)).astype(float)
    high = low + np.float32(rng.uniform(0.1, 1.5, size=3))
    rounded, exact = (enclosed(chain.onnx(), low, high, a) for a in (FLOAT, EXACT))
    exact.layers = [(rational(a), rational(b)) for a, b in rounded.layers]
    net = exact.network
    points = [rational([rng.choice([a, b, (a + b) / 2]) for a, b in zip(low, high, strict=True)]) for _ in range(30)]
    for layer in (0, 1):
        neuron, weight, kappa = drawn(rng, rounded, layer)
        height = rounded.heights(layer, neuron, weight, kappa)
        same = {v: rational(w) for v, w in weight.items()}
        least = exact.heights(layer, neuron, same, rational(kappa))
        assert all(Fraction(a) >= b and float(Fraction(a) - b) < 1e-9 for a, b in zip(height, least, strict=True))
        for x in points:
            at = values(net, x)
            for j, n in enumerate(neuron.tolist()):
                plane = sum((w[j] @ at[v][0] for v, w in same.items()), Fraction(0)) + least[j]
                assert plane >= at[net.layers[layer]][0][n]


def test_the_lowest_planes_of_a_hull_touch_the_neuron() -> None:
    """g = t ⊙ w with t in {0, 1}, κ = 1 and κ' = 0, over a box that no bound on x̂ cuts: a corner is on the plane."""
    chain = Chain([Layer(np.array([[1.0, -2.0, 0.5]]), np.array([0.25])), Layer(np.ones((1, 1)), np.zeros(1))])
    enclosure = enclosed(chain.onnx(), -np.ones(3), np.ones(3), EXACT)
    for t in np.ndindex(2, 2, 2):
        weight = np.array(t) * chain.layers[0].weight
        height = enclosure.heights(0, np.zeros(1, int), {0: rational(weight)}, rational([[1.0], [0.0]]))[0]
        gaps = [
            height
            + Fraction(float(weight[0] @ x))
            - max(Fraction(float(chain.layers[0].weight[0] @ x + 0.25)), Fraction(0))
            for x in (2.0 * np.array(corner) - 1 for corner in np.ndindex(2, 2, 2))
        ]
        assert min(gaps) == 0


def test_a_relu_of_what_a_plane_reads() -> None:
    """relu(x) ≤ x / 2 + 1 / 2 over [−1, 1], with x̂ itself among the columns."""
    graph = Graph((1, 1))
    graph.add("Mul", graph.add("Relu", "x"), np.float32(1))
    for arithmetic in (FLOAT, EXACT):
        enclosure = enclosed(graph.bytes(), [-1.0], [1.0], arithmetic)
        half = arithmetic.array([[0.5]])
        height = enclosure.heights(0, np.zeros(1, int), {0: half}, arithmetic.array([[0.5], [0.5]]))
        assert float(height[0]) == pytest.approx(0.5, abs=1e-12)


# ---- passes with planes


def one(enclosure: Enclosure, planes: Planes, *, sign: int = 0, beta: float = 0.0, lam: float = -1.0) -> float:
    """A lower bound of λ relu(x̂) for the only neuron."""
    ar = enclosure.arithmetic
    way = Way("crown", sign=np.array([[sign]], np.int8), beta=ar.array([[beta]]), planes={0: planes})
    zero = ar.array(np.zeros(1))
    return float(enclosure.backward({enclosure.network.layers[0]: ar.array([[lam]])}, zero, zero, way)[0])


def test_planes_stand_in_for_upper_lines_of_open_neurons_alone() -> None:
    """relu(x₀ + x₁) over [−1, 1]² with the plane x₀ + 1; and with an absurd one, which a sign makes useless."""
    graph = Graph((1, 2))
    graph.add("Relu", graph.add("MatMul", "x", np.ones((2, 1))))
    for arithmetic in (FLOAT, EXACT):
        enclosure, array = enclosed(graph.bytes(), -np.ones(2), np.ones(2), arithmetic), arithmetic.array
        plane = Planes(np.zeros(1, int), {0: array([[1.0, 0.0]])}, array([1.0]), array([0.0]))
        low = plane._replace(height=array([-100.0]))
        flat = plane._replace(weight={0: array([[0.0, 0.0]])}, height=array([2.0]))
        assert one(enclosure, plane) == pytest.approx(-2.0)  # −x₀ − 1
        assert one(enclosure, flat) == pytest.approx(-2.0)
        assert one(enclosure, low) == pytest.approx(99.0)
        assert one(enclosure, low) <= 99
        assert one(enclosure, low, lam=1.0) == pytest.approx(0.0)
        assert one(enclosure, low, sign=1) == pytest.approx(-2.0)
        assert one(enclosure, low, sign=-1) == pytest.approx(0.0)
        assert one(enclosure, low, sign=-1, beta=0.5) == pytest.approx(-1.0)
        assert one(enclosure, plane._replace(error=array([0.25]))) == pytest.approx(-2.25, abs=0.01)


def test_what_adding_up_planes_costs() -> None:
    """γ of as many terms as a layer has planes, times |g| M; and a little, where that underflows."""
    chain = Chain(
        [Layer(np.ones((3, 2)), np.zeros(3)), Layer(np.ones((3, 3)), np.zeros(3)), Layer(np.ones((1, 3)), np.zeros(1))]
    )
    weight = np.array([[1.0, -2.0, 0.5, 0.0, 4.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    for wide in (3.0, 0.0):
        problem = Problem(chain, [Region(np.full(2, -wide), np.full(2, wide), [(np.ones(1), np.zeros(2), 1.0)])])
        proof = start(problem)
        arrays = {"p1/neuron": np.array([0, 2], INT), "p1/kappa": np.zeros((2, 2)), "p1/weight": weight}
        proof.step({"kind": "region", "box": 0, "region": 0, "lines": "crown"}, arrays)
        found = steps_of(problem, proof)
        enclosure = enclosed(chain.onnx(), np.full(2, -wide), np.full(2, wide))
        (planes,) = found.planes(enclosure).values()
        size = 3 * wide + (0.5 + 4) * 2 * wide
        np.testing.assert_allclose(planes.error, [2 * UNIT * size + 1e-150, 1e-150], rtol=1e-9)
        assert [part.shape for part in planes.weight.values()] == [(2, 2), (2, 3)]
        assert list(planes.weight) == [0, enclosure.network.layers[0]]


def steps_of(problem: Problem, proof: Proof) -> Steps:
    """The checker at the first step of a proof, whose file is in memory."""
    file = io.BytesIO()
    np.savez(file, **{"about": np.frombuffer(json.dumps(proof.about).encode(), np.uint8), **proof.arrays})  # type: ignore[arg-type]
    network = read_network(problem.chain.onnx(), problem.chain.inputs, FLOAT)
    steps = Steps(network, read_property(problem.vnnlib()), Opened(file), lambda *_: None)  # type: ignore[arg-type]
    steps.at, steps.step = 0, proof.about["steps"][0]
    return steps


def test_coefficients_that_meet_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """g − κ on what a neuron is, and a plane reads: u |g − κ| M is given to the pass as an error."""
    seen = []
    original = Enclosure.backward
    monkeypatch.setattr(Enclosure, "backward", lambda *args: (seen.append(args[3]), original(*args))[1])
    graph = Graph((1, 1))
    graph.add("Mul", graph.add("Relu", "x"), np.float32(1))
    enclosure = enclosed(graph.bytes(), [-4.0], [2.0])
    enclosure.heights(0, np.zeros(1, int), {0: np.array([[0.75]])}, np.array([[1.0], [0.0]]))
    assert [float(error[0]) for error in seen] == [UNIT * 0.25 * 4, UNIT * 0.75 * 4]

"""What each step of a proof must and must not show, on a network small enough to do by hand.

f(x) = relu(−x) − relu(x) over −1 ≤ x ≤ 1, and the row f(x) + x + 0.1 <= 0: the left side is always 0.1, but showing
that takes three leaves, and at the last one a multiplier.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prover import Chain, Layer, Problem, Proof, Region, start, write

from surebound.check import Result, check

Change = Callable[[Proof], Any]


def problem(slack: float = 0.1, regions: int = 1) -> Problem:
    chain = Chain([Layer(np.array([[1.0], [-1.0]]), np.zeros(2)), Layer(np.array([[-1.0, 1.0]]), np.zeros(1))])
    rows = [(np.ones(1), np.ones(1), slack)]
    return Problem(chain, [Region(np.array([-1.0 / (r + 1)]), np.ones(1), list(rows)) for r in range(regions)])


def claims(low: float = -1.0 - 1e-9, high: float = 1.0 + 1e-9) -> dict[str, np.ndarray]:
    return {
        "neuron": np.array([0, 0, 1, 1], dtype=np.int32),
        "side": np.array([1, -1, 1, -1], dtype=np.int8),
        "bound": np.array([low, high, low, high]),
    }


def by_splits(of: Problem | None = None, lines: str = "crown") -> Proof:
    """Neuron 0, then neuron 1; the last leaf has x̂₀ ≤ 0 and x̂₁ ≤ 0, so that x ≥ 0."""
    proof = start(of or problem())
    proof.step({"kind": "layer", "box": 0, "layer": 0, "lines": "flat"}, claims())
    arrays = {
        "tree": np.array([[0, -1, 1], [1, -2, -3]], dtype=np.int32),
        "roots": np.array([0], dtype=np.int32),
        "c0/beta": np.array([0.0, 0, 0, 0, 1]),
    }
    if lines == "stored":
        arrays |= {"free": np.array([1, 0], dtype=np.int32), "c0/alpha": np.zeros((3, 2), dtype=np.uint8)}
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": lines}, arrays)
    return proof


def by_cuts(at: float = 0.0) -> Proof:
    proof = start(problem())
    arrays = {
        "tree": np.array([[2, -1, -2]], dtype=np.int32),
        "roots": np.array([0], dtype=np.int32),
        "at": np.array([at]),
    }
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "crown", "rebound": "crown"}, arrays)
    return proof


def result(folder: Path, proof: Proof, of: Problem | None = None, **options: Any) -> Result:
    return check(*write(folder, of or problem(), proof), **options)


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "make", [by_splits, lambda: by_splits(lines="stored"), by_cuts], ids=["splits", "stored", "cuts"]
)
def test_the_true_proofs(tmp_path: Path, make: Callable[[], Proof], exact: bool) -> None:
    found = result(tmp_path, make(), exact=exact)
    assert (found.valid, found.reason) == (True, "")
    assert found.slack == pytest.approx(0.1)


def _set(name: str, at: Any, value: Any) -> Change:
    def change(proof: Proof) -> None:
        array = proof.arrays[name].copy()
        array[at] = value
        proof.arrays[name] = array

    return change


def _put(name: str, value: Any) -> Change:
    return lambda proof: proof.arrays.__setitem__(name, np.asarray(value))


def _say(step: int, key: str, value: Any) -> Change:
    return lambda proof: proof.about["steps"][step].__setitem__(key, value)


def _both(first: Change, second: Change) -> Change:
    return lambda proof: (first(proof), second(proof))


INT = np.int32
LONE = {"s0/neuron": np.zeros(1, INT), "s0/side": np.zeros(1, np.int8), "s0/bound": np.full(1, 9.0)}
SPLITS: dict[str, tuple[Change, str]] = {
    "without the multiplier": (_set("s1/c0/beta", 4, 0.0), "leaf 2 has the bound -"),
    "with a multiplier at the wrong leaf": (_put("s1/c0/beta", [0.0, 0, 1, 0, 0]), "has the bound -"),
    "a negative multiplier": (_set("s1/c0/beta", 0, -1e-9), "numbers of 'c0/beta'"),
    "a huge multiplier": (_set("s1/c0/beta", 0, 1e61), "numbers of 'c0/beta'"),
    "a multiplier that is NaN": (_set("s1/c0/beta", 0, np.nan), "numbers of 'c0/beta'"),
    "too few multipliers": (_put("s1/c0/beta", [0.0, 0, 0, 0]), "fewer multipliers"),
    "too many multipliers": (_put("s1/c0/beta", [0.0, 0, 0, 0, 1, 0]), "more multipliers"),
    "a row twice": (_put("s1/tree", np.array([[0, 1, 1], [1, -2, -3]], INT)), "exactly once"),
    "a leaf twice": (_put("s1/tree", np.array([[0, -2, 1], [1, -2, -3]], INT)), "exactly once"),
    "a leaf left out": (_put("s1/tree", np.array([[0, -1, 1], [1, -2, -4]], INT)), "exactly once"),
    "a row that is not there": (_put("s1/tree", np.array([[0, 2, 1], [1, -2, -3]], INT)), "exactly once"),
    "a row that is its own child": (_put("s1/tree", np.array([[0, -1, -2], [1, 1, -3]], INT)), "come after"),
    "a child before its row": (
        _both(_put("s1/tree", np.array([[1, -2, -3], [0, -1, 0]], INT)), _put("s1/roots", np.array([1], INT))),
        "come after",
    ),
    "a root inside": (_put("s1/roots", np.array([1], INT)), "exactly once"),
    "two roots": (_put("s1/roots", np.array([0, -4], INT)), "expected int32 of"),
    "a neuron twice": (_put("s1/tree", np.array([[0, -1, 1], [0, -2, -3]], INT)), "twice"),
    "a neuron that is not there": (_put("s1/tree", np.array([[0, -1, 1], [2, -2, -3]], INT)), "not there"),
    "a neuron below 0": (_put("s1/tree", np.array([[0, -1, 1], [-1, -2, -3]], INT)), "not there"),
    "one leaf for all": (lambda p: [p.arrays.pop(f"s1/{n}") for n in ("tree", "roots", "c0/beta")], "has the bound -"),
    "too many chunks": (_say(1, "chunks", 2), "how many leaves"),
    "no chunks": (_say(1, "chunks", 0), "fewer leaves"),
    "cuts without new bounds": (
        _both(_put("s1/tree", np.array([[2, -1, -2]], INT)), _put("s1/at", [0.0])),
        "splits what is not there",
    ),
    "another region": (_say(1, "region", 1), "its region is 1"),
    "a region below 0": (_say(1, "region", -1), "its region is -1"),
    "a region that is true": (_say(1, "region", True), "its region is True"),
    "another box": (_say(1, "box", 1), "its box is 1"),
    "a box that is false": (_say(1, "box", False), "its box is False"),
    "a lone claim without side": (lambda p: p.arrays.update(LONE), "no side"),
    "unknown lines": (_say(1, "lines", "steep"), "its lines are"),
    "intervals": (_say(1, "lines", "interval"), "its lines are"),
    "an unknown kind": (_say(1, "kind", "lemma"), "neither"),
    "unknown new bounds": (_say(1, "rebound", "zonotope"), "another box, or makes new bounds"),
    "a claim that is too tight below": (_set("s0/bound", 0, -0.9), "neurons [0] of layer 0 are not shown"),
    "a claim that is too tight above": (_set("s0/bound", 3, 0.9), "neurons [1] of layer 0 are not shown"),
    "a claim that is NaN": (_set("s0/bound", 0, np.nan), "numbers of 'bound'"),
    "a claim without side": (_set("s0/side", 0, 0), "no side"),
    "a claim of another side": (_set("s0/side", 0, 2), "numbers of 'side'"),
    "a claim twice": (_set("s0/neuron", 2, 0), "made twice"),
    "a claim on a neuron that is not there": (_set("s0/neuron", 2, 2), "numbers of 'neuron'"),
    "a claim on a neuron below 0": (_set("s0/neuron", 2, -1), "numbers of 'neuron'"),
    "a layer that is not there": (_say(0, "layer", 1), "its layer is 1"),
    "no region": (lambda p: p.about["steps"].pop(), "nothing is proved of 1"),
    "steps of another kind": (lambda p: p.about.__setitem__("steps", {"0": 1}), "no list"),
    "other widths": (lambda p: p.about.__setitem__("widths", [3]), "widths"),
    "another network": (lambda p: p.about.__setitem__("network", "0" * 64), "'network' differs"),
    "another property": (lambda p: p.about.__setitem__("property", "0" * 64), "'property' differs"),
    "a huge weight": (_put("s1/c0/pi", [[1e61], [1], [1]]), "numbers of 'c0/pi'"),
    "a weight without end": (_put("s1/c0/pi", np.full((3, 1), np.inf, np.float32)), "numbers of 'c0/pi'"),
    "a multiplier without end": (_put("s1/c0/beta", np.full(5, np.inf, np.float32)), "numbers of 'c0/beta'"),
    "a weight below 0": (_put("s1/c0/pi", [[-1.0], [1], [1]]), "numbers of 'c0/pi'"),
    "weights of zero": (_put("s1/c0/pi", [[1.0], [1], [0]]), "has the bound"),
    "a row of the property that is not there": (_put("s1/c0/row", np.array([0, 0, 1], INT)), "numbers of 'c0/row'"),
    "another type": (_put("s1/c0/beta", np.zeros(5, dtype=np.float16)), "expected float32 or float64"),
    "big endian": (_put("s0/bound", claims()["bound"].astype(">f8")), "expected float64"),
}


@pytest.mark.parametrize("name", SPLITS)
def test_a_changed_proof_by_splits(tmp_path: Path, name: str) -> None:
    change, words = SPLITS[name]
    proof = by_splits()
    change(proof)
    found = result(tmp_path, proof)
    assert not found.valid
    assert words in found.reason


STORED: dict[str, tuple[Change, str]] = {
    "a slope above 1": (_set("s1/c0/alpha", (0, 0), 129), "numbers of 'c0/alpha'"),
    "a float slope above 1": (_put("s1/c0/alpha", np.full((3, 2), 1.0 + 2e-16)), "slope exceeds 1"),
    "a slope below 0": (_put("s1/c0/alpha", np.full((3, 2), -1e-9)), "numbers of 'c0/alpha'"),
    "a neuron's slopes twice": (_put("s1/free", np.array([0, 0], INT)), "stored twice"),
    "slopes of a neuron that is not there": (_put("s1/free", np.array([0, 2], INT)), "numbers of 'free'"),
    "no neurons that slopes are of": (lambda p: p.arrays.pop("s1/free"), "no array 's1/free'"),
    "slopes of fewer leaves": (_put("s1/c0/alpha", np.zeros((2, 2), dtype=np.uint8)), "expected"),
}


@pytest.mark.parametrize("name", STORED)
def test_changed_slopes(tmp_path: Path, name: str) -> None:
    change, words = STORED[name]
    proof = by_splits(lines="stored")
    change(proof)
    found = result(tmp_path, proof)
    assert not found.valid
    assert words in found.reason


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (0.5, "has the bound -"),
        (-0.5, "has the bound -"),
        (1.5, "outside of the box"),
        (-1.5, "outside of the box"),
        (np.nan, "'at'"),
    ],
)
def test_cuts_elsewhere(tmp_path: Path, at: float, words: str) -> None:
    assert words in result(tmp_path, by_cuts(at)).reason


def test_other_cuts(tmp_path: Path) -> None:
    for name, value, words in (
        ("s0/tree", np.array([[3, -1, -2]], INT), "not there"),
        ("s0/tree", np.array([[0, -1, -2]], INT), "not there"),
        ("s0/at", np.zeros(2), "expected float64"),
    ):
        proof = by_cuts()
        proof.arrays[name] = value
        assert words in result(tmp_path, proof).reason


def test_a_bound_of_exactly_zero_is_not_above_zero(tmp_path: Path) -> None:
    tight = problem(slack=0.0)
    found = result(tmp_path, by_splits(tight), tight, exact=True)
    assert (found.valid, found.reason) == (False, "step 1: leaf 0 has the bound 0; expected more than 0")
    assert not result(tmp_path, by_splits(tight), tight).valid


def test_a_claim_may_be_met_exactly(tmp_path: Path) -> None:
    """In exact arithmetic the intervals and passes of −1 ≤ x ≤ 1 show −1 and 1, and no more."""
    for lines in ("flat", "crown"):
        proof = by_splits()
        proof.about["steps"][0]["lines"] = lines
        proof.arrays["s0/bound"] = np.array([-1.0, 1.0, -1.0, 1.0])
        assert result(tmp_path, proof, exact=True).valid
        proof.arrays["s0/bound"] = np.array([-1.0, np.nextafter(1.0, 0), -1.0, 1.0])
        assert "neurons [0] of layer 0 are not shown" in result(tmp_path, proof, exact=True).reason
        proof.arrays["s0/bound"] = np.array([-1.0, 1.0, np.nextafter(-1.0, 0), 1.0])
        assert "neurons [1] of layer 0 are not shown" in result(tmp_path, proof, exact=True).reason


def test_each_region_needs_its_own_step_and_box(tmp_path: Path) -> None:
    two = problem(regions=2)
    proof = by_splits(two)
    found = result(tmp_path, proof, two)
    assert "nothing is proved of 1 regions, the first of them region 1" in found.reason and not found.valid
    proof.about["steps"].append({**proof.about["steps"][1], "region": 1})
    proof.arrays |= {name.replace("s1/", "s2/"): v for name, v in proof.arrays.items() if name.startswith("s1/")}
    assert "another box" in result(tmp_path, proof, two).reason
    proof.about["steps"][2]["box"] = 1
    assert result(tmp_path, proof, two).valid


def test_bounds_of_one_box_say_nothing_about_another(tmp_path: Path) -> None:
    """Over the second box, −1/2 ≤ x ≤ 1, tighter claims are true; over the first they are not."""
    two = problem(regions=2)
    proof = start(two)
    proof.step({"kind": "layer", "box": 0, "layer": 0, "lines": "flat"}, claims(-0.5))
    assert "are not shown" in result(tmp_path, proof, two).reason
    proof.about["steps"][0]["box"] = 1
    proof.arrays["s0/bound"] = np.array([-0.5 - 1e-9, 1 + 1e-9, -1 - 1e-9, 0.5 + 1e-9])
    assert "nothing is proved of 2" in result(tmp_path, proof, two).reason


def test_an_empty_region_needs_no_proof(tmp_path: Path) -> None:
    two = problem(regions=2)
    two.regions[1].low, two.regions[1].high = np.ones(1), -np.ones(1)
    assert result(tmp_path, by_splits(two), two).valid
    proof = by_splits(two)
    proof.about["steps"].append({"kind": "region", "box": 1, "region": 1, "lines": "crown"})
    assert "empty box" in result(tmp_path, proof, two).reason


def deep() -> Problem:
    """max(y, 0) with y = relu(−x) − relu(x) + relu(x + 2) − 2, which is 0: that max(y, 0) < 0.5 rests on y ≤ 0.01."""
    first = Layer(np.array([[1.0], [-1.0], [1.0]]), np.array([0.0, 0.0, 2.0]))
    chain = Chain([first, Layer(np.array([[-1.0, 1.0, 1.0]]), np.array([-2.0])), Layer(np.eye(1), np.zeros(1))])
    return Problem(chain, [Region(-np.ones(1), np.ones(1), [(-np.ones(1), np.zeros(1), 0.5)])])


TREE, BETA = [[0, 1, 2], [1, -1, -2], [1, -3, -4]], [1.0, 0, 0, 0, 0, 0, 1, 0]


def layer_proof(bound: float, tree: Any = TREE, beta: Any = BETA, side: int = -1) -> Proof:
    """Claims that y ≤ a bound, and uses it."""
    proof = start(deep())
    arrays = {"neuron": np.zeros(1, INT), "side": np.array([side], np.int8), "bound": np.array([bound])}
    if tree is not None:
        arrays |= {"tree": np.array(tree, INT), "roots": np.zeros(1, INT), "c0/beta": np.array(beta)}
    proof.step({"kind": "layer", "box": 0, "layer": 1, "lines": "fastlin"}, arrays)
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "flat"}, {})
    return proof


def test_claims_over_trees(tmp_path: Path) -> None:
    def reason(proof: Proof, **options: Any) -> str:
        return result(tmp_path, proof, deep(), **options).reason

    assert reason(layer_proof(0.01)) == ""
    assert reason(layer_proof(0.0), exact=True) == ""
    assert "are not shown" in reason(layer_proof(0.0))
    assert "are not shown" in reason(layer_proof(-1e-9), exact=True)
    assert "are not shown" in reason(layer_proof(0.01, None))
    assert "are not shown" in reason(layer_proof(0.01, TREE, np.zeros(8)))
    assert "has the bound -" in reason(layer_proof(0.6))
    assert "has the bound -" in reason(layer_proof(-2.1, side=1))
    assert "not there" in reason(layer_proof(0.01, [[0, 1, 2], [1, -1, -2], [3, -3, -4]]))
    cut = layer_proof(0.01, [[4, 1, 2], [4, -1, -2], [4, -3, -4]])
    cut.arrays["s0/at"] = np.array([0.0, -0.5, 0.5])
    cut.about["steps"][0]["rebound"] = "crown"  # only regions are bounded anew over parts of a box
    assert "splits what is not there" in reason(cut)


def test_claims_never_loosen_what_is_known(tmp_path: Path) -> None:
    loose = by_splits()
    loose.arrays["s0/bound"] = np.array([-3.0, 3.0, -3.0, 3.0])
    without = by_splits()
    without.about["steps"].pop(0)
    without.arrays = {"s0/" + name[3:]: value for name, value in without.arrays.items() if name.startswith("s1/")}
    found = [result(tmp_path, proof, exact=True).slack for proof in (loose, without)]
    assert found[0] == found[1]
    late = by_splits()
    late.about["steps"].reverse()
    late.arrays = {{"s0": "s1", "s1": "s0"}[name[:2]] + name[2:]: value for name, value in late.arrays.items()}
    assert result(tmp_path, late).valid


def test_numbers_that_grow_too_large(tmp_path: Path) -> None:
    huge = problem()
    huge.chain.layers[0].weight *= np.float32(1e38)
    huge.chain.layers[1].weight *= np.float32(1e38)
    proof = by_splits(huge)
    proof.arrays["s0/bound"] = np.array([-2e38, 2e38, -2e38, 2e38])
    assert "intervals reach beyond" in result(tmp_path, proof, huge).reason


def test_claims_are_stored_as_they_were_shown(tmp_path: Path) -> None:
    """max(y, 0) ≤ 0.01, so that −max(y, 0) + 0.5 is at least 0.49."""
    assert result(tmp_path, layer_proof(0.01), deep(), exact=True).slack == pytest.approx(0.49, abs=1e-15)
    assert result(tmp_path, layer_proof(0.0), deep(), exact=True).slack == 0.5
    assert result(tmp_path, layer_proof(0.25), deep(), exact=True).slack == 0.25


def test_cuts_that_are_not_in_the_middle(tmp_path: Path) -> None:
    """Five leaves: cuts at 0, and at ±1/2 within the halves."""
    proof = by_cuts()
    proof.arrays["s0/tree"] = np.array([[2, 1, 2], [2, -1, -2], [2, -3, -4]], INT)
    proof.arrays["s0/at"] = np.array([0.0, -0.5, 0.5])
    assert result(tmp_path, proof).valid
    proof.arrays["s0/at"] = np.array([0.0, 0.5, -0.5])
    assert "outside of" in result(tmp_path, proof).reason


def rectifier() -> tuple[Problem, Proof]:
    """Three neurons with x̂ = x + 2, x − 3 and x over −1 ≤ x ≤ 1, and stored slopes for all of them."""
    chain = Chain([Layer(np.ones((3, 1)), np.array([2.0, -3.0, 0.0])), Layer(np.array([[1.0, 1.0, 2.0]]), np.zeros(1))])
    of = Problem(chain, [Region(-np.ones(1), np.ones(1), [(np.ones(1), np.zeros(1), 5.0)])])
    proof = start(of)
    arrays = {"free": np.array([1, 2, 0], INT), "c0/alpha": np.array([[32, 64, 96]], dtype=np.uint8)}
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "stored"}, arrays)
    return of, proof


def test_stored_slopes_of_stable_neurons_are_not_used(tmp_path: Path) -> None:
    """(x + 2) + 0 + 2 · x / 2 + 5 at x = −1."""
    of, proof = rectifier()
    assert result(tmp_path, proof, of, exact=True).slack == 5.0


def test_stored_slopes_belong_to_the_neurons_that_are_named(tmp_path: Path) -> None:
    chain = Chain([Layer(np.ones((2, 1)), np.zeros(2)), Layer(np.array([[1.0, 2.0]]), np.zeros(1))])
    of = Problem(chain, [Region(-np.ones(1), np.ones(1), [(np.ones(1), np.zeros(1), 5.0)])])
    proof = start(of)
    arrays = {"free": np.array([1, 0], INT), "c0/alpha": np.array([[32, 64]], dtype=np.uint8)}
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "stored"}, arrays)
    assert result(tmp_path, proof, of, exact=True).slack == 5 - 0.5 - 2 * 0.25
    proof.arrays["s0/c0/alpha"] = np.array([[0.25, 0.5]], dtype=np.float32)
    assert result(tmp_path, proof, of, exact=True).slack == 5 - 0.5 - 2 * 0.25
    proof.arrays["s0/free"] = np.array([1], INT)
    proof.arrays["s0/c0/alpha"] = np.array([[32]], dtype=np.uint8)
    assert result(tmp_path, proof, of, exact=True).slack == 5 - 2 * 0.25


def test_planes_that_a_step_does_not_have_are_no_traceback(tmp_path: Path) -> None:
    proof = layer_proof(0.01)
    for step in range(9):
        proof.arrays[f"s{step}/c0/planes"] = np.zeros(1, dtype=np.int8)
    assert result(tmp_path, proof, deep()).valid  # nothing rests on them


def test_chunks_hold_exactly_the_leaves(tmp_path: Path) -> None:
    def chunked(counts: list[int]) -> str:
        proof = by_splits()
        beta = proof.arrays.pop("s1/c0/beta")
        places = np.split(beta, [1, 3])
        proof.about["steps"][1]["chunks"] = len(counts)
        first = 0
        for c, count in enumerate(counts):
            proof.arrays[f"s1/c{c}/pi"] = np.ones((count, 1))
            proof.arrays[f"s1/c{c}/beta"] = np.concatenate([*places[first : first + count], np.zeros(0)])
            first += count
        return result(tmp_path, proof).reason

    assert [chunked(counts) for counts in ([3], [1, 2], [2, 1], [1, 1, 1], [1, 0, 2])] == [""] * 5
    assert "expected float32 or float64 of [2, 1]" in chunked([1, 1])
    assert "more leaves" in chunked([4, 1])
    assert "expected float32 or float64 of [0, 1]" in chunked([3, 1])


def test_new_bounds_are_used_where_they_are_better(tmp_path: Path) -> None:
    """y = relu(relu(x + 2) − relu(x + 2) + 0.5) is 0.5, which intervals do not see, and the row is −y + 0.6 <= 0."""
    layers = [
        Layer(np.ones((2, 1)), np.full(2, 2.0)),
        Layer(np.array([[1.0, -1.0]]), np.full(1, 0.5)),
        Layer(np.eye(1), np.zeros(1)),
    ]
    of = Problem(Chain(layers), [Region(-np.ones(1), np.ones(1), [(-np.ones(1), np.zeros(1), 0.6)])])
    for more, slack in (({"rebound": "crown"}, 0.1), ({}, -0.65)):
        proof = start(of)
        proof.step({"kind": "region", "box": 0, "region": 0, "lines": "crown", **more}, {})
        found = result(tmp_path, proof, of)
        assert found.valid == (slack > 0)
        assert found.slack == pytest.approx(slack) if found.valid else "has the bound -0.65" in found.reason


def test_many_batches_take_their_own_multipliers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from surebound.check import steps

    monkeypatch.setattr(steps, "MEMORY", 100)  # less than a row takes: one leaf a batch
    assert result(tmp_path, by_splits()).valid
    assert result(tmp_path, by_cuts()).valid
    assert result(tmp_path, layer_proof(0.01), deep()).valid


def test_multipliers_are_read_from_root_to_leaf(tmp_path: Path) -> None:
    proof = by_splits()
    proof.arrays["s1/c0/beta"] = np.array([0.0, 0, 0, 1, 0])  # neuron 0's at the last leaf
    assert "leaf 2 has the bound -" in result(tmp_path, proof).reason


def test_a_leaf_names_its_row(tmp_path: Path) -> None:
    """Rows x + 2 <= 0 and −10 x − 1 <= 0: only the first is impossible, and the sum of both is not."""
    chain = Chain([Layer(np.eye(1), np.zeros(1))])
    rows = [(np.ones(1), np.zeros(1), 2.0), (-10 * np.ones(1), np.zeros(1), -1.0)]
    of = Problem(chain, [Region(-np.ones(1), np.ones(1), rows)])
    proof = start(of)
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "crown"}, {"c0/row": np.array([0], INT)})
    assert result(tmp_path, proof, of, exact=True).slack == 1.0
    proof.arrays["s0/c0/row"] = np.array([1], INT)
    assert "has the bound -11" in result(tmp_path, proof, of).reason
    del proof.arrays["s0/c0/row"]
    assert result(tmp_path, proof, of, exact=True).slack == 1.0


def test_a_property_over_other_outputs_is_refused(tmp_path: Path) -> None:
    from surebound.check import CheckError

    of = problem()
    files = write(tmp_path, of, by_splits())
    files[1].write_bytes(files[1].read_bytes() + b"(declare-const Y_1 Real)")
    with pytest.raises(CheckError, match="1 outputs, the property 2"):
        check(*files)
    of.chain.layers[-1] = Layer(np.array([[-1.0, 1.0], [0.0, 1.0]]), np.zeros(2))
    files[0].write_bytes(of.chain.onnx())
    files[1].write_bytes(problem().vnnlib())
    with pytest.raises(CheckError, match="2 outputs, the property"):
        check(*files)


def test_new_bounds_are_the_better_of_intervals_and_passes(tmp_path: Path) -> None:
    """On either side of 0, y = 0 by a pass, but −1 ≤ y ≤ 1 by intervals: too little for max(y, 0) < 0.5."""
    proof = start(deep())
    arrays = {"tree": np.array([[4, -1, -2]], INT), "roots": np.zeros(1, INT), "at": np.zeros(1)}
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "crown", "rebound": "crown"}, arrays)
    assert result(tmp_path, proof, deep()).slack == pytest.approx(0.5)
    assert result(tmp_path, proof, deep(), exact=True).slack == 0.5

"""Leaves, claims, boxes and regions are each bounded by their own numbers, also when many are taken at once."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prover import Chain, Layer, Problem, Proof, Region, start, write

from surebound.check import Result, check, steps

INT = np.int32


def result(folder: Path, problem: Problem, proof: Proof, **options: Any) -> Result:
    return check(*write(folder, problem, proof), **options)


def rectifier(*constants: float) -> Problem:
    """y = relu(x) + 2 relu(x) over −1 ≤ x ≤ 1, and rows y + c <= 0."""
    chain = Chain([Layer(np.ones((2, 1)), np.zeros(2)), Layer(np.array([[1.0, 2.0]]), np.zeros(1))])
    rows = [(np.ones(1), np.zeros(1), c) for c in constants]
    return Problem(chain, [Region(-np.ones(1), np.ones(1), rows)])


@pytest.mark.parametrize("memory", [100, 2**27])
def test_leaves_take_their_own_slopes_and_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    """The second leaf's are a slope of 1 and the second row: 2.5 − 2. The first one's would give more."""
    monkeypatch.setattr(steps, "MEMORY", memory)  # 100: one leaf a batch
    of = rectifier(5.0, 2.5)
    proof = start(of)
    arrays = {
        "tree": np.array([[0, -1, -2]], INT),
        "roots": np.zeros(1, INT),
        "free": np.array([1], INT),
        "c0/alpha": np.array([[0], [128]], np.uint8),
        "c0/beta": np.zeros(2),
        "c0/pi": np.eye(2),
    }
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "stored"}, arrays)
    found = result(tmp_path, of, proof, exact=True)
    assert (found.valid, found.slack) == (True, 0.5)


def test_a_chunk_of_too_many_rows_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "MEMORY", 2)
    for rows, words in ((2, ""), (3, "has too many")):
        of = rectifier(*[5.0] * rows)
        proof = start(of)
        proof.step({"kind": "region", "box": 0, "region": 0, "lines": "crown"}, {})
        assert words in result(tmp_path, of, proof).reason
        assert result(tmp_path, of, proof).valid == (not words)


def test_each_claim_has_its_own_tree(tmp_path: Path) -> None:
    """y = relu(−x) − relu(x) + relu(x + 2) − 2 is 0, and the neuron beside it is y + 1: four leaves for each."""
    first = Layer(np.array([[1.0], [-1.0], [1.0]]), np.array([0.0, 0.0, 2.0]))
    second = Layer(np.tile([[-1.0, 1.0, 1.0]], (2, 1)), np.array([-2.0, -1.0]))
    chain = Chain([first, second, Layer(np.eye(2), np.zeros(2))])
    of = Problem(chain, [Region(-np.ones(1), np.ones(1), [(-np.ones(2), np.zeros(1), 2.0)])])

    def claimed(bounds: list[float]) -> Result:
        proof = start(of)
        tree = [[0, 1, 2], [1, -1, -2], [1, -3, -4], [0, 4, 5], [1, -5, -6], [1, -7, -8]]
        arrays = {
            "neuron": np.arange(2, dtype=INT),
            "side": np.full(2, -1, np.int8),
            "bound": np.array(bounds),
            "tree": np.array(tree, INT),
            "roots": np.array([0, 3], INT),
            "c0/beta": np.tile([1.0, 0, 0, 0, 0, 0, 1, 0], 2),
        }
        proof.step({"kind": "layer", "box": 0, "layer": 1, "lines": "fastlin"}, arrays)
        proof.step({"kind": "region", "box": 0, "region": 0, "lines": "flat"}, {})
        return result(tmp_path, of, proof, exact=True)

    assert claimed([0.0, 1.0]).slack == 1.0
    assert "neurons [1 1 1] of layer 1 are not shown" in claimed([0.0, 0.5]).reason
    assert "neurons [0 0 0] of layer 1 are not shown" in claimed([-0.5, 1.0]).reason


def test_bounds_of_a_small_box_are_not_those_of_a_large_one(tmp_path: Path) -> None:
    """relu(x) < 3/4 up to x = 1/2, but not up to x = 1."""
    chain = Chain([Layer(np.eye(1), np.zeros(1)), Layer(np.eye(1), np.zeros(1))])
    row = (-np.ones(1), np.zeros(1), 0.75)
    of = Problem(chain, [Region(-np.ones(1), np.array([high]), [row]) for high in (1.0, 0.5)])
    proof = start(of)
    proof.step({"kind": "region", "box": 1, "region": 1, "lines": "flat"}, {})
    proof.step({"kind": "region", "box": 0, "region": 0, "lines": "flat"}, {})
    assert "step 1: leaf 0 has the bound -0.25" in result(tmp_path, of, proof).reason


def test_new_bounds_belong_to_their_leaf(tmp_path: Path) -> None:
    """relu(z) with z = 2 h − h − 2 and h = relu(x + 2), so that z = x: open by intervals, on both sides of −1/2."""
    layers = [
        Layer(np.ones((2, 1)), np.full(2, 2.0)),
        Layer(np.array([[2.0, -1.0]]), np.full(1, -2.0)),
        Layer(np.eye(1), np.zeros(1)),
    ]
    for constant in (0.5, 1.5):
        of = Problem(Chain(layers), [Region(-np.ones(1), np.ones(1), [(-np.ones(1), np.zeros(1), constant)])])
        proof = start(of)
        arrays = {"tree": np.array([[3, -1, -2]], INT), "roots": np.zeros(1, INT), "at": np.full(1, -0.5)}
        proof.step({"kind": "region", "box": 0, "region": 0, "lines": "crown", "rebound": "crown"}, arrays)
        found = result(tmp_path, of, proof, exact=True)
        assert found.slack == 0.5 if constant == 1.5 else "leaf 1 has the bound -0.5" in found.reason


@pytest.mark.parametrize("constants", [(1.5, 1.25), (1.25, 1.5)])
def test_the_slack_is_the_least_of_all(tmp_path: Path, constants: tuple[float, float]) -> None:
    chain = Chain([Layer(np.eye(1), np.zeros(1))])
    rows = [[(np.ones(1), np.zeros(1), c)] for c in constants]
    of = Problem(chain, [Region(-np.ones(1), np.ones(1), row) for row in rows])
    proof = start(of)
    for number in range(2):
        proof.step({"kind": "region", "box": 0, "region": number, "lines": "flat"}, {})
    found = result(tmp_path, of, proof, exact=True)
    assert (found.slack, found.tightest) == (0.25, constants.index(1.25))

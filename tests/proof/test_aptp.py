"""Activation Pattern Tree Proofs, read back by a reader of their own: leaves cover everything, and LPs refute each."""

import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import surebound as run
from minima import milp_minimum, planet_bounds
from networks import random_fc
from onnx import helper
from onnx_models import X, save
from proving import Proved, problem, prove
from scipy.optimize import linprog
from verifications import ALONE, model, prop, region

import surebound
from surebound.check import check
from surebound.errors import UsageError
from surebound.load.onnx import load_model
from surebound.network.graph import Network
from surebound.network.linear import Linear
from surebound.problem import Box, Property
from surebound.proof.aptp import check_sayable, common_leaves, save_aptp
from surebound.verify.options import Options
from surebound.verify.pipeline import verify

NEURONS = replace(ALONE, input_limit=-1)


class Read:
    """What a file says: a box, leaves as lists of literals, and cases of rows c·y ≤ d."""

    def __init__(self, text: str) -> None:
        words = re.findall(r"[()]|[^()\s]+", re.sub(r";.*", "", text))
        self.commands = self._lists(iter(["(", *words, ")"]))[0]
        names = [word for command in self.commands for word in command if command[0].startswith("declare")]
        self.inputs, self.outputs, self.neurons = (sum(n.startswith(k) for n in names) for k in ("X_", "Y_", "N_"))
        self.lower, self.upper = np.full(self.inputs, -np.inf), np.full(self.inputs, np.inf)
        self.leaves: list[list[int]] = []
        self.cases: list[list[tuple[np.ndarray, float]]] = [[]]
        for command in self.commands:
            if command[0] == "assert":
                self._assert(command[1])

    def _lists(self, words: Any) -> list[Any]:
        found: list[Any] = []
        for word in words:
            if word == ")":
                return found
            found.append(self._lists(words) if word == "(" else word)
        return found

    def _assert(self, formula: list[Any]) -> None:
        cases = [case[1:] for case in formula[1:]] if formula[0] == "or" else [[formula]]
        first = cases[0][0][1]
        if first.startswith("N_"):
            assert all(atom[0] in ("<", ">=") and atom[2] == "0" for case in cases for atom in case)
            self.leaves = [[int(n[2:]) * (1 if op == ">=" else -1) for op, n, _ in case] for case in cases]
        elif first.startswith("X_"):
            ((op, name, value),) = cases[0]
            end = self.lower if op == ">=" else self.upper
            end[int(name[2:])] = float(value)
        else:
            rows = [[self._row(*atom) for atom in case] for case in cases]
            self.cases = [a + b for a in self.cases for b in rows]

    def _row(self, op: str, left: str, right: str) -> tuple[np.ndarray, float]:
        row, bound = np.zeros(self.outputs), 0.0
        row[int(left[2:])] = 1.0
        if right.startswith("Y_"):
            row[int(right[2:])] -= 1.0
        else:
            bound = float(right)
        return (row, bound) if op == "<=" else (-row, -bound)


def infeasible(network: Network, read: Read, pattern: dict[int, bool], case: list[tuple[np.ndarray, float]]) -> bool:
    """Whether an LP finds no input of the box with a pattern of all neurons, for which all rows hold."""
    matrix, offset = np.eye(read.inputs), np.zeros(read.inputs)  # of the present layer, as a function of x
    rows, limits, number = [], [], 0
    for node in network.nodes:
        if isinstance(node.op, Linear):
            weight, bias = node.op.weight.numpy(), node.op.bias.numpy()
            matrix, offset = weight @ matrix, weight @ offset + bias
        elif node.inputs:  # a ReLU
            sign = np.array([1.0 if pattern[number + i + 1] else -1.0 for i in range(len(offset))])
            rows.append(-sign[:, None] * matrix)
            limits.append(sign * offset)
            number += len(offset)
            matrix, offset = matrix * (sign > 0)[:, None], offset * (sign > 0)
    for row, bound in case:
        rows.append((row @ matrix)[None])
        limits.append(np.array([bound - row @ offset]))
    ends = list(zip(read.lower, read.upper, strict=True))
    found = linprog(np.zeros(read.inputs), np.concatenate(rows), np.concatenate(limits), bounds=ends, method="highs")
    return bool(found.status == 2)


def written(folder: Path, network: Network, question: Property, branching: str = "upb") -> tuple[Proved, Read]:
    done = prove(folder, network, question, branching, NEURONS)
    assert done.verdict.status == "unsat"
    save_aptp(done.verdict.proof, folder / "p.aptp", network=done.net, prop=question)
    return done, Read((folder / "p.aptp").read_text())


def rivals(seed: int, gap: float = 1e-3) -> tuple[Network, Property]:
    """y₀ exceeds y₁, y₂ and a number, each by no more than the gap somewhere in the box."""
    network = random_fc(np.random.default_rng(seed), (2, 4, 3, 3))
    box = Box(-np.ones(2), np.ones(2))
    last = network.nodes[-1]
    assert isinstance(last.op, Linear) and last.op.bias is not None
    bias = last.op.bias.clone()
    for j in (1, 2):
        least = milp_minimum(network, box, np.eye(3)[0] - np.eye(3)[j], 0.0).value
        bias[j] = float(np.float32(bias[j] + least - gap))
    network = replace(network, nodes=(*network.nodes[:-1], replace(last, op=replace(last.op, bias=bias))))
    least = milp_minimum(network, box, np.eye(3)[0], 0.0).value
    cases = [region(box, np.eye(3)[0] - np.eye(3)[j], 0.0) for j in (1, 2)]
    return network, prop(network, *cases, region(box, np.eye(3)[0], gap - least))


@pytest.mark.parametrize("seed", range(3))
def test_every_leaf_is_infeasible_and_the_leaves_cover_all_patterns(seed: int, tmp_path: Path) -> None:
    network, question = rivals(seed)
    done, read = written(tmp_path, network, question)
    assert (read.inputs, read.outputs, read.neurons, len(read.cases)) == (2, 3, 7, 3)
    assert (read.lower == -1).all() and (read.upper == 1).all()
    for part, ((row, bound),) in zip(question.regions, read.cases, strict=True):
        assert (row == part.on_output[0]).all() and bound == -part.constant[0]
    for signs in product([True, False], repeat=7):
        pattern = dict(enumerate(signs, start=1))
        inside = [leaf for leaf in read.leaves if all(pattern[abs(n)] == (n > 0) for n in leaf)]
        assert len(inside) == 1
        assert all(infeasible(network, read, pattern, case) for case in read.cases)
    assert len(read.leaves) > 1
    assert check(*done.files).valid


@pytest.mark.parametrize("seed", range(3))
def test_leaves_need_no_more_splits(seed: int, tmp_path: Path) -> None:
    """Each leaf of one region is refuted by a relaxation: the tree is the proof's, not any that covers all."""
    network, question = problem("fc", seed, 1e-3)
    row = np.array([1.0, 0.0])
    box = question.regions[0].box
    least = milp_minimum(network, box, row, 0.0).value
    done, read = written(tmp_path, network, prop(network, region(box, row, 1e-3 - least)))
    ends = [torch.from_numpy(end) for end in (box.lower, box.upper)]
    exact = surebound.bounds(model(network), (box.lower, box.upper), method="milp")
    layers = [(low[0], high[0]) for low, high in zip(exact.lower[:-1], exact.upper[:-1], strict=True)]
    for leaf in read.leaves:
        splits, first = {}, 0
        for k, (low, _) in enumerate(layers):
            mine = {abs(n) - 1 - first: np.sign(n) for n in leaf if first < abs(n) <= first + len(low)}
            splits[k] = np.array([mine.get(i, 0) for i in range(len(low))], np.int8)
            first += len(low)
        found = planet_bounds(network, *ends, layers, torch.from_numpy(row)[None], splits=splits)
        assert found.value[0] + 1e-3 - least > 0
    found = check(*done.files)
    assert len(read.leaves) == max(found.leaves - found.claims, 2)


def test_a_proof_without_splits_gets_one(tmp_path: Path) -> None:
    network, question = rivals(0)
    easy = prop(network, replace(question.regions[2], constant=question.regions[2].constant + 1e3))
    _, read = written(tmp_path, network, easy)
    assert read.leaves == [[1], [-1]] and len(read.cases) == 1


def test_the_common_tree_decides_each_neuron_once() -> None:
    a = np.array([[2, 1, -1], [0, -2, -3]], np.int32)  # N_3, then N_1 where it is active
    b = np.array([[0, -1, 1], [2, -2, 2], [1, -3, -4]], np.int32)  # N_1, then N_3, then N_2
    found = list(common_leaves([(a, 0), (b, 0)]))
    # where N_3 and not N_1, b's N_3 is decided; where not N_3, b is whole but for its own N_3
    assert sorted(found) == sorted([[3, 1], [3, -1], [-3, 1], [-3, -1, 2], [-3, -1, -2]])
    assert list(common_leaves([])) == [[1], [-1]]


def test_ends_read_back_as_they_are(tmp_path: Path) -> None:
    network, _ = rivals(0)
    box = Box(np.array([1e-9, -1 / 3]), np.array([0.1 + 0.2, 5e-324]))
    _, read = written(tmp_path, network, prop(network, region(box, np.eye(3)[0], 1e3)))
    assert (read.lower == box.lower).all() and (read.upper == box.upper).all()
    assert "e" not in (tmp_path / "p.aptp").read_text().replace("declare", "").replace("assert", "").replace("Re", "")


def test_what_the_format_cannot_say_is_refused(tmp_path: Path) -> None:
    network, question = rivals(0)
    done = prove(tmp_path, network, question, "upb", NEURONS)
    box, first = question.regions[0].box, np.eye(3)[0]
    small = Box(box.lower, box.upper / 2)
    with pytest.raises(UsageError, match=r"^the format aptp cannot say this proof: .* more than 3 leaves"):
        save_aptp(done.verdict.proof, tmp_path / "p.aptp", network=done.net, prop=question, most=3)
    assert not (tmp_path / "p.aptp").exists() and not list(tmp_path.glob(".*"))
    on_input = np.array([[1.0, 0.0]])
    for wrong, parts in {
        "2 boxes": [region(box, first, 0.0), region(small, first, 0.0)],
        "0 boxes": [region(Box(box.upper, box.lower), first, 0.0)],
        "compares other things": [region(box, 2 * first, 0.0)],
        "than an output with an output or a number": [region(box, first, 0.0, on_input=on_input)],
        "other things than": [region(box, first - np.eye(3)[1], 0.5)],
        "from below by a number": [region(box, -first, 0.5), region(box, first, 0.5)],
        "no row": [replace(question.regions[0], on_output=np.zeros((0, 3)), constant=np.zeros(0), strict=np.zeros(0))],
    }.items():
        with pytest.raises(UsageError, match=wrong):
            check_sayable(done.net, prop(network, *parts))
    bisected = prove(tmp_path, network, question, "input")
    with pytest.raises(UsageError, match="bisected the box"):
        save_aptp(bisected.verdict.proof, tmp_path / "p.aptp", network=bisected.net, prop=question)


def test_networks_with_other_activations_are_refused(tmp_path: Path) -> None:
    pool = helper.make_node("MaxPool", [X], ["y"], kernel_shape=[2, 2])
    question = prop(
        random_fc(np.random.default_rng(0), (2, 3, 1)), region(Box(np.zeros(2), np.ones(2)), np.ones(1), 0.0)
    )
    with pytest.raises(UsageError, match="the operation MaxPool; expected Relu nodes only"):
        check_sayable(save(tmp_path / "a.onnx", [pool], (1, 1, 4, 4)), question)
    with pytest.raises(UsageError, match="no Relu node"):
        check_sayable(save(tmp_path / "b.onnx", [helper.make_node("Flatten", [X], ["y"])], (1, 2)), question)
    twice = [helper.make_node("Relu", [X], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    net = save(tmp_path / "c.onnx", twice, (1, 1))
    holds = prop(random_fc(np.random.default_rng(0), (1, 3, 1)), region(Box(-np.ones(1), np.ones(1)), np.ones(1), 0.5))
    verdict = verify(load_model(net), holds, Options(proof=True))
    with pytest.raises(UsageError, match="2 Relu nodes, of which 1 matter"):
        save_aptp(verdict.proof, tmp_path / "p.aptp", network=net, prop=holds)


def test_command_line(tmp_path: Path) -> None:
    network, question = rivals(0)
    done = prove(tmp_path, network, question, "upb", NEURONS)
    options = ("verify", done.net, done.property, "--proof", tmp_path / "p.aptp", "--proof-format", "aptp", "--quiet")
    ran = run(*options)
    assert (ran.returncode, ran.stdout) == (0, "unsat\n"), ran.stderr
    assert len(Read((tmp_path / "p.aptp").read_text()).leaves) > 1
    ran = run(*options, "--branching", "input")
    assert ran.returncode == 2 and "the format has no bisections" in ran.stderr
    ran = run("verify", done.net, done.property, "--proof-format", "aptp")
    assert ran.returncode == 2 and "without --proof" in ran.stderr

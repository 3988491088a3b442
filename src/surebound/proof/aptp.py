"""The tree of a proof as an Activation Pattern Tree Proof, which APTPchecker reads (github.com/dynaroars/aptpchecker).

Such a file has the property, and one tree of splits whose every leaf is to be infeasible; it has no bounds and no
multipliers, so whoever checks it solves a program for each leaf. The format knows one box, comparisons of an output
with another or with a number, and neurons N_1, N_2, … through all ReLU nodes of the ONNX file.
"""

from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from surebound.errors import UsageError
from surebound.files import replacing
from surebound.load.onnx_file import read_onnx
from surebound.problem import Property, Region
from surebound.proof.record import Step
from surebound.proof.write import Proof

LEAVES = 1_000_000
_PIECEWISE = frozenset(
    ("Abs", "Clip", "GlobalMaxPool", "LeakyRelu", "Max", "MaxPool", "Min", "PRelu", "ReduceMax", "ReduceMin")
)  # what becomes ReLUs that the file does not have

Tree = NDArray[np.int32]  # (splits, 3): neuron, child where it is active, child where not; below 0 a leaf


def check_sayable(network: str | Path, prop: Property) -> None:
    """Raise UsageError if the format has no words for the network or the property."""
    file = read_onnx(Path(network))
    if (len(file.inputs), len(file.outputs)) != (1, 1):
        raise _unsayable(
            f"'{network}' has {len(file.inputs)} inputs and {len(file.outputs)} outputs; expected one of each"
        )
    operations = [node.op_type for node in file.model.graph.node]
    if other := sorted(_PIECEWISE.intersection(operations)):
        raise _unsayable(f"'{network}' has the operation {other[0]}; expected Relu nodes only")
    if "Relu" not in operations:
        raise _unsayable(f"'{network}' has no Relu node, and a tree needs one to split")
    _property(prop)


def save_aptp(proof: Proof, path: str | Path, *, network: str | Path, prop: Property, most: int = LEAVES) -> None:
    """Write a proof's tree. Raises UsageError where the format cannot say it."""
    check_sayable(network, prop)
    relus = sum(node.op_type == "Relu" for node in read_onnx(Path(network)).model.graph.node)
    if relus != len(proof.widths):
        raise _unsayable(f"'{network}' has {relus} Relu nodes, of which {len(proof.widths)} matter; expected all")
    trees = [_tree(step) for record in proof.records for step in record.steps if step.about["kind"] == "region"]
    lines = [f"(declare-const X_{i} Real)" for i in range(prop.inputs)]
    lines += [f"(declare-const Y_{j} Real)" for j in range(prop.outputs)]
    lines += [f"(declare-pwl N_{n} ReLU)" for n in range(1, sum(proof.widths) + 1)]
    with replacing(path) as partial, partial.open("w", encoding="ascii") as file:
        box, *output = _property(prop)
        file.writelines(f"{line}\n" for line in (*lines, *box, "(assert (or"))
        for count, leaf in enumerate(common_leaves([tree for tree in trees if tree is not None])):
            if count >= most:
                raise _unsayable(f"the regions' trees make one of more than {most:,} leaves; expected fewer")
            file.write(f"(and {' '.join(map(_literal, leaf))})\n")
        file.writelines(f"{line}\n" for line in ("))", *output[0]))


def common_leaves(trees: Sequence[tuple[Tree, int]]) -> Iterator[list[int]]:
    """The leaves of a tree that refines all, each as its path: neuron n + 1 where it is active, else −n − 1.

    Under each leaf of one tree hangs the next, but for what is decided on the way. A tree comes with its root.
    """
    trees = trees or [(np.array([[0, -1, -2]], np.int32), 0)]  # one literal, at least
    waiting: list[tuple[int, int, list[int]]] = [(0, trees[0][1], [])]  # tree, node in it, path so far
    while waiting:
        which, node, path = waiting.pop()
        decided = {abs(literal): literal > 0 for literal in path}
        while True:
            if node < 0:
                which += 1
                if which == len(trees):
                    yield path
                    break
                node = trees[which][1]
                continue
            neuron, active, inactive = trees[which][0][node].tolist()
            if neuron + 1 in decided:
                node = active if decided[neuron + 1] else inactive
                continue
            waiting.append((which, inactive, [*path, -neuron - 1]))
            waiting.append((which, active, [*path, neuron + 1]))
            break


def _tree(step: Step) -> tuple[Tree, int] | None:
    """A region's tree and its root, None for one that is a leaf."""
    if "rebound" in step.about:
        raise _unsayable("the search bisected the box; expected another --branching than input")
    members: dict[str, Any] = {} if step.forest is None else step.forest.written(step.root)[0]
    return (members["tree"], int(members["roots"][0])) if len(members.get("tree", ())) else None


def _literal(literal: int) -> str:
    return f"(>= N_{literal} 0)" if literal > 0 else f"(< N_{-literal} 0)"


def _property(prop: Property) -> tuple[list[str], list[str]]:
    """The lines about inputs, and those about outputs."""
    regions = [region for region in prop.regions if not region.box.empty]
    boxes = {region.box.key for region in regions}
    if len(boxes) != 1:
        raise _unsayable(f"the property has {len(boxes)} boxes that are not empty; expected one")
    cases = [[_row(region, r) for r in range(len(region.constant))] for region in regions]
    if not all(cases):
        raise _unsayable("a region of the property has no row; expected comparisons of outputs")
    box, lines = regions[0].box, []
    for i, (low, high) in enumerate(zip(box.lower.tolist(), box.upper.tolist(), strict=True)):
        lines += [f"(assert (>= X_{i} {_decimal(low)}))", f"(assert (<= X_{i} {_decimal(high)}))"]
    if len(cases) == 1:
        return lines, [f"(assert {row})" for row in cases[0]]
    if any(row.startswith("(>=") for rows in cases for row in rows):  # which its reader takes for a part of the tree
        raise _unsayable("one of several regions bounds an output from below by a number; expected one region")
    return lines, ["(assert (or", *(f"(and {' '.join(rows)})" for rows in cases), "))"]


def _row(region: Region, r: int) -> str:
    """A row as a comparison."""
    terms = sorted((float(c), j) for j, c in enumerate(region.on_output[r].tolist()) if c)
    constant, mentions_inputs = float(region.constant[r]), region.on_input is not None and region.on_input[r].any()
    match [c for c, _ in terms]:
        case [-1.0, 1.0] if not constant and not mentions_inputs:
            return f"(<= Y_{terms[1][1]} Y_{terms[0][1]})"
        case [1.0] if not mentions_inputs:
            return f"(<= Y_{terms[0][1]} {_decimal(-constant)})"
        case [-1.0] if not mentions_inputs:
            return f"(>= Y_{terms[0][1]} {_decimal(constant)})"
    raise _unsayable("a row of the property compares other things than an output with an output or a number")


def _decimal(value: float) -> str:
    """The shortest decimals, without an exponent, that read back as the same float64."""
    return format(Decimal(repr(value)), "f") if value else "0.0"


def _unsayable(why: str) -> UsageError:
    return UsageError(f"the format aptp cannot say this proof: {why}")

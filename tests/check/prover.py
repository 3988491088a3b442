"""A small, slow prover that shares no code with surebound: chains of affine layers and ReLUs, and proofs about them.

    chain = Chain.random(rng, [2, 4, 3])
    problem = Problem(chain, [Region(low, high, rows)])
    proof = prove(problem)              # None if it does not find one
    files = write(tmp_path, problem, proof)

A proof is a dictionary of arrays and the JSON beside them, so that tests can change anything before it is written. The
arithmetic here is plain float64: claims keep a margin of their own.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

MARGIN = 1e-9


@dataclass
class Layer:
    """W x + b, dense; written as a Gemm, a MatMul and an Add, or (kernel, shape, stride, pad) as a Conv."""

    weight: np.ndarray
    bias: np.ndarray
    kind: str = "gemm"
    conv: tuple[np.ndarray, tuple[int, int, int], int, int] | None = None


@dataclass
class Chain:
    """Affine layers with ReLUs between them. All numbers are float32."""

    layers: list[Layer]

    @staticmethod
    def random(rng: np.random.Generator, widths: Sequence[int], scale: float = 1.0) -> "Chain":
        layers = []
        for a, b in pairwise(widths):
            weight = np.float32(rng.normal(size=(b, a)) * scale / np.sqrt(a) * 1.5)
            kind = str(rng.choice(["gemm", "matmul"]))
            layers.append(Layer(weight.astype(float), np.float32(rng.normal(size=b) / 2).astype(float), kind))
        return Chain(layers)

    @staticmethod
    def convolutional(rng: np.random.Generator, shape: tuple[int, int, int], channels: int, outputs: int) -> "Chain":
        """One convolution with a stride and pads, then a matrix."""
        kernel = np.float32(rng.normal(size=(channels, shape[0], 3, 3)) / 3).astype(float)
        weight, places = dense(kernel, shape, 2, 1)
        bias = np.float32(rng.normal(size=channels) / 3).astype(float)
        first = Layer(weight, np.repeat(bias, places), "conv", (kernel, shape, 2, 1))
        last = np.float32(rng.normal(size=(outputs, len(weight))) / 3).astype(float)
        return Chain([first, Layer(last, np.float32(rng.normal(size=outputs)).astype(float))])

    @property
    def inputs(self) -> int:
        return self.layers[0].weight.shape[1]

    @property
    def outputs(self) -> int:
        return len(self.layers[-1].weight)

    @property
    def widths(self) -> list[int]:
        return [len(layer.weight) for layer in self.layers[:-1]]

    def exact(self, x: Sequence[Fraction]) -> list[Fraction]:
        """f(x) in rational arithmetic."""
        values = list(x)
        for k, layer in enumerate(self.layers):
            rows = zip(layer.weight.tolist(), layer.bias.tolist(), strict=True)
            values = [sum((Fraction(w) * v for w, v in zip(row, values, strict=True)), Fraction(b)) for row, b in rows]
            if k + 1 < len(self.layers):
                values = [max(v, Fraction(0)) for v in values]
        return values

    def onnx(self) -> bytes:
        nodes, weights, shape, name = [], [], (1, self.inputs), "x"
        start = self.layers[0].conv
        if start is not None:
            shape = (1, *start[1])

        def constant(label: str, value: np.ndarray) -> str:
            weights.append(numpy_helper.from_array(np.asarray(value, dtype=np.float32), label))
            return label

        for k, layer in enumerate(self.layers):
            w, b, y = f"w{k}", f"b{k}", f"y{k}"
            if layer.conv is not None:
                kernel, _, stride, pad = layer.conv
                bias = layer.bias.reshape(len(kernel), -1)[:, 0]
                arguments = [name, constant(w, kernel), constant(b, bias)]
                nodes.append(helper.make_node("Conv", arguments, [y], strides=[stride] * 2, pads=[pad] * 4))
                nodes.append(helper.make_node("Relu", [y], [f"r{k}"]))
                nodes.append(helper.make_node("Flatten", [f"r{k}"], [f"f{k}"]))
                name = f"f{k}"
                continue
            if layer.kind == "gemm":
                nodes.append(
                    helper.make_node("Gemm", [name, constant(w, layer.weight), constant(b, layer.bias)], [y], transB=1)
                )
            else:
                nodes.append(helper.make_node("MatMul", [name, constant(w, layer.weight.T)], [f"m{k}"]))
                nodes.append(helper.make_node("Add", [f"m{k}", constant(b, layer.bias)], [y]))
            name = y
            if k + 1 < len(self.layers):
                nodes.append(helper.make_node("Relu", [y], [f"r{k}"]))
                name = f"r{k}"
        graph = helper.make_graph(
            nodes,
            "chain",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, self.outputs])],
            weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
        return bytes(model.SerializeToString(deterministic=True))


def dense(kernel: np.ndarray, shape: tuple[int, int, int], stride: int, pad: int) -> tuple[np.ndarray, int]:
    """A convolution as a matrix, entry by entry; and its number of places."""
    out, channels, kh, kw = kernel.shape
    size = [(n + 2 * pad - k) // stride + 1 for n, k in zip(shape[1:], (kh, kw), strict=True)]
    matrix = np.zeros((out, *size, *shape))
    for o, i, j, c, a, b in np.ndindex(out, *size, channels, kh, kw):
        y, x = i * stride + a - pad, j * stride + b - pad
        if 0 <= y < shape[1] and 0 <= x < shape[2]:
            matrix[o, i, j, c, y, x] += kernel[o, c, a, b]
    return matrix.reshape(out * size[0] * size[1], -1), size[0] * size[1]


@dataclass
class Region:
    """A box, and rows (c, d, e) of which all must hold: c·y + d·x + e <= 0."""

    low: np.ndarray
    high: np.ndarray
    rows: list[tuple[np.ndarray, np.ndarray, float]]


@dataclass
class Problem:
    """A network and a property, written without rounding: all numbers are float64."""

    chain: Chain
    regions: list[Region]

    def vnnlib(self) -> bytes:
        lines = [f"(declare-const X_{i} Real)" for i in range(self.chain.inputs)]
        lines += [f"(declare-const Y_{i} Real)" for i in range(self.chain.outputs)]
        cases = []
        for region in self.regions:
            parts = []
            for i, (low, high) in enumerate(zip(region.low, region.high, strict=True)):
                parts += [f"(>= X_{i} {decimal(low)})", f"(<= X_{i} {decimal(high)})"]
            for c, d, e in region.rows:
                terms = [f"(* {decimal(v)} Y_{i})" for i, v in enumerate(c) if v]
                terms += [f"(* {decimal(v)} X_{i})" for i, v in enumerate(d) if v]
                parts.append(f"(<= (+ {' '.join(terms)} {decimal(e)}) 0)")
            cases.append(f"(and {' '.join(parts)})")
        lines.append(f"(assert (or {' '.join(cases)}))")
        return "\n".join(lines).encode()

    def boxes(self) -> list[int]:
        """The number of each region's box."""
        known: dict[bytes, int] = {}
        return [known.setdefault(r.low.tobytes() + r.high.tobytes(), len(known)) for r in self.regions]


def decimal(value: float) -> str:
    """The exact value of a float64."""
    from decimal import Decimal

    return format(Decimal(float(value)), "f")


@dataclass
class Proof:
    """What is written: `about` as JSON, and arrays by name."""

    about: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def step(self, entry: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        number = len(self.about["steps"])
        self.about["steps"].append(entry)
        self.arrays.update({f"s{number}/{name}": value for name, value in arrays.items()})

    def save(self, path: Path, *, compress: bool = True) -> Path:
        about = np.frombuffer(json.dumps(self.about).encode(), dtype=np.uint8)
        with path.open("wb") as file:
            (np.savez_compressed if compress else np.savez)(file, about=about, **self.arrays)
        return path


def start(problem: Problem) -> Proof:
    """A proof without steps."""
    return Proof(
        {
            "format": "surebound proof",
            "version": 1,
            "writer": "tests",
            "network": hashlib.sha256(problem.chain.onnx()).hexdigest(),
            "property": hashlib.sha256(problem.vnnlib()).hexdigest(),
            "widths": problem.chain.widths,
            "steps": [],
        }
    )


def write(folder: Path, problem: Problem, proof: Proof) -> tuple[Path, Path, Path]:
    """The three files."""
    (folder / "net.onnx").write_bytes(problem.chain.onnx())
    (folder / "prop.vnnlib").write_bytes(problem.vnnlib())
    return folder / "net.onnx", folder / "prop.vnnlib", proof.save(folder / "proof.npz")


# ---- bounds

Bounds = list[tuple[np.ndarray, np.ndarray]]


@dataclass
class Leaf:
    """Splits on the way to a leaf (neuron, sign), and what is stored about it."""

    splits: list[tuple[int, int]]
    alpha: np.ndarray  # of all neurons
    beta: np.ndarray  # of the splits


def slopes(bounds: Bounds, lines: str) -> np.ndarray:
    """The lower slopes of all neurons, 0 for those that are stable."""
    low, high = (np.concatenate([b[i] for b in bounds] or [np.zeros(0)]) for i in (0, 1))
    free = (low < 0) & (high > 0)
    s = np.where(free, high / np.where(free, high - low, 1), 0)
    return {"flat": 0 * s, "crown": np.where(free & (high > -low), 1.0, 0.0), "fastlin": s, "stored": s}[lines]


class Pass:
    """One backward pass and, at the point where its bound is taken, one forward: the bound and its gradients."""

    def __init__(
        self,
        chain: Chain,
        box: tuple[np.ndarray, np.ndarray],
        bounds: Bounds,
        start: tuple[int, np.ndarray, np.ndarray, float],
        leaf: Leaf,
        lines: str,
    ) -> None:
        top, c, d, e = start  # c·(output of layer `top`) + d·x + e
        first = np.cumsum([0, *chain.widths])
        fixed = dict(leaf.splits)
        beta = dict(zip([n for n, _ in leaf.splits], leaf.beta, strict=True))
        value, used = e, {}
        for k in range(top, -1, -1):
            layer = chain.layers[k]
            value += c @ layer.bias
            c = c @ layer.weight
            if k == 0:
                break
            low, high = bounds[k - 1]
            mu = np.zeros_like(c)
            line = np.zeros((len(c), 2))  # x = line[0] x̂ + line[1] as it was used
            for i in range(len(c)):
                n = int(first[k - 1]) + i
                if n in fixed:
                    line[i] = (1, 0) if fixed[n] > 0 else (0, 0)
                    mu[i] = (c[i] if fixed[n] > 0 else 0) - fixed[n] * beta[n]
                    continue
                if low[i] >= 0 or high[i] <= 0:
                    line[i] = (float(low[i] >= 0), 0)
                elif c[i] >= 0:
                    line[i] = (leaf.alpha[n], 0)
                elif lines == "flat":
                    line[i] = (0, high[i])
                else:
                    s = high[i] / (high[i] - low[i])
                    line[i] = (s, -s * low[i])
                mu[i] = c[i] * line[i, 0]
                value += c[i] * line[i, 1]
            used[k - 1] = (c, line)
            c = mu
        c = c + d
        x = np.where(c >= 0, *box)
        self.value = float(value + c @ x)
        self.alpha, self.beta = np.zeros(first[-1]), np.zeros(len(leaf.splits))
        for k in range(top):
            x = chain.layers[k].weight @ x + chain.layers[k].bias
            lam, line = used[k]
            self.alpha[first[k] : first[k + 1]] = np.where(lam >= 0, lam, 0) * x
            for j, (n, sign) in enumerate(leaf.splits):
                if first[k] <= n < first[k + 1]:
                    self.beta[j] = -sign * x[n - first[k]]
            x = line[:, 0] * x + line[:, 1]


def ascend(make: Any, leaf: Leaf, lines: str, steps: int = 60) -> tuple[float, Leaf]:
    """The best bound of a few steps along the gradients of α (if they are stored) and β."""
    best, rate = (make(leaf).value, leaf), 0.5
    for step in range(steps):
        at = make(leaf)
        if at.value > best[0]:
            best = at.value, leaf
        if best[0] > MARGIN:
            break
        size = max(np.abs(at.beta).max(initial=0), np.abs(at.alpha).max(initial=0), 1e-9)
        move = rate / (1 + step / 10) / size
        alpha = np.clip(leaf.alpha + move * at.alpha, 0, 1) if lines == "stored" else leaf.alpha
        leaf = Leaf(leaf.splits, alpha, np.maximum(leaf.beta + move * at.beta, 0))
    return best


def layer_bounds(chain: Chain, box: tuple[np.ndarray, np.ndarray], lines: str) -> Bounds:
    """Bounds of all layers by passes with some lines, the better of those and intervals; a margin is kept."""
    bounds: Bounds = []
    low, high = box
    for k, layer in enumerate(chain.layers[:-1]):
        w = layer.weight
        l0 = np.maximum(w, 0) @ low + np.minimum(w, 0) @ high + layer.bias
        h0 = np.maximum(w, 0) @ high + np.minimum(w, 0) @ low + layer.bias
        if lines != "interval":
            kind = "crown" if lines == "stored" else lines
            leaf = Leaf([], np.concatenate([slopes(bounds, kind), np.zeros(sum(chain.widths[k:]))]), np.zeros(0))
            zero = np.zeros(chain.inputs)
            for i, side in np.ndindex(len(w), 2):
                c = np.zeros(len(w))
                c[i] = 1 - 2 * side
                value = Pass(chain, box, bounds, (k, c, zero, 0.0), leaf, kind).value
                if side:
                    h0[i] = min(h0[i], -value)
                else:
                    l0[i] = max(l0[i], value)
        bounds.append((l0 - MARGIN, h0 + MARGIN))
        low, high = np.maximum(bounds[-1][0], 0), np.maximum(bounds[-1][1], 0)
    return bounds


# ---- proofs


@dataclass
class Tree:
    """Rows of a tree, and its leaves in order."""

    rows: list[list[int]] = field(default_factory=list)
    leaves: list[tuple[Leaf, np.ndarray]] = field(default_factory=list)  # with π
    root: int = 0


def search(
    problem: Problem, number: int, bounds: Bounds, lines: str, rng: np.random.Generator, most: int
) -> Tree | None:
    """Split neurons until each leaf is proved, or there are too many leaves."""
    chain, region = problem.chain, problem.regions[number]
    first = np.cumsum([0, *chain.widths])
    low, high = (np.concatenate([b[i] for b in bounds] or [np.zeros(0)]) for i in (0, 1))
    free = [int(n) for n in np.argsort(-np.minimum(-low, high)) if low[n] < 0 < high[n]]
    kind = "crown" if lines == "stored" else lines
    tree, pending = Tree(), [([], None)]
    while pending:
        splits, parent = pending.pop()
        best = None
        for pi in weights(len(region.rows), rng):
            c = sum((p * r[0] for p, r in zip(pi, region.rows, strict=True)), np.zeros(chain.outputs))
            d = sum((p * r[1] for p, r in zip(pi, region.rows, strict=True)), np.zeros(chain.inputs))
            e = float(sum(p * r[2] for p, r in zip(pi, region.rows, strict=True)))

            def make(leaf: Leaf, c: Any = c, d: Any = d, e: Any = e) -> Pass:
                return Pass(chain, (region.low, region.high), bounds, (len(chain.layers) - 1, c, d, e), leaf, lines)

            value, leaf = ascend(make, Leaf(splits, slopes(bounds, kind), np.zeros(len(splits))), lines)
            if best is None or value > best[0]:
                best = value, leaf, pi
            if value > MARGIN:
                break
        assert best is not None
        if best[0] > MARGIN:
            place = -1 - len(tree.leaves)
            tree.leaves.append((best[1], best[2]))
        else:
            left = [n for n in free if n not in dict(splits)]
            if not left or len(tree.leaves) + len(pending) > most:
                return None
            place = len(tree.rows)
            tree.rows.append([left[0], 0, 0])
            pending += [([*splits, (left[0], -1)], (place, 2)), ([*splits, (left[0], 1)], (place, 1))]
        if parent is None:
            tree.root = place
        else:
            tree.rows[parent[0]][parent[1]] = place
    assert first[-1] == len(low)
    return tree


def weights(rows: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Some π to try: unit vectors, the mean, and random ones."""
    return [
        *np.eye(rows),
        *([np.full(rows, 1 / rows)] if rows > 1 else []),
        *(rng.dirichlet(np.ones(rows), 3) if rows > 1 else []),
    ]


def claims(proof: Proof, box: int, bounds: Bounds, lines: str, first: Sequence[int]) -> None:
    """A step for each layer that claims all its bounds."""
    for k, (low, high) in enumerate(bounds):
        width = len(low)
        arrays = {
            "neuron": np.tile(np.arange(width, dtype=np.int32), 2),
            "side": np.repeat(np.array([1, -1], dtype=np.int8), width),
            "bound": np.concatenate([low, high]),
        }
        entry = {"kind": "layer", "box": box, "layer": k, "lines": "flat" if lines == "interval" else lines}
        if lines == "stored":
            alpha = slopes(bounds[:k], "crown")
            arrays["free"] = np.arange(first[k], dtype=np.int32)
            arrays["c0/alpha"] = np.tile(np.uint8(np.round(128 * alpha)), (2 * width, 1))
        proof.step(entry, arrays)


def prove(
    problem: Problem,
    *,
    lines: str = "crown",
    layers: str = "crown",
    seed: int = 0,
    most: int = 64,
    chunk: int | None = None,
    dtype: Any = np.float64,
) -> Proof | None:
    """A proof by splitting neurons, or None if none was found."""
    rng, proof, boxes = np.random.default_rng(seed), start(problem), problem.boxes()
    first = np.cumsum([0, *problem.chain.widths]).tolist()
    known: dict[int, Bounds] = {}
    for number, region in enumerate(problem.regions):
        box = boxes[number]
        if box not in known:
            known[box] = layer_bounds(problem.chain, (region.low, region.high), layers)
            claims(proof, box, known[box], layers, first)
        tree = search(problem, number, known[box], lines, rng, most)
        if tree is None:
            return None
        proof.step(*region_step(problem, number, box, tree, lines, chunk, dtype))
    return proof


def region_step(
    problem: Problem, number: int, box: int, tree: Tree, lines: str, chunk: int | None, dtype: Any
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    size = chunk or len(tree.leaves)
    entry: dict[str, Any] = {"kind": "region", "box": box, "region": number, "lines": lines}
    entry |= {"chunks": -(-len(tree.leaves) // size)}
    arrays: dict[str, np.ndarray] = {}
    if tree.rows:
        arrays["tree"] = np.array(tree.rows, dtype=np.int32)
        arrays["roots"] = np.array([tree.root], dtype=np.int32)
    if lines == "stored":
        arrays["free"] = np.arange(sum(problem.chain.widths), dtype=np.int32)
    for c in range(entry["chunks"]):
        leaves = tree.leaves[c * size : (c + 1) * size]
        arrays[f"c{c}/beta"] = np.concatenate([leaf.beta for leaf, _ in leaves]).astype(dtype)
        if lines == "stored":
            arrays[f"c{c}/alpha"] = np.array([leaf.alpha for leaf, _ in leaves]).astype(dtype)
        if len(problem.regions[number].rows) > 1 or entry["chunks"] > 1:
            arrays[f"c{c}/pi"] = np.array([pi for _, pi in leaves]).astype(dtype)
    return entry, arrays


def planed(problem: Problem, proof: Proof, rng: np.random.Generator) -> Proof:
    """A proof by splitting neurons with planes above some of them, which all leaves are to be bounded with.

    Mostly, they are those that a neuron's own weights suggest: part of what it reads, and the rest at its end.
    """
    first = np.cumsum([0, *problem.chain.widths])
    for number, step in enumerate(proof.about["steps"]):
        if step["kind"] != "region" or "rebound" in step:
            continue
        for k, (layer, width) in enumerate(zip(problem.chain.layers, problem.chain.widths, strict=False)):
            neuron = rng.permutation(width)[: int(rng.integers(1, width + 1))]
            weight = np.zeros((len(neuron), problem.chain.inputs + int(first[k])))
            read = layer.weight.shape[1]
            t = rng.choice([0.0, 1.0, rng.random()], size=(len(neuron), read))
            weight[:, weight.shape[1] - read :] = np.float32(t * layer.weight[neuron])
            kappa = rng.choice([0.0, 0.5, 1.0], size=(2, len(neuron))) if rng.random() < 0.3 else np.eye(2)[0][:, None]
            arrays = {"neuron": neuron.astype(np.int32), "weight": weight, "kappa": kappa * np.ones((2, len(neuron)))}
            proof.arrays |= {f"s{number}/p{k}/{name}": value for name, value in arrays.items()}
        for chunk in range(step.get("chunks", 1)):
            proof.arrays[f"s{number}/c{chunk}/planes"] = np.zeros((1, 0), np.uint8)
    return proof


def bisect(problem: Problem, *, most: int = 200) -> Proof | None:
    """A proof by cutting the box, with new bounds for every leaf."""
    proof, chain, boxes = start(problem), problem.chain, problem.boxes()
    neurons = sum(chain.widths)
    for number, region in enumerate(problem.regions):
        rows: list[list[int]] = []
        at: list[float] = []
        chosen: list[int] = []
        root, pending = 0, [(region.low, region.high, None)]
        while pending:
            low, high, parent = pending.pop()
            bounds = layer_bounds(chain, (low, high), "crown")
            leaf = Leaf([], slopes(bounds, "crown"), np.zeros(0))
            top = len(chain.layers) - 1
            values = [Pass(chain, (low, high), bounds, (top, *row), leaf, "crown").value for row in region.rows]
            if max(values) > 1e-6:
                place = -1 - len(chosen)
                chosen.append(int(np.argmax(values)))
            else:
                if len(chosen) + len(pending) > most:
                    return None
                place, i = len(rows), int(np.argmax(high - low))
                middle = float((low[i] + high[i]) / 2)
                rows.append([neurons + i, 0, 0])
                at.append(middle)
                left, right = high.copy(), low.copy()
                left[i] = right[i] = middle
                pending += [(right, high, (place, 2)), (low, left, (place, 1))]
            if parent is None:
                root = place
            else:
                rows[parent[0]][parent[1]] = place
        arrays = {"c0/row": np.array(chosen, dtype=np.int32)}
        if rows:
            arrays |= {
                "tree": np.array(rows, dtype=np.int32),
                "at": np.array(at),
                "roots": np.array([root], dtype=np.int32),
            }
        entry = {"kind": "region", "box": boxes[number], "region": number, "lines": "crown", "rebound": "crown"}
        proof.step({**entry, "chunks": 1}, arrays)
    return proof


def random_problem(seed: int, *, violated: bool = False) -> Problem:
    """A random chain with a property of one to three regions, over one or two boxes, with one to three rows each.

    Its rows hold by a random margin, tight enough that splits are needed now and then; or, if `violated`, the first
    region's rows all hold at a corner of its box.
    """
    rng = np.random.default_rng(seed)
    if seed % 7 == 6:
        chain = Chain.convolutional(rng, (2, 4, 4), 2, 2)
    else:
        widths = [
            int(rng.integers(1, 4)),
            *rng.integers(2, 6, size=int(rng.integers(1, 4))).tolist(),
            int(rng.integers(1, 4)),
        ]
        chain = Chain.random(rng, widths)
    regions: list[Region] = []
    for _ in range(int(rng.integers(1, 4))):
        if regions and rng.random() < 0.5:
            low, high = regions[0].low, regions[0].high
        else:
            low = np.float32(rng.normal(size=chain.inputs)).astype(float)
            high = low + np.float32(rng.choice([0.0, 0.1, 0.5, 1.5], size=chain.inputs, p=[0.1, 0.1, 0.5, 0.3]))
        rows = []
        points = rng.uniform(size=(200, chain.inputs)) * (high - low) + low
        for _ in range(int(rng.integers(1, 4))):
            c, d = rng.normal(size=chain.outputs), rng.normal(size=chain.inputs) * (rng.random() < 0.3)
            values = np.array([c @ evaluate(chain, x) + d @ x for x in points])
            rows.append((c, d, float(-values.min() + rng.choice([0.01, 0.03, 0.1, 0.5]) * (values.std() + 0.05))))
        regions.append(Region(low, high, rows))
    problem = Problem(chain, regions)
    if violated:
        violate(problem, 0, np.where(rng.random(chain.inputs) < 0.5, regions[0].low, regions[0].high), rng)
    return problem


def violate(problem: Problem, number: int, x: np.ndarray, rng: np.random.Generator) -> None:
    """Lower the constants of a region's rows until they all hold at x: some of them just so."""
    exact = [Fraction(v) for v in x.tolist()]
    y = problem.chain.exact(exact)
    region = problem.regions[number]
    for j, (c, d, _) in enumerate(region.rows):
        terms = [*zip(c.tolist(), y, strict=True), *zip(d.tolist(), exact, strict=True)]
        value = sum((Fraction(a) * b for a, b in terms), Fraction(0))
        e = float(-value)
        while Fraction(e) + value > 0:
            e = float(np.nextafter(e, -np.inf))
        region.rows[j] = (c, d, e - float(rng.choice([0.0, 0.0, 1e-12, 1e-6, 1e-2])))


def evaluate(chain: Chain, x: np.ndarray) -> np.ndarray:
    """f(x) in float64."""
    for k, layer in enumerate(chain.layers):
        x = layer.weight @ x + layer.bias
        x = np.maximum(x, 0) if k + 1 < len(chain.layers) else x
    return x


def check_model(content: bytes) -> None:
    """The network is a valid ONNX model."""
    onnx.checker.check_model(onnx.load_model_from_string(content))

"""The steps of a proof: bounds on neurons of a layer, and that a region is impossible.

Each step is a forest whose inner nodes split a neuron's sign, or cut the box, and whose leaves each give a lower bound.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from surebound.check.arithmetic import LIMIT, Arithmetic, Array, InvalidError
from surebound.check.bounds import Enclosure, Lines, Splits, Way, relax
from surebound.check.file import FLOATS, INT8, INT32, UINT8, Proof
from surebound.check.forest import Forest
from surebound.check.network import Network
from surebound.check.vnnlib import Property, Region

LINES = ("flat", "crown", "fastlin", "stored")
CACHE, MEMORY = 2**22, 2**27  # bytes of a batch's coefficients: at best, and at most
KEPT = 2**31  # bytes of the intervals of all boxes, about


Batch = tuple[Array, Array, list[Array], Way, Array]
"""Some leaves: their numbers, trees, paths (leaf's place, row of the tree, second child), lines and splits, and π."""


class Steps:
    """What is known so far, and the step that is being checked."""

    def __init__(self, network: Network, problem: Property, proof: Proof, arithmetic: Arithmetic) -> None:
        self.network, self.property, self.proof, self.arithmetic = network, problem, proof, arithmetic
        row = 8 * (max(op.room for op in network.ops) + 6 * max(network.sizes))
        self.batch = max(1, min(MEMORY // row, max(32, CACHE // row)))
        self.enclosures: dict[int, Enclosure] = {}
        self.proved: set[int] = set()
        self.claims = self.leaves = 0
        self.slack, self.tightest = np.inf, -1
        self.name, self.step = "", dict[str, Any]()
        self.report: Callable[[], None] = lambda: None

    def check(self, number: int, step: Any) -> None:
        """Check one step; raises `InvalidError` if it shows less than it claims."""
        self.name, self.step = f"s{number}", step if isinstance(step, dict) else {}
        box = self.number("box", len(self.property.boxes))
        lower, upper = (end[None] for end in self.property.boxes[box])
        if (lower > upper).any() or self.step.get("kind") not in ("layer", "region"):
            raise InvalidError("it is about an empty box, or neither about a layer nor about a region")
        if box not in self.enclosures:
            self.enclosures[box] = Enclosure(self.network, self.arithmetic, lower, upper)
            while len(self.enclosures) > 1 + KEPT // (40 * sum(self.network.sizes)):
                del self.enclosures[next(iter(self.enclosures))]
        if self.step["kind"] == "layer":
            self.layer(self.enclosures[box])
        else:
            self.region(box, self.enclosures[box])

    def number(self, name: str, below: int, default: int | None = None) -> int:
        value = self.step.get(name, default)
        if type(value) is not int or not 0 <= value < below:
            raise InvalidError(f"its {name} is {str(value)[:40]}; expected a number from 0 to {below - 1}")
        return value

    def has(self, name: str) -> bool:
        return self.proof.has(f"{self.name}/{name}")

    def read(self, name: str, types: Any, shape: Any, low: float = -LIMIT, high: float = LIMIT) -> Array:
        """An array of the step whose numbers all lie in a range."""
        values = self.proof.array(f"{self.name}/{name}", types, shape)
        if not ((values >= low) & (values <= high)).all():
            raise InvalidError(f"numbers of '{name}' lie outside {low:g} to {high:g}")
        return values

    # ---- the two kinds

    def layer(self, enclosure: Enclosure) -> None:
        """Bounds on neurons of a layer, which are then known beside the others."""
        net, layer = self.network, self.number("layer", len(self.network.layers))
        neuron = self.read("neuron", [INT32], [None], 0, net.widths[layer] - 1)
        side = self.read("side", [INT8], neuron.shape, -1, 1).astype(np.int64)
        bound = self.arithmetic.array(self.read("bound", FLOATS[1:], neuron.shape))
        if not side.all() or len(np.unique(2 * neuron.astype(np.int64) + (side > 0))) != len(neuron):
            raise InvalidError("a claim has no side, or is made twice")
        enclosure.extend(layer)
        low, high = (end.copy() for end in enclosure.layers[layer])
        shown = np.where(side > 0, low[0, neuron] >= bound, high[0, neuron] <= bound).astype(bool)
        if self.step.get("lines") == "interval":
            self.accept(shown, neuron, layer)
        else:
            forest, at = self.forest(len(neuron), int(net.first[layer]))
            if at is not None or "rebound" in self.step:
                raise InvalidError("it cuts inputs; expected that of regions only")
            for _, of, _, way, _ in self.batches(enclosure, forest, 0):
                if not shown[of].all():
                    value = enclosure.neurons(layer, neuron[of], side[of], way)
                    self.accept(shown[of] | (value >= side[of] * bound[of]).astype(bool), neuron[of], layer)
        for end, better, some in ((low, np.maximum, side > 0), (high, np.minimum, side < 0)):
            end[0, neuron[some]] = better(end[0, neuron[some]], bound[some])
        if (low > high).any():
            raise InvalidError("two bounds contradict each other")
        enclosure.learn(layer, low, high)
        self.claims += len(neuron)

    def accept(self, shown: Array, neuron: Array, layer: int) -> None:
        if not shown.all():
            raise InvalidError(f"the bound on neuron {neuron[~shown][0]} of layer {layer} is not shown")

    def region(self, box: int, enclosure: Enclosure) -> None:
        """No point of a region's box satisfies all its rows."""
        number = self.number("region", len(self.property.regions))
        rows = Rows(self.property, self.property.regions[number], self.arithmetic)
        forest, at = self.forest(1, int(self.network.first[-1]))
        rebound, other = self.step.get("rebound"), self.property.regions[number].box != box
        if other or rebound not in (None, "crown") or (at is not None and not rebound):
            raise InvalidError('it is about another box, or cuts inputs without "rebound": "crown"')
        enclosure.extend(len(self.network.layers))
        for leaves, _, path, way, pi in self.batches(enclosure, forest, len(rows.constant)):
            if rebound is None:
                value = rows.bound(enclosure, pi, way)
            else:
                low, high = (np.repeat(end[None], len(leaves), 0) for end in self.property.boxes[box])
                value = self.rebound(low, high, path, forest, at, rows, pi)
            least = int(np.argmin(value))
            if not value[least] > 0:
                found = float(value[least])
                raise InvalidError(f"leaf {leaves[least]} has the bound {found:.6g}; expected more than 0")
            if value[least] < self.slack:
                self.slack, self.tightest = value[least], number
        self.proved.add(number)

    def rebound(
        self, low: Array, high: Array, path: list[Array], forest: Forest, at: Array | None, rows: "Rows", pi: Array
    ) -> Array:
        """Bounds over each leaf's own part of the box, with bounds on layers that are made anew."""
        net, (place, row, second) = self.network, path
        if at is not None:
            for end, choose, side in ((high, np.minimum, 0), (low, np.maximum, 1)):
                cuts = second == side
                choose.at(end, (place[cuts], forest.split[row[cuts]] - net.first[-1]), at[row[cuts]])
        if (low > high).any():
            raise InvalidError("a cut lies outside of the box that it cuts")
        enclosure = Enclosure(net, self.arithmetic, low, high)
        lines = self.lines(enclosure, "crown")
        for layer in range(len(net.layers)):
            enclosure.extend(layer)
            ends = enclosure.layers[layer][0].copy(), enclosure.layers[layer][1].copy()
            boxes, neurons = np.nonzero((ends[0] < 0) & (ends[1] > 0))
            for first in range(0, len(boxes), self.batch):
                which, neuron = boxes[first : first + self.batch], neurons[first : first + self.batch]
                way = Way(lines, {}, which)
                for end, side, better in ((ends[0], 1, np.maximum), (ends[1], -1, np.minimum)):
                    value = side * enclosure.neurons(layer, neuron, side, way)
                    end[which, neuron] = better(end[which, neuron], value)
            enclosure.layers[layer] = ends
        enclosure.extend(len(net.layers))
        return rows.bound(enclosure, pi, Way(lines, {}, np.arange(len(low))))

    # ---- trees and leaves

    def lines(self, enclosure: Enclosure, kind: str, free: Any = None, alpha: Any = None) -> Any:
        """The lines of each layer, with stored slopes α for the neurons `free`. # alpha (rows, free)"""
        made: dict[int, Lines] = {}

        def of(layer: int) -> Lines:
            if layer not in made:
                low, high = enclosure.layers[layer]
                made[layer] = relax(self.arithmetic, low, high, kind)
                if alpha is not None:
                    local = free - self.network.first[layer]
                    column = np.flatnonzero((local >= 0) & (local < self.network.widths[layer]))
                    column = column[(low[0, local[column]] < 0) & (high[0, local[column]] > 0)]
                    lower = np.repeat(made[layer].lower, len(alpha), 0).astype(low.dtype)
                    lower[:, local[column]] = alpha[:, column]
                    made[layer] = made[layer]._replace(lower=lower)
            return made[layer]

        return of

    def forest(self, roots: int, neurons: int) -> tuple[Forest, Array | None]:
        """The step's trees, which split the first so many neurons, or cut inputs; and where they cut."""
        if not self.has("tree"):
            return Forest(np.zeros((0, 3), dtype=np.int32), -1 - np.arange(roots)), None
        tree = self.read("tree", [INT32], (None, 3))
        forest, begin, end, at = Forest(tree, self.read("roots", [INT32], (roots,))), 0, neurons, None
        if self.has("at"):
            begin, at = int(self.network.first[-1]), self.read("at", FLOATS[1:], (len(tree),))
            end = begin + self.network.sizes[0]
        if not ((forest.split >= begin) & (forest.split < end)).all():
            raise InvalidError("a tree splits what is not there, or neurons that do not come before its claims")
        return forest, at

    def batches(self, enclosure: Enclosure, forest: Forest, rows: int) -> Iterator[Batch]:
        """The leaves with what is stored about them, a few at a time."""
        kind, first, free = self.step.get("lines"), 0, np.zeros(0, dtype=np.int64)
        if kind not in LINES or ("rebound" in self.step and kind != "crown"):
            raise InvalidError(f"its lines are {str(kind)[:40]!r}; expected {', '.join(LINES)} (new bounds: crown)")
        if kind == "stored":
            free = self.read("free", [INT32], [None], 0, int(self.network.first[-1]) - 1)
        if len(np.unique(free)) != len(free) or self.step.get("leaves", forest.leaves) != forest.leaves:
            raise InvalidError("a neuron's slopes are stored twice, or it counts other leaves than its trees have")
        chunks = self.number("chunks", forest.leaves + 1, 1)
        for chunk in range(chunks):
            stored = self.chunk(f"c{chunk}/", len(free), rows, forest.leaves - first if chunk == chunks - 1 else None)
            count, used = stored.pop("count"), 0
            for begin in range(0, count, self.batch):
                part = slice(begin, min(begin + self.batch, count))
                leaves = first + np.arange(part.start, part.stop)
                if leaves[-1] >= forest.leaves:
                    raise InvalidError("its chunks hold more leaves than its trees")
                root, *path = forest.paths(leaves)
                beta = stored["beta"][used : used + len(path[0])] if "beta" in stored else np.zeros(len(path[0]))
                used += len(path[0])
                alpha = self.arithmetic.array(stored["alpha"][part]) / stored["unit"] if "alpha" in stored else None
                pi = stored["pi"][part] if "pi" in stored else np.full((len(leaves), rows), float(rows == 1))
                if "row" in stored:
                    pi = (np.arange(rows) == stored["row"][part][:, None]).astype(np.float64)
                splits = {} if "rebound" in self.step else self.splits(forest, path, self.arithmetic.array(beta))
                self.leaves += len(leaves)
                self.report()
                way = Way(self.lines(enclosure, kind, free, alpha), splits, None)
                yield leaves, root, path, way, self.arithmetic.array(pi)
            if "beta" in stored and used != len(stored["beta"]):
                raise InvalidError("there are more multipliers than splits")
            first += count
        if first != forest.leaves:
            raise InvalidError("its chunks hold fewer leaves than its trees")

    def chunk(self, name: str, free: int, rows: int, count: int | None) -> dict[str, Any]:
        """What a chunk stores about its leaves, and their number, which is known for the last one."""
        stored, names = dict[str, Any](), {"pi": (FLOATS, [rows], LIMIT), "row": ([INT32], [], rows - 1)}
        if self.step["lines"] == "stored":
            names = {"alpha": ([UINT8, *FLOATS], [free], 128), **names}
        for key, (types, shape, high) in names.items():
            if key == "alpha" or self.has(name + key):
                stored[key] = self.read(name + key, types, [count, *shape], 0, high)
                count = len(stored[key])
        if self.has(f"{name}beta"):
            stored["beta"] = self.read(f"{name}beta", FLOATS, [None], 0)
        if count is None:
            raise InvalidError("a chunk does not say how many leaves it has")
        stored |= {"count": count, "unit": 128 if "alpha" in stored and stored["alpha"].dtype == UINT8 else 1}
        if "alpha" in stored and (stored["alpha"] > stored["unit"]).any():
            raise InvalidError("a slope exceeds 1")
        return stored

    def splits(self, forest: Forest, path: list[Array], beta: Array) -> dict[int, Splits]:
        """The splits of a batch's leaves, layer by layer."""
        place, row, second = path
        neuron, first = forest.split[row], self.network.first
        if len(np.unique(place * first[-1] + neuron)) != len(neuron) or len(beta) != len(neuron):
            raise InvalidError("a neuron is split twice before a leaf, or there are fewer multipliers than splits")
        layer = np.searchsorted(first, neuron, side="right") - 1
        chosen = {k: layer == k for k in np.unique(layer).tolist()}
        return {k: Splits(place[of], neuron[of] - first[k], 1 - 2 * second[of], beta[of]) for k, of in chosen.items()}


class Rows:
    """The rows c·y + d·x + e of a region."""

    def __init__(self, problem: Property, region: Region, arithmetic: Arithmetic) -> None:
        exact = np.full((len(region.rows), problem.outputs + problem.inputs + 1), Fraction(0), dtype=object)
        for r, row in enumerate(region.rows):
            exact[r, -1] = row.constant
            for v, c in row.terms.items():
                exact[r, v + problem.outputs if v >= 0 else ~v] = c
        if not (abs(exact) <= LIMIT).all():
            raise InvalidError(f"a row of the property has a number beyond {LIMIT:g}")
        numbers, self.arithmetic = arithmetic.nearest(exact), arithmetic
        self.output, self.input, self.constant = np.split(numbers, [problem.outputs, -1], 1)

    def bound(self, enclosure: Enclosure, pi: Array, way: Way) -> Array:
        """Lower bounds of Σ π_j row_j, one for each row of pi. # pi (leaves, rows)"""
        start: dict[int, Array] = {}
        constant, error = (pi @ self.constant)[:, 0], (pi @ abs(self.constant))[:, 0]
        nodes = [(enclosure.network.output, self.output), *([(0, self.input)] if self.input.any() else [])]
        for node, numbers in nodes:
            start[node] = start[node] + pi @ numbers if node in start else pi @ numbers
            size = enclosure.size[node] if way.which is None else enclosure.size[node][way.which]
            error = error + ((pi @ abs(numbers)) * size).sum(1)
        # The numbers were rounded, multiplied and added up.
        return enclosure.backward(start, constant, self.arithmetic.gamma(len(pi.T) + 4) * error, way)

"""The steps of a proof: bounds on neurons of a layer, and that a region is impossible.

Each step is a forest whose inner nodes split a neuron's sign, or cut the box, and whose leaves each give a lower bound.
"""

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from surebound.check.arithmetic import LIMIT, Arithmetic, Array, CheckError, expect
from surebound.check.bounds import NONE, Enclosure, Planes, Way
from surebound.check.file import FLOATS, INT8, INT32, UINT8, Proof
from surebound.check.network import Network
from surebound.check.vnnlib import Property, Region

LINES = ("flat", "crown", "fastlin", "stored")
CACHE, MEMORY = 2**22, 2**27  # bytes of a batch's coefficients: at best, and at most
Progress = Callable[[int, int, int], None]  # (steps done, steps in all, leaves so far)
Leaves = tuple[Array, Array, list[Array], Way, Array]  # numbers, trees, paths, how they are bounded, π


class Forest:
    """Trees whose rows are (what is split, first child, second child); a child or root below 0 is leaf 0, 1, …"""

    def __init__(self, tree: Array, roots: Array, at: Array, deepest: int = 0) -> None:
        rows, self.leaves = len(tree), len(tree) + len(roots)  # a binary tree has one leaf more than inner nodes
        links = np.concatenate([tree[:, 1:].reshape(-1), roots]).astype(np.int64)
        places = np.where(links < 0, rows - 1 - links, links)  # rows first, then leaves
        once = (links < rows).all() and np.array_equal(np.sort(places), np.arange(rows + self.leaves))
        expect(once, "a tree does not reach each of its rows and leaves exactly once")
        above = np.repeat(np.arange(rows), 2)
        expect(((links[: 2 * rows] < 0) | (links[: 2 * rows] > above)).all(), "a child does not come after its row")
        self.split, self.at, self._deepest = tree[:, 0].astype(np.int64), at, deepest  # what is split; where it is cut
        # For each row, then each leaf: the row above it, or −1 − its root; and whether it is the second child.
        order = np.argsort(places)
        self._above = np.concatenate([above, -1 - np.arange(len(roots))])[order]
        self._second = np.concatenate([np.tile([0, 1], rows), np.zeros(len(roots), dtype=np.int64)])[order]

    def paths(self, leaves: Array) -> list[Array]:
        """The root of each leaf; and leaf by leaf, from the root, its place in `leaves`, row, second child or not."""
        at, up = len(self.split) + leaves, list[Array]()  # of all leaves at once: rows, and which child each came from
        while ((row := self._above[at]) >= 0).any():
            expect(len(up) < self._deepest, f"a tree is deeper than {self._deepest} rows")
            up.append(np.array([row, self._second[at]]))
            at = np.where(row >= 0, row, at)
        rows, second = np.array(up[::-1], dtype=np.int64).reshape(-1, 2, len(leaves)).transpose(1, 2, 0)
        inner = rows >= 0
        return [-1 - row, np.nonzero(inner)[0], rows[inner], second[inner]]


class Steps:
    """What is known so far, and the step that is being checked."""

    def __init__(self, network: Network, problem: Property, proof: Proof, progress: Progress) -> None:
        self.network, self.property, self.proof, self.arithmetic = network, problem, proof, network.arithmetic
        row = 8 * (max(op.room for op in network.ops) + 6 * max(network.sizes) + 3 * network.neurons)
        self.batch = max(1, min(MEMORY // row, max(32, CACHE // row)))
        self.progress, self.proved = progress, set[int]()
        self.claims = self.leaves = self.total = 0
        self.slack: Any = np.inf
        self.tightest: int | None = None
        self.at, self.step = -1, dict[str, Any]()  # the number of the step, and what is said about it

    def judge(self, hashes: dict[str, str]) -> str:
        """Why the proof shows too little about files with these hashes; nothing if it is valid."""
        try:
            for name, value in {**hashes, "widths": self.network.widths}.items():
                fits = self.proof.about.get(name) == value
                expect(fits, f"it is about another network or property: its '{name}' differs")
            with np.errstate(all="ignore"):  # overflow and NaN show nothing, and need no warning
                self.check(self.proof.about.get("steps"))
        except CheckError as error:
            return f"step {self.at}: {error}" if self.at >= 0 else str(error)
        return ""

    def check(self, steps: Any) -> None:
        """Go through the steps. Raises `CheckError` if one shows less than it claims, or all of them too little."""
        expect(isinstance(steps, list), "it has no list of steps")
        known, boxes, self.total = dict[int, Enclosure](), self.property.boxes, len(steps)
        for self.at, step in enumerate(steps):
            self.step = step if isinstance(step, dict) else {}
            box, kind = self.number("box", len(boxes)), self.step.get("kind")
            lower, upper = boxes[box][:, None]
            fits = (lower <= upper).all() and kind in ("layer", "region")
            expect(fits, "it is about an empty box, or neither about a layer nor about a region")
            if box not in known:  # what was known of another box is forgotten
                known = {box: Enclosure(self.network, lower, upper)}
            (self.layer if kind == "layer" else self.region)(known[box])
        self.at = -1
        left = [r for r, region in enumerate(self.property.regions) if not region.empty and r not in self.proved]
        expect(not left, f"nothing is proved of {len(left)} regions, the first of them region {min(left, default=0)}")

    def number(self, name: str, below: int, default: int | None = None) -> int:
        value: Any = self.step.get(name, default)
        expect(type(value) is int and 0 <= value < below, f"its {name} is {str(value)[:40]}; expected 0 to {below - 1}")
        return int(value)

    def has(self, name: str) -> bool:
        return f"s{self.at}/{name}.npy" in self.proof.members

    def read(self, name: str, types: Any, shape: Any, low: float = -LIMIT, high: float = LIMIT) -> Array:
        """An array of the step whose numbers all lie in a range."""
        values = self.proof.array(f"s{self.at}/{name}", types, shape)
        low, high = np.float64(low), np.float64(high)  # in float32, LIMIT is infinite
        expect(((values >= low) & (values <= high)).all(), f"numbers of '{name}' lie outside {low:g} to {high:g}")
        return values

    def layer(self, enclosure: Enclosure) -> None:
        """Bounds on neurons of a layer, which are then known beside the others."""
        net, layer = self.network, self.number("layer", len(self.network.layers))
        neuron = self.read("neuron", [INT32], [None], 0, net.widths[layer] - 1)
        side = self.read("side", [INT8], neuron.shape, -1, 1).astype(np.int64)
        bound = self.arithmetic.array(self.read("bound", FLOATS[1:], neuron.shape))
        once = len(np.unique(2 * neuron.astype(np.int64) + (side > 0))) == len(neuron)
        expect(side.all() and once, "a claim has no side, or is made twice")
        enclosure.extend(layer)
        low, high = (end.copy() for end in enclosure.layers[layer])
        shown = np.where(side > 0, low[0, neuron] >= bound, high[0, neuron] <= bound).astype(bool)
        for _, of, _, way, _ in self.batches(self.forest(len(neuron), int(net.first[layer])), 0):
            if not shown[of].all():
                value = enclosure.neurons(layer, neuron[of], side[of], way)
                short = neuron[of][~(shown[of] | (value >= side[of] * bound[of]).astype(bool))]
                expect(not len(short), f"bounds on neurons {short[:3]} of layer {layer} are not shown")
        for end, better, some in ((low, np.maximum, side > 0), (high, np.minimum, side < 0)):
            end[0, neuron[some]] = better(end[0, neuron[some]], bound[some])
        enclosure.learn(layer, low, high)
        self.claims += len(neuron)

    def region(self, enclosure: Enclosure) -> None:
        """No point of a region's box satisfies all its rows."""
        number, rebound = self.number("region", len(self.property.regions)), self.step.get("rebound")
        region = self.property.regions[number]
        fits = region.box == self.step["box"] and rebound in (None, "crown")
        expect(fits, 'it is about another box, or makes new bounds other than "crown"')
        rows, cuts = numbers(self.property, region, self.arithmetic), rebound is not None
        enclosure.extend(len(self.network.layers))
        forest = self.forest(1, self.network.neurons, cuts)
        planes = {} if cuts else self.planes(enclosure)
        for leaves, _, path, way, pi in self.batches(forest, len(region.rows), cuts, planes):
            value = self.rebound(forest, path, rows, pi) if cuts else bound(enclosure, rows, pi, way)
            lowest = value[least := int(np.argmin(value))]
            expect(lowest > 0, f"leaf {leaves[least]} has the bound {float(lowest):.6g}; expected more than 0")
            if lowest < self.slack:
                self.slack, self.tightest = lowest, number
        self.proved.add(number)

    def rebound(self, forest: Forest, path: list[Array], rows: Array, pi: Array) -> Array:
        """Bounds over each leaf's own part of the box, with bounds on layers that are made anew."""
        net, (place, row, second) = self.network, path
        low, high = (np.repeat(end[None], len(pi), 0) for end in self.property.boxes[self.step["box"]])
        for end, choose, side in ((high, np.minimum, 0), (low, np.maximum, 1)):
            cuts = second == side
            choose.at(end, (place[cuts], forest.split[row[cuts]] - net.neurons), forest.at[row[cuts]])
        expect((low <= high).all(), "a cut lies outside of the box that it cuts")
        enclosure = Enclosure(net, low, high)
        for layer in range(len(net.layers)):
            enclosure.extend(layer)
            ends = enclosure.layers[layer][0].copy(), enclosure.layers[layer][1].copy()
            boxes, neurons = np.nonzero((ends[0] < 0) & (ends[1] > 0))
            for first in range(0, len(boxes), self.batch):
                which, neuron = boxes[first : first + self.batch], neurons[first : first + self.batch]
                for end, side, better in ((ends[0], 1, np.maximum), (ends[1], -1, np.minimum)):
                    value = side * enclosure.neurons(layer, neuron, side, Way("crown", which=which))
                    end[which, neuron] = better(end[which, neuron], value)
            enclosure.layers[layer] = ends
        enclosure.extend(len(net.layers))
        return bound(enclosure, rows, pi, Way("crown", which=np.arange(len(low))))

    def forest(self, roots: int, neurons: int, cuts: bool = False) -> Forest:
        """The step's trees, which split the first so many neurons, or cut inputs."""
        if not self.has("tree"):
            return Forest(np.zeros((0, 3), dtype=np.int32), -1 - np.arange(roots), np.zeros(0))
        tree, inputs = self.read("tree", [INT32], (None, 3)), self.network.neurons
        at = self.read("at", FLOATS[1:], (len(tree),)) if cuts else np.zeros(0)
        begin, end, often = (inputs, inputs + self.network.sizes[0], 64) if cuts else (0, neurons, 1)
        forest = Forest(tree, self.read("roots", [INT32], (roots,)), at, often * (end - begin))
        expect(((forest.split >= begin) & (forest.split < end)).all(), "a tree splits what is not there, or too early")
        return forest

    def planes(self, enclosure: Enclosure) -> dict[int, Planes]:
        """The step's planes above neurons, by layers."""
        net, ar, found = self.network, self.arithmetic, dict[int, Planes]()
        for layer in (layer for layer in range(len(net.layers)) if self.has(f"p{layer}/neuron")):
            neuron = self.read(f"p{layer}/neuron", [INT32], [None], 0, net.widths[layer] - 1)
            expect(0 < len(neuron) == len(np.unique(neuron)), "a neuron has two planes, or none has one")
            kappa = ar.array(self.read(f"p{layer}/kappa", FLOATS, (2, len(neuron)), 0, 1))
            ends = net.sizes[0] + net.first[: layer + 1]
            weight = ar.array(self.read(f"p{layer}/weight", FLOATS, (len(neuron), int(ends[-1]))))
            parts = dict(zip([0, *net.layers[:layer]], np.split(weight, ends[:-1], 1), strict=True))
            height = [
                enclosure.heights(layer, neuron[at], {v: part[at] for v, part in parts.items()}, kappa[:, at])
                for at in (slice(first, first + self.batch) for first in range(0, len(neuron), self.batch))
            ]
            size = sum(abs(part) @ enclosure.size[v][0] for v, part in parts.items())
            found[layer] = Planes(neuron, parts, np.concatenate(height), ar.gamma(len(neuron)) * size + ar.tiny)
        return found

    def batches(self, forest: Forest, rows: int, cuts: bool = False, planes: Any = NONE) -> Iterator[Leaves]:
        """The leaves with what is stored about them, a few at a time."""
        kind, first, none = str(self.step.get("lines")), 0, np.zeros(0, dtype=np.int64)
        expect(kind in LINES, f"its lines are {kind[:40]!r}; expected {', '.join(LINES)}")
        free = self.read("free", [INT32], [None], 0, self.network.neurons - 1) if kind == "stored" else none
        expect(len(np.unique(free)) == len(free), "a neuron's slopes are stored twice")
        chunks = self.number("chunks", forest.leaves + 1, 1)
        for chunk in range(chunks):
            last, used = forest.leaves - first if chunk == chunks - 1 else None, 0
            alpha, beta, pi = self.chunk(f"c{chunk}/", last, len(free), rows)
            expect(first + len(pi) <= forest.leaves, "a chunk has more leaves than its trees")
            for begin in range(0, len(pi), self.batch):
                part = slice(begin, min(begin + self.batch, len(pi)))
                number = np.arange(first + part.start, first + part.stop)
                root, *path = forest.paths(number)
                given = beta[used : used + len(path[0])]
                used += len(path[0])
                way = Way(kind) if cuts else self.way(kind, forest, path, free, alpha[part], given)
                way = way._replace(planes=planes) if self.has(f"c{chunk}/planes") else way
                self.leaves += len(number)
                self.progress(self.at, self.total, self.leaves)
                yield number, root, path, way, self.arithmetic.array(pi[part])
            expect(len(beta) <= used, "there are more multipliers than splits")
            first += len(pi)
        expect(first == forest.leaves, "its chunks hold fewer leaves than its trees")

    def chunk(self, name: str, count: int | None, free: int, rows: int) -> tuple[Array, Array, Array]:
        """α, β and π of a chunk's leaves; how many they are is known beforehand of the last chunk only."""
        stored = dict[str, Array]()
        for key, types, shape, high in (
            ("alpha", [UINT8, *FLOATS], [free], 128),
            ("pi", FLOATS, [rows], LIMIT),
            ("row", [INT32], [], rows - 1),
        ):
            if self.has(name + key):
                stored[key] = self.read(name + key, types, [count, *shape], 0, high)
                count = len(stored[key])
        size = -1 if count is None else count
        expect(0 <= size * rows <= MEMORY, "a chunk does not say how many leaves it has, or has too many")
        beta = self.read(f"{name}beta", FLOATS, [None], 0) if self.has(f"{name}beta") else np.zeros(0)
        chosen = np.arange(rows) == stored.get("row", np.zeros(size))[:, None]
        return stored.get("alpha", np.broadcast_to(0.0, (size, free))), beta, stored.get("pi", chosen)

    def way(self, kind: str, forest: Forest, path: list[Array], free: Array, slopes: Array, given: Array) -> Way:
        """How leaves are bounded: with stored slopes of the free neurons, and with the splits on their paths."""
        (place, row, second), ar, shape = path, self.arithmetic, (len(slopes), self.network.neurons)
        alpha, sign, beta = ar.array(np.zeros(shape)), np.zeros(shape, dtype=np.int8), ar.array(np.zeros(shape))
        alpha[:, free] = ar.array(slopes) / (128 if slopes.dtype == UINT8 else 1)
        expect((alpha <= 1).all(), "a slope exceeds 1")
        sign[place, forest.split[row]] = 1 - 2 * second
        once = np.count_nonzero(sign) == len(row) == len(given)
        expect(once, "a neuron is split twice before a leaf, or there are fewer multipliers than splits")
        beta[place, forest.split[row]] = ar.array(given)
        return Way(kind, alpha, sign, beta)


def numbers(problem: Property, region: Region, arithmetic: Arithmetic) -> Array:
    """The rows c·y + d·x + e of a region, each as c, d and e."""
    exact = np.full((len(region.rows), problem.outputs + problem.inputs + 1), Fraction(0), dtype=object)
    for r, row in enumerate(region.rows):
        exact[r, -1] = row.constant
        for v, c in row.terms.items():
            exact[r, v + problem.outputs if v >= 0 else ~v] = c
    expect((abs(exact) <= LIMIT).all(), f"a row of the property has a number beyond {LIMIT:g}")
    return arithmetic.array(exact)


def bound(enclosure: Enclosure, rows: Array, pi: Array, way: Way) -> Array:
    """Lower bounds of Σ π_j row_j, one for each row of pi. # pi (leaves, rows)"""
    total, absolute, output = pi @ rows, pi @ abs(rows), enclosure.network.output
    outputs = enclosure.network.sizes[output]
    start = {0: total[:, outputs:-1]}
    start[output] = start.get(output, 0) + total[:, :outputs]  # the output may be the input
    size = np.concatenate([enclosure.size[output], enclosure.size[0]], 1)[way.which]
    error = np.vecdot(absolute[:, :-1], size) + absolute[:, -1]  # the numbers were rounded, multiplied and added up
    return enclosure.backward(start, total[:, -1], enclosure.arithmetic.gamma(len(rows) + 4) * error, way)

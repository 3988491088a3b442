"""What is written down while a property is verified, box by box: claims about layers, then trees that prove regions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.form import Form
from surebound.bounds.planes import Planes
from surebound.bounds.witness import GRID, LINES, Ends, Lines, Reason, Witness
from surebound.check.file import MEMBER
from surebound.network.arrays import to_numpy
from surebound.network.graph import Network
from surebound.proof import ROOM
from surebound.proof.forest import Forest

Array = NDArray[Any]
_FAR = 1e30  # as good as no bound
NONE: Mapping[str, Array] = MappingProxyType({})
ROOM32 = 1e-5  # the same after a float32 pass, whose slopes are rounded, too


@dataclass(eq=False)
class Step:
    """One step of a proof. Members of its leaves are in `forest`, or in `chunk` where nothing is split."""

    about: dict[str, Any]
    members: dict[str, Array] = field(default_factory=dict)
    chunk: dict[str, Array] = field(default_factory=dict)
    forest: Forest | None = None
    root: int | None = None  # of the forest's trees, the one meant; None: all
    rows: int = 1  # of the region, where it is about one


@dataclass(frozen=True, eq=False)
class _Claims:
    """Bounds on neurons of a layer, x̂ ≥ bound (side 1) or x̂ ≤ bound (side −1), by lines of one kind."""

    neuron: Array
    side: Array
    bound: Array
    alpha: Array | None = None  # (claims, columns) uint8
    columns: Array | None = None  # the neurons that have an α


class BoxRecord(Witness):
    """About one box. It is a witness to how layers are bounded: see `surebound.bounds.witness`."""

    def __init__(self, network: Network, box: int, regions: Sequence[int]) -> None:
        """`box` and `regions` are their numbers in the property."""
        self.box, self.regions = box, regions
        self.steps: list[Step] = []
        self._layer = -1
        self._claims: dict[Lines, list[_Claims]] = {}  # of the present layer
        self.starts, self._inputs = np.cumsum([0, *network.widths]), network.inputs
        self._places = [prod(network.nodes[node].shape[1:]) for node in network.layers]

    def neurons(self, form: Form) -> Array:
        """The numbers, in the whole network, of a form's neurons."""
        parts = [start + to_numpy(index) for start, index in zip(self.starts, form.indices, strict=False)]
        return np.concatenate([np.zeros(0, np.int64), *parts])

    def sayable(self, form: Form) -> bool:
        """Whether planes above all of a form's neurons would be read."""
        counts = [len(index) for index in form.indices]
        numbers = max((n * (self._inputs + int(at)) for n, at in zip(counts, self.starts, strict=False)), default=0)
        return 4 * numbers <= MEMBER

    def planes(self, form: Form, planes: Sequence[Planes]) -> dict[str, Array]:
        """Members that say planes over a form's columns in the numbers of the network."""
        folded = form.folded()
        assert folded is not None
        columns = np.concatenate([to_numpy(folded.free), self._inputs + self.neurons(form)])
        members: dict[str, Array] = {}
        for k, (index, plane) in enumerate(zip(form.indices, planes, strict=True)):
            if not len(index):
                continue
            weight = np.zeros((len(index), self._inputs + self.starts[k]), np.float32)
            weight[:, columns[: plane.weight.shape[1]]] = to_numpy(plane.weight)
            members[f"p{k}/neuron"] = to_numpy(index).astype(np.int32)
            members[f"p{k}/kappa"] = to_numpy(plane.kappa).astype(np.float32)
            members[f"p{k}/weight"] = weight
        return members

    # ---- layers

    def fixed(self, layer: int, index: Tensor, found: Ends, known: Ends, lines: Lines) -> Ends:
        found, better = _less(found, known, ROOM32)
        self._begin(layer)
        for side, end, some in zip((1, -1), found, better, strict=True):
            if bool(some.any()):
                self._claim(lines, _claims(index[some], side, end[some]))
        return found

    def rows(self, layer: int, index: Tensor, form: Form, found: Ends, known: Ends, reason: Reason) -> Ends:
        found, better = _less(found, known, ROOM)
        self._begin(layer)
        if reason.trees is not None:
            self._grown(index, found, better, reason.trees)
            return found
        count, columns = len(index), self.neurons(form)
        for side, end, some, which in zip((1, -1), found, better, (slice(count), slice(count, None)), strict=True):
            for code, lines in enumerate(LINES):
                mine = some & (reason.lines[which] == code)
                if bool(mine.any()):
                    alpha = to_numpy((reason.alpha[which][mine] * GRID).round().to(torch.uint8))
                    own = (alpha, columns) if lines == "stored" else (None, None)
                    self._claim(lines, _claims(index[mine], side, end[mine], *own))
        return found

    def _grown(self, index: Tensor, found: Ends, better: Ends, trees: Sequence[tuple[Tensor, Forest]]) -> None:
        """Claims that trees prove, of neurons and, after all of them, of their other sides."""
        both, worth = torch.cat(found).nan_to_num(neginf=-_FAR, posinf=_FAR), torch.cat(better)
        for part, forest in trees:
            if bool(worth[part].any()):
                neuron, side = index[part % len(index)], torch.where(part < len(index), 1, -1)
                self._flush()
                members = _members(_claims(neuron, side, both[part])) | {"free": forest.neurons.astype(np.int32)}
                about = {"kind": "layer", "box": self.box, "layer": self._layer, "lines": "stored"}
                self.steps.append(Step(about, members, forest=forest))

    def _begin(self, layer: int) -> None:
        if layer != self._layer:
            self._flush()
            self._layer = layer

    def _claim(self, lines: Lines, claims: _Claims) -> None:
        self._claims.setdefault(lines, []).append(claims)

    def _flush(self) -> None:
        """Write down the claims of the layer that is done, place by place of an image: a checker that takes a few at a
        time has to look at a small part of the layers before."""
        for lines, all_ in self._claims.items():
            for claims in _without_repeats(all_):
                about = {"kind": "layer", "box": self.box, "layer": self._layer, "lines": lines}
                members = _members(_joined(claims))
                order = np.argsort(members["neuron"] % self._places[self._layer], kind="stable")
                step = Step(about, {name: array[order] for name, array in members.items()})
                if lines == "stored":
                    step.members["free"], alpha = _side_by_side(claims)
                    step.chunk["alpha"] = alpha[order]
                self.steps.append(step)
        self._claims = {}

    @property
    def complete(self) -> bool:
        """Whether every region has a step."""
        return {step.about.get("region") for step in self.steps} >= set(self.regions)

    @property
    def needed(self) -> list[Step]:
        """The steps, but for claims about layers that no later step builds on."""
        builds = [step.about["kind"] == "region" and "rebound" not in step.about for step in self.steps]
        last = max((i for i, some in enumerate(builds) if some), default=-1)
        return [step for i, step in enumerate(self.steps) if i <= last or step.about["kind"] == "region"]

    # ---- regions

    def by_row(self, region: int, lines: str, row: int, rows: int) -> None:
        """A region whose row is bounded by fixed lines."""
        self._flush()
        chunk = {"row": np.array([row], np.int32)} if rows > 1 else {}
        about = {"kind": "region", "box": self.box, "region": region, "lines": lines}
        self.steps.append(Step(about, chunk=chunk))

    def by_tree(self, region: int, rows: int, forest: Forest, root: int, planes: Mapping[str, Array] = NONE) -> None:
        """A region proved by a tree over neurons, some of whose leaves may need planes."""
        self._flush()
        about = {"kind": "region", "box": self.box, "region": region, "lines": "stored"}
        members = {"free": forest.neurons.astype(np.int32), **planes}
        self.steps.append(Step(about, members, forest=forest, root=root, rows=rows))

    def by_boxes(self, region: int, forest: Forest, root: int) -> None:
        """A region proved by a tree over parts of its box."""
        self._flush()
        about = {"kind": "region", "box": self.box, "region": region, "lines": "crown", "rebound": "crown"}
        self.steps.append(Step(about, forest=forest, root=root))


def _less(found: Ends, known: Ends, room: float) -> tuple[Ends, Ends]:
    """Bounds with some room, and where they are better than what is known."""
    size = sum(end.abs().nan_to_num(posinf=0.0) for end in (*found, *known))
    low, high = found[0] - room * size, found[1] + room * size
    return (low, high), (low > known[0], high < known[1])


def _claims(
    neuron: Tensor, side: int | Tensor, bound: Tensor, alpha: Array | None = None, columns: Array | None = None
) -> _Claims:
    sides = np.broadcast_to(side if isinstance(side, int) else to_numpy(side), neuron.shape)
    return _Claims(to_numpy(neuron), sides, to_numpy(bound), alpha, columns)


def _without_repeats(claims: Sequence[_Claims]) -> list[list[_Claims]]:
    """The claims in groups that name no side of a neuron twice: a layer may be bounded again right after it was."""
    groups: list[list[_Claims]] = []
    for new in claims:
        names = new.side * (new.neuron + 1)
        if not groups or any(np.isin(names, old.side * (old.neuron + 1)).any() for old in groups[-1]):
            groups.append([])
        groups[-1].append(new)
    return groups


def _joined(claims: Sequence[_Claims]) -> _Claims:
    return _Claims(*(np.concatenate([getattr(c, name) for c in claims]) for name in ("neuron", "side", "bound")))


def _members(claims: _Claims) -> dict[str, Array]:
    return {
        "neuron": claims.neuron.astype(np.int32),
        "side": claims.side.astype(np.int8),
        "bound": claims.bound.astype(np.float64),
    }


def _side_by_side(claims: Sequence[_Claims]) -> tuple[Array, Array]:
    """The columns of all claims together, and their α over those."""
    pairs = [(c.alpha, c.columns) for c in claims if c.alpha is not None and c.columns is not None]
    free = np.unique(np.concatenate([columns for _, columns in pairs]))
    alpha = np.zeros((sum(len(a) for a, _ in pairs), len(free)), np.uint8)
    done = 0
    for own, columns in pairs:
        alpha[done : done + len(own), np.searchsorted(free, columns)] = own
        done += len(own)
    return free.astype(np.int32), alpha

"""The check of each operation by itself: what was read from a node is what onnxruntime computes for it.

Comparing a network with its file at a few points shows nothing of an operation whose result those points do not let
through to the outputs. So each node whose meaning depends on more than its name is cut out: run by onnxruntime, and
read once more, for inputs that are drawn at random, whatever they are in the network. A node of constants is run on
the constants that were read. `is_plain` says which nodes are left out, so that most files need no second session.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from surebound.errors import NetworkError, one_line, quoted, visible
from surebound.limits import ELEMENTS, Deadline
from surebound.load.algebra import Algebra, Array, Data, Value
from surebound.load.ends import begin, end
from surebound.load.onnx_file import STANDARD, File
from surebound.load.replay import open_session
from surebound.network.agreement import difference, points
from surebound.network.graph import Network
from surebound.network.op import Shape

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Read = Callable[["NodeProto", list[Value | None], Algebra], Sequence[Value]]

PLAIN = frozenset(
    """Add BatchNormalization Cast Conv Div Dropout Flatten Gemm Identity MatMul Mul Neg Relu Reshape Sigmoid Sub Tanh
    Transpose""".split()  # noqa: SIM905
)
_WEIGHTED = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul", "BatchNormalization"))
_SUMS = frozenset(("CumSum", "Gemm", "MatMul", "Mean", "ReduceMean", "ReduceSum", "Sum"))
_TOLERANCE = 1e-5


@dataclass(frozen=True)
class Step:
    """A node and what was read as its inputs and outputs."""

    node: "NodeProto"
    inputs: list[Value | None]
    outputs: Sequence[Value]
    double: bool  # whether what depends on the network's input is of float64

    @property
    def live(self) -> dict[str, Data]:
        """The inputs that depend on the network's, by name."""
        return {name: x for name, x in zip(self.node.input, self.inputs, strict=True) if isinstance(x, Data)}

    @property
    def elements(self) -> int:
        """How many numbers it reads and writes."""
        return sum(prod(v.shape) for v in (*self.inputs, *self.outputs) if v is not None)


def is_plain(node: "NodeProto", inputs: Sequence[Value | None]) -> bool:
    """Whether a node may be taken for what its name says.

    Arithmetic with NumPy's broadcasting, products with constants, and what keeps the order of numbers: nothing in them
    depends on the opset, on lengths of axes or on a choice among ways to round. Of nodes of constants, only constants
    themselves, and those that keep the order of numbers.
    """
    if node.domain not in STANDARD or any(a.name == "axis" and a.i < 0 for a in node.attribute):
        return False  # axes count from the end since opset 11
    names = {attribute.name for attribute in node.attribute}
    if not any(isinstance(x, Data) for x in inputs):
        if node.op_type == "Cast":  # of float16 weights to float32, which rounds nothing
            to = [8 if a.i == 11 else 4 for a in node.attribute if a.name == "to" and a.i in (1, 11)]
            return bool(to) and all(
                isinstance(x, np.ndarray) and x.dtype.kind == "f" and x.itemsize <= to[0] for x in inputs
            )
        return node.op_type == "Constant" or (
            node.op_type in ("Flatten", "Identity", "Reshape") and not names - {"axis"}
        )
    if node.op_type not in PLAIN:
        return False
    padded = any(attribute.name == "auto_pad" and attribute.s != b"NOTSET" for attribute in node.attribute)
    return not padded and "allowzero" not in names


def check_each(file: File, steps: Sequence[Step], read: Read, filled: int, deadline: Deadline) -> None:
    """Raise NetworkError if onnxruntime computes something else for one of the nodes, by itself.

    With `filled`, the file has a batch of so many rows, which are all equal, and was read with one of them.
    """
    needed = _needed(file.model, steps)
    shapes = _shapes_filled(file, needed) if filled > 1 else {}
    part: list[Step] = []
    for step in [*needed, None]:
        if part and (step is None or sum(s.elements for s in part) + step.elements > ELEMENTS):
            try:
                cut_out = _Part(file, part, read, filled, shapes)
            except (TypeError, ValueError) as error:  # of protobuf, about too many bytes, or of onnx, about a type
                raise NetworkError(f"the operations of '{file.path}' cannot be cut out: {one_line(error)}") from error
            cut_out.check(deadline)
            part = []
        part += [] if step is None else [step]


def _needed(model: "ModelProto", steps: Sequence[Step]) -> list[Step]:
    """The steps that an output depends on."""
    wanted = {value.name for value in model.graph.output}
    for node in reversed(model.graph.node):
        if not wanted.isdisjoint(node.output):
            wanted.update(node.input)
    return [step for step in steps if not wanted.isdisjoint(step.node.output)]


def _shapes_filled(file: File, steps: Sequence[Step]) -> dict[str, Shape]:
    """The shapes that tensors have in onnxruntime, for a whole batch."""
    import onnx
    from onnx import helper

    model = onnx.load_model_from_string(file.content)
    names = sorted({name for step in steps for name in _live_names(step)})
    prefix = max((len(n) for n in names), default=0) * "_"  # longer than all names: nothing is called like that
    del model.graph.output[:]
    for name in names:
        model.graph.node.append(helper.make_node("Shape", [name], [f"{prefix}_{name}"]))
        model.graph.output.append(helper.make_tensor_value_info(f"{prefix}_{name}", 7, None))
    session = open_session(file, bytes(model.SerializeToString()), plain=True)
    feeds = {v.name: np.zeros(v.shape, np.float64 if "double" in v.type else np.float32) for v in session.get_inputs()}
    try:
        found = session.run(None, feeds)
    except Exception as error:  # onnxruntime's errors have no common base
        raise NetworkError(f"'{file.path}' cannot be run by onnxruntime: {visible(str(error)[:200])}") from error
    return {name: tuple(int(n) for n in shape) for name, shape in zip(names, found, strict=True)}


def _live_names(step: Step) -> list[str]:
    outputs = zip(step.node.output, step.outputs, strict=False)
    return [*step.live, *(name for name, y in outputs if name and isinstance(y, Data))]


class _Part:
    """A few nodes in one session, none of which reads another's result."""

    def __init__(self, file: File, steps: Sequence[Step], read: Read, filled: int, shapes: dict[str, Shape]) -> None:
        from onnx import helper, numpy_helper

        self._file, self._steps, self._read, self._filled, self._shapes = file, steps, read, filled, shapes
        constants: dict[str, Array] = {}
        nodes, feeds, outputs = [], [], []
        for number, step in enumerate(steps):
            node = type(step.node)()
            node.CopyFrom(step.node)
            del node.input[:], node.output[:]
            for name, value in zip(step.node.input, step.inputs, strict=True):
                own = f"{number}<{name}" if name else ""
                node.input.append(own)
                if value is not None and not isinstance(value, Data):
                    constants[own] = value
            kind = 11 if step.double else 1
            feeds += [
                helper.make_tensor_value_info(f"{number}<{n}", kind, self._theirs(n, x)) for n, x in step.live.items()
            ]
            node.output.extend(f"{number}>{name}" if name else "" for name in step.node.output)
            written = zip(node.output, step.outputs, strict=False)
            outputs += [helper.make_empty_tensor_value_info(name) for name, _ in written if name]
            nodes.append(node)
        graph = helper.make_graph(
            nodes, "each", feeds, outputs, [numpy_helper.from_array(v, name) for name, v in constants.items()]
        )
        model = helper.make_model(
            graph, opset_imports=file.model.opset_import, ir_version=max(file.model.ir_version, 4)
        )
        self._session = open_session(file, bytes(model.SerializeToString()), plain=True)

    def _theirs(self, name: str, x: Data) -> Shape:
        """The shape of a tensor in the file."""
        shape = self._shapes.get(name, x.shape)
        if shape != x.shape and (x.shape[:1] != (1,) or shape != (self._filled, *x.shape[1:])):
            raise NetworkError(
                f"{quoted(name)} of '{self._file.path}' has the shape {list(shape)} for a batch of {self._filled} and"
                f" {list(x.shape)} for one of 1; expected a row for each row"
            )
        return shape

    def check(self, deadline: Deadline) -> None:
        rows = [points(sum(prod(x.shape) for x in step.live.values())) for step in self._steps]
        networks = [self._networks(step) for step in self._steps]
        for point in range(len(rows[0])):
            feeds: dict[str, Array] = {}
            for number, step in enumerate(self._steps):
                start = 0
                for name, x in step.live.items():
                    part = rows[number][point, start : start + prod(x.shape)].reshape(x.shape)
                    start += part.size
                    own = np.broadcast_to(part, self._theirs(name, x))
                    feeds[f"{number}<{name}"] = own.astype(np.float64 if step.double else np.float32)
            found = self._run(feeds)
            for number, (step, network) in enumerate(zip(self._steps, networks, strict=True)):
                deadline.check()
                theirs = {name: found[f"{number}>{name}"] for name in step.node.output if f"{number}>{name}" in found}
                if not point:
                    self._check_constants(step, theirs)
                if network is not None:
                    self._check_point(step, *network, rows[number][point], theirs)

    def _run(self, feeds: dict[str, Array]) -> dict[str, Array]:
        names = [value.name for value in self._session.get_outputs()]
        try:
            return dict(zip(names, map(np.asarray, self._session.run(names, feeds)), strict=True))
        except Exception as error:  # onnxruntime's errors have no common base
            place = f"the operations of '{self._file.path}'"
            raise NetworkError(
                f"{place} cannot be run one by one by onnxruntime: {visible(str(error)[:200])}"
            ) from error

    def _networks(self, step: Step) -> tuple[Network, Network] | None:
        """What is read from a node alone, in float64 and float32; None where it has no result that depends on an input.

        A product of two tensors is read from where they come from, if at all.
        """
        if not any(isinstance(y, Data) for y in step.outputs) or (step.node.op_type == "Mul" and len(step.live) > 1):
            return None
        algebra, own = begin([x.shape for x in step.live.values()])
        fresh = dict(zip(step.live, own, strict=True))
        inputs = [fresh.get(name, value) for name, value in zip(step.node.input, step.inputs, strict=True)]
        outputs = [y for y in self._read(step.node, inputs, algebra) if isinstance(y, Data)]
        network = algebra.builder.arrays(end(algebra, outputs))
        return network, network.single()

    def _check_point(
        self, step: Step, network: Network, single: Network, row: NDArray[np.float32], theirs: dict[str, Array]
    ) -> None:
        """Compare the results that depend on inputs, at a point."""
        parts = []
        for name, y in zip(step.node.output, step.outputs, strict=False):
            if name and isinstance(y, Data):
                found = theirs[name]
                if found.shape != self._theirs(name, y):
                    self._refuse(step, f"has the shape {list(found.shape)} and not {list(y.shape)}")
                copies = self._filled if found.shape != y.shape else 1
                parts.append(np.broadcast_to(found.reshape(copies, -1), (max(self._filled, 1), prod(y.shape))))
        worst = difference(network, single, row, np.concatenate(parts, 1), weighted=step.node.op_type in _WEIGHTED)
        if worst:
            self._refuse(step, f"differs by {worst:.3g}")

    def _check_constants(self, step: Step, theirs: dict[str, Array]) -> None:
        """Compare the results that depend on no input."""
        for i, (name, y) in enumerate(zip(step.node.output, step.outputs, strict=False)):
            if name and isinstance(y, np.ndarray):
                found = theirs[name]
                if found.shape != y.shape:
                    self._refuse(step, f"has the shape {list(found.shape)}, expected {list(y.shape)}")
                if y.dtype.kind in "biu":
                    same = bool((found == y).all())
                else:
                    same = self._close(step, i, y.astype(np.float64), found.astype(np.float64))
                if not same:
                    self._refuse(step, "is another constant")

    def _close(self, step: Step, output: int, ours: Array, theirs: Array) -> bool:
        with np.errstate(all="ignore"):
            off, allowed = np.abs(theirs - ours), _TOLERANCE * np.abs(ours)
            equal = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
            if bool((equal | (off <= allowed)).all()):
                return True
            if step.node.op_type not in _SUMS:
                return False
            # a sum of small numbers may be one of large ones that cancel
            inputs: list[Value | None] = [
                None if v is None else np.abs(v) if v.dtype.kind == "f" else v for v in self._arrays(step)
            ]
            sizes = np.asarray(self._read(step.node, inputs, begin([(1,)])[0])[output], np.float64)
            return bool((equal | (off <= _TOLERANCE * sizes)).all())

    def _arrays(self, step: Step) -> list[Array | None]:
        return [v for v in step.inputs if not isinstance(v, Data)]

    def _refuse(self, step: Step, what: str) -> None:
        node = step.node
        raise NetworkError(
            f"node {quoted(visible(node.name or node.output[0]))} ({visible(node.op_type)}) of '{self._file.path}', by"
            f" itself, {what} in onnxruntime; expected what was read from it"
        )

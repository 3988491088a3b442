"""Reads a `torch.nn.Module` as a `Network`: `load_torch(module, input_shape)`.

The module is traced with torch.fx in evaluation mode, and each call in the trace becomes operations of the network:
what only moves numbers is run on positions, what computes is looked up in a table (`torch_ops`, `torch_modules`).
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from math import prod
from operator import attrgetter, index
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from surebound.errors import NetworkError, UnsupportedOpError, UsageError
from surebound.load.algebra import Algebra, Data
from surebound.load.ends import begin, end
from surebound.load.torch_check import is_plain, is_weighted
from surebound.load.torch_modules import MODULES
from surebound.load.torch_ops import FUNCTIONS, METHODS, MOVES, Extremes, Values, shape_of
from surebound.load.torch_runs import FAILURES, expect_same_calls
from surebound.load.torch_trace import copied, expect_module, fixed, overwrites, trace
from surebound.network.agreement import check_agreement, difference, points
from surebound.network.graph import Network
from surebound.network.model import Model, Replay
from surebound.network.op import Shape
from surebound.problem import Port, Ports

_CHUNK = 256  # rows in one run, so that memory does not grow with the number of rows


InputShape = Sequence[int] | Sequence[Sequence[int]]
"""A shape without the batch; or several, in a list, for a module that takes several tensors."""


def load_torch(module: nn.Module, input_shape: InputShape, *, check: bool = True) -> Network:
    """The network that a module computes on samples of a shape (without the batch), compared with it at a few points.

    A copy is put into evaluation mode and read; the module is not changed. Its weights mean their exact values;
    `forward` must be traceable by torch.fx. What it takes and returns are tensors, one or several.
    """
    return module_model(module, input_shape, check=check).network


def module_model(module: nn.Module, input_shape: InputShape, *, check: bool = True) -> Model:
    """A module's network, together with a copy of the module in evaluation mode."""
    expect_module(module)
    network, ports = _read(module, _shapes(input_shape), check=check)
    replay, name = replay_module(module, input_shape), type(module).__name__
    if check:
        check_agreement(network, replay, "torch", f"module {name}")
    return Model(network, replay, name, ports, "torch" if check else "")


def _read(module: nn.Module, shapes: Sequence[Shape], *, check: bool) -> tuple[Network, Ports]:
    traced = _traced(fixed(copied(module)))
    found = Interpreter(traced, shapes, type(module).__name__, check=check).read()
    if check:
        _check_calls(module, traced, shapes)
    return found


def _traced(module: nn.Module) -> fx.GraphModule:
    return trace(nn.Sequential(module) if type(module) in MODULES else module)


def _check_calls(module: nn.Module, traced: fx.GraphModule, shapes: Sequence[Shape]) -> None:
    """Refuse a trace that is not the module, both in float32."""
    numbers = [t for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
    if any(t.dtype != torch.float32 for t in numbers):
        traced = _traced(fixed(copied(module).float()))
    random, name = np.random.default_rng(0), type(module).__name__
    inputs = [torch.from_numpy(random.normal(size=(1, *shape)).astype(np.float32)) for shape in shapes]
    try:
        expect_same_calls(copied(module).float(), traced, inputs, name)
    except FAILURES as error:
        raise NetworkError(f"module {name} cannot run on a sample: {error}") from error


def _shapes(input_shape: InputShape) -> list[Shape]:
    """The shape of each input."""
    several = isinstance(input_shape, Sequence) and any(isinstance(part, Sequence) for part in input_shape)
    shapes: list[Any] = [*input_shape] if several else [input_shape]
    try:
        return [tuple(index(length) for length in shape) for shape in shapes]
    except TypeError as error:
        raise UsageError(
            f"input_shape is {input_shape!r}; expected whole numbers such as (3, 32, 32), or a list of such shapes"
        ) from error


def replay_module(module: nn.Module, input_shape: InputShape) -> Replay:
    """The module as a function of float32 rows, in evaluation mode. # (n, inputs) -> (n, outputs)"""
    frozen, shapes = copied(module).float(), _shapes(input_shape)
    sizes = [prod(shape) for shape in shapes]

    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = torch.from_numpy(np.array(x, dtype=np.float32))
        try:
            with torch.no_grad():
                parts = [_outputs(frozen, part.split(sizes, 1), shapes) for part in rows.split(_CHUNK)]
            return np.asarray(torch.cat(parts).numpy())
        except FAILURES as error:
            raise NetworkError(f"module {type(module).__name__} cannot run on a batch: {error}") from error

    return run


def _outputs(module: nn.Module, inputs: Sequence[Tensor], shapes: Sequence[Shape]) -> Tensor:
    """All outputs, side by side. # (n, outputs)"""
    found = module(*(x.reshape(-1, *shape) for x, shape in zip(inputs, shapes, strict=True)))
    return found.flatten(1) if isinstance(found, Tensor) else torch.cat([y.flatten(1) for y in found], 1)


class Interpreter:
    """Walks the trace once; every value is a `Data`, a tensor of constants, or plain Python.

    `modules` and `functions` are what is done with calls beside, or instead of, what the tables say. With `check`, what
    is read from a call is compared with torch by itself, unless `is_plain`.
    """

    def __init__(
        self,
        traced: fx.GraphModule,
        shapes: Sequence[Shape],
        name: str,
        *,
        modules: Mapping[type[nn.Module], Callable[[Algebra, Any, Data], Data]] = {},
        functions: Mapping[str, Callable[..., Any]] = {},
        check: bool = False,
    ) -> None:
        self._traced, self._name, self._check = traced, name, check
        self._modules = dict(traced.named_modules())
        self._handlers = {**MODULES, **modules}
        self._functions, self._methods = {**FUNCTIONS, **functions}, {**METHODS, **functions}
        self.algebra, self._inputs = begin([(1, *shape) for shape in shapes])
        self._values: dict[fx.Node, Any] = {}

    def read(self) -> tuple[Network, Ports]:
        """The network of the trace, and its inputs and outputs."""
        results = self.results()
        sources = [n for n in self._traced.graph.nodes if n.op == "placeholder"]
        inputs = tuple(Port(n.name, x.shape) for n, x in zip(sources, self._inputs, strict=True))
        outputs = tuple(Port(f"output {i}", y.shape) for i, y in enumerate(results))
        return self.algebra.builder.build(end(self.algebra, results)), Ports(inputs, outputs)

    def results(self) -> list[Data]:
        """What the trace returns, in the network under construction."""
        sources = [n for n in self._traced.graph.nodes if n.op == "placeholder"]
        if len(sources) != len(self._inputs):
            wanted = "one" if len(self._inputs) == 1 else f"{len(self._inputs)}, as input_shape has shapes"
            raise NetworkError(f"module {self._name} has {len(sources)} inputs; expected {wanted}")
        self._values.update(zip(sources, self._inputs, strict=True))
        for node in self._traced.graph.nodes:
            self.algebra.builder.name = node.name
            if node.op == "get_attr":
                self._values[node] = attrgetter(str(node.target))(self._traced)
            elif node.op == "output":
                return self._results(self._resolve(node.args[0]))
            elif node.op != "placeholder":
                self._values[node] = self._evaluate(node)
        raise NetworkError(f"module {self._name} returns nothing; expected a tensor")

    def _results(self, returned: Any) -> list[Data]:
        """The tensors that are returned."""
        results = list(returned) if isinstance(returned, list | tuple) else [returned]
        if not results or not all(isinstance(result, Data) for result in results):
            raise NetworkError(f"module {self._name} returns no tensors; expected one that is computed, or several")
        return results

    def _resolve(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda n: self._values[n])

    def _evaluate(self, node: fx.Node) -> Any:
        """A call's value; every failure becomes an error that names the node."""
        kind = type(self._modules[str(node.target)]).__name__ if node.op == "call_module" else _label(node.target)
        place = f"node '{node.name}' ({kind}) of module {self._name}"
        args, kwargs = self._resolve(list(node.args)), self._resolve(dict(node.kwargs))
        try:
            found = self._call(node, args, kwargs)
            if self._check and not is_plain(_label(node.target), self._modules.get(str(node.target)), args, kwargs):
                self._check_alone(node, args, kwargs, found)
            return found
        except UnsupportedOpError as error:
            raise UnsupportedOpError(f"{place}: {error}") from error
        except NetworkError as error:
            raise NetworkError(f"{place}: {error}") from error
        except Exception as error:  # torch complains about a call that does not fit in many ways
            raise NetworkError(f"{place} cannot be read ({type(error).__name__}: {error})") from error

    def _call(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        target = node.target
        if node.op == "call_module":
            module = self._modules[str(target)]
            handler = self._handlers.get(type(module))
            if handler is None:
                known = sorted(m.__name__ for m in self._handlers)
                raise UnsupportedOpError.unknown("module", type(module).__name__, known)
            if len(args) + len(kwargs) != 1 or not {*kwargs} <= {"input"}:
                raise UnsupportedOpError("it is called with options; expected its input alone")
            return handler(self.algebra, module, *args, *kwargs.values())
        name = _label(target)
        if (not _has_data(args) and not _has_data(kwargs)) or (name == "getitem" and not isinstance(args[0], Data)):
            return _plain(node, args, kwargs)
        if node.op == "call_function" and not _is_torchs(target):
            raise UnsupportedOpError(
                "a function of your own is recorded as one call; expected torch's, without fx.wrap"
            )
        if isinstance(args[0] if args else kwargs.get("input"), Tensor) and overwrites(node, self._modules):
            raise UnsupportedOpError("a constant is overwritten; expected the call that returns a new tensor")
        if node.op == "call_method" and name in ("size", "dim"):
            shape = torch.Size(shape_of(args[0]))
            return len(shape) if name == "dim" else shape if len(args) == 1 else shape[args[1]]
        if target is getattr:
            return _property(args[0], args[1])
        if name in MOVES and isinstance(args[0], Data):
            return self._move(node, args, kwargs)
        table: Values = self._methods if node.op == "call_method" else self._functions
        handler = table.get(name)
        if handler is None:
            raise UnsupportedOpError.unknown("call", name, sorted({*FUNCTIONS, *MOVES}))
        return handler(self.algebra, *args, **kwargs)

    def _check_alone(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any], found: Any) -> None:
        """Compare what was read from a call with torch, for inputs of its own, whatever they are in the module."""
        results = [y for y in (found if isinstance(found, list | tuple) else [found]) if isinstance(y, Data)]
        live: dict[Data, Any] = {}
        fx.node.map_aggregate((args, kwargs), lambda v: live.setdefault(v, v) if isinstance(v, Data) else v)
        if not results or not live:
            return
        shapes, kept = [x.shape for x in live], self.algebra
        self.algebra, fresh = begin(shapes)
        own: dict[Any, Any] = dict(zip(live, fresh, strict=True))
        try:
            again = self._call(node, *_replaced(args, kwargs, own))
            parts = again if isinstance(again, list | tuple) else [again]
            network = self.algebra.builder.arrays(end(self.algebra, [y for y in parts if isinstance(y, Data)]))
        finally:
            self.algebra = kept
        single = network.single()
        run = copy.deepcopy(self._modules[str(node.target)]).float() if node.op == "call_module" else None
        for row in points(sum(map(prod, shapes))):
            tensors = torch.from_numpy(row.copy()).split([prod(shape) for shape in shapes])
            own = {x: t.reshape(x.shape).clone() for x, t in zip(live, tensors, strict=True)}
            given, named = _replaced(args, kwargs, own)
            with torch.no_grad():
                theirs = run(*given, **named) if run is not None else _plain(node, given, named)
            several = theirs if isinstance(theirs, list | tuple) else [theirs]
            read = found if isinstance(found, list | tuple) else [found]
            got = [t for t, y in zip(several, read, strict=True) if isinstance(t, Tensor) and isinstance(y, Data)]
            if [tuple(y.shape) for y in got] != [y.shape for y in results]:
                raise NetworkError(
                    f"it returns {[list(y.shape) for y in got]} in torch; expected what was read from it"
                )
            flat = torch.cat([y.reshape(-1) for y in got]).double().numpy()
            worst = difference(network, single, row, flat[None], weighted=is_weighted(_label(node.target), run))
            if worst:
                raise NetworkError(f"by itself, it differs by {worst:.3g} in torch; expected what was read from it")

    def _move(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The call run on the positions of its first argument."""
        x: Data = args[0]
        if _has_data(args[1:]) or _has_data(kwargs):
            raise UnsupportedOpError("what to move depends on the network's input; expected constants")
        if any(isinstance(value, torch.dtype) for value in (*args[1:], *kwargs.values())):
            raise UnsupportedOpError("a view as another type is not supported; expected a shape")
        positions = torch.arange(prod(x.shape), device="cpu").reshape(x.shape)
        moved = _plain(node, [positions, *args[1:]], kwargs)
        return self._wrap(x, moved)

    def _wrap(self, x: Data, moved: Any) -> Any:
        if isinstance(moved, Tensor):
            if moved.dtype != torch.int64 or (moved.numel() and not 0 <= moved.min() <= moved.max() < prod(x.shape)):
                raise UnsupportedOpError("this call does more than to move numbers; expected one that only does that")
            return self.algebra.move(x, lambda _: moved.numpy())
        return type(moved)(self._wrap(x, m) for m in moved)


def _plain(node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call on values that are known."""
    if isinstance(node.target, str):
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _replaced(args: list[Any], kwargs: dict[str, Any], own: dict[Any, Any]) -> Any:
    """Arguments with others in the place of tensors of the network, and constants of float32."""

    def change(v: Any) -> Any:
        if isinstance(v, Data):
            return own[v]
        return v.float() if isinstance(v, Tensor) and v.is_floating_point() else v

    return fx.node.map_aggregate(args, change), fx.node.map_aggregate(kwargs, change)


def _label(target: Any) -> str:
    """A function's or method's name: relu for F.relu, torch.relu and Tensor.relu_."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return str(name).rstrip("_")


def _is_torchs(function: Any) -> bool:
    """Whether a function is torch's or Python's own, and not just called like one of theirs."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in ("torch", "_operator", "builtins")


def _property(x: Any, name: str) -> Any:
    if isinstance(x, Extremes):
        return getattr(x, name)
    if name == "shape":
        return torch.Size(x.shape)
    if name == "ndim":
        return len(x.shape)
    raise UnsupportedOpError(f"the attribute '{name}' of a tensor is not supported; expected shape or ndim")


def _has_data(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_data(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(_has_data(v) for v in value)
    return isinstance(value, Data)

"""Reads a `torch.nn.Module` as a `Network`: `load_torch(module, input_shape)`.

The module is traced with torch.fx in evaluation mode, and each call in the trace becomes operations of the network:
what only moves numbers is run on positions, what computes is looked up in a table (`torch_ops`, `torch_modules`).
"""

import copy
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load.agreement import check_agreement
from surebound.load.algebra import Algebra, Data, inner
from surebound.load.torch_modules import MODULES
from surebound.load.torch_ops import FUNCTIONS, METHODS, MOVES, Values, shape_of
from surebound.network.build import Builder
from surebound.network.graph import Network
from surebound.network.model import Replay
from surebound.network.op import Shape

_CHUNK = 256  # rows in one run, so that memory does not grow with the number of rows


def load_torch(module: nn.Module, input_shape: Shape, *, check: bool = True) -> Network:
    """The network that a module computes on samples of a shape (without the batch), compared with it at a few points.

    The module is not changed. Its weights mean their exact values; `forward` must be traceable by torch.fx.
    """
    frozen = copy.deepcopy(module).cpu().eval()
    name = type(module).__name__
    try:
        traced = fx.symbolic_trace(frozen)
    except Exception as error:  # forward may raise anything when it meets a proxy
        raise NetworkError(f"module {name} cannot be traced by torch.fx: {error}") from error
    network = _Interpreter(traced, tuple(input_shape), name).read()
    if check:
        check_agreement(network, replay_module(module, input_shape), "torch", f"module {name}")
    return network


def replay_module(module: nn.Module, input_shape: Shape) -> Replay:
    """The module as a function of float32 rows, in evaluation mode. # (n, inputs) -> (n, outputs)"""
    frozen = copy.deepcopy(module).cpu().float().eval()

    def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = torch.from_numpy(np.array(x, dtype=np.float32)).reshape(-1, *input_shape)
        try:
            with torch.no_grad():
                parts = [frozen(part).flatten(1) for part in rows.split(_CHUNK)]
            return np.asarray(torch.cat(parts).numpy())
        except (RuntimeError, ValueError, TypeError, IndexError, AttributeError) as error:
            raise NetworkError(f"module {type(module).__name__} cannot run on a batch: {error}") from error

    return run


class _Interpreter:
    """Walks the trace once; every value is a `Data`, a tensor of constants, or plain Python."""

    def __init__(self, traced: fx.GraphModule, input_shape: Shape, name: str) -> None:
        self._traced, self._name = traced, name
        self._modules = dict(traced.named_modules())
        self._builder = Builder(inner((1, *input_shape)))
        self._algebra = Algebra(self._builder)
        self._shape = (1, *input_shape)
        self._values: dict[fx.Node, Any] = {}

    def read(self) -> Network:
        """The network of the trace."""
        inputs = [n for n in self._traced.graph.nodes if n.op == "placeholder"]
        if len(inputs) != 1:
            raise NetworkError(f"module {self._name} has {len(inputs)} inputs; expected one")
        for node in self._traced.graph.nodes:
            self._builder.name = node.name
            if node.op == "placeholder":
                self._values[node] = Data(0, self._shape)
            elif node.op == "get_attr":
                self._values[node] = _attribute(self._traced, str(node.target))
            elif node.op == "output":
                result = self._resolve(node.args[0])
                if not isinstance(result, Data):
                    raise NetworkError(f"module {self._name} returns no single tensor; expected one that is computed")
                return self._builder.build(result.node)
            else:
                self._values[node] = self._evaluate(node)
        raise NetworkError(f"module {self._name} returns nothing; expected a tensor")

    def _resolve(self, argument: Any) -> Any:
        return fx.node.map_arg(argument, lambda n: self._values[n])

    def _evaluate(self, node: fx.Node) -> Any:
        """A call's value; every failure becomes an error that names the node."""
        kind = type(self._modules[str(node.target)]).__name__ if node.op == "call_module" else _label(node.target)
        place = f"node '{node.name}' ({kind}) of module {self._name}"
        args, kwargs = self._resolve(list(node.args)), self._resolve(dict(node.kwargs))
        try:
            return self._call(node, args, kwargs)
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
            handler = MODULES.get(type(module))
            if handler is None:
                known = ", ".join(sorted(m.__name__ for m in MODULES))
                raise UnsupportedOpError(f"this module is not supported; expected one of {known}")
            return handler(self._algebra, module, args[0])
        name = _label(target)
        if (not _has_data(args) and not _has_data(kwargs)) or (name == "getitem" and not isinstance(args[0], Data)):
            return _plain(node, args, kwargs)
        if node.op == "call_method" and name in ("size", "dim"):
            shape = torch.Size(shape_of(args[0]))
            return len(shape) if name == "dim" else shape if len(args) == 1 else shape[args[1]]
        if target is getattr:
            return _property(args[0], args[1])
        if name in MOVES and isinstance(args[0], Data):
            return self._move(node, args, kwargs)
        table: Values = METHODS if node.op == "call_method" else FUNCTIONS
        handler = table.get(name)
        if handler is None:
            known = ", ".join(sorted({*FUNCTIONS, *MOVES}))
            raise UnsupportedOpError(f"this call is not supported; expected one of {known}")
        return handler(self._algebra, *args, **kwargs)

    def _move(self, node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """The call run on the positions of its first argument."""
        x: Data = args[0]
        if _has_data(args[1:]) or _has_data(kwargs):
            raise UnsupportedOpError("what to move depends on the network's input; expected constants")
        positions = torch.arange(prod(x.shape), device="cpu").reshape(x.shape)
        moved = _plain(node, [positions, *args[1:]], kwargs)
        return self._wrap(x, moved)

    def _wrap(self, x: Data, moved: Any) -> Any:
        if isinstance(moved, Tensor):
            return self._algebra.move(x, lambda _: moved.numpy())
        return type(moved)(self._wrap(x, m) for m in moved)


def _plain(node: fx.Node, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """A call on values that are known."""
    if isinstance(node.target, str):
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _label(target: Any) -> str:
    """A function's or method's name: relu for F.relu, torch.relu and Tensor.relu_."""
    name = target if isinstance(target, str) else getattr(target, "__name__", str(target))
    return str(name).rstrip("_")


def _property(x: Data, name: str) -> Any:
    if name == "shape":
        return torch.Size(x.shape)
    if name == "ndim":
        return len(x.shape)
    raise UnsupportedOpError(f"the attribute '{name}' of a tensor is not supported; expected shape or ndim")


def _attribute(root: nn.Module, path: str) -> Any:
    value: Any = root
    for part in path.split("."):
        value = getattr(value, part)
    return value.detach() if isinstance(value, Tensor) else value


def _has_data(value: Any) -> bool:
    if isinstance(value, dict):
        return any(_has_data(v) for v in value.values())
    if isinstance(value, list | tuple):
        return any(_has_data(v) for v in value)
    return isinstance(value, Data)

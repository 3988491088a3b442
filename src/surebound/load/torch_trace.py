"""What must hold of a module and of its trace, so that the calls in the trace are what the module computes.

torch.fx records calls, not what they do to memory: a call that overwrites its argument looks like one that returns a
new tensor, `y += x` is recorded as `y = y + x`, and hooks of torch's own modules do not appear at all. A few test
points need not show any of it.
"""

import copy
import operator
from collections.abc import Callable
from typing import Any, cast, final

import torch
from torch import fx, nn
from torch.nn.modules import module as global_hooks
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from surebound.errors import NetworkError, UnsupportedOpError, UsageError
from surebound.load.torch_modules import MODULES
from surebound.load.torch_ops import MOVES

_OPERATORS = ("iadd", "ifloordiv", "imatmul", "imod", "imul", "ipow", "isub", "itruediv")
_SHAPES = frozenset(("size", "dim", "getattr"))  # what reads no numbers
_SHARING = MOVES - {"clone"} | {
    "double",
    "float",
    "detach",
    "dropout",
    "to",
}  # what may return its argument, or a view of it
_SHARING_MODULES = (nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d)


def expect_module(module: nn.Module) -> None:
    """Refuse what is no module with numbers, or does more than its calls say."""
    if not isinstance(module, nn.Module):
        kind = module.__name__ if isinstance(module, type) else type(module).__name__
        hint = f"; expected {kind}(…)" if isinstance(module, type) else "; expected an nn.Module"
        raise UsageError(f"the network is {'the class ' if isinstance(module, type) else 'a '}{kind}{hint}")
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel) or hasattr(module, "_orig_mod"):
        inner = "module._orig_mod" if hasattr(module, "_orig_mod") else "module.module"
        raise UnsupportedOpError(f"module {type(module).__name__} is around another; expected that one ({inner})")
    if isinstance(module, torch.jit.ScriptModule):
        raise UnsupportedOpError(f"module {type(module).__name__} is compiled; expected the one that it was made from")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise NetworkError(f"'{name}' has no shape yet; expected the module to have been run once on a sample")
        if tensor.is_meta:
            raise NetworkError(f"'{name}' is on the device 'meta', which holds no numbers; expected the CPU or a GPU")
    if global_hooks._global_forward_hooks or global_hooks._global_forward_pre_hooks:
        raise UnsupportedOpError(
            "hooks for all modules are registered, which may change what they compute; expected none "
            "(torch.nn.modules.module.register_module_forward_hook)"
        )
    for name, m in module.named_modules():
        place = f"module '{name}' ({type(m).__name__})" if name else f"module {type(m).__name__}"
        if (type(m) in MODULES or m is module) and (m._forward_hooks or m._forward_pre_hooks):
            raise UnsupportedOpError(
                f"{place} has hooks, which may change what it computes; expected none "
                "(for weight_norm, spectral_norm and pruning: remove_weight_norm, remove_spectral_norm, prune.remove)"
            )
        if (type(m) in MODULES or m is module) and "forward" in vars(m):
            raise UnsupportedOpError(f"{place} has a forward of its own; expected a class of your own for it")


def copied(module: nn.Module) -> nn.Module:
    """A copy in evaluation mode, on the CPU."""
    try:
        return copy.deepcopy(module).cpu().eval()
    except Exception as error:  # what a module holds besides numbers may refuse in any way
        raise NetworkError(
            f"module {type(module).__name__} cannot be copied: {str(error).splitlines()[0]}; expected one that "
            "copy.deepcopy can copy (does it keep results of an earlier run?)"
        ) from error


def fixed(module: nn.Module) -> nn.Module:
    """The module, with what its parametrizations (weight_norm, orthogonal, …) compute in the place of these.

    Not by torch's `remove_parametrizations`, which changes the class that copies share with the original.
    """
    for m in filter(parametrize.is_parametrized, [*module.modules()]):
        computed = {str(name): getattr(m, str(name)).detach() for name in cast(nn.ModuleDict, m.parametrizations)}
        m.__class__ = parametrize.type_before_parametrizations(m)
        del m.parametrizations
        for name, value in computed.items():
            m.register_parameter(name, nn.Parameter(value, requires_grad=False))
    return module


def trace(module: nn.Module, *leaves: type[nn.Module]) -> fx.GraphModule:
    """The calls that a module makes, which shares its parameters; modules of the types `leaves` are one call each."""
    try:
        with torch.no_grad():
            found = fx.GraphModule(module, _Tracer(leaves).trace(module))
    except Exception as error:  # forward may raise anything when it meets a proxy
        raise NetworkError(f"module {type(module).__name__} cannot be traced by torch.fx: {error}") from error
    return _settle(found)


def _in_place(name: str) -> Callable[[fx.Proxy, Any], fx.Proxy]:
    def call(self: fx.Proxy, other: Any) -> fx.Proxy:
        return self.tracer.create_proxy("call_function", getattr(operator, name), (self, other), {})

    return call


_Proxy = type("_Proxy", (fx.Proxy,), {f"__{name}__": _in_place(name) for name in _OPERATORS})


@final
class _Tracer(fx.Tracer):
    """torch.fx's, which also records that an operator overwrites its argument."""

    def __init__(self, leaves: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self._leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self._leaves) or super().is_leaf_module(m, module_qualified_name)

    def proxy(self, node: fx.Node) -> fx.Proxy:
        found: fx.Proxy = _Proxy(node, self)
        return found


def _settle(traced: fx.GraphModule) -> fx.GraphModule:
    """The trace, in which what is read after a call has overwritten it is that call's result.

    Refuses a call that overwrites what is read again by another name: a view of it, or what it is a view of.
    """
    modules, nodes = dict(traced.named_modules()), list(traced.graph.nodes)
    order = {node: i for i, node in enumerate(nodes)}
    tensors: set[fx.Node] = set()
    groups: dict[fx.Node, list[fx.Node]] = {}  # nodes that may share memory
    attributes: dict[str, fx.Node] = {}
    for node in nodes:
        source = _first(node)
        if not _is_tensor(node, tensors):
            continue
        tensors.add(node)
        changed = source in tensors and overwrites(node, modules)
        if changed:
            assert source is not None
            _expect_unshared(node, source, groups[source], order)
            source.replace_all_uses_with(node, lambda user, at=order[node]: order[user] > at)  # type: ignore[misc]
        before = attributes.setdefault(str(node.target), node) if node.op == "get_attr" else source
        shares = changed or node.op == "get_attr" or _shares(node, modules)
        group = groups[before] if shares and before in groups else []
        group.append(node)
        groups[node] = group
    traced.recompile()
    return traced


def _expect_unshared(node: fx.Node, source: fx.Node, group: list[fx.Node], order: dict[fx.Node, int]) -> None:
    place = f"node '{node.name}' ({getattr(node.target, '__name__', node.target)})"
    if any(n.op == "get_attr" for n in group):
        raise UnsupportedOpError(f"{place} overwrites a tensor of the module; expected the call that returns a new one")
    for other in group:
        again = [user for user in other.users if order[user] > order[node] and _name(user) not in _SHAPES]
        if other is not source and again:
            raise UnsupportedOpError(
                f"{place} overwrites what '{again[0].name}' reads as '{other.name}'; "
                "expected the call that returns a new tensor (relu for relu_, inplace=False, a + b for a += b)"
            )


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def _first(node: fx.Node) -> fx.Node | None:
    """The argument that a call overwrites, if it does, or returns a view of."""
    found: Any = node.args[0] if node.args else node.kwargs.get("input")
    return found if isinstance(found, fx.Node) else None


def _is_tensor(node: fx.Node, tensors: set[fx.Node]) -> bool:
    """Whether a value is a tensor, or several, and no number or shape."""
    if node.op in ("placeholder", "get_attr", "call_module"):
        return True
    return node.op != "output" and _name(node) not in _SHAPES and any(n in tensors for n in node.all_input_nodes)


def overwrites(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a call overwrites its first argument."""
    if node.op == "call_module":
        return bool(getattr(modules[str(node.target)], "inplace", False))
    name = _name(node)
    if name in _OPERATORS or (name.endswith("_") and not name.endswith("__")):
        return True
    return bool(node.kwargs.get("inplace"))  # torch records it by name, however it was given


def _shares(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], _SHARING_MODULES)
    return _name(node) in _SHARING

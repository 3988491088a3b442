"""Two places that show where a tensor was made without saying on which device, on a machine that has no other.

`nowhere`: torch's default device is `meta`, whose tensors have no numbers. What is made without a device is made there,
and fails as soon as it meets a tensor of ours, all of which are on the CPU.

`elsewhere`: a GPU that does not exist. Its tensors have their numbers in the processor's memory, and a mark that says
where they are. As on a real one, tensors of two places do not meet in an operation, NumPy sees none of them until they
are copied, and random numbers come from a generator of the same place. This finds what the first cannot: arrays that
become tensors of the CPU, and tensors that become arrays.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
_TO_NUMPY = ("numpy", "__array__", "data_ptr")
_COPIES = ("copy_", "cpu", "to", "cuda")
_AS_THEY_ARE = ("_parse_to", "_has_compatible_shallow_copy_type")  # what `nn.Module.to` asks
_PRODUCT = re.compile(r"conv|matmul|mm|addmm")
_INDEXES = ("__getitem__", "__setitem__")


@contextmanager
def nowhere() -> Iterator[str]:
    """A place where tensors without a device are of no use; the device to name."""
    torch.set_default_device("meta")
    try:
        yield "cpu"
    finally:
        torch.set_default_device(None)


@contextmanager
def elsewhere() -> Iterator[str]:
    """A place with a GPU that does not exist; the device to name."""
    with _Marks() as marks:
        yield "cuda"
    assert marks.computed  # else a test shows nothing
    assert not marks.careless


def place(tensor: Tensor) -> torch.device:
    """Where a tensor is said to be."""
    found: torch.device = vars(tensor).get("_place", CPU)
    return found


def _marked(tensor: Tensor, where: torch.device) -> Tensor:
    vars(tensor)["_place"] = where
    return tensor


class _Marks(TorchFunctionMode):
    """Runs everything on the CPU, and keeps the marks."""

    def __init__(self) -> None:
        super().__init__()
        self.computed = 0  # operations on marked tensors
        self.careless = 0  # products in float64, which may be a proof's, that cuDNN could have chosen the arithmetic of

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, name = dict(kwargs or {}), _name(func)
        if func is torch.device or name in _AS_THEY_ARE:
            return func(*args, **kwargs)
        if name == "device.__get__":
            return place(args[0])
        if name == "data.__set__":
            vars(args[0])["_place"] = place(args[1])
            return func(*args, **kwargs)
        if name == "__reduce_ex__" and place(args[0]) != CPU:
            return _marked, (args[0].clone(), place(args[0]))
        tensors = list(_tensors((args, kwargs)))
        if name in _TO_NUMPY and place(args[0]) != CPU:
            raise TypeError(f"{name} of a tensor on {place(args[0])}")
        target = _target(name, args, kwargs)
        if name in _COPIES:
            here = target or place(args[0])
        else:
            here = self._meeting(name, args, tensors) if target is None else target
        self.computed += here != CPU
        if here != CPU and _PRODUCT.match(name) and any(t.dtype == torch.float64 for t in tensors):
            self.careless += torch.backends.cudnn.enabled
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != here.type:
            raise RuntimeError(f"{name} on {here} with a generator of {generator.device}")
        result = func(*_on_cpu(args), **_on_cpu(kwargs))
        if name in ("to", "cpu", "cuda") and result is args[0] and here != place(args[0]):
            result = result.clone()
        for tensor in _tensors(result):
            if not any(tensor is t for t in tensors):
                vars(tensor)["_place"] = here
        return result

    @staticmethod
    def _meeting(name: str, args: tuple[Any, ...], tensors: list[Tensor]) -> torch.device:
        """The one place of all tensors. Single numbers, and what indexes others, may be on the CPU."""
        if name in _INDEXES:
            free = [t for t in _tensors(args[1]) if place(t) == CPU]
            tensors = [t for t in tensors if not any(t is f for f in free)] + [args[0]]
        single = name not in ("cat", "stack")
        places = {place(t) for t in tensors if not (single and t.ndim == 0 and place(t) == CPU)}
        if len(places) > 1:
            raise RuntimeError(f"{name} of tensors on {sorted(map(str, places))}")
        return places.pop() if places else CPU


def _name(func: Callable[..., Any]) -> str:
    name: str = getattr(func, "__name__", str(func))
    owner = getattr(getattr(func, "__self__", None), "__name__", "")
    return f"{owner}.{name}" if name in ("__get__", "__set__") else name


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _target(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """The device that a call names."""
    if name in ("cpu", "cuda"):
        return CPU if name == "cpu" else CUDA
    named = kwargs.get("device")
    if name == "to" and named is None:
        named = next((a for a in args[1:] if isinstance(a, str | torch.device | Tensor)), None)
    if isinstance(named, Tensor):
        return place(named)
    return None if named is None else CPU if torch.device(named) == CPU else CUDA


def _on_cpu(value: Any) -> Any:
    """The arguments of a call with every device that does not exist replaced."""
    if isinstance(value, torch.device):
        return CPU
    if isinstance(value, str):
        return "cpu" if value.partition(":")[0] == "cuda" else value
    if isinstance(value, dict):
        return {key: _on_cpu(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_on_cpu, value))
    return value

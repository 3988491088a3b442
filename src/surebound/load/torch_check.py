"""Which calls of torch are compared with torch by themselves, as `onnx_check` does it for the nodes of a file."""

from typing import Any

from torch import nn

from surebound.load.torch_calls import CALLS
from surebound.load.torch_ops import MOVES

_PLAIN = frozenset(
    """add batch_norm conv1d conv2d detach div double float iadd imul isub itruediv linear matmul mm mul multiply neg
    relu rsub sigmoid sub subtract tanh true_divide truediv dim size getattr""".split()  # noqa: SIM905
)
_PLAIN_MODULES = (
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.BatchNorm1d, nn.BatchNorm2d, nn.ReLU, nn.Sigmoid, nn.Tanh, nn.Flatten),
    *(nn.Unflatten, nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d),
)


def is_plain(name: str, module: nn.Module | None, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Whether a call may be taken for what its name says: arithmetic with NumPy's broadcasting, and products with
    constants, without options. What only moves numbers is run by torch itself."""
    if module is not None:
        return isinstance(module, _PLAIN_MODULES) and getattr(module, "padding", 0) != "same"
    if name in MOVES or name in (
        "mul",
        "multiply",
        "imul",
    ):  # two factors are read from where they come from, if at all
        return True
    return name in _PLAIN and not any(isinstance(v, str) for v in args) and not {"alpha", "padding"} & {*kwargs}


def is_weighted(name: str, module: nn.Module | None) -> bool:
    """Whether a call is a sum of inputs with weights."""
    if module is not None:
        return type(module) in CALLS and hasattr(module, "weight")
    return name.startswith(("conv", "linear", "batch_norm"))

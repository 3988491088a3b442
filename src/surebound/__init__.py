"""surebound trains networks whose robustness can be proved, and proves it, or finds an input that breaks it.

model = surebound.load("net.onnx")
verdict = surebound.verify(model, surebound.Robustness(x, label=3, eps="2/255"), timeout=60)
"""

import inspect
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from surebound import api
from surebound.api import certify
from surebound.errors import SureboundError
from surebound.problem import Box, Counterexample, Property, Region, Robustness, Verdict
from surebound.version import __version__

if TYPE_CHECKING:
    from surebound.api import bounds, load, train, verify

__all__ = [
    "Box",
    "Counterexample",
    "Property",
    "Region",
    "Robustness",
    "SureboundError",
    "Verdict",
    "__version__",
    "bounds",
    "certify",
    "load",
    "train",
    "verify",
]


class _Room(ModuleType):
    """A package that shares its name with a function of the public interface, and can be called as that function."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        return getattr(api, self.__name__.rpartition(".")[2])(*args, **options)


for _name in ("bounds", "load", "train", "verify"):
    _room, _function = import_module(f"surebound.{_name}"), getattr(api, _name)
    _room.__class__ = _Room
    _room.__dict__.update(__doc__=_function.__doc__, __signature__=inspect.signature(_function))

"""surebound trains networks whose robustness can be proved, and proves it, or finds an input that breaks it.

model = surebound.load("net.onnx")
verdict = surebound.verify(model, surebound.Robustness(x, label=3, eps="2/255"), timeout=60)
"""

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from surebound.version import __version__

if TYPE_CHECKING:
    from surebound.api import bounds, certify, load, train, verify
    from surebound.errors import SureboundError
    from surebound.problem import Ball, Box, Counterexample, Property, Region, Robustness, Verdict

__all__ = [
    "Ball",
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
        return _function(self)(*args, **options)

    @property
    def __signature__(self) -> Any:
        import inspect

        return inspect.signature(_function(self))


def _function(room: ModuleType) -> Any:
    return getattr(import_module("surebound.api"), room.__name__.rpartition(".")[2])


# After the class has its own docstring: what `help` shows of an instance.
_Room.__doc__ = property(lambda room: _function(room).__doc__)  # type: ignore[assignment]

for _name in ("bounds", "load", "train", "verify"):
    import_module(f"surebound.{_name}").__class__ = _Room


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: the command must hear a Ctrl-C before NumPy is there."""
    if name not in __all__:
        raise AttributeError(f"module 'surebound' has no attribute '{name}'")
    home = {"SureboundError": "errors", "certify": "api"}.get(name, "problem")
    globals()[name] = value = getattr(import_module(f"surebound.{home}"), name)
    return value

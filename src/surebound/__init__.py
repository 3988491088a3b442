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


def _help(room: ModuleType) -> str:
    """What `help` shows: the function's docstring, with its arguments, which `help` leaves out for a package."""
    from inspect import Parameter, cleandoc, signature

    function = _function(room)
    plain = [p.replace(annotation=Parameter.empty) for p in signature(function).parameters.values()]
    call = signature(function).replace(parameters=plain, return_annotation=Parameter.empty)
    summary, _, rest = cleandoc(function.__doc__).partition("\n\n")
    return f"{summary}\n\n{function.__name__}{call}\n\n{rest}"


# After the class has its own docstring.
_Room.__doc__ = property(_help)  # type: ignore[assignment]

for _name in ("bounds", "load", "train", "verify"):
    import_module(f"surebound.{_name}").__class__ = _Room


def __dir__() -> list[str]:
    """The public names, also those that were not used yet, and the packages."""
    there = (name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType))
    return sorted({*__all__, *there})


def __getattr__(name: str) -> Any:
    """Names are imported when they are first used: the command must hear a Ctrl-C before NumPy is there."""
    if name not in __all__:
        raise AttributeError(f"module 'surebound' has no attribute '{name}'")
    home = {"SureboundError": "errors", "certify": "api"}.get(name, "problem")
    globals()[name] = value = getattr(import_module(f"surebound.{home}"), name)
    return value

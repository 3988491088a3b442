"""Import torch without the parts that one verification never touches, which are two fifths of the time it takes.

`import torch` loads what traces, compiles, exports, quantises and distributes networks. `quick_import` first puts a
placeholder in the place of each of those modules; one that is used after all loads the real module then. It is meant
for a process that ends with its verdict: torch.compile and torch.export do not work in it.

What torch's modules do on import differs from version to version, so this is for the versions it was tried with; any
other is imported as it is.
"""

import atexit
import ctypes
import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

TRIED = ("2.13.",)

DEFERRED = (
    "_meta_registrations",  # shapes of results without their numbers, for tracing; brings _decomp, _prims and _refs
    "_tensor_docs",
    "ao",
    "distributed._meta_registrations",
    "distributions",
    "export",
    "masked",
    "nn.intrinsic",
    "nn.qat",
    "nn.quantizable",
    "nn.quantized",
    "quantization",
    "utils.data",
)


class Deferred(ModuleType):
    """Stands for a module until one of its attributes is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__path__":  # inspect asks all modules for these
            raise AttributeError(f"module '{self.__name__}' is not loaded yet and has no attribute '{name}'")
        return getattr(self._loaded(), name)

    def _loaded(self) -> ModuleType:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return importlib.import_module(self.__name__)


@contextmanager
def uncollected() -> Iterator[None]:
    """Import without collecting garbage, a seventh of what an import of torch takes: modules stay as long as we do."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def preload() -> None:
    """Begin to load the largest of torch's libraries, a third of what its import takes, in a thread beside this one.

    While it loads, no other library can be: everything else that has libraries should be imported before.
    """
    alone = "torch" in sys.modules or len(os.sched_getaffinity(0)) == 1
    spec = None if alone else PathFinder.find_spec("torch")
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so" if spec is not None and spec.origin else None
    if library is not None and library.is_file():
        load = ctypes.CDLL(None).dlopen  # unlike ctypes.CDLL, a function of C lets other threads run
        thread = threading.Thread(target=load, args=(str(library).encode(), os.RTLD_NOW), name="preload", daemon=True)
        thread.start()
        atexit.register(thread.join)  # a process that ends while a library loads crashes, unless by os._exit


def quick_import() -> None:
    """Import torch, the quick way if its version is one that was tried; nothing if it is imported already."""
    if "torch" in sys.modules:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        quick = version("torch").startswith(TRIED)
    except PackageNotFoundError:  # built from source, say
        quick = False
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")  # plug-ins for other devices are not needed either
    names = [f"torch.{name}" for name in DEFERRED] if quick else []
    for name in names:
        sys.modules.setdefault(name, Deferred(name))
    importlib.import_module("torch")
    if names:
        _make_up_for(names)


def _make_up_for(names: list[str]) -> None:
    """What the real imports would have done that is needed."""
    for name in names:
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, sys.modules[name])
    torch, base = sys.modules["torch"], importlib.import_module("torch._opaque_base")
    torch._C._set_generator_metaclass(base.OpaqueBaseMeta)  # without it there is no torch.Generator

"""Name → implementation. Command-line choices and conformance tests are derived from these tables.

A registry stores import paths, not objects, so that listing the names costs nothing and a module is imported only when
its entry is used.
"""

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Generic, TypeVar, cast

from surebound.errors import UsageError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """A read-only mapping from names to lazily imported objects.

    >>> functions = Registry("function", {"sqrt": "math:sqrt"})
    >>> functions["sqrt"](9.0)
    3.0
    """

    def __init__(self, kind: str, entries: dict[str, str]) -> None:
        self.kind = kind
        self._entries = entries

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            known = ", ".join(self._entries)
            raise UsageError(f"unknown {self.kind} '{name}'; expected one of: {known}")
        module, _, attribute = self._entries[name].partition(":")
        return cast(T, getattr(import_module(module), attribute))

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

"""What a search asks when it has points in hand."""

from collections.abc import Callable

from torch import Tensor

from surebound.problem import Counterexample

TryPoints = Callable[[Tensor], Counterexample | None]
"""Points (n, network inputs) near which a counterexample may lie -> one that was replayed, or None."""

"""What a caller of `verify` may choose."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from surebound.attacks.mi_fgsm import MIFGSM, PUBLISHED
from surebound.attacks.pgd import PGD
from surebound.bounds.device import CPU, expect_exact
from surebound.branching import CHOICES
from surebound.errors import UsageError
from surebound.verify.strategy import Strategy, default, profile


@dataclass(frozen=True, kw_only=True)
class Options:
    """Time, effort and chance; `strategy` has everything that is tuned."""

    timeout: float | None = None
    branching: str = "auto"
    seed: int = 0
    memory: int | None = None  # bytes; None: a quarter of what is available
    early_stop: bool = False
    workers: int | str | None = None  # that share a long search; "auto": if that is faster than threads
    cluster: str | None = None  # the address of one, whose workers share it
    resources: Mapping[str, Any] | None = None  # that a part of it takes there
    proof: bool = False  # write down why a property holds
    device: str = CPU  # where bounds and attacks are computed
    quick_attack: PGD | MIFGSM | None = field(
        default_factory=lambda: PGD(steps=20, restarts=2)
    )  # None: attacked already
    search_attack: MIFGSM = field(default_factory=lambda: MIFGSM(steps=100, restarts=4))  # again and again
    strategy: Strategy = field(default_factory=default)

    @staticmethod
    def of(search: str, *, branching: str = "auto", **more: Any) -> "Options":
        """With the strategy and the attacks of a profile."""
        strategy = profile(search, branching)
        if search == "paper":
            attack = MIFGSM(steps=100, restarts=10, **PUBLISHED)
            more = {"quick_attack": attack, "search_attack": attack, **more}
        return Options(branching=branching, strategy=strategy, **more)

    def check_norm(self, norm: str) -> None:
        """Raise UsageError if these options make no sense over a ball."""
        if norm != "inf" and self.branching == "input":
            raise UsageError(f"branching 'input' bisects boxes, not a ball in ℓ{norm}; expected another")
        if norm != "inf" and self.proof:
            raise UsageError(
                f"there are no proofs over a ball in ℓ{norm}: a property's text has boxes alone; expected ℓ∞"
            )

    def __post_init__(self) -> None:
        expect_exact(self.device)
        if self.branching not in CHOICES:
            raise UsageError(f"unknown branching '{self.branching}'; expected one of: {', '.join(CHOICES)}")
        if self.timeout is not None and not (isinstance(self.timeout, int | float) and self.timeout > 0):
            raise UsageError(f"timeout must be a positive number of seconds or None, got {self.timeout!r}")
        if not isinstance(self.seed, int) or not 0 <= self.seed < 2**63:
            raise UsageError(f"seed must be a whole number from 0 to 2**63 - 1, got {self.seed!r}")
        if self.workers not in (None, "auto") and not (isinstance(self.workers, int) and self.workers > 0):
            raise UsageError(f"workers must be a whole number from 1 up or 'auto', got {self.workers!r}")
        if self.workers is not None and self.cluster is not None:
            raise UsageError("workers and a cluster; expected one of the two: a cluster has workers of its own")
        if self.resources is not None and self.cluster is None:
            raise UsageError("resources without a cluster; expected both: they are what a task takes of a cluster")
        if self.memory is not None and not (isinstance(self.memory, int) and self.memory > 0):
            raise UsageError(f"memory must be a positive number of bytes or None, got {self.memory!r}")

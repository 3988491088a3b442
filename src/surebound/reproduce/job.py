"""What is to be done for an experiment, job by job."""

from dataclasses import dataclass, field
from typing import Literal

from surebound.reproduce.scales import Cell

Kind = Literal["train", "try", "certify", "branch"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One piece of work on one cell; a certification is handed out image by image."""

    kind: Kind
    cell: Cell
    search: str = "default"  # the verifier's profile
    steps: int = 0  # of a trial
    image: int = 0  # to branch on
    first: int = 0  # which rule goes first
    runs: dict[str, int] = field(default_factory=dict)  # of the rules still to be tried, in the store

    def __str__(self) -> str:
        match self.kind:
            case "train":
                return f"training {self.cell}"
            case "try":
                return f"trying {self.cell}"
            case "certify":
                return f"certifying {self.cell}"
            case "branch":
                return f"branching on {self.cell}, image {self.image}, search {self.search}"

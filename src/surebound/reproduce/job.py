"""What is to be done for an experiment, job by job."""

from dataclasses import dataclass, field
from typing import Literal

from surebound.reproduce.scales import Training

Kind = Literal["train", "try", "certify", "branch"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One piece of work on one training; a certification is handed out image by image."""

    kind: Kind
    training: Training
    search: str = "default"  # the verifier's profile
    steps: int = 0  # of a trial
    image: int = 0  # to branch on
    first: int = 0  # which rule goes first
    runs: dict[str, int] = field(default_factory=dict)  # of the rules still to be tried, in the store

    def __str__(self) -> str:
        match self.kind:
            case "train":
                return f"training {self.training}"
            case "try":
                return f"trying {self.training}"
            case "certify":
                return f"certifying {self.training}"
            case "branch":
                return f"branching on {self.training}, image {self.image}, search {self.search}"

"""What workers are asked to do, as it travels to them: one line of JSON."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from surebound.reproduce.scales import Cell

Kind = Literal["train", "try", "certify", "branch"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """One piece of work on one cell."""

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

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> "Job":
        values: dict[str, Any] = json.loads(text)
        return Job(**values | {"cell": Cell(**values["cell"])})

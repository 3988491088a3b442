"""How many dual iterations a node gets (De Palma 2021, section 5.1.2): more while they pay better than branching."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class IterationPolicy:
    """Starts at `count`; raised by 5 at first, then doubled, up to `cap`. (The paper starts at 2:
    IterationPolicy(count=2).)

    Both gains are per unit of work, counted in dual iterations: raising from i to j costs j − i, branching costs two
    children of i iterations each.
    """

    count: int = 5
    cap: int = 100
    probe_depth: int = 4
    rest: int = 0  # batches to wait before probing again

    @property
    def next_count(self) -> int:
        return min(self.cap, self.count + 5 if self.count < 5 else 2 * self.count)

    def wants_probe(self, depth: int) -> bool:
        """Whether a picked node of this depth should be probed."""
        return depth >= self.probe_depth and self.rest == 0 and self.count < self.cap

    def probed(self, *, more_gain: float, branch_gain: float) -> "IterationPolicy":
        """After bounding a node with `next_count` iterations gained `more_gain` over `count`."""
        per_more = more_gain / (self.next_count - self.count)
        per_branch = branch_gain / (2 * self.count)
        if per_more > per_branch:
            return replace(self, count=self.next_count)
        return replace(self, rest=20)

    def rested(self) -> "IterationPolicy":
        """One batch later."""
        return replace(self, rest=max(0, self.rest - 1))

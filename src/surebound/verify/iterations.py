"""How many dual iterations a node gets (De Palma 2021, section 5.1.2): more while they pay better than branching."""

from dataclasses import dataclass, replace

from surebound.verify.strategy import Iterations


@dataclass(frozen=True)
class Iteration:
    """The number in use, raised by 5 at first, then doubled.

    Both gains are per unit of work, counted in dual iterations: raising from i to j costs j − i, branching costs two
    children of i iterations each.
    """

    policy: Iterations
    count: int
    waiting: int = 0  # batches before more are tried again

    @property
    def next_count(self) -> int:
        return min(self.policy.cap, self.count + 5 if self.count < 5 else 2 * self.count)

    def wants_probe(self, depth: int) -> bool:
        """Whether more should be tried on a picked node of this depth."""
        return depth >= self.policy.probe_depth and self.waiting == 0 and self.count < self.policy.cap

    def probed(self, *, more_gain: float, branch_gain: float) -> "Iteration":
        """After bounding a node with `next_count` iterations gained `more_gain` over `count`."""
        per_more = more_gain / (self.next_count - self.count)
        per_branch = branch_gain / (2 * self.count)
        if per_more > per_branch:
            return replace(self, count=self.next_count)
        return replace(self, waiting=self.policy.rest)

    def rested(self) -> "Iteration":
        """One batch later."""
        return replace(self, waiting=max(0, self.waiting - 1))

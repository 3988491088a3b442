"""How fast a search comes on, and when to give it up (the paper's appendix F).

After a few batches, with LB the lowest bound, Ī a moving average of how much the worst node gains on its parent, q
nodes in the queue and b nodes in a batch that takes t seconds, the search needs about

    (−LB / Ī + q / b) · t

seconds more. It stops when that exceeds what is left.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Pace:
    """The running estimate."""

    warm_up: int = 5
    smoothing: float = 0.5
    batches: int = 0
    gain: float | None = None  # Ī
    nodes: int = 0  # b, of the last batch
    seconds: float = 0.0  # t, of the last batch

    def observed(self, gain: float, nodes: int, seconds: float) -> "Pace":
        """After a batch of so many nodes, whose worst gained this much over its parent."""
        smooth = gain if self.gain is None else self.smoothing * self.gain + (1 - self.smoothing) * gain
        return replace(self, batches=self.batches + 1, gain=smooth, nodes=nodes, seconds=seconds)

    @property
    def each(self) -> float:
        """Seconds for a node of the last batch."""
        return self.seconds / max(self.nodes, 1)

    def takes_longer(self, remaining: float, *, lowest: float, queue: int) -> bool:
        """Whether the search is expected to need more than some seconds."""
        if self.batches < self.warm_up or self.gain is None or lowest >= 0:
            return False
        levels = float("inf") if self.gain <= 0 else -lowest / self.gain
        return (levels + queue / max(self.nodes, 1)) * self.seconds > remaining

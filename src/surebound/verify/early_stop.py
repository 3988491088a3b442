"""Early termination (the paper's appendix F): give up when the search is not going to make it.

After a few batches, with LB the lowest bound, Ī a moving average of how much the worst node gains on its parent, q
nodes in the queue and b nodes in a batch that takes t seconds, the search needs about

    (−LB / Ī + q / b) · t

seconds more. It stops when that exceeds what is left.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """The running estimate."""

    warm_up: int = 5
    smoothing: float = 0.5
    batches: int = 0
    gain: float | None = None

    def observed(self, gain: float) -> "EarlyStop":
        """After a batch whose worst node gained this much over its parent."""
        smooth = gain if self.gain is None else self.smoothing * self.gain + (1 - self.smoothing) * gain
        return replace(self, batches=self.batches + 1, gain=smooth)

    def hopeless(self, *, lowest: float, queue: int, batch: int, batch_seconds: float, remaining: float) -> bool:
        """Whether the estimate passes the remaining time."""
        if self.batches < self.warm_up or self.gain is None or lowest >= 0:
            return False
        levels = float("inf") if self.gain <= 0 else -lowest / self.gain
        return (levels + queue / max(batch, 1)) * batch_seconds > remaining

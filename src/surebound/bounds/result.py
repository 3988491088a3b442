"""What a method of bounding returns."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class LayerBounds:
    """Bounds on every ReLU layer's pre-activation x̂_k and, last, on the output, for a batch of boxes."""

    lower: tuple[Tensor, ...]  # (boxes, neurons) each
    upper: tuple[Tensor, ...]  # (boxes, neurons) each

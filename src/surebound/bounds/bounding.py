"""How the layers of a network are bounded: what there is to choose, apart from what does it, which needs torch."""

from dataclasses import dataclass

from surebound.bounds.beta_crown import Ascent
from surebound.network.activation import Lines as Kind


@dataclass(frozen=True, kw_only=True)
class LayerBounding:
    """How intermediate bounds are computed."""

    slopes: tuple[Kind, ...] = ("fastlin", "crown")  # the better of these for each neuron
    ascent: Ascent | None = Ascent(iterations=5, lr=1.0)  # then α-CROWN where the sign is still open; None: not at all

    @property
    def fixed(self) -> Kind | None:
        """The name of the slopes if they are the same for all rows."""
        return self.slopes[0] if self.ascent is None and len(self.slopes) == 1 else None

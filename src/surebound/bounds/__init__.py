"""Bounds on every layer of a network over boxes: each method is a function, listed here by name.

A method takes a float64 network and boxes lower, upper (boxes, *input_shape) and returns `LayerBounds`. All are sound
with rounding accounted for, except `milp`, which is exact up to its solver's tolerance. Those of `OVER_BALLS` also take
`around`, the balls within those boxes (`surebound.bounds.around`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from surebound.registry import Registry

if TYPE_CHECKING:
    from surebound.bounds.result import LayerBounds

    Method = Callable[..., LayerBounds]  # (network, lower, upper)

BOUNDS: "Registry[Method]" = Registry(
    "bound",
    {
        "interval": "surebound.bounds.layerwise:interval",
        "fastlin": "surebound.bounds.layerwise:fastlin",
        "crown": "surebound.bounds.layerwise:crown",
        "alpha-crown": "surebound.bounds.layerwise:alpha_crown",
        "deepz": "surebound.bounds.layerwise:deepz",
        "planet-lp": "surebound.bounds.planet_lp:planet_lp",
        "milp": "surebound.bounds.planet_lp:milp",
    },
)
OVER_BALLS = ("interval", "fastlin", "crown", "alpha-crown")

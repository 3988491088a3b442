"""How the kernel of a convolution or pool moves, for ONNX and torch alike."""

from dataclasses import dataclass
from typing import final

from surebound.network.build import Pads
from surebound.network.op import Shape


@final
@dataclass(frozen=True, kw_only=True)
class Window:
    """How a kernel moves, in numbers for each axis."""

    kernel: Shape
    stride: Shape
    pads: Pads  # before and after
    dilation: Shape
    groups: int = 1
    ceil_mode: bool = False  # the last window may begin where it does not fit
    count_include_pad: bool = True  # an average counts pads

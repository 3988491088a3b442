"""A node of an ONNX graph as handlers see it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load.algebra import Algebra, Array, Data, Value
from surebound.load.window import Window
from surebound.network.op import Shape


@dataclass(frozen=True)
class Call:
    """One node of some kind: its inputs (None where an optional one is left out) and attributes."""

    kind: str
    algebra: Algebra
    inputs: list[Value | None]
    attributes: dict[str, Any]
    opset: int
    outputs: int = 1  # how many the node lists

    @property
    def x(self) -> Data:
        """The first input, which must depend on the network's input."""
        return self.data(0)

    def given(self, i: int) -> bool:
        """Whether an input is there."""
        return i < len(self.inputs) and self.inputs[i] is not None

    def value(self, i: int) -> Value:
        """An input that must be there."""
        value = self.inputs[i] if i < len(self.inputs) else None
        if value is None:
            raise NetworkError(f"input {i} is missing")
        return value

    def data(self, i: int) -> Data:
        """An input as a tensor of the network."""
        return self.algebra.data(self.value(i))

    def constant(self, i: int) -> Array:
        """An input that must be constant."""
        value = self.value(i)
        if isinstance(value, Data):
            raise UnsupportedOpError(f"input {i} depends on the network's input; expected a constant")
        return value

    def optional(self, i: int) -> Array | None:
        """An input that must be constant if it is there."""
        return self.constant(i) if self.given(i) else None

    def integers(self, i: int, attribute: str) -> list[int] | None:
        """What newer opsets give as an input and older ones as an attribute."""
        given = self.optional(i)
        if given is not None:
            return [int(v) for v in given.reshape(-1)]
        listed = self.attributes.get(attribute)
        return None if listed is None else [int(v) for v in listed]


Handler = Callable[[Call], Value]


def window(call: Call, kernel: Shape | None = None) -> Window:
    """The window that convolutions and pools share."""
    a = call.attributes
    kernel = tuple(a.get("kernel_shape") or kernel or ())
    axes = len(kernel)
    stride = tuple(a.get("strides") or (1,) * axes)
    dilation = tuple(a.get("dilations") or (1,) * axes)
    flat = list(a.get("pads") or [0] * (2 * axes))
    lengths = call.x.shape[2:]
    if not axes or {len(stride), len(dilation), len(lengths)} != {axes} or len(flat) != 2 * axes:
        raise NetworkError(f"a window of {axes} axes does not fit a tensor of shape {list(call.x.shape)}")
    if min(*kernel, *stride, *dilation) < 1 or min(flat) < 0:
        raise NetworkError("a kernel size, stride or dilation is below 1, or a pad below 0")
    mode = a.get("auto_pad", b"NOTSET").decode()
    pads = list(zip(flat[:axes], flat[axes:], strict=True))
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        pool = call.kind.endswith("Pool")
        missing = [
            (-(-n // s) - 1) * s + d * (k - 1) + 1 - n
            for n, k, s, d in zip(lengths, kernel, stride, dilation, strict=True)
        ]
        if (pool and (max(dilation) > 1 or a.get("ceil_mode", 0))) or min(missing) < -1:  # of -1, nobody takes half
            raise UnsupportedOpError(
                f"auto_pad {mode} with dilations or ceil_mode, or with steps beyond the kernel, is read differently by"
                " runtimes; expected pads"
            )
        missing = [max(m, 0) for m in missing]
        pads = [(m // 2, m - m // 2) if mode == "SAME_UPPER" else (m - m // 2, m // 2) for m in missing]
    elif mode == "VALID":
        pads = [(0, 0)] * axes
    elif mode != "NOTSET":
        raise NetworkError(f"auto_pad is '{mode}'; expected NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    ceil_mode = bool(a.get("ceil_mode", 0))
    return Window(kernel=kernel, stride=stride, pads=pads, dilation=dilation, ceil_mode=ceil_mode)

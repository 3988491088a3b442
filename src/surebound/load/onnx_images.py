"""ONNX operations that make images larger or smaller: ConvTranspose, Resize and Upsample."""

from fractions import Fraction
from math import floor

import numpy as np

from surebound.errors import NetworkError, UnsupportedOpError
from surebound.load.algebra import Value
from surebound.load.onnx_call import Call, Handler, window
from surebound.load.resize import Axis


def _conv_transpose(call: Call) -> Value:
    weight = call.constant(1)
    kernel = tuple(weight.shape[2:])
    mode = call.attributes.get("auto_pad", b"NOTSET").decode()
    if mode not in ("NOTSET", "VALID") or call.attributes.get("output_shape"):
        raise UnsupportedOpError(
            "a transposed convolution with output_shape or auto_pad is not supported; expected pads"
        )
    w = window(call, kernel)
    if w.kernel != kernel:
        raise NetworkError(f"kernel_shape is {list(w.kernel)}; expected {list(kernel)}, as the weights")
    extra = tuple(call.attributes.get("output_padding") or (0,) * len(kernel))
    groups = int(call.attributes.get("group", 1))
    return call.algebra.conv_transpose(call.x, weight, call.optional(2), w.stride, w.pads, w.dilation, groups, extra)


def _resize(call: Call) -> Value:
    """Resize since opset 11, whose second input is for cropping; before that, as Upsample."""
    if call.opset < 11:
        return _upsample(call)
    a, rank = call.attributes, len(call.x.shape)
    if a.get("antialias", 0) or a.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise UnsupportedOpError(
            "a resize with antialias or a policy for its aspect is not supported; expected neither"
        )
    axes = [int(axis) % rank for axis in a.get("axes") or range(rank)]
    sizes, scales = call.optional(3), call.optional(2)
    given = sizes if sizes is not None and sizes.size else scales
    if given is None or given.size != len(axes):
        raise NetworkError(f"sizes or scales for {0 if given is None else given.size} axes; expected {len(axes)}")
    coordinates = a.get("coordinate_transformation_mode", b"half_pixel").decode()
    changed = {}
    for axis, number in zip(axes, given.reshape(-1).tolist(), strict=True):
        before = call.x.shape[axis]
        scale = Fraction(number, before) if given is sizes else Fraction(number)
        after = int(number) if given is sizes else _length(before, scale)
        changed[axis] = Axis(before=before, after=after, scale=scale, coordinates=coordinates)
    rounding = a.get("nearest_mode", b"round_prefer_floor").decode()
    return call.algebra.resize(call.x, changed, a.get("mode", b"nearest").decode(), rounding)


def _upsample(call: Call) -> Value:
    listed = call.optional(1) if call.given(1) else np.asarray(call.attributes.get("scales", ()))
    if listed is None or listed.size != len(call.x.shape):
        raise NetworkError(f"scales for {0 if listed is None else listed.size} axes; expected {len(call.x.shape)}")
    mode = call.attributes.get("mode", b"nearest").decode()
    scales = [Fraction(scale) for scale in listed.reshape(-1).tolist()]
    if mode == "nearest" and any(scale < 1 for scale in scales):  # for which the standard has no formula
        raise UnsupportedOpError(
            "a resize of opset 10 to fewer elements, by the nearest one, is not supported; expected opset 11 or later"
        )
    changed = {
        axis: Axis(before=n, after=_length(n, scale), scale=scale, coordinates="asymmetric")
        for axis, (n, scale) in enumerate(zip(call.x.shape, scales, strict=True))
    }
    return call.algebra.resize(call.x, changed, mode, "floor")


def _length(before: int, scale: Fraction) -> int:
    """How many elements an axis has after it was resized."""
    after = floor(before * scale)
    if floor(np.float32(before) * np.float32(float(scale))) != after:
        raise UnsupportedOpError(
            f"an axis of {before} that is resized by {float(scale):.9g} has another length in float32;"
            " expected sizes, or a scale that float32 holds"
        )
    return after


IMAGE_HANDLERS: dict[str, Handler] = {
    "ConvTranspose": _conv_transpose,
    "Resize": _resize,
    "Upsample": _upsample,
}

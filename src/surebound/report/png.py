"""Small pictures as PNG data URIs."""

import base64
import struct
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_GREY, _COLOUR = 0, 2  # PNG's colour types


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """A picture (height, width, 1 or 3) as a data URI."""
    return "data:image/png;base64," + base64.b64encode(encode(pixels)).decode()


def encode(pixels: NDArray[np.uint8]) -> bytes:
    """A picture (height, width, 1 or 3) as the bytes of a PNG file."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR if channels == 3 else _GREY, 0, 0, 0)
    lines = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, width * channels)], axis=1)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def as_picture(values: NDArray[np.float32], shape: Sequence[int]) -> NDArray[np.float64] | None:
    """Values as (height, width, channels), channels first or last; None if the shape is not a picture's."""
    if values.size != int(np.prod(shape)):
        return None
    image = values.astype(np.float64).reshape(tuple(shape))
    if image.ndim == 2:
        image = image[None]
    if image.ndim != 3 or min(image.shape) < 1:
        return None
    if image.shape[0] in (1, 3):
        return image.transpose(1, 2, 0)
    return image if image.shape[2] in (1, 3) else None


def to_bytes(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Values from 0 to 1 as bytes; what lies outside is cut, what is no number is black."""
    return np.rint(255 * np.clip(np.nan_to_num(image), 0, 1)).astype(np.uint8)


def magnification(difference: NDArray[np.float64]) -> int:
    """The largest of 1, 2, 5, 10, 20, … that keeps a difference within half the range on either side of grey."""
    largest = float(np.abs(np.nan_to_num(difference)).max(initial=0.0))
    factors = [m * 10**k for k in range(4) for m in (1, 2, 5)]
    return max((f for f in factors if f * largest <= 0.5), default=1) if largest > 0 else 1

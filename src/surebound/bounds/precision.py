"""Whether float32 here means float32: settings of torch and oneDNN allow products in bfloat16 or TF32 instead, and some
libraries convolve by way of a transform, which mixes what is large with what is small."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from surebound.network.arrays import Lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")

_CHANNELS = 32


def float32_is_kept(device: str = "cpu") -> bool:
    """Whether products on a device are float32."""
    return is_kept(torch.float32, device)


def numpy_keeps_float32() -> bool:
    """The same of NumPy's."""
    unit = np.eye(_CHANNELS, dtype=np.float32)
    drawn = np.random.default_rng(0).standard_normal((_CHANNELS, _CHANNELS), dtype=np.float32)
    return np.array_equal(unit @ drawn, drawn) and np.array_equal(drawn @ unit, drawn)


def is_kept(dtype: torch.dtype, device: str) -> bool:
    """Whether products on a device are of a type; on another than the processor, of its smallest numbers, too."""
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randn(_CHANNELS, _CHANNELS, 3, 3, generator=generator, dtype=dtype, device="cpu")
    smallest = drawn * (torch.finfo(dtype).tiny / 8)  # denormal
    return _exact(drawn.to(device)) and (device == "cpu" or _exact(smallest.to(device)))


def _exact(kernel: Tensor) -> bool:
    """Whether products whose result is one of the factors come out exactly. In a narrower type they would not."""
    unit = torch.eye(_CHANNELS, dtype=kernel.dtype, device=kernel.device)
    image = F.pad(unit[:, :, None, None], (2, 2, 2, 2))  # (channels, channels, 5, 5) with one 1 each
    pulled = F.conv_transpose2d(image, kernel)[:, :, 2:5, 2:5]
    pushed = F.conv2d(image, kernel.flip(2, 3)).transpose(0, 1)
    apart = F.conv2d(image.sum(0, keepdim=True), kernel[:, :1].flip(2, 3), groups=_CHANNELS)[0]  # channel by channel
    matrix = kernel[:, :, 0, 0]
    pairs = (
        (pulled, kernel),
        (pushed, kernel),
        (apart, kernel[:, 0]),
        (unit @ matrix, matrix),
        (matrix @ unit, matrix),
    )
    return all(torch.equal(found, expected) for found, expected in pairs)

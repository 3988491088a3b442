"""Whether float32 here means float32: settings of torch and oneDNN allow products in bfloat16 or TF32 instead."""

from typing import TYPE_CHECKING

import numpy as np

from surebound.network.arrays import Lazy

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch, F = Lazy("torch"), Lazy("torch.nn.functional")

_CHANNELS = 32


def float32_is_kept(numpy: bool = False) -> bool:
    """Probes products whose result is one of the factors, of torch or of NumPy: in float32 they are exact, in less they
    are not."""
    numbers = np.random.default_rng(0).standard_normal((_CHANNELS, _CHANNELS, 3, 3), dtype=np.float32)
    if numpy:
        one, other = np.eye(_CHANNELS, dtype=np.float32), numbers[:, :, 0, 0]
        return np.array_equal(one @ other, other) and np.array_equal(other @ one, other)
    kernel, unit = torch.from_numpy(numbers), torch.eye(_CHANNELS)
    image = F.pad(unit[:, :, None, None], (1, 2, 1, 2))  # (channels, channels, 4, 4) with one 1 each
    pulled = F.conv_transpose2d(image, kernel)[:, :, 1:4, 1:4]
    matrix = kernel[:, :, 0, 0]
    return torch.equal(pulled, kernel) and torch.equal(unit @ matrix, matrix) and torch.equal(matrix @ unit, matrix)

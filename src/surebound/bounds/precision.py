"""Whether float32 here means float32: settings of torch and oneDNN allow products in bfloat16 or TF32 instead."""

import torch
import torch.nn.functional as F

_CHANNELS = 32


def float32_is_kept() -> bool:
    """Probes products whose result is one of the factors: in float32 they are exact, in less they are not."""
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(_CHANNELS, _CHANNELS, 3, 3, generator=generator)
    unit = torch.eye(_CHANNELS)
    image = F.pad(unit[:, :, None, None], (1, 2, 1, 2))  # (channels, channels, 4, 4) with one 1 each
    pulled = F.conv_transpose2d(image, kernel)[:, :, 1:4, 1:4]
    matrix = kernel[:, :, 0, 0]
    return torch.equal(pulled, kernel) and torch.equal(unit @ matrix, matrix) and torch.equal(matrix @ unit, matrix)

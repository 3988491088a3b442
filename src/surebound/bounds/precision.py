"""Whether float32 here means float32: settings of torch and oneDNN allow products in bfloat16 or TF32 instead."""

import torch
import torch.nn.functional as F

_CHANNELS = 32


def float32_is_kept(device: str = "cpu") -> bool:
    """Whether products on a device are float32."""
    return is_kept(torch.float32, device)


def is_kept(dtype: torch.dtype, device: str) -> bool:
    """Probes products whose result is one of the factors: in their own type they are exact, in less they are not."""
    generator = torch.Generator("cpu").manual_seed(0)
    drawn = torch.randn(_CHANNELS, _CHANNELS, 3, 3, generator=generator, dtype=dtype, device="cpu")
    kernel, unit = drawn.to(device), torch.eye(_CHANNELS, dtype=dtype, device=device)
    image = F.pad(unit[:, :, None, None], (1, 2, 1, 2))  # (channels, channels, 4, 4) with one 1 each
    pulled = F.conv_transpose2d(image, kernel)[:, :, 1:4, 1:4]
    matrix = kernel[:, :, 0, 0]
    return torch.equal(pulled, kernel) and torch.equal(unit @ matrix, matrix) and torch.equal(matrix @ unit, matrix)

"""Small digit classifiers for tests that certify: one trained for a second, one linear with known margins."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from surebound.data import load_dataset
from surebound.train.export import export_onnx

SHAPE = (1, 8, 8)


@cache
def small_digits() -> nn.Sequential:
    """Two layers of a few neurons, about nine tenths of the test images right, robust on some of them."""
    torch.manual_seed(0)
    x, y = load_dataset("digits").train.take(range(1437))
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 14), nn.ReLU(), nn.Linear(14, 12), nn.ReLU(), nn.Linear(12, 10))
    optimiser = torch.optim.Adam(net.parameters(), lr=0.02)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net((x + 0.1 * torch.rand_like(x).sub(0.5)).clamp(0, 1)), y).backward()
        optimiser.step()
    return net.eval()


def nearest_means() -> nn.Sequential:
    """Takes each image for the digit whose mean training image is nearest: a linear classifier."""
    x, y = load_dataset("digits").train.take(range(1437))
    means = torch.stack([x[y == digit].flatten(1).mean(0) for digit in range(10)])
    linear = nn.Linear(64, 10)
    with torch.no_grad():
        linear.weight.copy_(2 * means)
        linear.bias.copy_(-means.square().sum(1))
    return nn.Sequential(nn.Flatten(), linear)


def least_margins(module: nn.Sequential, radius: float) -> NDArray[Any]:
    """The least margin of a linear classifier over the other classes and the box, for each test image."""
    weight, bias = (p.detach().double().numpy() for p in module[1].parameters())
    images, labels = load_dataset("digits").test.take(range(360))
    x, y = images.flatten(1).double().numpy(), labels.numpy()
    lower, upper = np.maximum(x - radius, 0), np.minimum(x + radius, 1)
    slope = weight[y][:, None] - weight[None]  # (images, classes, pixels)
    margins = np.where(slope > 0, slope * lower[:, None], slope * upper[:, None]).sum(2) + bias[y][:, None] - bias
    margins[np.arange(len(y)), y] = np.inf
    least: NDArray[Any] = margins.min(1)
    return least


def write(module: nn.Sequential, folder: Path, name: str = "model.onnx") -> Path:
    """The network as an ONNX file."""
    export_onnx(module, SHAPE, folder / name)
    return folder / name

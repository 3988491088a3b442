"""Named architectures: `architecture("conv-2-255", in_shape=(3, 32, 32), classes=10, mean=…, std=…)`.

Each is a `torch.nn.Sequential` whose first layer normalises pixels, so that attacks and boxes live in pixel space
[0, 1]. Weights and biases start from U(±1/√fan_in); batch norms from the identity.
"""

from collections.abc import Callable, Sequence
from math import sqrt

import torch
from torch import Tensor, nn

from surebound.errors import UsageError
from surebound.network.op import Shape
from surebound.registry import Registry

Layers = list[nn.Module]
Factory = Callable[[Shape, int], Layers]

ARCHITECTURES: Registry[Factory] = Registry(
    "architecture",
    {
        "conv-2-255": f"{__name__}:conv_2_255",
        "conv-8-255": f"{__name__}:conv_8_255",
        "cnn7": f"{__name__}:cnn7",
        "resnet-small": f"{__name__}:resnet_small",
        "conv-small": f"{__name__}:conv_small",
        "fc-small": f"{__name__}:fc_small",
    },
)
"""Name → (in_shape, classes) -> the layers after the normalisation."""


class Normalise(nn.Module):
    """(x − mean) / std per channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean, device="cpu").reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, device="cpu").reshape(-1, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """# (batch, channels, height, width)"""
        return (x - self.mean) / self.std


class Residual(nn.Module):
    """relu(conv(relu(conv(x))) + x), batch norms after the convolutions; where the shapes differ, a convolution of one
    pixel takes x to the other shape (He et al. 2016)."""

    def __init__(self, channels: int, out: int, stride: int = 1, *, norm: bool = True) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, out, 3, stride, 1), *_norms(out, norm))
        self.second = nn.Sequential(nn.Conv2d(out, out, 3, 1, 1), *_norms(out, norm))
        same = stride == 1 and channels == out
        shortcut = [] if same else [nn.Conv2d(channels, out, 1, stride), *_norms(out, norm)]
        self.shortcut = nn.Sequential(*shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """# (batch, channels, height, width)"""
        return torch.relu(self.second(torch.relu(self.first(x))) + self.shortcut(x))


def _norms(channels: int, norm: bool) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels)] if norm else []


def architecture(
    name: str, *, in_shape: Shape, classes: int, mean: Sequence[float], std: Sequence[float]
) -> nn.Sequential:
    """A freshly initialised network on images of (channels, height, width), drawn from torch's global generator."""
    factory = ARCHITECTURES[name]
    if len(in_shape) != 3 or min(in_shape) < 1:
        raise UsageError(f"images of shape {list(in_shape)}; expected (channels, height, width)")
    if len(mean) != in_shape[0] or len(std) != in_shape[0] or min(std) <= 0:
        raise UsageError(
            f"a normalisation by means {list(mean)} and deviations {list(std)}; "
            f"expected {in_shape[0]} of each, with positive deviations"
        )
    with torch.device("cpu"):  # whatever torch's default is: weights are drawn here, and moved
        network = nn.Sequential(Normalise(mean, std), *factory(tuple(in_shape), classes))
    for module in network.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            initialise(module)
    return network


def initialise(module: nn.Linear | nn.Conv2d) -> None:
    """Weights and biases from U(±1/√fan_in)."""
    bound = 1.0 / sqrt(module.weight[0].numel())
    nn.init.uniform_(module.weight, -bound, bound)
    if module.bias is not None:
        nn.init.uniform_(module.bias, -bound, bound)


def conv_2_255(in_shape: Shape, classes: int) -> Layers:
    """The paper's network for CIFAR-10 at ε = 2/255 (table 3)."""
    convs, flat = _convolutions(in_shape, [(32, 3, 1, 1), (32, 4, 2, 1), (128, 4, 2, 1)])
    return [*convs, nn.Flatten(), nn.Linear(flat, 250), nn.ReLU(), nn.Linear(250, classes)]


def conv_8_255(in_shape: Shape, classes: int) -> Layers:
    """The paper's network for CIFAR-10 at ε = 8/255 (table 3)."""
    convs, flat = _convolutions(in_shape, [(32, 5, 2, 2), (128, 4, 2, 1)])
    return [*convs, nn.Flatten(), nn.Linear(flat, 250), nn.ReLU(), nn.Linear(250, classes)]


def cnn7(in_shape: Shape, classes: int) -> Layers:
    """The seven-layer network of Zhang 2020 and Shi 2021, with a batch norm after every layer but the last."""
    sizes = [(64, 3, 1, 1), (64, 3, 1, 1), (128, 3, 2, 1), (128, 3, 1, 1), (128, 3, 1, 1)]
    convs, flat = _convolutions(in_shape, sizes, norm=True)
    head = [nn.Linear(flat, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, classes)]
    return [*convs, nn.Flatten(), *head]


def resnet_small(in_shape: Shape, classes: int) -> Layers:
    """A residual network that two cores train: blocks of 16, 32 and 64 channels with batch norms, and two matrices."""
    channels, height, width = in_shape
    if min(height, width) < 4:
        raise UsageError(f"images of shape {list(in_shape)} are too small for this architecture")
    stem = [nn.Conv2d(channels, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU()]
    blocks = [Residual(16, 16), Residual(16, 32, 2), Residual(32, 64, 2)]
    flat = 64 * -(-height // 8) * -(-width // 8)
    return [*stem, *blocks, nn.Flatten(), nn.Linear(flat, 100), nn.ReLU(), nn.Linear(100, classes)]


def conv_small(in_shape: Shape, classes: int) -> Layers:
    """A convolutional network for MNIST or digits that trains in seconds."""
    convs, flat = _convolutions(in_shape, [(16, 4, 2, 1), (32, 4, 2, 1)])
    return [*convs, nn.Flatten(), nn.Linear(flat, 100), nn.ReLU(), nn.Linear(100, classes)]


def fc_small(in_shape: Shape, classes: int) -> Layers:
    """Two hidden layers of 100 neurons."""
    channels, height, width = in_shape
    flat = channels * height * width
    hidden = [nn.Linear(flat, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU()]
    return [nn.Flatten(), *hidden, nn.Linear(100, classes)]


def _convolutions(
    in_shape: Shape, sizes: Sequence[tuple[int, int, int, int]], *, norm: bool = False
) -> tuple[Layers, int]:
    """Convolutions of (channels, kernel, stride, padding) with ReLUs, and the number of elements that come out."""
    channels, height, width = in_shape
    layers: Layers = []
    for out, kernel, stride, padding in sizes:
        layers.append(nn.Conv2d(channels, out, kernel, stride, padding))
        if norm:
            layers.append(nn.BatchNorm2d(out))
        layers.append(nn.ReLU())
        height, width = ((n + 2 * padding - kernel) // stride + 1 for n in (height, width))
        channels = out
    if min(height, width) < 1:
        raise UsageError(f"images of shape {list(in_shape)} are too small for this architecture")
    return layers, channels * height * width

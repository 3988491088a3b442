"""Small networks that are no chains, for the tests of training."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from chains import CLASSES, SHAPE
from torch import Tensor, nn

from surebound.network.architectures import Normalise, Residual
from surebound.train.learner import Learner


def _residual() -> nn.Module:
    """A stem, a residual block of its own kind and one with a strided convolution on its shortcut, with batch norms."""
    stem = [Normalise((0.4, 0.5), (0.3, 0.2)), nn.Conv2d(2, 4, 3, 1, 1), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*stem, Residual(4, 4), Residual(4, 6, stride=2), nn.Flatten(), nn.Linear(54, CLASSES))


def _plain_residual() -> nn.Module:
    stem = [nn.Conv2d(2, 4, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*stem, Residual(4, 5, stride=2, norm=False), nn.Flatten(), nn.Linear(45, CLASSES))


def _pooled(pool: nn.Module, activation: nn.Module) -> nn.Module:
    convolutions = [nn.Conv2d(2, 4, 3, 1, 1), activation, pool, nn.Conv2d(4, 5, 2), nn.ReLU()]
    return nn.Sequential(Normalise((0.4, 0.5), (0.3, 0.2)), *convolutions, nn.Flatten(), nn.Linear(20, CLASSES))


def _smooth(activation: nn.Module) -> nn.Module:
    layers = [nn.Conv2d(2, 3, 3, 2, 1), activation, nn.Flatten(), nn.Linear(27, 6), activation]
    return nn.Sequential(*layers, nn.Linear(6, CLASSES))


def _spread() -> nn.Module:
    """Transposed convolutions, one of which writes more than it keeps, and a batch norm after the other."""
    first = [nn.Conv2d(2, 4, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), nn.ReLU()]
    second = [nn.ConvTranspose2d(6, 2, 2, bias=False), nn.BatchNorm2d(2), nn.ReLU()]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(98, CLASSES))


class PreActivated(nn.Module):
    """Norm and ReLU before each convolution, as functions with parameters of their own, and a mean over places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(2, 4, 3, 2, 1), nn.BatchNorm2d(4)
        self.kernel, self.offset = nn.Parameter(0.3 * torch.randn(4, 4, 3, 3)), nn.Parameter(torch.randn(4))
        self.head = nn.Parameter(torch.randn(CLASSES, 4))
        self.register_buffer("shift", torch.full((4, 1, 1), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem((x - 0.5) / 0.25) + self.shift
        x = x + F.conv2d(self.norm(x).relu(), self.kernel, self.offset, padding=1)
        return F.linear(F.relu(x).mean((2, 3)), self.head)


class NoCut(nn.Module):
    """Two branches from the input to the end."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(72, 5), nn.Linear(72, 4)
        self.last = nn.Linear(9, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.last(torch.cat([self.left(x).relu(), self.right(x).relu()], 1))


GRAPHS: dict[str, Callable[[], nn.Module]] = {
    "residual": _residual,
    "plain residual": _plain_residual,
    "average pool": lambda: _pooled(nn.AvgPool2d(2), nn.ReLU()),
    "max pool": lambda: _pooled(nn.MaxPool2d(2), nn.ReLU()),
    "leaky": lambda: _pooled(nn.AvgPool2d(2), nn.LeakyReLU(0.1)),
    "prelu": lambda: _pooled(nn.AvgPool2d(2), nn.PReLU(4)),
    "pre-activated": PreActivated,
    "no cut": NoCut,
    "sigmoid": lambda: _smooth(nn.Sigmoid()),
    "gelu": lambda: _smooth(nn.GELU()),
    "silu": lambda: _smooth(nn.SiLU()),
    "transposed": _spread,
    "no matrix": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, CLASSES, 4), nn.Flatten()),
}
SMOOTH = ("sigmoid", "gelu", "silu")


def graph(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Learner:
    """One of them, on 2 × 6 × 6 images with 3 classes."""
    torch.manual_seed(seed)
    module = GRAPHS[name]()
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.uniform_(m.bias, -0.5, 0.5)
    return Learner(module.to(dtype), SHAPE)


def module_parameters(learner: Learner) -> list[nn.Parameter]:
    """All that the module has."""
    return list(learner.module.parameters())

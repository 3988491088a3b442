"""Small chains and batches for the tests of training."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from surebound.network.architectures import Normalise, initialise
from surebound.network.conv import Conv
from surebound.network.linear import Linear
from surebound.train.batch import Batch, Draws
from surebound.train.learner import Layers, Learner

SHAPE = (2, 6, 6)
CLASSES = 3


def tiny_chain(*, seed: int = 0, norm: bool = False, dtype: torch.dtype = torch.float64) -> Learner:
    """Two convolutions and two linear layers on 2 × 6 × 6 images with 3 classes; optionally with batch norms."""
    torch.manual_seed(seed)
    modules: list[nn.Module] = [Normalise((0.4, 0.5), (0.3, 0.2)), nn.Conv2d(2, 4, 3, 1, 1)]
    modules += [nn.BatchNorm2d(4)] if norm else []
    modules += [nn.ReLU(), nn.Conv2d(4, 5, 4, 2, 1)]
    modules += [nn.BatchNorm2d(5)] if norm else []
    modules += [nn.ReLU(), nn.Flatten(), nn.Linear(45, 8)]
    modules += [nn.BatchNorm1d(8)] if norm else []
    modules += [nn.ReLU(), nn.Linear(8, CLASSES)]
    module = nn.Sequential(*modules)
    for m in module.modules():
        if isinstance(m, nn.Conv2d | nn.Linear):
            initialise(m)
        elif isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.uniform_(m.bias, -0.5, 0.5)
    return Learner(module.to(dtype), SHAPE)


def tiny_batch(
    *,
    seed: int = 1,
    size: int = 6,
    eps: float = 0.05,
    kappa: float = 0.6,
    ramp: float = 0.7,
    risen: float | None = None,
    stage: int = 0,
    dtype: torch.dtype = torch.float64,
) -> Batch:
    """Random images and labels; ε has risen as far as the ramp, unless told otherwise."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(size, *SHAPE, generator=generator).to(dtype)
    y = torch.randint(0, CLASSES, (size,), generator=generator)
    risen = ramp if risen is None else risen
    draws = Draws(seed, 7, size=size)
    return Batch(x=x, y=y, eps=eps, kappa=kappa, ramp=ramp, risen=risen, stage=stage, draws=draws)


def dense_layers(module: nn.Sequential) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """(W, b) of every affine layer: what it does to zero is b, to the columns of the identity W + b."""
    found, shape = [], SHAPE
    for m in module:
        if isinstance(m, nn.Conv2d | nn.Linear):
            eye = torch.eye(int(np.prod(shape)), dtype=torch.float64).reshape(-1, *shape)
            columns, b = m(eye).detach(), m(torch.zeros_like(eye[:1])).detach()
            found.append(((columns - b).flatten(1).T.numpy(), b.flatten().numpy()))
            shape = tuple(columns.shape[1:])
        elif isinstance(m, nn.Flatten):
            shape = (int(np.prod(shape)),)
    return found


def affine_ops(layers: Layers) -> list[Conv | Linear]:
    """The convolutions and matrices of a step's network, in order."""
    return [node.op for node in layers.network.nodes if isinstance(node.op, Conv | Linear)]


def affine_modules(learner: Learner) -> list[nn.Conv2d | nn.Linear]:
    """The modules that these come from."""
    return [m for m in learner.module.modules() if isinstance(m, nn.Conv2d | nn.Linear)]

"""Interval training in plain NumPy, on explicit matrices: what the losses on intervals are compared with."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from surebound.network.architectures import Normalise
from surebound.train.batch import Batch, Loss
from surebound.train.learner import Learner

Array = NDArray[np.float64]
Net = list[tuple[Array, Array]]  # (W, b) of every affine layer, the first one on pixels
Box = tuple[Array, Array]  # (batch, elements) each


def matrices(chain: Learner) -> Net:
    """The affine layers as matrices, batch norms by their running averages, normalisation folded into the first."""
    net: Net = []
    shape = chain.in_shape
    scale, shift = np.ones(shape).ravel(), np.zeros(shape).ravel()
    for module in chain.module:
        if isinstance(module, Normalise):
            mean, std = (np.broadcast_to(v.double().numpy(), shape).ravel() for v in (module.mean, module.std))
            scale, shift = 1 / std, -mean / std
        elif isinstance(module, nn.Conv2d | nn.Linear):
            W = _convolution(module, shape) if isinstance(module, nn.Conv2d) else _numpy(module.weight)
            out = W.shape[0] // module.weight.shape[0]  # positions per channel
            b = np.repeat(_numpy(module.bias), out) if module.bias is not None else np.zeros(len(W))
            if not net:
                W, b = W * scale, b + W @ shift
            net.append((W, b))
            if isinstance(module, nn.Conv2d):
                side = (shape[1] + 2 * module.padding[0] - module.kernel_size[0]) // module.stride[0] + 1
                shape = (module.out_channels, side, side)
        elif isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            W, b = net[-1]
            gain = _numpy(module.weight) / np.sqrt(_numpy(module.running_var) + module.eps)
            gain, mean, beta = (
                np.repeat(v, len(W) // len(gain)) for v in (gain, _numpy(module.running_mean), _numpy(module.bias))
            )
            net[-1] = gain[:, None] * W, gain * (b - mean) + beta
    return net


def _convolution(module: nn.Conv2d, shape: tuple[int, ...]) -> Array:
    weight, (s, _), (p, _) = _numpy(module.weight), module.stride, module.padding
    size = weight.shape[2]
    channels, height, width = shape
    rows, columns = ((n + 2 * p - size) // s + 1 for n in (height, width))
    W = np.zeros((len(weight), rows, columns, channels, height, width))
    for i in range(rows):
        for j in range(columns):
            for a in range(size):
                for c in range(size):
                    y, x = i * s - p + a, j * s - p + c
                    if 0 <= y < height and 0 <= x < width:
                        W[:, i, j, :, y, x] = weight[:, :, a, c]
    return W.reshape(len(weight) * rows * columns, -1)


def _numpy(tensor: torch.Tensor) -> Array:
    return tensor.detach().double().numpy()


def logits(net: Net, x: Array) -> Array:
    """f(x). # (batch, pixels) -> (batch, classes)"""
    for k, (W, b) in enumerate(net):
        x = (np.maximum(x, 0) if k else x) @ W.T + b
    return x


def intervals(net: Net, lower: Array, upper: Array, shrinking: float = 1.0) -> list[Box]:
    """Appendix C of the IBP-R paper: l̂ = [W]₊ l + [W]₋ u + b and û = [W]₊ u + [W]₋ l + b, then ReLUs of both."""
    found: list[Box] = []
    for k, (W, b) in enumerate(net):
        if k:
            lower, upper = (np.maximum(v, 0) for v in found[-1])
            centre, radius = (lower + upper) / 2, (upper - lower) / 2 * shrinking
            lower, upper = centre - radius, centre + radius
        up, down = np.maximum(W, 0), np.minimum(W, 0)
        found.append((lower @ up.T + upper @ down.T + b, upper @ up.T + lower @ down.T + b))
    return found


def worst(net: Net, lower: Array, upper: Array, y: Array, shrinking: float = 1.0) -> Array:
    """Upper bounds on z_j − z_y with the last layer fused. # (batch, classes)"""
    (W, b), rows = net[-1], []
    for n, label in enumerate(y):
        D = np.eye(len(W)) - np.eye(len(W))[label]
        fused = [*net[:-1], (D @ W, D @ b)]
        rows.append(intervals(fused, lower[n : n + 1], upper[n : n + 1], shrinking)[-1][1][0])
    return np.array(rows)


def cross_entropies(z: Array, y: Array) -> Array:
    """# (batch, classes) -> (batch,)"""
    top = z.max(1)
    return top + np.log(np.exp(z - top[:, None]).sum(1)) - z[np.arange(len(y)), y]


def pixels(batch: Batch) -> tuple[Array, Array, Array, Array]:
    """x, the ends of its box, and y, as flat arrays."""
    x = _numpy(batch.x).reshape(len(batch.x), -1)
    return x, np.maximum(x - batch.eps, 0), np.minimum(x + batch.eps, 1), batch.y.numpy()


def slopes(
    loss: Loss, chain: Learner, batch: Callable[[], Batch], *, start: int = 0, h: float = 1e-6
) -> tuple[float, float]:
    """The derivative of the total along a random direction of the parameters of layers from `start` on: by autograd,
    and by central differences with the same draws."""
    parameters = chain.parameters(start=start)
    generator = torch.Generator().manual_seed(3)
    direction = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in parameters]
    gradients = torch.autograd.grad(loss(chain, batch()).total, parameters, allow_unused=True)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True) if g is not None)
    values = []
    with torch.no_grad():
        for step in (h, -2 * h):
            for p, d in zip(parameters, direction, strict=True):
                p += step * d
            values.append(total(loss, chain, batch()))
        for p, d in zip(parameters, direction, strict=True):
            p += h * d
    return slope, (values[0] - values[1]) / (2 * h)


@torch.enable_grad()
def total(loss: Loss, chain: Learner, batch: Batch) -> float:
    """The loss as a number."""
    return loss(chain, batch).total.item()

"""Labelled images, their two splits, and how training varies them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from surebound.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """A random crop of the zero-padded image, then a random horizontal flip.

    Drawing and applying are apart, so that each process of a data-parallel run can draw for the whole batch and apply
    its own rows of the draws.

    >>> move = Augmentation(padding=1, flip=True)
    >>> draws = torch.tensor([[1, 0, 0], [1, 1, 1]])
    >>> move.apply(torch.tensor([[[[1.0, 2.0]]], [[[1.0, 2.0]]]]), draws).tolist()
    [[[[0.0, 1.0]]], [[[2.0, 1.0]]]]
    """

    padding: int = 0  # zeros on each side; the crop has the image's size
    flip: bool = False

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise UsageError(f"an augmentation with padding {self.padding}; expected 0 or more")

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """(count, 3) int64: the top and left of each crop in 0 … 2·padding, and 1 where the image is flipped."""
        device = generator.device
        corners = torch.randint(2 * self.padding + 1, (count, 2), generator=generator, device=device)
        flips = torch.randint(2 if self.flip else 1, (count, 1), generator=generator, device=device)
        return torch.cat([corners, flips], dim=1)

    def apply(self, x: Tensor, draws: Tensor) -> Tensor:
        """Images x (batch, channels, height, width) moved by draws (batch, 3); the result has the shape of x."""
        if x.dim() != 4 or draws.shape != (len(x), 3):
            raise UsageError(
                f"images of shape {list(x.shape)} with draws of shape {list(draws.shape)}; "
                "expected (batch, channels, height, width) and (batch, 3)"
            )
        top, left, flipped = draws.to(x.device).unbind(1)
        if self.padding:
            height, width = x.shape[2:]
            windows = pad(x, [self.padding] * 4).unfold(2, height, 1).unfold(3, width, 1)
            # (batch, channels, tops, lefts, height, width), a view: only the chosen windows are copied.
            x = windows[torch.arange(len(x), device=x.device), :, top, left]
        if self.flip:
            x = torch.where(flipped.bool().reshape(-1, 1, 1, 1), x.flip(3), x)
        return x


@dataclass(frozen=True, eq=False)
class Images:
    """At least one labelled image. Pixels stay as they are stored; `take` makes floats of those it is asked for."""

    pixels: Tensor  # (n, channels, height, width) uint8, standing for value/255, or float32 in [0, 1]
    labels: Tensor  # (n,) int64, 0 or more

    def __post_init__(self) -> None:
        if self.pixels.dim() != 4 or self.pixels.numel() == 0:
            raise UsageError(
                f"pixels of shape {list(self.pixels.shape)}; expected (images, channels, height, width), none of them 0"
            )
        if self.labels.shape != self.pixels.shape[:1] or self.labels.dtype != torch.int64:
            raise UsageError(
                f"labels of shape {list(self.labels.shape)} and type {_name(self.labels)}; "
                f"expected one int64 for each of {len(self.pixels)} images"
            )
        if int(self.labels.min()) < 0:
            raise UsageError(f"a label {int(self.labels.min())}; expected 0 or more")
        if self.pixels.dtype not in (torch.uint8, torch.float32):
            raise UsageError(f"pixels of type {_name(self.pixels)}; expected uint8, or float32 in [0, 1]")
        if self.pixels.dtype == torch.float32:
            low, high = (float(bound) for bound in self.pixels.aminmax())
            if not (low >= 0.0 and high <= 1.0):  # also where either is NaN
                raise UsageError(f"float pixels between {low:g} and {high:g}; expected finite values in [0, 1]")

    def __len__(self) -> int:
        return len(self.pixels)

    def __repr__(self) -> str:
        return f"Images({len(self)} of shape {tuple(self.pixels.shape[1:])}, {_name(self.pixels)})"

    def first(self, n: int) -> "Images":
        """The first n images, which share the memory of these."""
        if not 1 <= n <= len(self):
            raise UsageError(f"the first {n} of {len(self)} images; expected a number from 1 to {len(self)}")
        return Images(self.pixels[:n], self.labels[:n])

    def take(self, indices: Tensor | NDArray[np.integer] | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Pixels (batch, channels, height, width) float32 in [0, 1], and labels (batch,) int64, at these indices."""
        device = self.pixels.device
        index = torch.as_tensor(indices if len(indices) else np.zeros(0, np.int64), device=device)
        if index.dim() != 1 or index.dtype == torch.bool or index.is_floating_point():
            raise UsageError(f"image indices of shape {list(index.shape)} and type {_name(index)}; expected integers")
        index = index.to(torch.int64)
        outside = index[(index < 0) | (index >= len(self))]
        if len(outside):
            raise UsageError(f"image {int(outside[0])} of {len(self)}; expected an index from 0 to {len(self) - 1}")
        pixels = self.pixels[index]
        return (pixels if pixels.is_floating_point() else pixels.to(torch.float32).div_(255)), self.labels[index]


@dataclass(frozen=True, eq=False, kw_only=True)
class Dataset:
    """Images to train on and images to test on, with what a network on them needs to know."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]  # the name of each label
    mean: tuple[float, ...]  # (channels,) of the training pixels, for the network's normalisation
    std: tuple[float, ...]  # (channels,)
    augmentation: Augmentation = Augmentation()  # the usual one for this data set

    def __post_init__(self) -> None:
        of = f"data set '{self.name}'"
        if self.train.pixels.shape[1:] != self.test.pixels.shape[1:]:
            raise UsageError(
                f"{of}: test images of shape {list(self.test.pixels.shape[1:])}; "
                f"expected {list(self.shape)} as in the training images"
            )
        for split, images in (("training", self.train), ("test", self.test)):
            highest = int(images.labels.max())
            if highest >= len(self.classes):
                raise UsageError(
                    f"{of}: a {split} label {highest}; expected labels below {len(self.classes)}, the classes"
                )
        channels = self.shape[0]
        if len(self.mean) != channels or len(self.std) != channels:
            raise UsageError(
                f"{of}: {len(self.mean)} means and {len(self.std)} deviations; expected {channels} of each"
            )
        if not all(map(isfinite, self.mean)) or not all(isfinite(value) and value > 0 for value in self.std):
            raise UsageError(
                f"{of}: means {list(self.mean)} and deviations {list(self.std)}; "
                "expected finite numbers, with positive deviations"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """(channels, height, width) of one image."""
        channels, height, width = self.train.pixels.shape[1:]
        return channels, height, width


def _name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")

"""Data sets of the user's own: from tensors, or from a folder with `train.npz` and `test.npz`.

Each file has arrays `pixels` (images, channels, height, width), uint8 or floats in [0, 1], and `labels` (images,),
integers from 0. `np.savez_compressed("train.npz", pixels=…, labels=…)` writes one.
"""

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.data.dataset import Augmentation, Dataset, Images
from surebound.errors import MissingFileError, UsageError, reason

Array = Tensor | NDArray[Any]
MAX_CLASSES = 100_000
STILL = 1e-6  # a channel that deviates less than this is constant
CHUNK = 1024  # images that are floats at the same time


def dataset_from_tensors(
    *,
    train: tuple[Array, Array],
    test: tuple[Array, Array],
    name: str = "own",
    classes: Sequence[str] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    augmentation: Augmentation = Augmentation(),
) -> Dataset:
    """A data set from (pixels, labels) for training and for testing.

    Args:
        train: pixels (images, channels, height, width), uint8 or floats in [0, 1], and integer labels (images,).
        test: likewise.
        name: what messages and results call it.
        classes: the name of each label; the numbers up to the highest label if not given.
        mean: per channel, for the network's normalisation; that of the training pixels if not given.
        std: likewise; 1 for a channel that is constant in the training pixels.
        augmentation: how training varies the images; not at all if not given.

    >>> pixels = np.array([0, 255], np.uint8).reshape(2, 1, 1, 1)
    >>> mine = dataset_from_tensors(train=(pixels, np.array([0, 2])), test=(pixels, np.array([1, 1])))
    >>> mine.mean, mine.std, mine.classes
    ((0.5,), (0.5,), ('0', '1', '2'))
    """
    training = _images(f"training images of '{name}'", *train)
    testing = _images(f"test images of '{name}'", *test)
    if classes is None:
        count = 1 + max(int(images.labels.max()) for images in (training, testing))
        if count > MAX_CLASSES:
            raise UsageError(f"data set '{name}' has a label {count - 1}; expected labels below {MAX_CLASSES}")
        classes = [str(label) for label in range(count)]
    if mean is None or std is None:
        measured_mean, measured_std = _statistics(training)
        mean, std = measured_mean if mean is None else mean, measured_std if std is None else std
    return Dataset(
        name=name,
        train=training,
        test=testing,
        classes=tuple(classes),
        mean=tuple(float(value) for value in mean),
        std=tuple(float(value) for value in std),
        augmentation=augmentation,
    )


def dataset_from_folder(path: str | Path, *, augmentation: Augmentation = Augmentation()) -> Dataset:
    """The data set in a folder with `train.npz` and `test.npz`, named after the folder."""
    folder = Path(path)
    train, test = _read(folder / "train.npz"), _read(folder / "test.npz")
    return dataset_from_tensors(train=train, test=test, name=folder.resolve().name, augmentation=augmentation)


def _images(what: str, pixels: Array, labels: Array) -> Images:
    """Images with floats as float32 and integer labels as int64."""
    try:
        x, y = _tensor(pixels), _tensor(labels)
        x = x.to(torch.float32) if x.is_floating_point() else x
        y = y if y.is_floating_point() or y.dtype == torch.bool else y.to(torch.int64)
        return Images(x, y)
    except (TypeError, ValueError, UsageError) as error:  # the first two: arrays that torch has no type or layout for
        raise UsageError(f"{what}: {error}") from error


def _tensor(array: Array) -> Tensor:
    if isinstance(array, Tensor):
        return array.detach()
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))  # a copy only where torch needs one


def _statistics(images: Images) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel, in two passes over pieces of the images."""
    count = images.pixels[:, 0].numel()
    mean, variance = torch.zeros(2, images.pixels.shape[1], dtype=torch.float64, device="cpu")
    for pixels in _pieces(images):
        mean += pixels.sum(dim=(0, 2, 3)) / count
    for pixels in _pieces(images):
        variance += (pixels - mean.reshape(-1, 1, 1)).square().sum(dim=(0, 2, 3)) / count
    std = variance.sqrt()
    return mean.tolist(), torch.where(std < STILL, 1.0, std).tolist()


def _pieces(images: Images) -> Iterator[Tensor]:
    for start in range(0, len(images), CHUNK):
        yield images.take(range(start, min(start + CHUNK, len(images))))[0].cpu().double()


def _read(path: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    expected = "expected an npz file with arrays 'pixels' (images, channels, height, width) and 'labels' (images,)"
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.ndarray) or not {"pixels", "labels"} <= set(arrays.files):
                names = "a single array" if isinstance(arrays, np.ndarray) else f"arrays {sorted(arrays.files)}"
                raise UsageError(f"'{path}' holds {names}; {expected}")
            return arrays["pixels"], arrays["labels"]
    except OSError as error:
        raise MissingFileError(f"cannot read '{path}' ({reason(error)}); {expected}") from error
    except (BadZipFile, EOFError, RuntimeError, ValueError, zlib.error) as error:
        raise UsageError(f"'{path}' is damaged or holds pickled objects; {expected}") from error

"""CIFAR-10 (Krizhevsky 2009, "Learning multiple layers of features from tiny images"): 50,000 and 10,000 photographs of
32×32 pixels in colour. https://www.cs.toronto.edu/~kriz/cifar.html

Read from either of the official archives. `cifar-10-batches-bin` has files of records: a byte with the label, then
3·32·32 bytes of pixels. `cifar-10-batches-py` has pickles of a dictionary, see `surebound.data.pickles`.
"""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.data.dataset import Augmentation, Dataset, Images
from surebound.data.files import find_folder, read_bytes
from surebound.data.pickles import read_batch
from surebound.errors import UsageError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
SOURCE = "https://www.cs.toronto.edu/~kriz/cifar.html"
ARCHIVE = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

Batch = tuple[NDArray[np.uint8], NDArray[np.uint8]]  # pixels (n, 3072), labels (n,)


def cifar10(data_dir: Path | None = None) -> Dataset:
    """CIFAR-10 from `cifar10/cifar-10-batches-bin` or `cifar10/cifar-10-batches-py`."""
    layouts = ("cifar10/cifar-10-batches-bin", "cifar10/cifar-10-batches-py")
    folder = find_folder("cifar10", layouts, wanted=f"{ARCHIVE}, unpacked,", data_dir=data_dir)
    ending = ".bin" if folder.name == "cifar-10-batches-bin" else ""
    return Dataset(
        name="cifar10",
        train=_images([folder / f"data_batch_{number}{ending}" for number in range(1, 6)]),
        test=_images([folder / f"test_batch{ending}"]),
        classes=CLASSES,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        augmentation=Augmentation(padding=4, flip=True),
    )


def _images(paths: list[Path]) -> Images:
    pixels, labels = zip(*(_read(path) for path in paths), strict=True)
    return Images(
        torch.from_numpy(np.concatenate(pixels).reshape(-1, *SHAPE)),
        torch.from_numpy(np.concatenate(labels).astype(np.int64)),
    )


def _read(path: Path) -> Batch:
    content = read_bytes(path, source=SOURCE)
    pixels, labels = _records(content, path) if path.suffix == ".bin" else read_batch(content, path, PIXELS)
    if labels.max() >= len(CLASSES):
        raise UsageError(f"'{path}' has a label {labels.max()}; expected labels from 0 to {len(CLASSES) - 1}")
    return pixels, labels


def _records(content: bytes, path: Path) -> Batch:
    record = 1 + PIXELS
    if not content or len(content) % record:
        raise UsageError(f"'{path}' has {len(content)} bytes; expected one or more records of {record} bytes")
    records = np.frombuffer(content, np.uint8).reshape(-1, record)
    return records[:, 1:], records[:, 0]

"""MNIST (LeCun, Cortes and Burges 1998): 60,000 and 10,000 handwritten digits of 28×28 grey pixels.
http://yann.lecun.com/exdb/mnist/

An IDX file has a magic number, its sizes as 32-bit big-endian numbers, and a byte per element. Files may be gzipped.
"""

import os
import struct
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.data.dataset import Dataset, Images
from surebound.data.files import find_folder
from surebound.errors import UsageError
from surebound.limits import DATA_BYTES, read_file

CLASSES = tuple("0123456789")
SIDE = 28
SOURCE = "http://yann.lecun.com/exdb/mnist/ (also at https://ossci-datasets.s3.amazonaws.com/mnist/)"


def mnist(data_dir: Path | None = None) -> Dataset:
    """MNIST from `mnist/*-ubyte.gz`, or the same files without `.gz`."""
    folder = find_folder("mnist", ("mnist",), wanted=f"the four '*-ubyte.gz' files of {SOURCE}", data_dir=data_dir)
    train, test = _images(folder, "train"), _images(folder, "t10k")
    return Dataset(name="mnist", train=train, test=test, classes=CLASSES, mean=(0.1307,), std=(0.3081,))


def _images(folder: Path, prefix: str) -> Images:
    images, labels = folder / f"{prefix}-images-idx3-ubyte.gz", folder / f"{prefix}-labels-idx1-ubyte.gz"
    pixels, targets = _read(images, (SIDE, SIDE)), _read(labels, ())
    if len(pixels) != len(targets):
        raise UsageError(f"'{labels}' has {len(targets)} labels; expected {len(pixels)}, one for each image")
    if targets.max() >= len(CLASSES):
        raise UsageError(f"'{labels}' has a label {targets.max()}; expected labels from 0 to {len(CLASSES) - 1}")
    return Images(torch.from_numpy(pixels.copy()).unsqueeze(1), torch.from_numpy(targets.astype(np.int64)))


def _read(path: Path, sizes: tuple[int, ...]) -> NDArray[np.uint8]:
    """(n, *sizes)"""
    if not os.path.exists(path) and os.path.exists(path.with_suffix("")):
        path = path.with_suffix("")
    expected = f"an IDX file of {SOURCE}"
    content = read_file(path, "file", UsageError, most=DATA_BYTES, unpacked=DATA_BYTES, expected=expected)
    dimensions = 1 + len(sizes)
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise UsageError(f"'{path}' has {len(content)} bytes; expected an IDX file with a header of {start}")
    header = struct.unpack_from(f">{1 + dimensions}i", content)
    magic = 0x0800 + dimensions  # unsigned bytes, and how many dimensions
    if header[0] != magic or header[2:] != sizes or header[1] < 1:
        layout = ", ".join(map(str, (magic, "count", *sizes)))
        raise UsageError(f"'{path}' begins with {', '.join(map(str, header))}; expected {layout}, as an IDX file does")
    size = start + header[1] * prod(sizes)
    if len(content) != size:
        raise UsageError(f"'{path}' has {len(content)} bytes; expected {size} by its header")
    return np.frombuffer(content, np.uint8, offset=start).reshape(-1, *sizes)

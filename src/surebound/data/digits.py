"""Handwritten digits of 8×8 pixels in 17 shades of grey, small enough to come with the package.

The 1,797 images of the test set of "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, UCI Machine
Learning Repository, 1998, https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits), licensed
CC BY 4.0, as scikit-learn distributes them; only the storage format was changed. The first 1,437 are for training and
the last 360 for testing, in the original order: 141 to 146 and 33 to 37 of every digit.
"""

from importlib.resources import files
from pathlib import Path

import numpy as np
import torch

from surebound.data.dataset import Dataset, Images

TRAIN = 1437
GREYS = 16


def digits(data_dir: Path | None = None) -> Dataset:
    """The bundled digits; `data_dir` is not needed and not used. Pixels are k/16 for k = 0 … 16, exactly."""
    with (files("surebound.data") / "digits.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        pixels = torch.from_numpy(arrays["pixels"]).to(torch.float32) / GREYS  # (1797, 1, 8, 8)
        labels = torch.from_numpy(arrays["labels"]).to(torch.int64)
    return Dataset(
        name="digits",
        train=Images(pixels[:TRAIN], labels[:TRAIN]),
        test=Images(pixels[TRAIN:], labels[TRAIN:]),
        classes=tuple("0123456789"),
        mean=(0.3054,),
        std=(0.3755,),
    )

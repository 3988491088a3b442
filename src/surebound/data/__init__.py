"""Labelled images to train on and to certify. One file per data set, listed here by name.

A loader takes the folder of downloaded data sets, or None for the usual places, and returns a `Dataset`.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from surebound.errors import UsageError
from surebound.registry import Registry

if TYPE_CHECKING:
    from surebound.data.dataset import Dataset

    Loader = Callable[[Path | None], Dataset]

DATASETS: "Registry[Loader]" = Registry(
    "data set",
    {
        "cifar10": "surebound.data.cifar10:cifar10",
        "mnist": "surebound.data.mnist:mnist",
        "digits": "surebound.data.digits:digits",
    },
)


def load_dataset(name: str | Path, data_dir: str | Path | None = None) -> "Dataset":
    """A data set by its name, or from a folder of the user's own (see `surebound.data.own`). A name wins.

    Downloaded data sets are looked up in `data_dir`, then in `$SUREBOUND_DATA`, then in `~/.cache/surebound`.

    >>> digits = load_dataset("digits")
    >>> len(digits.train), len(digits.test), digits.shape
    (1437, 360, (1, 8, 8))
    """
    if str(name) in tuple(DATASETS):
        return DATASETS[str(name)](None if data_dir is None else Path(data_dir))
    if not os.path.isdir(name):
        raise UsageError(
            f"unknown data set '{name}'; expected one of: {', '.join(DATASETS)}, or a folder with train.npz and "
            "test.npz, each with arrays 'pixels' (images, channels, height, width) and 'labels' (images,)"
        )
    from surebound.data.own import dataset_from_folder

    return dataset_from_folder(name)

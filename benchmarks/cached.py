"""The networks of the benchmarks, in models/ or trained once into benchmarks/.cache, and images to verify them on."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from common import ROOT, Unavailable
from numpy.typing import NDArray
from revisions import environment

CACHE = ROOT / "benchmarks" / ".cache"


@dataclass(frozen=True)
class Recipe:
    """A preset, with changes that make it short."""

    preset: str
    settings: tuple[str, ...]


# On CIFAR-10 at 2/255: IBP-R, some minutes on two cores; IBP on the network of Shi 2021, 500 steps, half an hour.
RECIPES = {
    "ibp-r-cifar": Recipe("cifar10-2-255-ibp-r-cpu", ("data.first=16000",)),  # as in `reproduce table1 --scale cpu`
    "cnn7": Recipe(
        "cifar10-2-255-ibp-shi",
        (
            *("data.first=16000", "data.batch=64", "schedule.epochs=2", "schedule.warmup=0", "schedule.mixing=1"),
            *("optimiser.milestones=[]", "validation.every=0", "validation.images=200"),
        ),
    ),
}


SHIPPED = {"conv-2-255": ROOT / "models" / "cifar10-2-255-ibp-r.onnx"}  # with the repository


def trained(name: str, *, threads: int, data: Path) -> Path:
    """The ONNX file of a network, or the folder that it is in; trained now if it is not there."""
    if name in SHIPPED:
        return SHIPPED[name]
    folder = CACHE / name
    if not (folder / "model.onnx").is_file():
        print(f"training {name}, once, into {folder}", flush=True)
        _train(RECIPES[name], folder, threads, data)
    return folder


def onnx_file(model: Path) -> Path:
    """The ONNX file of a training's folder, or the file itself."""
    return model / "model.onnx" if model.is_dir() else model


def _train(recipe: Recipe, folder: Path, threads: int, data: Path) -> None:
    command = [sys.executable, "-m", "surebound", "train", "--preset", recipe.preset, "--out", str(folder)]
    command += [word for setting in recipe.settings for word in ("--set", setting)]
    command += ["--threads", str(threads), "--data-dir", str(data)]
    if folder.is_dir():
        command.append("--resume")
    done = subprocess.run(command, env=environment(), stderr=subprocess.PIPE, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(f"training '{recipe.preset}' ended with exit code {done.returncode}: {last}")


@dataclass(frozen=True, eq=False)
class Picture:
    """A test image of CIFAR-10."""

    index: int
    x: NDArray[np.float64]  # (pixels,)
    label: int


def pictures(data: Path, indices: Iterable[int]) -> Iterator[Picture]:
    """Test images of CIFAR-10."""
    from surebound.data import load_dataset
    from surebound.errors import SureboundError

    try:
        test = load_dataset("cifar10", data).test
    except SureboundError as error:
        raise Unavailable(str(error)) from error
    for index in indices:
        x, y = test.take([index])
        yield Picture(index, np.asarray(x, dtype=np.float64).reshape(-1), int(y[0]))

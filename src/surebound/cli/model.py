"""What commands that run a MODEL on a data set share."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from surebound.cli.arguments import check_network, count, eps, eps_text, indices, thread_count
from surebound.config import read_toml
from surebound.data import DATASETS
from surebound.domain import NORMS
from surebound.errors import MissingFileError, UsageError, visible

if TYPE_CHECKING:
    from surebound.data.dataset import Dataset

FILE = "model.onnx"  # of a training output folder


def add_images(parser: ArgumentParser) -> None:
    """The arguments that say which network, which images and how far around them."""
    parser.add_argument("model", metavar="MODEL", help="an ONNX file, or the output folder of a training run")
    parser.add_argument("--dataset", required=True, metavar="NAME", help=f"{', '.join(DATASETS)}, or a folder")
    parser.add_argument("--eps", required=True, type=eps, metavar="E", help="the radius, such as 2/255 or 0.1")
    parser.add_argument(
        "--norm",
        choices=NORMS,
        default="inf",
        help="in which the radius is measured (default inf: pixel by pixel)",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--first", type=count, metavar="N", help="the first N test images (default: all)")
    which.add_argument("--indices", type=indices, metavar="A,B,C", help="these test images, counted from 0")
    parser.add_argument("--data-dir", metavar="DIR", help="where data sets are (default: $SUREBOUND_DATA)")
    parser.add_argument(
        "--threads", type=thread_count, metavar="N", help="processor threads (default: OMP_NUM_THREADS, or all)"
    )


def check_radius(args: Namespace) -> None:
    """Raise UsageError unless the radius makes sense in its norm."""
    if args.norm == "inf" and args.eps > 1:
        raise UsageError(f"--eps {eps_text(args.eps)}: expected a number from 0 to 1, such as 0.1 or 2/255")


def radius_text(eps: str, norm: str) -> str:
    """As people read it."""
    return f"eps {eps}" if norm == "inf" else f"eps {eps} in ℓ{norm}"


def check_model(path: str) -> Path:
    """The ONNX file that MODEL stands for, after the checks that need no slow imports."""
    if os.path.isdir(path):
        file = os.path.join(path, FILE)
        if not os.path.exists(file):
            raise MissingFileError(
                f"the folder '{path}' has no {FILE}; expected an ONNX file, or the folder of a training run that ended"
            )
        return check_network(file)
    return check_network(path, "an ONNX file, or the output folder of a training run")


def note_other_data(model: str, dataset: "Dataset") -> None:
    """Say so if the network of a training folder was trained on another data set than it is now tried on."""
    try:
        data = read_toml(Path(model) / "config.toml").get("data")
        name = data.get("name") if isinstance(data, dict) else None
        if not isinstance(name, str) or dataset.name in (name, Path(name).resolve().name) or sys.stderr is None:
            return
    except (UsageError, OSError, ValueError, RuntimeError):  # an ONNX file, or a folder that somebody else made
        return
    print(visible(f"'{model}' was trained on '{name}', and these are images of '{dataset.name}'"), file=sys.stderr)


def choose_images(dataset: "Dataset", first: int | None, chosen: Sequence[int] | None) -> Sequence[int]:
    """The indices of the test images that were asked for."""
    there = len(dataset.test)
    if first is not None and first > there:
        raise UsageError(f"--first {first}: '{dataset.name}' has {there} test images; expected at most that many")
    if chosen is not None and max(chosen) >= there:
        raise UsageError(
            f"--indices: image {max(chosen)} of '{dataset.name}', which has {there} test images; "
            f"expected indices from 0 to {there - 1}"
        )
    return range(there if first is None else first) if chosen is None else chosen

"""What is to be certified: a network, images, a radius and settings, checked before any work is done."""

import hashlib
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from surebound.bounds.device import CPU, expect_exact
from surebound.data.dataset import Dataset, Images
from surebound.domain.sets import exact_norm
from surebound.errors import MissingFileError, NetworkError, UsageError
from surebound.evaluate.proofs import ProofFolder
from surebound.evaluate.room import Room
from surebound.evaluate.stages import Sample, Settings
from surebound.evaluate.store import Run
from surebound.load.onnx_file import fingerprint
from surebound.network.model import Model
from surebound.problem import Robustness, listed
from surebound.verify.options import Options
from surebound.version import __version__

FILE = "model.onnx"  # of a training output folder


@dataclass(frozen=True, eq=False, kw_only=True)
class Task:
    """What to certify, and how."""

    model: Path  # an ONNX file, or the folder of a training run that ended
    dataset: Dataset
    eps: Fraction
    images: Sequence[int]  # of the test images
    settings: Settings = field(default_factory=Settings)
    notes: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    proofs: Path | None = None  # the folder for proofs of the images that are verified
    check_proofs: bool = False
    room: Room = Room()
    device: str = CPU  # where bounds and attacks are computed

    def __post_init__(self) -> None:
        expect_exact(self.device)
        if self.check_proofs and self.proofs is None:
            raise UsageError("proofs are to be checked, but not written; expected a folder for them")
        if self.proofs is not None:
            Options(proof=True).check_norm(self.settings.norm)
        try:
            images = tuple(index(image) for image in self.images)
        except TypeError as error:
            raise UsageError(f"images are {self.images!r}; expected indices of test images") from error
        there = len(self.dataset.test)
        if outside := [image for image in images if not 0 <= image < there]:
            raise UsageError(f"image {outside[0]} of '{self.dataset.name}'; expected an index from 0 to {there - 1}")
        if len(set(images)) < len(images):
            raise UsageError("an image is asked for twice; expected each index once")
        object.__setattr__(self, "images", images)

    @property
    def file(self) -> Path:
        """The ONNX file."""
        file = self.model / FILE if self.model.is_dir() else self.model
        if not file.is_file():
            raise MissingFileError(
                f"there is no network '{file}'; expected an ONNX file, or the folder of a training run that ended"
            )
        return file

    @cached_property
    def sha256(self) -> str:
        """The fingerprint of the file, as it was when first asked for: all that is said is about that network."""
        return fingerprint(self.file)

    @property
    def folder(self) -> ProofFolder | None:
        """Where the proofs go."""
        return None if self.proofs is None else ProofFolder(self.proofs, self.file, self.check_proofs)

    @cached_property
    def samples(self) -> "Samples":
        """The images."""
        return Samples(self.dataset.test, self.images)

    def describe(self) -> Run:
        """The run as the store keeps it."""
        return Run(
            model=str(self.model),
            model_sha256=self.sha256,
            dataset=self.dataset.name,
            data_sha256=_data_sha256(self.dataset),
            shape=tuple(self.dataset.shape),
            classes=tuple(map(str, self.dataset.classes)),
            eps=str(self.eps),
            images=tuple(self.images),
            options=asdict(self.settings),
            notes=dict(self.notes) | ({} if self.proofs is None else {"proofs": str(self.proofs)}),
            command=self.command,
            version=__version__,
            machine=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )


@final
class Samples:
    """Some labelled images by their indices, kept as they are stored."""

    def __init__(self, images: Images, indices: Sequence[int]) -> None:
        self._at = {image: k for k, image in enumerate(indices)}
        chosen = torch.tensor(indices, dtype=torch.int64, device=images.pixels.device)
        self._images = Images(images.pixels[chosen].cpu(), images.labels[chosen].cpu()) if len(indices) else images

    def __getitem__(self, image: int) -> Sample:
        x, y = self._images.take([self._at[image]])
        return Sample(image, np.asarray(x, dtype=np.float32).reshape(-1), int(y[0]))


def _data_sha256(dataset: Dataset) -> str:
    """A hash of the test images and their labels, as they are stored."""
    digest = hashlib.sha256(str(tuple(dataset.test.pixels.shape)).encode())
    for tensor in (dataset.test.pixels, dataset.test.labels):
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).data)
    return digest.hexdigest()


def check_fits(model: Model, dataset: Dataset) -> None:
    """Raise NetworkError unless the network takes the data set's images and has an output for each class."""
    network = model.network
    for kind, ports in (("inputs", model.ports.inputs), ("outputs", model.ports.outputs)):
        if len(ports) > 1:
            raise NetworkError(f"the network '{model.source}' has the {kind} {listed(ports)}; expected one, for images")
    given, wanted = (tuple(n for n in shape if n != 1) for shape in (network.input_shape, dataset.shape))
    flat = len(given) <= 1 and network.inputs == dataset.train.pixels[0].numel()
    if (given != wanted and not flat) or network.outputs != len(dataset.classes):
        raise NetworkError(
            f"the network '{model.source}' has inputs of shape {_shape(network.input_shape)} and {network.outputs} "
            f"outputs; expected {_shape(dataset.shape)} and {len(dataset.classes)} for the images of '{dataset.name}'"
        )


def _shape(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def exact(eps: float | str | Fraction, norm: float | str = "inf") -> Fraction:
    """A radius, in ℓ∞ from 0 to 1, taken exactly."""
    radius = Robustness(np.zeros(0), 0, eps).radius()
    if radius > 1 and exact_norm(norm) == "inf":
        raise UsageError(f"eps must be from 0 to 1, got {eps!r}")
    return radius

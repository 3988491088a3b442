"""Proofs of the images that are verified: each with its property, written whole, and checked if wanted."""

import gzip
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol, final

from surebound.check import CheckError, check
from surebound.errors import UsageError, one_line
from surebound.evaluate.evidence import Evidence
from surebound.files import make_folder, replacing
from surebound.load.portable import PortableNetwork
from surebound.network.graph import Network
from surebound.problem import Property
from surebound.proof.checkable import expect_checkable
from surebound.proof.property_text import property_text
from surebound.proof.record import BoxRecord
from surebound.proof.write import Proof


class ProofWriter(Protocol):
    """Where a proof goes as soon as it is there."""

    def write(self, image: int, network: Network, prop: Property, records: Iterable[BoxRecord]) -> Evidence:
        """Write the property and the proof of an image, and check it if wanted."""
        ...


@final
@dataclass(frozen=True)
class ProofFolder:
    """Where proofs go: `image-7.vnnlib.gz` is what is asked about image 7, and `image-7.proof` the proof of it.

    `about.json` says which network, images and radius they are about; those of others do not get in.
    """

    folder: Path
    file: Path  # the network's
    check: bool = False  # have every proof checked as soon as it is written

    def property(self, image: int) -> Path:
        return self.folder / f"image-{image}.vnnlib.gz"

    def proof(self, image: int) -> Path:
        return self.folder / f"image-{image}.proof"

    def suffices(self, image: int, known: Evidence | None) -> bool:
        """Whether there is a proof of an image, which is known to the store, and checked if wanted."""
        there = self.property(image).is_file() and self.proof(image).is_file()
        return there and known is not None and (known.checked is True or not self.check)

    def prepare(self, network: Network, about: Mapping[str, str]) -> None:
        """Make the folder. Raise UsageError if there is no place for it, or it has proofs about something else, or the
        checker cannot read the network."""
        make_folder(self.folder, " for proofs")
        expect_checkable(self.file, network)
        self._label(about)

    def _label(self, about: Mapping[str, str]) -> None:
        label, text = self.folder / "about.json", json.dumps(about, indent=2) + "\n"
        if label.is_file() and label.read_bytes() == text.encode():
            return
        if label.exists() or any(self.folder.glob("image-*")):
            raise UsageError(
                f"the folder '{self.folder}' has proofs about another network, data set or radius; "
                "expected an empty folder, or the one that this run's proofs are in"
            )
        with replacing(label) as partial:
            partial.write_text(text, encoding="utf-8")

    def clear(self) -> None:
        """Remove what processes that were killed had half written."""
        for partial in self.folder.glob(".image-*.partial"):
            partial.unlink(missing_ok=True)

    def write(self, image: int, network: Network, prop: Property, records: Iterable[BoxRecord]) -> Evidence:
        """Write the property and the proof of an image, and check it."""
        begin, files = time.monotonic(), (self.property(image), self.proof(image))
        with replacing(files[0]) as partial:
            partial.write_bytes(gzip.compress(property_text(prop).encode(), mtime=0))
        Proof(list(records), network.widths).save(files[1], network=self.file, property=files[0])
        written = Evidence(bytes=files[1].stat().st_size, seconds=time.monotonic() - begin)
        return self._checked(files, written) if self.check else written

    def _checked(self, files: tuple[Path, Path], written: Evidence) -> Evidence:
        begin, refused = time.monotonic(), ""
        try:
            result = check(self.file, *files)
            refused = "" if result.valid else result.reason
        except CheckError as error:
            refused = one_line(error)
        return written.checked_by(time.monotonic() - begin, refused)

    def receive(self, files: Mapping[str, bytes]) -> None:
        """Put in place what was written on another machine."""
        for name, content in files.items():
            with replacing(self.folder / name) as partial:
                partial.write_bytes(content)


@final
class ProofParcels:
    """Proofs that are written where the folder is not, and sent to it."""

    def __init__(self, network: PortableNetwork, check: bool) -> None:
        self._network, self._check = network, check
        self._files: dict[str, bytes] = {}

    def write(self, image: int, network: Network, prop: Property, records: Iterable[BoxRecord]) -> Evidence:
        """Write the property and the proof of an image, and check it if wanted."""
        with self._network.file() as file, TemporaryDirectory(prefix="surebound-") as place:
            folder = ProofFolder(Path(place), file, self._check)
            written = folder.write(image, network, prop, records)
            self._files |= {path.name: path.read_bytes() for path in (folder.property(image), folder.proof(image))}
        return written

    def collect(self) -> dict[str, bytes]:
        """The files that were written since the last time, by name."""
        files, self._files = self._files, {}
        return files

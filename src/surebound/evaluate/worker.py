"""What workers are asked about images, and what they answer.

The network and the images go to each worker once; tasks name images by their indices.
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import final

from surebound.bounds.device import plain_convolutions
from surebound.evaluate.proofs import ProofFolder, ProofParcels
from surebound.evaluate.radius import search_radius
from surebound.evaluate.room import Room
from surebound.evaluate.stages import Certifier, Open, Settings
from surebound.evaluate.store import Row
from surebound.evaluate.task import Samples
from surebound.load.portable import PortableNetwork
from surebound.work import Call, Do


@dataclass(frozen=True, eq=False)
class Screen:
    """Images to take through the stages that they share."""

    images: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Probe:
    """An image that is decided at the full radius; now its largest proved and smallest broken radius are wanted."""

    row: Row

    @property
    def images(self) -> tuple[int]:
        return (self.row.image,)


Work = Screen | Open | Probe
"""Images to screen, or one to search, or one to bisect the radius of."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a piece of work settled, and what it left open."""

    rows: list[Row]
    open: list[Open] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)  # of proofs, from where their folder is not


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class CertifySetup:
    """All that certifying images needs."""

    network: PortableNetwork
    eps: Fraction
    settings: Settings
    samples: Samples
    proofs: ProofFolder | None
    remote: bool  # the folder of proofs is elsewhere
    room: Room = Room()

    def __call__(self) -> Do[Work, Result]:
        parcels = ProofParcels(self.network, self.proofs.check) if self.proofs is not None and self.remote else None
        certifier = Certifier(self.network.model, self.eps, self.settings, parcels or self.proofs, self.room)

        def do(work: Work, _: Call) -> Result:
            with plain_convolutions(certifier.model.network.device):
                result = self._perform(certifier, work)
            return result if parcels is None else Result(result.rows, result.open, parcels.collect())

        return do

    def _perform(self, certifier: Certifier, work: Work) -> Result:
        match work:
            case Screen():
                return Result(*certifier.screen([self.samples[i] for i in work.images]))
            case Open():
                return Result([certifier.search(self.samples[work.image], work)])
            case Probe():
                return Result([search_radius(certifier, work.row, self.samples[work.row.image])])

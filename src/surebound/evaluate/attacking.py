"""Attacks on the images of a data set, batch by batch, on whatever engine."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

import numpy as np

from surebound.attacks.images import BATCH, ImageAttack, attack_images
from surebound.data.dataset import Dataset
from surebound.evaluate.task import Samples
from surebound.load.portable import PortableNetwork
from surebound.work import Call, Desk, Do, Done, Engine, Failed
from surebound.work.inline import Inline

Batch = tuple[int, ...]
"""Indices of images that are attacked together."""


@final
@dataclass(frozen=True, eq=False, kw_only=True)
class AttackSetup:
    """All that attacking images needs."""

    network: PortableNetwork
    samples: Samples
    eps: Fraction
    options: Mapping[str, Any]  # of `attack_images`

    def __call__(self) -> Do[Batch, ImageAttack]:
        model = self.network.model

        def do(images: Batch, _: Call) -> ImageAttack:
            samples = [self.samples[image] for image in images]
            x, y = np.stack([sample.x for sample in samples]), np.array([sample.label for sample in samples])
            return attack_images(model, x, y, eps=self.eps, **self.options)

        return do


OnAttack = Callable[[Sequence[int], ImageAttack], None]
"""Told which images are done, and what the attack did to them."""


def attack(
    network: PortableNetwork,
    dataset: Dataset,
    images: Sequence[int],
    *,
    eps: Fraction,
    engine: Engine = Inline(),
    on_progress: OnAttack,
    **options: Any,
) -> None:
    """Attack test images of a data set; `options` are those of `attack_images`."""
    setup = AttackSetup(network=network, samples=Samples(dataset.test, images), eps=eps, options=options)
    batches = [tuple(images[i : i + BATCH]) for i in range(0, len(images), BATCH)]
    found: dict[Batch, ImageAttack] = {}
    with engine.open(setup) as pool:
        desk = Desk[Batch, ImageAttack](pool)
        for batch in batches:
            desk.add(batch)
        for event in desk.events():
            match event:
                case Done(batch, result, _):
                    found[batch] = result
                    done = [batch for batch in batches if batch in found]
                    on_progress([image for batch in done for image in batch], _joined([found[batch] for batch in done]))
                case Failed(_, error, _):
                    raise error


def _joined(parts: Sequence[ImageAttack]) -> ImageAttack:
    return ImageAttack(
        correct=np.concatenate([part.correct for part in parts]),
        found=np.concatenate([part.found for part in parts]),
        points=np.concatenate([part.points for part in parts]),
    )

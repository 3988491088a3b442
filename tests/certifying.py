"""Images of digits through the stages of certification."""

from fractions import Fraction
from typing import Any

import numpy as np

from surebound.attacks.images import ImageAttack
from surebound.data import load_dataset
from surebound.evaluate.stages import Certifier, Sample
from surebound.evaluate.store import Row

EPS = Fraction(1, 30)
DIGITS = load_dataset("digits")


def take_digits(images: range) -> list[Sample]:
    x, y = DIGITS.test.take(images)
    return [Sample(i, x[k].flatten().numpy(), int(y[k])) for k, i in enumerate(images)]


def finish(certifier: Certifier, samples: list[Sample]) -> dict[int, Row]:
    rows, left = certifier.screen(samples)
    by_image = {sample.image: sample for sample in samples}
    return {row.image: row for row in (*rows, *(certifier.search(by_image[open_.image], open_) for open_ in left))}


def no_attack(model: Any, x: Any, y: Any, **_: Any) -> ImageAttack:
    correct = model.replay(x).argmax(1) == y
    return ImageAttack(correct=correct, found=np.zeros(len(x), dtype=bool), points=np.full_like(x, np.nan))

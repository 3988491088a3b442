"""Attacks on labelled images: how many of them a network gets right, and keeps right within ε of each.

The share of images for which nothing was found is an upper bound on the robust accuracy: it proves nothing, while every
counterexample counted against it was replayed on the original network.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from surebound.attacks import ATTACKS
from surebound.attacks.objective import Objective
from surebound.domain.sets import Norm, exact_norm
from surebound.errors import UsageError
from surebound.network.arrays import to_numpy
from surebound.network.model import Model
from surebound.problem import Ball, Box, Domain, Region, Robustness

Rows = NDArray[np.float32]  # (n, inputs)
Mask = NDArray[np.bool_]  # (n,)
Indices = NDArray[np.intp]

BATCH = 50  # images at a time: enough to fill a pass with their restarts, and few enough to show progress
_ATTEMPTS = 2  # of an attack whose point does not stand when replayed


@dataclass(frozen=True, eq=False, kw_only=True)
class ImageAttack:
    """What an attack did to images, in their order; fewer than there are if it is not over."""

    correct: Mask  # no other class scores as high as the label
    found: Mask  # correct, but a point within ε, replayed, has another class that scores at least as high
    points: Rows  # those points; NaN where there is none

    def __len__(self) -> int:
        """The number of images that are done."""
        return len(self.correct)

    @property
    def robust(self) -> Mask:
        """Correct, and nothing was found."""
        return self.correct & ~self.found


def attack_images(
    model: Model,
    x: Tensor | NDArray[Any],
    y: Tensor | NDArray[Any],
    *,
    eps: float | str | Fraction,
    norm: float | str = "inf",
    method: str = "pgd",
    steps: int = 20,
    restarts: int = 3,
    targets: int = 2,
    seed: int = 0,
    more: Mapping[str, Any] | None = None,
    batch: int = BATCH,
    on_progress: Callable[[ImageAttack], None] | None = None,
) -> ImageAttack:
    """Attack every image that the network gets right, towards the classes that seem nearest, one after the other.

    With m_j = f_label − f_j at the image, classes are ranked by the least value that the linear m_j + ∇m_j · δ takes in
    the domain. What happens to an image does not depend on the others, but for rounding.

    Args:
        model: what `surebound.load` returned.
        x: (images, *shape), pixels in [0, 1].
        y: (images,), the labels.
        eps: the radius, taken exactly. What is found lies in the exact box or ball.
        norm: in which the radius is measured: inf, 2 or 1.
        method: one of `surebound.attacks.ATTACKS`.
        steps: updates of each restart, at most.
        restarts: starting points for each of the classes.
        targets: how many classes to try.
        seed: where all randomness comes from.
        more: further settings of the method, such as `surebound.attacks.mi_fgsm.PUBLISHED`.
        batch: how many images to attack at a time.
        on_progress: called now and then with the images done so far.
    """
    rows, labels = _arrays(model, x, y)
    radius, measured = Robustness(np.zeros(0), 0, eps).radius(), exact_norm(norm)
    if targets < 1:
        raise UsageError(f"an attack on images: targets must be at least 1, got {targets}")
    settings = {**(more or {}), "steps": steps, "restarts": restarts, "stop_at": "all"}
    ATTACKS[method](**settings)  # complains before any work is done
    correct, found = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    points = np.full_like(rows, np.nan)
    for start in range(0, len(rows), batch):
        part = slice(start, start + batch)
        some = _Batch(model, rows[part], labels[part], radius, measured)
        correct[part] = some.correct
        ranked = some.ranked()[:, :targets]
        for place in range(ranked.shape[1]):
            some.attack(ranked[:, place], method, settings, (seed, place))
        found[part], points[part] = some.found, some.points
        if on_progress is not None:
            end = min(part.stop, len(rows))
            on_progress(ImageAttack(correct=correct[:end], found=found[:end], points=points[:end]))
    return ImageAttack(correct=correct, found=found, points=points)


def _arrays(model: Model, x: Tensor | NDArray[Any], y: Tensor | NDArray[Any]) -> tuple[Rows, Indices]:
    """Images as rows and labels, checked."""
    rows, labels = to_numpy(x).astype(np.float32), to_numpy(y)
    rows = rows.reshape(len(rows), prod(rows.shape[1:]))
    inputs, outputs = model.network.inputs, model.network.outputs
    if outputs < 2:
        raise UsageError(f"an attack on a network with {outputs} output; expected one for each of several classes")
    if rows.shape[1] != inputs:
        raise UsageError(f"images of {rows.shape[1]} numbers for a network of {inputs} inputs; expected as many")
    if labels.shape != rows.shape[:1] or not np.issubdtype(labels.dtype, np.integer):
        raise UsageError(
            f"labels of shape {list(labels.shape)}; expected a whole number for each of {len(rows)} images"
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < outputs:
        raise UsageError(
            f"labels from {labels.min()} to {labels.max()}; expected one of the network's {outputs} outputs"
        )
    if rows.size and not (rows.min() >= 0 and rows.max() <= 1):  # also where either is NaN
        raise UsageError(f"pixels from {rows.min():g} to {rows.max():g}; expected numbers in [0, 1]")
    return rows, labels.astype(np.intp)


@final
class _Batch:
    """Some images, and what was found so far."""

    def __init__(self, model: Model, x: Rows, y: Indices, eps: Fraction, norm: Norm) -> None:
        self._model, self._x, self._y = model, x, y
        self._domains: list[Domain] = [Box(lower, upper) for lower, upper in zip(*pixel_box(x, eps), strict=True)]
        if norm != "inf":
            self._domains = [Ball.around(image, eps, norm, low=0.0, high=1.0) for image in x]
        self.correct = (margins(model.replay(x), y) > 0).all(1)
        self.found = np.zeros(len(x), dtype=bool)
        self.points = np.full_like(x, np.nan)

    def ranked(self) -> Indices:
        """The other classes of each image, the most promising first. # (images, classes − 1)"""
        classes = self._model.network.outputs
        others = np.stack([np.delete(np.arange(classes), label) for label in self._y])
        estimates = np.full(others.shape, np.inf)
        images = np.flatnonzero(self.correct)
        for place in range(others.shape[1] if len(images) else 0):
            objective = self._objective(images, others[images, place], np.zeros(len(images)))
            estimates[images, place] = _least_linear(objective, self._model.network.array(self._x[images]))
        return np.take_along_axis(others, estimates.argsort(1, kind="stable"), 1)

    def attack(self, targets: Indices, method: str, settings: dict[str, Any], key: tuple[int, ...]) -> None:
        """Look for points at which images that still resist are taken for their target."""
        images = np.flatnonzero(self.correct & ~self.found)
        demand = np.zeros(len(images))  # by how much the target must win in our arithmetic
        for attempt in range(_ATTEMPTS):
            if not len(images):
                return
            generator = _generator(*key, attempt)
            objective = self._objective(images, targets[images], demand)
            result = ATTACKS[method](**settings).run(objective, generator=generator)
            claimed = np.flatnonzero(to_numpy(result.found))
            claimed, points = self._inside(images, claimed, to_numpy(result.points))
            images, points = images[claimed], points[claimed]
            if not len(images):
                return
            logits = self._model.replay(points)
            least = margins(logits, self._y[images]).min(1)
            usable = np.isfinite(logits).all(1)  # an overflow is no counterexample
            stands = usable & (least <= 0)
            self.found[images[stands]] = True
            self.points[images[stands]] = points[stands]
            # Rounding made the difference: ask for a point that is clear of it.
            again = usable & ~stands
            images, demand = images[again], demand[claimed][again] + 2 * least[again]

    def _inside(self, images: Indices, claimed: Indices, points: Rows) -> tuple[Indices, Rows]:
        """Which of the claimed points truly lie in their domains, moved by a little if need be."""
        moved, kept = points.copy(), []
        for k in claimed.tolist():
            point = self._domains[images[k]].nearest(points[k].astype(np.float64))
            if point is not None:
                moved[k] = point
                kept.append(k)
        return np.array(kept, dtype=np.intp), moved

    def _objective(self, images: Indices, targets: Indices, demand: NDArray[np.float64]) -> Objective:
        """One region for each image: the target scores at least as high as the label, and by `demand` higher."""
        regions = []
        for i, target, extra in zip(images, targets, demand, strict=True):
            row = np.zeros((1, self._model.network.outputs))
            row[0, self._y[i]], row[0, target] = 1.0, -1.0
            constant, strict = np.array([extra]), np.zeros(1, dtype=bool)
            regions.append(Region(box=self._domains[i], on_output=row, constant=constant, strict=strict))
        return Objective(self._model.network, regions)


def pixel_box(x: Rows, eps: Fraction) -> tuple[Rows, Rows]:
    """The least and greatest float32 of each pixel's [v − eps, v + eps] ∩ [0, 1]; the exact interval holds them.

    >>> lower, upper = pixel_box(np.array([[0.5, 1.0]], dtype=np.float32), Fraction(1, 4))
    >>> lower.tolist(), upper.tolist()
    ([[0.25, 0.75]], [[0.75, 1.0]])
    """
    values, where = np.unique(x, return_inverse=True)  # images have few different pixels, and fractions are slow
    ends = [
        (_inward(max(Fraction(v) - eps, Fraction(0)), 1), _inward(min(Fraction(v) + eps, Fraction(1)), -1))
        for v in values.tolist()
    ]
    lower, upper = np.array(ends, dtype=np.float32).reshape(-1, 2).T
    return lower[where].reshape(x.shape), upper[where].reshape(x.shape)


def _inward(value: Fraction, sign: int) -> np.float32:
    """The nearest float32 that is not below (sign 1) or not above (sign −1) the value."""
    nearest = np.float32(float(value))
    outside = sign * (value - Fraction(float(nearest))) > 0
    return np.nextafter(nearest, np.float32(sign * np.inf)) if outside else nearest


def margins(logits: NDArray[np.floating[Any]], y: Indices) -> NDArray[np.float64]:
    """f_label − f_j for the other classes j, with the right sign. # (n, classes), (n,) -> (n, classes − 1)"""
    precise, rows = logits.astype(np.float64), np.arange(len(y))
    with np.errstate(invalid="ignore"):
        differences = precise[rows, y][:, None] - precise
    others = np.ones(differences.shape, dtype=bool)
    others[rows, y] = False
    return differences[others].reshape(len(y), -1)


def _least_linear(objective: Objective, x: Tensor) -> NDArray[np.float64]:
    """min v(x) + ∇v(x) · δ with x + δ in the region's domain. # (regions, inputs) -> (regions,)"""
    estimates = []
    for group in torch.arange(len(objective), device=x.device).split(objective.capacity):
        part, point = objective.take(group), x[group]
        value, gradient = (t[:, 0] for t in part.value_and_gradient(point[:, None]))
        estimates.append(to_numpy((value + part.lowest(point, gradient)).double()))
    return np.concatenate(estimates)


def _generator(*key: int) -> torch.Generator:
    """Random numbers that depend on the key alone."""
    state = np.random.SeedSequence(key).generate_state(1, np.uint64)[0]
    return torch.Generator("cpu").manual_seed(int(state >> np.uint64(1)))

"""Attacks on images find what there is to find where that is known, and count nothing that does not stand."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chains import SHAPE, tiny_chain
from numpy.typing import NDArray
from torch import nn

import surebound
import surebound.attacks.images
from surebound.attacks import ATTACKS
from surebound.attacks.images import ImageAttack, attack_images, pixel_box
from surebound.data import load_dataset
from surebound.errors import UsageError
from surebound.network.model import Model

Array = NDArray[Any]
PIXELS, OUTPUTS, IMAGES = 12, 4, 130


def _linear() -> tuple[Model, Array, Array]:
    """f(x) = W x + b, which takes some images for each class, and its W and b."""
    torch.manual_seed(0)
    module = nn.Linear(PIXELS, OUTPUTS)
    with torch.no_grad():
        module.bias.copy_(-module.weight.sum(1) / 2)
    model = surebound.load(nn.Sequential(module).eval(), input_shape=(PIXELS,))
    return model, module.weight.detach().double().numpy(), module.bias.detach().double().numpy()


def _samples() -> tuple[Array, Array]:
    rng = np.random.default_rng(1)
    return rng.random((IMAGES, PIXELS), dtype=np.float32), rng.integers(0, OUTPUTS, IMAGES)


def _least_margins(w: Array, b: Array, x: Array, y: Array, eps: float) -> Array:
    """The least f_label − f_j over the other classes j and the box, in closed form."""
    lower, upper = np.maximum(x.astype(np.float64) - eps, 0), np.minimum(x.astype(np.float64) + eps, 1)
    least = np.full(len(x), np.inf)
    for i, label in enumerate(y):
        for other in set(range(OUTPUTS)) - {int(label)}:
            slope = w[label] - w[other]
            corner = np.where(slope > 0, lower[i], upper[i])
            least[i] = min(least[i], slope @ corner + b[label] - b[other])
    return least


@pytest.mark.parametrize("targets", [1, 9])
@pytest.mark.parametrize("method", list(ATTACKS))
def test_exact_on_a_linear_network(method: str, targets: int) -> None:
    model, w, b = _linear()
    x, y = _samples()
    y[:100] = (x[:100] @ w.T + b).argmax(1)
    result = attack_images(model, x, y, eps="1/30", method=method, steps=40, restarts=3, targets=targets)
    clean, least = (_least_margins(w, b, x, y, eps) for eps in (0.0, 1 / 30))
    assert np.abs(np.concatenate([clean, least])).min() > 1e-5  # nothing that rounding could decide
    np.testing.assert_array_equal(result.correct, clean > 0)
    np.testing.assert_array_equal(result.found, (clean > 0) & (least <= 0))
    np.testing.assert_array_equal(result.robust, least > 0)
    assert 20 < result.found.sum() < 80 and 20 < result.robust.sum() < 80
    _check_points(model, x, y, Fraction(1, 30), result)


def _check_points(model: Model, x: Array, y: Array, eps: Fraction, result: ImageAttack) -> None:
    """What was found lies in the exact box and is taken for another class."""
    assert np.isnan(result.points[~result.found]).all()
    for point, image in zip(result.points[result.found], x.reshape(len(x), -1)[result.found], strict=True):
        assert all(
            0 <= p <= 1 and abs(Fraction(p) - Fraction(v)) <= eps
            for p, v in zip(point.tolist(), image.tolist(), strict=True)
        )
    logits = model.replay(result.points[result.found])
    rows = np.arange(len(logits))
    label = logits[rows, y[result.found]].copy()
    logits[rows, y[result.found]] = -np.inf
    assert (logits.max(1) >= label).all()


def test_at_least_as_good_as_sampling_corners() -> None:
    chain = tiny_chain(dtype=torch.float32)
    model = surebound.load(chain.module.eval(), input_shape=SHAPE)
    rng = np.random.default_rng(0)
    x = rng.random((40, *SHAPE), dtype=np.float32)
    logits = model.replay(x.reshape(40, -1))
    y = logits.argmax(1)
    gap = np.sort(logits, axis=1)
    eps = 0.02 * float(np.median(gap[:, -1] - gap[:, -2])) / 0.05  # such that some images fall and some do not
    result = attack_images(model, x, y, eps=eps)
    assert result.correct.all()
    lower, upper = pixel_box(x.reshape(40, -1), Fraction(eps))
    for i in range(40):
        points = np.where(rng.random((2000, lower.shape[1])) < 0.5, lower[i], upper[i])
        if (model.replay(points).argmax(1) != y[i]).any():
            assert result.found[i]
    assert 0 < result.found.sum() < 40
    _check_points(model, x, y, Fraction(eps), result)


def test_an_image_is_attacked_alike_in_any_company() -> None:
    model, _, _ = _linear()
    x, y = _samples()
    seen: list[int] = []
    whole = attack_images(model, x, y, eps=0.03, on_progress=lambda part: seen.append(len(part)))
    assert seen == [50, 100, 130]
    parts = attack_images(model, x[60:90], y[60:90], eps=0.03, batch=7)
    np.testing.assert_array_equal(parts.found, whole.found[60:90])
    np.testing.assert_allclose(parts.points, whole.points[60:90], rtol=1e-6, atol=1e-7)
    assert whole.found[60:90].any()


def test_a_tie_is_not_correct_and_eps_zero_finds_nothing() -> None:
    module = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        module.weight.copy_(torch.eye(2))
    model = surebound.load(nn.Sequential(module).eval(), input_shape=(2,))
    x = np.array([[0.5, 0.5], [0.75, 0.5]], dtype=np.float32)
    for eps, found in ((0, [False, False]), (0.1249, [False, False]), (0.125, [False, True])):
        result = attack_images(model, x, np.array([0, 0]), eps=eps)
        assert result.correct.tolist() == [False, True] and result.found.tolist() == found


def test_what_does_not_stand_when_replayed_is_not_counted() -> None:
    model, w, b = _linear()
    x, _ = _samples()
    y = (x @ w.T + b).argmax(1)
    shift = 1e-3  # what the original adds to the first class

    def original(rows: Array) -> Array:
        logits = model.replay(rows).copy()
        logits[:, 0] += shift
        return logits

    images = np.flatnonzero(y == 0)
    other = b.copy()
    other[0] += shift
    result = attack_images(Model(model.network, original, "m"), x[images], y[images], eps=0.03)
    least = _least_margins(w, other, x[images], y[images], 0.03)
    np.testing.assert_array_equal(result.found, least <= 0)  # also those that only a second attempt settles
    assert result.found.any()

    clean = model.replay(x)
    overflow = Model(
        model.network, lambda rows: clean if np.array_equal(rows, x) else np.full((len(rows), 4), np.nan), "m"
    )
    assert not attack_images(overflow, x, y, eps=0.03, batch=len(x)).found.any()


def test_boxes_are_the_largest_float32_ones_inside() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate([np.arange(256) / 255, rng.random(200), [1e-30, 1e-45, 1 - 2**-24]]).astype(np.float32)[None]
    infinity = np.float32(np.inf)
    for eps in (Fraction(2, 255), Fraction(1, 10), Fraction(0), Fraction(1), Fraction(1, 10**12), Fraction(0.3)):
        lower, upper = pixel_box(x, eps)
        assert lower.dtype == upper.dtype == np.float32 and lower.shape == x.shape
        less, more = np.nextafter(lower, -infinity), np.nextafter(upper, infinity)
        for v, low, high, below, above in zip(x[0], lower[0], upper[0], less[0], more[0], strict=True):
            exact_low, exact_high = (
                max(Fraction(float(v)) - eps, Fraction(0)),
                min(Fraction(float(v)) + eps, Fraction(1)),
            )
            assert exact_low <= Fraction(float(low)) <= Fraction(float(v)) <= Fraction(float(high)) <= exact_high
            assert Fraction(float(below)) < exact_low and Fraction(float(above)) > exact_high


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"x": np.zeros((3, 5))}, "images of 5 numbers for a network of 12 inputs"),
        ({"y": np.array([0, 1, 4])}, "labels from 0 to 4; expected one of the network's 4 outputs"),
        ({"y": np.array([0.0, 1.0, 2.0])}, "expected a whole number for each of 3 images"),
        ({"y": np.array([0, 1])}, r"labels of shape \[2\]; expected"),
        ({"x": np.full((3, 12), 1.5)}, r"pixels from 1\.5 to 1\.5; expected numbers in \[0, 1\]"),
        ({"x": np.full((3, 12), np.nan)}, "pixels from nan"),
        ({"eps": -0.1}, "eps must not be negative"),
        ({"eps": "1/0"}, "eps must be a number"),
        ({"method": "fgsm"}, "unknown attack 'fgsm'; expected one of: pgd, mi-fgsm"),
        ({"restarts": 0}, "restarts must be at least 1"),
        ({"targets": 0}, "targets must be at least 1"),
    ],
)
def test_mistakes(changes: dict[str, Any], complaint: str) -> None:
    arguments = {"x": np.zeros((3, 12)), "y": np.array([0, 1, 2]), "eps": 0.1, **changes}
    with pytest.raises(UsageError, match=complaint):
        attack_images(_linear()[0], arguments.pop("x"), arguments.pop("y"), **arguments)


def test_a_network_with_one_output_has_no_classes() -> None:
    model = surebound.load(nn.Sequential(nn.Linear(2, 1)).eval(), input_shape=(2,))
    with pytest.raises(UsageError, match="a network with 1 output; expected one for each"):
        attack_images(model, np.zeros((1, 2)), np.zeros(1, dtype=int), eps=0.1)


def test_no_images() -> None:
    assert len(attack_images(_linear()[0], np.zeros((0, 12)), np.zeros(0, dtype=int), eps=0.1)) == 0


def test_mnist(shared: Path) -> None:
    model = surebound.load(shared / "models" / "colt_mnist_0.1.onnx")
    x, y = load_dataset("mnist", shared / "data").test.take([0, 8, 14, 16])
    result = attack_images(model, x, y, eps="0.1", steps=10, restarts=1, targets=1)
    assert result.correct.all() and result.found.tolist() == [False, True, True, False]
    _check_points(model, x.numpy(), y.numpy(), Fraction(1, 10), result)

"""Accuracies on the way, against a loop over single images."""

import numpy as np
import pytest
import torch
from chains import CLASSES, SHAPE, dense_layers, tiny_chain

from surebound.train.attack import TrainAttack
from surebound.train.batch import Batch, Draws
from surebound.train.learner import Learner
from surebound.train.validate import Validation, validate

EPS, SEED = 0.005, 5


def images(chain: Learner, n: int, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Random images; a third have wrong labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n, *SHAPE, generator=generator).to(chain.weights()[0].dtype)
    with torch.no_grad():
        y = chain.layers().logits(x).argmax(1)
    y[::3] = (y[::3] + 1) % CLASSES
    return x, y


def naive(chain: Learner, x: torch.Tensor, y: torch.Tensor, *, eps: float, steps: int, batch: int) -> Validation:
    """One image at a time, with margins row by row over dense matrices; only the attack is shared."""
    module = chain.module.eval()
    net = dense_layers(module)
    mean, std = module[0].mean.numpy(), module[0].std.numpy()
    counts = np.zeros(3)
    ambiguous = np.zeros(len(net) - 1)
    attack = TrainAttack(steps=steps, step_size=0.25)
    for part, start in enumerate(range(0, len(x), batch)):
        px, py = x[start : start + batch], y[start : start + batch]
        draws = Draws(SEED, 3, part, size=len(px))
        found = attack.run(chain.layers(), Batch(x=px, y=py, eps=eps, kappa=1.0, ramp=1.0, risen=1.0, draws=draws))
        for image, label, point in zip(px, py.tolist(), found, strict=True):
            right = module(image[None]).argmax().item() == label
            ends = (np.clip(image.numpy() + s * eps, 0, 1) for s in (-1, 1))
            low, high = (((end - mean) / std).ravel() for end in ends)
            for k, (W, b) in enumerate(net[:-1]):
                below = np.maximum(W, 0) @ low + np.minimum(W, 0) @ high + b
                above = np.maximum(W, 0) @ high + np.minimum(W, 0) @ low + b
                ambiguous[k] += ((below < 0) & (above > 0)).sum()
                low, high = np.maximum(below, 0), np.maximum(above, 0)
            W, b = net[-1]
            rows = [(W[label] - W[j], b[label] - b[j]) for j in range(CLASSES) if j != label]
            proved = all(np.maximum(r, 0) @ low + np.minimum(r, 0) @ high + c > 0 for r, c in rows)
            stands = right and module(point[None]).argmax().item() == label
            counts += [right, stands, right and proved]
    shares = counts / len(x)
    return Validation(
        images=len(x),
        standard=shares[0],
        pgd=shares[1],
        ibp=shares[2],
        ambiguous=tuple(round(float(a), 3) for a in ambiguous / len(x)),
    )


@pytest.mark.parametrize("batch", [7, 40, 100])
def test_against_one_image_at_a_time(batch: int) -> None:
    chain = tiny_chain(seed=2)
    x, y = images(chain, 40)
    got = validate(chain, x, y, eps=EPS, steps=10, batch=batch, key=(SEED, 3), device=torch.device("cpu"))
    expected = naive(chain, x, y, eps=EPS, steps=10, batch=batch)
    assert got == expected
    assert 0 < got.ibp < got.pgd < got.standard < 1  # so that no share could stand for another
    assert got.standard == pytest.approx(26 / 40)


def test_wide_boxes_and_none() -> None:
    chain = tiny_chain()
    x, y = images(chain, 30)
    point = validate(chain, x, y, eps=0.0, steps=3, batch=30, key=(SEED, 3), device=torch.device("cpu"))
    assert point.standard == point.pgd == point.ibp == pytest.approx(2 / 3) and point.ambiguous == (0.0, 0.0, 0.0)
    wide = validate(chain, x, y, eps=1.0, steps=3, batch=30, key=(SEED, 3), device=torch.device("cpu"))
    assert wide.ibp == 0.0 and wide.standard == pytest.approx(2 / 3)


def test_batch_norms_by_their_running_averages_and_nothing_moves() -> None:
    chain = tiny_chain(norm=True, dtype=torch.float32)
    before = {name: value.clone() for name, value in chain.module.state_dict().items()}
    x, y = images(chain, 16)
    got = validate(chain, x, y, eps=0.005, steps=2, batch=5, key=(SEED, 3), device=torch.device("cpu"))
    right = chain.module.eval()(x).argmax(1) == y
    assert got.standard == pytest.approx(right.double().mean().item()) and got.images == 16
    assert all(torch.equal(before[name], value) for name, value in chain.module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in chain.parameters())
    again = validate(chain, x, y, eps=0.005, steps=2, batch=5, key=(SEED, 3), device=torch.device("cpu"))
    assert got == again

"""How a search tries out points."""

from typing import Any

import numpy as np
import pytest
import torch
from networks import random_fc
from torch import Tensor

from surebound.attacks.objective import Objective
from surebound.problem import Box, Counterexample, Region
from surebound.verify import look
from surebound.verify.look import Look


def test_points_are_looked_at_a_few_at_a_time_and_the_right_one_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all regions at once, the points of a large network would not fit into memory."""
    network = random_fc(np.random.default_rng(0), (3, 8, 2))
    box, strict = Box(-np.ones(3), np.ones(3)), np.zeros(1, dtype=bool)
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 3)))
    inside = points.clamp(-1, 1)
    value = network.forward(inside)[:, 0]
    least = int(value.argmin())
    constant = -float((value.sort().values[:2]).mean())  # only the lowest point violates
    regions = [
        Region(box=box, on_output=np.eye(1, 2), constant=np.array([c]), strict=strict) for c in (99.0, constant, 99.0)
    ]
    replayed, clip, made = list[tuple[Any, Any]](), Objective.clip, list[int]()

    def confirm(point: Any, some: Any) -> Counterexample | None:
        replayed.append((point, some))
        return None

    def spy(self: Objective, x: Tensor) -> Tensor:
        made.append(x.shape[1])
        return clip(self, x)

    monkeypatch.setattr(look, "PASS_PRODUCTS", 0)
    monkeypatch.setattr(Objective, "clip", spy)
    assert Look(network, regions, confirm, lambda: None)(points) is None
    [(point, some)] = replayed
    np.testing.assert_allclose(point, inside[least].numpy(), rtol=1e-6)
    assert some == [regions[1]] and max(made) == 1


def test_points_go_through_the_network_once_for_all_regions_over_a_box(monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_fc(np.random.default_rng(0), (3, 8, 2))
    points = torch.from_numpy(np.random.default_rng(1).normal(size=(7, 3))).float()
    half, whole = (Box(-np.full(3, size), np.full(3, size)) for size in (0.5, 1.0))
    seen, forward = list[int](), type(network).forward

    def spy(self: Any, x: Tensor) -> Tensor:
        seen.append(len(x))
        return forward(self, x)

    monkeypatch.setattr(type(network), "forward", spy)
    for boxes, passes in (((half, half), 1), ((half, whole), 2)):
        strict = np.zeros(1, dtype=bool)
        rows = [np.eye(1, 2, i) for i in range(2)]
        some = [
            Region(box=b, on_output=r, constant=np.ones(1), strict=strict) for b, r in zip(boxes, rows, strict=True)
        ]
        objective = Objective(network.to(torch.float32), some)
        seen.clear()
        found = objective.nearest_values(points)
        assert sum(seen) == 7 * objective.passes == 7 * passes
        repeated = objective.value(objective.clip(points.expand(2, -1, -1)))
        torch.testing.assert_close(found, repeated, rtol=1e-6, atol=1e-6)

"""The stage that bounds rows of many boxes, with intervals for the layers."""

from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from networks import random_fc

from surebound.problem import Box, Region
from surebound.verify import rows
from surebound.verify.cascade import Question
from surebound.verify.clock import Clock
from surebound.verify.rows import Rows

NETWORK = random_fc(np.random.default_rng(0), (3, 8, 4))
BOX = Box(np.full(3, -0.1), np.full(3, 0.1))


def asked(*constants: float) -> Question:
    """A question with a region for each constant: rows that are far above 0, or far below."""
    strict, row = np.zeros(1, dtype=bool), np.eye(1, 4)
    regions = [Region(box=BOX, on_output=row, constant=np.array([c]), strict=strict) for c in constants]
    return Question(lambda: regions)


@pytest.mark.parametrize(
    ("name", "constants", "passes"),
    [
        ("ibp", (9.0, 9.0, 9.0, 9.0, 9.0), 3),
        ("ibp", (9.0, -9.0, 9.0, -9.0, 9.0), 3),
        ("ibp", (9.0, 9.0, -9.0, -9.0, 9.0), 2),
        ("ibp", (-9.0, -9.0, 9.0, 9.0, 9.0), 1),
        ("ibp", (9.0, 9.0, 9.0, 9.0, -9.0), 3),
    ],
)
def test_intervals_that_prove_nothing_are_given_up(
    name: Any, constants: tuple[float, ...], passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they have not come to is open, and CROWN bounds it."""
    made, fixed = list[int](), rows.fixed_rows

    def spy(*args: Any, **more: Any) -> Any:
        made.append(args[2].shape[1])
        return fixed(*args, **more)

    monkeypatch.setattr(rows, "fixed_rows", spy)
    question = asked(*constants)
    [settled] = Rows(name, NETWORK, elements=2 * NETWORK.widest).run([question])
    assert len(made) == passes and max(made) == 2
    reached = 2 * passes
    assert (question.bounds > 0).tolist() == [c > 0 and i < reached for i, c in enumerate(constants)]
    assert (settled is not None) == (min(constants) > 0)
    Rows("crown", NETWORK, elements=2 * NETWORK.widest).run([question] if question.open else [])
    assert (question.bounds > 0).tolist() == [c > 0 for c in constants]


def test_its_time_is_counted() -> None:
    clock = Clock(None)

    def phase() -> AbstractContextManager[None]:
        return clock.phase("root")

    Rows("crown", NETWORK, phase=phase).run([asked(9.0)])
    assert clock.phases.keys() == {"root"}

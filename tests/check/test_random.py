"""Short runs of `models.py` and `extremes.py` (`make fuzz` runs both for longer)."""

import extremes

import models


def test_random_models_are_read_as_onnxruntime_reads_them() -> None:
    tally = models.run(6.0, 0)
    assert tally["read alike"] >= 100


def test_bounds_of_denormal_and_huge_numbers_hold() -> None:
    tally = extremes.run(6.0, 0)
    assert tally["finite"] >= 100 and tally["tight to 1e-9"] >= 10

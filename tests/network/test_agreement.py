"""The check on reading: what a source computes has to be what was read from it, at every point and in every output."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from networks import random_fc
from numpy.typing import NDArray

from surebound.errors import NetworkError
from surebound.network.agreement import check_agreement, compare
from surebound.network.build import Builder


def test_a_single_number_is_enough_to_refuse(rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 8, 4))

    def source(change: float, point: int, output: int) -> None:
        def run(x: NDArray[np.float32]) -> NDArray[np.float32]:
            y = network.forward(torch.from_numpy(x).double()).numpy()
            y[point, output] += change * np.abs(y[point]).max()
            return y.astype(np.float32)

        check_agreement(network, run, "a runtime", "it")

    source(0.0, 0, 0)
    source(1e-6, 1, 2)
    for point in range(4):
        for change in (1e-3, -1e-3, np.nan, np.inf):
            with pytest.raises(NetworkError, match="differs from a runtime"):
                source(change, point, point % 4)


def test_a_runtime_may_add_up_term_by_term() -> None:
    """65,536 equal terms in float32, one after the other, are off by more than what NumPy's sums are."""
    build = Builder((1,))
    copies = build.pick(0, np.zeros(2**16, dtype=np.int64))
    network = build.arrays(build.linear(copies, np.ones((1, 2**16))))

    def term_by_term(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.cumsum(np.repeat(x, 2**16, axis=1), axis=1, dtype=np.float32)[:, -1:]

    check_agreement(network, term_by_term, "a runtime", "it")
    with pytest.raises(NetworkError, match="differs from a runtime"):
        check_agreement(network, lambda x: 1.01 * term_by_term(x), "a runtime", "it")


def test_a_clip_that_no_point_of_size_one_reaches(rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 8, 4))

    def clipped(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return network.forward(torch.from_numpy(x.clip(-15.0, 15.0)).double()).numpy().astype(np.float32)

    with pytest.raises(NetworkError, match="differs from a runtime"):
        check_agreement(network, clipped, "a runtime", "it")


def test_outputs_that_cancel_are_compared_with_what_activations_read() -> None:
    """x + 1000 − (x + 1000) is 0 here; a runtime that adds 10⁻³ to a number around 1,000 has not been misread."""
    build = Builder((1,))
    read = build.relu(build.linear(0, np.ones((2, 1)), np.full(2, 1000.0)))
    network = build.arrays(build.linear(read, np.array([[1.0, -1.0]])))
    x = np.array([[1.0]], dtype=np.float32)

    def source(y: float) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
        return lambda x: np.full((len(x), 1), y, dtype=np.float32)

    assert compare(network, x, source(1e-3), "a runtime", "it", inner=True)
    for y, inner in ((1e-3, False), (0.1, True), (np.nan, True)):
        with pytest.raises(NetworkError, match="differs from a runtime"):
            compare(network, x, source(y), "a runtime", "it", inner=inner)
    assert not compare(network, np.array([[np.inf]], dtype=np.float32), source(np.nan), "a runtime", "it")


def test_outputs_count_where_no_activation_reads_anything() -> None:
    build = Builder((1,))
    network, x = build.arrays(build.linear(0, np.ones((1, 1)))), np.array([[1.0]], dtype=np.float32)
    assert compare(network, x, lambda x: x * np.float32(1.000001), "a runtime", "it", inner=True)

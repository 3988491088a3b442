"""The check on loading: what a source computes has to be what was read from it, at every point and in every output."""

import numpy as np
import pytest
import torch
from networks import random_fc
from numpy.typing import NDArray

from surebound.errors import NetworkError
from surebound.load.agreement import check_agreement


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

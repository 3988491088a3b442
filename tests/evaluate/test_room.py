"""How much memory certifying may take, and what it says of it."""

import numpy as np
import pytest
from networks import random_conv, random_fc

from surebound.bounds.root import CHUNK_ELEMENTS
from surebound.errors import UsageError
from surebound.evaluate.room import LEAST, Room, images_together
from surebound.network.cost import products


def test_less_memory_means_smaller_parts() -> None:
    assert Room().elements == CHUNK_ELEMENTS and Room().queue is None
    small, large = Room(2**28), Room(2**40)
    assert small.elements < CHUNK_ELEMENTS == large.elements
    assert small.queue == 2**26
    network = random_conv(np.random.default_rng(0))
    assert small.expected(network) <= Room(2**30).expected(network) <= Room(2**32).expected(network)


@pytest.mark.parametrize("memory", [0, -1, LEAST - 1, 1e9])
def test_too_little_memory_is_refused(memory: int) -> None:
    with pytest.raises(UsageError, match="expected at least"):
        Room(memory)


def test_large_networks_are_screened_a_few_at_a_time() -> None:
    network = random_fc(np.random.default_rng(0), (3, 6, 2))
    assert images_together(network, 360, 50) == 50
    one = products(network, network.output)
    assert images_together(network, 2**40 // (3 * one * 7), 50) == 7
    assert images_together(network, 2**40, 50) == 1

"""Which form the search works on."""

import numpy as np
import torch
from forms import folded
from networks import random_box, random_conv, random_fc

from surebound.bounds.graph_form import GraphForm
from surebound.verify.forms import Costs, cheapest

COSTS = Costs()


def test_costs_by_hand(rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 6, 5, 2))
    assert COSTS.graph(network) == 3 * 6 + 6 * 5 + 5 * 2 + COSTS.graph_neuron * 11
    form = folded(network, *random_box(rng, network, radius=1.0))
    entries = sum(block.weight.numel() for block in form.blocks)
    assert COSTS.folded(form) == entries + COSTS.neuron * form.neurons + COSTS.input * 3


def test_a_convolution_counts_every_window(rng: np.random.Generator) -> None:
    network = random_conv(rng)
    products = COSTS.graph(network) - COSTS.graph_neuron * sum(network.width(k) for k in range(len(network.layers)))
    counted = 0
    for node in network.nodes[1:]:
        weight = getattr(node.op, "weight", None)
        if weight is not None:
            counted += int(weight[0].numel() * np.prod(node.shape)) if weight.ndim > 2 else weight.numel()
    assert products == counted


def test_the_cheaper_one_is_taken(rng: np.random.Generator) -> None:
    network = random_conv(rng)
    form = folded(network, *random_box(rng, network, radius=0.2))
    assert cheapest(form, form.enclosure) is form
    graph = cheapest(form, form.enclosure, Costs(graph_neuron=0.0, neuron=1e9))
    assert isinstance(graph, GraphForm)
    inside = [index + where.start for index, where in zip(form.indices, graph.layers, strict=True)]
    assert torch.equal(graph.lower[torch.cat(inside)], form.lower)

"""Which form the search works on."""

import numpy as np
import pytest
import torch
from forms import folded
from networks import random_box, random_conv, random_fc

from surebound.bounds.graph_form import GraphForm
from surebound.verify import forms
from surebound.verify.forms import cheapest, folded_cost, graph_cost


def test_costs_by_hand(rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 6, 5, 2))
    assert graph_cost(network) == 3 * 6 + 6 * 5 + 5 * 2 + forms.GRAPH_NEURON * 11
    form = folded(network, *random_box(rng, network, radius=1.0))
    entries = sum(block.weight.numel() for block in form.blocks)
    assert folded_cost(form) == entries + forms.NEURON * form.neurons + forms.INPUT * 3


def test_a_convolution_counts_every_window(rng: np.random.Generator) -> None:
    network = random_conv(rng)
    products = graph_cost(network) - forms.GRAPH_NEURON * sum(network.width(k) for k in range(len(network.layers)))
    counted = 0
    for node in network.nodes[1:]:
        weight = getattr(node.op, "weight", None)
        if weight is not None:
            counted += int(weight[0].numel() * np.prod(node.shape)) if weight.ndim > 2 else weight.numel()
    assert products == counted


def test_the_cheaper_one_is_taken(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    network = random_conv(rng)
    form = folded(network, *random_box(rng, network, radius=0.2))
    assert cheapest(form, form.enclosure) is form
    monkeypatch.setattr(forms, "GRAPH_NEURON", 0.0)
    monkeypatch.setattr(forms, "NEURON", 1e9)
    graph = cheapest(form, form.enclosure)
    assert isinstance(graph, GraphForm)
    inside = [index + where.start for index, where in zip(form.indices, graph.layers, strict=True)]
    assert torch.equal(graph.lower[torch.cat(inside)], form.lower)

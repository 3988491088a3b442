"""Which form the search works on."""

import numpy as np
import torch
from forms import folded
from networks import Builder, random_box, random_conv, random_fc
from verifications import region

from surebound.bounds.graph_form import GraphForm
from surebound.network.graph import Network
from surebound.network.linear import Shift
from surebound.network.model import Model
from surebound.problem import Box
from surebound.verify.cascade import Question
from surebound.verify.clock import Clock
from surebound.verify.costs import Costs, cheapest
from surebound.verify.engine import Engine
from surebound.verify.forwards import Symbols, forwards, sharpest_forwards
from surebound.verify.options import Options
from surebound.verify.search_stages import Bisection
from surebound.verify.strategy import Strategy

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


def test_costs_of_bounding_layers_by_hand(rng: np.random.Generator) -> None:
    network = random_fc(rng, (3, 6, 5, 2))
    first, second = 4 * 3 * 6, 2 * (3 * 6 + 6 * 5 + COSTS.graph_neuron * 6)
    assert COSTS.backwards(network, [4, 2]) == COSTS.root_passes * (first + second)
    each = 3 * 6 + 6 * 5 + 5 * 2 + COSTS.symbol_neuron * 11
    assert COSTS.forwards(network, 3, [4, 2]) == 8 * (3 + 6) * each
    assert COSTS.forwards(network, 20, [4, 2]) == COSTS.parts * (20 + 6) * each


def deep(rng: np.random.Generator, layers: int) -> Network:
    """Layers of 40 neurons, all active: what rounding is carried on by |A| grows sixfold with each."""
    build = Builder(rng, (3,))
    node = build.linear(0, 40)
    for _ in range(layers):
        node = build.linear(build.relu(build.add(Shift(torch.full((40,), 1e3, dtype=torch.float64)), node)), 40)
    build.relu(node)
    return build.network()


def test_deep_networks_take_float64(rng: np.random.Generator) -> None:
    for layers, dtype in ((1, "float32"), (12, "float64")):
        network = deep(rng, layers)
        lower, upper = random_box(rng, network, radius=0.1)
        assert sharpest_forwards(network, lower, upper, lambda: None, 1000).dtype == dtype


def test_symbols_fit_in_memory_and_in_time(rng: np.random.Generator) -> None:
    small, large = (forwards(random_fc(rng, (3, n, n)), lambda: None).most or 0 for n in (10, 4000))
    assert small > 10**6
    assert 4000 < large + 3000 < 10**4


def tried(symbols: Symbols, used: int, bounds: dict[int, float]) -> int:
    """The limit after a trial on a box that used so many symbols, with the bounds that limits lead to."""
    others = symbols.others(1000, used)
    symbols.choose({limit: (limit, bounds[limit]) for limit in {symbols.now, *others}}, 1.0)
    return symbols.now


def test_boxes_have_as_few_symbols_as_do_not_make_the_search_longer() -> None:
    symbols = Symbols(5000, Strategy())
    assert symbols.now == 1024
    assert tried(symbols, 1024, {256: -9.0, 1024: -8.9, 4096: -8.9}) == 256  # a tenth of a split is not worth it
    assert tried(symbols, 256, {256: -9.0, 1024: -3.0}) == 1024
    wait = symbols.wait
    assert tried(symbols, 1024, {256: -9.0, 1024: -3.0, 4096: -3.0}) == 1024
    assert symbols.wait == 2 * wait
    assert not symbols.others(1, 1024), "it was asked just now"


def test_boxes_of_few_symbols_are_left_alone() -> None:
    symbols = Symbols(10**6, Strategy())
    assert not symbols.others(1000, Strategy().symbols)
    assert Symbols(None, Strategy()).now == 1024


def patience(network: Network, radius: float, **options: str) -> float | None:
    """Of a bisection that comes before layers are bounded backwards."""
    engine = Engine(Model(network, lambda x: x, "net"), Options(**options), Clock(60.0))
    box = Box(np.full(network.inputs, -radius), np.full(network.inputs, radius))
    part = region(box, np.ones(network.outputs), 0.0)
    return Bisection(engine, early=True)._patience_early(Question(lambda: [part]))


def test_few_inputs_are_bisected_before_layers_are_bounded_backwards(rng: np.random.Generator) -> None:
    assert patience(random_fc(rng, (4, 60, 60, 60, 2)), 1.0) == np.inf
    assert patience(random_fc(rng, (4, 60, 60, 60, 2)), 1e-6) is None  # hardly a neuron is ambiguous
    assert patience(random_fc(rng, (4, 60, 60, 60, 2)), 1.0, branching="upb") is None
    assert patience(random_fc(rng, (21, 60, 60, 60, 2)), 1.0) is None
    assert patience(random_fc(rng, (16, 90, 90, 90, 90, 2)), 1.0) == Strategy().patience  # others may be quicker

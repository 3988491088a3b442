"""Bisections of the input box, for networks with few inputs: bounded with CROWN, layer by layer.

Every bound is computed in float64 with its rounding error taken off. Layers are bounded for each box, from its parent's
on: they tighten quickly as boxes shrink, which is why this beats splitting neurons in low dimensions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Slopes, evaluate
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.relaxation import relax
from surebound.bounds.root import PASS_PRODUCTS, LayerBounding, tighten_layers
from surebound.bounds.timed import timed
from surebound.network.cost import products
from surebound.network.graph import Network
from surebound.problem import Region
from surebound.proof.record import ROOM
from surebound.verify.clock import Clock
from surebound.verify.node import Nodes
from surebound.verify.strategy import Strategy
from surebound.verify.tree import Bounded, Leaf

_BOUNDING = LayerBounding(slopes=("crown",), ascent=None)


class InputSpace:
    """The boxes of regions. `network` in float64."""

    def __init__(
        self, network: Network, regions: Sequence[Region], strategy: Strategy, clock: Clock, *, recorded: bool = False
    ) -> None:
        """In a search that is `recorded`, a box is bounded from nothing but itself, as whoever checks it does."""
        self.network, self.regions, self.strategy, self.clock = network, regions, strategy, clock
        self.rows = _stack(regions, network)
        scale = torch.cat([part.flatten(1) for part in self.rows], dim=1).abs().amax(1)
        self.least = ROOM * scale if recorded else torch.zeros_like(scale)  # of a bound that proves
        self.counts = torch.tensor([len(region.constant) for region in regions])
        neurons = sum(network.widths)
        self.remembered = neurons if neurons <= strategy.remembered and not recorded else 0
        widest = max(network.widths, default=1)
        in_time = PASS_PRODUCTS // (8 * max(products(network, network.output), 1))
        self.batch = max(1, min(max(8, strategy.box_elements // (2 * widest**2)), in_time))
        self.steepest = torch.zeros(network.inputs, dtype=torch.float64)  # largest slope seen for each input

    def roots(self) -> Nodes:
        count, infinite = len(self.regions), torch.full((len(self.regions), self.remembered), torch.inf).double()
        state = {
            "lower": torch.from_numpy(np.stack([r.box.lower for r in self.regions])),
            "upper": torch.from_numpy(np.stack([r.box.upper for r in self.regions])),
            "layers_lower": -infinite,  # bounds on all layers, valid also for parts of the box
            "layers_upper": infinite,
        }
        return Nodes.roots(torch.arange(count), state, torch.float64)

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        halves = parents.halved()
        lower, upper, n = halves.state["lower"], halves.state["upper"], torch.arange(len(parents))
        middle = _middle(parents)[n, parents.split]
        upper[2 * n, parents.split] = middle
        lower[2 * n + 1, parents.split] = middle
        return halves

    def bound(self, nodes: Nodes) -> Bounded:
        with self.clock.phase("bounding"):
            state = nodes.state
            known = (state["layers_lower"], state["layers_upper"]) if self.remembered else None
            shape = (-1, *self.network.input_shape)
            enclosure = Enclosure(self.network, state["lower"].reshape(shape), state["upper"].reshape(shape))
            tighten_layers(enclosure, _BOUNDING, self.clock.check, known)
            if self.remembered:
                layers = [enclosure.layer(k) for k in range(len(self.network.layers))]
                state = state | {
                    "layers_lower": torch.cat([low for low, _ in layers], dim=1),
                    "layers_upper": torch.cat([high for _, high in layers], dim=1),
                }
            bound, slope, x, row = self._best_rows(enclosure, nodes.region)
        nodes = replace(nodes, bound=torch.maximum(bound, nodes.bound), state=state | {"row": row})
        return Bounded(nodes, bound > self.least[nodes.region], {"bound": bound, "slope": slope, "x": x})

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        lowest = open_.hints["bound"].argsort()[: self.strategy.points]
        yield torch.cat([open_.hints["x"][lowest], _middle(open_.nodes)[lowest]])

    def choose(self, open_: Bounded) -> Nodes:
        """The input with the largest width times slope; −1 where no input can be halved any more."""
        with self.clock.phase("branching"):
            lower, upper = open_.nodes.state["lower"], open_.nodes.state["upper"]
            middle = _middle(open_.nodes)
            divisible = (middle > lower) & (middle < upper)
            steep = open_.hints["slope"].abs()
            self.steepest = torch.maximum(self.steepest, steep.nan_to_num().amax(0))
            # An input that hardly enters a box's linear bound may still be what its relaxations suffer from.
            weight = steep + self.strategy.slope_floor * self.steepest + 1e-9
            best, axis = torch.where(divisible, weight * (upper - lower), -1.0).max(1)
        return replace(open_.nodes, split=torch.where(best > 0, axis, -1))  # not so where an overflow made it NaN

    def decide(self, leaf: Nodes) -> Leaf:
        """A box that is too narrow to be halved stays open: its bound is within rounding of the threshold."""
        return Leaf(False)

    def _best_rows(self, enclosure: Enclosure, region: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best row's bound of each box, its coefficient on the input, its minimiser, and which row it is."""
        form = GraphForm.at(enclosure, self.network.output)
        bound = torch.full((len(region),), -torch.inf, dtype=torch.float64)
        slope = torch.zeros(len(region), self.network.inputs, dtype=torch.float64)
        x = (form.box_lower + form.box_upper).reshape(len(region), -1) / 2
        row = torch.zeros(len(region), dtype=torch.int64)
        shape = (len(region), form.neurons)
        relaxation = relax(form.lower.reshape(shape), form.upper.reshape(shape))
        slopes, duals = Slopes.of(relaxation, None), Duals(relaxation.lower_slope, None, None)
        on_output, on_input, constant = (part[region] for part in self.rows)
        for r in range(constant.shape[1]):
            rows = form.rows(on_output[:, r], on_input[:, r], constant[:, r])
            rows = replace(rows, error=form.start_error(rows))
            result = evaluate(timed(form, self.clock.check), rows, slopes, duals, keep=False)
            better = result.bound >= bound
            bound = torch.where(better, result.bound, bound)
            slope = torch.where(better[:, None], result.pulled.at_input, slope)
            x = torch.where(better[:, None], result.x, x)
            row[better] = torch.minimum(torch.tensor(r), self.counts[region[better]] - 1)
        return bound, slope, x, row


def _middle(nodes: Nodes) -> Tensor:
    return (nodes.state["lower"] + nodes.state["upper"]) / 2


def _stack(regions: Sequence[Region], network: Network) -> tuple[Tensor, Tensor, Tensor]:
    """All regions' rows, each region's last one repeated so that all have as many.

    # (regions, rows, outputs), (regions, rows, inputs), (regions, rows)
    """
    most = max(len(region.constant) for region in regions)
    index = [np.minimum(np.arange(most), len(region.constant) - 1) for region in regions]
    none = np.zeros((most, network.inputs))
    parts = (
        [region.on_output[i] for region, i in zip(regions, index, strict=True)],
        [none if region.on_input is None else region.on_input[i] for region, i in zip(regions, index, strict=True)],
        [region.constant[i] for region, i in zip(regions, index, strict=True)],
    )
    on_output, on_input, constant = (torch.from_numpy(np.stack(part)) for part in parts)
    return on_output, on_input, constant

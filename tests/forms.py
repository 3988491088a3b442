"""Networks over one box in both forms of their bounds, with rows, splits and multipliers."""

from dataclasses import dataclass

import numpy as np
import torch
from networks import makers, pre_activations, random_box, sample
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.beta_crown import Duals, Specification
from surebound.bounds.enclosure import Enclosure
from surebound.bounds.folded import FoldedForm
from surebound.bounds.form import Form, Rows
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import LayerBounding, fold_network
from surebound.network.graph import Network
from surebound.problem import Box

MAKERS = makers(5, 12, 12, 3)
FORMS = ("folded", "graph")


def folded(
    network: Network, lower: Tensor, upper: Tensor, bounding: LayerBounding = LayerBounding(ascent=None)
) -> FoldedForm:
    """The folded form over one box."""
    form = fold_network(Enclosure(network, lower, upper), bounding, lambda: None)
    assert form is not None
    return form


@dataclass(frozen=True, eq=False)
class Case:
    """A network over one box in both forms, with two regions: the first of one row, the second of two."""

    network: Network
    lower: Tensor  # (1, *input_shape)
    upper: Tensor
    rows: Tensor  # (3, outputs)
    constant: Tensor  # (3,)
    enclosure: Enclosure
    forms: dict[str, Form]
    specifications: dict[str, Specification]

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        bounds = map(self.enclosure.layer, range(len(self.network.layers)))
        return [(low[0], high[0]) for low, high in bounds]

    @property
    def where(self) -> Tensor:
        """Each folded neuron's place among all neurons of the network. # (folded neurons,)"""
        starts = [s.start for s in self.forms["graph"].layers]
        return torch.cat([i + start for i, start in zip(self.forms["folded"].indices, starts, strict=True)])

    def per_layer(self, signs: Tensor) -> dict[int, NDArray[np.int8]]:
        """The signs of all neurons as `planet_bounds` takes them. # (neurons of the network,) int8"""
        return {k: signs[s].numpy() for k, s in enumerate(self.forms["graph"].layers)}

    def box(self) -> Box:
        return Box(self.lower.flatten().numpy(), self.upper.flatten().numpy())


def make_case(name: str, rng: np.random.Generator, radius: float = 0.3, fixed: int = 0) -> Case:
    """All rows are near 0 in the middle of the box, and those of region 1 pull in nearly opposite directions.

    The first `fixed` inputs are pinned.
    """
    network = MAKERS[name](rng)
    lower, upper = random_box(rng, network, radius=radius)
    upper.view(-1)[:fixed] = lower.view(-1)[:fixed]
    rows = torch.from_numpy(rng.normal(size=(3, network.outputs)))
    rows[2] = 0.3 * rows[2] - rows[1]
    middle = network.forward((lower + upper) / 2).flatten()
    constant = torch.from_numpy(rng.normal(size=3) * 0.1) - rows @ middle
    small = folded(network, lower, upper)
    graph = GraphForm.at(small.enclosure, network.output)
    bare = small.fold({network.output: rows.reshape(3, *network.output_shape)})
    starts = {
        "folded": Rows(bare.coefficients, bare.constant + constant, bare.error),
        "graph": graph.rows(rows, None, constant),
    }
    forms: dict[str, Form] = {"folded": small, "graph": graph}
    specifications = {key: Specification(r, (0, 1, 3), forms[key].start_error(r)) for key, r in starts.items()}
    return Case(network, lower, upper, rows, constant, small.enclosure, forms, specifications)


def feasible_signs(rng: np.random.Generator, case: Case, nodes: int, share: float) -> Tensor:
    """Splits of a share of the ambiguous neurons that all hold at some point of the box. # (nodes, neurons) int8"""
    x = sample(rng, case.lower[0], case.upper[0], nodes)
    xhat = torch.cat(pre_activations(case.network, x)[:-1], dim=1)
    chosen = torch.zeros(xhat.shape, dtype=torch.bool)
    chosen[:, case.where] = torch.from_numpy(rng.uniform(size=(nodes, len(case.where))) < share)
    return torch.where(chosen, xhat.sign(), 0.0).to(torch.int8)


def random_duals(rng: np.random.Generator, region: Tensor, neurons: int) -> Duals:
    """α in (0, 1), β and π in (0, ½), with nothing on the row that region 0 does not have."""
    n = len(region)
    alpha, beta = (torch.from_numpy(rng.uniform(0.02, high, size=(n, neurons))) for high in (0.98, 0.5))
    mix = torch.from_numpy(rng.uniform(0.05, 0.5, size=(n, 2)))
    mix[region == 0, 1] = 0.0
    return Duals(alpha, beta, mix)

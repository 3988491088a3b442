"""One bounding of a batch of nodes, measured on the folded and on the graph form of the same network and box."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from common import markdown_table, products_rate

if TYPE_CHECKING:
    from torch import Tensor

    from surebound.bounds.beta_crown import Specification, Splits
    from surebound.bounds.form import Form
    from surebound.network.model import Model
    from surebound.problem import Property, Region, Robustness
    from surebound.verify.subject import Subject

ITERATIONS = 10
NODES = 256
SPLITS = 8  # of each node
MEMORY = 2**31  # bytes, more than the batches of these networks need


@dataclass(frozen=True, eq=False, kw_only=True)
class Pair:
    """A network over a box in two forms, and the same nodes for both."""

    name: str
    folded: "Subject"
    graph: "Subject"
    folded_nodes: "Splits"
    graph_nodes: "Splits"
    root: float  # seconds of the layers' bounds and of folding

    @property
    def sides(self) -> dict[str, tuple["Subject", "Splits"]]:
        return {"folded": (self.folded, self.folded_nodes), "graph": (self.graph, self.graph_nodes)}


class Counts(NamedTuple):
    """Something about each of the two forms."""

    folded: int
    graph: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What one bounding took on each form, in the fastest round."""

    name: str
    neurons: Counts  # relaxed ones: the ambiguous, or all
    nodes: int
    iterations: int
    work: Counts  # multiply-adds of one pass for one node
    nonzero: int  # those of the folded form that do not multiply by 0
    folded: float  # seconds
    graph: float
    share: float  # of the products beside it, the folded form as if dense: the median of the rounds
    products: float  # FLOP/s, likewise
    automatic: str

    @property
    def ratio(self) -> float:
        """How many times faster the folded form is."""
        return self.graph / self.folded

    @property
    def faster(self) -> str:
        return "folded" if self.folded <= self.graph else "graph"

    @property
    def flops(self) -> float:
        """Of the whole bounding with dense matrices; the iterations are followed by one more backward pass."""
        return float((2 * self.iterations + 1) * 2 * self.work.folded * self.nodes)

    @property
    def nonzero_share(self) -> float:
        """The share, if a multiplication by 0 does not count."""
        return self.share * self.nonzero / max(self.work.folded, 1)


def prepare(name: str, model: "Model", problem: "Property | Robustness", nodes: int = NODES) -> Pair:
    """Both forms of a network over a property's (first) box, with nodes that are split in a few neurons.

    The layers are bounded with fixed slopes: α-CROWN leaves a few neurons less, and takes longer than all the rest.
    """
    import torch

    from surebound.bounds.enclosure import Enclosure
    from surebound.bounds.graph_form import GraphForm
    from surebound.bounds.root import LayerBounding, fold_network, settle_layers
    from surebound.problem import Robustness
    from surebound.verify.subject import specify

    network = model.network
    prop = problem.to_property(network.outputs) if isinstance(problem, Robustness) else problem
    regions = [region for region in prop.regions if region.box is prop.regions[0].box]
    shape = (1, *network.input_shape)
    ends = tuple(torch.from_numpy(end).reshape(shape) for end in (regions[0].box.lower, regions[0].box.upper))
    begin = time.perf_counter()
    known, enclosure = (Enclosure(network, *ends) for _ in range(2))
    settle_layers(known, lambda: None)
    folded = fold_network(enclosure, LayerBounding(ascent=None), lambda: None, known=known)
    seconds = time.perf_counter() - begin
    assert folded is not None  # there is no limit
    graph = GraphForm.at(enclosure, network.output)
    drop, folded_nodes = _draw(folded, specify(folded, regions), nodes)
    return Pair(
        name=name,
        folded=_subject(model, folded, regions, drop),
        graph=_subject(model, graph, regions, drop),
        folded_nodes=folded_nodes,
        graph_nodes=_spread(folded_nodes, folded, graph),
        root=seconds,
    )


def widened(problem: "Property", factor: float) -> "Property":
    """The property's regions over its first box, made wider by a factor."""
    from surebound.problem import Box

    box = problem.regions[0].box
    centre, radius = (box.upper + box.lower) / 2, factor * (box.upper - box.lower) / 2
    wide = Box(centre - radius, centre + radius)
    return replace(problem, regions=tuple(replace(r, box=wide) for r in problem.regions if r.box is box))


def _subject(model: "Model", form: "Form", regions: Sequence["Region"], drop: float) -> "Subject":
    """The form with all thresholds lowered, so that no node is proved and leaves its batch."""
    from surebound.verify.subject import Subject, specify

    found = specify(form, regions)
    rows = replace(found.rows, constant=found.rows.constant - drop)
    return Subject(model.network, form, replace(found, rows=rows))


def _draw(form: "Form", specification: "Specification", count: int) -> tuple[float, "Splits"]:
    """Splits that hold a random point each, split in random neurons; and a number above all rows at these points.

    A bound of a node is below its rows at any point of it: lowered by that number, no node can be proved.
    """
    import torch

    from surebound.bounds.beta_crown import Splits

    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(count, form.inputs, generator=generator, dtype=torch.float64)
    points = form.box_lower + uniform * (form.box_upper - form.box_lower)
    xhat, columns = form.forward(points, lambda _, value: value.clamp_min(0.0))
    rows = specification.rows
    highest = float((columns @ rows.coefficients.T + rows.constant).max())
    chosen = torch.rand(count, form.neurons, generator=generator).topk(min(SPLITS, form.neurons), dim=1).indices
    signs = torch.zeros(count, form.neurons, dtype=torch.int8)
    signs.scatter_(1, chosen, torch.where(xhat.gather(1, chosen) >= 0, 1, -1).to(torch.int8))
    return highest + 1.0, Splits(torch.arange(count) % (len(specification.starts) - 1), signs)


def _spread(nodes: "Splits", folded: "Form", graph: "Form") -> "Splits":
    """The same nodes over all neurons of the network."""
    import torch

    from surebound.bounds.beta_crown import Splits

    assert nodes.signs is not None
    pairs = zip(folded.indices, graph.layers, strict=True)
    places = torch.cat([index + layer.start for index, layer in pairs])
    signs = torch.zeros(len(nodes), graph.neurons, dtype=torch.int8)
    signs[:, places] = nodes.signs
    return Splits(nodes.region, signs)


def bound(subject: "Subject", nodes: "Splits", iterations: int = ITERATIONS) -> "Tensor":
    """The nodes' bounds, computed in parts that fit into the cache. # (nodes,)"""
    import torch

    from surebound.bounds.beta_crown import Ascent, Duals
    from surebound.verify.spaces.neurons import batch_size

    ascent = Ascent(iterations=iterations)
    found = []
    for part in torch.arange(len(nodes)).split(batch_size(subject, MEMORY)):
        some = nodes[part]
        alpha = subject.fast_relaxation.lower_slope.repeat(len(part), 1)
        duals = Duals(alpha, torch.zeros_like(alpha), subject.fast_specification.initial_mix(some.region))
        found.append(subject.bound(some, duals, ascent).bound)
    return torch.cat(found)


def measure(pair: Pair, rounds: int, iterations: int = ITERATIONS) -> Measured:
    """Both forms in turns, and matrix products beside the folded one for as long as it took."""
    for subject, nodes in pair.sides.values():  # not counted
        bound(subject, nodes, 1)
    times: dict[str, list[float]] = {"folded": [], "graph": []}
    products = []
    for _ in range(rounds):
        for side, (subject, nodes) in pair.sides.items():
            begin = time.perf_counter()
            bound(subject, nodes, iterations)
            times[side].append(time.perf_counter() - begin)
            if side == "folded":
                products.append(products_rate(times[side][-1]))
    result = Measured(
        name=pair.name,
        neurons=Counts(pair.folded.form.neurons, pair.graph.form.neurons),
        nodes=len(pair.folded_nodes),
        iterations=iterations,
        work=Counts(multiply_adds(pair.folded), multiply_adds(pair.graph)),
        nonzero=nonzeros(pair.folded),
        folded=min(times["folded"]),
        graph=min(times["graph"]),
        share=0.0,
        products=median(products),
        automatic=automatic(pair),
    )
    shares = [result.flops / seconds / rate for seconds, rate in zip(times["folded"], products, strict=True)]
    return replace(result, share=median(shares))


def multiply_adds(subject: "Subject") -> int:
    """Of one pass for one node."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    folded = subject.form.folded()
    if folded is not None:
        return sum(block.weight.numel() for block in folded.blocks)
    start = torch.zeros_like(subject.fast_specification.rows.coefficients[:1])
    with FlopCounterMode(display=False) as counter:
        subject.fast_form.backward(start, lambda _, lam: lam)
    return int(counter.get_total_flops()) // 2


def nonzeros(subject: "Subject") -> int:
    """The entries of a folded form's matrices that are not 0."""
    folded = subject.form.folded()
    return 0 if folded is None else sum(int(block.weight.count_nonzero()) for block in folded.blocks)


def automatic(pair: Pair) -> str:
    """The form that the search would choose."""
    from surebound.bounds.folded import FoldedForm
    from surebound.verify.costs import cheapest

    form = pair.folded.form
    assert isinstance(form, FoldedForm)
    return "folded" if cheapest(form, form.enclosure) is form else "graph"


def forms_table(found: Sequence[Measured]) -> str:
    """What one bounding takes on either form."""
    header = ["network", "form the search picks", "was it the faster", "neurons", "ambiguous", "nodes"]
    header += ["folded M mult-adds", "graph M mult-adds", "folded ms", "graph ms", "graph ÷ folded"]
    return markdown_table(header, map(_forms_row, found), left=3)


def _forms_row(m: Measured) -> list[object]:
    right = "yes" if m.automatic == m.faster else "no"
    sizes = [f"{m.neurons.graph:,}", f"{m.neurons.folded:,}", m.nodes, *(f"{work / 1e6:.2f}" for work in m.work)]
    return [m.name, m.automatic, right, *sizes, f"{m.folded * 1e3:.0f}", f"{m.graph * 1e3:.0f}", f"{m.ratio:.2f}"]


SHARE_NOTE = (
    "An iteration is a backward and a forward pass: 2 × 2 × multiply-adds × nodes, as if all matrices were dense. "
    "The rate of the matrix products was measured beside each bounding, for as long. The last column is the share "
    "if multiplications by 0, which sparse matrices spare, do not count.\n"
)


def share_table(found: Sequence[Measured]) -> str:
    """The folded form's rate beside matrix products."""
    header = ["network", "ambiguous", "non-zero", "GFLOP if dense", "GFLOP/s", "SGEMM GFLOP/s"]
    header += ["share if dense", "share of non-zeros"]
    return markdown_table(header, map(_share_row, found))


def _share_row(m: Measured) -> list[str]:
    rates = [f"{rate / 1e9:.1f}" for rate in (m.share * m.products, m.products)]
    sizes = [f"{m.neurons.folded:,}", f"{m.nonzero / max(m.work.folded, 1):.0%}", f"{m.flops / 1e9:.2f}"]
    return [m.name, *sizes, *rates, f"{m.share:.0%}", f"{m.nonzero_share:.0%}"]


def all_pairs(pairs: Iterator[Pair], rounds: int) -> list[Measured]:
    """Measure one after the other, with a line for each."""
    found = []
    for pair in pairs:
        found.append(measure(pair, rounds))
        line = f"{found[-1].folded * 1e3:.0f} ms folded, {found[-1].graph * 1e3:.0f} ms graph"
        print(f"{pair.name}: {line}, {found[-1].share:.0%} of SGEMM", flush=True)
    return found

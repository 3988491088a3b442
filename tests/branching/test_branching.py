"""Branching rules: scores and choices against NumPy on networks written out here, and what every rule must keep to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from networks import (
    Builder,
    makers,
    pre_activations,
    random_box,
    sample,
)
from numpy.typing import NDArray
from torch import Tensor

from surebound.bounds.beta_crown import Ascent, Duals, Specification, Splits
from surebound.bounds.enclosure import Enclosure, enclose
from surebound.bounds.form import Form
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import LayerBounding, fold_network
from surebound.branching import RULES
from surebound.branching.bias import biases
from surebound.branching.mixture import Mixture
from surebound.branching.rule import Bounding, open_neurons
from surebound.network.build import Builder as NetworkBuilder
from surebound.network.graph import Network
from surebound.network.linear import Linear, Scale, Shift
from surebound.verify.subject import Subject

Vector = NDArray[np.float64]
Layers = list[Vector]  # one array per ReLU layer
MAKERS = makers(5, 12, 12, 3)
FORMS = ("folded", "graph")
MEAN, STD = 0.5, 0.25

# 2 → 3 → 2 → 1 over [−1, 1]²: the third neuron of the first layer is active, all others are ambiguous
HAND = (
    ([[1.0, -1.1], [2.0, 0.9], [-1.0, 0.9]], [0.5, -0.3, 3.0]),
    ([[1.0, -2.1, 0.4], [-1.5, 1.2, 0.3]], [1.2, -0.3]),
    ([[-1.1, -1.3]], [0.1]),
)


def fully_connected(layers: Sequence[tuple[list[list[float]], list[float]]], *, pixels: bool = False) -> Network:
    """With `pixels`, the network first computes (x − MEAN) / STD, exactly in float64 for numbers such as these."""
    inputs = len(layers[0][0][0])
    build = Builder(np.random.default_rng(0), (inputs,))
    node = 0
    if pixels:
        node = build.add(Shift(torch.full((inputs,), -MEAN, dtype=torch.float64)), node)
        node = build.add(Scale(torch.full((inputs,), 1 / STD, dtype=torch.float64)), node)
    for k, (weight, bias) in enumerate(layers):
        op = Linear(torch.tensor(weight, dtype=torch.float64), torch.tensor(bias, dtype=torch.float64))
        node = build.add(op, node if k == 0 else build.relu(node))
    return build.network()


def make_subject(key: str, network: Network, lower: Tensor, upper: Tensor, rows: Tensor) -> Subject:
    """One region for each row. The graph form has interval bounds, the folded form those of FastLin and CROWN."""
    if key == "graph":
        graph = GraphForm.at(enclose(network, lower, upper), network.output)
        form: Form = graph
        given = graph.rows(rows)
    else:
        folded = fold_network(Enclosure(network, lower, upper), LayerBounding(ascent=None), lambda: None)
        form = folded
        given = folded.fold({network.output: rows.reshape(-1, *network.output_shape)})
    specification = Specification(given, tuple(range(len(rows) + 1)), form.start_error(given))
    return Subject(network, form, specification)


def bounded(subject: Subject, nodes: Splits, duals: Duals | None = None, iterations: int = 0) -> Bounding:
    if duals is None:
        alpha = subject.fast_relaxation.lower_slope.repeat(len(nodes), 1)
        duals = Duals(alpha, torch.zeros_like(alpha), None)
    found = subject.bound(nodes, duals, Ascent(iterations=iterations))
    return Bounding(nodes, found.duals, found.lam, found.bound)


@dataclass(frozen=True, eq=False)
class Hand:
    """A network written out above over [−1, 1]², in one form, with the formulas in NumPy over all its neurons."""

    layers: Sequence[tuple[list[list[float]], list[float]]]
    subject: Subject
    low: Layers
    high: Layers

    @staticmethod
    def of(
        layers: Sequence[tuple[list[list[float]], list[float]]],
        key: str,
        rows: Sequence[float],
        *,
        pixels: bool = False,
    ) -> "Hand":
        """With `pixels`, in front of which (x − MEAN) / STD makes [−1, 1]² of a smaller box: no formula knows of it."""
        network = fully_connected(layers, pixels=pixels)
        lower, upper = -torch.ones(1, 2, dtype=torch.float64), torch.ones(1, 2, dtype=torch.float64)
        if pixels:
            lower, upper = MEAN + STD * lower, MEAN + STD * upper
        subject = make_subject(key, network, lower, upper, torch.tensor(rows, dtype=torch.float64)[:, None])
        low, high = [np.full(3, -1.0), np.full(2, -1.0)], [np.zeros(3), np.zeros(2)]  # folded away: inactive, or
        low[0][2] = high[0][2] = 1.0  # active, as only the third neuron of HAND
        form = subject.form
        for k, (index, where) in enumerate(zip(form.indices, form.layers, strict=True)):
            low[k][index], high[k][index] = form.lower[where].numpy(), form.upper[where].numpy()
        return Hand(layers, subject, low, high)

    def part(self, layer: int, which: int) -> Vector:
        return np.array(self.layers[layer][which])

    def pick(self, values: Layers) -> Vector:
        """The elements that the form has."""
        return np.concatenate([v[i.numpy()] for v, i in zip(values, self.subject.form.indices, strict=True)])

    def spread(self, values: Tensor) -> Layers:
        """Values of the form's neurons, and 0 for the others. # (neurons,) -> (3,), (2,)"""
        out = [np.zeros(3), np.zeros(2)]
        for k, (index, where) in enumerate(zip(self.subject.form.indices, self.subject.form.layers, strict=True)):
            out[k][index] = values[where].double().numpy()
        return out

    def line(self, k: int) -> tuple[Vector, Vector]:
        """ā_k and b̄_k of eq. 14."""
        low, high = self.low[k], self.high[k]
        ambiguous = (low < 0) & (high > 0)
        width = np.where(ambiguous, high - low, 1.0)
        return np.where(ambiguous, high / width, low >= 0), np.where(ambiguous, -low * high / width, 0.0)

    def dual(self, row: float, alpha: Layers, signs: Layers, beta: Layers) -> tuple[float, Layers]:
        """Eq. 15: d and λ̄_1, λ̄_2."""
        lam, bound, lams = -row * self.part(2, 0)[0], row * self.part(2, 1)[0], []
        for k in (1, 0):
            (upper, intercept), split = self.line(k), signs[k] != 0
            free = (self.low[k] < 0) & (self.high[k] > 0) & ~split
            upper = np.where(split, signs[k] > 0, upper)
            intercept = np.where(split, 0.0, intercept)
            slope = np.where(lam > 0, upper, np.where(free, alpha[k], upper))
            mu = slope * lam + signs[k] * beta[k]
            bound -= np.maximum(lam, 0.0) @ intercept + mu @ self.part(k, 1)
            lams.insert(0, lam)
            lam = mu @ self.part(k, 0)
        return float(bound - np.abs(lam).sum()), lams

    def fastlin(self) -> Layers:
        return [self.line(k)[0] for k in range(2)]

    def crown(self) -> Layers:
        return [(high > -low).astype(np.float64) for low, high in zip(self.low, self.high, strict=True)]

    def open(self, signs: Layers) -> list[NDArray[np.bool_]]:
        return [(self.low[k] < 0) & (self.high[k] > 0) & (signs[k] == 0) for k in range(2)]

    def sensitivity(self, row: float, signs: Layers, *, worst: bool) -> Layers:
        """|opt(0, λb) − μb − b̄[λ]₊| with μ = āλ; opt is max for SR and min for FSB."""
        _, lams = self.dual(row, self.fastlin(), signs, [np.zeros(3), np.zeros(2)])
        found = []
        for k, lam in enumerate(lams):
            (slope, intercept), product = self.line(k), lam * self.part(k, 1)
            best = np.minimum(product, 0.0) if worst else np.maximum(product, 0.0)
            score = np.abs(best - slope * product - intercept * np.maximum(lam, 0.0))
            found.append(np.where(self.open(signs)[k], score, 0.0))
        return found

    def intercepts(self, row: float, signs: Layers) -> Layers:
        _, lams = self.dual(row, self.fastlin(), signs, [np.zeros(3), np.zeros(2)])
        terms = [self.line(k)[1] * np.maximum(lam, 0.0) for k, lam in enumerate(lams)]
        return [np.where(o, t, 0.0) for o, t in zip(self.open(signs), terms, strict=True)]

    def worse_child(self, row: float, signs: Layers, k: int, j: int) -> float:
        children = []
        for sign in (1.0, -1.0):
            split = [s.copy() for s in signs]
            split[k][j] = sign
            zero = [np.zeros(3), np.zeros(2)]
            children.append(max(self.dual(row, alpha, split, zero)[0] for alpha in (self.fastlin(), self.crown())))
        return min(children)

    def filtered(self, row: float, signs: Layers) -> dict[tuple[int, int], float]:
        """FSB's candidates, as (layer, neuron), with the worse of their children's bounds."""
        candidates = []
        for k, open_ in enumerate(self.open(signs)):
            for score in (self.sensitivity(row, signs, worst=True)[k], self.intercepts(row, signs)[k]):
                if open_.any():
                    candidates.append((k, int(np.where(open_, score, -1.0).argmax())))
        return {c: self.worse_child(row, signs, *c) for c in candidates}

    def deepest(self, row: float, signs: Layers) -> tuple[int, int]:
        """SR's fallback."""
        for scores in (self.intercepts(row, signs), [o.astype(np.float64) for o in self.open(signs)]):
            for k in (1, 0):
                if scores[k].max() > 0:
                    return k, int(scores[k].argmax())
        raise AssertionError("nothing is open")

    def smart(self, row: float, signs: Layers) -> tuple[int, int]:
        """SR's choice."""
        scores = self.sensitivity(row, signs, worst=False)
        k = int(scores[1].max() > scores[0].max())
        if k == 0 or scores[k].max() <= 1e-3:
            return self.deepest(row, signs)
        return k, int(scores[k].argmax())

    def chosen(self, choice: Tensor) -> list[tuple[int, int]]:
        """The form's neurons as (layer, neuron)."""
        form = self.subject.form
        places = [(k, int(j)) for k, index in enumerate(form.indices) for j in index]
        return [places[c] for c in choice.tolist()]


def hand_nodes(hand: Hand, rng: np.random.Generator, count: int = 24) -> Splits:
    """Random splits of open neurons that leave some open; regions in turn. The first node of each has no splits."""
    regions, neurons = hand.subject.regions, hand.subject.form.neurons
    signs = torch.from_numpy(rng.choice([-1, 0, 0, 1], size=(count, neurons))).to(torch.int8)
    signs = signs * open_neurons(hand.subject.context, Splits(torch.zeros(1, dtype=torch.int64), None)).to(torch.int8)
    signs[:regions] = 0
    nodes = Splits(torch.arange(count) % regions, signs)
    return nodes[open_neurons(hand.subject.context, nodes).any(1)]


def assert_filtered(hand: Hand, choice: tuple[int, int], row: float, signs: Layers) -> None:
    """The choice is the candidate whose worse child is best, where several are up to rounding."""
    candidates = hand.filtered(row, signs)
    assert candidates[choice] == pytest.approx(max(candidates.values()), abs=1e-5)


def test_hand_written_bounds() -> None:
    """The graph form's l̂, û are intervals: relu(x̂_1) ∈ [0, 2.6] × [0, 2.6] × [1.1, 4.9], and x̂_2 follows from that."""
    hand = Hand.of(HAND, "graph", [1.0])
    for got, expected in (
        (hand.low, ([-1.6, -3.2, 1.1], [-3.82, -3.87])),
        (hand.high, ([2.6, 2.6, 4.9], [5.76, 4.29])),
    ):
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(g, e, rtol=0, atol=1e-12)
    np.testing.assert_allclose(hand.subject.context.bias, [0.5, -0.3, 3.0, 1.2, -0.3], rtol=1e-7)


def test_biases_are_those_of_the_layers() -> None:
    """Not what the first layer makes of pixels that are 0: normalising them is a change of the input."""
    for pixels in (False, True):
        found = biases(fully_connected(HAND, pixels=pixels))
        assert [b.tolist() for b in found] == [[0.5, -0.3, 3.0], [1.2, -0.3]]


def test_biases_of_images_norms_and_bare_inputs(rng: np.random.Generator) -> None:
    """A batch norm after weights counts, what feeds a ReLU without weights does, and two linear layers are one."""
    net = NetworkBuilder((3, 8, 8))
    pixels = net.scale(net.shift(0, [[[-0.5]], [[-0.4]], [[-0.3]]]), [[[4.0]], [[5.0]], [[2.0]]])
    weight, bias = rng.normal(size=(2, 3, 3, 3)), rng.normal(size=2)
    conv = net.conv(pixels, weight, bias, pads=[(1, 1), (1, 1)])
    norm = net.batch_norm(conv, [2.0, 3.0], [0.25, -0.5], [0.5, 0.125], [3.0, 15.0], 1.0)
    flat = net.reshape(net.relu(norm), (128,))
    inner, outer = rng.normal(size=(4, 128)), rng.normal(size=(3, 4))
    joined = net.linear(net.linear(flat, inner, [1.0, 2.0, 3.0, 4.0]), outer, [0.5, 0.5, 0.5])
    lifted = net.relu(net.shift(net.reshape(0, (192,)), -0.75))  # of bare pixels
    out = net.concat([net.relu(joined), lifted], 0)
    found = biases(net.build(out))
    first = np.repeat([2.0 * (bias[0] - 0.5) / 2 + 0.25, 3.0 * (bias[1] - 0.125) / 4 - 0.5], 64)
    expected = {128: first, 3: outer @ [1.0, 2.0, 3.0, 4.0] + 0.5, 192: np.full(192, -0.75)}
    assert sorted(len(b) for b in found) == [3, 128, 192]
    for b in found:
        np.testing.assert_allclose(b.numpy(), expected[len(b)], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("key", FORMS)
def test_upb_is_equation_7(key: str, rng: np.random.Generator) -> None:
    """At any duals: −l̂û / (û − l̂) ⊙ [λ̄]₊ on open neurons."""
    hand = Hand.of(HAND, key, [1.0, -1.0])
    nodes = hand_nodes(hand, rng)
    assert nodes.signs is not None
    alpha, beta = (torch.from_numpy(rng.uniform(size=nodes.signs.shape)).float() for _ in range(2))
    batch = bounded(hand.subject, nodes, Duals(alpha, beta, None))
    rule = RULES["upb"](hand.subject.context)
    found, choice = rule.scores(batch), hand.chosen(rule.choose(batch))
    fallbacks = 0
    for i, row in enumerate([(1.0, -1.0)[g] for g in nodes.region.tolist()]):
        signs = hand.spread(nodes.signs[i])
        bound, lams = hand.dual(row, hand.spread(alpha[i]), signs, hand.spread(beta[i]))
        assert batch.bound[i].item() == pytest.approx(bound, abs=1e-5)
        scores = []
        for k, lam in enumerate(lams):
            width = np.maximum(hand.high[k] - hand.low[k], 1e-9)
            planet_bias = np.maximum(-hand.low[k], 0.0) * np.maximum(hand.high[k], 0.0) / width
            scores.append(np.where(signs[k] == 0, planet_bias * np.maximum(lam, 0.0), 0.0))
        if bound > 0:  # proved: nobody will split it
            continue
        np.testing.assert_allclose(found[i], hand.pick(scores), rtol=1e-5, atol=1e-6)
        best = max(((k, int(s.argmax())) for k, s in enumerate(scores)), key=lambda c: scores[c[0]][c[1]])
        if scores[best[0]][best[1]] > 1e-4:
            assert choice[i] == best
        else:
            assert_filtered(hand, choice[i], row, signs)
            fallbacks += 1
    assert 2 <= fallbacks < len(nodes) - 2


@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("pixels", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("name", ["sr", "fsb"])
def test_sensitivity_scores_and_choices(name: str, pixels: bool, key: str, rng: np.random.Generator) -> None:
    hand = Hand.of(HAND, key, [1.0, -1.0], pixels=pixels)
    nodes = hand_nodes(hand, rng)
    assert nodes.signs is not None
    batch = bounded(hand.subject, nodes, iterations=3)
    rule = RULES[name](hand.subject.context)
    found, choice = rule.scores(batch), hand.chosen(rule.choose(batch))
    fallbacks = 0
    for i, row in enumerate([(1.0, -1.0)[g] for g in nodes.region.tolist()]):
        signs = hand.spread(nodes.signs[i])
        expected = hand.sensitivity(row, signs, worst=name == "fsb")
        np.testing.assert_allclose(found[i], hand.pick(expected), rtol=1e-5, atol=1e-6)
        if name == "sr":
            assert choice[i] == hand.smart(row, signs)
        else:
            assert_filtered(hand, choice[i], row, signs)
        fallbacks += expected[0].max() > expected[1].max() and hand.open(signs)[1].any()
    assert len(set(choice)) >= 3
    assert fallbacks >= 1  # nodes where SR does not take its best score, as that is in the first layer


@pytest.mark.parametrize("key", FORMS)
def test_weak_scores_fall_back(key: str, rng: np.random.Generator) -> None:
    """The same rows 2²⁰ times smaller: SR takes the deepest intercept; UPB takes FSB's choice, which is scale-free."""
    hand = Hand.of(HAND, key, [1.0, -1.0, 2.0**-20, -(2.0**-20)])
    few = hand_nodes(hand, rng)
    large, small = (Splits(few.region % 2 + shift, few.signs) for shift in (0, 2))
    sr, fsb, upb = (RULES[name](hand.subject.context) for name in ("sr", "fsb", "upb"))
    filtered = fsb.choose(bounded(hand.subject, large))
    weak = bounded(hand.subject, small)
    assert (upb.scores(weak).amax(1) <= 1e-4).all()
    assert upb.choose(weak).tolist() == fsb.choose(weak).tolist() == filtered.tolist()
    assert (upb.choose(bounded(hand.subject, large)) != filtered).any()
    assert few.signs is not None
    rows = [(1.0, -1.0)[g] for g in large.region.tolist()]
    expected = [hand.deepest(row, hand.spread(s)) for row, s in zip(rows, few.signs, strict=True)]
    assert hand.chosen(sr.choose(weak)) == expected
    assert hand.chosen(sr.choose(bounded(hand.subject, large))) != expected


@pytest.mark.parametrize("key", FORMS)
def test_without_any_score(key: str) -> None:
    """With a row of zeros SR takes the first open neuron of the deepest layer, FSB that of the first layer: a tie."""
    hand = Hand.of(HAND, key, [0.0])
    cases = [  # splits, SR's choice, FSB's choice
        ([[0, 0, 0], [0, 0]], (1, 0), (0, 0)),
        ([[0, 0, 0], [1, 0]], (1, 1), (0, 0)),
        ([[1, 0, 0], [-1, 0]], (1, 1), (0, 1)),
        ([[0, 0, 0], [1, -1]], (0, 0), (0, 0)),
        ([[-1, 0, 0], [1, 1]], (0, 1), (0, 1)),
        ([[-1, 1, 0], [0, 0]], (1, 0), (1, 0)),
    ]
    picked = [hand.pick([np.array(part) for part in splits]) for splits, _, _ in cases]
    nodes = Splits(torch.zeros(len(cases), dtype=torch.int64), torch.from_numpy(np.stack(picked)).to(torch.int8))
    batch = bounded(hand.subject, nodes)
    rules = {name: RULES[name](hand.subject.context) for name in RULES}
    assert not any(rule.scores(batch).any() for rule in rules.values())
    assert hand.chosen(rules["sr"].choose(batch)) == [smart for _, smart, _ in cases]
    assert hand.chosen(rules["fsb"].choose(batch)) == [filtered for _, _, filtered in cases]
    assert hand.chosen(rules["upb"].choose(batch)) == [filtered for _, _, filtered in cases]


def random_nodes(rng: np.random.Generator, subject: Subject, count: int, share: float) -> Splits:
    """Open neurons split at random, always with some left: in the last three nodes exactly one."""
    x = sample(rng, *(end[0] for end in (subject.form.enclosure.lower[0], subject.form.enclosure.upper[0])), count)
    xhat = pre_activations(subject.network, x)[:-1]
    value = torch.cat([v[:, i] for v, i in zip(xhat, subject.form.indices, strict=True)], dim=1)
    open_ = open_neurons(subject.context, Splits(torch.zeros(count, dtype=torch.int64), None))
    split = open_ & torch.from_numpy(rng.uniform(size=open_.shape) < share)
    split[-3:] = open_[-3:]
    for i in range(count - 3, count):
        split[i, rng.choice(torch.nonzero(open_[i]).flatten().numpy())] = False
    split[~(open_ & ~split).any(1)] = False
    signs = torch.where(split, torch.where(value < 0, -1, 1), 0).to(torch.int8)
    return Splits(torch.arange(count) % subject.regions, signs)


@pytest.mark.slow
@pytest.mark.parametrize("key", FORMS)
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("name", RULES)
def test_every_rule_chooses_open_neurons(name: str, maker: str, key: str, rng: np.random.Generator) -> None:
    """And the same ones on every call, in a batch or alone. Region 2 has a row of zeros: nothing scores there."""
    network = MAKERS[maker](rng)
    rows = torch.from_numpy(rng.normal(size=(3, network.outputs)))
    rows[2] = 0.0
    subject = make_subject(key, network, *random_box(rng, network, radius=0.3), rows)
    nodes = random_nodes(rng, subject, 30, share=0.5)
    rule = RULES[name](subject.context)
    batch = bounded(subject, nodes, iterations=5)
    open_, scores, choice = open_neurons(subject.context, nodes), rule.scores(batch), rule.choose(batch)
    assert choice.dtype == torch.int64
    assert scores.shape == (30, subject.form.neurons)
    assert open_.gather(1, choice[:, None]).all()
    assert not scores[~open_].any()
    assert (scores >= 0).all()
    assert not scores[nodes.region == 2].any()
    assert (open_[-3:].sum(1) == 1).all()
    again = RULES[name](subject.context).choose(batch)
    assert again.tolist() == choice.tolist()
    for i in range(30):
        one = torch.tensor([i])
        alone = Bounding(nodes[one], batch.duals[one], batch.lam[one], batch.bound[one])
        if name != "mixture" and batch.bound[i] <= 0:  # which looks at a sample of a batch only; proved: never split
            assert rule.choose(alone).item() == choice[i]
        torch.testing.assert_close(rule.scores(alone)[0], scores[i], rtol=1e-4, atol=1e-5)
    whole = Bounding(
        replace(nodes[:1], signs=None), replace(batch.duals[:1], beta=None), batch.lam[:1], batch.bound[:1]
    )
    assert open_neurons(subject.context, whole.nodes)[0, rule.choose(whole)[0]]


def children_gain(subject: Subject, batch: Bounding, i: int, neuron: int) -> float:
    """The product of what the two children gain of what node i lacks, each bounded alone by a short ascent."""
    one, product = torch.tensor([i]), 1.0
    for sign in (1, -1):
        assert batch.nodes.signs is not None
        signs = batch.nodes.signs[one].clone()
        signs[0, neuron] = sign
        child = subject.bound(Splits(batch.nodes.region[one], signs), batch.duals[one], Ascent(iterations=3))
        bound, before = min(float(child.bound), 0.0), float(batch.bound[i])
        product *= min(max((bound - before) / -before, 0.0), 1.0) + 1e-3
    return product


def open_batch(maker: str, key: str, rng: np.random.Generator, count: int) -> tuple[Subject, Bounding]:
    """Nodes with splits, of which none is proved."""
    network = MAKERS[maker](rng)
    rows = torch.from_numpy(rng.normal(size=(2, network.outputs)))
    ends = random_box(rng, network, radius=0.6)
    subject = make_subject(key, network, *ends, rows)
    nodes = random_nodes(rng, subject, count, share=0.2)
    far = lowered(subject, 1e3)
    subject = lowered(far, float(bounded(far, nodes, iterations=20).bound.max()) + 0.1)
    return subject, bounded(subject, nodes, iterations=5)


def lowered(subject: Subject, by: float) -> Subject:
    """The subject with all rows less a number."""
    rows = subject.specification.rows
    moved = replace(rows, constant=rows.constant - by)
    return replace(subject, specification=replace(subject.specification, rows=moved))


class Drawn:
    """A rule that chooses open neurons at random."""

    def __init__(self, subject: Subject, batch: Bounding, rng: np.random.Generator) -> None:
        open_ = open_neurons(subject.context, batch.nodes).numpy()
        self.choice = torch.tensor([int(rng.choice(np.flatnonzero(row))) for row in open_])

    def choose(self, batch: Bounding) -> Tensor:
        return self.choice


@pytest.mark.parametrize("key", FORMS)
def test_mixture_takes_the_choice_whose_children_gain_more(key: str, rng: np.random.Generator) -> None:
    """Whatever its two rules choose; they are UPB and SR."""
    subject, batch = open_batch("fc", key, rng, 12)
    mixture = Mixture(subject.context)
    assert [type(rule).__name__ for rule in mixture.rules] == ["UPB", "SR"]
    drawn = [Drawn(subject, batch, rng) for _ in range(2)]
    mixture.rules = tuple(drawn)  # type: ignore[assignment]
    choices = [rule.choice.tolist() for rule in drawn]
    gains = np.array([[children_gain(subject, batch, i, choice[i]) for choice in choices] for i in range(12)])
    chosen, wins = mixture.choose(batch).tolist(), [0, 0]
    for i in range(12):
        better = int(gains[i].argmax())
        assert chosen[i] in (choices[0][i], choices[1][i])
        if gains[i].min() < 0.99 * gains[i].max():
            assert chosen[i] == choices[better][i]
            wins[better] += 1
    assert min(wins) >= 2
    np.testing.assert_allclose(mixture.record, 0.5 * gains.mean(0), rtol=1e-3)
    assert mixture.leader is drawn[int(gains.mean(0).argmax())]


def test_mixture_follows_its_leader_outside_of_the_sample(rng: np.random.Generator) -> None:
    """Of 40 nodes every second one is compared. After four batches only every power of two is."""
    subject, batch = open_batch("fc", "folded", rng, 40)
    mixture, compared = Mixture(subject.context), []
    compare = mixture._compare

    def watched(part: Bounding) -> Tensor:
        compared.append((mixture.batches, len(part.nodes)))
        return compare(part)

    mixture._compare = watched  # type: ignore[method-assign]
    sampled, others = torch.arange(0, 40, 2), torch.arange(1, 40, 2)
    for number in range(1, 17):
        chosen = mixture.choose(batch)
        ahead = mixture.leader.choose(batch)
        assert torch.equal(chosen[others], ahead[others])
        if compared[-1][0] != number:
            assert torch.equal(chosen, ahead)
        else:
            both = torch.stack([rule.choose(batch) for rule in mixture.rules])
            assert (chosen[sampled] == both[:, sampled]).any(0).all()
    assert compared == [(number, 20) for number in (1, 2, 3, 4, 8, 16)]
    for ahead_now in (0, 1):
        mixture.record = torch.eye(2)[ahead_now]
        assert mixture.leader is mixture.rules[ahead_now]
        assert torch.equal(mixture.scores(batch), mixture.rules[ahead_now].scores(batch))

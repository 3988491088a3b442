"""Bounds of networks with any activation: against samples, in rational arithmetic, and with arbitrary lines and
multipliers."""

import numpy as np
import pytest
import torch
from curves import ROWS, network
from networks import op_over_arrays
from one_by_one import U, add_one_by_one

from surebound.bounds import BOUNDS
from surebound.bounds.audit import WrongBound, auditing
from surebound.bounds.beta_crown import Ascent
from surebound.bounds.enclosure import Enclosure, enclose
from surebound.bounds.fixed import fixed_rows
from surebound.bounds.graph_form import GraphForm
from surebound.bounds.root import LayerBounding, bound_neurons, tighten_layers
from surebound.bounds.tangents import TangentForm, Tangents
from surebound.errors import UsageError
from surebound.network.build import Builder
from surebound.network.graph import Network

each = pytest.mark.parametrize("name", ROWS)
METHODS = ("interval", "fastlin", "crown", "alpha-crown", "deepz")


def _boxes(rng: np.random.Generator, count: int, inputs: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    centre, radius = rng.normal(size=(count, inputs)), 10.0 ** rng.uniform(-3, 0.3, size=(count, inputs))
    return torch.from_numpy(centre - radius), torch.from_numpy(centre + radius)


def _samples(rng: np.random.Generator, lower: torch.Tensor, upper: torch.Tensor, count: int = 400) -> torch.Tensor:
    """# (boxes, inputs) -> (count, boxes, inputs), corners among them"""
    share = rng.random((count, *lower.shape))
    share[: count // 4] = share[: count // 4].round()
    return lower + (upper - lower) * torch.from_numpy(share)


@each
@pytest.mark.parametrize("method", METHODS)
def test_bounds_contain_samples(name: str, method: str, rng: np.random.Generator) -> None:
    net = network(rng, ROWS[name], (3, 5, 4, 2))
    lower, upper = _boxes(rng, 3)
    bounds = BOUNDS[method](net, lower, upper)
    for x in _samples(rng, lower, upper):
        found: dict[int, torch.Tensor] = {}

        def record(k: int, xhat: torch.Tensor, found: dict[int, torch.Tensor] = found) -> torch.Tensor:
            found[k] = xhat
            return net.activate(k, xhat)

        found[2] = net.trace(x, record)
        for k, value in found.items():
            assert bool((bounds.lower[k] <= value + 1e-12).all() & (bounds.upper[k] >= value - 1e-12).all())


@each
@pytest.mark.parametrize("method", METHODS)
def test_bounds_are_confirmed_in_rational_arithmetic(name: str, method: str, rng: np.random.Generator) -> None:
    """Rounding of lines, of passes and of zonotopes: what is claimed is no more than the lines themselves say."""
    net = network(rng, ROWS[name], (2, 3, 3, 1))
    lower, upper = _boxes(rng, 1, 2)
    with auditing() as audit:
        BOUNDS[method](net, lower, upper)
    assert audit.claims > 0


@each
def test_better_methods_are_better(name: str) -> None:
    """CROWN beats intervals on the whole, and α-CROWN never loses to CROWN over the same bounds on the layers."""
    widths, rng = {"interval": 0.0, "crown": 0.0}, np.random.default_rng(5)
    for _ in range(2):
        net = network(rng, ROWS[name], (3, 4, 3, 1))
        boxes = _boxes(rng, 2)
        for method in widths:
            bounds = BOUNDS[method](net, *boxes)
            widths[method] += float((bounds.upper[-1] - bounds.lower[-1]).sum())
        enclosure = Enclosure(net, *boxes)
        fixed, ascending = (LayerBounding(slopes=("crown",), ascent=ascent) for ascent in (None, Ascent(iterations=10)))
        tighten_layers(enclosure, fixed, lambda: None)
        (low, high), (lower, upper) = (
            bound_neurons(enclosure, net.output, torch.arange(net.outputs), bounding, lambda: None)
            for bounding in (fixed, ascending)
        )
        slack = 1e-9 * (1 + torch.maximum(low.abs(), high.abs()))
        assert (lower >= low - slack).all() and (upper <= high + slack).all()
    if name not in ("sign", "cube"):  # around which lines are loose
        assert widths["crown"] < widths["interval"]


@each
def test_any_lines_and_multipliers_bound(name: str, rng: np.random.Generator) -> None:
    """Slopes and σ may be anything; the bound holds where all neurons are in their intervals, split ones included."""
    net = network(rng, ROWS[name], (2, 4, 3, 1))
    lower, upper = _boxes(rng, 1, 2)
    whole = enclose(net, lower, upper)
    split = []
    for k in range(2):
        low, high = (t.clone() for t in whole.layer(k))
        i, at = int(rng.integers(low.shape[1])), float(rng.uniform(float(low.mean()), float(high.mean())))
        (low if rng.random() < 0.5 else high)[0, i] = min(max(at, float(low[0, i])), float(high[0, i]))
        split.append((low, high))
    enclosure = enclose(net, lower, upper, split)
    form = GraphForm.at(enclosure, net.output)
    with auditing() as audit:
        tangents = TangentForm(form, form.rows(torch.ones(1, 1, dtype=torch.float64)))
        bounds = []
        for scale in (0.0, 0.3, 3.0):
            start = tangents.start()
            noise = [torch.from_numpy(rng.normal(size=start.push.shape)) * scale for _ in range(3)]
            drawn = Tangents(start.below + noise[0], start.above + noise[1], noise[2])
            bounds.append(float(tangents.bounds(drawn, Ascent(iterations=0)).bound))
        bounds.append(float(tangents.bounds(tangents.start(), Ascent(iterations=8)).bound))
    assert audit.claims == 12
    assert bounds[3] >= bounds[0]
    x = _samples(rng, lower, upper, 4000)[:, 0]
    inside = torch.ones(len(x), dtype=torch.bool)

    def record(k: int, xhat: torch.Tensor) -> torch.Tensor:
        nonlocal inside
        inside = inside & (xhat >= split[k][0]).all(1) & (xhat <= split[k][1]).all(1)
        return net.activate(k, xhat)

    y = net.trace(x, record)[:, 0]
    if bool(inside.any()):
        assert max(bounds) <= float(y[inside].min()) + 1e-12


def test_the_audit_sees_a_floor_that_is_too_high(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower lines' intercepts are part of what is confirmed."""
    net = network(rng, ROWS["tanh"], (2, 4, 4, 1))
    lower, upper = _boxes(rng, 1, 2)
    enclosure = enclose(net, lower, upper)
    monkeypatch.setattr("surebound.bounds.beta_crown.abs", lambda t: 0 * t, raising=False)
    monkeypatch.setattr("surebound.bounds.beta_crown.UNDERFLOW", -1e-3)
    with auditing(), pytest.raises(WrongBound):
        fixed_rows(enclosure, "crown", torch.ones(1, 1, 1, dtype=torch.float64))


@each
def test_arrays_and_tensors_agree(name: str, rng: np.random.Generator) -> None:
    net = network(rng, ROWS[name], (2, 4, 3, 1))
    arrays = Network(tuple(type(n)(_arrays(n.op), n.inputs, n.name) for n in net.nodes), net.output, numpy=True)
    lower, upper = _boxes(rng, 1, 2)
    for lines in ("interval", "fastlin", "crown"):
        one = torch.ones(1, 1, 1, dtype=torch.float64)
        bound = fixed_rows(enclose(net, lower, upper), lines, one)  # type: ignore[arg-type]
        other = fixed_rows(enclose(arrays, lower.numpy(), upper.numpy()), lines, one.numpy())  # type: ignore[arg-type]
        assert np.allclose(bound.numpy(), other, rtol=1e-9, atol=1e-9)


def _arrays(op: object) -> object:
    return op_over_arrays(op) if hasattr(op, "apply") else op  # type: ignore[arg-type]


def test_relus_beside_others(rng: np.random.Generator) -> None:
    """In a network that has both, over layers of either kind."""
    builder = Builder((3,))
    first = builder.relu(builder.linear(0, rng.normal(size=(6, 3)), rng.normal(size=6)))
    second = builder.apply(builder.linear(first, rng.normal(size=(5, 6))), ROWS["tanh"])
    third = builder.relu(builder.linear(builder.concat([first, second], 0), rng.normal(size=(4, 11))))
    net = builder.build(builder.linear(third, rng.normal(size=(1, 4))))
    lower, upper = _boxes(rng, 3)
    y = torch.stack([net.forward(x) for x in _samples(rng, lower, upper)])
    for method in METHODS:
        with auditing():
            bounds = BOUNDS[method](net, lower, upper)
        assert bool((bounds.lower[-1] <= y.amin(0)).all() & (bounds.upper[-1] >= y.amax(0)).all())


@pytest.mark.parametrize("method", ["planet-lp", "milp"])
def test_programs_refuse(method: str, rng: np.random.Generator) -> None:
    with pytest.raises(UsageError, match="piecewise-linear"):
        BOUNDS[method](network(rng, ROWS["tanh"]), *_boxes(rng, 1, 2))


@pytest.mark.parametrize(("name", "least"), [("silu", -0.27846454), ("gelu", -0.16997121), ("gelu-tanh", -0.17004075)])
def test_an_interval_sees_a_valley(name: str, least: float) -> None:
    """Neither end of it is the least value."""
    builder = Builder((1,))
    net = builder.build(builder.apply(0, ROWS[name]))
    enclosure = enclose(net, *(torch.tensor([[end]], dtype=torch.float64) for end in (-5.0, 0.5)))
    assert least - 1e-3 < float(enclosure.lower[-1]) <= least
    assert float(enclosure.upper[-1]) == pytest.approx(float(ROWS[name].value(torch.tensor(0.5).double())), abs=1e-6)


@pytest.mark.parametrize(("push", "bound"), [(0.5, 1.0), (0.0, 1.0), (1.0, 1.0), (-0.5, 0.5), (2.0, 0.0)])
def test_a_multiplier_is_for_the_end_that_its_sign_names(push: float, bound: float) -> None:
    """min x − σ (x − e) over x in [1, 2], with e = 1 for σ ≥ 0 and e = 2 elsewhere; the ReLU is the identity there."""
    builder = Builder((1,))
    net = builder.build(builder.linear(builder.relu(0), np.ones((1, 1))))
    enclosure = enclose(net, *(torch.tensor([[end]], dtype=torch.float64) for end in (1.0, 2.0)))
    form = GraphForm.at(enclosure, net.output)
    one = torch.ones(1, 1, dtype=torch.float64)
    tangents = TangentForm(form, form.rows(one))
    found = tangents.bounds(Tangents(one, one, push * one), Ascent(iterations=0)).bound
    assert bound - 1e-9 < float(found) <= bound


def test_multipliers_of_many_layers_are_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Σ σ·e of 200 layers: 1.2, and what is added to it one by one, nearly half an ulp each, and lost."""
    add_one_by_one(monkeypatch)
    builder, node = Builder((1,)), 0
    for _ in range(200):
        node = builder.apply(builder.linear(node, [[1.0]]), ROWS["tanh"])  # type: ignore[arg-type]
    enclosure = enclose(builder.build(node), *(torch.tensor([[end]], dtype=torch.float64) for end in (2.0, 3.0)))
    form = GraphForm.at(enclosure, enclosure.network.output)
    push = -0.99 * U / form.upper[None]
    push[0, 0] = 0.6
    with auditing() as audit:
        tangents = TangentForm(form, form.rows(torch.zeros(1, 1, dtype=torch.float64)))
        start = tangents.start()
        tangents.bounds(Tangents(start.below, start.above, push), Ascent(iterations=0))
    assert audit.claims == 1

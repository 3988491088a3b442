"""Splits at points: halves cover their parent, at the right place, and what cannot be split ends the search."""

import numpy as np
import pytest
import torch
from curves import ROWS, Case

from surebound.bounds.enclosure import Enclosure
from surebound.bounds.result import LeafMultipliers
from surebound.bounds.root import settle_layers
from surebound.network.activations import SIGN_GAP
from surebound.verify.clock import Clock
from surebound.verify.spaces.points import PointSpace
from surebound.verify.strategy import default
from surebound.verify.tree import Bounded


def _space(name: str, seed: int = 0, margin: float = -0.1) -> tuple[Case, PointSpace]:
    case = Case.drawn(np.random.default_rng([seed, 9]), ROWS[name], (2, 4, 3, 1))
    enclosure = Enclosure(case.network, *(torch.from_numpy(end)[None] for end in (case.box.lower, case.box.upper)))
    settle_layers(enclosure, lambda: None)
    return case, PointSpace(enclosure, [case.region(margin)], default(), Clock(None))


def _bounded(space: PointSpace) -> Bounded:
    return space.bound(space.roots())


@pytest.mark.parametrize("name", ["tanh", "gelu", "relu", "elu", "sign"])
def test_halves_cover_their_parent(name: str) -> None:
    _, space = _space(name, margin=0.05)
    parents = space.choose(_bounded(space))
    (i,) = parents.split.tolist()
    halves = space.halves(parents, 0.0)
    low, high = (halves.state[end] for end in ("lower", "upper"))
    before = parents.state["lower"][0], parents.state["upper"][0]
    cut = float(high[0, i])
    assert cut == float(low[1, i]) and float(before[0][i]) < cut < float(before[1][i])
    assert cut in (0.0, *((-SIGN_GAP, SIGN_GAP) if name == "sign" else ())) or name in ("tanh", "gelu", "elu")
    for half, own in ((0, low), (1, high)):
        assert torch.equal(own[half], before[half])
    others = [k for k in range(low.shape[1]) if k != i]
    assert torch.equal(low[1, others], before[0][others]) and torch.equal(high[0, others], before[1][others])
    assert halves.state["below"][:, i].isnan().all() and halves.state["above"][:, i].isnan().all()


@pytest.mark.parametrize("name", [name for name in ROWS if name != "sign"])
def test_bounds_of_parts_hold_in_them(name: str) -> None:
    """Three splits deep, against a grid: of the points of the box, those whose neurons are in the node's intervals."""
    case, space = _space(name, margin=0.05)
    open_ = _bounded(space)
    axes = np.meshgrid(*(np.linspace(a, b, 80) for a, b in zip(case.box.lower, case.box.upper, strict=True)))
    found: list[torch.Tensor] = []

    def record(k: int, xhat: torch.Tensor) -> torch.Tensor:
        found.append(xhat)
        return case.network.activate(k, xhat)

    y = case.network.trace(torch.from_numpy(np.stack(axes, -1).reshape(-1, 2)), record)[:, 0] - (case.least + 0.05)
    xhat = torch.cat(found, 1)
    for _ in range(3):
        chosen = space.choose(open_)
        parents = chosen[chosen.split >= 0]
        halves = space.halves(parents, 0.0)
        open_ = space.bound(halves)
        inside, before = (
            ((xhat >= nodes.state["lower"][:, None]) & (xhat <= nodes.state["upper"][:, None])).all(2)
            for nodes in (halves, parents)
        )
        assert torch.equal(inside.any(0), before.any(0))  # every point is in some part
        least = torch.where(inside, y, torch.inf).amin(1)
        assert bool((open_.hints["bound"] <= least + 1e-12).all())
        assert bool((least[open_.proved] > 0).all())


@pytest.mark.parametrize("margins", [(-100.0, 0.1), (0.1, -100.0)])
def test_every_region_has_its_own_rows(margins: tuple[float, float]) -> None:
    """Of two claims over one box, one is true by far and the other false: no bound nor program takes one for both."""
    case, one = _space("tanh")
    enclosure = Enclosure(case.network, *one.box)
    settle_layers(enclosure, lambda: None)
    space = PointSpace(enclosure, [case.region(margin) for margin in margins], default(), Clock(None))
    bounded, holds = _bounded(space), [margin < 0 for margin in margins]
    assert bounded.proved.tolist() == holds
    assert [space.decide(bounded.nodes[torch.tensor([i])]).proved for i in (0, 1)] == holds


def test_parts_without_a_point_are_proved() -> None:
    """A neuron of the first layer cannot be above what the box allows; its layer's later neurons do not matter."""
    _, space = _space("tanh", margin=10.0)
    nodes = space.roots()
    assert not bool(space.bound(nodes).proved)
    nodes.state["lower"][:, 0] = space.high[0, 0] + 1.0
    nodes.state["upper"][:, 0] = space.high[0, 0] + 2.0
    assert bool(space.bound(nodes).proved)


def test_what_is_too_thin_is_a_leaf() -> None:
    _, space = _space("tanh", margin=10.0)
    nodes = space.roots()
    middle = space.low / 2 + space.high / 2
    nodes.state["lower"][:], nodes.state["upper"][:] = middle, middle + 1e-13
    open_ = space.bound(nodes)
    assert space.choose(open_).split.tolist() == [-1]


def test_a_point_is_not_empty() -> None:
    """An interval of one number is one that the neuron may have."""
    _, space = _space("tanh", margin=10.0)
    nodes = space.roots()
    nodes.state["upper"][:, 0] = nodes.state["lower"][:, 0]
    assert not bool(space.bound(nodes).proved)


def test_programs_are_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A solver that says of everything that it is proved, with multipliers that prove nothing."""
    _, space = _space("tanh", margin=10.0)

    def lying(**problem: object) -> LeafMultipliers:
        signs = np.asarray(problem["signs"])
        return LeafMultipliers(1.0, np.zeros(2), np.ones(1), np.zeros(len(signs)))

    monkeypatch.setattr("surebound.verify.spaces.points.leaf_multipliers", lying)
    parents = space.choose(_bounded(space))
    assert not bool(space.bound(space.halves(parents, 0.0)).proved.any())
    assert not space.decide(space.bound(space.roots()).nodes).proved

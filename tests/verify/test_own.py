"""A space and a stage written from docs/verifier.md alone: what it says is enough, and they decide as ours do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import write_tiny
from torch import Tensor

import surebound
from surebound.bounds.enclosure import enclose
from surebound.bounds.fixed import fixed_rows
from surebound.load.vnnlib import read_property
from surebound.problem import Region, padded_rows
from surebound.verify.cascade import Question, Settled, run
from surebound.verify.clock import Clock
from surebound.verify.engine import Engine
from surebound.verify.node import Nodes
from surebound.verify.options import Options
from surebound.verify.queue import Queue
from surebound.verify.stages import closing, screening
from surebound.verify.tree import Bounded, Leaf, Tree


class RandomCuts:
    """Boxes that are cut at random, along the widest input, and bounded by intervals."""

    batch = 64

    def __init__(self, engine: Engine, regions: Sequence[Region]) -> None:
        self.network, self.regions = engine.network, regions
        self.generator = torch.Generator().manual_seed(0)
        self.rows = [*map(torch.from_numpy, padded_rows([[region] for region in regions]))]

    def roots(self) -> Nodes:
        ends = {"lower": [r.box.lower for r in self.regions], "upper": [r.box.upper for r in self.regions]}
        state = {name: torch.from_numpy(np.stack(part)) for name, part in ends.items()}
        return Nodes.roots(torch.arange(len(self.regions)), state, torch.float64)

    def halves(self, parents: Nodes, gain: float) -> Nodes:
        halves, n = parents.halved(), torch.arange(len(parents))
        low, high = (parents.state[name][n, parents.split] for name in ("lower", "upper"))
        cut = low + (high - low) * (0.25 + 0.5 * torch.rand(len(n), generator=self.generator, dtype=torch.float64))
        halves.state["upper"][2 * n, parents.split] = halves.state["lower"][2 * n + 1, parents.split] = cut
        return halves

    def bound(self, nodes: Nodes) -> Bounded:
        shape = (-1, *self.network.input_shape)
        enclosure = enclose(self.network, *(nodes.state[name].reshape(shape) for name in ("lower", "upper")))
        on_output, on_input, constant = (part[nodes.region] for part in self.rows)
        found = fixed_rows(enclosure, "interval", on_output, on_input, constant).amax(1)
        return Bounded(replace(nodes, bound=found), found > 0, {})

    def points(self, open_: Bounded, seconds: float) -> Iterator[Tensor]:
        yield (open_.nodes.state["lower"] + open_.nodes.state["upper"]) / 2

    def choose(self, open_: Bounded) -> Nodes:
        width, axis = (open_.nodes.state["upper"] - open_.nodes.state["lower"]).max(1)
        return replace(open_.nodes, split=torch.where(width > 1e-6, axis, -1))

    def decide(self, leaf: Nodes) -> Leaf:
        return Leaf(False)


@dataclass(frozen=True)
class Cuts:
    """A stage that settles a question by such a tree."""

    engine: Engine
    name: str = "cuts"

    def run(self, open_: Sequence[Question]) -> Sequence[Settled | None]:
        return [self._settle(question) for question in open_]

    def _settle(self, question: Question) -> Settled | None:
        regions = question.open
        points = self.engine.try_points(regions)
        tree = Tree(RandomCuts(self.engine, regions), Queue(2**20), self.engine.clock, points)
        tree.grow()
        if tree.found is not None:
            return Settled(stage=self.name, end="violated", counterexample=tree.found)
        if tree.proved:
            question.learn(torch.full((len(regions),), torch.inf, dtype=torch.float64))
        return question.proved(self.name)


@pytest.mark.parametrize(("name", "end"), [("holds", "proved"), ("fails", "violated")])
def test_a_space_and_a_stage_of_ones_own(tmp_path: Path, name: str, end: str) -> None:
    write_tiny(tmp_path)
    model, prop = surebound.load(tmp_path / "tiny.onnx"), read_property(tmp_path / f"{name}.vnnlib")
    engine, question = Engine(model, Options(quick_attack=None), Clock(60.0)), Question(lambda: prop.regions)
    run([*screening(engine), Cuts(engine), *closing(engine)], [question])
    assert question.settled is not None
    assert (question.settled.stage, question.settled.end) == ("cuts", end)
    if end == "violated":
        assert question.settled.counterexample is not None
        x, y = question.settled.counterexample.x, question.settled.counterexample.y.astype(np.float64)
        assert any(region.holds(x, y) for region in prop.regions)

"""What a worker does: it searches below the nodes of a piece, and answers with what is left."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray

from surebound.bounds.device import plain_convolutions
from surebound.network.model import Model
from surebound.problem import Counterexample, Region, Vector
from surebound.verify.clock import Clock, OutOfTime
from surebound.verify.early_stop import Pace
from surebound.verify.engine import Engine
from surebound.verify.options import Options
from surebound.verify.pieces import Answer, Ground, Piece, Seen, Sharing, Step
from surebound.verify.queue import Queue
from surebound.verify.tree import Tree
from surebound.work import Call, Do, Pool, choose

_OFTEN = 0.2  # seconds between words about a piece


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """What all pieces of a search share."""

    ground: Ground
    model: Model  # whose replay stays where the file is
    regions: Sequence[Region]
    options: Options
    memory: int  # bytes for a queue

    def __call__(self) -> Do[Piece, Answer]:
        torch.set_num_threads(1)
        with plain_convolutions(self.options.device):
            return Searcher(self)


@final
class Searcher:
    """Does one piece after the other; what it learns about effort and pace it keeps for the next."""

    def __init__(self, setup: Setup) -> None:
        self._clock = Clock(None)
        self._ground, self._regions, self._memory = setup.ground.at(self._clock), setup.regions, setup.memory
        self._space = self._ground.space(self._clock)
        self._engine = Engine(setup.model, setup.options, self._clock, elsewhere=self._say)
        self._try_points = self._engine.try_points(self._regions)
        self._pace, self._seconds = Pace(), 0.0

    def __call__(self, piece: Piece, call: Call) -> Answer:
        self._call = call
        self._engine.generator.manual_seed((self._engine.options.seed + piece.number) % 2**63)
        self._clock.deadline = time.monotonic() + piece.remaining
        sink, queue = self._ground.sink(), Queue(self._memory)
        tree = Tree(self._space, queue, self._clock, self._try_points, sink)
        tree.pace, tree.seconds = self._pace, self._seconds
        tree.resume(piece.nodes)
        call.say(Step(0, len(piece.nodes)))
        try:
            with plain_convolutions(self._engine.options.device):
                tree.grow(_Until(piece, call, tree.seconds + piece.seconds))
            late = False
        except OutOfTime:
            late = True
        try:
            open_ = queue.pop(len(queue))
        finally:
            queue.close()
        self._pace, self._seconds = tree.pace, tree.seconds
        return Answer(
            number=piece.number,
            open=open_,
            subproblems=tree.subproblems,
            split=tree.split,
            closed=tree.closed,
            undecided=tree.undecided,
            numbers=tree.numbers,
            pace=tree.pace,
            late=late,
            branches=None if sink is None else sink.forest.branches(),
        )

    def _say(self, point: Vector, regions: Sequence[Region]) -> Counterexample | None:
        """Tell of a point instead of replaying it: the search goes on, and is ended from outside if the point holds."""
        for region in regions:
            where = next(i for i, mine in enumerate(self._regions) if mine is region)
            self._call.say(Seen(point, where))
        return None


class _Until:
    """Ends a piece after its time, or when it has grown large, or when others are idle."""

    def __init__(self, piece: Piece, call: Call, end: float) -> None:
        self._piece, self._call, self._end, self._next = piece, call, end, time.monotonic() + _OFTEN

    def __call__(self, tree: Tree) -> str | None:
        if tree.seconds >= self._end or tree.subproblems >= self._piece.subproblems or self._call.stopping():
            return "enough"
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _OFTEN
            self._call.say(Step(tree.subproblems, len(tree.queue)))
        return None


def sharing(engine: Engine, regions: Sequence[Region]) -> Sharing | None:
    """The workers that may take part in a search for counterexamples to some regions, if the options allow any."""
    options, threads = engine.options, torch.get_num_threads()
    auto = threads if options.workers == "auto" else 0
    count = options.workers if isinstance(options.workers, int) else auto
    if options.cluster is None and count < 2:
        return None
    workers = choose(workers=count or None, cluster=options.cluster, resources=options.resources)
    model = Model(engine.network, _not_here, engine.model.source)
    memory = engine.limits.memory // (count + 1)

    def open_(ground: Ground) -> Pool[Piece, Answer]:
        return workers.open(Setup(ground=ground, model=model, regions=regions, options=options, memory=memory))

    return Sharing(
        open=open_,
        confirm=lambda seen: engine.confirm(seen.point, [regions[seen.region]]),
        names="a cluster" if options.cluster else f"{count} workers",
        count=count,
        compare=auto,
    )


def _not_here(x: NDArray[np.float32]) -> NDArray[np.floating[Any]]:
    raise NotImplementedError("workers replay nothing")

"""A certification on any number of workers, replayed from measured times: part of scale.py.

Workers share nothing but the process that hands out work, as in `surebound certify`: it screens images in batches, and
what they leave open goes out one by one. That process takes all answers that have come since it last looked and writes
their rows, in one transaction, before it hands out anything else; a worker waits until then. Nodes may be lost with all
their workers: what these were at is done again, and others take the node's place a while later.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

BATCH = 50  # images screened together, at most: as in surebound.evaluate


@dataclass(frozen=True)
class Image:
    """What an image takes: its share of a batch's screening, and a search if that leaves it open."""

    screening: float
    margin: float = 0.0  # the least bound after screening
    search: float | None = None


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What everything but the images takes, in seconds."""

    start: float = 0.0  # of a worker: imports, and the network
    batch: float = 0.0  # of a batch, beyond its images
    together: int = BATCH  # images of a batch, at most: fewer of a network whose images take long
    answer: float = 0.0  # for the process that hands out work, to take what has come
    row: float = 0.0  # for it to write a row that comes with others


@dataclass(frozen=True, kw_only=True)
class Losses:
    """Some nodes are lost, each at a random moment before `until`, and replaced."""

    share: float  # of the nodes
    until: float
    workers: int = 8  # of a node
    away: float = 60.0  # seconds until another has taken its place and is ready
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Replay:
    """How it went."""

    workers: int
    makespan: float
    lost: int  # pieces of work that were done again
    driver: float  # seconds that the process that hands out work was busy
    alone: float  # seconds at the end in which a single worker was busy

    def efficiency(self, one: "Replay") -> float:
        """What it takes with one worker over what is paid for here."""
        return one.makespan / (self.workers * self.makespan)


@dataclass
class _Worker:
    life: int = 0  # how often it was lost
    work: "_Work | None" = None


@dataclass(frozen=True, eq=False)
class _Work:
    images: tuple[Image, ...]
    seconds: float
    search: bool


@dataclass
class _State:
    ready: list[tuple[tuple[float, ...], int, _Work]] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)
    left: int = 0  # pieces of work that are not done
    come: list[tuple[int, int, _Work]] = field(default_factory=list)  # answers: worker, its life, and to what
    taken: list[tuple[int, int, _Work]] = field(default_factory=list)  # those that the driver is at
    clock: float = 0.0  # when it was last done
    driver: float = 0.0
    lost: int = 0


def replay(
    images: Sequence[Image], workers: int, costs: Costs, *, hardest_first: bool = True, losses: Losses | None = None
) -> Replay:
    """Certify images on so many workers. Without `hardest_first`, open images go before batches, as they come."""
    state, numbers, events = _State(), count(), _Events()
    crew = [_Worker() for _ in range(workers)]

    def put(work: _Work) -> None:
        hard = (1.0, work.images[0].margin) if hardest_first else (-1.0,)
        heapq.heappush(state.ready, (hard if work.search else (0.0,), next(numbers), work))

    def hand_out(now: float) -> None:
        while state.ready and state.idle:
            k = heapq.heappop(state.idle)
            work = heapq.heappop(state.ready)[2]
            crew[k].work = work
            events.add(now + work.seconds, "end", k, crew[k].life)

    def take(now: float) -> None:
        """The driver takes what has come, unless it is busy."""
        if state.come and not state.taken:
            state.taken, state.come = state.come, []
            spent = costs.answer + costs.row * sum(len(work.images) - len(_open(work)) for _, _, work in state.taken)
            state.driver += spent
            events.add(now + spent, "taken", 0, 0)

    size = max(1, min(costs.together, -(-len(images) // workers)))
    for i in range(0, len(images), size):
        some = tuple(images[i : i + size])
        put(_Work(some, costs.batch + sum(image.screening for image in some), search=False))
    state.left = len(state.ready)
    for k in range(workers):
        events.add(costs.start, "come", k, 0)
    if losses is not None:
        _plan(events, workers, losses)
    last_two: list[float] = [0.0, 0.0]  # when the last two pieces of work ended
    while state.left:
        now, kind, k, life = events.next()
        worker = crew[k]
        if kind == "lose":
            worker.life += 1
            if worker.work is not None:
                put(worker.work)
                state.lost += 1
            worker.work = None
            state.idle = sorted(i for i in state.idle if i != k)
        elif kind == "taken":
            state.clock = now
            for back, its_life, work in state.taken:
                for image in _open(work):
                    put(_Work((image,), image.search or 0.0, search=True))
                state.left += len(_open(work)) - 1
                if its_life == crew[back].life:
                    heapq.heappush(state.idle, back)
            state.taken = []
            hand_out(now)
            take(now)
        elif life == worker.life and kind == "come":
            heapq.heappush(state.idle, k)
        elif life == worker.life and kind == "end":
            assert worker.work is not None
            last_two = [last_two[1], now]
            state.come.append((k, worker.life, worker.work))
            worker.work = None
            take(now)
        if not state.taken:  # else it is busy
            hand_out(now)
    return Replay(
        workers=workers,
        makespan=state.clock,
        lost=state.lost,
        driver=state.driver,
        alone=last_two[1] - last_two[0],
    )


def _open(work: _Work) -> list[Image]:
    """The images that a piece of work leaves open."""
    return [] if work.search else [image for image in work.images if image.search is not None]


class _Events:
    """What happens when, in order."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, str, int, int]] = []
        self._numbers = count()

    def add(self, when: float, kind: str, worker: int, life: int) -> None:
        heapq.heappush(self._queue, (when, next(self._numbers), kind, worker, life))

    def next(self) -> tuple[float, str, int, int]:
        when, _, kind, worker, life = heapq.heappop(self._queue)
        return when, kind, worker, life


def _plan(events: _Events, workers: int, losses: Losses) -> None:
    """Choose the nodes that are lost, and when; each at most once, and never all of them."""
    rng = random.Random(losses.seed)
    nodes = [range(i, min(i + losses.workers, workers)) for i in range(0, workers, losses.workers)]
    for node in rng.sample(nodes, min(round(losses.share * len(nodes)), len(nodes) - 1)):
        when = rng.uniform(0.0, losses.until)
        for k in node:
            events.add(when, "lose", k, 0)
            events.add(when + losses.away, "come", k, 1)

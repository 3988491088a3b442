"""What searches are over, as it travels to whoever takes part: all that a space is made of, and where it stands."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from surebound.network.graph import Network
from surebound.problem import Region
from surebound.verify.bounder import RegionPlanes
from surebound.verify.clock import Clock
from surebound.verify.iterations import Iteration
from surebound.verify.record import InputSink, NeuronSink
from surebound.verify.spaces.inputs import InputSpace
from surebound.verify.spaces.neurons import NeuronSpace
from surebound.verify.strategy import Strategy
from surebound.verify.subject import Subject


@dataclass(frozen=True, kw_only=True, eq=False)
class NeuronGround:
    """The regions of a subject, by neurons."""

    subject: Subject
    rule: str
    strategy: Strategy
    memory: int
    seed: int
    numbers: NDArray[np.int64] | None  # of the subject's neurons in the whole network, if there is to be a proof
    iteration: Iteration | None = None  # how many a node gets by now
    planes: RegionPlanes | None = None  # that were found, after which no more are

    def at(self, clock: Clock) -> "NeuronGround":
        return replace(self, subject=replace(self.subject, check=clock.check))

    def space(self, clock: Clock) -> NeuronSpace:
        sink = self.sink()
        least = None if sink is None else sink.least
        space = NeuronSpace(
            self.subject,
            self.rule,
            self.strategy,
            clock,
            memory=self.memory,
            seed=self.seed,
            least=least,
            planes=self.planes,
        )
        space.iteration = self.iteration or space.iteration
        return space

    def sink(self, *, merging: bool = True) -> NeuronSink | None:
        share = self.strategy.merging if merging else 0.0
        return None if self.numbers is None else NeuronSink(self.numbers, self.subject, share=share)


@dataclass(frozen=True, kw_only=True, eq=False)
class InputGround:
    """Regions, by parts of their boxes."""

    network: Network  # float64
    regions: Sequence[Region]
    strategy: Strategy
    recorded: bool

    def at(self, clock: Clock) -> "InputGround":
        return self

    def space(self, clock: Clock) -> InputSpace:
        return InputSpace(self.network, self.regions, self.strategy, clock, recorded=self.recorded)

    def sink(self) -> InputSink | None:
        return InputSink(len(self.regions), self.network.neurons) if self.recorded else None

"""What the stages of a verification share: the network, the options, the time, and looking for counterexamples."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from surebound.attacks.mi_fgsm import MIFGSM
from surebound.attacks.objective import Objective
from surebound.attacks.pgd import PGD
from surebound.bounds.around import enclosure_over
from surebound.bounds.enclosure import Enclosure
from surebound.errors import UsageError
from surebound.memory import available
from surebound.network.arrays import to_numpy
from surebound.network.graph import Network
from surebound.network.model import Model
from surebound.problem import Counterexample, Domain, Region
from surebound.verify.clock import Budget, Clock
from surebound.verify.confirm import Confirm, Confirming
from surebound.verify.look import Look, TryPoints
from surebound.verify.options import Options
from surebound.verify.search import Limits

CURVED = ("auto", "upb", "input")  # what networks with other activations than ReLUs can be split by


@dataclass(frozen=True, eq=False)
class Engine:
    """One verification."""

    model: Model
    options: Options
    clock: Clock
    elsewhere: Confirming | None = None  # replays points in place of this process

    def __post_init__(self) -> None:
        if self.network.piecewise_linear:
            return
        if self.options.proof:
            raise UsageError(
                "there are no proofs for networks with other activations than ReLU and its piecewise-linear kin; "
                "expected such a network, or a verification without a proof"
            )
        if self.options.branching not in CURVED:
            raise UsageError(
                f"the branching '{self.options.branching}' covers ReLU and its piecewise-linear kin only; "
                f"expected one of: {', '.join(CURVED)}"
            )

    @property
    def network(self) -> Network:
        return self.model.network

    @cached_property
    def fast_network(self) -> Network:
        return self.network.to(torch.float32)

    @cached_property
    def confirm(self) -> Confirming:
        return self.elsewhere or Confirm(self.network, self.model.replay)

    @cached_property
    def generator(self) -> torch.Generator:
        return torch.Generator("cpu").manual_seed(self.options.seed)

    @property
    def limits(self) -> Limits:
        memory = self.options.memory or available() // 4
        return Limits(memory=memory, early_stop=self.options.early_stop, seed=self.options.seed)

    def enclosure(self, domain: Domain) -> Enclosure:
        return enclosure_over(self.network, [domain])

    def attack(
        self, attack: PGD | MIFGSM, regions: Sequence[Region], start: Tensor | None = None
    ) -> Counterexample | None:
        """A counterexample to any of the regions."""
        strategy = self.options.strategy
        with self.clock.phase("attack"):
            objective = Objective(self.fast_network, regions, thin="nearest")
            least, most = strategy.first_attack_seconds
            seconds = min(max(strategy.first_attack * self.clock.remaining, least), most)
            deadline = min(self.clock.deadline, time.monotonic() + seconds)
            result = attack.run(objective, generator=self.generator, start=start, deadline=deadline)
            for i in torch.nonzero(result.found).flatten().tolist():
                found = self.confirm(to_numpy(result.points[i].double()), [regions[i]])
                if found is not None:
                    return found
        return None

    def try_points(self, regions: Sequence[Region]) -> TryPoints:
        """Looks at points for counterexamples, and attacks from new ones for a share of the time that passes."""
        strategy, clock = self.options.strategy, self.clock
        begin, attacks = clock.elapsed + strategy.later_attacks_after, Budget(strategy.later_attacks)
        look = Look(self.fast_network, regions, self.confirm, clock.check)

        def try_points(points: Tensor) -> Counterexample | None:
            found = look(points)
            if found is not None or not attacks.allows(clock.elapsed - begin):
                return found
            with attacks.spent():
                attack = self.options.search_attack
                start = look.inside(points[: attack.restarts]) if strategy.from_minimisers else None
                return self.attack(attack, regions, start)

        return try_points

"""Attacks: fast searches for counterexamples, before and during branch and bound.

An attack minimises an `Objective` (`surebound.attacks.objective`) over the boxes of a property's regions and returns an
`AttackResult`. It proves nothing: what it finds is a candidate until it has been replayed on the original network.

    attack = ATTACKS["pgd"](restarts=10)
    result = attack.run(Objective(network, property.regions), generator=torch.Generator().manual_seed(0))

Adding one is a new file with a frozen dataclass that has `run` (see `surebound.attacks.descent.Attack`), and one line
here.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from surebound.registry import Registry

if TYPE_CHECKING:
    from surebound.attacks.descent import Attack

ATTACKS: "Registry[Callable[..., Attack]]" = Registry(
    "attack",
    {
        "pgd": "surebound.attacks.pgd:PGD",
        "mi-fgsm": "surebound.attacks.mi_fgsm:MIFGSM",
    },
)
"""Name → the attack's configuration, which runs it."""

"""Branching rules: which neuron of a subproblem to split. One file each, listed here by name.

A rule is a class with `choose(context) -> (nodes,) int64`: for each node the relaxed neuron to split next.
"""

from typing import TYPE_CHECKING

from surebound.registry import Registry

if TYPE_CHECKING:
    from surebound.branching.rule import Rule

RULES: "Registry[type[Rule]]" = Registry(
    "branching rule",
    {
        "upb": "surebound.branching.upb:UPB",
        "fsb": "surebound.branching.fsb:FSB",
        "sr": "surebound.branching.sr:SR",
    },
)

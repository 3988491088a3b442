"""Branching rules: which neuron of a subproblem to split. One file each, listed here by name.

A rule is a class made from a `Context` with `choose(batch) -> (nodes,) int64`: for each node the neuron to split next.
`CHOICES` are what users may ask for: a rule, bisecting the input box, or to leave it to the verifier.
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
        "mixture": "surebound.branching.mixture:Mixture",
    },
)

CHOICES = ("auto", *RULES, "input")

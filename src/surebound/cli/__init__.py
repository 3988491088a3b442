"""The command line: one thin file per command; the only place that prints or exits."""

from typing import TYPE_CHECKING

from surebound.registry import Registry

if TYPE_CHECKING:
    from surebound.cli.command import Command

COMMANDS: "Registry[Command]" = Registry(
    "command",
    {
        "verify": "surebound.cli.verify:COMMAND",
        "check": "surebound.cli.check:COMMAND",
        "inspect": "surebound.cli.inspect:COMMAND",
        "train": "surebound.cli.train:COMMAND",
        "attack": "surebound.cli.attack:COMMAND",
        "certify": "surebound.cli.certify:COMMAND",
        "reproduce": "surebound.cli.reproduce:COMMAND",
        "report": "surebound.cli.report:COMMAND",
        "demo": "surebound.cli.demo:COMMAND",
    },
)

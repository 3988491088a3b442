"""What a command is."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A subcommand: how it describes itself, what it takes, what it does."""

    summary: str
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace], int]

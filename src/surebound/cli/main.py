"""The entry point `surebound`: finds the command, and turns errors into one sentence and an exit code."""

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import NoReturn

from surebound import __version__
from surebound.cli import COMMANDS
from surebound.errors import SureboundError

# Threads that spin while they wait make everything many times slower as soon as the machine has other work to do.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

USAGE_ERROR = 2
INTERRUPTED = 130


class _Parser(ArgumentParser):
    """Errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {message} (try '{self.prog} --help')\n")


def build_parser() -> ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="surebound",
        description="Prove properties of neural networks, or find counterexamples.",
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"surebound {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name in COMMANDS:
        command = COMMANDS[name]
        sub = subparsers.add_parser(name, help=command.summary, description=command.summary)
        command.configure(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code."""
    args = build_parser().parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except SureboundError as error:
        print(f"surebound: {' '.join(str(error).split())}", file=sys.stderr)
        return USAGE_ERROR
    except ArgumentTypeError as error:
        print(f"surebound: {error}", file=sys.stderr)
        return USAGE_ERROR
    except BrokenPipeError:
        return USAGE_ERROR
    except KeyboardInterrupt:
        print("surebound: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())

"""The command `surebound`: finds the subcommand, and turns errors into one sentence and an exit code."""

import errno
import io
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from surebound import interrupts
from surebound.cli import COMMANDS
from surebound.cli.display import USAGE_ERROR, complain
from surebound.errors import SureboundError, visible
from surebound.version import __version__

# Threads that spin while they wait make everything many times slower as soon as the machine has other work to do.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_READER = 141  # what a shell reports for a program that SIGPIPE ended


class _Parser(ArgumentParser):
    """Errors are one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_ERROR, f"{self.prog}: {visible(message)} (see '{self.prog} --help')\n")


def build_parser(*commands: str) -> ArgumentParser:
    """The command line of some commands, or of all: those that are not asked for need not be imported."""
    # Options are never abbreviated: a script that does would break with the next option.
    description = "Train image classifiers whose robustness can be proved, and prove it, or find counterexamples."
    parser = _Parser(prog="surebound", description=description, allow_abbrev=False)
    parser.set_defaults(began=None)
    parser.add_argument("--version", action="version", version=f"surebound {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)
    for name in commands or COMMANDS:
        command = COMMANDS[name]
        sub = subparsers.add_parser(name, help=command.summary, description=command.summary, allow_abbrev=False)
        command.configure(sub)
        sub.set_defaults(run=command.run, refuse=sub.error)
    return parser


def main(argv: Sequence[str] | None = None, *, began: float | None = None) -> int:
    """Run a command; its exit code. `began` is when its time began, by default now."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names from files may hold anything
    try:
        try:
            words = sys.argv[1:] if argv is None else argv
            asked = [word for word in words[:1] if word in tuple(COMMANDS)]
            args, unknown = build_parser(*asked).parse_known_args(words, Namespace(began=began))
            if unknown:
                args.refuse(f"unrecognized arguments: {' '.join(unknown)}")
            code: int = args.run(args)
        finally:  # also after --help
            if sys.stdout is not None:
                sys.stdout.flush()
        return code
    except SureboundError as error:
        return complain(str(error))
    except MemoryError:
        return complain("there is not enough memory for this network")
    except BrokenPipeError:
        # Nobody reads the output any more, and the interpreter must not complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except OSError as error:
        reason = f"{error.strerror or error}"
        if error.filename:
            return complain(f"{reason}: '{error.filename}'")
        return complain(f"cannot write to standard output ({reason})" if error.errno in _FULL else reason)
    except KeyboardInterrupt:
        complain("interrupted")
        return interrupts.code()


def run(began: float) -> NoReturn:
    """Run a command and leave the process at once: tearing torch down takes longer than many a verification.

    It also makes sure of the code 130, which Python replaces if an interrupt passed through an exec() in some import.
    """
    code = main(began=began)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):  # `main` has said so where results did not come through
                stream.flush()
    os._exit(code)

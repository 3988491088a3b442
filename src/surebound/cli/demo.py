"""`surebound demo`: the whole way on the bundled digits, from training to a page that shows what was proved."""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path

from surebound.cli.arguments import thread_count
from surebound.cli.certify import STORE
from surebound.cli.command import Command
from surebound.errors import UsageError

PRESET, EPS = "digits-ibp-r-cpu", "0.05"


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", default="surebound-demo", metavar="DIR", help="the folder to write (default surebound-demo)"
    )
    parser.add_argument("--threads", type=thread_count, metavar="N", help="processor threads (default: all)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _run(args: Namespace) -> int:
    if not args.out or Path(args.out).is_file():
        raise UsageError(f"cannot write the demo to '{args.out}'; expected the name of a folder")
    shared = (["--threads", str(args.threads)] if args.threads else []) + (["--quiet"] if args.quiet else [])
    images = ["--dataset", "digits", "--eps", EPS, "--branching", "upb", "--timeout", "20"]
    for command in (
        ["train", "--preset", PRESET, "--out", args.out, "--resume", *shared],
        ["certify", args.out, *images, "--resume", *shared],
        ["report", args.out],
    ):
        code = _step(command)
        if code:
            return code
    _summary(Path(args.out))
    return 0


def _step(command: list[str]) -> int:
    """Run a command as if it had been typed."""
    from surebound.cli.main import build_parser

    print(f"$ surebound {shlex.join(command)}", flush=True)
    args = build_parser().parse_args(command)
    code: int = args.run(args)
    print(flush=True)
    return code


def _summary(folder: Path) -> None:
    from surebound.evaluate.store import Accuracies, Store

    with Store(folder / STORE, readonly=True) as store:
        found = Accuracies.of(store.outcomes(max(store.runs())).values())
    print(
        f"standard {found.standard:.1%}, robust {found.robust:.1%}, verified {found.verified:.1%} "
        f"({found.images} test images of digits, eps {EPS})"
    )
    print(f"report {folder / 'report.html'}", flush=True)


COMMAND = Command(
    "train on bundled digits, certify the test images and show the results, in about a minute", _configure, _run
)

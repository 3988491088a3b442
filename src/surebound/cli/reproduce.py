"""`surebound reproduce table1|branching --scale smoke|cpu|day|paper --out DIR [--resume]`: the paper's experiments."""

import shlex
import sys
import time
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from surebound import interrupts
from surebound.cli.arguments import count
from surebound.cli.command import Command
from surebound.cli.display import StatusLine, duration
from surebound.cli.engine import add_engine, check_engine
from surebound.errors import UsageError, visible
from surebound.reproduce.scales import METHODS, NETWORKS, SCALES, SETTINGS
from surebound.verify import SEARCHES

if TYPE_CHECKING:
    from surebound.reproduce.experiment import Request, Summary
    from surebound.reproduce.jobs import JobEnded, Status

EXPERIMENTS = ("table1", "branching")
_FAILED = 2
_LINES = 60.0  # seconds between two plain lines while nothing ends: a log of hours should stay readable


def _some(names: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    """Reads some of the names, with commas between."""

    def read(text: str) -> tuple[str, ...]:
        wanted = text.split(",")
        if unknown := [name for name in wanted if name not in names]:
            raise ArgumentTypeError(f"unknown '{unknown[0]}'; expected some of: {', '.join(names)}")
        return tuple(name for name in names if name in wanted)

    return read


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument(
        "experiment", choices=EXPERIMENTS, help="table1: training methods compared; branching: branching rules compared"
    )
    parser.add_argument(
        "--scale",
        choices=tuple(SCALES),
        required=True,
        help="smoke: a minute, only to see it run; cpu: an hour on two cores, a smaller network and schedule; "
        "day: the paper's networks in a twentieth of its epochs, days on two cores; "
        "paper: everything as published, for a GPU and weeks",
    )
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder for trainings, results and tables")
    parser.add_argument("--resume", action="store_true", help="go on with what the folder has")
    add_engine(parser, "processes with one thread each (default: one for each core; 1 where branching rules are timed)")
    parser.add_argument(
        "--settings",
        type=_some(tuple(SETTINGS)),
        default=tuple(SETTINGS),
        metavar="A,B",
        help=f"only these radii (default: {','.join(SETTINGS)})",
    )
    parser.add_argument(
        "--methods",
        type=_some(METHODS),
        default=METHODS,
        metavar="A,B",
        help=f"only these methods (default: {','.join(METHODS)})",
    )
    parser.add_argument(
        "--search",
        choices=SEARCHES,
        help="the verifier's profile: the paper's search, or surebound's own "
        "(default: own for table1, a table of each for branching)",
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="to train on, such as cuda (default cpu)")
    parser.add_argument(
        "--steps",
        type=count,
        metavar="N",
        help="with table1: only try each training for N steps, and say how long it would take",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where data sets are (default: $SUREBOUND_DATA)")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _run(args: Namespace) -> int:
    if args.steps is not None and args.experiment != "table1":
        raise UsageError(f"--steps tries trainings out; expected table1, got {args.experiment}")
    if args.experiment == "branching" and not _networks(args):
        names = ", ".join(f"{method} at {setting}" for setting, method in NETWORKS)
        raise UsageError(f"branching is compared on {names}; --settings and --methods leave none of them")
    check_engine(args)
    line = _Line(quiet=args.quiet)
    request, perform = _request(args), _experiment(args)
    try:
        with interrupts.raising():
            summary = perform(request, line)
    except KeyboardInterrupt:
        line.done()
        _say(f"surebound: interrupted; --resume goes on with what is in '{args.out}'")
        return interrupts.code()
    finally:
        line.done()
    print(summary.markdown)
    for file in summary.files:
        print(f"wrote {visible(str(file))}")
    for sentence in summary.failures:
        _say(f"surebound: {sentence}")
    if summary.failures:
        _say(f"surebound: {len(summary.failures)} of the jobs failed; --resume tries them again")
    return _FAILED if summary.failures else 0


def _networks(args: Namespace) -> bool:
    return any(setting in args.settings and method in args.methods for setting, method in NETWORKS)


def _request(args: Namespace) -> "Request":
    from surebound.reproduce.experiment import Request
    from surebound.reproduce.place import Place

    place = Place(
        out=args.out,
        scale_name=args.scale,
        data_dir=args.data_dir,
        device=args.device,
        command=shlex.join(["surebound", *sys.argv[1:]]),
    )
    return Request(
        place=place,
        resume=args.resume,
        workers=args.workers,
        cluster=args.cluster,
        resources=args.resources,
        settings=args.settings,
        methods=args.methods,
        steps=args.steps,
        search=args.search,
    )


def _experiment(args: Namespace) -> Callable[["Request", "_Line"], "Summary"]:
    """The function that runs the experiment. All that it needs is imported here."""
    import torch  # noqa: F401

    if args.steps is not None:
        from surebound.reproduce.trial import try_trainings

        return try_trainings
    if args.experiment == "table1":
        from surebound.reproduce.table1 import reproduce_table1

        return reproduce_table1
    from surebound.reproduce.branching import reproduce_branching

    return reproduce_branching


class _Line:
    """Shows how far the work is, and a line for each job that ended."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._line = StatusLine(quiet=quiet)
        self._plain = sys.stderr is None or not sys.stderr.isatty()
        self._said = time.monotonic()
        self.done = self._line.done

    def __call__(self, status: "Status") -> None:
        left = "" if status.remaining is None else f"; about {duration(status.remaining)} left"
        place = f"{status.done} of {status.total}"
        if status.ended is not None and not self._quiet:
            self._line.done()
            _say(f"{place}: {_outcome(status.ended)}{left}")
            self._said = time.monotonic()
        if self._plain and time.monotonic() - self._said < _LINES:
            return
        self._said = time.monotonic()
        self._line.show(status.done / max(status.total, 1), "; ".join((place, *status.running)) + left)


def _outcome(ended: "JobEnded") -> str:
    """One line on a job."""
    found = ended.result
    if found is None:
        return f"{ended.job} failed: {ended.reason}"
    match ended.job.kind:
        case "train":
            text = f"standard {found['standard']:.1%}, under PGD {found['pgd']:.1%} in {duration(found['seconds'])}"
        case "try":
            text = f"{found['steps']} steps, {found['pace']:.3g} s each"
        case "certify":
            text = (
                f"standard {found['standard']:.1%}, robust {found['robust']:.1%}, verified {found['verified']:.1%} "
                f"of {found['images']:,} images in {duration(ended.seconds)}"
            )
        case "branch":
            text = ", ".join(f"{rule} {outcome} in {seconds:.2f} s" for rule, (outcome, seconds) in found.items())
    return f"{ended.job}: {text}"


def _say(text: str) -> None:
    if sys.stderr is not None:
        print(text, file=sys.stderr, flush=True)


COMMAND = Command("repeat the paper's experiments, at a size that fits the machine", _configure, _run)

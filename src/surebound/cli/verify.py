"""`surebound verify NET.onnx PROPERTY.vnnlib`: the verdict alone on the first line of stdout, exit code 0."""

import json
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from surebound import interrupts
from surebound.branching import CHOICES
from surebound.cli.arguments import (
    check_network,
    check_property,
    memory_size,
    output_files,
    positive_seconds,
    seed,
    set_threads,
    thread_count,
    write_whole,
)
from surebound.cli.command import Command
from surebound.cli.display import ProgressLine
from surebound.cli.quick_torch import quick_import
from surebound.errors import UsageError
from surebound.memory import keep_memory
from surebound.problem import Counterexample, Verdict
from surebound.verify.clock import Clock


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("net", metavar="NET.onnx", help="the network, an ONNX file (may be gzipped)")
    parser.add_argument("property", metavar="PROPERTY.vnnlib", help="VNN-LIB 1.0 or 2.0 (may be gzipped)")
    parser.add_argument("--timeout", type=positive_seconds, metavar="S", help="seconds in all, loading included")
    parser.add_argument(
        "--branching",
        choices=CHOICES,
        default="auto",
        help="which neuron to split (upb, fsb, sr, or mixture of upb and sr), or input: bisect the input box; "
        "auto: input where few inputs vary, else mixture (default)",
    )
    parser.add_argument("--counterexample", metavar="FILE", help="write the result in VNN-COMP's text form")
    parser.add_argument("--json", metavar="FILE", help="write verdict, times, subproblems and bound as JSON")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="for the attacks (default 0)")
    parser.add_argument(
        "--threads", type=thread_count, metavar="N", help="processor threads (default: OMP_NUM_THREADS, or all)"
    )
    parser.add_argument(
        "--memory", type=memory_size, metavar="SIZE", help="for the search's queue, such as 2G; beyond it, disk is used"
    )
    parser.add_argument("--early-stop", action="store_true", help="give up when the timeout is expected to be missed")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the verdict")


def _run(args: Namespace) -> int:
    net, problem = check_network(args.net), check_property(args.property)
    files = output_files(keep=(net, problem), counterexample=args.counterexample, json=args.json)
    progress = ProgressLine(quiet=args.quiet, timeout=args.timeout)
    clock = Clock(args.timeout, progress)

    def interrupted() -> None:
        progress.done()
        try:
            _finish(args, files, _so_far(progress, clock, args.seed))
        except UsageError as error:
            print(f"surebound: {error}", file=sys.stderr)

    with interrupts.held():
        with interrupts.leaving(interrupted):
            try:
                verdict = _verify(args, clock)
            except KeyboardInterrupt:  # in a program that calls `main` itself
                interrupted()
                return interrupts.code()
            finally:
                progress.done()
        _finish(args, files, verdict)
    return 0


def _finish(args: Namespace, files: dict[str, Path], verdict: Verdict) -> None:
    """Write and print the verdict."""
    texts = {"counterexample": vnncomp_text(verdict), "json": json_text(verdict)}
    failed = _write({path: texts[option] for option, path in files.items()})
    print(verdict.status, flush=True)
    if failed is not None:  # the verdict is out; now the exit code says that a file is missing
        raise failed
    if not args.quiet and sys.stderr is not None:
        print(_summary(verdict), file=sys.stderr)


def _write(texts: dict[Path, str]) -> UsageError | None:
    """Write what can be written; the first failure."""
    failed = None
    for path, text in texts.items():
        try:
            write_whole(path, text)
        except UsageError as error:
            failed = failed or error
    return failed


def _verify(args: Namespace, clock: Clock) -> Verdict:
    with clock.phase("load"):
        from surebound.load.vnnlib import read_property

        problem = read_property(args.property)  # before the slow imports, so that mistakes in it show at once
        keep_memory()
        with clock.phase("import"):
            quick_import()
        set_threads(args.threads)
        from surebound.load.onnx import load_model
        from surebound.verify.pipeline import Options, verify

        model = load_model(args.net)
    options = Options(
        timeout=args.timeout,
        branching=args.branching,
        seed=args.seed,
        memory=args.memory,
        early_stop=args.early_stop,
    )
    return verify(model, problem, options, clock=clock)


def _so_far(progress: ProgressLine, clock: Clock, seed: int) -> Verdict:
    """What is known when the user interrupts."""
    last = progress.counted
    subproblems, lowest = (0, None) if last is None else (last.subproblems, last.lowest)
    return Verdict(
        status="unknown",
        reason="interrupted",
        seconds=clock.elapsed,
        seconds_by_phase=clock.phases,
        subproblems=subproblems,
        lower_bound=lowest,
        seed=seed,
    )


def vnncomp_text(verdict: Verdict) -> str:
    """The verdict and, after `sat`, ((X_0 v) … (Y_0 v))."""
    found = verdict.counterexample
    return f"{verdict.status}\n" if found is None else f"sat\n{_assignment(found)}\n"


def _assignment(found: Counterexample) -> str:
    pairs = [f"(X_{i} {float(v)!r})" for i, v in enumerate(found.x)]
    pairs += [f"(Y_{i} {float(v)!r})" for i, v in enumerate(found.y)]
    return "(" + "\n".join(pairs) + ")"


def json_text(verdict: Verdict) -> str:
    """The contract's JSON."""
    from surebound.version import __version__

    bound = verdict.lower_bound
    record = {
        "verdict": verdict.status,
        "seconds": round(verdict.seconds, 6),
        "seconds_by_phase": verdict.seconds_by_phase,
        "subproblems": verdict.subproblems,
        "lower_bound": bound if bound is not None and abs(bound) < float("inf") else None,
        "branching": verdict.branching,
        "seed": verdict.seed,
        "version": __version__,
        "reason": verdict.reason,
    }
    return json.dumps(record, indent=2, allow_nan=False) + "\n"


def _summary(verdict: Verdict) -> str:
    text = f"{verdict.seconds:.2f} s, {verdict.subproblems:,} subproblems"
    if verdict.branching:
        text += f", branching {verdict.branching}"
    if verdict.lower_bound is not None and verdict.status != "sat":
        text += f", lower bound {verdict.lower_bound:.6g}"
    return text + (f" ({verdict.reason})" if verdict.reason else "")


COMMAND = Command(
    "decide a property of a network: unsat (proved), sat (counterexample), unknown or timeout", _configure, _run
)

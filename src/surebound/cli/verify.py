"""`surebound verify NET.onnx PROPERTY.vnnlib`: the verdict alone on the first line of stdout, exit code 0."""

import json
import sys
import time
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path

from surebound.branching import CHOICES
from surebound.cli.arguments import (
    add_search,
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
from surebound.cli.command import INTERRUPTED, Command
from surebound.cli.display import ProgressLine
from surebound.cli.quick_torch import quick_import
from surebound.errors import UsageError
from surebound.memory import keep_memory
from surebound.problem import Counterexample, Verdict


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("net", metavar="NET.onnx", help="the network, an ONNX file (may be gzipped)")
    parser.add_argument("property", metavar="PROPERTY.vnnlib", help="VNN-LIB 1.0 or 2.0 (may be gzipped)")
    parser.add_argument("--timeout", type=positive_seconds, metavar="S", help="seconds in all, loading included")
    parser.add_argument(
        "--branching",
        choices=CHOICES,
        default="auto",
        help="which neuron to split (upb, fsb, sr, or mixture of upb and sr), or input: bisect the input box; "
        "auto: input where few inputs vary, else mixture; the search around it is --search's (default)",
    )
    add_search(parser)
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
    begin = time.monotonic()
    net, problem = check_network(args.net), check_property(args.property)
    files = output_files(keep=(net, problem), counterexample=args.counterexample, json=args.json)
    progress = ProgressLine(quiet=args.quiet, timeout=args.timeout)
    interrupted = False
    try:
        verdict = _verify(args, begin, progress)
    except KeyboardInterrupt:
        interrupted = True
        verdict = _so_far(progress, time.monotonic() - begin, args.seed)
    finally:
        progress.done()
    texts = {"counterexample": vnncomp_text(verdict), "json": json_text(verdict)}
    failed = _write({path: texts[option] for option, path in files.items()})
    print(verdict.status, flush=True)
    if failed is not None:  # the verdict is out; now the exit code says that a file is missing
        raise failed
    if not args.quiet and sys.stderr is not None:
        print(_summary(verdict), file=sys.stderr)
    return INTERRUPTED if interrupted else 0


def _write(texts: dict[Path, str]) -> UsageError | None:
    """Write what can be written; the first failure."""
    failed = None
    for path, text in texts.items():
        try:
            write_whole(path, text)
        except UsageError as error:
            failed = failed or error
    return failed


def _verify(args: Namespace, begin: float, progress: ProgressLine) -> Verdict:
    from surebound.load.vnnlib import read_property

    problem = read_property(args.property)  # before the slow imports, so that mistakes in it show at once
    keep_memory()
    importing = time.monotonic()
    quick_import()
    imported = time.monotonic()
    set_threads(args.threads)
    from surebound.api import load, verify

    model = load(args.net)
    loading = time.monotonic() - begin
    timeout = None if args.timeout is None else max(args.timeout - loading, 0.01)
    verdict = verify(
        model,
        problem,
        timeout=timeout,
        branching=args.branching,
        search=args.search,
        seed=args.seed,
        memory=args.memory,
        early_stop=args.early_stop,
        on_progress=progress,
    )
    torch = imported - importing
    phases = {"import": round(torch, 6), "load": round(loading - torch, 6), **verdict.seconds_by_phase}
    return replace(verdict, seconds=verdict.seconds + loading, seconds_by_phase=phases)


def _so_far(progress: ProgressLine, seconds: float, seed: int) -> Verdict:
    """What is known when the user interrupts."""
    last = progress.last
    subproblems, lowest = (0, None) if last is None else (last.subproblems, last.lowest)
    return Verdict(
        status="unknown", reason="interrupted", seconds=seconds, subproblems=subproblems, lower_bound=lowest, seed=seed
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

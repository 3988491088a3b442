"""`surebound verify NET.onnx PROPERTY.vnnlib`: the verdict alone on the first line of stdout, exit code 0."""

import json
import os
import sys
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path

from surebound.cli.arguments import memory_size, positive_int, positive_seconds, seed, writable, write_whole
from surebound.cli.command import Command
from surebound.cli.display import ProgressLine
from surebound.problem import Counterexample, Verdict

_BRANCHING = ("auto", "upb", "fsb", "sr", "input")


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("net", metavar="NET.onnx", help="the network, an ONNX file (may be gzipped)")
    parser.add_argument("property", metavar="PROPERTY.vnnlib", help="VNN-LIB 1.0 or 2.0 (may be gzipped)")
    parser.add_argument("--timeout", type=positive_seconds, metavar="S", help="seconds in all, loading included")
    parser.add_argument(
        "--branching",
        choices=_BRANCHING,
        default="auto",
        help="which neuron to split: the paper's upb, fsb or sr; input bisects the input box; auto chooses (default)",
    )
    parser.add_argument("--counterexample", metavar="FILE", help="write the result in VNN-COMP's text form")
    parser.add_argument("--json", metavar="FILE", help="write verdict, times, subproblems and bound as JSON")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="for the attacks (default 0)")
    parser.add_argument("--threads", type=positive_int, metavar="N", help="processor threads (default: all)")
    parser.add_argument(
        "--memory", type=memory_size, metavar="SIZE", help="for the search's queue, such as 2G; beyond it, disk is used"
    )
    parser.add_argument("--early-stop", action="store_true", help="give up when the timeout is expected to be missed")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the verdict")


def _run(args: Namespace) -> int:
    begin = time.monotonic()
    counterexample, report = writable(args.counterexample), writable(args.json)
    progress = ProgressLine(quiet=args.quiet)
    interrupted = False
    try:
        verdict = _verify(args, begin, progress)
    except KeyboardInterrupt:
        interrupted = True
        verdict = Verdict(status="unknown", reason="interrupted", seconds=time.monotonic() - begin, seed=args.seed)
    progress.done()
    if counterexample is not None:
        write_whole(counterexample, vnncomp_text(verdict))
    if report is not None:
        write_whole(report, json_text(verdict))
    print(verdict.status, flush=True)
    if not args.quiet:
        print(_summary(verdict), file=sys.stderr)
    return 130 if interrupted else 0


def _verify(args: Namespace, begin: float, progress: ProgressLine) -> Verdict:
    for path, kind in ((args.net, "network"), (args.property, "property")):
        _check_readable(path, kind)
    threads = args.threads or len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    import torch

    from surebound.api import load, verify
    from surebound.load.vnnlib import read_property

    torch.set_num_threads(threads)
    problem = read_property(args.property)
    model = load(args.net)
    before = time.monotonic() - begin
    timeout = None if args.timeout is None else max(args.timeout - before, 0.01)
    verdict = verify(
        model,
        problem,
        timeout=timeout,
        branching=args.branching,
        seed=args.seed,
        memory=args.memory,
        early_stop=args.early_stop,
        on_progress=progress,
    )
    return _with_loading(verdict, before)


def _with_loading(verdict: Verdict, seconds: float) -> Verdict:
    from dataclasses import replace

    phases = {"load": round(seconds, 6), **verdict.seconds_by_phase}
    return replace(verdict, seconds=verdict.seconds + seconds, seconds_by_phase=phases)


def _check_readable(path: str, kind: str) -> None:
    """Fail before the slow imports when a file is not there."""
    from surebound.errors import MissingFileError

    if not Path(path).is_file():
        found = "a folder" if Path(path).is_dir() else "no such file"
        raise MissingFileError(f"cannot read the {kind} '{path}': {found}")


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
    from surebound import __version__

    record = {
        "verdict": verdict.status,
        "seconds": round(verdict.seconds, 6),
        "seconds_by_phase": verdict.seconds_by_phase,
        "subproblems": verdict.subproblems,
        "lower_bound": verdict.lower_bound,
        "branching": verdict.branching,
        "seed": verdict.seed,
        "version": __version__,
        "reason": verdict.reason,
    }
    return json.dumps(record, indent=2) + "\n"


def _summary(verdict: Verdict) -> str:
    text = f"{verdict.seconds:.2f} s, {verdict.subproblems:,} subproblems"
    if verdict.branching:
        text += f", branching {verdict.branching}"
    if verdict.lower_bound is not None and verdict.status != "sat":
        text += f", lower bound {verdict.lower_bound:.6g}"
    return text + (f" ({verdict.reason})" if verdict.reason else "")


COMMAND = Command("decide a property of a network: unsat (proved), sat (counterexample), unknown or timeout", _configure, _run)

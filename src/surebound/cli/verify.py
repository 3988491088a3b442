"""`surebound verify NET.onnx PROPERTY.vnnlib`: the verdict alone on the first line of stdout, exit code 0."""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from surebound import interrupts
from surebound.branching import CHOICES
from surebound.cli.arguments import (
    add_device,
    add_search,
    announce_threads,
    check_device,
    check_network,
    check_property,
    memory_size,
    output_files,
    positive_seconds,
    seed,
    set_threads,
    thread_count,
    worker_count,
    write_whole,
)
from surebound.cli.command import Command
from surebound.cli.display import ProgressLine, complain
from surebound.cli.engine import add_engine, check_engine
from surebound.cli.quick_torch import preload, quick_import, uncollected
from surebound.cli.watchdog import Watchdog
from surebound.errors import OutOfTimeError, UsageError, visible
from surebound.limits import Deadline
from surebound.memory import keep_memory
from surebound.verdict import Status, Verdict
from surebound.verify import FEW_INPUTS
from surebound.verify.clock import Clock

if TYPE_CHECKING:
    from surebound.network.model import Model
    from surebound.problem import Counterexample, Ports, Property
    from surebound.verify.begun import Begun

_WORKERS = (
    "processes with one thread each, which share a search that takes longer; auto: one for each processor, if a trial "
    "says that they are faster than threads (default: none but this one, with all threads)"
)
_GRACE = 0.25  # seconds after the timeout in which the verification ends by itself


def _configure(parser: ArgumentParser) -> None:
    parser.add_argument("net", metavar="NET.onnx", help="the network, an ONNX file (may be gzipped)")
    parser.add_argument("property", metavar="PROPERTY.vnnlib", help="VNN-LIB 1.0 or 2.0 (may be gzipped)")
    parser.add_argument(
        "--timeout", type=positive_seconds, metavar="S", help="seconds in all, loading included (default: no limit)"
    )
    parser.add_argument(
        "--branching",
        choices=CHOICES,
        default="auto",
        help="which neuron to split (upb, fsb, sr, or mixture of upb and sr), or input: bisect the input box; "
        "auto: input where few inputs vary, else mixture (default)",
    )
    add_search(parser)
    parser.add_argument("--counterexample", metavar="FILE", help="write the result in VNN-COMP's text form")
    parser.add_argument("--proof", metavar="FILE", help="write a proof of unsat, for surebound check")
    parser.add_argument(
        "--proof-format",
        choices=("surebound", "aptp"),
        default="surebound",
        help="surebound's own (default), or aptp: the tree alone, in a FILE.aptp for APTPchecker",
    )
    parser.add_argument("--json", metavar="FILE", help="write verdict, times, subproblems and bound as JSON")
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="for the attacks (default 0)")
    parser.add_argument(
        "--threads", type=thread_count, metavar="N", help="processor threads (default: OMP_NUM_THREADS, or all)"
    )
    add_engine(parser, _WORKERS, worker_count, "N|auto")
    parser.add_argument(
        "--memory", type=memory_size, metavar="SIZE", help="for the search's queue, such as 2G; beyond it, disk is used"
    )
    add_device(parser)
    parser.add_argument("--early-stop", action="store_true", help="give up when the timeout is expected to be missed")
    parser.add_argument("--quiet", action="store_true", help="print nothing but the verdict")


def _run(args: Namespace) -> int:
    announce_threads(_threads(args))
    # The first attempt's products are small: a second thread would mostly wait, and keep torch from being loaded.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    net, problem = check_network(args.net), check_property(args.property)
    files = output_files(keep=(net, problem), counterexample=args.counterexample, proof=args.proof, json=args.json)
    _check_format(args)
    check_engine(args)
    check_device(args.device)
    work = _Work(args)

    def interrupted() -> None:
        work.progress.done()
        _give_up(args, files, work.so_far("unknown", "interrupted"))

    def overdue() -> int:
        """Answer in place of a main thread that did not notice that the time is up."""
        return _give_up(args, files, work.so_far("timeout", f"the time ran out while {work.doing}"))

    watchdog = Watchdog(work.clock.deadline + _GRACE, overdue)
    with interrupts.held():
        with interrupts.leaving(interrupted):
            try:
                verdict = work.verdict()
            except OutOfTimeError as error:
                verdict = work.so_far("timeout", str(error))
            except KeyboardInterrupt:  # in a program that calls `main` itself
                interrupted()
                return interrupts.code()
            finally:
                watchdog.call_off()
                work.progress.done()
        _finish(args, files, verdict, work.problem)
    return 0


def _threads(args: Namespace) -> int | None:
    """Threads of this process: by default as many as workers, which have nothing to do until they share a search."""
    return args.threads or (args.workers if isinstance(args.workers, int) else None)


def _check_format(args: Namespace) -> None:
    if args.proof_format != "surebound" and args.proof is None:
        raise UsageError(f"--proof-format {args.proof_format} without --proof: expected a file for the proof")
    if args.proof_format == "aptp" and args.branching == "input":
        raise UsageError("--proof-format aptp beside --branching input: the format has no bisections; expected others")


def _give_up(args: Namespace, files: dict[str, Path], verdict: Verdict) -> int:
    """Write and print what is known so far; the exit code."""
    try:
        _finish(args, files, verdict)
    except UsageError as error:
        return complain(str(error))
    return 0


def _finish(args: Namespace, files: dict[str, Path], verdict: Verdict, problem: Property | None = None) -> None:
    """Write and print the verdict on a property."""
    ports = None if problem is None else problem.ports
    texts = {"counterexample": vnncomp_text(verdict, ports), "json": json_text(verdict)}
    failed = _write({path: texts[option] for option, path in files.items() if option in texts})
    print(verdict.status, flush=True)
    if verdict.proof is not None and problem is not None:
        _save_proof(args, files["proof"], verdict, problem)
    if failed is not None:  # the verdict is out; now the exit code says that a file is missing
        raise failed
    if not args.quiet and sys.stderr is not None:
        print(visible(_summary(verdict, files.get("proof"))), file=sys.stderr)
    elif problem is not None and not problem.regions:  # a slip in the property, probably
        complain(verdict.reason)


def _save_proof(args: Namespace, path: Path, verdict: Verdict, problem: Property) -> None:
    if args.proof_format == "aptp":
        from surebound.proof.aptp import save_aptp

        save_aptp(verdict.proof, path, network=args.net, prop=problem)
    else:
        verdict.proof.save(path, network=args.net, property=args.property)


def _write(texts: dict[Path, str]) -> UsageError | None:
    """Write what can be written; the first failure."""
    failed = None
    for path, text in texts.items():
        try:
            write_whole(path, text)
        except UsageError as error:
            failed = failed or error
    return failed


class _Work:
    """One verification, and what is known of it at any time."""

    def __init__(self, args: Namespace) -> None:
        self.progress = ProgressLine(quiet=args.quiet, timeout=args.timeout)
        self.clock = Clock(args.timeout, self.progress, start=args.began)
        self.doing = "starting"
        self.problem: Property | None = None
        self._args = args

    def verdict(self) -> Verdict:
        """Read the files and decide: without torch, if that is quick."""
        args = self._args
        with self.clock.phase("load"):
            from surebound.load.vnnlib import read_property

            # before the slow imports, so that mistakes in it show at once
            problem = read_property(args.property, deadline=self._deadline(f"reading '{args.property}'"))
            self.problem = problem
            keep_memory()
            for library in ("numpy.random", "onnx", "onnxruntime"):  # all that the first attempt takes
                import_module(library)
            first = args.proof is None and args.search == "default"
            bisect = first and args.branching in ("auto", "input") and problem.varying <= FEW_INPUTS
            if not bisect:
                preload()
            from surebound.load.onnx import read_model

            model = read_model(args.net, inputs=problem.inputs, deadline=self._deadline(f"reading '{args.net}'"))
        begun: Begun | None = None
        if first:
            from surebound.verify.first import first_attempt

            self.doing = "verifying"
            found = first_attempt(model, problem, self.clock, seed=args.seed, bisect=bisect, slow=preload)
            if isinstance(found, Verdict):
                return found
            begun = found
        return self._by_all_means(model, problem, begun)

    def _by_all_means(self, model: Model, problem: Property, begun: Begun | None) -> Verdict:
        """Decide with torch, going on where the first attempt stopped."""
        args = self._args
        self.doing = "importing torch"
        with self.clock.phase("import"), uncollected():
            quick_import()
            set_threads(_threads(args))
            from surebound.verify.options import Options
            from surebound.verify.pipeline import verify
        if args.proof is not None and args.proof_format == "surebound":
            from surebound.proof.checkable import expect_checkable, expect_checkable_property

            with self.clock.phase("load"):
                expect_checkable_property(Path(args.property))
                expect_checkable(Path(args.net), model.network)
        self.doing = "verifying"
        options = Options.of(
            args.search,
            timeout=args.timeout,
            branching=args.branching,
            seed=args.seed,
            memory=args.memory,
            early_stop=args.early_stop,
            workers=args.workers,
            cluster=args.cluster,
            resources=args.resources,
            proof=args.proof is not None,
            device=args.device,
        )
        if args.proof_format == "aptp":
            from surebound.proof.aptp import check_sayable

            check_sayable(args.net, problem)
            options = replace(options, strategy=replace(options.strategy, input_limit=-1))  # neurons are split
        return verify(model, problem, options, clock=self.clock, begun=begun)

    def _deadline(self, doing: str) -> Deadline:
        self.doing = doing
        return Deadline(self.clock.deadline, doing)

    def so_far(self, status: Status, reason: str) -> Verdict:
        """What is known when it has to end."""
        last = self.progress.counted
        subproblems, lowest = (0, None) if last is None else (last.subproblems, last.lowest)
        return Verdict(
            status=status,
            reason=reason,
            seconds=self.clock.elapsed,
            seconds_by_phase=self.clock.phases,
            subproblems=subproblems,
            lower_bound=lowest,
            seed=self._args.seed,
        )


def vnncomp_text(verdict: Verdict, declared: Ports | None = None) -> str:
    """The verdict and, after `sat`, ((X_0 v) … (Y_0 v)); for a property that declares tensors, their values by name."""
    found = verdict.counterexample
    if found is None:
        return f"{verdict.status}\n"
    return f"sat\n{_assignment(found) if declared is None else _by_name(found, declared)}\n"


def _by_name(found: Counterexample, declared: Ports) -> str:
    """The assignment of VNN-LIB 2.0: each tensor's name, type and shape, then its elements, a line each."""
    lines = []
    for ports, values in ((declared.inputs, found.x), (declared.outputs, found.y)):
        elements = iter(values.tolist())
        for port in ports:
            lines.append(f"{port.name} {port.type} [{','.join(map(str, port.shape))}]")
            lines += [repr(value) for value in islice(elements, port.size)]
    return "\n".join(lines)


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


def _summary(verdict: Verdict, proof: Path | None) -> str:
    text = f"{verdict.seconds:.2f} s, {verdict.subproblems:,} subproblems"
    if verdict.branching:
        text += f", branching {verdict.branching}"
    if verdict.searched_by:
        text += f", {verdict.searched_by}"
    if verdict.lower_bound is not None and verdict.status != "sat":
        text += f", lower bound {verdict.lower_bound:.6g}"
    if proof is not None:
        written = f"proof of {proof.stat().st_size:,} bytes" if verdict.proof is not None else "no proof"
        text += f", {written}"
    return text + (f" ({verdict.reason})" if verdict.reason else "")


COMMAND = Command(
    "decide a property of a network: unsat (proved), sat (counterexample), unknown or timeout", _configure, _run
)

"""`surebound certify MODEL --dataset NAME --eps 2/255`: how many test images are provably classified right."""

import json
import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from dataclasses import asdict
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surebound import interrupts
from surebound.attacks import ATTACKS
from surebound.branching import CHOICES
from surebound.cli.arguments import (
    add_device,
    add_search,
    check_device,
    eps_text,
    memory_size,
    output_files,
    positive_seconds,
    seed,
    set_threads,
    write_whole,
)
from surebound.cli.command import Command
from surebound.cli.display import StatusLine, duration
from surebound.cli.engine import add_engine, chosen_engine, threads_here
from surebound.cli.model import add_images, check_model, check_radius, choose_images, note_other_data, radius_text
from surebound.cli.quick_torch import quick_import
from surebound.errors import UsageError, visible
from surebound.memory import keep_memory

if TYPE_CHECKING:
    from surebound.evaluate.certify import Certification
    from surebound.evaluate.certifying import CertifyProgress
    from surebound.evaluate.task import Task

STORE = "certify.sqlite"


def _configure(parser: ArgumentParser) -> None:
    add_images(parser)
    parser.add_argument(
        "--timeout", type=positive_seconds, default=60.0, metavar="S", help="seconds for each image (default 60)"
    )
    parser.add_argument("--branching", choices=CHOICES, default="auto", help="as for verify (default auto)")
    add_search(parser)
    parser.add_argument(
        "--attack",
        choices=tuple(ATTACKS),
        default="mi-fgsm",
        help="the attack on what intervals and CROWN leave open (default mi-fgsm)",
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="for the attacks (default 0)")
    parser.add_argument(
        "--no-early-stop", action="store_true", help="search to the timeout even where it looks hopeless"
    )
    parser.add_argument(
        "--radius-search",
        action="store_true",
        help="also bisect, up to --eps, for each image's largest certified and smallest attacked radius",
    )
    parser.add_argument(
        "--store",
        metavar="FILE",
        help=f"the SQLite file of results (default: {STORE} in the model's folder, or here for an ONNX file)",
    )
    parser.add_argument("--resume", action="store_true", help="go on with the results that the store has")
    add_engine(parser)
    parser.add_argument(
        "--proofs",
        metavar="DIR",
        help="write a proof of each image that is verified, and its property, for surebound check",
    )
    parser.add_argument(
        "--check-proofs",
        action="store_true",
        help="check each proof as soon as it is written; what the checker refuses is not verified",
    )
    parser.add_argument(
        "--memory", type=memory_size, metavar="SIZE", help="what each process may take, about, such as 4G"
    )
    add_device(parser)
    parser.add_argument("--json", metavar="FILE", help="write the summary as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _run(args: Namespace) -> int:
    file = check_model(args.model)
    check_radius(args)
    store = Path(args.store) if args.store is not None else _default_store(args.model)
    files = output_files(keep=(file,), json=args.json, store=str(store))
    engine = chosen_engine(args)
    if args.check_proofs and args.proofs is None:
        raise UsageError("--check-proofs without --proofs: there is nothing to check; expected both")
    check_device(args.device)
    task = _task(args)
    line = _Line(quiet=args.quiet)
    from surebound.evaluate.certify import certify, so_far

    interrupted, begin = False, time.monotonic()
    with interrupts.held():
        try:
            with interrupts.raising():
                result = certify(task, store, engine=engine, resume=args.resume, on_progress=line)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            line.done()
        asked = len(task.images)
        if interrupted:
            found = so_far(task, store, time.monotonic() - begin)
            if found is not None:
                record = _record(args, found, asked, interrupted=True)
                _write(files, record)
                if record["images"]:
                    _report(record)
            _say_interrupted(0 if found is None else len(found.rows), asked, store)
            return interrupts.code()
        record = _record(args, result, asked)
        _write(files, record)
        _report(record)
    return 0


def _write(files: dict[str, Path], record: dict[str, Any]) -> None:
    if "json" in files:
        write_whole(files["json"], json.dumps(record, indent=2, allow_nan=False) + "\n")


def _say_interrupted(done: int, asked: int, store: Path) -> None:
    if sys.stderr is not None:
        text = f"interrupted after {done:,} of {asked:,} images; what is done is in '{store}'"
        print(f"{visible(text)}, and --resume goes on from there", file=sys.stderr)


def _default_store(model: str) -> Path:
    return Path(model) / STORE if Path(model).is_dir() else Path(STORE)


def _task(args: Namespace) -> "Task":
    quick_import()
    from surebound.data import load_dataset

    dataset = load_dataset(args.dataset, args.data_dir)
    images = choose_images(dataset, args.first, args.indices)
    note_other_data(args.model, dataset)
    keep_memory()
    set_threads(threads_here(args))

    from surebound.evaluate.room import Room
    from surebound.evaluate.stages import Settings
    from surebound.evaluate.task import Task

    settings = Settings.of(
        args.search,
        timeout=args.timeout,
        branching=args.branching,
        attack=args.attack,
        seed=args.seed,
        early_stop=not args.no_early_stop,
        radius_search=args.radius_search,
        norm=args.norm,
    )
    command = shlex.join(["surebound", *sys.argv[1:]])
    return Task(
        model=Path(args.model),
        dataset=dataset,
        eps=args.eps,
        images=images,
        settings=settings,
        command=command,
        proofs=None if args.proofs is None else Path(args.proofs),
        check_proofs=args.check_proofs,
        room=Room(args.memory),
        device=args.device,
    )


_MUCH = 2**31  # bytes that a user wants to know of before they are taken


class _Line:
    """Shows how far a certification is."""

    def __init__(self, *, quiet: bool) -> None:
        self._line, self._said = StatusLine(quiet=quiet), quiet
        self.done = self._line.done

    def __call__(self, progress: "CertifyProgress") -> None:
        if not self._said and progress.memory >= _MUCH and sys.stderr is not None:
            print(f"each process takes up to about {progress.memory / 2**30:.1f} GiB of memory", file=sys.stderr)
        self._said, found = True, progress.accuracies
        text = f"{progress.done:,} of {progress.total:,} images"
        if progress.done:
            text += f"  standard {found.standard:.1%}  robust {found.robust:.1%}  verified {found.verified:.1%}"
        if progress.remaining is not None:
            text += f"  {duration(progress.remaining)} left"
        self._line.show(progress.share, text)


def _record(args: Namespace, result: "Certification", asked: int, *, interrupted: bool = False) -> dict[str, Any]:
    """The JSON's content. Shares of no images are None."""
    from surebound.evaluate.store import OUTCOMES, STAGES

    found, undecided = result.accuracies, ("timeout", "unknown")
    phases: Counter[str] = Counter()
    for row in result.rows:
        phases.update(row.phases)
    ended = Counter(row.outcome for row in result.rows)
    settled = Counter(row.stage for row in result.rows if row.outcome not in undecided)
    proofs = {} if args.proofs is None else {"proofs": {"folder": args.proofs, **asdict(result.proofs)}}
    shares = {name: getattr(found, name) for name in ("standard", "withstood", "robust", "verified", "undecided")}
    return {
        "images": found.images,
        "images_asked": asked,
        **{name: None if isnan(share) else share for name, share in shares.items()},
        "outcomes": {name: ended[name] for name in OUTCOMES if ended[name]},
        "settled_by": {name: settled[name] for name in STAGES if settled[name]},
        "subproblems": sum(row.subproblems for row in result.rows),
        "dataset": args.dataset,
        "eps": eps_text(args.eps),
        "norm": args.norm,
        "store": str(result.store),
        "run": result.run,
        "seconds": round(result.seconds, 6),
        "straggler": round(result.alone / max(result.seconds, 1e-9), 6),
        "seconds_by_phase": {name: round(seconds, 6) for name, seconds in phases.items()},
        "interrupted": interrupted,
        **proofs,
    }


def _report(record: dict[str, Any]) -> None:
    images, outcomes = record["images"], record["outcomes"]
    radius = radius_text(record["eps"], record["norm"])
    for name, note in (
        ("standard", "classified right"),
        ("withstood", f"the first attack found nothing, {radius}"),
        ("robust", f"nor did anything else that ran, {radius}"),
        ("verified", f"proved, {radius}"),
    ):
        share = record[name]
        print(f"{name:<10}{100 * share:5.1f} %  ({round(share * images)} of {images}, {note})")
    if record["undecided"]:
        left = outcomes.get("timeout", 0) + outcomes.get("unknown", 0)
        print(f"undecided {100 * record['undecided']:5.1f} %  ({left} of {images})")
    settled = ", ".join(f"{stage} {n}" for stage, n in record["settled_by"].items())
    alone = f", {record['straggler']:.0%} of it for the last image alone" if record["straggler"] > 0.005 else ""
    print(f"settled by {settled}; {record['subproblems']:,} subproblems in {record['seconds']:.1f} s{alone}")
    if "proofs" in record:
        print(_proofs(record["proofs"]))
    print(f"results in {visible(record['store'])}", flush=True)


def _proofs(record: dict[str, Any]) -> str:
    text = f"proofs    {record['written']} of {record['verified']} verified images"
    if record["written"]:
        text += f", {record['median_bytes']:,.0f} bytes in the median"
    if record["accepted"] or record["refused"]:
        text += f"; {record['accepted']} accepted by the checker"
    if record["median_check_seconds"] is not None:
        text += f", {record['median_check_seconds']:.2f} s each in the median"
    if record["refused"]:
        text += f"; {record['refused']} refused, whose images are not verified"
    return f"{text}; in {visible(record['folder'])}"


COMMAND = Command("prove, image by image, how robust a network is on a data set", _configure, _run)

"""`surebound attack MODEL --dataset NAME --eps 2/255`: standard accuracy, and accuracy under attack."""

import json
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from surebound import interrupts
from surebound.attacks import ATTACKS
from surebound.cli.arguments import (
    add_device,
    check_device,
    count,
    eps_text,
    output_files,
    seed,
    set_threads,
    write_whole,
)
from surebound.cli.command import Command
from surebound.cli.display import StatusLine
from surebound.cli.engine import add_engine, chosen_engine, threads_here
from surebound.cli.model import add_images, check_model, check_radius, choose_images, note_other_data, radius_text
from surebound.errors import UsageError
from surebound.verify.clock import Clock
from surebound.work import Engine

if TYPE_CHECKING:
    from surebound.attacks.images import ImageAttack


def _configure(parser: ArgumentParser) -> None:
    add_images(parser)
    parser.add_argument("--method", choices=tuple(ATTACKS), default="pgd", help="the attack (default pgd)")
    parser.add_argument("--steps", type=count, default=20, metavar="N", help="of each restart (default 20)")
    parser.add_argument("--restarts", type=count, default=3, metavar="N", help="for each class (default 3)")
    parser.add_argument(
        "--targets", type=count, default=2, metavar="N", help="how many of the nearest classes to try (default 2)"
    )
    parser.add_argument("--seed", type=seed, default=0, metavar="N", help="for the random starting points (default 0)")
    add_engine(parser)
    add_device(parser)
    parser.add_argument("--json", metavar="FILE", help="write accuracies, counts and the images attacked as JSON")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _run(args: Namespace) -> int:
    clock = Clock(None)
    file = check_model(args.model)
    check_radius(args)
    files = output_files(keep=(file,), json=args.json)
    check_device(args.device)
    watch = _Watch(quiet=args.quiet)
    interrupted = False
    attack = _prepare(args, file, chosen_engine(args), watch, clock)
    with interrupts.held():
        try:
            with interrupts.raising(), clock.phase("attack"):
                attack()
        except KeyboardInterrupt:
            if watch.last is None:
                raise
            interrupted = True
        finally:
            watch.done()
        assert watch.last is not None  # there is always an image
        record = _record(args, watch.last, watch.indices, clock, interrupted)
        failed = None
        try:
            for path in files.values():
                write_whole(path, json.dumps(record, indent=2, allow_nan=False) + "\n")
        except UsageError as error:  # the accuracies go out first
            failed = error
        _report(record)
        if failed is not None:
            raise failed
        if interrupted and sys.stderr is not None:
            print(f"surebound: interrupted after {len(watch.last)} of {watch.total} images", file=sys.stderr)
    return interrupts.code() if interrupted else 0


class _Watch:
    """Shows how far an attack is, and keeps what is known."""

    def __init__(self, *, quiet: bool) -> None:
        self.last: ImageAttack | None = None
        self.indices: Sequence[int] = ()  # of the images that are done
        self.total = 0
        self._line = StatusLine(quiet=quiet)
        self.done = self._line.done

    def __call__(self, indices: Sequence[int], result: "ImageAttack") -> None:
        self.indices, self.last = indices, result
        done, correct, robust = len(result), int(result.correct.sum()), int(result.robust.sum())
        text = f"{done:,} of {self.total:,} images  standard {correct / done:.1%}  robust {robust / done:.1%}"
        self._line.show(done / self.total, text)


def _prepare(args: Namespace, file: Path, engine: Engine, watch: _Watch, clock: Clock) -> Callable[[], object]:
    """Everything that comes before the attack itself."""
    with clock.phase("load"):
        from surebound.data import load_dataset

        dataset = load_dataset(args.dataset, args.data_dir)
        images = choose_images(dataset, args.first, args.indices)
        note_other_data(args.model, dataset)
        watch.total = len(images)
        set_threads(threads_here(args))

        from surebound.evaluate.attacking import attack
        from surebound.evaluate.task import check_fits
        from surebound.load.onnx import load_model
        from surebound.load.portable import PortableNetwork

        model = load_model(file)
        check_fits(model, dataset)
        network = PortableNetwork(file, model=model, pack=engine.remote, device=args.device)
    return partial(
        attack,
        network,
        dataset,
        images,
        eps=args.eps,
        engine=engine,
        norm=args.norm,
        method=args.method,
        steps=args.steps,
        restarts=args.restarts,
        targets=args.targets,
        seed=args.seed,
        on_progress=watch,
    )


def _record(
    args: Namespace, result: "ImageAttack", indices: Sequence[int], clock: Clock, interrupted: bool
) -> dict[str, Any]:
    """The contract's JSON."""
    from surebound.version import __version__

    images = len(result)
    return {
        "standard": int(result.correct.sum()) / images,
        "robust": int(result.robust.sum()) / images,
        "images": images,
        "correct": int(result.correct.sum()),
        "attacked": [int(index) for index, found in zip(indices, result.found, strict=True) if found],
        "dataset": args.dataset,
        "method": args.method,
        "steps": args.steps,
        "restarts": args.restarts,
        "targets": args.targets,
        "eps": eps_text(args.eps),
        "norm": args.norm,
        "seed": args.seed,
        "seconds": round(clock.elapsed, 6),
        "seconds_by_phase": clock.phases,
        "interrupted": interrupted,
        "version": __version__,
    }


def _report(record: dict[str, Any]) -> None:
    images, correct = record["images"], record["correct"]
    standard, robust = (f"{100 * record[key]:.1f}" for key in ("standard", "robust"))
    wide = max(len(standard), len(robust))
    print(f"standard  {standard:>{wide}} %  ({correct} of {images})")
    kept = correct - len(record["attacked"])
    radius = radius_text(record["eps"], record["norm"])
    print(f"robust    {robust:>{wide}} %  ({kept} of {images}, {record['method']}, {radius})")
    print(f"seconds   {record['seconds']:.1f}", flush=True)


COMMAND = Command(
    "measure a network's accuracy on test images, as they are and under an attack on each", _configure, _run
)

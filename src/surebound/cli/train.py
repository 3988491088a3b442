"""`surebound train --preset NAME --out DIR`: train a network; torchrun starts several processes of it.

surebound train --preset mnist-0.1-ibp-r-cpu --out runs/mnist
torchrun --nproc-per-node 2 -m surebound train --preset mnist-0.1-ibp-r-cpu --out runs/mnist
"""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from surebound import interrupts
from surebound.cli.arguments import eps_text, set_threads, thread_count
from surebound.cli.command import Command
from surebound.cli.display import StatusLine, duration
from surebound.errors import UsageError, visible

if TYPE_CHECKING:
    from surebound.train.loop import TrainProgress
    from surebound.train.validate import Validation


def _configure(parser: ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--preset", metavar="NAME", help="a configuration that comes with surebound (see --list)")
    source.add_argument("--config", metavar="FILE.toml", help="a configuration of your own")
    source.add_argument("--list", action="store_true", help="list the presets and exit")
    parser.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change one setting, such as schedule.epochs=3; may be repeated",
    )
    parser.add_argument("--out", metavar="DIR", help="the folder to write: network, weights, metrics, curves")
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in --out, whose configuration is there, from its last checkpoint",
    )
    parser.add_argument("--data-dir", metavar="DIR", help="where data sets are (default: $SUREBOUND_DATA)")
    parser.add_argument("--threads", type=thread_count, metavar="N", help="processor threads")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _run(args: Namespace) -> int:
    from surebound.train.config import presets, read_config

    if args.list:
        _list(presets())
        return 0
    if args.out is None:
        raise UsageError("train needs --out, the folder to write")
    if not args.out:
        raise UsageError("--out is ''; expected the name of the folder to write")
    source = args.preset if args.preset is not None else None if args.config is None else Path(args.config)
    if source is None:
        if not args.resume:
            raise UsageError("train needs --preset NAME or --config FILE.toml ('surebound train --list' shows presets)")
        source = Path(args.out) / "config.toml"
        if not source.is_file():
            raise UsageError(f"there is no run in '{args.out}' to resume; expected a folder that train wrote")
    config = read_config(source, args.set)
    set_threads(args.threads)
    from surebound.memory import keep_memory
    from surebound.train.parallel import announced
    from surebound.train.run import run

    keep_memory()
    main = announced().is_main
    status = StatusLine(quiet=args.quiet or not main)
    try:
        with interrupts.noting() as interrupted:

            def report(progress: "TrainProgress") -> None:
                if interrupted():
                    raise KeyboardInterrupt
                status.show(progress.step / progress.steps, _describe(progress))

            if not main:
                interrupted()  # the first process decides when to stop: a step needs all of them
            result = run(
                config,
                Path(args.out),
                data_dir=None if args.data_dir is None else Path(args.data_dir),
                resume=args.resume,
                on_progress=report,
            )
    except KeyboardInterrupt:
        status.done()
        if main:
            print(f"interrupted; 'surebound train --out {args.out} --resume' goes on", file=sys.stderr)
        return interrupts.code()
    finally:
        status.done()
    if main:
        if result.validation is not None:
            print(_accuracies(result.validation, config.eps))
        print(f"wrote {visible(args.out)} in {result.seconds:.0f} s")
    return 0


_TITLES = {"exp-ibp": "Exp-IBP", "ibp-shi": "IBP (Shi)", "relu-stability": "ReLU stability", "standard": "standard"}


def _list(names: list[str]) -> None:
    """A line per preset: its name, and what is in it."""
    from surebound.train.config import read_config

    width = max(map(len, names))
    for name in names:
        config = read_config(name)
        title = _TITLES.get(config.method, config.method.upper())
        stages = f"{config.schedule.stages} × " if config.schedule.stages > 1 else ""
        detail = " with a mask" if getattr(config.loss, "mask", False) else ""
        detail += " by medians" if getattr(config.loss, "estimator", "") == "median" else ""
        print(
            f"{name:<{width}}  {title}{detail}, {config.data.name}, eps {eps_text(config.eps)}, {config.network.name}, "
            f"{stages}{config.schedule.epochs} epochs"
        )


def _describe(progress: "TrainProgress") -> str:
    text = (
        f"epoch {progress.epoch}/{progress.epochs}  loss {progress.loss:.4g}  "
        f"{progress.rate:.0f} images/s  {duration(progress.remaining)} left"
    )
    found = progress.validation
    if found is not None:
        text += f"  std {found.standard:.1%} pgd {found.pgd:.1%} ibp {found.ibp:.1%}"
    return text


def _accuracies(found: "Validation", eps: object) -> str:
    return (
        f"standard {found.standard:.2%}, under PGD {found.pgd:.2%}, by intervals {found.ibp:.2%} "
        f"({found.images} test images, eps {eps})"
    )


COMMAND = Command("train a network whose robustness can be proved", _configure, _run)

"""The options that say who does the work: this process, others, or a cluster."""

import json
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import Any

from surebound.cli.arguments import count
from surebound.errors import UsageError
from surebound.work import Engine, choose
from surebound.work.cluster import expect_cluster

WORKERS = "processes with one thread each (default: none but this one, with all threads)"


def add_engine(
    parser: ArgumentParser,
    workers: str = WORKERS,
    kind: Callable[[str], int | str] = count,
    metavar: str = "N",
) -> None:
    """--workers, --cluster and --resources."""
    parser.add_argument("--workers", type=kind, metavar=metavar, help=workers)
    parser.add_argument(
        "--cluster",
        metavar="ADDRESS",
        help="work on a Ray cluster: HOST:PORT, or auto for one that runs here or is started for this command",
    )
    parser.add_argument(
        "--resources",
        type=resources,
        metavar="JSON",
        help="what each task takes of the cluster, as Ray's own options, such as "
        """'{"num_cpus": 2, "memory": 4e9}' (default: one processor)""",
    )


def resources(text: str) -> dict[str, Any]:
    """Options of a Ray task.

    >>> resources('{"num_gpus": 1}')
    {'num_gpus': 1}
    """
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"""expected a JSON object such as '{{"num_gpus": 1}}', got '{text}'""")
    return found


def check_engine(args: Namespace) -> None:
    """Raise UsageError where options contradict each other, or there is no such cluster."""
    for option in ("workers", "cluster"):
        if getattr(args, "threads", None) is not None and getattr(args, option) not in (None, 1):
            raise UsageError(f"--threads beside --{option}: each worker has one thread; expected one of the two")
    choose(cluster=args.cluster, resources=args.resources, workers=None if args.workers == "auto" else args.workers)
    if args.cluster is not None:
        expect_cluster(args.cluster)


def chosen_engine(args: Namespace) -> Engine:
    """The engine that was asked for, after `check_engine`."""
    check_engine(args)
    return choose(workers=args.workers, cluster=args.cluster, resources=args.resources)


def threads_here(args: Namespace) -> int | None:
    """How many threads this process may use: one where others do the work."""
    threads: int | None = args.threads
    return threads if args.cluster is None and args.workers in (None, 1) else 1

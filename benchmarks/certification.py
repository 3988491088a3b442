"""Certifying a data set with one `surebound certify` against one `surebound verify` process for each image.

    python benchmarks/certification.py --first 1000 --sample 30

An IBP-R network for CIFAR-10 (--model; trained once into benchmarks/.cache if not given) at 2/255. `certify` runs with
two workers of one thread each, into a new store; the processes run two at a time with one thread each, both with the
same timeout and early stop. Only a sample of the images is verified by processes of their own: evenly spaced among
those that `certify` settled in batches, and among those that it took one by one; the means of the two groups, times
their sizes, give the total. Smaller runs show how the cost of an image falls with the number of images.

Report: benchmarks/results/certification.md. Exits 1 if a process contradicts `certify`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from cached import Picture, pictures, trained
from common import (
    RESULTS,
    SHARED,
    Instance,
    Record,
    Unavailable,
    command_text,
    machine,
    markdown_table,
    write_report,
)
from revisions import HERE, environment
from vnncomp import verify_process

if TYPE_CHECKING:
    from surebound.evaluate.store import Row

CLASSES = 10
WORKERS = 2
SMALLER = (10, 100)  # numbers of images for runs beside the large one
LEAST = 6  # of the sample, for those that certify took one by one, if there are as many
ONE_BY_ONE = ("alpha-crown", "search")  # stages
ANSWERS = {"verified": "unsat", "attacked": "sat", "falsified": "sat", "misclassified": "sat"}


@dataclass(frozen=True, kw_only=True)
class Certified:
    """A run of `surebound certify`."""

    images: int
    wall: float
    rows: "tuple[Row, ...]"
    summary: Record


@dataclass(frozen=True, kw_only=True)
class Group:
    """Images of a kind, some of which were also verified by processes of their own."""

    name: str
    size: int
    walls: tuple[float, ...]

    @property
    def total(self) -> float:
        """Seconds for all of them, two processes at a time."""
        return self.size * fmean(self.walls) / WORKERS if self.walls else 0.0


def main() -> int:
    args = _arguments()
    where = machine(1)
    try:
        model = args.model or trained("ibp-r-cifar", threads=2, data=args.data)
        sizes = [*(n for n in SMALLER if n < args.first), args.first]
        runs = [_certify(model, n, args) for n in sizes]
        chosen = sample(runs[-1].rows, args.sample)
        records = _verify_each(model, chosen, args)
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 2
    groups = [
        Group(name=name, size=len(rows), walls=tuple(records[r.image]["wall"] for r in rows if r.image in records))
        for name, rows in by_kind(runs[-1].rows).items()
    ]
    wrong = contradictions(runs[-1].rows, records)
    text = report(runs, groups, wrong, where, args)
    print("\n" + text)
    write_report(args.out, text)
    return int(bool(wrong))


def _certify(model: Path, first: int, args: argparse.Namespace) -> Certified:
    from surebound.evaluate.store import Store

    with tempfile.TemporaryDirectory() as folder:
        store, summary = Path(folder, "store.sqlite"), Path(folder, "summary.json")
        command = [sys.executable, "-m", "surebound", "certify", str(model), "--dataset", "cifar10"]
        command += ["--data-dir", str(args.data), "--eps", args.eps, "--first", str(first)]
        command += ["--timeout", str(args.timeout), "--workers", str(WORKERS)]
        command += ["--store", str(store), "--json", str(summary), "--quiet"]
        begin = time.perf_counter()
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False)
        wall = time.perf_counter() - begin
        if done.returncode:
            raise Unavailable(f"surebound certify ended with exit code {done.returncode}: {done.stderr.strip()}")
        record = json.loads(summary.read_text())
        with Store(store) as results:
            rows = tuple(results.rows(record["run"]))
    print(f"certify, {first:,} images: {wall:.1f} s, settled by {_counts(record['settled_by'])}", flush=True)
    return Certified(images=first, wall=wall, rows=rows, summary=record)


def _counts(found: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in found.items())


def by_kind(rows: "Sequence[Row]") -> "dict[str, list[Row]]":
    """The images that were settled in batches, and those that were taken one by one."""
    alone = [r for r in rows if r.stage in ONE_BY_ONE]
    return {"settled in batches": [r for r in rows if r.stage not in ONE_BY_ONE], "taken one by one": alone}


def sample(rows: "Sequence[Row]", size: int) -> "list[Row]":
    """Some rows of each kind, evenly spaced, by their share, but not too few of those that take long."""
    together, alone = by_kind(rows).values()
    share = round(size * len(alone) / max(len(rows), 1))
    slow = min(len(alone), max(share, min(LEAST, size // 3)))
    return [*evenly(together, size - slow), *evenly(alone, slow)]


def evenly(rows: "Sequence[Row]", count: int) -> "list[Row]":
    """So many of the rows, at equal distances.

    >>> evenly("abcdef", 3)
    ['b', 'd', 'f']
    """
    count = min(count, len(rows))
    return [rows[(2 * i + 1) * len(rows) // (2 * count)] for i in range(count)]


def _verify_each(model: Path, chosen: "Sequence[Row]", args: argparse.Namespace) -> dict[int, Record]:
    """Image -> what a process of its own said and took, two at a time."""
    found = list(pictures(args.data, [row.image for row in chosen]))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(WORKERS) as pool:
        instances = [_write(picture, model, args.eps, Path(folder)) for picture in found]
        records = list(pool.map(lambda instance: _verify(instance, args.timeout), instances))
    for picture, record in zip(found, records, strict=True):
        failed = f"; {record['crash']}" if record["crash"] else ""
        print(f"verify, image {picture.index}: {record['verdict']} in {record['wall']:.2f} s{failed}", flush=True)
    return {picture.index: record for picture, record in zip(found, records, strict=True)}


def _verify(instance: Instance, timeout: float) -> Record:
    return verify_process(instance, timeout, 1, source=HERE, options=("--early-stop",))[0]


def _write(picture: Picture, model: Path, eps: str, folder: Path) -> Instance:
    file = folder / f"image{picture.index}.vnnlib"
    file.write_text(vnnlib_text(picture, Fraction(eps)))
    return Instance(benchmark="cifar10", onnx=model / "model.onnx", vnnlib=file, expected="unknown")


def vnnlib_text(picture: Picture, eps: Fraction) -> str:
    """That some other class reaches the label's score within ε of an image, in VNN-LIB 1.0."""
    from surebound.problem import Robustness

    box = Robustness(picture.x, picture.label, eps).box()
    lines = [f"(declare-const X_{i} Real)" for i in range(box.lower.size)]
    lines += [f"(declare-const Y_{j} Real)" for j in range(CLASSES)]
    for i, (low, high) in enumerate(zip(box.lower.tolist(), box.upper.tolist(), strict=True)):
        lines += [f"(assert (>= X_{i} {low:.17f}))", f"(assert (<= X_{i} {high:.17f}))"]
    others = (f"(and (>= Y_{j} Y_{picture.label}))" for j in range(CLASSES) if j != picture.label)
    return "\n".join([*lines, f"(assert (or {' '.join(others)}))"]) + "\n"


def contradictions(rows: "Sequence[Row]", records: Mapping[int, Record]) -> list[int]:
    """Images for which `certify` says one thing and a process of its own another."""
    answers = {row.image: ANSWERS.get(row.outcome) for row in rows}
    return [image for image, r in records.items() if {answers[image], r["verdict"]} == {"sat", "unsat"}]


def report(
    runs: Sequence[Certified], groups: Sequence[Group], wrong: Sequence[int], where: str, args: argparse.Namespace
) -> str:
    """The whole Markdown page."""
    intro = " ".join((__doc__ or "").split("\n\n")[2].split())
    whole = runs[-1]
    total = sum(group.total for group in groups)
    return "\n".join(
        [
            "# Certifying a data set\n",
            f"{where}\n",
            f"{intro} The timeout is {args.timeout:g} s.\n",
            f"**{whole.images:,} images take {whole.wall:.1f} s by `surebound certify` and {total:.0f} s one by one, "
            f"a ratio of {total / whole.wall:.1f}. {len(wrong)} contradictions in the sample.**\n",
            f"Settled by: {_counts(whole.summary['settled_by'])}. Outcomes: {_counts(whole.summary['outcomes'])}.\n",
            f"## One process for each image\n\n{group_table(groups)}",
            f"## The cost of an image\n\n{cost_table(runs)}",
            f"```\n{command_text()}\n```\n",
        ]
    )


def group_table(groups: Sequence[Group]) -> str:
    """What the processes took, by kind of image."""
    header = ["images", "number", "of them run", "mean [s]", "in all, two at a time [s]"]
    rows = [
        [g.name, f"{g.size:,}", len(g.walls), f"{fmean(g.walls):.2f}" if g.walls else "–", f"{g.total:.0f}"]
        for g in groups
    ]
    return markdown_table(header, rows)


def cost_table(runs: Sequence[Certified]) -> str:
    """What `certify` took, by number of images."""
    header = ["images", "seconds", "ms for an image"]
    return markdown_table(header, [[f"{r.images:,}", f"{r.wall:.1f}", f"{1e3 * r.wall / r.images:.0f}"] for r in runs])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="the folder of data sets")
    parser.add_argument("--model", type=Path, metavar="DIR", help="an IBP-R network's folder (default: a cached one)")
    parser.add_argument("--eps", default="2/255", help="the radius (default 2/255)")
    parser.add_argument("--first", type=int, default=1000, metavar="N", help="test images (default 1000)")
    parser.add_argument("--sample", type=int, default=30, metavar="K", help="processes of their own (default 30)")
    parser.add_argument("--timeout", type=float, default=10.0, help="seconds for each image (default 10)")
    parser.add_argument("--out", type=Path, default=RESULTS / "certification.md", help="the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

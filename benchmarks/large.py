"""The networks that this field trains: `surebound certify` on `cnn7` (17 M parameters, 229,888 ReLUs) and `conv-2-255`.

    python benchmarks/large.py --first 50

One process for each network, on test images of CIFAR-10 at 2/255, with a timeout for each image. `conv-2-255` is the
one in models/; `cnn7` is trained once into benchmarks/.cache. Others can be given (--cnn7 RUN, --conv-2-255 RUN). An
image's seconds are those of its stages, each stage's shared among the images in it; memory is the process's peak.

Report: benchmarks/results/large.md.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from cached import trained
from common import RESULTS, SHARED, Unavailable, command_text, machine, markdown_table, phases_text, write_report
from revisions import environment

if TYPE_CHECKING:
    from surebound.evaluate.store import Row

NETWORKS = ("cnn7", "conv-2-255")
SEARCH = ("bounding", "branching", "queue", "leaves", "linear programs")  # phases
EPS = "2/255"


@dataclass(frozen=True, kw_only=True)
class Certified:
    """What certifying images with one network took."""

    name: str
    record: dict[str, Any]
    rows: "Sequence[Row]"
    peak: int  # bytes

    @property
    def by_stage(self) -> list[tuple[str, str, int, float, float]]:
        """Stage, outcome, images, their mean and largest seconds."""
        found = Counter((row.stage, row.outcome) for row in self.rows)
        seconds = {key: [r.seconds for r in self.rows if (r.stage, r.outcome) == key] for key in found}
        return [(*key, found[key], fmean(seconds[key]), max(seconds[key])) for key in sorted(found)]

    @property
    def rate(self) -> float | None:
        """Subproblems a second of the searches; None if there was none."""
        searched = [row for row in self.rows if any(row.phases.get(phase) for phase in SEARCH)]
        spent = sum(row.phases.get(phase, 0.0) for row in searched for phase in SEARCH)
        return sum(row.subproblems for row in searched) / spent if spent else None


def main() -> int:
    args = _arguments()
    given = {"cnn7": args.cnn7, "conv-2-255": args.conv_2_255}
    try:
        where = machine(args.threads)
        found = []
        for name in NETWORKS:
            model = given[name] or trained(name, threads=args.threads, data=args.data)
            found.append(_certify(name, model, args))
            print(f"{name}: {_sentence(found[-1])}", flush=True)
    except Unavailable as reason:
        print(f"not measured: {reason}", file=sys.stderr)
        return 2
    write_report(args.out, _report(found, where, args))
    return 0


def _certify(name: str, model: Path, args: argparse.Namespace) -> Certified:
    with tempfile.TemporaryDirectory() as folder:
        store, summary = Path(folder, "results.sqlite"), Path(folder, "summary.json")
        command = [sys.executable, "-m", "surebound", "certify", str(model), "--dataset", "cifar10", "--eps", EPS]
        command += ["--first", str(args.first), "--timeout", str(args.timeout), "--threads", str(args.threads)]
        command += ["--data-dir", str(args.data), "--store", str(store), "--json", str(summary)]
        process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        if status:
            raise Unavailable(f"certifying with {name} ended with exit code {os.waitstatus_to_exitcode(status)}")
        from surebound.evaluate.store import Store

        record = json.loads(summary.read_text())
        with Store(store, readonly=True) as results:
            rows = results.rows(record["run"])
    return Certified(name=name, record=record, rows=rows, peak=used.ru_maxrss * 1024)


def _sentence(one: Certified) -> str:
    rate = "no search" if one.rate is None else f"{one.rate:,.0f} subproblems a second in searches"
    record = one.record
    return (
        f"{record['images']} images in {record['seconds']:.0f} s ({phases_text(record['seconds_by_phase'])}); standard "
        f"{record['standard']:.0%}, verified {record['verified']:.0%}; peak {one.peak / 2**30:.1f} GiB; {rate}."
    )


def _report(found: Sequence[Certified], where: str, args: argparse.Namespace) -> str:
    intro = (__doc__ or "").split("\n\n")[2].replace("\n", " ")
    parts = [f"# Large networks\n\n{where}\n\n{intro} Here: {args.first} images, {args.timeout:g} s each.\n"]
    for one in found:
        rows = [[s, o, str(n), f"{mean:.2f}", f"{most:.2f}"] for s, o, n, mean, most in one.by_stage]
        header = ["settled by", "outcome", "images", "mean [s]", "most [s]"]
        parts.append(f"## {one.name}\n\n{_sentence(one)}\n\n{markdown_table(header, rows, left=2)}")
    return "\n".join([*parts, f"```\n{command_text()}\n```\n"])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    for name in NETWORKS:
        parser.add_argument(f"--{name}", type=Path, metavar="RUN", help="a training's folder, or an ONNX file")
    parser.add_argument("--first", type=int, default=50, help="test images (default 50)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each image (default 60)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--out", type=Path, default=RESULTS / "large.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

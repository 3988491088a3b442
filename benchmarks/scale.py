"""A certification of 10,000 images on 1 to 1,000 workers, simulated from the measured times of a real one.

    python benchmarks/scale.py --record --resume     # an hour or two of one core; what there is by then counts
    python benchmarks/scale.py --measure --resume    # minutes, on two quiet cores
    python benchmarks/scale.py                       # the simulations again, from what was recorded

--record certifies CIFAR-10 images in this process, with one thread, and notes the processor time that each batch of
screening and each search took, and the margin that screening left; timeouts are processor time, too, so that it may
run beside other work. (By default with the network of models/ that was trained by IBP-R at 2/255; --network names
others, which may have to be trained, --model any.) --measure runs the first of the same images by the
command: in one process with one thread, with two workers, and on a Ray of two nodes with one processor each. Both
keep what they have in the log and go on after an interruption.

The simulation draws 10,000 images from those recorded, with replacement, and certifies them on any number of workers:
batches are screened first, then what is open is searched from the lowest margin on (*hardest first*), or, to compare,
open images go before further batches, as they come. A worker takes as long to start as one does here; the process
that hands out work writes the rows of all answers that have come before it hands out more, at the rate that the store
takes them here. *With losses*, a tenth of the nodes, eight workers each, vanish at some moment with what they were at
and are replaced a minute later. The efficiency is the time of one worker over that of all workers together.

Report: benchmarks/results/scale.md. Exits 1 if the measured runs disagree on an image.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from cached import RECIPES, SHIPPED, trained
from common import RESULTS, SHARED, Log, Record, Unavailable, command_text, machine, markdown_table, write_report
from recording import ENGINES, measure, record
from simulation import BATCH, Costs, Image, Losses, replay
from store import row_rate

WORKERS = (1, 2, 10, 30, 100, 300, 1000)
TARGET = 100  # workers, at which hardest-first should be worth at least 90 %


def main() -> int:
    args = _arguments()
    log = Log(args.log, ("kind", "name", "setting"), resume=args.resume or not (args.record or args.measure))
    try:
        if args.record or args.measure:
            args.model = args.model or trained(args.network, threads=2, data=args.data)
        if args.record:
            record(args, log)
        if args.measure:
            for engine in ENGINES:
                measure(args, log, engine)
        text, agree = report(args, list(log.records.values()))
    except Unavailable as reason:
        print(reason, file=sys.stderr)
        return 2
    print("\n" + text)
    write_report(args.out, text)
    return int(not agree)


def recorded(records: Sequence[Record]) -> tuple[list[Image], Costs]:
    """The images that were recorded, and what a batch and a start take; not yet what the store does."""
    searched = {r["name"]: r for r in records if r["kind"] == "search"}
    screened = [r for r in records if r["kind"] == "screen" and {int(i) for i in r["margins"]} <= searched.keys()]
    parts = [r for r in records if r["kind"] == "part"]
    if not screened:
        raise Unavailable("no batch is recorded with all its searches: pass --record --resume")
    screened.sort(key=lambda r: r["name"])
    together, batch = screened[0]["images"], _batch_cost(parts, screened[0])
    images = []
    for r in screened:
        share = max(r["seconds"] - batch, 0.0) / r["images"]
        for image in range(r["name"], r["name"] + r["images"]):
            one = searched.get(image)
            images.append(Image(share) if one is None else Image(share, one["margin"], one["seconds"]))
    start = fmean(r["seconds"] for r in records if r["kind"] == "start")
    return images, Costs(start=start, batch=batch, together=together)


def _batch_cost(parts: Sequence[Record], whole: Record) -> float:
    """What a batch takes beyond its images: the same images took longer in parts."""
    seconds = sum(r["seconds"] for r in parts) - whole["seconds"]
    return max(seconds / max(len(parts) - 1, 1), 0.0)


def drawn(images: Sequence[Image], count: int, seed: int = 0) -> list[Image]:
    """So many images, drawn from those that were recorded, with replacement."""
    return random.Random(seed).choices(images, k=count)


def _table(images: Sequence[Image], costs: Costs) -> tuple[str, float]:
    """Makespans and efficiencies, and the efficiency at the target with hardest first."""
    one = replay(images, 1, costs)
    lines, aimed = [], 0.0
    for workers in WORKERS:
        coming = replay(images, workers, costs, hardest_first=False)
        hardest = replay(images, workers, costs)
        lossy = replay(images, workers, costs, losses=Losses(share=0.1, until=hardest.makespan))
        cells = [f"{workers:,}"]
        for r in (coming, hardest, lossy):
            cells += [f"{r.makespan:,.0f}", f"{r.efficiency(one):.0%}"]
        lines.append([*cells, f"{hardest.alone / hardest.makespan:.0%}", f"{hardest.driver / hardest.makespan:.0%}"])
        aimed = hardest.efficiency(one) if workers == TARGET else aimed
    header = ["workers", "as they come [s]", "efficiency", "hardest first [s]", "efficiency"]
    header += ["with losses [s]", "efficiency", "last one alone", "driver busy"]
    return markdown_table(header, lines), aimed


def _measured(runs: Sequence[Record], images: Sequence[Image], costs: Costs) -> str:
    """What really ran, beside the simulation of just these images."""
    simulated = {name: replay(images, 1 if k == 0 else 2, costs) for k, name in enumerate(ENGINES)}
    times = {r["name"]: r["seconds"] for r in runs}
    first = times.get(next(iter(ENGINES)))
    lines = []
    for name in ENGINES:
        took = times.get(name)
        gain = f"{first / took:.2f}" if took and first else "–"
        lines.append([name, f"{took:.1f}" if took else "not run", gain, f"{simulated[name].makespan:.1f}"])
    return markdown_table(["engine", "measured [s]", "times as fast as the first", "simulated [s]"], lines)


def disagreements(runs: Sequence[Record]) -> list[str]:
    """Images that one run decided in one way and another in the other; out of time is no contradiction."""
    broken = {"misclassified", "attacked", "falsified"}
    by_image: dict[str, set[str]] = {}
    for r in runs:
        for image, outcome in r["outcomes"].items():
            by_image.setdefault(image, set()).add("broken" if outcome in broken else outcome)
    return [image for image, ends in by_image.items() if {"broken", "verified"} <= ends]


def report(args: argparse.Namespace, records: Sequence[Record]) -> tuple[str, bool]:
    """The whole Markdown page, and whether the runs agree."""
    with tempfile.TemporaryDirectory() as folder:
        shape = (3, 32, 32)
        alone = row_rate(Path(folder, "alone.sqlite"), shape)
        together = row_rate(Path(folder, "batch.sqlite"), shape, size=BATCH)
    intro = [" ".join(part.split()) for part in (__doc__ or "").split("\n\n")[2:4]]
    settings = dict.fromkeys(r["setting"] for r in records)
    if not settings:
        raise Unavailable("nothing is recorded: pass --record")
    parts = [
        _section(args.images, name, [r for r in records if r["setting"] == name], alone, together) for name in settings
    ]
    text = [
        "# Certifying on many workers\n",
        f"{machine(1)}\n",
        *(f"{part}\n" for part in intro),
        f"The store takes {alone:,.0f} rows a second one by one, as searches end, and {together:,.0f} in batches of "
        f"{BATCH}, as screening does (synced, images of CIFAR-10's size).\n",
        *(text for text, _ in parts),
        f"```\n{command_text()}\n```\n",
    ]
    return "\n".join(text), all(agree for _, agree in parts)


def _section(count: int, name: str, records: Sequence[Record], alone: float, together: float) -> tuple[str, bool]:
    """What was recorded and measured of one certification and what becomes of it; whether the runs agree."""
    images, costs = recorded(records)
    costs = replace(costs, answer=1 / alone, row=1 / together)
    many = drawn(images, count)
    table, aimed = _table(many, costs)
    runs = [r for r in records if r["kind"] == "run"]
    wrong = disagreements(runs)
    work = sum(i.screening + (i.search or 0.0) for i in many)
    searched = [i.search for i in many if i.search is not None]
    first = runs[0]["images"] if runs else 0
    measured = f"Measured, the first {first:,}:\n\n{_measured(runs, images[:first], costs)}"
    text = [
        f"## {name}\n",
        f"**At {TARGET} workers, {count:,} images are certified with an efficiency of {aimed:.0%}.** They are "
        f"{work:,.0f} s of work, {work / TARGET:,.0f} s for each of these workers. A worker starts in "
        f"{costs.start:.1f} s, a batch costs {costs.batch:.2f} s beyond its images, and the longest search takes "
        f"{max(searched, default=0.0):.1f} s, below which no number of workers gets. The store, at {together:,.0f} "
        f"rows a second, is the limit at about {together * work / count:,.0f} workers. "
        f"{len(images):,} images are recorded, {sum(i.search is not None for i in images)} of which needed a search; "
        f"{costs.together} are screened together.\n",
        f"{measured}\n{len(wrong)} contradictions between the runs.\n" if runs else "",
        f"Simulated, {count:,} images:\n\n{table}",
    ]
    return "\n".join(part for part in text if part), not wrong


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="certify images in this process and note what it takes")
    parser.add_argument("--measure", action="store_true", help="run the command on them, in three ways")
    parser.add_argument("--resume", action="store_true", help="keep what the log already holds")
    parser.add_argument("--data", type=Path, default=SHARED / "data", help="the folder of data sets")
    parser.add_argument(
        "--network", default="conv-2-255", choices=[*RECIPES, *SHIPPED], help="which network (default conv-2-255)"
    )
    parser.add_argument("--model", type=Path, metavar="PATH", help="another one: its ONNX file or folder")
    parser.add_argument("--eps", default="2/255", help="the radius (default 2/255)")
    parser.add_argument("--first", type=int, default=1000, metavar="N", help="test images to certify (default 1000)")
    parser.add_argument("--measured", type=int, default=100, metavar="N", help="of those, to measure (default 100)")
    parser.add_argument("--images", type=int, default=10_000, metavar="N", help="images to simulate (default 10,000)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for each image (default 60)")
    parser.add_argument("--search", default="paper", help="the profile of the search (default paper)")
    parser.add_argument("--log", type=Path, default=RESULTS / "scale.jsonl", help="what was recorded, as JSON lines")
    parser.add_argument("--out", type=Path, default=RESULTS / "scale.md", help="the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

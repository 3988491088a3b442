"""What the store of results takes: rows a second, and the time to resume and to report with many rows in it.

    python benchmarks/store.py --rows 200000

A store with that many rows is made in a temporary folder, as 20 runs over images of CIFAR-10's size and once more as a
single run over small ones; the rows end as those of a real certification did, so that one in twelve has a
counterexample. Then `surebound certify --resume` is started on it with a few images left to do, until it shows how far
it is, and `surebound report` until it ends. Rows a second are those of one process that writes each result as it
comes, synced: one by one, as searches end, and in batches, as screening does.

Report: benchmarks/results/store.md.
"""

import argparse
import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from common import RESULTS, Record, command_text, machine, markdown_table, write_report
from revisions import environment

if TYPE_CHECKING:
    from surebound.evaluate.store import Row, Run

LEFT = 20  # images of the first run that have no row, for --resume to do
EPS = "2/255"
BATCH = 50  # rows that screening hands over at once
# (outcome, stage, of a thousand): benchmarks/results/certification.md
ENDS = (
    ("misclassified", "standard", 489),
    ("attacked", "attack", 85),
    ("verified", "ibp", 124),
    ("verified", "crown", 167),
    ("verified", "alpha-crown", 117),
    ("verified", "search", 14),
    ("falsified", "search", 1),
    ("timeout", "search", 3),
)


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A store: so many runs over images of a shape."""

    runs: int
    image: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.runs} run{'s' if self.runs > 1 else ''}, images {' × '.join(map(str, self.image))}"


SHAPES = (Shape(runs=20, image=(3, 32, 32)), Shape(runs=1, image=(1, 8, 8)))


def main() -> int:
    args = _arguments()
    with tempfile.TemporaryDirectory() as folder:
        rates = [_rates(Path(folder), image) for image in dict.fromkeys(shape.image for shape in SHAPES)]
        records = [_measure(Path(folder, str(k)), shape, args.rows) for k, shape in enumerate(SHAPES)]
    text = report(records, rates, args.rows, machine(1))
    print("\n" + text)
    write_report(args.out, text)
    return 0


def _measure(folder: Path, shape: Shape, rows: int) -> Record:
    """How long the commands take on a store of this shape."""
    images = rows // shape.runs
    _write_inputs(folder, images, shape.image)
    begin = time.perf_counter()
    store = fill(folder, shape, images)
    print(f"{shape}: {rows:,} rows written in {time.perf_counter() - begin:.0f} s, not synced", flush=True)
    record: Record = {"shape": str(shape), "store": store.stat().st_size}
    record["resume"] = _until_shown(_certify(folder, images, store))
    begin = time.perf_counter()
    page = folder / "report.html"
    command = [sys.executable, "-m", "surebound", "report", str(store), "-o", str(page)]
    subprocess.run(command, env=environment(), check=True, stdout=subprocess.DEVNULL)
    record |= {"report": time.perf_counter() - begin, "page": page.stat().st_size}
    print(record, flush=True)
    return record


def _write_inputs(folder: Path, images: int, shape: tuple[int, ...]) -> None:
    """A linear network and random images, which cost next to nothing to certify."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    (folder / "images").mkdir(parents=True)
    rng, size = np.random.default_rng(0), int(np.prod(shape))
    for name, count in (("train", 10), ("test", images)):
        pixels = rng.integers(0, 256, (count, *shape), dtype=np.uint8)
        np.savez(folder / "images" / f"{name}.npz", pixels=pixels, labels=np.arange(count) % 10)
    weight = numpy_helper.from_array(rng.normal(size=(size, 10)).astype(np.float32), "w")
    nodes = [helper.make_node("Flatten", ["x"], ["f"]), helper.make_node("MatMul", ["f", "w"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [1, *shape]), ("y", [1, 10]))]
    graph = helper.make_graph(nodes, "linear", ends[:1], ends[1:], [weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), folder / "net.onnx")


def fill(folder: Path, shape: Shape, images: int) -> Path:
    """Write the store. The first run is the one that `certify --resume` goes on with; it has a few images to do."""
    from surebound.evaluate.store import Store

    path, run = folder / "store.sqlite", _run(folder, images)
    with Store(path) as store:
        store._db.execute("PRAGMA synchronous = OFF")  # the rates are measured elsewhere
        for k in range(shape.runs):
            number = store.begin(replace(run, options={**run.options, "seed": k}))
            rows = islice(made_rows(shape.image), images - (LEFT if k == 0 else 0))
            while some := list(islice(rows, 1000)):
                store.add(number, *some)
    return path


def _run(folder: Path, images: int) -> "Run":
    from surebound.data import load_dataset
    from surebound.evaluate.task import Task

    data = load_dataset(str(folder / "images"), None)
    return Task(model=folder / "net.onnx", dataset=data, eps=Fraction(EPS), images=range(images)).describe()


def made_rows(shape: tuple[int, ...]) -> "Iterator[Row]":
    """Rows for image 0, 1, …, for ever: they end, and take as long, as measured ones do."""
    from surebound.evaluate.store import Counter, Row

    rng = np.random.default_rng(0)
    ends = [(outcome, stage) for outcome, stage, count in ENDS for _ in range(count)]
    rng.shuffle(ends)
    clean = rng.random(int(np.prod(shape)), dtype=np.float32)
    counter = Counter(clean=clean, point=clean + np.float32(1 / 255), adversarial=3)
    for image, (outcome, stage) in enumerate(cycle(ends)):
        seconds = float(rng.lognormal(0 if stage == "search" else -3))
        yield Row(
            image=image,
            label=image % 10,
            predicted=image % 10 if outcome != "misclassified" else (image + 1) % 10,
            outcome=outcome,
            stage=stage,
            seconds=seconds,
            phases={"attack": 0.02, "ibp": 0.001, "crown": 0.01, stage: seconds},
            subproblems=9,
            lower_bound=seconds if outcome == "verified" else None,
            property_sha256=f"{image:064x}",
            counter=counter if outcome in ("attacked", "falsified") else None,
        )


def _certify(folder: Path, images: int, store: Path) -> list[str]:
    command = [sys.executable, "-m", "surebound", "certify", str(folder / "net.onnx"), "--eps", EPS]
    command += ["--dataset", str(folder / "images"), "--first", str(images), "--store", str(store), "--resume"]
    return [*command, "--threads", "1"]


def _until_shown(command: Sequence[str]) -> float:
    """Seconds from the start of a command to the first sign of progress on its terminal; it ends by itself."""
    mine, theirs = pty.openpty()
    begin = time.perf_counter()
    environ = environment() | {"TERM": "xterm"}
    with subprocess.Popen(command, env=environ, stderr=theirs, stdout=subprocess.DEVNULL) as process:
        os.close(theirs)
        shown = os.read(mine, 1000).decode()
        seconds = time.perf_counter() - begin
    os.close(mine)
    if process.returncode or "images" not in shown:
        raise RuntimeError(f"surebound certify ended with exit code {process.returncode}: {shown}")
    return seconds


def _rates(folder: Path, shape: tuple[int, ...], seconds: float = 5.0) -> Record:
    """Rows a second that a store takes, one by one and in batches, for about so long each."""
    return {"image": shape} | {
        name: row_rate(folder / f"rate-{len(shape)}-{shape[-1]}-{size}.sqlite", shape, size=size, seconds=seconds)
        for name, size in (("alone", 1), ("batch", BATCH))
    }


def row_rate(path: Path, shape: tuple[int, ...], *, size: int = 1, seconds: float = 5.0) -> float:
    """Rows a second that a new store takes, so many at once, for about so long."""
    from surebound.evaluate.store import Run, Store

    run = Run(model="", model_sha256="", dataset="", shape=shape, classes=(), eps=EPS, images=())
    with Store(path) as store:
        number, written, rows = store.begin(run), 0, made_rows(shape)
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            store.add(number, *islice(rows, size))
            written += size
        return written / (time.perf_counter() - begin)


def report(records: Sequence[Record], rates: Sequence[Record], rows: int, where: str) -> str:
    """The whole Markdown page."""
    intro = " ".join((__doc__ or "").split("\n\n")[2].split())
    header = ["store", "file [MB]", "resume starts after [s]", "report [s]", "page [MB]"]
    lines = [
        [r["shape"], f"{r['store'] / 1e6:,.0f}", f"{r['resume']:.1f}", f"{r['report']:.1f}", f"{r['page'] / 1e6:.1f}"]
        for r in records
    ]
    pace = [[" × ".join(map(str, r["image"])), f"{r['alone']:,.0f}", f"{r['batch']:,.0f}"] for r in rates]
    return "\n".join(
        [
            f"# A store of {rows:,} rows\n",
            f"{where}\n",
            f"{intro}\n",
            markdown_table(header, lines),
            f"## Rows a second\n\n{markdown_table(['images', 'one by one', f'{BATCH} at once'], pace)}",
            f"```\n{command_text()}\n```\n",
        ]
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, metavar="N", help="rows in the store (default 200,000)")
    parser.add_argument("--out", type=Path, default=RESULTS / "store.md", help="the report")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

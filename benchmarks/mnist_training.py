"""Trains MNIST networks with the cpu presets, one method after the other, and proves what can be proved of each.

    python benchmarks/mnist_training.py --eps 0.1 --methods ibp-r colt ibp-shi crown-ibp mtl-ibp --runs runs

Each method is trained by `surebound train --preset mnist-EPS-METHOD-cpu`; then every test image it gets right is
decided by `surebound.verify` with a timeout. Runs and verdicts are kept in --runs, and a second call goes on where the
first stopped; the report is benchmarks/results/mnist_EPS.md.
"""

import argparse
import json
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from common import RESULTS, SHARED, Log, Record, command_text, machine, markdown_table, write_report

KEY = ("method", "image")


def main() -> int:
    args = _arguments()
    where = machine(args.threads)
    log = Log(args.runs / f"verdicts-{args.eps}.jsonl", KEY, resume=True)
    for method in args.methods:
        train(method, args)
        verify_images(method, args, log)
        write_report(args.out, report(args, log, where))
        print(table_row(method, args, log), flush=True)
    return 0


def preset(method: str, eps: str) -> str:
    return f"mnist-{eps}-{method}-cpu"


def folder_of(method: str, args: argparse.Namespace) -> Path:
    return Path(args.runs) / preset(method, args.eps)


def train(method: str, args: argparse.Namespace) -> None:
    """Train, or go on with, one method."""
    out = folder_of(method, args)
    if (out / "model.onnx").exists():
        return
    command = ["train", "--preset", preset(method, args.eps), "--out", str(out), "--resume"]
    command += ["--threads", str(args.threads), "--data-dir", str(args.data)]
    subprocess.run([sys.executable, "-m", "surebound", *command], check=True)


def verify_images(method: str, args: argparse.Namespace, log: Log) -> None:
    """Decide the first images, each process with one thread."""
    missing = [i for i in range(args.first) if log.find(method=method, image=i) is None]
    parts = [missing[k :: args.threads] for k in range(args.threads)]
    with ProcessPoolExecutor(args.threads) as pool:
        chunks = [part[k : k + 25] for part in parts for k in range(0, len(part), 25)]
        model = str(folder_of(method, args) / "model.onnx")
        options = (model, str(args.data), args.eps, args.timeout)
        for found in pool.map(_decide, chunks, [options] * len(chunks)):
            for record in found:
                log.add({"method": method, **record})


def _decide(images: list[int], options: tuple[str, str, str, float]) -> list[Record]:
    import torch

    import surebound
    from surebound.data import load_dataset

    torch.set_num_threads(1)
    path, data, eps, timeout = options
    model = surebound.load(path)
    x, y = load_dataset("mnist", data).test.take(images)
    scores = model.replay(x.flatten(1).numpy())
    records = []
    for image, pixels, label, right in zip(images, x, y.tolist(), scores.argmax(1) == y.numpy(), strict=True):
        record: Record = {"image": image, "status": "wrong", "seconds": 0.0, "subproblems": 0}
        if right:
            problem = surebound.Robustness(pixels.numpy().ravel(), label, eps)
            verdict = surebound.verify(model, problem, timeout=timeout)
            record |= {"status": verdict.status, "seconds": verdict.seconds, "subproblems": verdict.subproblems}
        records.append(record)
    return records


def table_row(method: str, args: argparse.Namespace, log: Log) -> list[str]:
    """Accuracies, and what they took."""
    found = [log.find(method=method, image=i) for i in range(args.first)]
    if None in found:
        return [method, *["…"] * 8]
    records = [r for r in found if r is not None]
    count = {s: sum(r["status"] == s for r in records) for s in ("wrong", "unsat", "sat", "timeout", "unknown")}
    lines = [json.loads(line) for line in (folder_of(method, args) / "metrics.jsonl").read_text().splitlines()]
    last = [r for r in lines if r["kind"] == "validation"][-1]
    epochs = [r for r in lines if r["kind"] == "epoch"]
    proving = sum(r["seconds"] for r in records)
    share = 100 / args.first
    return [
        f"`{method}`",
        f"{len(epochs)}",
        f"{epochs[-1]['seconds']:.0f}",
        f"{(args.first - count['wrong']) * share:.1f}",
        f"{(args.first - count['wrong'] - count['sat']) * share:.1f}",
        f"**{count['unsat'] * share:.1f}**",
        f"{last['ibp'] * 100:.1f}",
        f"{(count['timeout'] + count['unknown']) * share:.1f}",
        f"{proving:.0f}",
    ]


HEADER = [
    "method",
    "epochs",
    "training, s",
    "standard, %",
    "not falsified, %",
    "verified, %",
    "by intervals, %",
    "undecided, %",
    "verification, core s",
]


def report(args: argparse.Namespace, log: Log, where: str) -> str:
    rows = [table_row(m, args, log) for m in args.methods if (folder_of(m, args) / "model.onnx").exists()]
    commands = "\n".join(
        f"surebound train --preset {preset(m, args.eps)} --out {preset(m, args.eps)}" for m in args.methods
    )
    return f"""# Training on MNIST, ε = {args.eps}, on two cores

{where}

Each network is `conv-small` (4,804 ReLUs), trained with the method's cpu preset and seed 0, then every one of
the first {args.first} test images that it gets right is decided by `surebound.verify` (attack, bounds, branch and
bound) with {args.timeout:g} s per image.

{markdown_table(HEADER, rows)}

**Verified**: proved robust, rounding included. **Not falsified**: right, and no counterexample was found by the attacks
or the search. **By intervals**: float32 interval bounds, as shown during training.

```
{commands}
{command_text()}
```
"""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--eps", choices=["0.1", "0.3"], default="0.1")
    parser.add_argument("--methods", nargs="+", default=["ibp-r", "colt", "ibp-shi", "crown-ibp", "mtl-ibp"])
    parser.add_argument("--first", type=int, default=1000, help="test images")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds per image")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=SHARED / "data")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of the trained networks and verdicts")
    parser.add_argument("--out", type=Path, help="the report (default: benchmarks/results/mnist_EPS.md)")
    args = parser.parse_args()
    args.runs.mkdir(parents=True, exist_ok=True)
    args.out = args.out or RESULTS / f"mnist_{args.eps}.md"
    return args


if __name__ == "__main__":
    sys.exit(main())
